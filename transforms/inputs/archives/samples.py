"""Samples of tars in the format of WebDataset: images, and side files with the same key.

The key of a member is its path up to the first dot of its last part; the rest is its suffix. The
members of a sample follow each other. A side file is a column of the images of its sample, named by
its suffix, and so is each field of the object in a `.json` file. A tar of images has no columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imageshards.transforms.elements import BuildError, Codec, Problem, enumerated, quoted
from imageshards.transforms.inputs.archives.members import Member, View
from imageshards.transforms.inputs.columns import texts_of, with_features
from imageshards.transforms.inputs.kind import ListingOptions
from imageshards.transforms.inputs.listed import Listed, ListedRows
from imageshards.transforms.pairs.captions import split_captions
from imageshards.transforms.references.annotate import Columns

KEY = "__key__"
"""The column of the keys; the webdataset package gives it this name."""
_LABEL, _CLASS, _JSON = "label", "cls", "json"
_LONGEST_SIDE_FILE = 1 << 20
Place = Callable[[Member], bytes]
"""Member -> the value of the column of a side file; see `inside`."""
_PATH = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)", re.DOTALL)


def split_path(path: str) -> tuple[str, str]:
    """The key of a member, and its suffix in small letters, which is empty if there is none.

    >>> split_path("train/n01.left.JPG")
    ('train/n01', 'left.jpg')
    """
    match = _PATH.fullmatch(path)
    return (match[1], match[2].lower()) if match else (path, "")


@dataclass(slots=True)
class Sample:
    """Members of an archive with the same key, one after the other.

    Attributes:
      key: their key.
      suffixes: the suffix of each member.
      images: the members to list.
      values: column -> the bytes of a side file, or a value of a JSON object.
      problem: why values are not known, or None.
    """

    key: str = ""
    suffixes: list[str] = field(default_factory=list)
    images: list[Member] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def passed_over(self) -> int:
        """The members that are left out: the side files of an image are not, used or not."""
        return 0 if self.images else len(self.suffixes)


class Grouping:
    """Groups the members of an archive into samples.

    Attributes:
      columns: the columns to read.
    """

    def __init__(
        self, archive: str, options: ListingOptions, view: View | None, place: Place
    ) -> None:
        """Creates a grouping.

        Args:
          archive: URI of the archive, for messages.
          options: how to list.
          view: the tar, to read side files from; None: the archive has no columns, and each of its
            members is a sample of its own.
          place: returns the value of a column of masks.
        """
        self.columns = columns = options.columns if view else Columns()
        self._archive = archive
        self._view = view
        self._include_all = options.include_all
        self._image_suffixes = options.image_suffixes if view else ()
        self._place = place
        self._masks = {feature.column for feature in columns.features if feature.role == "uri"}
        self._wanted = {*columns.required, *columns.optional, *columns.feature_names}
        self._side_files = self._wanted | ({_CLASS} if _LABEL in self._wanted else set())
        if self._wanted - {KEY}:
            self._side_files |= {_JSON}

    def samples(self, members: Iterable[Member]) -> Iterator[Sample]:
        """Yields the samples of all members.

        Raises:
          BuildError: a sample with columns has several images, and no suffix selects one.
        """
        sample = Sample()
        for found in members:
            key, suffix = split_path(found.path)
            if key != sample.key or not self._view:
                if sample.key:
                    yield self._complete(sample)
                sample = Sample(key)
            sample.suffixes.append(suffix)
            if self._is_listed(found, suffix):
                sample.images.append(found)
            elif suffix in self._side_files and not found.is_hidden:
                self._read(sample, suffix, found)
        if sample.key:
            yield self._complete(sample)

    def _is_listed(self, found: Member, suffix: str) -> bool:
        if self._image_suffixes and not found.is_rest:
            return suffix in self._image_suffixes and not found.is_hidden
        if suffix in self._masks:
            return False
        return self._include_all or found.is_image

    def _read(self, sample: Sample, suffix: str, found: Member) -> None:
        assert self._view
        if found.problem:
            sample.problem = found.problem
        elif suffix in self._masks:
            sample.values[suffix] = self._place(found)
        elif found.size > _LONGEST_SIDE_FILE:
            reason = f"{found.size:,} bytes, more than {_LONGEST_SIDE_FILE:,}"
            sample.problem = Problem("read", "TooLarge", f"its side file .{suffix}: {reason}")
        else:
            sample.values[suffix] = self._view.read_at(found.size, found.offset)

    def _complete(self, sample: Sample) -> Sample:
        """Adds the columns that are not named by a suffix; see `samples`."""
        if not (sample.values or KEY in self._wanted):
            return sample
        values = sample.values
        if _LABEL in self._wanted and _CLASS in values:
            values.setdefault(_LABEL, values[_CLASS])
        if _JSON in values and (missing := self._wanted - self._masks - values.keys()):
            fields = self._fields(sample, values[_JSON])
            values.update((name, fields[name]) for name in missing & fields.keys())
        used = self._wanted & values.keys()
        values[KEY] = sample.key
        if used and len(sample.images) > 1 and not self._image_suffixes:
            suffixes = [split_path(found.path)[1] for found in sample.images]
            raise BuildError(
                f"{self._archive}: the sample {quoted(sample.key)} has several images "
                f"({enumerated(suffixes)}): write --image_suffix {suffixes[0]} for one record per "
                f"sample, or --image_suffix {','.join(suffixes)} for one per image"
            )
        return sample

    def _fields(self, sample: Sample, text: bytes) -> Mapping[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            sample.problem = Problem("read", "NotJson", f"its side file .{_JSON}: {error}")
            return {}
        return found if isinstance(found, dict) else {}


class SampleRows(ListedRows):
    """Collects images, with the columns of their samples.

    An archive has a column if one of the images that are taken first has a value of it.
    """

    def __init__(
        self, archive: str, columns: Columns, container: str, codec: Codec, unpacked: str
    ) -> None:
        """Creates an empty collection.

        Args:
          archive: URI of the archive.
          columns: the columns to collect.
          container: see `ListedRows`.
          codec: see `ListedRows`.
          unpacked: see `ListedRows`.
        """
        super().__init__(container, codec, unpacked)
        self._archive = archive
        self._wanted = columns
        self._first = ""
        self._values: list[Mapping[str, Any]] = []
        self._present: Collection[str] | None = None

    def add_sample(self, sample: Sample, root_length: int, stamp: int) -> None:
        """Appends the images of a sample; see `add` for the other arguments."""
        self.passed_over += sample.passed_over
        if sample.images and not self._first:
            suffixes = ", ".join(f".{suffix}" for suffix in sample.suffixes)
            self._first = f"its first sample, {quoted(sample.key)}, has {suffixes}"
        # Several images of a sample share its values.
        self.held_bytes += sum(map(_size, sample.values.values()))
        for found in sample.images:
            self.add(
                f"{self._archive}/{found.path}", root_length, found.size, stamp,
                found.offset, found.length, found.problem or sample.problem,
            )  # fmt: skip
            self._values.append(sample.values)

    def take(self) -> Listed:
        """Returns all rows, columns and counts, and clears them.

        Raises:
          BuildError: the archive does not have a column that is required, or not from its beginning
            on; or a value is no text.
        """
        rows, self._values = self._values, []
        listed = super().take()
        uris = listed.refs.uris
        self._check(rows, uris)
        wanted = self._wanted
        refs = listed.refs.with_texts(
            {
                name: texts_of(_texts(rows, name, uris), name, uris.__getitem__)
                for name in dict.fromkeys((*wanted.required, *wanted.optional))
                if name in (self._present or ())
            }
        )
        for feature in wanted.features if rows else ():
            name = feature.column
            is_raw = feature.type == "bytes"
            values = [row.get(name) for row in rows] if is_raw else _texts(rows, name, uris)
            if feature.role == "captions":
                values = [
                    split_captions(value) if isinstance(row.get(name), bytes) else value
                    for row, value in zip(rows, values, strict=True)
                ]
            refs = with_features(refs, {name: values}, [feature])
        return replace(listed, refs=refs)

    def _check(self, rows: Sequence[Mapping[str, Any]], uris: Sequence[str]) -> None:
        names = {*self._wanted.all_required, *self._wanted.optional}
        if not (rows and names):
            return
        present = {name for row in rows for name in names & row.keys() if row[name] is not None}
        if self._present is None:
            self._present = present
            for name in self._wanted.all_required:
                if name not in present:
                    raise BuildError(
                        f"{self._archive}: no column {name!r}{self._wanted.origin(name)}: "
                        f"no image has a side file .{name} or a field {name!r} in a .json file; "
                        f"{self._first}"
                    )
        for name in present - {*self._present}:
            row = next(row for row, values in enumerate(rows) if values.get(name) is not None)
            raise BuildError(
                f"{uris[row]}: it has a {name}, which the images before it do not have: set "
                f"--{name}s to a rule"
            )


def _size(value: Any) -> int:
    """About the bytes of a value: those of a file, or of a field of an object in JSON."""
    return len(value if isinstance(value, (bytes, str)) else repr(value))


def _texts(rows: Sequence[Mapping[str, Any]], name: str, uris: Sequence[str]) -> list[Any]:
    """The values of a column, side files decoded; None means no value."""
    values = [row.get(name) for row in rows]
    for row, value in enumerate(values):
        if isinstance(value, bytes):
            try:
                values[row] = value.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                message = f"{uris[row]}: its side file .{name} is not a text in UTF-8"
                raise BuildError(message) from error
    return values
