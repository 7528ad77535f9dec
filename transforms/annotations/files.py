"""Folders in which each image has a file of annotations."""

from __future__ import annotations

import glob
import posixpath
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

from imageshards.transforms import storage
from imageshards.transforms.annotations.source import Annotated, AnnotationSource, Category
from imageshards.transforms.elements import BuildError, quoted
from imageshards.transforms.records.objects import TEXT
from imageshards.transforms.records.schemas import BOX_SIDES
from imageshards.transforms.storage.protocol import Match

_PER_PART = 500
"""Files that one worker reads in a row."""
_READS_IN_FLIGHT = 16
_LOOKED_AT = 10
"""Files that show the format of a folder."""
_LARGEST = 1 << 26
"""Bytes of such a file. labelme may store the image in it."""


class Malformed(ValueError):
    """A file is not of its format; the message is the end of a sentence.

    Attributes:
      image: the image that the file names, if that could be read; else empty.
    """

    image = ""


class FileOfEach(AnnotationSource):
    """A folder with a file for each image, in it or in folders below; or one such file."""

    has_file_of_each = True
    suffix: ClassVar[str]
    """The suffix of the files."""

    @classmethod
    def some_file_has(cls, uri: str, pattern: re.Pattern[bytes]) -> bool:
        """Returns whether one of the first files of a source, by name, has a match of a pattern.

        A folder may also have other files with the suffix.
        """
        if uri.lower().endswith(cls.suffix):
            files = [uri]
        else:
            found = storage.match_first(pattern_of(uri, cls.suffix))
            files = [file for file, *_ in found[:_LOOKED_AT]]
        return any(pattern.search(_content(file)) for file in files)

    @property
    def folder(self) -> str:
        """The folder of the files, with a slash at its end."""
        if self.uri.lower().endswith(self.suffix):
            return self.uri.rpartition("/")[0] + "/"
        return self.uri.rstrip("/") + "/"

    def num_bytes(self) -> int:
        """Returns 0: each image has a file."""
        return 0

    def files(self) -> list[str]:
        """Returns the URIs of the files, sorted."""
        if self.uri.lower().endswith(self.suffix):
            return [self.uri]
        return sorted(uri for uri, *_ in storage.match(pattern_of(self.uri, self.suffix)))

    def files_in(self) -> Iterator[Match]:
        """Yields the files of all images."""
        if self.uri.lower().endswith(self.suffix):
            return super().files_in()
        return storage.match(pattern_of(self.uri, self.suffix))

    def parts(self) -> Iterator[tuple[str, ...]]:
        """Yields the files, some hundreds at a time."""
        files = self.files()
        if not files:
            raise BuildError(f"--annotations {self.uri}: no {self.suffix} file in it")
        for at in range(0, len(files), _PER_PART):
            yield tuple(files[at : at + _PER_PART])

    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Yields the annotations of each file, and the classes that they use."""
        names: dict[bytes, None] = {}
        folder = self.folder
        for uri, data in self._contents(files):
            below = uri.removeprefix(folder)
            try:
                if isinstance(data, storage.ReadError):
                    raise data
                parsed = self.parse(below, data)
                if parsed is None:
                    continue
                found = parsed
            except (Malformed, storage.ReadError) as error:
                image = getattr(error, "image", "") or self.image_of(below)
                found = Annotated(image, 0, 0, {}, None, f"{uri}: {error}")
            yield found
            names |= dict.fromkeys(found.values.get(TEXT, ()))
        yield from (Category(0, name.decode()) for name in names)

    def _contents(self, files: Sequence[str]) -> Iterator[tuple[str, bytes | storage.ReadError]]:
        """Yields each file with its content, or with the reason why it cannot be read."""
        if storage.is_local(self.uri):
            yield from zip(files, map(_read, files), strict=True)
            return
        with ThreadPoolExecutor(_READS_IN_FLIGHT, "imageshards-annotations") as threads:
            for at in range(0, len(files), _READS_IN_FLIGHT):
                some = files[at : at + _READS_IN_FLIGHT]
                yield from zip(some, threads.map(_read, some), strict=True)

    @abstractmethod
    def parse(self, below: str, data: bytes) -> Annotated | None:
        """Parses a file; returns None for one that has no annotations of an image.

        Args:
          below: its path below the folder.
          data: its content.

        Raises:
          Malformed: it is not of the format.
        """

    def image_of(self, below: str) -> str:
        """Returns the image of a file that does not name it: it has the same path.

        Args:
          below: the path of the file below the folder.
        """
        return posixpath.splitext(below)[0]

    @contextmanager
    def naming(self, image: str) -> Iterator[None]:
        """Adds the image to the errors of what is malformed in its file."""
        try:
            yield
        except Malformed as error:
            error.image = image
            raise

    @staticmethod
    def beside(below: str, name: str) -> str:
        """Returns the path of an image that a file names relative to its own folder.

        A name that repeats this folder is relative to the folder of all files.
        """
        folder, name = posixpath.dirname(below), name.replace("\\", "/")
        if folder and name.startswith(f"{folder}/"):
            return posixpath.normpath(name)
        return posixpath.normpath(posixpath.join(folder, name))


def number(value: Any, what: str) -> float:
    """Returns a number.

    Raises:
      Malformed: it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Malformed(f"its {what} is {quoted(value)}, which is no number") from None


