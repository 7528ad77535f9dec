"""load(...): a data set as a tf.data.Dataset. Only the call imports TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

from imageshards.reader.files import Source, find
from imageshards.reader.order import make_blocks, whole
from imageshards.reader.splits import share_of
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.schemas import Feature, Schema

if TYPE_CHECKING:
    from imageshards.reader.stream import ImageDataset

DTYPES = ("uint8", "float32", "bfloat16")


def load(
    place: str | os.PathLike[str],
    split: str | None = None,
    *,
    batch_size: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    dtype: Literal["uint8", "float32", "bfloat16"] = "float32",
    channels: int = 3,
    crop_fraction: float = 1.0,
    augment: bool = False,
    decode: bool = True,
    features: Mapping[str, Any] | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
    num_hosts: int = 1,
    host: int = 0,
    shuffle: bool | int = True,
    seed: int = 0,
    repeat: bool = True,
    drop_remainder: bool | None = None,
    deterministic: bool = True,
    parallel_reads: int | None = None,
    start: int = 0,
) -> ImageDataset:
    """Reads a data set for training or evaluation.

    Args:
      place: the folder of a data set that imageshards built, or a pattern of TFRecord files.
      split: `train`, `train[:80%]`, `train[10%:20%]+validation`, ...; see `splits`. None: the only
        split, which is all there is to a pattern; a part of it is `[:80%]`.
      batch_size: records in a batch of this host; None: no batches.
      image_size: to which images are resized, a number or (height, width); None: as they are,
        which makes batches only of images of one size.
      dtype: of the images: uint8, or float32 or bfloat16 from 0 to 1; of images that the data set
        has as float32, as they are.
      channels: 3 or 1; grey becomes colours, and colours grey.
      crop_fraction: images are cut to the largest centred part that has the aspect ratio of
        `image_size`, times this: 0.875 is usual for evaluation on ImageNet.
      augment: cut a random part of 8 to 100 % of an image, with an aspect ratio of 3/4 to 4/3,
        and mirror every other one: what is usual for training on ImageNet.
      decode: False gives encoded images, or the bytes of pixels, as scalar strings; texts are
        strings in any case.
      features: what to parse instead, key -> tf.io.FixedLenFeature or its kin: the elements are
        then dicts of these, parsed and no more.
      image_key: the feature that is the encoded image; None: that of the data set, for files of
        others `image/encoded`.
      label_key: the feature that is the label, one int64; None: that of the data set, for files of
        others `image/class/label`; empty: there is none, and elements are images alone.
      num_hosts: how many hosts share the records, such as `jax.process_count()`.
      host: which of them this is, such as `jax.process_index()`. The shares are disjoint and
        complete: whole files where they divide, else records.
      shuffle: True, False, or how many records to shuffle together: True takes as many as are
        128 MB, from 16 to 65,536. Twice as many are held in memory. Compressed files are read from
        their beginning to their end: at least a whole one is shuffled together, and held.
      seed: of the shuffling and the augmentation: from 0 to 2**62 - 1.
      repeat: go on with the next epoch, in another order.
      drop_remainder: leave out the last batch if it is not full; None: where `repeat` is on, since
        then there is no last one.
      deterministic: False lets whatever is ready come first. It may be faster, and has no state.
      parallel_reads: blocks that are read at the same time; None: as many as cores, from
        2 to 8, from a disk, and 16 from elsewhere.
      start: how many records were delivered before; these are skipped, without being decoded.
        Only where `deterministic` is on.

    Returns:
      A tf.data.Dataset that also says `steps_per_epoch` and makes an `iterator()` with a state.

    Raises:
      BuildError: there is no such data set, or it is damaged.
      UsageError: an argument has a bad value.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: take {', '.join(DTYPES)}")
    if batch_size is not None:
        batch_size = whole("batch_size", batch_size, 1)
    size = None if image_size is None else _size_of(image_size)
    check_channels(channels, (3, 1))
    seed = whole("seed", seed)
    if augment and image_size is None:
        raise UsageError("augment: give an image_size too")
    if not isinstance(crop_fraction, Real) or not 0 < crop_fraction <= 1:
        raise UsageError(f"crop_fraction {crop_fraction!r}: take more than 0, and 1 at most")
    if crop_fraction < 1 and image_size is None:
        raise UsageError(f"crop_fraction {crop_fraction}: give an image_size too")
    start = whole("start", start)
    if not isinstance(shuffle, Integral) or shuffle < 0:
        raise UsageError(f"shuffle {shuffle!r}: take True, False or a number of records")
    num_hosts, host = whole("num_hosts", num_hosts, 1), whole("host", host)
    if parallel_reads is not None:
        parallel_reads = whole("parallel_reads", parallel_reads, 1)
    source = find(place)
    if len({file.compression for file in source.files}) > 1:
        raise UsageError(f"{place}: some files are compressed and some are not: load them apart")
    spans = source.spans(split)
    shares = [share_of(spans, num_hosts, each) for each in range(num_hosts)]
    if host >= num_hosts:
        raise UsageError(f"host {host} of {num_hosts}: hosts count from 0 to num_hosts - 1")
    from imageshards.reader.stream import Elements, ImageDataset, Recipe

    window = None if isinstance(shuffle, bool) else int(shuffle) or None
    blocks = make_blocks(source.files, shares[host], window)
    schema = schema_with(source.schema, image_key, label_key)
    content = schema.content
    if dtype == "uint8" and content and content.array and content.array.dtype != "uint8":
        raise UsageError(f"dtype uint8: the images of {source.place} are {content.array.dtype}")
    if batch_size and size is None and decode and features is None and schema.holds == "encoded":
        _check_one_size(source, {span.file for span in spans})
    elements = Elements(
        schema=schema,
        features=features,
        image_size=size,
        dtype=dtype,
        channels=channels,
        crop_fraction=float(crop_fraction),
        augment=augment,
        decode=decode,
        seed=seed,
    )
    least = min(sum(span.records for span in share) for share in shares)
    recipe = Recipe(
        files=source.files,
        blocks=blocks,
        elements=elements,
        batch_size=batch_size,
        shuffle=bool(shuffle),
        seed=seed,
        repeat=repeat,
        drop_remainder=repeat if drop_remainder is None else drop_remainder,
        deterministic=deterministic,
        parallel_reads=parallel_reads or _reads_of(source.files[0].uri),
        least=least,
    )
    return ImageDataset(recipe, start)


