"""The seam for formats of annotation files: a subclass of `AnnotationSource` for each."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import zstandard

from imageshards.transforms import storage
from imageshards.transforms.storage.protocol import Match


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
        return max(storage.size(self.uri), 0)

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
