"""The interface of side files: find the second file of a record, read it, and convert it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import ImageRef, Problem, to_text
from imageshards.transforms.images.geometry import Geometry
from imageshards.transforms.pairs.pattern import PathPattern
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.schemas import Value
from imageshards.transforms.storage.web import WebOptions


class SideFileError(Exception):
    """An image is rejected for its side file.

    Attributes:
      problem: the reason.
    """

    def __init__(self, stage: str, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.problem = Problem(stage, kind, reason)


class SideValues(NamedTuple):
    """What a side file adds to a record.

    Attributes:
      values: source of a feature -> value.
      counts: kind of annotation -> number of them.
    """

    values: dict[str, Value]
    counts: dict[str, int]


class SideData(NamedTuple):
    """The content of a side file.

    Attributes:
      uri: where it was read, for messages.
      data: the bytes.
      stamp: stamp of the file when it was read (see `ImageRef.stamp`), or 0.
    """

    uri: str
    data: bytes
    stamp: int = 0


_INSIDE = b"\0"
"""Begins the value of a side file that is a byte range. No URI has this character."""


def inside(container: str, offset: int, size: int, stamp: int) -> bytes:
    """Returns the value of the column of a side file that is a byte range of another file.

    Args:
      container: URI of the file, which stores the range unchanged.
      offset: offset of its first byte.
      size: number of bytes.
      stamp: the stamp with which the file is read (see `storage.read_range`), or 0.
    """
    return _INSIDE + f"{offset} {size} {stamp} {container}".encode()


@dataclass(frozen=True)
class SideFile(ABC):
    """The second file of each record, such as the mask of an image.

    Attributes:
      pattern: its path; None if a column has its URI.
      column: the column with its URI or, in TFRecord inputs, with its content; other inputs with
        images inside have its byte range, see `inside`.
      max_bytes: larger files are rejected.
      web: limits of requests to web servers.
    """

    pattern: PathPattern | None = None
    column: FeatureColumn | None = None
    max_bytes: int = storage.MAX_BYTES
    web: WebOptions = field(default_factory=WebOptions)

    noun: ClassVar[str]
    missing: ClassVar[str]
    """Error type of the rejects that do not have the file."""

    @abstractmethod
    def values(self, found: SideData, geometry: Geometry) -> SideValues:
        """Returns the values of a record that come from its side file.

        Args:
          found: the file.
          geometry: where the pixels of the image's file are in the written image.

        Raises:
          SideFileError: the file cannot be used.
          ImageError: it is no valid image.
        """

    def uri_of(self, ref: ImageRef) -> str:
        """Returns the URI of the file of an image; empty if it is unknown, or part of a file."""
        if self.pattern:
            return storage.normalize(self.pattern.uri(ref.uri[: ref.root], ref.name))
        value = self._value(ref)
        return "" if value.startswith(_INSIDE) else to_text(value)

    def _value(self, ref: ImageRef) -> bytes:
        value: Any = (ref.features or {}).get(self.column.source) if self.column else None
        return value or b""

    def stamped_uri(self, ref: ImageRef) -> str:
        """Returns the URI of the file if it affects a record and its store has a stamp for it."""
        uri = "" if ref.problem else self.uri_of(ref)
        return uri if uri and storage.can_list(uri) else ""

    def read(self, ref: ImageRef, record: Mapping[str, Value] | None) -> SideData:
        """Reads the file of an image.

        Args:
          ref: the image.
          record: source of a column -> value, of an image that is part of a TFRecord.

        Raises:
          SideFileError: there is none, or it cannot be read.
        """
        if record is not None and self.column:
            data = record[self.column.source]
            if not isinstance(data, bytes) or not data:
                reason = f"no value of {self.column.column!r}, the {self.noun}"
                raise SideFileError("read", self.missing, reason)
            return SideData(self.column.column, data)
        uri = self.uri_of(ref)
        if not uri:
            assert self.column
            if value := self._value(ref):
                return self._read_inside(value)
            reason = f"no value in the column {self.column.column!r}"
            raise SideFileError("read", self.missing, reason)
        if uri == ref.uri:
            reason = f"it is a {self.noun} itself: select only images with --input"
            raise SideFileError("read", self.missing, reason)
        try:
            return SideData(uri, *storage.read(uri, self.max_bytes, 0, self.web))
        except storage.ReadError as error:
            is_missing = error.kind == "Missing"
            reason = f"its {self.noun} {uri}: {error}{self._advice(ref, uri) if is_missing else ''}"
            kind = self.missing if is_missing else error.kind
            raise SideFileError("read", kind, reason) from error

    def _read_inside(self, value: bytes) -> SideData:
        assert self.column
        offset, size, stamp, container = to_text(value.removeprefix(_INSIDE)).split(" ", 3)
        name = f"in {self.column.column!r}"
        try:
            if int(size) > self.max_bytes:
                raise storage.ReadError(
                    "TooLarge", f"{int(size):,} bytes, more than {self.max_bytes:,}"
                )
            data = storage.read_range(container, int(offset), int(size), int(stamp))
        except storage.ReadError as error:
            raise SideFileError("read", error.kind, f"its {self.noun} {name}: {error}") from error
        return SideData(name, data)

    def _advice(self, ref: ImageRef, uri: str) -> str:
        if ref.range and uri.startswith(f"{ref.range.uri}/"):
            return f" (a {self.noun} inside of an archive cannot be found: unpack the archive)"
        return ""
