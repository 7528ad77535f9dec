"""References to images: their table, labels, splits, order, and the plan of the shards.

Here: functions on tables of references, which read and write no files. Not here: listing references
(`inputs`), and writing the images that they name (`shards`).
"""
