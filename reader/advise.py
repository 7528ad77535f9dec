"""How many shards a data set should have if several hosts read it.

The advice weighs three things. If the number of shards is a multiple of the number of hosts, hosts
read whole files. TensorFlow's guide (tensorflow.org/tutorials/load_data/tfrecord) recommends ten
files for each host, for parallel reads, and at least 10 MB, better 100 MB, for each file: opening
smaller files takes as long as reading them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from imageshards.reader.dataset import Dataset, open_dataset
from imageshards.transforms.elements import UsageError, counted, human_bytes
from imageshards.transforms.references.plan import TARGET_SHARD_BYTES

_FILES_PER_HOST = 10
_LEAST_BYTES = 10_000_000
_SMALL_BYTES = 100_000_000
_LARGE_BYTES = 1_000_000_000
_UNEVEN = 0.05


@dataclass(frozen=True)
class SplitAdvice:
    """The advice for one split.

    Attributes:
      split: the name of the split.
      records: the number of its records.
      bytes: the size of its files.
      shards: the number of its shards.
      advised: the recommended number of shards, which may equal `shards`.
      reasons: the reasons for `advised`.
      warnings: the problems of `shards`.
    """

    split: str
    records: int
    bytes: int
    shards: int
    advised: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """The advice for a data set and a number of hosts.

    Attributes:
      output: the folder of the data set.
      hosts: the number of hosts.
      splits: the advice for each split.
      num_shards: the value of `reshard --num_shards`, or empty if no change is advised.
    """

    output: str
    hosts: int
    splits: tuple[SplitAdvice, ...]

    @property
    def num_shards(self) -> str:
        """The value of `reshard --num_shards`, or empty if no change is advised."""
        if all(split.shards == split.advised for split in self.splits):
            return ""
        return ",".join(f"{split.split}={split.advised}" for split in self.splits)

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "num_shards": self.num_shards})

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.output} for {counted(self.hosts, 'host')}"
        for split in self.splits:
            change = (
                f" -> {split.advised:,}" if split.advised != split.shards else ", no change advised"
            )
            yield (
                f"  {split.split}: {counted(split.shards, 'shard')}{change}  "
                f"({counted(split.records, 'record')}, {human_bytes(split.bytes)})"
            )
            for warning in split.warnings:
                yield f"    WARNING: {warning}"
            for reason in split.reasons:
                yield f"    {reason}"
        if self.num_shards:
            yield f"  imageshards reshard {self.output} NEW --num_shards {self.num_shards}"


def advise(folder: str, hosts: int) -> Advice:
    """Returns the best number of shards for each split of a data set.

    Args:
      folder: the folder of a data set that imageshards built.
      hosts: the number of hosts that read each split together, such as 32 of a TPU v4-256.

    Raises:
      UsageError: `hosts` is below 1.
      BuildError: there is no such data set.
    """
    if hosts < 1:
        raise UsageError(f"invalid --hosts {hosts}: must be at least 1")
    dataset = open_dataset(folder)
    splits = tuple(_split(dataset, name, hosts) for name in dataset.lengths)
    return Advice(dataset.layout.root, hosts, splits)


def _split(dataset: Dataset, name: str, hosts: int) -> SplitAdvice:
    lengths = dataset.lengths[name]
    records, shards = sum(lengths), len(lengths)
    size = sum(shard.bytes for shard in dataset.shards if shard.id.split == name)
    warnings = list(_warnings(lengths, size, hosts))
    advised, reasons = advised_shards(records, size, hosts)
    if not warnings and (size / shards >= _LEAST_BYTES or shards == advised):
        advised, reasons = shards, (f"{_per_host(shards, hosts)}, {_each(size, shards)}",)
    return SplitAdvice(name, records, size, shards, advised, tuple(reasons), tuple(warnings))


def advised_shards(records: int, size: int, hosts: int) -> tuple[int, tuple[str, ...]]:
    """Returns the best number of shards for a split, and the reasons.

    Args:
      records: the number of its records.
      size: the size of its files in bytes.
      hosts: the number of hosts that read it together.
    """
    if records < hosts:
        return records, (f"there are only {counted(records, 'record')}: use fewer hosts",)
    each = max(
        round(size / hosts / TARGET_SHARD_BYTES),
        min(_FILES_PER_HOST, size // (hosts * _SMALL_BYTES)),
        1,
    )
    advised = min(each, records // hosts) * hosts
    reasons = [f"{_per_host(advised, hosts)}, {_each(size, advised)}"]
    if size / advised < _LEAST_BYTES and each == 1:
        reasons.append(
            f"files below {human_bytes(_LEAST_BYTES)} are small, but each host requires one"
        )
    return advised, tuple(reasons)


def _warnings(lengths: list[int], size: int, hosts: int) -> Iterator[str]:
    shards = len(lengths)
    if shards < hosts:
        yield (
            f"{counted(shards, 'shard')} for {hosts:,} hosts: readers that assign whole files "
            "leave some hosts without records; reader.load divides files instead"
        )
    elif shards % hosts:
        most = -(-shards // hosts)
        yield (
            f"{shards:,} shards are not a multiple of {hosts:,} hosts: readers that assign whole "
            f"files give some hosts {most:,} and some {most - 1:,}; reader.load divides files "
            "instead"
        )
    if size / shards < _LEAST_BYTES and shards > hosts:
        yield f"{_each(size, shards)}: opening files takes as long as reading them"
    if max(lengths) - min(lengths) > max(1, _UNEVEN * max(lengths)):
        yield f"shards have from {min(lengths):,} to {max(lengths):,} records"
    if size / shards > _LARGE_BYTES:
        yield f"{_each(size, shards)}: few can be read in parallel"


def _per_host(shards: int, hosts: int) -> str:
    each = shards // hosts
    return f"{counted(each, 'whole file')} for each of {hosts:,} hosts" if hosts > 1 else "one host"


def _each(size: int, shards: int) -> str:
    return f"{human_bytes(size / max(shards, 1))} each"
