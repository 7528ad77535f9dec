"""The interface of input kinds: recognize, divide, list, fingerprint and read an input.

To add a kind, write a subclass of `InputKind` with the decorator `@register`. A module in this
package is found by itself; any other one must be imported, also on workers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Codec, ImageRef, InputCount, shortened
from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.pairs.pattern import PathPattern
from imageshards.transforms.references.annotate import Columns
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.names import Roots

if TYPE_CHECKING:
    from imageshards.transforms.inputs.fetch import ImageReader

IMAGE_KEY = "image/encoded"
"""Default key of the image in a tf.train.Example."""

TextUnit = Literal["line", "paragraph"]
"""The part of a text file that becomes one record."""


@dataclass(frozen=True)
class RecordKeys:
    """The meaning of the features of TFRecord inputs.

    Attributes:
      image: key of the encoded image.
      label: key of the class, a text or a number; empty: `image/class/text` or, if the file does
        not have it, `image/class/label`.
      name: key of the image's name; empty: the name is FILE/NUMBER.
    """

    image: str = IMAGE_KEY
    label: str = ""
    name: str = ""


@dataclass(frozen=True)
class ListingOptions:
    """How inputs are listed.

    Attributes:
      columns: columns of manifests, or features of TFRecord files, to list with each reference.
      uri_column: the column of manifests that holds the URIs.
      uri_template: a URI with columns of manifests in braces, instead of that column; or empty.
      include_all: take files whatever their name.
      image_suffixes: what follows the first dot in the names of the members of tars that are
        images, in small letters; empty: members are images by the suffix of their name.
      scratch: the folder in which compressed tars are unpacked.
      record_keys: the meaning of the features of TFRecord files.
      text_unit: the part of a text file that becomes one record; None: inputs are images.
      divide: whether a large unit of work yields parts of itself, which other workers list. If not,
        the worker that has the unit lists all of it.
      side: the paths of files that belong to images, which are not images themselves; or None.
      output: the `real_folder` of the data set, of which no file may be listed; empty: none.
    """

    columns: Columns = field(default_factory=Columns)
    uri_column: str = "uri"
    uri_template: str = ""
    include_all: bool = False
    image_suffixes: tuple[str, ...] = ()
    scratch: str = ""
    record_keys: RecordKeys = field(default_factory=RecordKeys)
    text_unit: TextUnit | None = None
    divide: bool = False
    output: str = ""
    side: PathPattern | None = None

    def is_side_file(self, uri: str, root_length: int) -> bool:
        """Whether a file is not listed because it belongs to an image; see `side`."""
        return self.side is not None and self.side.matches(uri, uri[:root_length])


class Read(NamedTuple):
    """The bytes of one image, and values that were read with them.

    Attributes:
      image: the bytes.
      features: key -> values of all features of the record that holds the image, or None.
      stamp: stamp of the image's file when it was read (see `ImageRef.stamp`), or 0.
    """

    image: bytes
    features: dict[str, list[Any]] | None = None
    stamp: int = 0


class RecordSample(NamedTuple):
    """A TFRecord file, as a sample of an input.

    Attributes:
      uri: the file.
      first_records: takes a number; reads so many records, and yields key -> values of each.
    """

    uri: str
    first_records: Callable[[int], Iterator[dict[str, list[Any]]]]


FileState = tuple[str, int, int | str]
"""URI of a file, its size in bytes or -1, and a value that changes with its content."""


_LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of a file that a retry does not mend."""


