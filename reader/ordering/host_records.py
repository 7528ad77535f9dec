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
from imageshards.transforms.records.container import CorruptRecord

_RANGE_BYTES = 8 << 20
_LARGE_BYTES = 32 << 10
"""To copy a record of this size out of a range takes as long as to read it by itself."""
_SAMPLES_PER_CHUNK = 1024
_CHUNKS_HELD = 3
_SEE_VERIFY = "(to check the whole data set, run imageshards verify)"


@dataclass(frozen=True)
class _Chunk:
    """The records of some steps that follow each other in an epoch.

    The arrays have an element for each step and slot, one step after the other.

    Attributes:
      first: the number of slots of this host before it, since the start of the first epoch.
      files: int64, the index of the file; -1 where there is no record.
      rows: int64, the number of the record in the file.
      ranges: the ranges that are read ahead, as the data of each of their records.
      of_range: int64, the index of the range that has the record.
      in_range: int64, the number of the record in the range.
    """

    first: int
    files: Numbers
    rows: Numbers
    ranges: Sequence[Future[list[bytes]]]
    of_range: Numbers
    in_range: Numbers


class HostRecords:
    """The records that a host delivers at each step. Several threads can read them at a time.

    The records of the next runs are read ahead, in ranges of consecutive records and several at a
    time. A compressed file is decompressed as a whole. Records of local files that are large, or
    not next to each other, are read when they are needed.
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
        self._ahead = not self._are_quick()
        run = order.steps_together
        turns = 1 if self._ahead else -(-_SAMPLES_PER_CHUNK // (run * self._slots))
        self._steps_per_chunk = run * turns
        self._requests = requests
        self._repeat = repeat
        self._executor: ThreadPoolExecutor | None = None
        self._chunks: OrderedDict[tuple[int, int], _Chunk] = OrderedDict()
        self._lock = Lock()

    def _are_quick(self) -> bool:
        """Whether single records are read as fast as ranges of them."""
        used = [self._files[span.file] for span in self._spans]
        if not all(file.is_local and file.container.random_access for file in used):
            return False
        span = self._spans[0]
        mean = float(used[0].index.sizes[span.begin : span.end].mean())
        return mean >= _LARGE_BYTES or not self._order.is_sequential

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
        samples: list[Numbers] = []
        found: list[bytes] = []
        while begin < end:
            chunk = self._chunk(begin // self._slots)
            part = slice(begin - chunk.first, min(end - chunk.first, len(chunk.files)))
            kept = np.flatnonzero(chunk.files[part] >= 0)
            step, slot = np.divmod(begin + kept, self._slots)
            samples.append(step * self._order.global_batch + self._first_slot + slot)
            try:
                found += self._data(chunk, part.start + kept)
            except Exception as error:
                self._forget(chunk)
                if isinstance(error, CorruptRecord):
                    raise CorruptRecord(f"{error} {_SEE_VERIFY}") from error
                raise
            begin = chunk.first + part.stop
        return np.concatenate(samples) if samples else np.zeros(0, np.int64), found

    def _data(self, chunk: _Chunk, numbers: Numbers) -> list[bytes]:
        if chunk.ranges:
            places = zip(
                chunk.of_range[numbers].tolist(), chunk.in_range[numbers].tolist(), strict=True
            )
            return [chunk.ranges[of].result()[number] for of, number in places]
        places = zip(chunk.files[numbers].tolist(), chunk.rows[numbers].tolist(), strict=True)
        return [self._files[file].record(row) for file, row in places]

    def _forget(self, chunk: _Chunk) -> None:
        """Lets another call read a chunk again: an error may be one of the network."""
        with self._lock:
            for key in [key for key, held in self._chunks.items() if held is chunk]:
                del self._chunks[key]

    def _read_rows(self, file: int, rows: Sequence[int]) -> list[bytes]:
        """Reads ascending records of a file at once, with those between them, which it drops."""
        begin, end = rows[0], rows[-1] + 1
        data = list(self._files[file].data(begin, end))
        return data if len(data) == len(rows) else [data[row - begin] for row in rows]

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
        records = self._order.samples(steps * self._order.global_batch + slots).reshape(-1)
        files, rows = self._places(records)
        chunk = _Chunk(first * self._slots, files, rows, *self._reading(files, rows))
        self._chunks[key] = chunk
        while len(self._chunks) > _CHUNKS_HELD:
            self._chunks.popitem(last=False)
        return chunk

    def _places(self, records: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the file and the row of each record; see `_Chunk`."""
        span = np.searchsorted(self._span_ends, records, side="right")
        rows = self._row_ends[span] - self._span_ends[span] + records
        return np.where(records == NO_RECORD, -1, self._span_files[span]), rows

    def _reading(
        self, files: Numbers, rows: Numbers
    ) -> tuple[list[Future[list[bytes]]], Numbers, Numbers]:
        """Starts to read records that are read ahead; returns the last attributes of `_Chunk`."""
        of_range, in_range = np.zeros_like(files), np.zeros_like(files)
        ranges: list[Future[list[bytes]]] = []
        if not self._ahead:
            return ranges, of_range, in_range
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._requests, "imageshards-read")
        ascending = np.lexsort((rows, files))
        ascending = ascending[np.searchsorted(files[ascending], 0) :]
        # One by one, the indexes of many remote files take longer than the records.
        read_indexes(self._files[file] for file in np.unique(files[ascending]).tolist())
        for numbers in self._pieces(ascending, files, rows):
            file, its_rows = int(files[numbers[0]]), rows[numbers]
            of_range[numbers] = len(ranges)
            # An epoch that is padded has records twice.
            wanted, in_range[numbers] = np.unique(its_rows, return_inverse=True)
            ranges.append(self._executor.submit(self._read_rows, file, wanted.tolist()))
        return ranges, of_range, in_range

    def _pieces(self, ascending: Numbers, files: Numbers, rows: Numbers) -> Iterator[Numbers]:
        """Divides the numbers of places into those that are read at once.

        These are consecutive records; of a compressed file all, to decompress it once.

        Args:
          ascending: the numbers of places, in the order of their files and rows.
          files: see `_Chunk`.
          rows: see `_Chunk`.
        """
        if not len(ascending):
            return
        gaps = np.diff(files[ascending]) != 0
        compressed = np.array([not file.container.random_access for file in self._files])
        gaps |= (np.diff(rows[ascending]) > 1) & ~compressed[files[ascending[1:]]]
        for piece in np.split(ascending, np.flatnonzero(gaps) + 1):
            index = self._files[int(files[piece[0]])].index
            first, last = rows[piece[[0, -1]]].tolist()
            cuts = np.zeros(0, np.int64)
            if not compressed[files[piece[0]]] and (
                index.end(last) - index.offset(first) > _RANGE_BYTES
            ):
                stored = np.cumsum(index.sizes[rows[piece]])
                cuts = np.flatnonzero(np.diff(stored // _RANGE_BYTES)) + 1
            yield from np.split(piece, cuts)
