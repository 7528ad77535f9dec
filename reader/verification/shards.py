"""Checks a shard: its size and checksum, its index, and its records, all or some of them."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

from imageshards.reader.dataset import Shard
from imageshards.reader.verification.decoders import Decoders
from imageshards.reader.verification.problems import Missing, Problem
from imageshards.transforms import storage
from imageshards.transforms.elements import counted
from imageshards.transforms.records import example
from imageshards.transforms.records.container import CorruptRecord, parse_index
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.read_back import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_IN_FLIGHT = 32
_SUBMITTED = 1024

Check = Callable[[Record], Problem | None]
"""Returns what is wrong with a record, or None."""


def shard_problems(
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


def sample_problems(
    layout: Layout,
    shard: Shard,
    numbers: Sequence[int],
    check: Check,
    executor: Decoders,
) -> Iterator[Problem | None]:
    """Does the same as `shard_problems`, but reads only `numbers`, which the index locates."""
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
