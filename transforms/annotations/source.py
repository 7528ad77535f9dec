"""The seam for formats of annotation files: a subclass of `AnnotationSource` for each."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, ClassVar, NamedTuple, cast

import zstandard

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.objects import MASK
from imageshards.transforms.storage.protocol import Match

_GZIP = ".gz"
_GZIP_FACTOR = 10
"""Bytes of a table or a JSON file for each byte that gzip makes of it, at most."""
_ROW_BYTES, _OBJECT_BYTES = 500, 300
"""Memory of the annotations of an image, and of an object with a box; measured with tracemalloc."""


class Category(NamedTuple):
    """A class of objects that a file declares or uses.

    Attributes:
      order: the number that the file gives it, which orders the classes; 0 if it has none.
      name: the name.
    """

    order: int
    name: str


@dataclass(frozen=True, slots=True)
class Annotated:
    """The annotations of an image in a file, or a part of them.

    Attributes:
      name: the image as the file names it: a path, or a base name, with or without a suffix.
      place: where they are in the file; orders the parts of an image.
      objects: number of annotated objects.
      values: key of a feature -> one value for each object. Without objects it is empty.
      size: (width, height) of the image, in the pixels that boxes refer to; (0, 0): unknown; None:
        boxes are fractions.
      problem: why the image has to be rejected; empty: nothing is wrong.
    """

    name: str
    place: int
    objects: int
    values: Mapping[str, Sequence[Any]]
    size: tuple[int, int] | None
    problem: str = ""

    @property
    def num_bytes(self) -> int:
        """An estimate of the memory that they take."""
        return _ROW_BYTES + _OBJECT_BYTES * self.objects + sum(map(len, self.values.get(MASK, ())))


@dataclass(frozen=True)
class AnnotationSource(ABC):
    """An `--annotations`: a file, or a folder of files.

    Attributes:
      uri: its URI.
      masks: whether to read the masks of objects, if the format has them.
      name_key: `--name_key`, the column with the names of the images, of formats that are columns
        of an input; empty: the names are the file and the row.
    """

    uri: str
    masks: bool = False
    name_key: str = ""

    name: ClassVar[str]
    """The format, as `--annotation_format` names it."""
    noun: ClassVar[str]
    """What it is, for messages."""
    has_file_of_each: ClassVar[bool] = False
    """Whether each image has a file of its own."""
    has_masks: ClassVar[bool] = False
    """Whether the format has masks of objects."""

    @classmethod
    @abstractmethod
    def recognizes(cls, uri: str) -> bool:
        """Returns whether a file or a folder has this format; may read its beginning."""

    def check(self) -> None:  # noqa: B027 - most formats check nothing
        """Finds errors before a job begins, without reading all annotations.

        Raises:
          UsageError: the annotations cannot be read as the options require.
        """

    @classmethod
    def is_meant(cls, uri: str) -> bool:
        """Returns whether `--annotation_format auto` takes this format for what it recognizes.

        Raises:
          UsageError: the user has to set the format.
        """
        return True

    @property
    def folder(self) -> str:
        """The folder that paths of images may be relative to, with a slash at its end."""
        return self.uri.rpartition("/")[0] + "/"

    def num_bytes(self) -> int:
        """Returns the bytes of the annotations of all images; 0 if each image has a file."""
        factor = _GZIP_FACTOR if self.uri.lower().endswith(_GZIP) else 1
        return factor * max(storage.size(self.uri), 0)

    def parts(self) -> Iterator[tuple[str, ...]]:
        """Yields the files to read, in parts for parallel workers."""
        yield (self.uri,)

    def files_in(self) -> Iterator[Match]:
        """Yields (URI, bytes, stamp) of each file that the annotations depend on, in any order."""
        yield self.uri, *storage.stat(self.uri)

    @abstractmethod
    def read(self, files: Sequence[str]) -> Iterator[Annotated | Category]:
        """Reads a part.

        Args:
          files: what `parts` has yielded.

        Yields:
          The annotations of images, those of one image at once or in parts; and every class.

        Raises:
          BuildError: a file is not of this format.
        """


def has_suffix(uri: str, *suffixes: str) -> bool:
    """Returns whether a file has one of some suffixes, in any case, also with `.gz` after it.

    >>> has_suffix("gs://owls/Boxes.CSV.gz", ".csv", ".tsv")
    True
    """
    return uri.lower().removesuffix(_GZIP).endswith(suffixes)


@contextmanager
def opened(uri: str) -> Iterator[IO[bytes]]:
    """Opens a file of annotations, and decompresses it if its suffix is `.gz`.

    Raises:
      BuildError: it does not decompress.
    """
    with storage.open_read(uri) as file:
        if not uri.lower().endswith(_GZIP):
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield cast(IO[bytes], io.BufferedReader(content))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BuildError(f"--annotations {uri} is not a complete gzip file: {error}") from error


class AnnotationBatch:
    """Annotations of some images, which a pickle compresses.

    Attributes:
      source: the source that they are from.
      rows: the annotations.
    """

    __slots__ = ("rows", "source")

    def __init__(self, source: AnnotationSource, rows: Sequence[Annotated]) -> None:
        self.source = source
        self.rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        packed = zstandard.ZstdCompressor(level=1).compress(pickle.dumps(self.rows, -1))
        return _unpack, (self.source, packed)


def _unpack(source: AnnotationSource, packed: bytes) -> AnnotationBatch:
    return AnnotationBatch(source, pickle.loads(zstandard.ZstdDecompressor().decompress(packed)))
