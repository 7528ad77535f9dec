"""Verifies a data set: reads, parses and decodes its records, and compares the metadata."""

from __future__ import annotations

import json
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from imageshards.reader import parse
from imageshards.reader.dataset import Dataset, Shard, open_dataset
from imageshards.transforms import extras, storage
from imageshards.transforms.elements import counted, quoted
from imageshards.transforms.images import validate
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import container_of, is_shard_like
from imageshards.transforms.records.schemas import BOX_SIDES, Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.annotations import box_problem
from imageshards.transforms.shards.cores import cores
from imageshards.transforms.shards.layout import DatasetFacts, Layout
from imageshards.transforms.shards.read_back import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PROBLEMS_SHOWN = 20
_IN_FLIGHT = 32
_SUBMITTED = 1024
_WAITING_BYTES = 64 << 20

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
      resharded_from: the data set from which `reshard` copied this one; empty if a build wrote it.
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
    resharded_from: str = ""

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def _advice(self) -> Iterator[str]:
        again = "run the build command again to rewrite them"
        if self.resharded_from and (self.damaged or self.missing):
            yield (
                "delete dataset_info.json and the damaged files, and run the reshard command "
                f"again to copy them from {self.resharded_from}"
            )
        elif self.damaged:
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


@dataclass
class Findings:
    """What `verify` found in some parts of a data set; of bounded size.

    Attributes:
      records: the number of records that were checked and are sound.
      bytes: the size of the existing shards, in bytes.
      damaged: see `Verdict`.
      missing: see `Verdict`.
      unsuitable: see `Verdict`.
      bad_boxes: see `Verdict`.
      first: (number of the part, position in it, line) of the first problems.
    """

    records: int = 0
    bytes: int = 0
    damaged: int = 0
    missing: int = 0
    unsuitable: int = 0
    bad_boxes: int = 0
    first: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, part: int, problem: Problem) -> None:
        """Adds a problem of a part; those of a part are added in order."""
        position = self.damaged + self.missing + self.unsuitable
        if isinstance(problem, Missing):
            self.missing += 1
        elif isinstance(problem, Unsuitable):
            self.unsuitable += 1
            self.bad_boxes += isinstance(problem, BadBoxes)
        else:
            self.damaged += 1
        if len(self.first) < _PROBLEMS_SHOWN:
            self.first.append((part, position, str(problem)))

    def merge(self, other: Findings) -> None:
        """Adds the findings in other parts."""
        self.records += other.records
        self.bytes += other.bytes
        self.damaged += other.damaged
        self.missing += other.missing
        self.unsuitable += other.unsuitable
        self.bad_boxes += other.bad_boxes
        self.first = sorted([*self.first, *other.first])[:_PROBLEMS_SHOWN]

    @property
    def lines(self) -> tuple[str, ...]:
        """The first problems, and a line with the number of the others."""
        lines = [line for *_, line in self.first]
        if (more := self.damaged + self.missing + self.unsuitable - len(lines)) > 0:
            lines.append(f"and {more:,} more problems")
        return tuple(lines)


