"""Archives as inputs: each image is a byte range of its archive, which is not unpacked.

Names in an archive are used in URIs and labels, and never as paths on this machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Codec
from imageshards.transforms.inputs import ranges, unpack
from imageshards.transforms.inputs.archives.members import (
    Member,
    NotAnArchive,
    View,
    reads_at,
)
from imageshards.transforms.inputs.archives.samples import Grouping, SampleRows
from imageshards.transforms.inputs.archives.stored import LARGE_BYTES, members_file, stored
from imageshards.transforms.inputs.archives.tars import inner_members, tar_members
from imageshards.transforms.inputs.archives.zips import zip_members
from imageshards.transforms.inputs.kind import FileKind, ListingOptions, WorkUnit, register
from imageshards.transforms.inputs.listed import Listed
from imageshards.transforms.pairs.pattern import PathPattern
from imageshards.transforms.pairs.side_file import inside
from imageshards.transforms.references.rules import ARCHIVE_SUFFIXES


@register
class Archive(FileKind):
    """A tar, compressed or not, also in the format of WebDataset, or a zip."""

    noun = "an archive"

    @property
    def root(self) -> str:
        """The archive: the path of a member is its name."""
        return self.uri + "/"

    @property
    def is_zip(self) -> bool:
        """Whether it has the suffix of a zip."""
        return self.uri.lower().endswith(".zip")

    @classmethod
    def recognizes(cls, uri: str) -> bool:
        """Whether a URI has the suffix of an archive."""
        return uri.lower().endswith(ARCHIVE_SUFFIXES)

    def check(self, options: ListingOptions) -> None:
        """Raises a BuildError if columns of a zip are required: it does not have any."""
        if self.is_zip:
            self.refuse_columns(options)

    def divisions(self, options: ListingOptions) -> int:
        """The tars in a large tar are units of work."""
        return int(self._is_large_tar(storage.size(self.uri)))

    def _is_large_tar(self, size: int) -> bool:
        is_plain = not self.is_zip and not unpack.is_packed(self.uri)
        return is_plain and size >= LARGE_BYTES

    def list_unit(self, unit: WorkUnit, options: ListingOptions) -> Iterator[Listed | WorkUnit]:
        """Lists the archive, or a tar in it; of a large tar, yields the tars in it as units."""
        place = unit.part or (len(self.root), *storage.stat(self.uri))
        root_length, size, stamp, *inner = place
        yield from self._list(root_length, size, stamp, options, *inner)

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the members; a compressed tar is first unpacked into `options.scratch`."""
        for found in self._list(root_length, size, stamp, replace(options, divide=False)):
            assert isinstance(found, Listed)
            yield found

    def _list(
        self,
        root_length: int,
        size: int,
        stamp: int,
        options: ListingOptions,
        inner: Member | None = None,
    ) -> Iterator[Listed | WorkUnit]:
        """Lists the members of the archive, or of a tar in it; see `list_file`."""
        self.check_regular()
        self.check(options)
        container = self.uri
        unpacked = ""
        if unpack.is_packed(self.uri):
            container = unpacked = unpack.unpack(self.uri, size, stamp, options.scratch)
        codec: Codec = "zip" if self.is_zip else "stored"
        try:
            with storage.open_read(container) as file:
                ranges.check_readable(container, stamp)
                file.seek(0, io.SEEK_END)
                view = View(reads_at(file, container), 0, file.tell())
                if self.is_zip:
                    members = zip_members(view)
                elif inner:
                    members = inner_members(view.part(inner.offset, inner.size), inner.path)
                elif self._is_large_tar(size):
                    members = tar_members(view, divide=options.divide)
                    if stamp and options.scratch:
                        source = self.uri, size, stamp, options.divide
                        unpacked = members_file(source, options.scratch)
                        members = stored(members, unpacked, options.scratch)
                else:
                    members = tar_members(view)
                tars: list[Member] = []
                members = _without_tars(members, tars)
                place = partial(_place, container, ranges.stamp_of(container, stamp))
                grouping = Grouping(self.uri, options, None if self.is_zip else view, place)
                rows = SampleRows(self.uri, grouping.columns, container, codec, unpacked)
                side = options.side
                for sample in grouping.samples(members):
                    if side and sample.images:
                        self._check_side(side, f"{self.uri}/{sample.images[0].path}", root_length)
                        side = None
                    rows.add_sample(sample, root_length, stamp)
                    if rows.is_full:
                        yield rows.take()
                if rows or unpacked:
                    yield rows.take()
                for tar in tars:
                    yield WorkUnit(self, (root_length, size, stamp, tar))
        except NotAnArchive as error:
            raise BuildError(f"{self.uri}: {error}") from error
        except OSError as error:
            raise self.unreadable(error) from error

    def _check_side(self, side: PathPattern, uri: str, root_length: int) -> None:
        """Raises a BuildError if the path of the side file of an image is inside of the archive."""
        root = side.base if side.base and uri.startswith(side.base) else uri[:root_length]
        if side.uri(root, uri.removeprefix(root)).startswith(self.root):
            raise BuildError(
                f"{self.uri}: {side.text!r} is a path inside of the archive, where masks and "
                "captions are not found: unpack the archive; side files of WebDataset are "
                "columns, such as --masks column:seg.png and --captions column:txt"
            )


def _place(container: str, stamp: int, found: Member) -> bytes:
    return inside(container, found.offset, found.length, stamp)


def _without_tars(members: Iterator[Member], tars: list[Member]) -> Iterator[Member]:
    """Yields members, and appends to `tars` those to list by themselves."""
    for found in members:
        if found.is_tar:
            tars.append(found)
        else:
            yield found
