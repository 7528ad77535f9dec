"""Counts of annotations: what the files hold, and what fits an image of the inputs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow.compute as pc

from imageshards.transforms.elements import BuildError, counted, quoted
from imageshards.transforms.records.objects import FACTS
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.classes import BACKGROUND

MOST_LISTED = 1000
"""Names of images that are listed, of those that only an annotation file has."""
_UPLOAD = re.compile("[0-9a-f]{8}-.")
_ADVICE_ON_UPLOADS = (
    "Label Studio writes eight hexadecimal digits and a hyphen before the names of uploaded "
    "images; use the images of its export"
)


class AnnotationCount(NamedTuple):
    """Counts of a file of annotations, or of a part of it.

    Attributes:
      read: objects in the file.
      images: images of the inputs that the file names.
      other_folders: those of these images that the file has in other folders; they were found by
        their base names.
      objects: objects of all these images.
      unmatched_images: images in the file that are not among the inputs.
      unmatched_objects: their objects.
      same_folders: images of the inputs whose folder is the last one that the file names.
      moved: one of those whose folder is another one, with its URI; empty if there is none.
    """

    read: int = 0
    images: int = 0
    other_folders: int = 0
    objects: int = 0
    unmatched_images: int = 0
    unmatched_objects: int = 0
    same_folders: int = 0
    moved: str = ""

    def __add__(self, other: object) -> AnnotationCount:
        assert isinstance(other, AnnotationCount)
        numbers = map(sum, zip(self[:-1], other[:-1], strict=True))
        moved = min(filter(None, (self.moved, other.moved)), default="")
        return AnnotationCount._make((*numbers, moved))

    def to_json(self) -> dict[str, int]:
        """Returns the counts for build.json."""
        left_out = ("read", "same_folders", "moved")
        return {name: value for name, value in self._asdict().items() if name not in left_out}


class Unmatched(NamedTuple):
    """An image that an annotation file names, and that is not among the inputs.

    Attributes:
      file: the annotation file.
      name: the image.
      objects: the number of its objects.
    """

    file: str
    name: str
    objects: int


def count_objects(refs: RefBatch) -> int:
    """Returns the number of annotated objects of references."""
    if FACTS not in refs.feature_columns:
        return 0
    numbers = pc.list_flatten(pc.list_slice(refs.rows.column(FACTS), 0, 1))
    return int(pc.sum(numbers).as_py() or 0)


def first_unmatched(found: Iterable[Unmatched]) -> tuple[Unmatched, ...]:
    """Returns the first of them by file and name, at most `MOST_LISTED`."""
    return tuple(sorted(found)[:MOST_LISTED])


def number_objects(classes: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the names of classes of objects by their numbers, after the background, number 0.

    Args:
      classes: name -> number in the annotation files; they are numbered in this order, from 1.

    >>> number_objects({"owl": 18, "cat": 17})
    ('background', 'cat', 'owl')
    """
    if not classes:
        return ()
    names = sorted(classes, key=lambda name: (classes[name], name))
    for name in names:
        if name != name.strip() or "\n" in name or not name or name == BACKGROUND:
            raise BuildError(
                f"--annotations: the class {quoted(name)} is {BACKGROUND!r}, is empty, or has "
                "spaces at its ends or a line break: rename it"
            )
    return (BACKGROUND, *names)


def match_notes(
    counts: Mapping[str, AnnotationCount], unannotated: int, listed: int
) -> Iterator[str]:
    """Yields what a user should know about images and the files that annotate them.

    Args:
      counts: annotation file -> its counts.
      unannotated: images that no file names.
      listed: all images.
    """
    for file, count in sorted(counts.items()):
        if not count.read:
            yield f"{file} has no annotations, but names {counted(count.images, 'image')}"
        if count.other_folders:
            yield (
                f"{file} has {count.other_folders:,} of its {counted(count.images, 'image')} in "
                "other folders than the inputs: they were found by their base names"
            )
    if unannotated:
        have = "has" if unannotated == 1 else "have"
        yield (
            f"{unannotated:,} of {counted(listed, 'image')} {have} no annotations, because no "
            "annotation file names them"
        )


def check_annotated(
    counts: Mapping[str, AnnotationCount], unmatched: Iterable[Unmatched], selected: bool
) -> None:
    """Checks that no annotation is lost, and that each file annotates images of the inputs.

    Args:
      counts: annotation file -> its counts.
      unmatched: images that are not among the inputs.
      selected: whether `--where` has left out images.

    Raises:
      BuildError: the runner lost some, a file has none, base names may be those of images that are
        left out, or images are in some of the folders that a file names, and in others.
    """
    for file, count in sorted(counts.items()):
        if count.read != count.objects + count.unmatched_objects:
            raise BuildError(
                f"{file}: {counted(count.read, 'object')} were read, but {count.objects:,} and "
                f"{count.unmatched_objects:,} came out of the join: the runner lost some"
            )
        if not count.images and not count.unmatched_images:
            raise BuildError(f"--annotations {file} has no images and no objects")
        if not count.images:
            example = next((item.name for item in unmatched if item.file == file), "")
            is_upload = _UPLOAD.match(example.rpartition("/")[2])
            advice = f": {_ADVICE_ON_UPLOADS}" if is_upload else ""
            raise BuildError(
                f"--annotations {file}: none of its {counted(count.unmatched_images, 'image')} is "
                f"among the inputs{' that --where selects' * selected}"
                f"{f', such as {quoted(example)}' if example else ''}{advice}"
            )
        if selected and count.other_folders:
            raise BuildError(
                f"--annotations {file}: {count.other_folders:,} of its images are in other folders "
                "than the inputs. They may be images that --where leaves out: correct their paths, "
                "or build without --where"
            )
        if count.unmatched_objects and not count.objects and not selected:
            names = (item.name for item in unmatched if item.file == file and item.objects)
            example = next(names, "")
            raise BuildError(
                f"--annotations {file}: none of its {counted(count.read, 'annotation')} is of one "
                f"of the {counted(count.images, 'image')} of the inputs that it names, but of "
                f"others{f', such as {quoted(example)}' if example else ''}: correct the ids of "
                "the images in the file, or add the images to the inputs"
            )
        if count.same_folders and count.moved:
            raise BuildError(
                f"--annotations {file}: {counted(count.same_folders, 'image')} of the inputs "
                f"{'is' if count.same_folders == 1 else 'are'} in the folder that it names, but "
                f"others only have the base name of one: {count.moved}? Add the missing images to "
                "the inputs, or remove them from the file"
            )
    if counts and not any(count.read for count in counts.values()):
        raise BuildError(
            f"--annotations {', '.join(sorted(counts))}: there are no annotations, only names of "
            "images: use the file with annotations, or omit --annotations"
        )
