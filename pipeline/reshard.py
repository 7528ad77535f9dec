"""Another number of shards for a data set: framed records are moved, and nothing is decoded.

The order of the records and their bytes stay; shards of a split differ by at most one record.
`dataset_info.json` is written last, as in a build.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from time import perf_counter
from typing import Any

import google_crc32c

from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.reader.files import RecordFile, Source, find
from imageshards.reader.splits import Span, take
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId, UsageError
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.records.tfrecord import SHARD_LIKE, Gzip, index_line, shard_name
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.shards.layout import Layout

_CHUNK_BYTES = 4 << 20
_LINES_SHOWN = 20

Report = Callable[
    [Mapping[str, Any], Layout, Schema, list[dict[str, Any]], list[dict[str, Any]]], str
]
"""Makes report.html of build.json, the layout, the schema, some rejects and some leaks."""


@dataclass(frozen=True)
class Resharded:
    """What `reshard` did.

    Attributes:
      output: the new folder.
      source: the old one.
      records: in all splits.
      bytes: of all new shards.
      shards: split -> (number before, number now).
      seconds: wall time; 0 if everything was there already.
    """

    output: str
    source: str
    records: int
    bytes: int
    shards: dict[str, tuple[int, int]]
    seconds: float

    def to_json(self) -> str:
        """One line for machines."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def __str__(self) -> str:
        shards = ", ".join(f"{name} {old:,} -> {new:,}" for name, (old, new) in self.shards.items())
        took = f"in {self.seconds:.1f} s" if self.seconds else "nothing to do, it was there already"
        return (
            f"{self.output}\n  {self.records:,} records, {self.bytes / 1e6:,.1f} MB, of "
            f"{self.source}\n  shards: {shards}\n  {took}"
        )


def reshard(folder: str, output: str, num_shards: str, report: Report) -> Resharded:
    """Writes a data set anew with other numbers of shards.

    Args:
      folder: a complete data set that imageshards built.
      output: the folder of the new one.
      num_shards: `16`, or `train=8,test=2`, which leaves other splits as they are.
      report: makes report.html.

    Raises:
      UsageError: the numbers of shards are none, or none for this data set.
      BuildError: there is no such data set, it is damaged, or something is in the way.
    """
    begin = perf_counter()
    dataset = open_dataset(folder)
    counts = _counts(dataset, num_shards)
    if not output:
        raise UsageError("the folder of the new data set is empty: name one")
    layout = Layout(storage.normalize(output))
    if layout.root == dataset.layout.root:
        raise UsageError(f"{layout.root} is the data set itself: name another folder")
    shards = {name: (len(dataset.lengths[name]), count) for name, count in counts.items()}
    try:
        complete = _claim(dataset, layout, counts)
        rows = [] if complete else _move(dataset, layout, counts)
        if not complete:
            _write_metadata(dataset, layout, rows, num_shards, report)
    except OSError as error:
        raise BuildError(f"{layout.root}: cannot be written: {error.strerror or error}") from error
    done = open_dataset(layout.root)
    return Resharded(
        layout.root, dataset.layout.root, done.counts["records"], done.counts["bytes"], shards,
        0.0 if complete else perf_counter() - begin,
    )  # fmt: skip


def _counts(dataset: Dataset, num_shards: str) -> dict[str, int]:
    try:
        wish = ShardCounts.parse(num_shards)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if wish.default is None and not wish.named:
        raise UsageError(
            f"--num_shards {num_shards}: write numbers (imageshards advise finds some)"
        )
    for name in wish.named:
        if name not in dataset.lengths:
            raise UsageError(
                f"--num_shards names the split {name!r}; the splits are "
                f"{', '.join(dataset.lengths)}"
            )
    counts = {}
    for name, lengths in dataset.lengths.items():
        counts[name] = wish.of(name) or len(lengths)
        if counts[name] > sum(lengths):
            raise UsageError(
                f"split {name!r} has {sum(lengths):,} records for {counts[name]:,} shards: write "
                "fewer --num_shards"
            )
    return counts


def _claim(dataset: Dataset, layout: Layout, counts: dict[str, int]) -> bool:
    """Takes the folder; True if the same was done there before."""
    if problem := storage.folder_problem(layout.root):
        raise BuildError(f"{layout.root}: {problem}")
    mine = {
        "from": dataset.layout.root,
        "shards": [[s.uri.rpartition("/")[2], s.crc32c] for s in dataset.shards],
        "num_shards": counts,
    }
    text = (json.dumps(mine) + "\n").encode()
    found = [
        name
        for name in storage.names_in(layout.root)
        if SHARD_LIKE.fullmatch(name) or name in ("dataset_info.json", "features.json")
    ]
    planned = storage.exists(layout.plan)
    if _read(layout.reshard) == text and not planned:
        compression = dataset.shards[0].id.compression
        ours = {
            shard_name(ShardId(split, index, count, compression))
            for split, count in counts.items()
            for index in range(count)
        }
        found = [name for name in found if SHARD_LIKE.fullmatch(name) and name not in ours]
        if not found:
            return storage.exists(layout.dataset_info)
    if found or planned:
        what = f"holds another data set: {', '.join(found[:3])}" if found else "holds a build"
        raise BuildError(f"{layout.root} {what}; name another folder, or empty this one")
    layout.make_folders()
    storage.sweep(layout.state)
    layout.write(layout.reshard, text)
    return False


