"""References to images: their columns, keys, labels, splits, order, and the plan of the shards.

Here: pure functions of references. Not here: how references are found (`inputs`), and how the
images that they refer to are written (`shards`).
"""
