"""Verifies a data set: reads, parses and decodes its records, and compares the metadata."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast

from imageshards.reader import parse
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, counted, quoted
from imageshards.transforms.images import validate
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import container_of, is_shard_like
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import DatasetFacts
from imageshards.transforms.shards.read_back import Record

_PROBLEMS_SHOWN = 20
_IN_FLIGHT = 32


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`. The data set is sound if there are no problems.

    Attributes:
      output: the folder of the data set.
      shards: the number of shards.
      records: the number of records that were checked and are sound.
      bytes: the size of all existing shards.
      seconds: wall time.
      problems: one line for each problem.
      rejects: the number of images that the build rejected.
      report: the path of report.html.
      sample: the number of records that `verify` was to check; 0 for all.
    """

    output: str
    shards: int
    records: int
    bytes: int
    seconds: float
    problems: tuple[str, ...]
    rejects: int
    report: str
    sample: int = 0

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def __str__(self) -> str:
        if self.problems:
            found = counted(len(self.problems), "problem")
            delete = "delete the damaged files and "
            if all(problem.endswith(": missing") for problem in self.problems):
                delete = ""
            return (
                f"{self.output}: {found}; {counted(self.records, 'sound record')} "
                f"({delete}run the build command again to rewrite them)"
            )
        checked = "a sample" if self.sample else "all of them"
        return (
            f"{self.output}: no problems; {counted(self.records, 'record')} in "
            f"{counted(self.shards, 'shard')}, {self.bytes / 1e6:,.1f} MB, "
            f"{checked} read, parsed and decoded in {self.seconds:.1f} s"
        )


def verify(folder: str, sample: int = 0) -> Verdict:
    """Reads a data set and compares it with its metadata.

    Args:
      folder: the folder of the data set.
      sample: the number of records to check, spread evenly over all shards; 0 for all. The sizes of
        shards and all metadata files are always compared. Shards without random access are always
        read to their end.

    Raises:
      BuildError: there is no complete data set.

    >>> verify("dataset").problems
    ()
    """
    begin = time.perf_counter()
    dataset = open_dataset(folder)
    problems = list(_layout_problems(dataset))
    records = size = 0
    chosen = _chosen(dataset, sample)
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for shard in dataset.shards:
            count = 0
            try:
                numbers = chosen[shard.id]
                if sample and container_of(shard.id).has_index:
                    found = _sample_problems(dataset, shard, numbers, executor)
                else:
                    found = _shard_problems(dataset, shard, numbers, executor)
                for item in found:
                    if item is None:
                        count += 1
                    else:
                        problems.append(f"{shard.uri}: {item}")
            except FileNotFoundError:
                problems.append(f"{shard.uri}: missing")
                continue
            records += count
            size += shard.bytes
    if len(problems) > _PROBLEMS_SHOWN:
        more = len(problems) - _PROBLEMS_SHOWN
        problems = [*problems[:_PROBLEMS_SHOWN], f"and {more:,} more problems"]
    return Verdict(
        dataset.layout.root, len(dataset.shards), records, size,
        time.perf_counter() - begin, tuple(problems),
        dataset.counts["rejects"], dataset.layout.report, sample,
    )  # fmt: skip


def _layout_problems(dataset: Dataset) -> Iterator[str]:
    layout = dataset.layout
    known = {os.path.basename(shard.uri) for shard in dataset.shards}
    for name in storage.names_in(layout.root):
        if is_shard_like(name) and name not in known:
            uri = storage.join(layout.root, name)
            yield f"{uri}: not of this data set, but readers' patterns match it"
    lengths: dict[str, list[int]] = {}
    for shard in dataset.shards:
        lengths.setdefault(shard.id.split, []).append(shard.records)
    if dataset.lengths != lengths:
        yield f"{layout.dataset_info}: its shardLengths do not match {layout.build}"
    counts = dataset.counts
    if counts["records"] + counts["rejects"] + counts["duplicates"] != counts["inputs"]:
        yield f"{layout.build}: records + rejects + duplicates do not add up to the inputs"
    if counts["records"] != sum(shard.records for shard in dataset.shards):
        yield f"{layout.build}: its records are not the sum of its shards' records"
    facts = DatasetFacts(dataset.build, dataset.schema)
    for metadata_file, uri in layout.files_of(facts):
        if not metadata_file.make and not metadata_file.check:
            continue
        try:
            with storage.open_read(uri) as file:
                fits = metadata_file.fits(facts, file.read())
        except FileNotFoundError:
            yield f"{uri}: missing"
        except ValueError as error:
            yield f"{uri}: damaged: {error}"
        else:
            if not fits:
                yield f"{uri}: does not match {layout.build}"