@dataclass(frozen=True)
class InputKind(ABC):
    """One `--input`; its class is its kind.

    Attributes:
      text: the input as the user wrote it, for messages.
      uri: the input, normalized.
      noun: the kind, with its article, for messages.
      empty: what a message says of an input that lists nothing; empty: nothing in particular.
      codecs: codecs of the byte ranges that `read` of this kind reads. Files, URLs and other ranges
        are read by `InputKind.read`.
      is_file: whether it is a single file, or lists parts of one.
    """

    text: str
    uri: str
    noun: ClassVar[str] = "an input"
    empty: ClassVar[str] = ""
    codecs: ClassVar[tuple[Codec, ...]] = ()
    is_file: ClassVar[bool] = False

    @property
    def is_folder(self) -> bool:
        """Whether it lists the files below its root.

        An input that is neither this nor a file, such as a manifest, names files of any folder.
        """
        return False

    @property
    def root(self) -> str:
        """The beginning of URIs that is no part of the images' names: by default its folder."""
        return self.uri[: self.uri.rindex("/") + 1]

    def holds(self, folder: str) -> bool:
        """Whether it may list the files of a folder, which then cannot be the output."""
        return False

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI names an input of this kind."""
        return False

    def check(self, options: ListingOptions) -> None:  # noqa: B027 - most kinds check nothing
        """Finds errors before a job begins, without a complete listing.

        Raises:
          BuildError: the input cannot be listed with these options.
        """

    def units(self, options: ListingOptions) -> Iterator[WorkUnit]:
        """Yields the units of work that the input is listed in: by default, a single one."""
        yield WorkUnit(self)

    def divisions(self, options: ListingOptions) -> int:
        """How many times `list_unit` may divide a unit: a part may have parts itself."""
        return 0

    @abstractmethod
    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists one of the units that `units` yielded, or a part of one.

        With `options.divide` it may list some of its references only, and yield units with the
        others, of this kind or of another one. No unit may depend on what another one has listed.

        Raises:
          BuildError: it cannot be listed.
        """

    def fingerprint(
        self, unit: WorkUnit, options: ListingOptions
    ) -> Iterator[FileState | WorkUnit]:
        """Yields the state of each file of a unit that the data set depends on; reads no image.

        With `options.divide` it may yield units with some of the files, as `list_unit` does.
        """
        yield self.uri, *storage.stat(self.uri)

    def sample(self) -> RecordSample | None:
        """The first TFRecord file by name, if all files of the input are TFRecord files."""
        return None

    @classmethod
    def read(cls, ref: ImageRef, limit: int, reader: ImageReader) -> Read:
        """Reads the image of a reference that an input of this kind listed.

        Args:
          ref: the reference.
          limit: largest size of an image, in bytes.
          reader: how to read.

        Raises:
          ReadError: it cannot be read, and a retry would not help.
        """
        if ref.range:
            return Read(ranges.read(ref.range, ref.stamp, limit))
        image, stamp = storage.read(ref.uri, limit, ref.stamp, reader.web)
        return Read(image, stamp=stamp)

    def unreadable(self, error: Exception, where: str = "cannot be read") -> BuildError:
        """The error of an input that cannot be opened or read: a `StoreError` if a retry may."""
        reason = getattr(error, "strerror", None)
        if not reason and not isinstance(error, FileNotFoundError):
            reason = shortened(str(error))
        may_pass = getattr(error, "errno", None) and not isinstance(error, _LASTING)
        kind = storage.StoreError if may_pass else BuildError
        return kind(f"{self.uri}: {where}: {reason or 'no such file'}")

    def refuse_columns(self, options: ListingOptions) -> None:
        """Raises a BuildError if columns are required; for kinds without columns."""
        if required := options.columns.all_required:
            raise BuildError(
                f"--input {self.text} is not a manifest and has no column {required[0]!r}"
                f"{options.columns.origin(required[0])}: "
                "columns come from CSV, JSONL or Parquet files"
            )


@dataclass(frozen=True)
class WorkUnit:
    """A part of an input that one worker lists.

    Attributes:
      input: the input, or a file of it.
      part: a range of names, of rows or of bytes, as its kind defines; empty: the whole input.
    """

    input: InputKind
    part: tuple[Any, ...] = ()


