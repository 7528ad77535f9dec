"""Copies a data set into other numbers of shards, without decoding records.

The records keep their order and their bytes; shards of a split differ by at most one record.
`dataset_info.json` is written last, as in a build.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter

import google_crc32c

from imageshards.pipeline.claim import dataset_files_in
from imageshards.pipeline.metadata import shard_row
from imageshards.pipeline.report import write_report
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.reader.files import RecordFile, Source, find
from imageshards.reader.splits import Span, take
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId, UsageError, counted
from imageshards.transforms.records.containers import container_of, is_shard_like, shard_name
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.shards.layout import (
    METADATA_FILES,
    DatasetFacts,
    Layout,
    read_json,
    to_json,
)

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Resharded:
    """The result of `reshard`.

    Attributes:
      output: the new folder.
      source: the old folder.
      records: in all splits.
      bytes: of all new shards.
      shards: split -> (number before, number now).
      seconds: wall time; 0 if the new data set was complete already.
    """

    output: str
    source: str
    records: int
    bytes: int
    shards: dict[str, tuple[int, int]]
    seconds: float

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def __str__(self) -> str:
        shards = ", ".join(f"{name} {old:,} -> {new:,}" for name, (old, new) in self.shards.items())
        took = f"in {self.seconds:.1f} s" if self.seconds else "nothing to do: complete already"
        return (
            f"{self.output}\n  {counted(self.records, 'record')}, {self.bytes / 1e6:,.1f} MB, from "
            f"{self.source}\n  shards: {shards}\n  {took}"
        )


def reshard(folder: str, output: str, num_shards: str) -> Resharded:
    """Copies a data set into other numbers of shards.

    Args:
      folder: a complete data set that imageshards built.
      output: the folder of the new data set.
      num_shards: `16`, or `train=8,test=2`, which keeps the numbers of other splits.

    Raises:
      UsageError: the numbers of shards are invalid, or do not fit this data set.
      BuildError: there is no such data set, it is damaged, or the output holds another one.

    >>> reshard("dataset", "dataset-8", "train=8").shards
    {'train': (2, 8), 'test': (1, 1)}
    """
    begin = perf_counter()
    dataset = open_dataset(folder)
    counts = _counts(dataset, num_shards)
    if not output:
        raise UsageError("the output folder is empty: name a folder for the new data set")
    layout = Layout(output)
    if layout.root == dataset.layout.root:
        raise UsageError(f"{layout.root} is the data set to reshard: name another output folder")
    shards = {name: (len(dataset.lengths[name]), count) for name, count in counts.items()}
    try:
        complete = _claim(dataset, layout, counts)
        if not complete:
            _write_metadata(dataset, layout, _write_shards(dataset, layout, counts), num_shards)
    except OSError as error:
        raise BuildError(f"{layout.root} cannot be written: {error.strerror or error}") from error
    done = open_dataset(layout.root)
    return Resharded(
        layout.root, dataset.layout.root, done.counts["records"], done.counts["bytes"], shards,
        0.0 if complete else perf_counter() - begin,
    )  # fmt: skip


def _counts(dataset: Dataset, num_shards: str) -> dict[str, int]:
    """Returns split -> number of new shards."""
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


def _new_shards(dataset: Dataset, counts: Mapping[str, int]) -> list[ShardId]:
    """Returns the new shards, in order."""
    old = dataset.shards[0].id
    return [
        replace(old, split=split, index=index, num_shards=count)
        for split, count in counts.items()
        for index in range(count)
    ]


def _claim(dataset: Dataset, layout: Layout, counts: Mapping[str, int]) -> bool:
    """Claims the output folder; returns whether an earlier run has completed it."""
    if problem := storage.folder_problem(layout.root):
        raise BuildError(f"{layout.root}: {problem}")
    mine = {
        "from": dataset.layout.root,
        "shards": [[s.uri.rpartition("/")[2], s.crc32c] for s in dataset.shards],
        "num_shards": dict(counts),
    }
    found = dataset_files_in(layout)
    planned = storage.exists(layout.plan)
    if read_json(layout.uri("reshard")) == mine and not planned:
        ours = set(map(shard_name, _new_shards(dataset, counts)))
        found = [name for name in found if is_shard_like(name) and name not in ours]
        if not found:
            return storage.exists(layout.dataset_info)
    if found or planned:
        what = f"holds another data set: {', '.join(found[:3])}" if found else "holds a build"
        raise BuildError(f"{layout.root} {what}; name another folder, or empty this one")
    layout.make_folders()
    storage.sweep(layout.state)
    layout.write(layout.uri("reshard"), (json.dumps(mine) + "\n").encode())
    return False


def _write_shards(dataset: Dataset, layout: Layout, counts: Mapping[str, int]) -> list[Shard]:
    source = find(dataset.layout.root)
    checks = [_FileCheck(*pair) for pair in zip(source.files, dataset.shards, strict=True)]
    spans = {name: source.spans(name) for name in counts}
    sha256 = all(shard.sha256 for shard in dataset.shards)
    written = []
    for shard in _new_shards(dataset, counts):
        records = sum(span.records for span in spans[shard.split])
        begin, end = (
            first_rank(index, shard.num_shards, records) for index in (shard.index, shard.index + 1)
        )
        mine = take(spans[shard.split], begin, end)
        written.append(_write_shard(layout, shard, source, mine, checks, sha256))
    return written


class _FileCheck:
    """Compares a file that is read in order with the CRC32C in build.json."""

    def __init__(self, file: RecordFile, shard: Shard) -> None:
        self._file = file
        self._shard = shard
        self._crc32c = self._size = 0

    def add(self, data: bytes) -> None:
        """Adds the next part of the file.

        Raises:
          BuildError: the file is complete, and its CRC32C differs.
        """
        if self._file.compression:
            return  # decompression checks gzip's own CRC
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._size += len(data)
        if self._size == self._shard.bytes and self._crc32c != self._shard.crc32c:
            raise BuildError(
                f"{self._file.uri}: its CRC32C is not the one in build.json: run imageshards "
                "verify to see what is damaged"
            )


def _write_shard(
    layout: Layout,
    shard: ShardId,
    source: Source,
    spans: list[Span],
    checks: list[_FileCheck],
    sha256: bool,
) -> Shard:
    uri = layout.shard(shard)
    with storage.open_sink(uri, layout.state) as sink:
        if sha256:
            sink.compute_sha256()
        writer = container_of(shard).writer(sink)
        for span in spans:
            file = source.files[span.file]
            for begin, end in _chunks(file, span):
                stored = file.stored(begin, end)
                checks[span.file].add(stored)
                writer.copy(stored, file.index[begin:end, 1].tolist())
        index = writer.close()
    if index is not None:
        layout.write(layout.index(shard), index)
    records = sum(span.records for span in spans)
    return Shard(shard, uri, records, sink.size, sink.crc32c, sink.sha256)


def _chunks(file: RecordFile, span: Span) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of consecutive records of about 4 MB."""
    begin = span.begin
    size = 0
    for row in range(span.begin, span.end):
        size += int(file.index[row, 1])
        if size >= _CHUNK_BYTES:
            yield begin, row + 1
            begin, size = row + 1, 0
    if begin < span.end:
        yield begin, span.end


