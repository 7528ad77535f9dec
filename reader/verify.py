"""Verifies a data set: reads, parses and decodes its records, and compares the metadata."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import BinaryIO, Literal, cast

from imageshards.reader import parse
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.transforms import extras, storage
from imageshards.transforms.elements import ShardId, counted, quoted
from imageshards.transforms.images import validate
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import container_of, is_shard_like
from imageshards.transforms.records.schemas import BOX_SIDES, Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.annotations import box_problem
from imageshards.transforms.shards.layout import DatasetFacts
from imageshards.transforms.shards.read_back import Record

_PROBLEMS_SHOWN = 20
_IN_FLIGHT = 32

Decoder = Literal["build", "tensorflow"]

Inspect = Callable[[bytes], validate.ImageInfo]
"""Decodes an image file, and returns its format and size; raises an `ImageError`."""


class Problem(str):
    """A line about damage, such as a missing file or a wrong checksum."""

    def within(self, place: str) -> Problem:
        """Returns the problem with the place where it was found."""
        return type(self)(f"{place}: {self}")


class Missing(Problem):
    """A line about a file that does not exist."""


class Unsuitable(Problem):
    """A line about a record that is undamaged, but whose image or boxes training cannot use."""


class BadBoxes(Unsuitable):
    """A line about a record whose boxes are not within its image."""


Check = Callable[[Record], Problem | None]
"""Returns what is wrong with a record, or None."""


@dataclass(frozen=True)
class Verdict:
    """The result of `verify`. The data set is sound if there are no problems.

    Attributes:
      output: the folder of the data set.
      shards: the number of shards.
      records: the number of records that were checked and are sound.
      bytes: the size of all existing shards.
      seconds: wall time.
      problems: a line for each of the first problems, and one with the number of the others.
      rejects: the number of images that the build rejected.
      report: the path of report.html.
      sample: the number of records that `verify` was to check; 0 for all.
      damaged: the number of problems that are damage to existing files.
      missing: the number of files that do not exist.
      unsuitable: the number of undamaged records whose images do not decode, or whose boxes are
        not within the image.
      bad_boxes: how many of them have boxes that are not within the image.
      level: how images were decoded: "full", or "lenient" if the build had `--check header`.
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
    damaged: int = 0
    missing: int = 0
    unsuitable: int = 0
    bad_boxes: int = 0
    level: validate.Level = "full"

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def _advice(self) -> Iterator[str]:
        again = "run the build command again to rewrite them"
        if self.damaged:
            yield f"delete the damaged files and {again}"
        elif self.missing:
            yield again
        if self.bad_boxes:
            yield (
                "the boxes that are not within their images are what the build wrote: build the "
                "data set again, in a new folder, to clip or reject them"
            )
        if self.unsuitable > self.bad_boxes:
            images = "the images that do not decode are what the build wrote"
            if self.level == "full":
                yield f"{images}: build the data set again, in a new folder, to check them again"
            else:
                yield f"{images} with --check header: build with --check full to reject them"

    def __str__(self) -> str:
        if self.problems:
            found = counted(self.damaged + self.missing + self.unsuitable, "problem")
            return (
                f"{self.output}: {found}; {counted(self.records, 'sound record')} "
                f"({'; '.join(self._advice())})"
            )
        checked = "a sample" if self.sample else "all of them"
        return (
            f"{self.output}: no problems; {counted(self.records, 'record')} in "
            f"{counted(self.shards, 'shard')}, {self.bytes / 1e6:,.1f} MB, "
            f"{checked} read, parsed and decoded in {self.seconds:.1f} s"
        )


