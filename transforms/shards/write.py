"""The owner of a shard: reads ahead, encodes, and streams records to the file in order.

No image crosses a worker boundary, and memory is that of the reads in flight.
"""

from __future__ import annotations

import itertools
import json
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata
from typing import Any

from imageshards.transforms import storage
from imageshards.transforms.elements import (
    ImageRef,
    Reject,
    RejectReport,
    ShardId,
    ShardReport,
)
from imageshards.transforms.images.digests import image_digest
from imageshards.transforms.records.tfrecord import Gzip, frame, index_line
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import digest_of, problems_text
from imageshards.transforms.shards.encoder import Encoded, Rejected
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.shards.stats import ShardStats

Encode = Callable[[ImageRef], Encoded]

IN_FLIGHT_BYTES = 64 << 20
"""No further read is begun while more bytes than this are waiting to be written."""
_TASK_BYTES = IN_FLIGHT_BYTES // 8
_FIRST_GUESS_BYTES = 4 << 20
"""Of an image whose size the listing does not say, until some have been read."""


@dataclass(frozen=True)
class ReadAhead:
    """How images are read and encoded beside the writing.

    Attributes:
      executor: its threads do it.
      tasks: how many tasks may be begun before the first is written.
      images: in a task. Handing each image to a thread on its own costs 80 us where eight at a
        time cost 10 (a checking decode on two cores: 746 and 665 us an image).
    """

    executor: Executor
    tasks: int
    images: int


@dataclass(frozen=True)
class ShardResult:
    """A finished shard; `resumed` if an earlier run had finished it."""

    report: ShardReport
    rejects: RejectReport | None
    resumed: bool = False


def write_shard(
    shard: ShardId,
    refs: RefBatch,
    encode: Encode,
    layout: Layout,
    ahead: ReadAhead | None,
    settings: str,
    *,
    digests: bool = False,
    coded: bool = True,
) -> ShardResult:
    """Writes a shard, or finds that an earlier run has.

    Args:
      shard: which.
      refs: its references, in order.
      encode: reference -> record; raises `Rejected`.
      layout: where.
      ahead: runs `encode` in threads; None runs it here, which is best for local reads that are
        not decoded: they hold the interpreter's lock most of the time.
      settings: digest of all options that decide bytes.
      digests: note those of the images, since there are splits to compare.
      coded: whether records hold image files.

    Returns:
      The report. A shard of which no image is left is not written: its report has 0 records.
    """
    fingerprint = _fingerprint(refs, settings + (_ZLIB if shard.compression else ""))
    unlisted = _unlisted(refs)
    if done := _finished(shard, layout, fingerprint, unlisted, digests):
        return done
    # From here on the data set is not complete, whatever it was before, nor is the shard.
    storage.delete([layout.dataset_info, layout.shard_state(shard)])
    stats = ShardStats()
    rejects: list[Reject] = []
    index: list[str] = []
    noted: list[bytes] = []
    gzip = Gzip() if shard.compression else None
    stamps: dict[str, int] = dict.fromkeys(unlisted, 0)
    with storage.open_sink(layout.shard(shard), layout.state) as sink:
        for ref, encoded in _encode_all(refs, encode, ahead):
            if ref.uri in stamps:
                stamps[ref.uri] = encoded.stamp
            if isinstance(encoded, Rejected):
                rejects.append(Reject(ref.uri, shard.split, encoded.problem))
                continue
            head, tail = frame(encoded.parts)
            record = [head, *encoded.parts, tail]
            if gzip:
                sink.write(gzip.add(record))
            else:
                start = sink.size
                sink.write(record)
                index.append(index_line(start, sink.size - start))
            stats.add(encoded.info, encoded.label, encoded.conversions)
            if digests:
                noted.append(image_digest(encoded.content, coded))
        if gzip:
            sink.write(gzip.end())
        sink.keep = stats.records > 0
    report = stats.report(shard, sink.size, sink.crc32c)
    part = write_rejects(layout, shard.split, f"{shard.split}-{shard.index:05d}", rejects)
    if not gzip:
        layout.write(layout.index(shard), "".join(index).encode())
    if digests:
        layout.write(layout.digests(shard), b"".join(noted))
    result = ShardResult(report, part)
    state = _state_text(result, fingerprint, _digest(stamps.values()))
    layout.write(layout.shard_state(shard), state.encode())
    return result


# What a place that is not local may say today and not tomorrow. Of local files the stamps tell.
_MAY_PASS = frozenset(
    {"HttpError", "Timeout", "Forbidden", "TooManyRedirects", "Missing", "Unreadable", "Changed"}
)

_Outcome = tuple[ImageRef, Encoded | Rejected]


