"""The training side: read a data set, split it again, look at it, check it.

from imageshards import reader

train = reader.load("dataset", "train", batch_size=128, image_size=224)  # a tf.data.Dataset
image, label = reader.open("dataset", "train")[7]  # without TensorFlow

What cannot be read raises a `BuildError` (the data set) or a `CorruptRecord` (a record), a wrong
argument a `UsageError`: each is one line that says what is wrong, where, and what to do.
"""

from imageshards.reader.load import load
from imageshards.reader.random_access import Records, open
from imageshards.reader.splits import folds
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.container import CorruptRecord

__all__ = ["BuildError", "CorruptRecord", "Records", "UsageError", "folds", "load", "open"]