def verify(folder: str, sample: int = 0, decoder: Decoder = "build") -> Verdict:
    """Reads a data set and compares it with its metadata.

    Args:
      folder: the folder of the data set.
      sample: the number of records to check, spread evenly over all shards; 0 for all. The sizes of
        shards and all metadata files are always compared. Shards without random access are always
        read to their end.
      decoder: "build" decodes images as the build did, except that JPEGs of a build with
        `--check header` may have damage that TensorFlow's decoder accepts; "tensorflow" decodes
        them with TensorFlow.

    Raises:
      BuildError: there is no complete data set.
      UsageError: TensorFlow is not installed.

    >>> verify("dataset").problems
    ()
    """
    begin = time.perf_counter()
    dataset = open_dataset(folder)
    level = _level_of(dataset)
    check = partial(_problem_of, dataset, _inspect_with(decoder, level))
    problems = list(_layout_problems(dataset))
    records = size = 0
    chosen = _chosen(dataset, sample)
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for shard in dataset.shards:
            count = 0
            try:
                numbers = chosen[shard.id]
                if sample and container_of(shard.id).has_index:
                    found = _sample_problems(dataset, shard, numbers, check, executor)
                else:
                    found = _shard_problems(dataset, shard, numbers, check, executor)
                for item in found:
                    if item is None:
                        count += 1
                    else:
                        problems.append(item.within(shard.uri))
            except FileNotFoundError:
                problems.append(Missing(f"{shard.uri}: missing"))
                continue
            records += count
            size += shard.bytes
    unsuitable = sum(isinstance(problem, Unsuitable) for problem in problems)
    missing = sum(isinstance(problem, Missing) for problem in problems)
    bad_boxes = sum(isinstance(problem, BadBoxes) for problem in problems)
    lines = list(map(str, problems[:_PROBLEMS_SHOWN]))
    if (more := len(problems) - _PROBLEMS_SHOWN) > 0:
        lines.append(f"and {more:,} more problems")
    return Verdict(
        dataset.layout.root, len(dataset.shards), records, size,
        time.perf_counter() - begin, tuple(lines),
        dataset.counts["rejects"], dataset.layout.report, sample,
        len(problems) - unsuitable - missing, missing, unsuitable, bad_boxes, level,
    )  # fmt: skip


def _level_of(dataset: Dataset) -> validate.Level:
    """Returns the validation level at which the images of a data set decode."""
    return "lenient" if dataset.build["options"].get("check") == "header" else "full"


def _inspect_with(decoder: Decoder, level: validate.Level) -> Inspect:
    if decoder == "build":
        return partial(validate.inspect, check=level)
    extras.require("train", "--decoder tensorflow", ["tensorflow"])
    from imageshards.reader.tensorflow.images import inspect

    return inspect


def _layout_problems(dataset: Dataset) -> Iterator[Problem]:
    layout = dataset.layout
    known = {os.path.basename(shard.uri) for shard in dataset.shards}
    for name in storage.names_in(layout.root):
        if is_shard_like(name) and name not in known:
            uri = storage.join(layout.root, name)
            yield Problem(f"{uri}: not of this data set, but readers' patterns match it")
    lengths: dict[str, list[int]] = {}
    for shard in dataset.shards:
        lengths.setdefault(shard.id.split, []).append(shard.records)
    if dataset.lengths != lengths:
        yield Problem(f"{layout.dataset_info}: its shardLengths do not match {layout.build}")
    counts = dataset.counts
    if counts["records"] + counts["rejects"] + counts["duplicates"] != counts["inputs"]:
        yield Problem(f"{layout.build}: records + rejects + duplicates are not the inputs")
    if counts["records"] != sum(shard.records for shard in dataset.shards):
        yield Problem(f"{layout.build}: its records are not the sum of its shards' records")
    facts = DatasetFacts(dataset.build, dataset.schema)
    for metadata_file, uri in layout.files_of(facts):
        if not metadata_file.make and not metadata_file.check:
            continue
        try:
            with storage.open_read(uri) as file:
                fits = metadata_file.fits(facts, file.read())
        except FileNotFoundError:
            yield Missing(f"{uri}: missing")
        except ValueError as error:
            yield Problem(f"{uri}: damaged: {error}")
        else:
            if not fits:
                yield Problem(f"{uri}: does not match {layout.build}")


