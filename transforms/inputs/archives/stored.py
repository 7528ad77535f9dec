"""The members of a large tar, stored by the first listing for those of a resumed build.

The headers of a tar are found one after the other: a tar of a terabyte on an object store takes
hours. The file with its members takes seconds to read. The build deletes it at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from imageshards.transforms import storage
from imageshards.transforms.elements import Problem, to_bytes, to_text
from imageshards.transforms.inputs import unpack
from imageshards.transforms.inputs.archives.members import Member

LARGE_BYTES = 1 << 30
"""Bytes of a tar whose members are stored, and that is divided."""
_ROWS = 1 << 14
_SUFFIX = ".members"
_SCHEMA = pa.schema(
    [
        ("path", pa.binary()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("size", pa.int64()),
        ("problem", pa.list_(pa.binary())),  # its three texts; empty: none
        ("is_rest", pa.bool_()),
        ("is_tar", pa.bool_()),
    ]
)


def members_file(source: tuple[object, ...], folder: str) -> str:
    """Returns the URI of the file with the members of a tar.

    Args:
      source: what identifies the tar and how it is listed: a URI, what changes with its content.
      folder: the folder of the file.
    """
    return unpack.target_of(source, folder, _SUFFIX)


def stored(members: Iterable[Member], uri: str, folder: str) -> Iterator[Member]:
    """Yields the members that an earlier run has stored, or stores them.

    Args:
      members: the members; they are found while they are taken.
      uri: URI of the file with stored members. It appears if all members are taken.
      folder: its folder.
    """
    return _read(uri) if storage.exists(uri) else _store(members, uri, folder)


def _read(uri: str) -> Iterator[Member]:
    with storage.open_read(uri) as file, pa.ipc.open_stream(file) as batches:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in _SCHEMA.names]
            for path, offset, length, size, problem, *flags in zip(*columns, strict=True):
                found = Problem(*map(to_text, problem)) if problem else None
                yield Member(to_text(path), offset, length, size, found, *flags)


def _store(members: Iterable[Member], uri: str, folder: str) -> Iterator[Member]:
    storage.make_folder(folder)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    rest = iter(members)
    with (
        storage.open_sink(uri, folder) as sink,
        pa.PythonFile(_Writable(sink), "w") as file,
        pa.ipc.new_stream(file, _SCHEMA, options=options) as writer,
    ):
        while some := list(islice(rest, _ROWS)):
            yield from some
            writer.write_batch(_batch(some))


class _Writable:
    """A sink as a file."""

    closed = False

    def __init__(self, sink: storage.Sink) -> None:
        self._sink = sink

    def write(self, data: pa.Buffer) -> int:
        self._sink.write([bytes(data)])
        return len(data)

    def flush(self) -> None:
        """Does nothing: the sink writes when it is closed."""

    def close(self) -> None:
        """Does nothing: whoever opened the sink closes it."""


def _batch(members: list[Member]) -> pa.RecordBatch:
    rows = [
        (
            to_bytes(found.path), found.offset, found.length, found.size,
            [to_bytes(text) for text in _texts(found.problem)], found.is_rest, found.is_tar,
        )
        for found in members
    ]  # fmt: skip
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


def _texts(problem: Problem | None) -> tuple[str, ...]:
    return (problem.stage, problem.error, problem.reason) if problem else ()
