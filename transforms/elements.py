"""The elements that flow through the graph. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


class BuildError(Exception):
    """A build that cannot go on for a reason that its user can mend.

    The message is one line that says what is wrong, where, and what to do. It reaches the
    terminal as it is, whatever runner carried it.
    """


class UsageError(ValueError):
    """An option with a bad value: one line that says what to write instead."""


def counted(number: int, noun: str) -> str:
    """`1 shard`, `1,024 shards`: how messages say how many of something there are."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def to_bytes(text: str) -> bytes:
    """Encodes a file name, which is not always valid UTF-8, without loss."""
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """Decodes what `to_bytes` encoded."""
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, order=True)
class ShardId:
    """One output file: shard `index` of `num_shards` of a split, and its record container."""

    split: str
    index: int
    num_shards: int
    compression: Literal["", "gzip"] = ""
    file_format: str = "tfrecord"


DUPLICATE_PIXELS = "DuplicatePixels"
"""The one error of rejects that are not the image's fault."""
LOST = "Lost"
"""The error of a reject that stands for whatever came behind it in a file that breaks off."""


@dataclass(frozen=True)
class Problem:
    """Why an image is not in the data set: the stage that met it, its type, its reason."""

    stage: str
    error: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """An image that is not in the data set: a line of rejects.jsonl."""

    uri: str
    split: str
    problem: Problem


Codec = Literal["stored", "zip", "example"]
"""What stands in a byte range: the image; a member of a zip file, of which the range says where its
local header begins and how long its data is; or a serialized tf.train.Example."""


@dataclass(frozen=True)
class ByteRange:
    """Where the bytes of an image are that is no file of its own.

    Attributes:
      uri: the file that holds them.
      offset: of the first byte.
      size: in bytes, as they are stored.
      codec: what they are.
    """

    uri: str
    offset: int
    size: int
    codec: Codec


@dataclass(frozen=True)
class ImageRef:
    """Where an image is and what is known of it without opening it.

    Attributes:
      uri: its identity, and where its bytes are, unless `range` says so.
      label: the text of its class, or None.
      size: bytes, or -1 where the listing did not say.
      stamp: a number that changes with the content (local: mtime in ns), or 0; of a member of an
        archive that of the archive.
      problem: what is wrong with the reference itself, or None.
      range: where the bytes are of an image that is no file of its own, or None.
      features: `FeatureColumn.source` -> value of what comes with the reference, or None.
    """

    uri: str
    label: str | None = None
    size: int = -1
    stamp: int = 0
    problem: Problem | None = None
    range: ByteRange | None = None
    features: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ShardReport:
    """What one finished shard holds.

    Attributes:
      shard: which file.
      records: number of records.
      bytes: size of the file.
      crc32c: of the whole file.
      labels: label number -> records.
      formats: image/format -> records.
      long_sides: upper bound of a size class in pixels -> records (see `stats.size_class`).
      smallest: (height, width) of the image with the fewest pixels.
      largest: (height, width) of the image with the most pixels.
      converted: records whose image is not the file as it was.
      conversions: kind of what was done to an image -> records. A shard does not tell it: what
        is read back from one has none.
    """

    shard: ShardId
    records: int
    bytes: int
    crc32c: int
    labels: Mapping[int, int]
    formats: Mapping[str, int]
    long_sides: Mapping[int, int]
    smallest: tuple[int, int]
    largest: tuple[int, int]
    converted: int = 0
    conversions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RejectReport:
    """A part of rejects.jsonl that is already written: its file name, error type -> rejects."""

    split: str
    part: str
    errors: Mapping[str, int]
