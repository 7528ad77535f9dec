"""Copies a data set into other numbers or formats of shards, without decoding images.

The records keep their order and their bytes; shards of a split differ by at most one record.
`dataset_info.json` is written last, as in a build. Each new shard is a part, whose worker reads
ranges of the old shards. It leaves a state file with the CRC-32C of each range: a resumed run skips
the shards that have one, and at the end the CRC-32C of each old shard is that of its ranges.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from imageshards.pipeline.claim import dataset_files_in
from imageshards.pipeline.job.failures import job_error
from imageshards.pipeline.metadata import filepath_template, shard_row
from imageshards.pipeline.operations.convert import convert
from imageshards.pipeline.operations.crc32c import combine
from imageshards.pipeline.operations.operation import Operation, Run, run_here
from imageshards.pipeline.options.config_file import with_options
from imageshards.pipeline.report import command_of, write_report
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.reader.files import RecordFile, find, is_pattern
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, ShardId, UsageError, counted
from imageshards.transforms.records.container import CorruptRecord
from imageshards.transforms.records.containers import (
    CONTAINERS,
    container_of,
    is_shard_like,
    shard_name,
    variant_of,
)
from imageshards.transforms.references.keys import first_rank
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.shards.layout import (
    METADATA_FILES,
    DatasetFacts,
    Layout,
    read_json,
    to_json,
)
from imageshards.transforms.shards.write import repeated_if_lost

_CHUNK_BYTES = 4 << 20
_OPENED = 8
"""Old shards whose indexes a worker keeps: 16 bytes for each of their records."""


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


def reshard(
    folder: str, output: str, num_shards: str = "", file_format: str = "", run: Run = run_here
) -> Resharded:
    """Copies a data set into other numbers or another format of shards.

    Args:
      folder: a complete data set that imageshards built; with a `file_format`, also a glob pattern
        of any record files, each of which becomes one shard.
      output: the folder of the new data set.
      num_shards: `16`, or `train=8,test=2`, which keeps the numbers of other splits; empty, with a
        `file_format`, keeps all.
      file_format: the record container of the new shards; empty for that of the data set.
      run: where to do it: `run_here`, or `run_on_beam` with a runner.

    Raises:
      UsageError: the numbers of shards are invalid, or do not fit this data set.
      BuildError: there is no such data set, or the output holds another one.
      JobError: a shard is damaged, or the runner's job failed.

    >>> reshard("dataset", "dataset-8", "train=8").shards
    {'train': (2, 8), 'test': (1, 1)}
    """
    begin = perf_counter()
    if is_pattern(folder):
        return _converted(folder, output, num_shards, file_format, run)
    dataset = open_dataset(folder)
    counts = _counts(dataset, num_shards, file_format)
    target = Target(tuple(counts.items()), file_format or dataset.shards[0].id.file_format)
    CONTAINERS[target.file_format].check_writable()
    if not output:
        raise UsageError("the output folder is empty: name a folder for the new data set")
    layout = Layout(output)
    if layout.root == dataset.layout.root:
        raise UsageError(f"{layout.root} is the data set to reshard: name another output folder")
    shards = {name: (len(dataset.lengths[name]), count) for name, count in counts.items()}
    try:
        complete = _claim(dataset, layout, target)
        if not complete:
            sha256 = all(shard.sha256 for shard in dataset.shards)
            try:
                run(Resharding(dataset.layout, layout, target, sha256))
            except BuildError as error:  # such as a damaged shard
                raise job_error(error) from error
    except OSError as error:
        raise BuildError(f"{layout.root} cannot be written: {error.strerror or error}") from error
    done = open_dataset(layout.root)
    return Resharded(
        layout.root, dataset.layout.root, done.counts["records"], done.counts["bytes"], shards,
        0.0 if complete else perf_counter() - begin,
    )  # fmt: skip


def _converted(pattern: str, output: str, num_shards: str, file_format: str, run: Run) -> Resharded:
    if num_shards or file_format not in CONTAINERS:
        formats = " or ".join(CONTAINERS)
        raise UsageError(
            f"{pattern} is not the folder of a data set: set --file_format {formats} without "
            "--num_shards; each file becomes one shard"
        )
    CONTAINERS[file_format].check_writable()
    layout = Layout(output)
    done = convert(pattern, layout, file_format, run)
    return Resharded(
        layout.root, pattern, done.records, done.bytes,
        {name: (count, count) for name, count in done.shards.items()}, done.seconds,
    )  # fmt: skip


class Target(NamedTuple):
    """The shards to write.

    Attributes:
      counts: (split, number of new shards).
      file_format: their record container.
    """

    counts: tuple[tuple[str, int], ...]
    file_format: str


def _counts(dataset: Dataset, num_shards: str, file_format: str) -> dict[str, int]:
    """Returns split -> number of new shards."""
    if not (num_shards or file_format):
        raise UsageError("reshard requires --num_shards, --file_format or both")
    if file_format and file_format not in CONTAINERS:
        raise UsageError(f"invalid --file_format {file_format!r}: {' or '.join(CONTAINERS)}")
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


def _new_shards(dataset: Dataset, target: Target) -> list[ShardId]:
    """Returns the new shards, in order."""
    new = dataset.shards[0].id
    if target.file_format != new.file_format:
        new = replace(new, file_format=target.file_format, compression="")
    else:
        options = dataset.build["options"]
        variant = variant_of(options.get("compression", "none"), options.get("group_size", 1))
        new = replace(new, compression=variant)
    return [
        replace(new, split=split, index=index, num_shards=count)
        for split, count in target.counts
        for index in range(count)
    ]


def _claim(dataset: Dataset, layout: Layout, target: Target) -> bool:
    """Claims the output folder; returns whether an earlier run has completed it."""
    if problem := storage.folder_problem(layout.root):
        raise BuildError(f"{layout.root}: {problem}")
    mine = _mark(dataset, target)
    found = dataset_files_in(layout)
    planned = storage.exists(layout.plan)
    if read_json(layout.uri("reshard")) == mine and not planned:
        ours = set(map(shard_name, _new_shards(dataset, target)))
        found = [name for name in found if is_shard_like(name) and name not in ours]
        if not found:
            return storage.exists(layout.dataset_info)
    if found or planned:
        what = f"holds another data set: {', '.join(found[:3])}" if found else "holds a build"
        raise BuildError(f"{layout.root} {what}; name another folder, or empty this one")
    layout.make_folders()
    if not storage.create(
        layout.uri("reshard"), (json.dumps(mine) + "\n").encode(), layout.state
    ):  # fmt: skip
        _check_ownership(layout, mine)
    storage.sweep(layout.state)
    storage.abort_uploads(layout.root)
    return False


def _mark(dataset: Dataset, target: Target) -> dict[str, Any]:
    """Returns the content of reshard.json, which identifies a reshard."""
    converted = target.file_format != dataset.shards[0].id.file_format
    return {
        "from": dataset.layout.root,
        "shards": [[s.uri.rpartition("/")[2], s.crc32c] for s in dataset.shards],
        "num_shards": dict(target.counts),
        **({"file_format": target.file_format} if converted else {}),
    }


def _check_ownership(layout: Layout, mine: Mapping[str, Any]) -> None:
    """Checks that no other reshard and no build has claimed the folder."""
    if read_json(layout.uri("reshard")) != mine or storage.exists(layout.plan):
        raise BuildError(
            f"{layout.root}: another reshard or build has claimed this folder; name another "
            "folder, or empty this one"
        )


class Piece(NamedTuple):
    """Consecutive records of an old shard.

    Attributes:
      old: number of the old shard in its data set.
      file: the old shard.
      begin: number of the first record in it.
      end: number after the last one.
    """

    old: int
    file: RecordFile
    begin: int
    end: int


class NewShard(NamedTuple):
    """A new shard, and the records to copy into it, in 4 bytes for each old shard.

    Attributes:
      number: its number in the data set.
      shard: the shard.
      old: number of the first old shard in its data set.
      first: the first old shard.
      begin: number of the first record in it.
      end: number after the last record in the last old shard.
      records: of each of the old shards; packed uint32.
    """

    number: int
    shard: ShardId
    old: int
    first: ShardId
    begin: int
    end: int
    records: bytes

    def pieces(self, source: Layout) -> Iterator[Piece]:
        """Yields the records to copy, in order.

        Args:
          source: the paths of the old data set.
        """
        lengths = np.frombuffer(self.records, _LENGTH).tolist()
        for position, records in enumerate(lengths):
            shard = replace(self.first, index=self.first.index + position)
            begin = 0 if position else self.begin
            end = self.end if position == len(lengths) - 1 else records
            file = RecordFile(source.shard(shard), source.index(shard), records)
            yield Piece(self.old + position, file, begin, end)


_LENGTH = np.dtype("<u4")
_COPIED = np.dtype([("number", "<u4"), ("bytes", "<u8"), ("crc32c", "<u4"), ("sha256", "V32")])
_PIECE = np.dtype([("number", "<u4"), ("piece", "<u4"), ("bytes", "<u8"), ("crc32c", "<u4")])


@dataclass
class Copied:
    """Written shards, in 48 bytes for each and 20 for each of its pieces.

    Attributes:
      shards: packed `_COPIED`.
      pieces: packed `_PIECE`: the number of the shard, that of the piece in it, size and CRC-32C.
    """

    shards: bytearray = field(default_factory=bytearray)
    pieces: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, number: int, state: Mapping[str, Any]) -> Copied:
        """Returns a shard, from its state file."""
        rows = [(number, piece, *found) for piece, found in enumerate(state["pieces"])]
        digest = bytes.fromhex(state["sha256"])
        shards = np.array([(number, state["bytes"], state["crc32c"], digest)], _COPIED)
        return cls(bytearray(shards.tobytes()), bytearray(np.array(rows, _PIECE).tobytes()))

    def merge(self, other: Copied) -> None:
        """Adds other shards."""
        self.shards += other.shards
        self.pieces += other.pieces

    def in_order(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the rows of the shards, and those of the pieces, in order."""
        shards = np.frombuffer(bytes(self.shards), _COPIED)
        pieces = np.frombuffer(bytes(self.pieces), _PIECE)
        return (
            shards[np.argsort(shards["number"])],
            pieces[np.lexsort((pieces["piece"], pieces["number"]))],
        )