class FileKind(InputKind):
    """A kind whose inputs are single files that hold many references.

    Files of a registered kind that match a glob pattern are listed too.
    """

    is_file = True

    @abstractmethod
    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the file.

        Args:
          root_length: characters of the URIs before the names.
          size: bytes of the file.
          stamp: a number that changes with its content, or 0 if unknown.
          options: how to list.

        Raises:
          BuildError: it cannot be listed.
        """

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists the whole file. The part of a file of another input is its `in_input`."""
        root_length, size, stamp = unit.part or (len(self.root), *storage.stat(self.uri))
        return self.list_file(root_length, size, stamp, options)

    def in_input(self, root_length: int, size: int, stamp: int) -> WorkUnit:
        """The unit of a file that an input contains; see `list_file` for the arguments."""
        return WorkUnit(self, (root_length, size, stamp))

    def check_regular(self) -> None:
        """Raises a BuildError if this is a local pipe or device: reading it might never end."""
        local = storage.is_local(self.uri)
        if local and os.path.exists(self.uri) and not os.path.isfile(self.uri):
            raise BuildError(f"{self.uri}: not a regular file")


def real_folder(uri: str) -> str:
    """A folder with a slash at its end; without symbolic links if it is local."""
    return (os.path.realpath(uri) if storage.is_local(uri) else uri).rstrip("/") + "/"


KINDS: list[type[InputKind]] = []
"""The kinds that are recognized by the name of a file; the first that matches is taken."""


def register(kind: type[InputKind]) -> type[InputKind]:
    """Adds a kind before the others. A class decorator."""
    KINDS.insert(0, kind)
    return kind


def kind_of_name(uri: str) -> type[InputKind] | None:
    """The registered kind that recognizes a URI, or None."""
    return next((kind for kind in KINDS if kind.recognizes(uri)), None)


def roots_of(inputs: Iterable[InputKind], base: str = "") -> Roots:
    """The roots of all inputs of a build.

    Args:
      inputs: the inputs.
      base: a folder below which names are relative to it; see `Roots`.
    """
    folders, files, tables = set(), set(), set()
    for source in inputs:
        if source.is_folder:
            folders.add(source.root)
        elif not source.is_file:
            tables.add(source.root)
        elif source.root:
            files.add(source.uri)
    return Roots(frozenset(folders), frozenset(files), frozenset(tables), base)


def list_unit(unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
    """Lists a unit of work of any input; see `InputKind.list_unit`.

    Raises:
      BuildError: it cannot be listed, or it is a whole input without any reference.
    """
    count = InputCount()
    for found in unit.input.list_unit(unit, options):
        if isinstance(found, Listed):
            _check_columns(unit.input, found.refs, options.columns)
            count += found.count
        else:
            count += InputCount(found=1)  # what it holds is not known yet
        yield found
    if not unit.part:
        count.check(unit.input.text, options.text_unit, unit.input.empty)


def list_references(unit: WorkUnit, options: ListingOptions) -> Iterator[Listed]:
    """Lists a unit of work of any input, with all of its parts.

    Raises:
      BuildError: it cannot be listed, or it is a whole input without any reference.
    """
    count = InputCount()
    for found in list_unit(unit, options):
        for listed in [found] if isinstance(found, Listed) else list_references(found, options):
            count += listed.count
            yield listed
    if not unit.part:
        count.check(unit.input.text, options.text_unit, unit.input.empty)


def _check_columns(source: InputKind, refs: RefBatch, columns: Columns) -> None:
    """Raises a BuildError if the references listed do not have a column that is required."""
    missing = [name for name in columns.required if refs.text_column(name) is None]
    if not refs.are_records:
        found = refs.rows.schema.names
        missing += [feature.column for feature in columns.features if feature.source not in found]
    if missing and len(refs):
        raise BuildError(
            f"--input {source.text}: {source.noun} has no column {missing[0]!r}"
            f"{columns.origin(missing[0])}"
        )
