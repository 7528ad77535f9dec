"""Checks every record of a data set: CRC, parse, decode; counts against the metadata."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import BinaryIO, cast

from imageshards.reader import parse
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, counted
from imageshards.transforms.images import validate
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.records.tfds import features_json
from imageshards.transforms.records.tfrecord import (
    FRAME_BYTES,
    SHARD_LIKE,
    CorruptRecord,
    parse_index,
    read_records,
)
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.read_back import Record

_PROBLEMS_SHOWN = 20
_IN_FLIGHT = 32


@dataclass(frozen=True)
class Verdict:
    """What `verify` found; the data set is sound if there are no problems.

    Attributes:
      output: the folder of the data set.
      shards: files.
      records: that were looked at, and are sound.
      bytes: of all shards that are there.
      seconds: wall time.
      problems: a line each.
      rejects: images that its build left out.
      report: the page to look at.
      sample: how many records were asked for; 0: all.
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
        """One line for machines."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def __str__(self) -> str:
        if self.problems:
            found = counted(len(self.problems), "problem")
            return (
                f"{self.output}: {found}; {counted(self.records, 'sound record')} "
                "(delete a damaged file, and its build command writes it anew)"
            )
        looked_at = "a sample" if self.sample else "every one"
        return (
            f"{self.output}: all good; {counted(self.records, 'record')} in "
            f"{counted(self.shards, 'shard')}, {self.bytes / 1e6:,.1f} MB, "
            f"{looked_at} read, parsed and decoded in {self.seconds:.1f} s"
        )


def verify(folder: str, sample: int = 0) -> Verdict:
    """Reads a data set and compares it with what its metadata says.

    Args:
      folder: of the data set.
      sample: read that many records, evenly from all shards, by the index; 0: all of them. Sizes
        of shards and all metadata are compared in any case. A compressed shard has no index: it
        is read to its end, and that many of its records are decoded.

    Raises:
      BuildError: there is no complete data set.
    """
    begin = time.perf_counter()
    dataset = open_dataset(folder)
    problems = list(_layout_problems(dataset))
    records = size = 0
    chosen = _sample(dataset, sample) if sample else {}
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for shard in dataset.shards:
            count = 0
            try:
                numbers = chosen.get(shard.id, []) if sample else range(shard.records)
                if sample and not shard.id.compression:
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
        if SHARD_LIKE.fullmatch(name) and name not in known:
            yield f"{layout.root}/{name}: not of this data set, but readers' globs will match it"
    lengths: dict[str, list[int]] = {}
    for shard in dataset.shards:
        lengths.setdefault(shard.id.split, []).append(shard.records)
    if dataset.lengths != lengths:
        yield f"{layout.dataset_info}: its shardLengths are not those of {layout.build}"
    counts = dataset.counts
    if counts["records"] + counts["rejects"] + counts["duplicates"] != counts["inputs"]:
        yield f"{layout.build}: records + rejects + duplicates are not the inputs"
    if counts["records"] != sum(shard.records for shard in dataset.shards):
        yield f"{layout.build}: its records are not the sum of those of its shards"
    features = features_json(dataset.schema, len(dataset.classes))
    expected: dict[str, Callable[[bytes], bool]] = {
        layout.features: lambda text: bool(json.loads(text) == features),
        layout.rejects: lambda text: (
            len([json.loads(line) for line in text.splitlines()]) == counts["rejects"]
        ),
    }
    if key := dataset.schema.key_of("label"):
        names = "".join(f"{name}\n" for name in dataset.classes)
        expected[layout.labels(key)] = lambda text: text.decode() == names
    for uri, holds in expected.items():
        try:
            with storage.open_read(uri) as file:
                sound = holds(file.read())
        except FileNotFoundError:
            yield f"{uri}: missing"
        except ValueError as error:
            yield f"{uri}: damaged: {error}"
        else:
            if not sound:
                yield f"{uri}: does not say what {layout.build} says"


def _shard_problems(
    dataset: Dataset, shard: Shard, numbers: Sequence[int], executor: ThreadPoolExecutor
) -> Iterator[str | None]:
    """Reads a shard; yields None for each sound record of those numbers, a text for a problem."""
    chosen = numbers if isinstance(numbers, range) else set(numbers)
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
            for offset, data in read_records(read_back.uncompressed(file, shard.uri)):
                index.append((offset, len(data) + FRAME_BYTES))
                if (number := len(index) - 1) in chosen:
                    waiting.append((number, executor.submit(_check, dataset, data)))
                yield from settle(_IN_FLIGHT)
        except CorruptRecord as error:
            yield from settle(0)
            yield f"{error}; what follows was not read"
            return
        yield from settle(0)
    if len(index) != shard.records:
        yield f"{len(index):,} records, and not the {shard.records:,} of build.json"
    if file.size != shard.bytes or file.crc32c != shard.crc32c:
        yield "its size or CRC32C is not that of build.json"
    if not shard.id.compression and _read_index(dataset, shard) != index:
        yield f"its index {dataset.layout.index(shard.id)} does not match"


def _sample(dataset: Dataset, sample: int) -> dict[ShardId, list[int]]:
    """Shard -> numbers of the records to look at, in order."""
    total = sum(shard.records for shard in dataset.shards)
    count = min(sample, total)
    wanted = iter([number * total // count for number in range(count)])
    chosen: dict[ShardId, list[int]] = {}
    number, end = next(wanted, None), 0
    for shard in dataset.shards:
        begin, end = end, end + shard.records
        while number is not None and number < end:
            chosen.setdefault(shard.id, []).append(number - begin)
            number = next(wanted, None)
    return chosen


def _sample_problems(
    dataset: Dataset, shard: Shard, numbers: Sequence[int], executor: ThreadPoolExecutor
) -> Iterator[str | None]:
    """As `_shard_problems`, of some records."""
    if (size := storage.size(shard.uri)) < 0:
        raise FileNotFoundError(shard.uri)
    if size != shard.bytes:
        yield "its size is not that of build.json"
    index = _read_index(dataset, shard) or []
    if len(index) != shard.records:
        yield f"its index {dataset.layout.index(shard.id)} does not match"
        return

    def check(number: int) -> str | None:
        try:
            record = read_back.read_record(shard.uri, *index[number])
        except (CorruptRecord, example.CorruptExample, StopIteration) as error:
            return f"record {number}: {error or 'is not there'}"
        problem = _problem_of(dataset, record)
        return f"record {number}: {problem}" if problem else None

    yield from executor.map(check, numbers)


def _read_index(dataset: Dataset, shard: Shard) -> list[tuple[int, int]] | None:
    try:
        with storage.open_read(dataset.layout.index(shard.id)) as file:
            return parse_index(file.read().decode())
    except (FileNotFoundError, ValueError):
        return None


def _check(dataset: Dataset, data: bytes) -> str | None:
    """What is wrong with a record, or None."""
    try:
        record = Record(0, 0, example.decode(data))
    except example.CorruptExample as error:
        return str(error)
    return _problem_of(dataset, record)


def _problem_of(dataset: Dataset, record: Record) -> str | None:
    schema = dataset.schema
    missing = [f.key for f in schema.features if f.key not in record.values]
    if missing:
        return f"lacks {', '.join(missing)}"
    if problem := _content_problem(record, schema):
        return problem
    label_key = schema.key_of("label")
    if label_key:
        label = record.first(label_key)
        if not 0 <= label < len(dataset.classes):
            return f"label {label} of {len(dataset.classes)} classes"
        # Where there are synsets, texts may say more.
        if text_key := schema.key_of("synset") or schema.key_of("class_text"):
            text = record.first(text_key, b"").decode("utf-8", "replace")
            if text != dataset.classes[label]:
                return f"says {text!r}, but class {label} is {dataset.classes[label]!r}"
    return None


def _content_problem(record: Record, schema: Schema) -> str | None:
    """What is wrong with the image, the pixels or the text of a record, or None."""
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
        said = read_back.info_of(record, schema)
    except validate.ImageError as error:
        return f"does not decode: {error}"
    if said != info:
        return f"says {said}, but is {info}"
    return None
