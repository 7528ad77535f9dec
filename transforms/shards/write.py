"""Writes one shard: encodes its images in order and streams the records to its file.

No image is sent to another worker, and only the images in flight are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from imageshards.transforms import storage
from imageshards.transforms.elements import Reject, ShardId
from imageshards.transforms.images.digests import image_digest
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.references.stored import Piece, loaded
from imageshards.transforms.shards.encoder import ImageEncoder, Rejected
from imageshards.transforms.shards.layout import Layout, rejects_part_of
from imageshards.transforms.shards.profile import Profiler
from imageshards.transforms.shards.read_ahead import ReadAhead, encode_all
from imageshards.transforms.shards.rejects import write_rejects
from imageshards.transforms.shards.state import (
    ShardResult,
    StampsDigest,
    finished_shard,
    has_no_stamp,
    shard_fingerprint,
    write_state,
)
from imageshards.transforms.shards.stats import ShardStats

Result = TypeVar("Result")

_LOST_UPLOADS = 2
"""How often a shard is written again because the service lost its upload, which is rare."""


@dataclass(frozen=True)
class ShardJob:
    """Everything that a worker needs to write one shard; a few bytes per image.

    Attributes:
      shard: the shard.
      pieces: its references, in order.
      classes: label of a reference -> (number, name) of its class.
      layout: paths of the data set.
      encoder: encodes a reference as a record.
      settings: digest of the options that affect the shards' bytes.
      digests: whether to write the digests of the images, to find leaks between splits.
      sha256: whether to compute the SHA-256 of the file.
      object_numbers: name of a class of annotated objects -> its number.
      retries_rejects: whether a finished shard is written again if images of it were rejected.
    """

    shard: ShardId
    pieces: Sequence[Piece]
    classes: Mapping[str, tuple[int, bytes]]
    layout: Layout
    encoder: ImageEncoder
    settings: str
    digests: bool = False
    sha256: bool = False
    object_numbers: Mapping[bytes, int] = field(default_factory=dict)
    retries_rejects: bool = False


def write_shard(job: ShardJob, ahead: ReadAhead | None) -> ShardResult:
    """Writes a shard, unless an earlier run has written the same bytes.

    Args:
      job: the shard.
      ahead: reads and encodes in threads. None does it in this thread, which is faster for local
        images that are not decoded: reading them holds the interpreter's lock most of the time.

    Returns:
      Its result. A shard whose images are all rejected has no file; its report has 0 records.
    """
    shard, layout = job.shard, job.layout
    fingerprint = shard_fingerprint(shard, loaded(job.pieces), job.settings)
    side = job.encoder.side
    done = finished_shard(shard, layout, fingerprint, job.pieces, job.digests, job.sha256, side)
    if done and not (done.rejects and job.retries_rejects):
        return done
    layout.begin_rewrite(shard)
    return repeated_if_lost(lambda: _write(job, ahead, fingerprint))


def repeated_if_lost(write: Callable[[], Result]) -> Result:
    """Calls a function that writes a shard, and again if the service loses its upload."""
    for _ in range(_LOST_UPLOADS):
        with suppress(storage.LostUpload):
            return write()
    return write()


def _write(job: ShardJob, ahead: ReadAhead | None, fingerprint: str) -> ShardResult:
    shard, layout = job.shard, job.layout
    encode = partial(job.encoder.encode, classes=job.classes, object_numbers=job.object_numbers)
    holds_files = job.encoder.schema.holds == "encoded"
    stats = ShardStats()
    profiler = Profiler(stats.profile, shard, job.encoder.schema, job.encoder.check == "full")
    rejects: list[Reject] = []
    digests = bytearray()
    stamps = StampsDigest()
    side = job.encoder.side
    refs = (ref for batch in loaded(job.pieces) for ref in batch.refs())
    with storage.open_sink(layout.shard(shard), layout.state) as sink:
        if job.sha256:
            sink.compute_sha256()
        writer = container_of(shard).writer(sink)
        for position, (ref, encoded) in enumerate(encode_all(refs, encode, ahead)):
            if has_no_stamp(ref):
                stamps.add([encoded.stamp])
            if side and side.stamped_uri(ref):
                stamps.add([encoded.side_stamp])
            if encoded.annotations:
                stats.add_annotations(encoded.annotations)
            if isinstance(encoded, Rejected):
                rejects.append(Reject(ref.name, ref.uri, shard.split, encoded.problem, ref.range))
                continue
            writer.write(encoded.parts)
            profiler.add(encoded.content, encoded.info, position, row=stats.records)
            stats.add(encoded.info, encoded.labels, encoded.conversions)
            if job.digests:
                digests += image_digest(encoded.content, holds_files)
        index = writer.close()
        sink.keep = stats.records > 0
    report = stats.report(shard, sink.size, sink.crc32c, sink.sha256)
    part = write_rejects(layout, shard.split, rejects_part_of(shard), rejects)
    if index is not None:
        layout.write(layout.index(shard), index)
    if job.digests:
        layout.write(layout.digests(shard), bytes(digests))
    result = ShardResult(report, part, digests=bytes(digests))
    write_state(layout, result, fingerprint, stamps)
    return result