@dataclass(frozen=True)
class Resharding(Operation[NewShard, Copied]):
    """Writes each new shard, and then the metadata.

    Attributes:
      source: the paths of the old data set.
      layout: the paths of the new one.
      target: the shards to write.
      sha256: whether to compute the SHA-256 of the new shards.
    """

    source: Layout
    layout: Layout
    target: Target
    sha256: bool

    def parts(self) -> Iterator[NewShard]:
        """Yields the new shards, in order."""
        dataset = open_dataset(self.source.root)
        source = find(self.source.root)
        new = enumerate(_new_shards(dataset, self.target))
        for split, count in self.target.counts:
            spans = deque(source.spans(split))
            records = sum(span.records for span in spans)
            for number, shard in islice(new, count):
                wanted = first_rank(shard.index + 1, count, records)
                wanted -= first_rank(shard.index, count, records)
                copied = []
                while wanted:
                    span = spans.popleft()
                    end = min(span.end, span.begin + wanted)
                    copied.append(replace(span, end=end))
                    wanted -= end - span.begin
                    if end < span.end:
                        spans.appendleft(replace(span, begin=end))
                lengths = [dataset.shards[span.file].records for span in copied]
                old, begin = copied[0].file, copied[0].begin
                yield NewShard(
                    number, shard, old, dataset.shards[old].id, begin, copied[-1].end,
                    np.array(lengths, _LENGTH).tobytes(),
                )  # fmt: skip

    @contextmanager
    def worker(self) -> Iterator[Callable[[NewShard], Copied]]:
        """Yields the function that writes a shard; it keeps the indexes of the last files."""
        yield partial(self._copy, opened=lru_cache(_OPENED)(replace))

    def _copy(self, new: NewShard, opened: Callable[[RecordFile], RecordFile]) -> Copied:
        layout, shard = self.layout, new.shard
        state = read_json(layout.shard_state(shard)) or {}
        index = layout.index(shard)
        done = state and storage.size(layout.shard(shard)) == state["bytes"]
        if not (done and (not index or storage.exists(index))):
            pieces = [piece._replace(file=opened(piece.file)) for piece in new.pieces(self.source)]
            state = repeated_if_lost(lambda: _write_shard(layout, shard, pieces, self.sha256))
            layout.write(layout.shard_state(shard), to_json(state))
        return Copied.of(new.number, state)

    def empty(self) -> Copied:
        """Returns no shard."""
        return Copied()

    def finish(self, result: Copied) -> dict[str, Any]:
        """Compares the old shards with their CRC-32C, and writes the metadata.

        Raises:
          BuildError: an old shard is damaged.
        """
        dataset = open_dataset(self.source.root)
        mine = _mark(dataset, self.target)
        _check_ownership(self.layout, mine)
        copied, pieces = result.in_order()
        self._check_source(dataset, pieces)
        shards = [
            Shard(
                new.shard, self.layout.shard(new.shard),
                sum(piece.end - piece.begin for piece in new.pieces(self.source)),
                int(row["bytes"]), int(row["crc32c"]),
                row["sha256"].tobytes().hex() if self.sha256 else "",
            )
            for new, row in zip(self.parts(), copied, strict=True)
        ]  # fmt: skip
        storage.sweep(self.layout.state)
        info = _write_metadata(dataset, self.layout, shards, self.target)
        _check_ownership(self.layout, mine)
        self.layout.write(self.layout.dataset_info, to_json(info))
        return {}

    def _check_source(self, dataset: Dataset, pieces: npt.NDArray[Any]) -> None:
        rows = iter(pieces)
        old, size, crc32c = -1, 0, 0
        readers: list[ShardId] = []  # of the current old shard
        for new in self.parts():
            for piece in new.pieces(self.source):
                row = next(rows)
                if piece.old != old:
                    old, size, crc32c, readers = piece.old, 0, 0, []
                size += int(row["bytes"])
                crc32c = combine(crc32c, int(row["crc32c"]), int(row["bytes"]))
                readers.append(new.shard)
                shard = dataset.shards[old]
                # The records of a file with a footer are compared one by one instead.
                whole_file = not (piece.file.compression or piece.file.container.has_footer)
                is_whole = piece.end == shard.records and whole_file
                if is_whole and (size, crc32c) != (shard.bytes, shard.crc32c):
                    # After the file is repaired, the same command copies it again.
                    storage.delete([self.layout.shard_state(reader) for reader in readers])
                    raise BuildError(
                        f"{shard.uri}: its CRC32C is not the one in build.json: run imageshards "
                        "verify to see what is damaged"
                    )