class Decoders(ThreadPoolExecutor):
    """Threads that check records. The records of all parts that wait for them have a bounded size.

    Args:
      threads: the number of threads.
      limit: the most bytes of the records that are submitted and not yet checked. A larger record
        is checked alone.
    """

    def __init__(self, threads: int, limit: int = _WAITING_BYTES) -> None:
        super().__init__(threads, "imageshards-decode")
        self._limit = self._free = limit
        self._changed = threading.Condition()

    def submit_record(
        self, check: Callable[[bytes], Problem | None], data: bytes
    ) -> Future[Problem | None]:
        """Submits a record to a check, after a wait until its bytes are within the limit."""
        size = min(len(data), self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        future = self.submit(check, data)
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _release(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()


@dataclass(frozen=True)
class Part:
    """A part of a data set that one worker checks: a shard, or all files but the shards.

    Attributes:
      number: 0 for the other files; the number of a shard in the data set, from 1.
      shard: the shard; None for the other files.
      begin: the number of records in all shards before it.
    """

    number: int = 0
    shard: Shard | None = None
    begin: int = 0


@dataclass(frozen=True)
class Checks:
    """How a data set is verified: all that a worker needs to check any part.

    Attributes:
      layout: the paths of the data set.
      schema: of its records.
      classes: class names in label order.
      level: how images are decoded; see `Verdict`.
      decoder: see `verify`.
      records: the number of records in all shards, according to build.json.
      sample: see `verify`.
    """

    layout: Layout
    schema: Schema
    classes: tuple[str, ...]
    level: validate.Level
    decoder: Decoder
    records: int
    sample: int

    @classmethod
    def of(cls, dataset: Dataset, sample: int, decoder: Decoder) -> Checks:
        """Returns the checks of a data set; see `verify` for the arguments."""
        level = _level_of(dataset)
        _inspect_with(decoder, level)  # raises an error here, and not in a worker
        records = sum(shard.records for shard in dataset.shards)
        classes = tuple(dataset.classes)
        return cls(dataset.layout, dataset.schema, classes, level, decoder, records, sample)

    def check(self, part: Part, executor: Decoders) -> Findings:
        """Checks a part; `executor` decodes images."""
        findings = Findings()
        if part.shard is None:
            for problem in _layout_problems(open_dataset(self.layout.root)):
                findings.add(part.number, problem)
            return findings
        shard = part.shard
        check = partial(_problem_of, self, _inspect_with(self.decoder, self.level))
        numbers = self._chosen(part.begin, shard)
        sampled = self.sample and container_of(shard.id).has_index
        problems = _sample_problems if sampled else _shard_problems
        records = 0
        try:
            for found in problems(self.layout, shard, numbers, check, executor):
                if found is None:
                    records += 1
                else:
                    findings.add(part.number, found.within(shard.uri))
        except FileNotFoundError:
            findings.add(part.number, Missing(f"{shard.uri}: missing"))
            return findings
        findings.records, findings.bytes = records, shard.bytes
        return findings

    def _chosen(self, begin: int, shard: Shard) -> Sequence[int]:
        """Returns the numbers of the records of a shard to check, in order.

        Args:
          begin: the number of records in all shards before it.
          shard: the shard.
        """
        if not self.sample or not self.records:
            return range(shard.records)
        # Of all records, those with the numbers n * total // count are checked.
        total, count = self.records, min(self.sample, self.records)
        first, last = (-(-end * count // total) for end in (begin, begin + shard.records))
        return [n * total // count - begin for n in range(first, last)]


def parts_of(dataset: Dataset) -> Iterator[Part]:
    """Yields the parts of a data set that can be checked independently."""
    yield Part()
    begin = 0
    for number, shard in enumerate(dataset.shards, 1):
        yield Part(number, shard, begin)
        begin += shard.records


def verdict_of(dataset: Dataset, checks: Checks, findings: Findings, seconds: float) -> Verdict:
    """Returns the verdict on a data set, from the findings in all parts."""
    return Verdict(
        dataset.layout.root, len(dataset.shards), findings.records, findings.bytes,
        seconds, findings.lines, dataset.counts["rejects"], dataset.layout.report, checks.sample,
        findings.damaged, findings.missing, findings.unsuitable, findings.bad_boxes, checks.level,
        dataset.build.get("resharded", {}).get("from", ""),
    )  # fmt: skip


def verify(folder: str, sample: int = 0, decoder: Decoder = "build") -> Verdict:
    """Reads a data set and compares it with its metadata, in this process.

    `imageshards.pipeline.operations.verify` does the same on many workers.

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
    checks = Checks.of(dataset, sample, decoder)
    findings = Findings()
    with Decoders(cores()) as executor:
        for part in parts_of(dataset):
            findings.merge(checks.check(part, executor))
    return verdict_of(dataset, checks, findings, time.perf_counter() - begin)


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
    left_out = sum(dataset.build.get("left_out", {}).values())
    if counts["records"] + counts["rejects"] + counts["duplicates"] + left_out != counts["inputs"]:
        yield Problem(
            f"{layout.build}: records + rejects + duplicates + what is left out are not the inputs"
        )
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
    layout: Layout,
    shard: Shard,
    numbers: Sequence[int],
    check: Check,
    executor: Decoders,
) -> Iterator[Problem | None]:
    """Reads a shard; yields None for each sound record among `numbers`, else a problem."""
    chosen = numbers if isinstance(numbers, range) else set(numbers)
    container = container_of(shard.id)
    found = array("q")  # the numbers in each record's line of the index, in turn
    records = 0
    waiting: deque[tuple[int, Future[Problem | None]]] = deque()

    def settle(limit: int) -> Iterator[Problem | None]:
        while len(waiting) > limit:
            number, future = waiting.popleft()
            problem = future.result()
            yield problem.within(f"record {number}") if problem else None

    with storage.open_read(shard.uri) as raw:
        file = read_back.CountingFile(cast(BinaryIO, raw))
        try:
            for number, record in enumerate(container.read(cast(BinaryIO, file))):
                found.extend(container.index_row(record))
                records += 1
                if number in chosen:
                    future = executor.submit_record(partial(_check, check), record.data)
                    waiting.append((number, future))
                yield from settle(_IN_FLIGHT)
        except CorruptRecord as error:
            yield from settle(0)
            yield Problem(f"{error}; the records after it were not read")
            return
        yield from settle(0)
    if records != shard.records:
        yield Problem(f"{counted(records, 'record')}, but {shard.records:,} in build.json")
    if file.size != shard.bytes or file.crc32c != shard.crc32c:
        yield Problem("its size or CRC32C is not the one in build.json")
    if container.has_index:
        index = _read_index(layout, shard)
        if index is None or index.tobytes() != found.tobytes():
            yield _index_problem(layout, shard)


def _sample_problems(
    layout: Layout,
    shard: Shard,
    numbers: Sequence[int],
    check: Check,
    executor: Decoders,
) -> Iterator[Problem | None]:
    """Does the same as `_shard_problems`, but reads only `numbers`, which the index locates."""
    if (size := storage.size(shard.uri)) < 0:
        raise FileNotFoundError(shard.uri)
    if size != shard.bytes:
        yield Problem("its size is not the one in build.json")
    index = _read_index(layout, shard)
    if index is None or len(index) != shard.records:
        yield _index_problem(layout, shard)
        return
    rows = index

    def check_one(number: int) -> Problem | None:
        try:
            problem = check(read_back.read_record(shard.uri, *rows[number].tolist()))
        except (CorruptRecord, example.CorruptExample) as error:
            problem = Problem(error)
        return problem.within(f"record {number}") if problem else None

    for first in range(0, len(numbers), _SUBMITTED):
        yield from executor.map(check_one, numbers[first : first + _SUBMITTED])


def _read_index(layout: Layout, shard: Shard) -> npt.NDArray[np.int64] | None:
    """Returns the index, as `parse_index` does; None if it is missing or damaged."""
    try:
        with storage.open_read(layout.index(shard.id)) as file:
            return parse_index(file.read())
    except (FileNotFoundError, ValueError):
        return None


def _index_problem(layout: Layout, shard: Shard) -> Problem:
    uri = layout.index(shard.id)
    if storage.exists(uri):
        return Problem(f"its index {uri} does not match")
    return Missing(f"its index {uri}: missing")


def _check(check: Check, data: bytes) -> Problem | None:
    """Returns what is wrong with a serialized record, or None."""
    try:
        return check(Record(0, 0, example.decode(data)))
    except example.CorruptExample as error:
        return Problem(error)


def _problem_of(checks: Checks, inspect: Inspect, record: Record) -> Problem | None:
    schema = checks.schema
    missing = [f.key for f in schema.features if f.key not in record.values]
    if missing:
        return Problem(f"does not have {', '.join(missing)}")
    if problem := _content_problem(record, schema, inspect):
        return problem
    if record.values.keys() >= set(BOX_SIDES) and (wrong := box_problem(record.values)):
        return BadBoxes(wrong)
    label_key = schema.key_of("label")
    if not label_key:
        return None
    labels = record.values[label_key]
    text_key = schema.key_of("synset") or schema.key_of("class_text")
    texts = record.values[text_key] if text_key else []
    if text_key and len(texts) != len(labels):
        return Problem(f"{len(labels)} labels, but {len(texts)} names of classes")
    for at, label in enumerate(labels):
        if not 0 <= label < len(checks.classes):
            return Problem(f"label {label} of {counted(len(checks.classes), 'class')}")
        # With synsets, the class text may be longer than the name.
        if text_key:
            text = texts[at].decode("utf-8", "replace")
            if text != checks.classes[label]:
                name = quoted(checks.classes[label])
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
    if mask_key := schema.key_of("mask"):
        return _mask_problem(record.first(mask_key, b""), info, inspect)
    return None


def _mask_problem(data: bytes, image: validate.ImageInfo, inspect: Inspect) -> Problem | None:
    """Returns what is wrong with the mask of an image, or None."""
    try:
        mask = inspect(data)
    except validate.ImageError as error:
        return Unsuitable(f"its mask does not decode: {error}")
    if (mask.height, mask.width) != (image.height, image.width):
        return Problem(
            f"its mask is {mask.width} x {mask.height} pixels, and its image {image.width} x "
            f"{image.height}"
        )
    return None
