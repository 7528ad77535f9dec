"""The parts of a record that become an element of a data set. Its modules do not import TensorFlow.

`reader.tensorflow` makes elements as tensors, with the same options and the same geometry.
"""