def _check_one_size(source: Source, used: set[int]) -> None:
    """Raises a UsageError if it is known that images have several sizes, which make no batch."""
    sizes = {
        size
        for name, both in source.sizes.items()
        if used & set(source.splits.get(name, ()))
        for size in both
    }
    if len(sizes) > 1:
        small, large = min(sizes), max(sizes)
        raise UsageError(
            f"the images are from {small[1]}x{small[0]} to {large[1]}x{large[0]} pixels, and "
            "batches have one size: give an image_size, or no batch_size"
        )


def _size_of(image_size: int | tuple[int, int]) -> tuple[int, int]:
    sides = tuple(image_size) if isinstance(image_size, Sequence) else (image_size, image_size)
    if len(sides) != 2:
        raise UsageError(f"image_size {image_size!r}: take a number, or (height, width)")
    return whole("image_size", sides[0], 1), whole("image_size", sides[1], 1)


def check_channels(channels: int, known: Sequence[int]) -> None:
    """Raises a UsageError if images cannot have so many."""
    if channels not in known:
        raise UsageError(f"channels {channels!r}: take {' or '.join(map(str, known))}")


def _reads_of(uri: str) -> int:
    return min(max(os.cpu_count() or 1, 2), 8) if storage.is_local(uri) else 16


def schema_with(schema: Schema, image_key: str | None, label_key: str | None) -> Schema:
    """A schema with the keys that were named instead of its own; empty: none."""
    if label_key is not None:
        schema = schema.without_labels()
        if label_key:
            schema = schema.with_features([Feature(label_key, "int64", "label", "ClassLabel")])
    if image_key is not None:
        mine = tuple(f for f in schema.features if f.source == "label")
        image = Feature(image_key, "bytes", "encoded", "Image")
        schema = replace(schema, features=(image, *mine), holds="encoded")
    return schema
