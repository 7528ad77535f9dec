"""Reads finished data sets: for training, by record number, to inspect them and to verify them.

from imageshards import reader

train = reader.load("dataset", "train", batch_size=128, image_size=224)  # a tf.data.Dataset
train = reader.grain("dataset", "train", batch_size=128, image_size=224)  # for JAX
image, label = reader.open("dataset", "train")[7]  # a numpy array

Not here: building data sets (`pipeline`), and training loops (`launch.training`).

Every error is one line. A `BuildError` is about a data set that cannot be read, a `CorruptRecord`
about a record, and a `UsageError` about an invalid argument.
"""

from imageshards.reader.grain.pipeline import grain
from imageshards.reader.load import load
from imageshards.reader.random_access import Records, open
from imageshards.reader.splits import folds
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.container import CorruptRecord

__all__ = ["BuildError", "CorruptRecord", "Records", "UsageError", "folds", "grain", "load", "open"]