def _write_metadata(dataset: Dataset, layout: Layout, shards: list[Shard], num_shards: str) -> None:
    old = dataset.layout
    build = copy.deepcopy(dataset.build)
    build["resharded"] = {"from": old.root, "num_shards": build["options"]["num_shards"]}
    build["options"]["num_shards"] = num_shards
    build["counts"]["bytes"] = sum(shard.bytes for shard in shards)
    build["shards"] = [shard_row(s.id, s.records, s.bytes, s.crc32c, s.sha256) for s in shards]
    info = copy.deepcopy(dataset.info)
    for split in info["splits"]:
        mine = [shard for shard in shards if shard.id.split == split["name"]]
        size = sum(shard.bytes for shard in mine)
        split["numBytes"] = str(size)
        split["shardLengths"] = [str(shard.records) for shard in mine]
        build["splits"][split["name"]] |= {"bytes": size, "shards": len(mine)}
    facts = DatasetFacts(build, dataset.schema)
    layout.write(layout.build, to_json(build))
    layout.write_derived(facts)
    for name, file in METADATA_FILES.items():
        if file.resharded and storage.exists(old.uri(name)):
            with storage.open_read(old.uri(name)) as copied:
                layout.write(layout.uri(name), copied.read())
    write_report(layout, facts, read_json(layout.uri("statistics")) or {})
    layout.write(layout.dataset_info, to_json(info))
