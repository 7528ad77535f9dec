"""Archives as inputs: each image is a byte range of its archive, which is not unpacked.

Names in an archive are used in URIs and labels, and never as paths on this machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
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
from imageshards.transforms.inputs.archives.tars import tar_members
from imageshards.transforms.inputs.archives.zips import zip_members
from imageshards.transforms.inputs.kind import FileKind, ListingOptions, register
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

    def list_file(
        self, root_length: int, size: int, stamp: int, options: ListingOptions
    ) -> Iterator[Listed]:
        """Lists the members; a compressed tar is first unpacked into `options.scratch`."""
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
                members = zip_members(view) if self.is_zip else tar_members(view)
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
                if rows:
                    yield rows.take()
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
