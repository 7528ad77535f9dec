"""The training side: read a data set, split it again, look at it, check it.

from imageshards import reader

train = reader.load("dataset", "train", batch_size=128, image_size=224)  # a tf.data.Dataset
image, label = reader.open("dataset", "train")[7]  # without TensorFlow
"""

from imageshards.reader.load import load
from imageshards.reader.records import Records, open
from imageshards.reader.splits import folds

__all__ = ["Records", "folds", "load", "open"]