class Objects:
    """Collects the objects of an image.

    >>> objects = Objects("image/object/difficult")
    >>> objects.add("owl", (1, 2, 3, 4), 0)
    >>> objects.annotated("1.jpg", (8, 8)).values["image/object/difficult"]
    [0]
    """

    def __init__(self, *keys: str) -> None:
        self._columns: dict[str, list[Any]] = {key: [] for key in (*BOX_SIDES, TEXT, *keys)}
        self._count = 0

    def add(self, text: str, box: Sequence[float], *values: Any) -> None:
        """Adds an object: its class, its (xmin, ymin, xmax, ymax), and values of the other keys."""
        row = (*box, text.encode(), *values)
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._count += 1

    def add_lists(self, text: str, box: Sequence[float], *values: Sequence[Any]) -> None:
        """Adds an object that has a list of values of each of the other keys."""
        row: tuple[Sequence[Any], ...] = (*([side] for side in box), [text.encode()], *values)
        for column, found in zip(self._columns.values(), row, strict=True):
            column.extend(found)
        self._count += 1

    def annotated(self, name: str, size: tuple[int, int] | None, place: int = 0) -> Annotated:
        """Returns them as the annotations of an image."""
        return Annotated(name, place, self._count, self._columns, size)


def bounds(points: Iterable[Sequence[float]]) -> tuple[float, float, float, float]:
    """Returns the box around points.

    >>> bounds([(3, 1), (2, 5), (4, 4)])
    (2, 1, 4, 5)
    """
    x, y = zip(*points, strict=True)
    return min(x), min(y), max(x), max(y)


def size_of(width: Any, height: Any) -> tuple[int, int]:
    """Returns the (width, height) of an image; (0, 0) if one of them is missing or 0."""
    size = int(number(width or 0, "width")), int(number(height or 0, "height"))
    return size if all(size) else (0, 0)


def _content(uri: str) -> bytes:
    """Returns the content of a file; nothing if it is too large for the annotations of an image."""
    try:
        return storage.read(uri, _LARGEST)[0]
    except storage.ReadError as error:
        if error.kind != "TooLarge":
            raise
        return b""


def _read(uri: str) -> bytes | storage.ReadError:
    try:
        return storage.read(uri)[0]
    except storage.ReadError as error:
        return error


def pattern_of(folder: str, suffix: str, below: str = "") -> str:
    """Returns the pattern of the files below a folder that have a suffix in any case.

    Args:
      folder: the folder, which is no pattern.
      suffix: in small letters.
      below: the pattern of the folders in it that have the files; empty: the folder itself.
    """
    letters = "".join(f"[{char}{char.upper()}]" if char.isalpha() else char for char in suffix)
    folders = (*filter(None, [below]), "**")
    return storage.join(glob.escape(folder.rstrip("/")), *folders, f"*{letters}")