def _shard_problems(
    dataset: Dataset, shard: Shard, numbers: Sequence[int], executor: ThreadPoolExecutor
) -> Iterator[str | None]:
    """Reads a shard; yields None for each sound record among `numbers`, a text for a problem."""
    chosen = numbers if isinstance(numbers, range) else set(numbers)
    container = container_of(shard.id)
    index: list[tuple[int, int]] = []
    waiting: deque[tuple[int, Future[str | None]]] = deque()

    def settle(limit: int) -> Iterator[str | None]:
        while len(waiting) > limit:
            number, future = waiting.popleft()
            problem = future.result()
            yield f"record {number}: {problem}" if problem else None

    with storage.open_read(shard.uri) as raw:
        file = read_back.CountingFile(cast(BinaryIO, raw))
        try:
            for offset, size, data in container.read(cast(BinaryIO, file)):
                index.append((offset, size))
                if (number := len(index) - 1) in chosen:
                    waiting.append((number, executor.submit(_check, dataset, data)))
                yield from settle(_IN_FLIGHT)
        except CorruptRecord as error:
            yield from settle(0)
            yield f"{error}; the records after it were not read"
            return
        yield from settle(0)
    if len(index) != shard.records:
        yield f"{counted(len(index), 'record')}, but {shard.records:,} in build.json"
    if file.size != shard.bytes or file.crc32c != shard.crc32c:
        yield "its size or CRC32C is not the one in build.json"
    if container.has_index and _read_index(dataset, shard) != index:
        yield _index_problem(dataset, shard)


def _chosen(dataset: Dataset, sample: int) -> dict[ShardId, Sequence[int]]:
    """Returns shard -> numbers of the records to check, in order."""
    total = sum(shard.records for shard in dataset.shards)
    count = min(sample, total)
    chosen: dict[ShardId, Sequence[int]] = {}
    begin = 0
    for shard in dataset.shards:
        end = begin + shard.records
        chosen[shard.id] = range(shard.records)
        if sample and total:
            # Of all records, those with the numbers n * total // count are checked.
            first, last = -(-begin * count // total), -(-end * count // total)
            chosen[shard.id] = [n * total // count - begin for n in range(first, last)]
        begin = end
    return chosen


def _sample_problems(
    dataset: Dataset, shard: Shard, numbers: Sequence[int], executor: ThreadPoolExecutor
) -> Iterator[str | None]:
    """Does the same as `_shard_problems`, but reads only `numbers`, which the index locates."""
    if (size := storage.size(shard.uri)) < 0:
        raise FileNotFoundError(shard.uri)
    if size != shard.bytes:
        yield "its size is not the one in build.json"
    index = _read_index(dataset, shard) or []
    if len(index) != shard.records:
        yield _index_problem(dataset, shard)
        return

    def check(number: int) -> str | None:
        try:
            problem = _problem_of(dataset, read_back.read_record(shard.uri, *index[number]))
        except (CorruptRecord, example.CorruptExample) as error:
            problem = str(error)
        return f"record {number}: {problem}" if problem else None

    yield from executor.map(check, numbers)


def _read_index(dataset: Dataset, shard: Shard) -> list[tuple[int, int]] | None:
    """Returns (offset, stored size) of every record; None if the index is missing or damaged."""
    try:
        with storage.open_read(dataset.layout.index(shard.id)) as file:
            return list(map(tuple, parse_index(file.read()).tolist()))
    except (FileNotFoundError, ValueError):
        return None


def _index_problem(dataset: Dataset, shard: Shard) -> str:
    uri = dataset.layout.index(shard.id)
    return f"its index {uri}{' does not match' if storage.exists(uri) else ': missing'}"


def _check(dataset: Dataset, data: bytes) -> str | None:
    """Returns what is wrong with a serialized record, or None."""
    try:
        return _problem_of(dataset, Record(0, 0, example.decode(data)))
    except example.CorruptExample as error:
        return str(error)


def _problem_of(dataset: Dataset, record: Record) -> str | None:
    schema = dataset.schema
    missing = [f.key for f in schema.features if f.key not in record.values]
    if missing:
        return f"does not have {', '.join(missing)}"
    if problem := _content_problem(record, schema):
        return problem
    label_key = schema.key_of("label")
    if label_key:
        label = record.first(label_key, -1)
        if not 0 <= label < len(dataset.classes):
            return f"label {label} of {counted(len(dataset.classes), 'class')}"
        # With synsets, the class text may be longer than the name.
        if text_key := schema.key_of("synset") or schema.key_of("class_text"):
            text = record.first(text_key, b"").decode("utf-8", "replace")
            if text != dataset.classes[label]:
                name = quoted(dataset.classes[label])
                return f"its class is called {quoted(text)}, but class {label} is {name}"
    return None


def _content_problem(record: Record, schema: Schema) -> str | None:
    """Returns what is wrong with the image, the pixels or the text of a record, or None."""
    data = record.first(schema.key_of(schema.holds), b"")
    if schema.holds == "text":
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return f"its text is not UTF-8 at byte {error.start}"
        return None
    if schema.holds == "pixels":
        try:
            parse.decode_record(record.values, schema)
        except example.CorruptExample as error:
            return f"its pixels: {error}"
        return None
    try:
        info = validate.inspect(data, "full")
        declared = read_back.info_of(record, schema)
    except validate.ImageError as error:
        return f"does not decode: {error}"
    if declared != info:
        return f"declares {declared}, but its image is {info}"
    return None
