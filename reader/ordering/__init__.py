"""The order in which records are read for training. Pure: numpy and arithmetic.

`GlobalOrder` maps a step to the records of its global batch, whatever number of hosts reads it.

Not here: reading the records (`reader.tensorflow`, `reader.random_access`).
"""
