"""The shards that a reshard writes: their numbers, and how they store records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from imageshards.pipeline.validation import compression_problem, container_problem
from imageshards.reader.dataset import Dataset
from imageshards.transforms.elements import ShardId, UsageError, alternatives
from imageshards.transforms.records.container import Container
from imageshards.transforms.records.containers import CONTAINERS, find_container, variant_of
from imageshards.transforms.references.rules import ShardCounts


class Format(NamedTuple):
    """How shards store records, as the values of the options of a build.

    Attributes:
      file_format: the record container.
      compression: `none`, or a compression that the container has.
      group_size: the number of records that are stored together.
    """

    file_format: str = "tfrecord"
    compression: str = "none"
    group_size: int = 1

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Returns the format of a data set, from the options in its build.json."""
        return cls(**{name: options[name] for name in cls._fields if name in options})

    def changed(self, requested: RequestedFormat) -> Format:
        """Returns the format with the options that are set; another container has its defaults.

        Raises:
          UsageError: an option is invalid, or the container does not have it.
        """
        if requested.file_format and requested.file_format not in CONTAINERS:
            expected = alternatives(CONTAINERS)
            raise UsageError(f"invalid --file_format {requested.file_format!r}: {expected}")
        before = self
        if requested.file_format not in ("", self.file_format):
            before = Format(requested.file_format)
        found = Format(
            before.file_format,
            requested.compression or before.compression,
            requested.group_size or before.group_size,
        )
        if problem := container_problem(*found):
            raise UsageError(problem)
        CONTAINERS[found.file_format].check_writable()
        return found

    @property
    def variant(self) -> str:
        """The compression and the grouping, as in `Container.compression`."""
        return variant_of(self.compression, self.group_size)

    @property
    def container(self) -> Container:
        """The record container."""
        return find_container(self.file_format, self.variant)

    @property
    def claimed(self) -> dict[str, Any]:
        """What reshard.json says of it."""
        return {"file_format": self.file_format, "compression": self.variant}

    def shard(self, split: str, index: int, num_shards: int) -> ShardId:
        """Returns a shard of this format."""
        return ShardId(split, index, num_shards, self.variant, self.file_format)


class RequestedFormat(NamedTuple):
    """The options of `reshard` that change how records are stored; empty or 0 if not set."""

    file_format: str = ""
    compression: str = ""
    group_size: int = 0


class Target(NamedTuple):
    """The shards to write.

    Attributes:
      counts: (split, number of new shards).
      format: how they store records.
    """

    counts: tuple[tuple[str, int], ...]
    format: Format

    @classmethod
    def of(cls, dataset: Dataset, num_shards: str, requested: RequestedFormat) -> Self:
        """Returns the shards that the options of `reshard` specify for a data set.

        Raises:
          UsageError: an option is invalid, or does not fit the data set.
        """
        if not (num_shards or any(requested)):
            raise UsageError(
                "reshard requires --num_shards, --file_format, --compression or --group_size"
            )
        before = Format.of(dataset.build["options"])
        now = before.changed(requested)
        if now.compression != before.compression and (
            problem := compression_problem(dataset.schema, now.compression)
        ):
            raise UsageError(problem)
        return cls(tuple(_counts(dataset, num_shards).items()), now)

    def shards(self) -> Iterator[ShardId]:
        """Yields the new shards, in order."""
        for split, count in self.counts:
            for index in range(count):
                yield self.format.shard(split, index, count)


def _counts(dataset: Dataset, num_shards: str) -> dict[str, int]:
    """Returns split -> number of new shards."""
    if not num_shards:
        return {name: len(lengths) for name, lengths in dataset.lengths.items()}
    try:
        requested = ShardCounts.parse(num_shards)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if requested.default is None and not requested.named:
        raise UsageError(
            f"--num_shards {num_shards}: specify numbers; imageshards advise recommends some"
        )
    for name in requested.named:
        if name not in dataset.lengths:
            raise UsageError(
                f"--num_shards names the split {name!r}; the splits are "
                f"{', '.join(dataset.lengths)}"
            )
    counts = {}
    for name, lengths in dataset.lengths.items():
        counts[name] = requested.of(name) or len(lengths)
        if counts[name] > sum(lengths):
            raise UsageError(
                f"split {name!r} has {sum(lengths):,} records for {counts[name]:,} shards: set a "
                "smaller --num_shards"
            )
    return counts
