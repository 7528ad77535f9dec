"""The training side: read a data set, split it again, look at it, check it.

from imageshards import reader

train = reader.load("dataset", "train", batch_size=128, image_size=224)   # tf.data.Dataset
"""

from imageshards.reader.load import load
from imageshards.reader.splits import folds

__all__ = ["folds", "load"]
