"""Records: schemas of tf.train.Example, their wire format, and the files that contain them.

Here: schemas, the encoding of an Example, record containers, and what TensorFlow Datasets reads.
Not here: which image becomes which record (`references`), and the writing of a shard (`shards`).
"""
