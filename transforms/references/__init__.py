"""References to images: their table, labels, splits, order, and the plan of the shards.

Here: functions of references, without input or output. Not here: how references are listed
(`inputs`), and how the images that they name are written (`shards`).
"""
