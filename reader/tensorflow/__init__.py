"""The tf.data pipeline of `load`. Its modules import TensorFlow; `reader.load` imports them.

Not here: what does not need TensorFlow, such as the order of the records (`reader.ordering`).
"""
