"""rejects.jsonl: its parts, which the writers of shards write, and their concatenation."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import IO

from imageshards.transforms import storage
from imageshards.transforms.elements import OutputTaken, Reject, RejectReport
from imageshards.transforms.inputs.unpack import is_unpacked
from imageshards.transforms.shards.layout import Layout

_CHUNK_BYTES = 1 << 20
_OPENED_AHEAD = 32


def write_rejects(
    layout: Layout, split: str, part: str, rejects: Iterable[Reject]
) -> RejectReport | None:
    """Writes a part of rejects.jsonl; without rejects, deletes the part of an earlier run."""
    errors: Counter[str] = Counter()
    lines = []
    for reject in rejects:
        errors[reject.problem.error] += 1
        named = {"name": reject.name, "uri": reject.uri, "split": reject.split}
        line = {**named, **asdict(reject.problem)}
        # What a compressed archive was unpacked to is deleted at the end of the build.
        if reject.range and not is_unpacked(reject.range.uri):
            line["range"] = asdict(reject.range)
        lines.append(json.dumps(line) + "\n")
    if not lines:
        storage.delete([layout.rejects_part(part)])
        return None
    layout.write(layout.rejects_part(part), "".join(lines).encode())
    return RejectReport(split, part, dict(sorted(errors.items())))


def concatenate(layout: Layout, parts: Sequence[str], uri: str) -> None:
    """Writes a file that consists of parts of rejects.jsonl, in order.

    Args:
      layout: of the data set.
      parts: names of the parts; 32 of them are opened at a time, because each takes a request.
      uri: the file.

    Raises:
      OutputTaken: a part has disappeared.
    """
    with storage.open_sink(uri, layout.state) as sink:
        for data in _contents([layout.rejects_part(part) for part in parts]):
            sink.write([data])


def _contents(uris: Sequence[str]) -> Iterator[bytes]:
    """Yields the contents of files, in order and in pieces."""
    ahead = 1 if all(map(storage.is_local, uris)) else _OPENED_AHEAD
    with ThreadPoolExecutor(min(ahead, max(len(uris), 1)), "imageshards-rejects") as threads:
        opened: deque[Future[tuple[IO[bytes], bytes]]] = deque()
        for uri in uris:
            opened.append(threads.submit(_open, uri))
            if len(opened) >= ahead:
                yield from _rest(opened.popleft())
        while opened:
            yield from _rest(opened.popleft())


def _open(uri: str) -> tuple[IO[bytes], bytes]:
    try:
        file = storage.open_read(uri)
        return file, file.read(_CHUNK_BYTES)
    except FileNotFoundError as error:
        raise OutputTaken.deleted(uri) from error


def _rest(opened: Future[tuple[IO[bytes], bytes]]) -> Iterator[bytes]:
    file, data = opened.result()
    with file:
        while data:
            yield data
            data = file.read(_CHUNK_BYTES)