def _read(uri: str) -> bytes:
    try:
        with storage.open_read(uri) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _move(dataset: Dataset, layout: Layout, counts: dict[str, int]) -> list[Shard]:
    source = find(dataset.layout.root)
    checks = {
        place: _FileCheck(source.files[place], shard) for place, shard in enumerate(dataset.shards)
    }
    rows = []
    compression = dataset.shards[0].id.compression
    for name, count in counts.items():
        spans = source.spans(name)
        records = sum(span.records for span in spans)
        for index in range(count):
            begin, end = (first_rank(place, count, records) for place in (index, index + 1))
            shard = ShardId(name, index, count, compression)
            rows.append(_write_shard(layout, shard, source, take(spans, begin, end), checks))
    return rows


class _FileCheck:
    """Compares what is read of a file, in order, with the CRC32C that its build noted."""

    def __init__(self, file: RecordFile, shard: Shard) -> None:
        self._file = file
        self._shard = shard
        self._crc32c = self._size = 0

    def add(self, data: bytes) -> None:
        """Some more of it."""
        if self._file.compression:
            return  # gzip has CRCs of its own
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._size += len(data)
        if self._size == self._shard.bytes and self._crc32c != self._shard.crc32c:
            raise BuildError(
                f"{self._file.uri}: its CRC32C is not that of its build: imageshards verify tells "
                "what is wrong with it"
            )


def _write_shard(
    layout: Layout,
    shard: ShardId,
    source: Source,
    spans: list[Span],
    checks: Mapping[int, _FileCheck],
) -> Shard:
    uri = layout.shard(shard)
    gzip = Gzip() if shard.compression else None
    index: list[str] = []
    offset = 0
    with storage.open_sink(uri, layout.state) as sink:
        for span in spans:
            file = source.files[span.file]
            for begin, end in _chunks(file, span):
                data = file.framed(begin, end)
                checks[span.file].add(data)
                sink.write(gzip.add([data]) if gzip else [data])
                for size in file.index[begin:end, 1].tolist():
                    index.append(index_line(offset, size))
                    offset += size
        if gzip:
            sink.write(gzip.end())
    if not gzip:
        layout.write(layout.index(shard), "".join(index).encode())
    return Shard(shard, uri, sum(span.records for span in spans), sink.size, sink.crc32c)


def _chunks(file: RecordFile, span: Span) -> Iterator[tuple[int, int]]:
    """Consecutive records of some megabytes, as (begin, end)."""
    begin = span.begin
    size = 0
    for row in range(span.begin, span.end):
        size += int(file.index[row, 1])
        if size >= _CHUNK_BYTES:
            yield begin, row + 1
            begin, size = row + 1, 0
    if begin < span.end:
        yield begin, span.end


def _write_metadata(
    dataset: Dataset, layout: Layout, rows: list[Shard], num_shards: str, report: Report
) -> None:
    old = dataset.layout
    build = json.loads(json.dumps(dataset.build))
    build["resharded"] = {"from": old.root, "num_shards": build["options"]["num_shards"]}
    build["options"]["num_shards"] = num_shards
    build["counts"]["bytes"] = sum(row.bytes for row in rows)
    build["shards"] = [
        {
            "name": shard_name(row.id),
            "records": row.records,
            "bytes": row.bytes,
            "crc32c": f"{row.crc32c:08x}",
        }
        for row in rows
    ]
    info = json.loads(json.dumps(dataset.info))
    for split in info["splits"]:
        mine = [row for row in rows if row.id.split == split["name"]]
        split["numBytes"] = str(sum(row.bytes for row in mine))
        split["shardLengths"] = [str(row.records) for row in mine]
        build["splits"][split["name"]]["bytes"] = sum(row.bytes for row in mine)
        build["splits"][split["name"]]["shards"] = len(mine)
    names = [name for name in storage.names_in(old.root) if name.endswith(".labels.txt")]
    for name in ("features.json", *names):
        layout.write(storage.join(layout.root, name), _read(storage.join(old.root, name)))
    for there, here in ((old.rejects, layout.rejects), (old.leaks, layout.leaks)):
        if storage.exists(there):
            layout.write(here, _read(there))
    layout.write(layout.build, _json(build))
    page = report(
        build, layout, dataset.schema, _first_lines(layout.rejects), _first_lines(layout.leaks)
    )
    layout.write(layout.report, page.encode())
    layout.write(layout.dataset_info, _json(info))


def _first_lines(uri: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in islice(_read(uri).splitlines(), _LINES_SHOWN)]


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
