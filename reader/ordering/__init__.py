"""The order in which records are read for training, and reading them in it. Without TensorFlow.

`GlobalOrder` maps a step to the records of its global batch, whatever number of hosts reads it.
`HostRecords` reads the records of one host. `Blocks` is the order of a single process, in windows.

Not here: decoding records (`reader.tensorflow`, `reader.random_access`).
"""
