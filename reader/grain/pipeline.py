"""`grain` opens a data set as a pipeline of Grain. Grain is imported by the call, not here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from imageshards.reader.elements.arrays import ArrayElements
from imageshards.reader.elements.checks import check_elements
from imageshards.reader.options import GrainOptions, OpenSettings, group_grain
from imageshards.reader.ordering.selection import select
from imageshards.reader.random_access import Records
from imageshards.transforms import extras
from imageshards.transforms.elements import UsageError

if TYPE_CHECKING:
    from imageshards.reader.grain.batches import Batches

_MOST_THREADS = 16


def grain(
    place: str | os.PathLike[str] | Mapping[str, Any],
    split: str | None = None,
    **options: Unpack[GrainOptions],
) -> Batches:
    """Opens a data set as a `grain.IterDataset` of batches, for JAX. Does not import TensorFlow.

    The sequence of global batches is a function of the data set, the seed and the global batch size
    (batch_size * num_hosts) alone. With `shuffle`, each epoch is a random permutation of all
    records. The state of an iterator is the same on all hosts, and restores on any number of hosts
    with the same global batch size.

    >>> train = grain("dataset", "train", batch_size=8, image_size=64)
    >>> iterator = iter(train)
    >>> images, labels = next(iterator)
    >>> images.shape, images.dtype.name, labels.dtype.name
    ((8, 64, 64, 3), 'float32', 'int32')
    >>> state = iterator.get_state()
    >>> state["step"]
    1
    >>> iterator.set_state(state)

    Args:
      place: the folder of a data set that imageshards built, or a glob pattern of record files. The
        files must not be compressed. A dict of several is a mixture, with weights as in `load`, and
        in the same order.
      split: the split, as in `load`.
      batch_size: the number of records in a batch of this host. Default: None, single records.
      drop_remainder: as in `load`: drop the records of an epoch that fill no global batch. With
        False, the last batch is incomplete, or, with `repeat`, completed with records of the same
        epoch. Default: True with `repeat`, else False.
      image_size: as in `load`. So are `dtype`, `channels`, `crop_fraction`, `augment`, `decode`,
        `keys`, `list_length`, `image_key`, `label_key` and `balance`. Lists in batches require
        `list_length`.
        Pixels differ slightly from those of `load`, which TensorFlow decodes and resizes.
      num_hosts: the number of hosts that share each global batch, such as `jax.process_count()`.
        Default: 1.
      host: the index of this host, such as `jax.process_index()`. Default: 0.
      shuffle: read the records in another random order in each epoch; False: in the order of the
        files. Default: True.
      seed: the seed of shuffling and augmentation, from 0 to 2**62 - 1. Default: 0.
      repeat: continue with another epoch without end. Default: True.
      workers: the number of processes that read and decode batches (Grain's `mp_prefetch`); 0 for
        threads of this process. The batches and the state do not depend on it. Default: 0.
      threads: the number of threads of each process, each of which makes a batch. Default: the
        number of cores, at most 16, for local files; 16 for remote ones.

    Returns:
      A `grain.IterDataset`, to which further transformations can be added. It has
      `steps_per_epoch`, `records`, `dropped`, `padded`, `class_names`, `num_classes` and
      `element_spec`.

    Raises:
      BuildError: there is no such data set, or it is damaged.
      UsageError: an argument is unknown, its value is invalid, or Grain is not installed.
    """
    element_options, read_options, settings = group_grain(options)
    selection = select(place, split, element_options, read_options, permuted=True)
    source, spans, schema = selection.source, selection.spans, selection.schema
    batched = bool(read_options.batch_size)
    keys = check_elements(source, spans, schema, element_options, batched)
    if batched and keys and keys.are_ragged:
        raise UsageError(f"keys {keys.lists[0]!r}: batches of lists require list_length: set it")
    extras.require("grain", "reader.grain", ["grain"])
    from imageshards.reader.grain.batches import Batches, BatchSource

    elements = ArrayElements(schema, element_options, read_options.seed, keys, len(source.classes))
    records = Records(source, spans, schema, OpenSettings())
    threads = settings.threads
    if threads is None:
        local = all(source.files[span.file].is_local for span in spans)
        threads = min(os.cpu_count() or 1, _MOST_THREADS) if local else _MOST_THREADS
    batches = BatchSource(records, elements, selection.order, read_options)
    return Batches(batches, settings.workers, threads)
