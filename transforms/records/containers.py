"""The registry of record containers, and the names of shards. Pure.

The name of a shard is SPLIT-SSSSS-of-NNNNN followed by the suffix of its container, such as
`train-00003-of-00016.tfrecord`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain

from imageshards.transforms.elements import ShardId
from imageshards.transforms.records.array_record import ArrayRecord
from imageshards.transforms.records.container import Container
from imageshards.transforms.records.tfrecord import TFRecord

CONTAINERS: dict[str, Container] = {
    container.name: container for container in (TFRecord(), ArrayRecord())
}
"""Value of `--file_format` -> container, uncompressed."""

_STEM = re.compile(r"(?P<split>.+)-(?P<index>\d{5,})-of-(?P<num_shards>\d{5,})")
_SHARD_LIKE = re.compile(r".+-\d{5,}-of-\d{5,}(?P<suffix>(\..*)?)")


@lru_cache(maxsize=64)  # the names of a million shards are made and parsed several times
def find_container(file_format: str, compression: str = "") -> Container:
    """Returns the container of a `--file_format` with a compression.

    Raises:
      KeyError: there is no such container.

    >>> find_container("tfrecord", "gzip").suffix
    '.tfrecord.gz'
    """
    return CONTAINERS[file_format].variant(compression)


def variant_of(compression: str, group_size: int = 1) -> str:
    """Returns the `Container.compression` of the values of `--compression` and `--group_size`.

    >>> variant_of("none"), variant_of("gzip"), variant_of("zstd", 8)
    ('', 'gzip', 'zstd,group_size:8')
    """
    parts = [compression] if compression != "none" else []
    return ",".join(parts + ([f"group_size:{group_size}"] if group_size != 1 else []))


def container_of(shard: ShardId) -> Container:
    """Returns the container of a shard."""
    return find_container(shard.file_format, shard.compression)


def container_of_file(name: str) -> Container:
    """Returns the container that a file's name or URI indicates: TFRecord if no suffix is known.

    >>> container_of_file("old/part-7.tfrecord.gz").suffix
    '.tfrecord.gz'
    """
    found = (container for container in _all() if container.recognizes(name))
    return next(found, CONTAINERS["tfrecord"])


def is_record_file(name: str) -> bool:
    """Returns whether a file's name or URI has the suffix of a container."""
    return any(container.recognizes(name) for container in _all())


def _all() -> Iterator[Container]:
    return chain.from_iterable(map(_variants, CONTAINERS.values()))


@cache
def _variants(container: Container) -> Sequence[Container]:
    return container.variants


def _stem(shard: ShardId) -> str:
    return f"{shard.split}-{shard.index:05d}-of-{shard.num_shards:05d}"


def shard_name(shard: ShardId) -> str:
    """Returns the file name of a shard.

    >>> shard_name(ShardId("train", 3, 16))
    'train-00003-of-00016.tfrecord'
    """
    return _stem(shard) + container_of(shard).suffix


def index_name(shard: ShardId) -> str:
    """Returns the name of a shard's index file.

    >>> index_name(ShardId("train", 3, 16))
    'train-00003-of-00016.idx'
    """
    return f"{_stem(shard)}.idx"


def parse_shard_name(name: str) -> ShardId | None:
    """Returns the shard of a file name; None if it is not the name of a shard.

    >>> parse_shard_name("train-00003-of-00016.tfrecord")
    ShardId(split='train', index=3, num_shards=16, compression='', file_format='tfrecord')
    """
    for container in _all():
        if name.endswith(container.suffix):
            match = _STEM.fullmatch(name.removesuffix(container.suffix))
            if match:
                numbers = int(match["index"]), int(match["num_shards"])
                return ShardId(match["split"], *numbers, container.compression, container.name)
    return None


def is_shard_like(name: str) -> bool:
    """Returns whether patterns of other readers, such as `train-*`, take a file for a shard.

    >>> is_shard_like("train-00000-of-00002"), is_shard_like("train.tfrecord")
    (True, False)
    """
    match = _SHARD_LIKE.fullmatch(name)
    return match is not None and any(
        not match["suffix"] or re.fullmatch(container.shard_like, match["suffix"])
        for container in CONTAINERS.values()
    )