def _shard_problems(
    dataset: Dataset,
    shard: Shard,
    numbers: Sequence[int],
    check: Check,
    executor: ThreadPoolExecutor,
) -> Iterator[Problem | None]:
    """Reads a shard; yields None for each sound record among `numbers`, else a problem."""
    chosen = numbers if isinstance(numbers, range) else set(numbers)
    container = container_of(shard.id)
    index: list[tuple[int, int]] = []
    waiting: deque[tuple[int, Future[Problem | None]]] = deque()

    def settle(limit: int) -> Iterator[Problem | None]:
        while len(waiting) > limit:
            number, future = waiting.popleft()
            problem = future.result()
            yield problem.within(f"record {number}") if problem else None

    with storage.open_read(shard.uri) as raw:
        file = read_back.CountingFile(cast(BinaryIO, raw))
        try:
            for offset, size, data in container.read(cast(BinaryIO, file)):
                index.append((offset, size))
                if (number := len(index) - 1) in chosen:
                    waiting.append((number, executor.submit(_check, check, data)))
                yield from settle(_IN_FLIGHT)
        except CorruptRecord as error:
            yield from settle(0)
            yield Problem(f"{error}; the records after it were not read")
            return
        yield from settle(0)
    if len(index) != shard.records:
        yield Problem(f"{counted(len(index), 'record')}, but {shard.records:,} in build.json")
    if file.size != shard.bytes or file.crc32c != shard.crc32c:
        yield Problem("its size or CRC32C is not the one in build.json")
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
    dataset: Dataset,
    shard: Shard,
    numbers: Sequence[int],
    check: Check,
    executor: ThreadPoolExecutor,
) -> Iterator[Problem | None]:
    """Does the same as `_shard_problems`, but reads only `numbers`, which the index locates."""
    if (size := storage.size(shard.uri)) < 0:
        raise FileNotFoundError(shard.uri)
    if size != shard.bytes:
        yield Problem("its size is not the one in build.json")
    index = _read_index(dataset, shard) or []
    if len(index) != shard.records:
        yield _index_problem(dataset, shard)
        return

    def check_one(number: int) -> Problem | None:
        try:
            problem = check(read_back.read_record(shard.uri, *index[number]))
        except (CorruptRecord, example.CorruptExample) as error:
            problem = Problem(error)
        return problem.within(f"record {number}") if problem else None

    yield from executor.map(check_one, numbers)


def _read_index(dataset: Dataset, shard: Shard) -> list[tuple[int, int]] | None:
    """Returns (offset, stored size) of every record; None if the index is missing or damaged."""
    try:
        with storage.open_read(dataset.layout.index(shard.id)) as file:
            return list(map(tuple, parse_index(file.read()).tolist()))
    except (FileNotFoundError, ValueError):
        return None


def _index_problem(dataset: Dataset, shard: Shard) -> Problem:
    uri = dataset.layout.index(shard.id)
    if storage.exists(uri):
        return Problem(f"its index {uri} does not match")
    return Missing(f"its index {uri}: missing")


def _check(check: Check, data: bytes) -> Problem | None:
    """Returns what is wrong with a serialized record, or None."""
    try:
        return check(Record(0, 0, example.decode(data)))
    except example.CorruptExample as error:
        return Problem(error)


def _problem_of(dataset: Dataset, inspect: Inspect, record: Record) -> Problem | None:
    schema = dataset.schema
    missing = [f.key for f in schema.features if f.key not in record.values]
    if missing:
        return Problem(f"does not have {', '.join(missing)}")
    if problem := _content_problem(record, schema, inspect):
        return problem
    if record.values.keys() >= set(BOX_SIDES) and (wrong := box_problem(record.values)):
        return BadBoxes(wrong)
    label_key = schema.key_of("label")
    if label_key:
        label = record.first(label_key, -1)
        if not 0 <= label < len(dataset.classes):
            return Problem(f"label {label} of {counted(len(dataset.classes), 'class')}")
        # With synsets, the class text may be longer than the name.
        if text_key := schema.key_of("synset") or schema.key_of("class_text"):
            text = record.first(text_key, b"").decode("utf-8", "replace")
            if text != dataset.classes[label]:
                name = quoted(dataset.classes[label])
                return Problem(f"its class is called {quoted(text)}, but class {label} is {name}")
    return None


def _content_problem(record: Record, schema: Schema, inspect: Inspect) -> Problem | None:
    """Returns what is wrong with the image, the pixels or the text of a record, or None."""
    data = record.first(schema.key_of(schema.holds), b"")
    if schema.holds == "text":
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return Problem(f"its text is not UTF-8 at byte {error.start}")
        return None
    if schema.holds == "pixels":
        try:
            parse.decode_record(record.values, schema)
        except example.CorruptExample as error:
            return Problem(f"its pixels: {error}")
        return None
    try:
        info = inspect(data)
        declared = read_back.info_of(record, schema)
    except validate.ImageError as error:
        return Unsuitable(f"does not decode: {error}")
    if declared != info:
        return Problem(f"declares {declared}, but its image is {info}")
    return None
