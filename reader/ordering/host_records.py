"""Reads the records of one host, in the order of the global batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np

from imageshards.reader.files import RecordFile, read_indexes
from imageshards.reader.ordering.global_order import NO_RECORD, Order, host_slots
from imageshards.reader.ordering.permutation import Numbers
from imageshards.reader.splits import Span
from imageshards.transforms import storage
from imageshards.transforms.records.container import CorruptRecord

_RANGE_BYTES = 8 << 20
_SAMPLES_PER_CHUNK = 1024
_CHUNKS_HELD = 3
_SEE_VERIFY = "(to check the whole data set, run imageshards verify)"

_Place = tuple[int, int]


@dataclass(frozen=True)
class _Chunk:
    """The records of some steps that follow each other in an epoch.

    Attributes:
      first_step: the number of steps before it, since the start of the first epoch.
      places: for each step and slot, (index of the file, number of the record in the file), or
        None where there is no record.
      read: the data of records that are read ahead: their place -> (range, number in the range).
    """

    first_step: int
    places: list[list[_Place | None]]
    read: dict[_Place, tuple[Future[list[bytes]], int]]


class HostRecords:
    """The records that a host delivers at each step. Several threads can read them at a time.

    Records of local files are read when they are needed. Of other files, those of the next runs
    are read ahead, in ranges of consecutive records and several at a time. A compressed file is
    decompressed as a whole.
    """

    def __init__(
        self,
        files: Sequence[RecordFile],
        spans: Sequence[Span],
        order: Order,
        host: int,
        hosts: int,
        requests: int = 16,
        repeat: bool = True,
    ) -> None:
        """Reads nothing yet.

        Args:
          files: the files to which the spans refer.
          spans: the records of the order, one span after the other.
          order: the order of the records of all hosts.
          host: the index of this host.
          hosts: the number of hosts.
          requests: the number of ranges that are read at the same time.
          repeat: whether another epoch follows, whose records are then read ahead.
        """
        self._files = files
        self._spans = spans
        self._span_files = np.array([span.file for span in spans])
        self._span_ends = np.cumsum([span.records for span in spans])
        self._row_ends = np.array([span.end for span in spans])
        self._order = order
        self._first_slot, self._slots = host_slots(order.global_batch, host, hosts)
        self._ahead = not all(
            storage.is_local(files[span.file].uri) and files[span.file].container.random_access
            for span in spans
        )
        run = order.steps_together
        turns = 1 if self._ahead else -(-_SAMPLES_PER_CHUNK // (run * self._slots))
        self._steps_per_chunk = run * turns
        self._requests = requests
        self._repeat = repeat
        self._executor: ThreadPoolExecutor | None = None
        self._chunks: OrderedDict[tuple[int, int], _Chunk] = OrderedDict()
        self._lock = Lock()

    @property
    def steps(self) -> int:
        """The number of steps of an epoch at which this host has a record."""
        steps = self._order.steps
        sample = (steps - 1) * self._order.global_batch + self._first_slot
        return steps - int(self._order.samples([sample])[0] == NO_RECORD)

    def read(self, first: int, last: int) -> tuple[Numbers, list[bytes]]:
        """Returns the samples of steps [first, last) and the data of their records.

        Returns:
          int64 [records], the numbers of the samples; and the serialized records.

        Raises:
          CorruptRecord: a record is damaged.
          BuildError: a file is missing or truncated.
        """
        return self.part(first * self._slots, last * self._slots)

    def part(self, begin: int, end: int) -> tuple[Numbers, list[bytes]]:
        """Returns the samples of places [begin, end) and the data of their records; see `read`.

        Args:
          begin: the number of slots of this host before them, since the start of the first epoch.
          end: the same of the slot after the last.
        """
        samples: list[int] = []
        found: list[bytes] = []
        while begin < end:
            step, slot = divmod(begin, self._slots)
            last = min(slot + end - begin, self._slots)
            chunk = self._chunk(step)
            sample = step * self._order.global_batch + self._first_slot + slot
            places = chunk.places[step - chunk.first_step][slot:last]
            samples += (number for number, place in enumerate(places, sample) if place)
            try:
                found += [self._data(chunk, place) for place in places if place]
            except Exception as error:
                self._forget(chunk)
                if isinstance(error, CorruptRecord):
                    raise CorruptRecord(f"{error} {_SEE_VERIFY}") from error
                raise
            begin += last - slot
        return np.array(samples, np.int64), found

    def _data(self, chunk: _Chunk, place: _Place) -> bytes:
        if place in chunk.read:
            future, number = chunk.read[place]
            return future.result()[number]
        file, row = place
        return self._files[file].record(row)

    def _forget(self, chunk: _Chunk) -> None:
        """Lets another call read a chunk again: an error may be one of the network."""
        with self._lock:
            for key in [key for key, held in self._chunks.items() if held is chunk]:
                del self._chunks[key]

    def _read_rows(self, file: int, rows: Sequence[int]) -> list[bytes]:
        """Reads ascending records of a file at once, with those between them, which it drops."""
        begin, end = rows[0], rows[-1] + 1
        wanted = set(rows)
        data = self._files[file].data(begin, end)
        return [record for row, record in enumerate(data, begin) if row in wanted]

    def _chunk(self, step: int) -> _Chunk:
        """Returns the chunk of a step; if it is read ahead, starts to read it and the next one."""
        epoch, step = divmod(step, self._order.steps)
        key = (epoch, step // self._steps_per_chunk)
        with self._lock:
            chunk = self._planned(key)
            if self._ahead:
                following = (epoch, key[1] + 1)
                if following[1] * self._steps_per_chunk >= self._order.steps:
                    following = (epoch + 1, 0)
                if self._repeat or following[0] == epoch:
                    self._planned(following)
        return chunk

    def _planned(self, key: tuple[int, int]) -> _Chunk:
        if key in self._chunks:
            self._chunks.move_to_end(key)
            return self._chunks[key]
        epoch, number = key
        begin = number * self._steps_per_chunk
        end = min(begin + self._steps_per_chunk, self._order.steps)
        first = epoch * self._order.steps + begin
        steps = first + np.arange(end - begin)[:, None]
        slots = self._first_slot + np.arange(self._slots)
        records = self._order.samples(steps * self._order.global_batch + slots)
        places = [
            [place if record != NO_RECORD else None for record, place in zip(*row, strict=True)]
            for row in zip(records.tolist(), self._places(records), strict=True)
        ]
        chunk = _Chunk(first, places, self._reading(places) if self._ahead else {})
        self._chunks[key] = chunk
        while len(self._chunks) > _CHUNKS_HELD:
            self._chunks.popitem(last=False)
        return chunk

    def _places(self, records: Numbers) -> list[list[_Place]]:
        span = np.searchsorted(self._span_ends, records, side="right")
        span = np.minimum(span, len(self._spans) - 1)
        rows = self._row_ends[span] - self._span_ends[span] + records
        return [
            list(zip(*row, strict=True))
            for row in zip(self._span_files[span].tolist(), rows.tolist(), strict=True)
        ]

    def _reading(
        self, places: list[list[_Place | None]]
    ) -> dict[_Place, tuple[Future[list[bytes]], int]]:
        """Starts to read records; see `_Chunk`."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._requests, "imageshards-read")
        read: dict[_Place, tuple[Future[list[bytes]], int]] = {}
        wanted = sorted({place for row in places for place in row if place})
        # One by one, the indexes of many remote files take longer than the records.
        read_indexes(self._files[file] for file in sorted({file for file, _ in wanted}))
        for file, rows in self._pieces(wanted):
            future = self._executor.submit(self._read_rows, file, rows)
            read |= {(file, row): (future, number) for number, row in enumerate(rows)}
        return read

    def _pieces(self, places: list[_Place]) -> Iterator[tuple[int, list[int]]]:
        """Yields (file, rows) of sorted places that are read at once.

        These are consecutive records; of a compressed file all, to decompress it once.
        """
        file, size = -1, 0
        rows: list[int] = []
        for its_file, row in places:
            stored = int(self._files[its_file].index.sizes[row])
            if its_file != file:
                together = False
            elif self._files[file].container.random_access:
                together = row == rows[-1] + 1 and size + stored <= _RANGE_BYTES
            else:
                together = True
            if not together:
                if rows:
                    yield file, rows
                file, rows, size = its_file, [], 0
            rows.append(row)
            size += stored
        if rows:
            yield file, rows
