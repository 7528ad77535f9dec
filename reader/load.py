"""`load` opens a data set as a tf.data.Dataset. TensorFlow is imported by the call, not here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from imageshards.reader.elements.checks import check_elements
from imageshards.reader.options import LoadOptions, group
from imageshards.reader.ordering.selection import select
from imageshards.transforms import extras
from imageshards.transforms.elements import UsageError

if TYPE_CHECKING:
    from imageshards.reader.tensorflow.dataset import ImageDataset


def load(
    place: str | os.PathLike[str] | Mapping[str, Any],
    split: str | None = None,
    **options: Unpack[LoadOptions],
) -> ImageDataset:
    """Opens a data set for training or evaluation.

    >>> train = load("dataset", "train[:80%]", batch_size=8, image_size=64)
    >>> images, labels = next(iter(train))
    >>> images.shape, images.dtype.name, labels.dtype.name
    (TensorShape([8, 64, 64, 3]), 'float32', 'int32')
    >>> train.steps_per_epoch == train.records // 8
    True

    Args:
      place: the folder of a data set that imageshards built, or a glob pattern of record files. A
        dict of several is a mixture: place -> weight, such as `{"a": 0.7, "b": 0.3}`. For a
        curriculum, a weight is a list of (step, weight), each of which holds from its step on, or a
        function of the step: a pure one, such as `lambda step: min(step / 10_000, 0.5)`. Functions
        are called about once in 4,096 records. The data sets of a mixture have the same features
        and classes, and are each read again at their end. Any 10,000 records have the proportions
        within 1 %.
      split: the split to read, such as `train`, `train[:80%]` or `train[10%:20%]+validation`. A
        bound is a percentage, a number of records, or a number of shards (`2shard`). Default: the
        only split. The files of a pattern are one split without a name; a part is `[:80%]`.
      batch_size: the number of records in a batch of this host. The global batch has
        `batch_size * num_hosts` records. Default: None, single records.
      drop_remainder: drop the records of an epoch that fill no global batch. They are other ones in
        each epoch, and `dropped` is their number. With False, the last batch of an epoch is
        incomplete, or, with `repeat`, completed with records of the same epoch, of which `padded`
        is the number. Default: True with `repeat`, else False.
      image_size: the size to which images are resized, a number or (height, width). Default: None,
        no resizing; then batches require images of one size.
      dtype: "uint8", or "float32" or "bfloat16" with values from 0 to 1. Images that are stored as
        float32 keep their values. Default: "float32".
      channels: 3 or 1. Grayscale images are converted to RGB, and RGB images to grayscale.
        Default: 3.
      crop_fraction: crop images to the largest centered window with the aspect ratio of
        `image_size`, times this fraction. 0.875 is usual for evaluation on ImageNet. Default: 1.0.
      augment: crop a random window of 8 to 100 % of the image's area with an aspect ratio from 3/4
        to 4/3, and mirror half of the images, as is usual for training on ImageNet.
        Default: False.
      decode: False gives encoded images, or the bytes of stored pixels, as scalar strings. Texts
        are always strings. Default: True.
      features: feature key -> tf.io.FixedLenFeature or the like. The elements are then dicts of
        these features, parsed and not decoded. Default: None, the features of the schema.
      keys: keys of features of the record, such as `["price", "image/object/bbox/xmin"]`. The
        elements are then dicts of `image` (or `text`), `label` if there is one, and these features.
        The key `image/object/bbox` gives the boxes as float32 [boxes, 4]: ymin, xmin, ymax and
        xmax, fractions of the image's height and width. Boxes follow the crop and the mirroring of
        the image. A box with less than a tenth of its area in the crop is dropped, with its values
        of the other lists below `image/object/`. Masks and other shapes cannot follow. Default:
        None, elements of the image and the label alone.
      list_length: the length to which features of `keys` that are lists are padded with zeros or
        empty strings, or cut. The dict also has `KEY/size`: int32, the number of values in the
        record. Default: None, tf.RaggedTensors in batches.
      image_key: the key of the encoded image. Default: None, the key of the schema;
        `image/encoded` for files that imageshards did not write.
      label_key: the key of the label. Class indices are int32; other features have the dtype of the
        record: int64, float32 or string. Default: None, the key of the schema;
        `image/class/label` for files that imageshards did not write. An empty key means that there
        is no label: elements are then images alone.
      balance: "class" for as many records of each class, or class name -> weight, as in a mixture;
        classes that are not named have none. Each host first reads all records once, for their
        labels. Not for mixtures. Default: None, each record once an epoch.
      num_hosts: the number of hosts that share the records, such as `jax.process_count()`. Each
        host reads its part of each global batch. The global batches are a function of the data set,
        the split, the seed and `batch_size * num_hosts`, and not of the number of hosts.
        Default: 1.
      host: the index of this host, such as `jax.process_index()`. Default: 0.
      shuffle: True, False, or the number of records that are shuffled together. A global batch has
        records of as many places in the files as it has records; of each place, this number divided
        by the global batch is shuffled, and at least 4. True takes as many as fit in 128 MB, from
        16 to 65,536. Of remote files, all hosts together hold up to three times as many in memory,
        of local ones none. Default: True.
      seed: the seed of shuffling and augmentation, from 0 to 2**62 - 1. Default: 0.
      repeat: continue with another epoch, in another order, without end. Default: True.
      deterministic: False delivers records in the order in which they become ready. It may be
        faster, but the iterator has no state. Default: True.
      parallel_reads: the number of reads at the same time. Default: the number of cores, from 2 to
        8, for local files, and 16 for remote ones.
      start: the number of records of this host to skip, counted from the start of the first epoch,
        a multiple of `batch_size`; skipped records are not read. Requires `deterministic`.
        Default: 0.

    Returns:
      A tf.data.Dataset of (image, label), of (text, label), of images or texts alone, or of dicts.
      It has `steps_per_epoch`, `class_names`, `num_classes`, `element_spec`, and an `iterator()`
      whose state can be saved and restored.

    Raises:
      BuildError: there is no such data set, or it is damaged.
      UsageError: an argument is unknown, its value is invalid, or TensorFlow is not installed.
    """
    element_options, read_options = group(options)
    selection = select(place, split, element_options, read_options)
    source, spans, schema = selection.source, selection.spans, selection.schema
    if len({file.container.compression for file in source.files}) > 1:
        raise UsageError(
            f"{source.place}: some of the files are compressed and some are not: load them "
            "separately"
        )
    keys = check_elements(source, spans, schema, element_options, bool(read_options.batch_size))

    extras.require("train", "reader.load", ["tensorflow"])
    from imageshards.reader.tensorflow.dataset import ImageDataset
    from imageshards.reader.tensorflow.elements import Elements
    from imageshards.reader.tensorflow.recipe import Recipe

    recipe = Recipe(
        files=source.files,
        spans=spans,
        order=selection.order,
        elements=Elements(schema, element_options, read_options.seed, keys, len(source.classes)),
        options=read_options,
    )
    return ImageDataset(recipe, source.classes)
