"""Values that flow through the graph, and errors for users. Standard library only."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class BuildError(Exception):
    """A build that cannot continue, for a reason that its user can fix.

    The message is one line: what is wrong, where, and what to do. On every runner it reaches the
    terminal unchanged.
    """


class OutputTaken(BuildError):
    """The output belongs to another build, in which nothing is recorded."""

    @classmethod
    def deleted(cls, uri: str) -> OutputTaken:
        """The error of a file of this build that has disappeared while the build runs."""
        return cls(
            f"{uri}: deleted while the build reads it, so another build writes here too: "
            "run the command again when the other one has ended"
        )


class UsageError(ValueError):
    """An option with a bad value. The message is one line, with valid values."""


def counted(number: int, noun: str) -> str:
    """A count with its noun, for messages.

    >>> counted(1, "shard"), counted(1024, "shard"), counted(2, "class")
    ('1 shard', '1,024 shards', '2 classes')
    """
    plural = "es" if noun.endswith(("s", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def human_bytes(size: float) -> str:
    """Returns a size in bytes with a unit.

    >>> human_bytes(110_200_000)
    '110.2 MB'
    >>> human_bytes(0), human_bytes(1), human_bytes(46_500)
    ('0 bytes', '1 byte', '46.5 kB')
    """
    if size < 1000:
        return counted(round(size), "byte")
    power = min(int(math.log10(size)) // 3, 4)
    return f"{size / 1000**power:,.1f} {'kMGT'[power - 1]}B"


_SHOWN = 80
"""The most characters of a user's or a server's data that a message quotes."""


def shortened(text: str) -> str:
    """A text for messages, cut to 80 characters."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def quoted(value: object) -> str:
    """A value of a user's data for messages: its representation, cut to 80 characters.

    >>> quoted("owl"), len(quoted(bytes(300_000)))
    ("'owl'", 80)
    """
    # The representation of bytes is up to four times as long as they are.
    return shortened(repr(value[:_SHOWN] if isinstance(value, str | bytes) else value))


def enumerated(names: Iterable[str]) -> str:
    """Names for messages, separated by commas: the first 20 of them.

    >>> enumerated(["uri", "label"])
    'uri, label'
    """
    every = list(names)
    shown = ", ".join(map(shortened, every[:_NAMES]))
    return shown + (f" and {len(every) - _NAMES:,} more" if every[_NAMES:] else "")


_NAMES = 20


def alternatives(names: Iterable[object]) -> str:
    """Values for messages, of which one is to be chosen.

    >>> alternatives(["none", "zstd", "brotli"])
    'none, zstd or brotli'
    """
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last


_KINDS_SHOWN = 4
_SUFFIXES = 64
_SUFFIX = re.compile(r"(?:\.tar)?\.[a-z0-9]{1,8}$")


class Skipped(NamedTuple):
    """A kind of files that are left out because their names are not those of images.

    Attributes:
      suffix: the ends of their names, in lower case; empty: other files.
      noun: what they are as inputs, with an article; empty: no input.
    """

    suffix: str
    noun: str = ""

    @classmethod
    def of(cls, uri: str, noun: str = "") -> Skipped:
        """Returns the kind of a file."""
        found = _SUFFIX.search(uri[uri.rfind("/") + 2 :].lower())  # a name may begin with a dot
        return cls(found[0] if found else "", noun)


class InputCount(NamedTuple):
    """What the listing of an input, or of a part of it, found.

    Attributes:
      found: references.
      passed_over: files that were left out because of their names.
      skipped: kind of these files -> their number; empty if there are references.
    """

    found: int = 0
    passed_over: int = 0
    skipped: Mapping[Skipped, int] = MappingProxyType({})

    def __reduce__(self) -> tuple[Any, ...]:
        # Tallies with counts are sent to other workers, and the default value cannot be pickled.
        return InputCount, (self.found, self.passed_over, dict(self.skipped))

    def __add__(self, other: object) -> InputCount:
        assert isinstance(other, InputCount)
        found = self.found + other.found
        skipped: Counter[Skipped] = Counter()
        if not found:
            for kind, count in (*self.skipped.items(), *other.skipped.items()):
                known = kind in skipped or len(skipped) < _SUFFIXES
                skipped[kind if known else Skipped("")] += count
        return InputCount(found, self.passed_over + other.passed_over, dict(skipped))

    def check(self, text: str, is_text: object, empty: str = "") -> None:
        """Raises a BuildError if an input has no reference.

        Args:
          text: the input as the user wrote it.
          is_text: whether the references are texts, and not images.
          empty: what to say of an input without any file or row.
        """
        if self.found:
            return
        hint = f" ({self._what_was_skipped()})" if self.passed_over else empty and f": {empty}"
        raise BuildError(f"--input {text}: no {'text' if is_text else 'image'} found{hint}")

    def _what_was_skipped(self) -> str:
        by_suffix: Counter[str] = Counter()
        for kind, count in self.skipped.items():
            by_suffix[kind.suffix or "other"] += count
        most = sorted(by_suffix.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{count:,} {suffix}" for suffix, count in most[:_KINDS_SHOWN]]
        if rest := sum(count for _, count in most[_KINDS_SHOWN:]):
            shown.append(f"{rest:,} more")
        advice = []
        if any(not kind.noun for kind in self.skipped):
            advice.append("--include_all takes all files")
        if nouns := sorted({kind.noun for kind in self.skipped if kind.noun}):
            advice.append(f"{' or '.join(nouns)} has to be an --input itself")
        were = "was" if self.passed_over == 1 else "were"
        return (
            f"{counted(self.passed_over, 'file')} {were} skipped by name: {', '.join(shown)}; "
            f"{'; '.join(advice)}"
        )


def to_bytes(text: str) -> bytes:
    """Encodes a name of a file, which need not be valid UTF-8, without loss."""
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """The inverse of `to_bytes`."""
    return name.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, order=True)