def _write_shard(
    layout: Layout, shard: ShardId, pieces: Sequence[Piece], sha256: bool
) -> dict[str, Any]:
    """Writes a new shard and its index; returns its state: sizes and checksums."""
    copied = []
    with storage.open_sink(layout.shard(shard), layout.state) as sink:
        if sha256:
            sink.compute_sha256()
        container = container_of(shard)
        writer = container.writer(sink)
        for _, file, begin, end in pieces:
            size = crc32c = 0
            for first, last in _chunks(file, begin, end):
                stored = file.stored(first, last)
                size += len(stored)
                crc32c = google_crc32c.extend(crc32c, stored)
                if container.can_copy and container.name == file.container.name:
                    writer.copy(stored, file.index[first:last, 1].tolist())
                    continue
                try:
                    for data in file.records_in(stored, first, last):
                        writer.write([data])
                except CorruptRecord as error:
                    raise BuildError(
                        f"{error}: run imageshards verify to see what is damaged"
                    ) from error
            copied.append([size, crc32c])
        index = writer.close()
    if index is not None:
        layout.write(layout.index(shard), index)
    return {
        "bytes": sink.size, "crc32c": sink.crc32c, "sha256": sink.sha256, "pieces": copied,
    }  # fmt: skip


def _chunks(file: RecordFile, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of consecutive records of about 4 MB, of the records [begin, end)."""
    first = begin
    size = 0
    for row in range(begin, end):
        size += int(file.index[row, 1])
        if size >= _CHUNK_BYTES:
            yield first, row + 1
            first, size = row + 1, 0
    if first < end:
        yield first, end


def _write_metadata(
    dataset: Dataset, layout: Layout, shards: list[Shard], target: Target
) -> dict[str, Any]:
    """Writes all metadata but dataset_info.json, and returns the content of that."""
    old = dataset.layout
    build = copy.deepcopy(dataset.build)
    build["resharded"] = {"from": old.root, "num_shards": build["options"]["num_shards"]}
    # All splits, because those that the command does not name keep their present number.
    num_shards = ",".join(f"{name}={count}" for name, count in target.counts)
    options: dict[str, Any] = {"num_shards": num_shards}
    container = container_of(shards[0].id)
    if target.file_format != dataset.shards[0].id.file_format:
        options |= {"file_format": target.file_format, "compression": "none"}
        if "group_size" in build["options"]:
            options["group_size"] = 1
        build["resharded"]["file_format"] = build["options"].get("file_format", "tfrecord")
        build["versions"] |= container.versions
    build["options"] |= options
    build["counts"]["bytes"] = sum(shard.bytes for shard in shards)
    build["shards"] = [shard_row(s.id, s.records, s.bytes, s.crc32c, s.sha256) for s in shards]
    info = copy.deepcopy(dataset.info)
    info["fileFormat"] = container.tfds_format
    for split in info["splits"]:
        mine = [shard for shard in shards if shard.id.split == split["name"]]
        size = sum(shard.bytes for shard in mine)
        split["numBytes"] = str(size)
        split["filepathTemplate"] = filepath_template(container)
        split["shardLengths"] = [str(shard.records) for shard in mine]
        build["splits"][split["name"]] |= {"bytes": size, "shards": len(mine)}
    facts = DatasetFacts(build, dataset.schema)
    layout.write(layout.build, to_json(build))
    layout.write_derived(facts)
    for name, file in METADATA_FILES.items():
        if file.resharded and storage.exists(old.uri(name)):
            with storage.open_read(old.uri(name)) as copied:
                layout.write(layout.uri(name), copied.read())
    if build_yaml := old.read("build_yaml"):  # data sets of version 0.1.0 have none
        build_yaml = with_options(build_yaml, **options)
        layout.write(layout.uri("build_yaml"), build_yaml)
    statistics = read_json(layout.uri("statistics")) or {}
    write_report(layout, facts, statistics, command_of(build_yaml))
    return info
