"""The chunks of Riegeli files, of which ArrayRecord files consist. Pure.

Format: github.com/google/riegeli, doc/riegeli_records_file_format.md. A file is a sequence of
chunks, interrupted by a block header of 24 bytes at every multiple of 64 KiB. A chunk has a header
of 40 bytes, all little-endian:

    uint64 header_hash, uint64 data_size, uint64 data_hash,
    uint8 kind, uint56 records, uint64 decoded_size

The hashes are HighwayHash, which Python would take 40 ms for an image to compute: they are not
compared here. The reader of the array_record package compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from imageshards.transforms.records.container import CorruptRecord

_BLOCK = 1 << 16
_BLOCK_HEADER = 24
_USABLE = _BLOCK - _BLOCK_HEADER
_HEADER = struct.Struct("<8xQ8xQQ")
_MOST_HEADER = _HEADER.size + _BLOCK_HEADER
_PIECE_BYTES = 64 << 20

SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c3727300000000000000" + 16 * "0"
)
"""The first 64 bytes of every file."""

RECORDS, TRANSPOSED, PADDING = b"rtp"
_CODECS = {ord("b"): "brotli", ord("s"): "snappy", ord("z"): "zstd"}


class Chunk(NamedTuple):
    """The position and the header of a chunk.

    Attributes:
      begin: offset of its first byte in the file.
      end: offset of the first byte after it.
      kind: `RECORDS`, `TRANSPOSED`, `PADDING` or another code.
      records: number of records.
      data_size: bytes of its data.
      decoded_size: sum of the sizes of its records, in bytes.
    """

    begin: int
    end: int
    kind: int
    records: int
    data_size: int
    decoded_size: int


def _end(begin: int, size: int, records: int) -> int:
    """Returns where a chunk ends that begins at `begin` and has `size` bytes with its header."""
    last = begin + records
    before_next_block = _BLOCK - 1 - (last + _BLOCK - 1) % _BLOCK
    possible = last + max(before_next_block - (_USABLE - 1), 0)
    return max(begin + _stored_size(begin, size), possible)


def _stored_size(begin: int, size: int) -> int:
    """Returns the bytes that `size` bytes occupy from `begin` on, with block headers."""
    return size + (size + (begin + _USABLE - 1) % _BLOCK) // _USABLE * _BLOCK_HEADER


def _without_block_headers(stored: memoryview, begin: int) -> bytes:
    first = -begin % _BLOCK
    blocks = range(first, len(stored), _BLOCK)
    parts = (stored[at + _BLOCK_HEADER : at + _BLOCK] for at in blocks)
    return b"".join([stored[:first], *parts])


def parse(stored: memoryview, begin: int) -> Chunk:
    """Returns the chunk that begins at an offset of a file.

    Args:
      stored: bytes of the file from `begin` on, at least 64 or all of the chunk.
      begin: the offset.

    Raises:
      CorruptRecord: there is no chunk.
    """
    head = _without_block_headers(stored[:_MOST_HEADER], begin)
    if len(head) < _HEADER.size:
        raise CorruptRecord(f"breaks off in the chunk at byte {begin:,}")
    data_size, kind_and_records, decoded_size = _HEADER.unpack_from(head)
    kind, records = kind_and_records & 0xFF, kind_and_records >> 8
    end = _end(begin, _HEADER.size + data_size, records)
    return Chunk(begin, end, kind, records, data_size, decoded_size)


def records_of(chunk: Chunk, stored: memoryview) -> list[bytes]:
    """Returns the records of a chunk.

    Args:
      chunk: its header.
      stored: all its bytes.

    Raises:
      CorruptRecord: it is truncated, damaged or transposed.
    """
    if chunk.kind == TRANSPOSED:
        raise CorruptRecord(
            "its chunks are transposed; write it again without the option transpose"
        )
    if chunk.kind != RECORDS or chunk.end - chunk.begin != len(stored):
        raise CorruptRecord(f"no records at byte {chunk.begin:,}")
    content = memoryview(_without_block_headers(stored, chunk.begin))
    data = content[_HEADER.size : _HEADER.size + chunk.data_size]
    try:
        codec = data[0]
        size, at = varint(data, 1)
        sizes = _decompressed(data[at : at + size], codec)
        values = _decompressed(data[at + size :], codec)
        records, position, at = [], 0, 0
        for _ in range(chunk.records):
            size, position = varint(sizes, position)
            records.append(bytes(values[at : at + size]))
            at += size
    except (IndexError, KeyError, OSError, ValueError) as error:
        raise CorruptRecord(f"damaged chunk at byte {chunk.begin:,}") from error
    if not at == len(values) == chunk.decoded_size or position != len(sizes):
        raise CorruptRecord(f"the sizes of the chunk at byte {chunk.begin:,} are wrong")
    return records


def _decompressed(data: memoryview, codec: int) -> memoryview:
    if not codec:
        return data
    size, at = varint(data, 0)
    import pyarrow as pa

    if size > 1 << 32:
        raise ValueError(f"{size:,} bytes")
    return memoryview(pa.Codec(_CODECS[codec]).decompress(data[at:], size, asbytes=True))


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read_chunks(file: BinaryIO) -> Iterator[tuple[Chunk, memoryview]]:
    """Yields every chunk of a file after its signature, and the chunk's bytes.

    Args:
      file: opened for reading, at its beginning. It is read in order, without seeking.

    Raises:
      CorruptRecord: the file is of another format, or breaks off in a chunk.
    """
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise CorruptRecord("not an ArrayRecord file")
    begin = len(SIGNATURE)
    while head := file.read(_stored_size(begin, _HEADER.size)):
        chunk = parse(memoryview(head), begin)
        stored = head + _read_all(file, chunk.end - begin - len(head))
        if len(stored) < chunk.end - begin:
            raise CorruptRecord(f"breaks off in the chunk at byte {begin:,}")
        yield chunk, memoryview(stored)
        begin = chunk.end


def _read_all(file: BinaryIO, size: int) -> bytes:
    """Reads so many bytes, or to the end; a wrong size does not allocate what it requires."""
    if size <= _PIECE_BYTES:
        return file.read(size)
    parts = []
    while size > 0 and (part := file.read(min(size, _PIECE_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class ChunkFinder:
    """Finds the chunks of a file whose bytes arrive in order, in pieces of any size."""

    def __init__(self) -> None:
        self._begin = len(SIGNATURE)
        self._seen = 0
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Yields the chunks whose headers are complete with the next bytes of the file."""
        start = self._seen - len(self._rest)
        self._seen += len(data)
        view = memoryview(self._rest + data if self._rest else data)
        while self._begin + _MOST_HEADER <= self._seen:
            chunk = parse(view[self._begin - start :], self._begin)
            yield chunk
            self._begin = chunk.end
        self._rest = bytes(view[self._begin - start :]) if self._begin < self._seen else b""
