"""The state file of a finished shard: a resumed build skips shards whose state is unchanged.

The file holds the shard's report, and a fingerprint of everything that affects its bytes.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata

from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef, RejectReport, ShardId, ShardReport
from imageshards.transforms.pairs.side_file import SideFile
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.stored import Piece, loaded
from imageshards.transforms.references.tally import digest_of, problems_text
from imageshards.transforms.shards.layout import Layout, read_json
from imageshards.transforms.storage.usage import Usage

# Errors of remote files that may not occur again. Local files have stamps, which show a change.
_TRANSIENT = frozenset((
    "HttpError", "Timeout", "Forbidden", "PrivateHost", "TooManyRedirects", "Missing", "Unreadable",
    "Changed", "MissingMask", "MissingCaption",
))  # fmt: skip
_DIGEST_BYTES = 8


@dataclass(frozen=True)
class ShardResult:
    """A finished shard.

    Attributes:
      report: its counts and statistics.
      rejects: the part of rejects.jsonl with its rejects; None without rejects.
      resumed: whether an earlier run had written it.
      used: what its reads used, if another process than the runner's has written it.
      digests: eight bytes for each record, if images in several splits are searched for.
    """

    report: ShardReport
    rejects: RejectReport | None
    resumed: bool = False
    used: Usage = Usage()
    digests: bytes = b""


def shard_fingerprint(shard: ShardId, pieces: Iterable[RefBatch], settings: str) -> str:
    """Returns a digest of everything that affects a shard's bytes.

    Args:
      shard: the shard.
      pieces: its references in order, with the sizes and stamps of their files.
      settings: digest of the options that affect the shards' bytes.
    """
    versions = container_of(shard).versions  # another one may write other bytes
    settings += "".join(f"{name}={version}" for name, version in versions.items())
    state = blake2b(settings.encode(), digest_size=16)
    for refs in pieces:
        state.update(digest_of(refs))
        state.update(refs.sizes.tobytes() + refs.stamps.tobytes() + _image_libraries().encode())
        state.update(problems_text(refs))
    return state.hexdigest()


@cache
def _image_libraries() -> str:
    """The versions of the libraries that read and write pixels, which may affect the bytes."""
    found = []
    for name in ("pillow", "simplejpeg", "pillow-heif"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name}={metadata.version(name)}")
    return ",".join(found)


def has_no_stamp(ref: ImageRef) -> bool:
    """Returns whether an image was listed without a stamp, though the store of its file has one.

    A manifest does not contain stamps; the stores report them when the files are read.
    """
    return not ref.stamp and not ref.range and not ref.problem and storage.can_list(ref.uri)


def _files_without_stamp(refs: RefBatch, side: SideFile | None) -> list[str]:
    """Returns the files whose stamps were not listed, in order: images and side files."""
    if refs.stamps.all() and not side:
        return []
    found = []
    for ref in refs.refs():
        if has_no_stamp(ref):
            found.append(ref.uri)
        if side and (uri := side.stamped_uri(ref)):
            found.append(uri)
    return found


class StampsDigest:
    """A digest of the stamps of images that were listed without one, and of side files."""

    def __init__(self) -> None:
        self._state = blake2b(digest_size=16)
        self._is_empty = True

    def add(self, stamps: Iterable[int]) -> None:
        """Adds the stamps of the next images."""
        found = array("q", stamps).tobytes()
        self._state.update(found)
        self._is_empty &= not found

    def hexdigest(self) -> str:
        """Returns the digest; empty if there are no stamps."""
        return "" if self._is_empty else self._state.hexdigest()


def write_state(
    layout: Layout, result: ShardResult, fingerprint: str, stamps: StampsDigest
) -> None:
    """Writes the state file of a shard.

    Args:
      layout: paths of the data set.
      result: the shard.
      fingerprint: see `shard_fingerprint`.
      stamps: stamps when the images were read.
    """
    report = asdict(result.report)
    if result.report.shard.file_format == "tfrecord":
        # Versions up to 0.1.0 had no other format, and their states stay valid.
        del report["shard"]["file_format"]
    state = {
        "fingerprint": fingerprint,
        "stamps": stamps.hexdigest(),
        "report": report,
        "rejects": asdict(result.rejects) if result.rejects else None,
    }
    # Of a million shards: without the spaces of `to_json`.
    content = json.dumps(state, separators=(",", ":")).encode()
    layout.write(layout.shard_state(result.report.shard), content)


def finished_shard(
    shard: ShardId,
    layout: Layout,
    fingerprint: str,
    pieces: Sequence[Piece],
    digests: bool,
    sha256: bool,
    side: SideFile | None = None,
) -> ShardResult | None:
    """Returns the result of an earlier run if it wrote these bytes and its files still exist.

    Args:
      shard: the shard.
      layout: paths of the data set.
      fingerprint: see `shard_fingerprint`.
      pieces: the references of the shard, in order.
      digests: whether the shard must have a file of digests.
      sha256: whether the SHA-256 of its file must be known.
      side: the side files of its images.
    """
    state = read_json(layout.shard_state(shard))
    if not state or state["fingerprint"] != fingerprint or "stamps" not in state:
        return None
    found = state["report"]
    # JSON has only lists, and keys that are texts.
    changed = {name: tuple(found[name]) for name in ("smallest", "largest")} | {
        name: {int(key): count for key, count in found[name].items()}
        for name in ("labels", "long_sides")
    }
    report = ShardReport(**found | changed | {"shard": shard})
    if not report.profile or (sha256 and not report.sha256):
        return None
    rejects = RejectReport(**state["rejects"]) if state["rejects"] else None
    size = storage.size(layout.shard(shard))
    if size != report.bytes and (report.records or size != -1):  # an empty shard may have no file
        return None
    needed = [layout.index(shard)]
    needed += [layout.rejects_part(rejects.part)] if rejects else []
    if not all(storage.exists(uri) for uri in needed if uri):
        return None
    if rejects and _TRANSIENT & rejects.errors.keys() and not storage.exists(layout.dataset_info):
        return None  # the build failed for these rejects, and may succeed this time
    stamps = StampsDigest()
    for refs in loaded(pieces):
        stamps.add(stamp for _, stamp in storage.stats(_files_without_stamp(refs, side)))
    if state["stamps"] != stamps.hexdigest():
        return None
    content = _digests(layout, shard) if digests else b""
    if digests and len(content) != _DIGEST_BYTES * report.records:
        return None
    return ShardResult(report, rejects, resumed=True, digests=content)


def _digests(layout: Layout, shard: ShardId) -> bytes:
    try:
        with storage.open_read(layout.digests(shard)) as file:
            return file.read()
    except FileNotFoundError:
        return b""