class ShardId:
    """One output file: shard `index` (from 0) of `num_shards` of a split, and its container."""

    split: str
    index: int
    num_shards: int
    compression: str = ""
    file_format: str = "tfrecord"


LABEL_SEPARATOR = "\x1f"
"""Separates the classes of an image in its label: the unit separator of ASCII, in no name."""

DUPLICATE_PIXELS = "DuplicatePixels"
"""Error type of a reject whose pixels are equal to those of an image in the data set."""
LOST = "Lost"
"""Error type of a reject that represents all later images of a damaged file."""


@dataclass(frozen=True)
class Problem:
    """Why an image is not in the data set.

    Attributes:
      stage: the stage of the build that found the problem, such as `read` or `check`.
      error: the type of the problem, such as `Corrupt`.
      reason: a sentence for people.
    """

    stage: str
    error: str
    reason: str


Codec = Literal["stored", "zip", "example"]
"""Content of a byte range. "stored": the image. "zip": the local header of a member of a zip; its
data follow the header, and are as long as the range. "example": a serialized tf.train.Example."""


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes of a file that holds an image.

    Attributes:
      uri: URI of the file.
      offset: offset of the first byte.
      size: stored bytes of the image.
      codec: the content of the range.
    """

    uri: str
    offset: int
    size: int
    codec: Codec


@dataclass(frozen=True)
class Reject:
    """An image that is not in the data set: one line of rejects.jsonl.

    Attributes:
      name: name of the image.
      uri: URI of the image.
      split: the split that it would be in.
      problem: why it is not in the data set.
      range: the bytes of another file that hold it, or None if it is a file.
    """

    name: str
    uri: str
    split: str
    problem: Problem
    range: ByteRange | None = None


@dataclass(frozen=True)
class ImageRef:
    """A reference to an image, with the facts that the listing reported.

    Attributes:
      uri: identifies the image; without a `range` it is also the file or URL to read.
      label: the text of its class, or None.
      size: bytes of the image, or -1 if the listing did not report them.
      stamp: a number that changes with the content of the file that holds the image (local files:
        mtime in ns; Cloud Storage: generation), or 0 if unknown.
      problem: why the reference cannot become a record, or None.
      range: the bytes of another file that hold the image, or None if the image is a file.
      features: `FeatureColumn.source` -> value, for columns that become features, or None.
      root: characters of the URI before the name.

    >>> ImageRef("/photos/cat/1.jpg", root=8).name
    'cat/1.jpg'
    """

    uri: str
    label: str | None = None
    size: int = -1
    stamp: int = 0
    problem: Problem | None = None
    range: ByteRange | None = None
    features: Mapping[str, Any] | None = None
    root: int = 0

    @property
    def name(self) -> str:
        """The image's name in the data set: the URI below the input that contains it."""
        return self.uri[self.root :]


@dataclass(frozen=True)
class ShardReport:
    """Counts and statistics of one finished shard.

    Attributes:
      shard: the shard.
      records: number of records.
      bytes: size of the file.
      crc32c: CRC32C of the whole file.
      labels: label number -> records.
      formats: image/format -> records.
      long_sides: upper bound of a size class in pixels -> records (see `stats.size_class`).
      smallest: (height, width) of the image with the fewest pixels.
      largest: (height, width) of the image with the most pixels.
      converted: records whose image differs from its file.
      conversions: kind of conversion -> records; empty in a report that is computed from a shard,
        because shards do not contain them.
      annotations: kind of annotation -> number of them (see `annotations.BOXES`).
      profile: sizes and appearance of the images (see `profile.Profile`); empty for texts.
      sha256: SHA-256 of the whole file in hexadecimal; empty if it was not computed.
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
    annotations: Mapping[str, int] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True)
class RejectReport:
    """A written part of rejects.jsonl.

    Attributes:
      split: the split of its rejects.
      part: name of the file.
      errors: error type -> rejects.
    """

    split: str
    part: str
    errors: Mapping[str, int]


def check_unique(uri: str, header: Sequence[str], names: Iterable[str]) -> None:
    """Checks that no two columns of a file have the name of one that is read.

    Args:
      uri: the file.
      header: the names of its columns.
      names: the columns that are read.

    Raises:
      BuildError: two have it.
    """
    for name in dict.fromkeys(names):
        if header.count(name) > 1:
            raise BuildError(
                f"{uri}: {header.count(name)} columns have the name {name!r}: rename all but one "
                "of them"
            )