def _encode_all(refs: RefBatch, encode: Encode, ahead: ReadAhead | None) -> Iterator[_Outcome]:
    """Encodes references, ahead of the caller; yields in order."""

    def attempt(ref: ImageRef) -> _Outcome:
        try:
            return ref, encode(ref)
        except Rejected as rejected:
            return ref, rejected

    if ahead is None:
        yield from map(attempt, refs.refs())
        return

    def work(task: list[ImageRef]) -> list[_Outcome]:
        return [attempt(ref) for ref in task]

    waiting: deque[tuple[int, Future[list[_Outcome]]]] = deque()
    waiting_bytes = 0
    guess = _FIRST_GUESS_BYTES

    def settle() -> list[_Outcome]:
        nonlocal waiting_bytes, guess
        size, future = waiting.popleft()
        waiting_bytes -= size
        outcomes = future.result()
        for _, encoded in outcomes:
            if isinstance(encoded, Encoded):
                guess = (7 * guess + sum(map(len, encoded.parts))) // 8
        return outcomes

    queue = refs.refs()
    while task := list(itertools.islice(queue, ahead.images)):
        while task:
            size = 0
            for count, ref in enumerate(task, 1):  # noqa: B007 - used below
                size += ref.size if ref.size >= 0 else guess
                if size >= _TASK_BYTES:
                    break
            waiting.append((size, ahead.executor.submit(work, task[:count])))
            waiting_bytes += size
            task = task[count:]
            while waiting and (len(waiting) >= ahead.tasks or waiting_bytes > IN_FLIGHT_BYTES):
                yield from settle()
    while waiting:
        yield from settle()


def write_rejects(
    layout: Layout, split: str, part: str, rejects: Iterable[Reject]
) -> RejectReport | None:
    """Writes a part of rejects.jsonl, if there is anything to write."""
    errors: Counter[str] = Counter()
    lines = []
    for reject in rejects:
        errors[reject.problem.error] += 1
        line = {"uri": reject.uri, "split": reject.split, **asdict(reject.problem)}
        lines.append(json.dumps(line) + "\n")
    if not lines:
        storage.delete([layout.rejects_part(part)])
        return None
    layout.write(layout.rejects_part(part), "".join(lines).encode())
    return RejectReport(split, part, dict(sorted(errors.items())))


@cache
def decoders() -> str:
    """What is installed here that reads and writes pixels: another version may write others."""
    found = []
    for name in ("pillow", "simplejpeg", "pillow-heif"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name}={metadata.version(name)}")
    return ",".join(found)


_ZLIB = f"zlib={zlib.ZLIB_RUNTIME_VERSION}"
"""Another version of it may compress to other bytes."""


def _fingerprint(refs: RefBatch, settings: str) -> str:
    """Of all that decides the bytes of a shard: options, references, and their stamps."""
    state = blake2b(settings.encode() + digest_of(refs), digest_size=16)
    state.update(refs.sizes.tobytes() + refs.stamps.tobytes() + decoders().encode())
    state.update(problems_text(refs))
    return state.hexdigest()


def _digest(stamps: Iterable[int]) -> str:
    """Of the stamps of files of which the listing had none; empty if there are none.

    A manifest says nothing of the files it names; the files themselves do when they are read.
    """
    found = array("q", stamps).tobytes()
    return blake2b(found, digest_size=16).hexdigest() if found else ""


def _unlisted(refs: RefBatch) -> list[str]:
    """URIs of the files of which the listing has no stamp, though their store may."""
    if refs.stamps.all():
        return []
    return [
        ref.uri
        for ref in refs.refs()
        if not ref.stamp and not ref.range and not ref.problem and storage.can_list(ref.uri)
    ]


def _state_text(result: ShardResult, fingerprint: str, stamps: str) -> str:
    state = {
        "fingerprint": fingerprint,
        "stamps": stamps,
        "report": asdict(result.report),
        "rejects": asdict(result.rejects) if result.rejects else None,
    }
    return json.dumps(state, indent=1) + "\n"


def _finished(
    shard: ShardId, layout: Layout, fingerprint: str, unlisted: list[str], digests: bool
) -> ShardResult | None:
    """The result of an earlier run, if it is of the same bytes and its files are there."""
    try:
        with storage.open_read(layout.shard_state(shard)) as file:
            state = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    if state["fingerprint"] != fingerprint or "stamps" not in state:
        return None
    report = _parse_report(shard, state["report"])
    rejects = RejectReport(**state["rejects"]) if state["rejects"] else None
    there = storage.size(layout.shard(shard))
    if there != (report.bytes if report.records else -1):
        return None
    if not shard.compression and not storage.exists(layout.index(shard)):
        return None
    if digests and not storage.exists(layout.digests(shard)):
        return None
    if rejects and not storage.exists(layout.rejects_part(rejects.part)):
        return None
    if rejects and _MAY_PASS & rejects.errors.keys() and not storage.exists(layout.dataset_info):
        return None  # the build that failed for want of them may find them this time
    if state["stamps"] != _digest(stamp for _, stamp in storage.stats(unlisted)):
        return None
    return ShardResult(report, rejects, resumed=True)


def _parse_report(shard: ShardId, values: dict[str, Any]) -> ShardReport:
    # JSON knows text keys and lists only.
    return ShardReport(
        shard=shard,
        records=values["records"],
        bytes=values["bytes"],
        crc32c=values["crc32c"],
        labels={int(label): count for label, count in values["labels"].items()},
        formats=values["formats"],
        long_sides={int(bound): count for bound, count in values["long_sides"].items()},
        smallest=tuple(values["smallest"]),
        largest=tuple(values["largest"]),
        converted=values["converted"],
        conversions=values["conversions"],
    )
