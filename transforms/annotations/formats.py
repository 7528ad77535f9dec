"""Which format an `--annotations` has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from imageshards.transforms import storage
from imageshards.transforms.annotations.captions import CocoCaptions
from imageshards.transforms.annotations.coco import Coco, CocoKeypoints
from imageshards.transforms.annotations.cvat import Cvat
from imageshards.transforms.annotations.files import FileOfEach
from imageshards.transforms.annotations.hub import HubCorners, HubSizes
from imageshards.transforms.annotations.labelme import LabelMe
from imageshards.transforms.annotations.panoptic import CocoPanoptic
from imageshards.transforms.annotations.source import AnnotationSource
from imageshards.transforms.annotations.tables import BoxTable
from imageshards.transforms.annotations.voc import Voc
from imageshards.transforms.annotations.yolo import Yolo, YoloKeypoints
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.references.rules import ARCHIVE_SUFFIXES

FORMATS: dict[str, type[AnnotationSource]] = {
    source.name: source
    for source in (
        Coco, CocoKeypoints, CocoPanoptic, CocoCaptions, BoxTable, Cvat, Voc, LabelMe, HubSizes,
        HubCorners, YoloKeypoints, Yolo,
    )
}  # fmt: skip
"""Name of a format -> its class; the first one that recognizes a file is taken."""

_WHOLE = (".json", ".xml", ".csv")
_MOST_LOOKED_AT = 10


def identify(text: str, name: str, masks: bool = False, name_key: str = "") -> AnnotationSource:
    """Returns an `--annotations` as an object of its format.

    Args:
      text: as the user wrote it.
      name: of the format, or `auto`.
      masks: whether to read the masks of objects.
      name_key: see `AnnotationSource`.

    Raises:
      UsageError: there is no such file, or its format is not known, or has no masks.
    """
    uri = storage.normalize(text)
    if storage.is_local(uri) and not os.path.exists(uri):
        raise UsageError(f"--annotations {text}: no such file or folder")
    kinds = [FORMATS[name]] if name in FORMATS else list(FORMATS.values())
    try:
        for kind in kinds:
            if not (kind.recognizes(uri) and (name in FORMATS or kind.is_meant(uri))):
                continue
            if masks and not kind.has_masks:
                raise UsageError(f"--object_masks: {text} is {kind.noun}, which has no masks")
            found = kind(uri, masks, name_key)
            found.check()
            return found
    except (OSError, storage.ReadError) as error:
        raise UsageError(f"--annotations {text} cannot be read: {error}") from error
    if uri.lower().endswith(ARCHIVE_SUFFIXES):
        raise UsageError(f"--annotations {text} is an archive: unpack it first")
    if inside := _file_inside(uri, kinds):
        raise UsageError(f"--annotations {text} is a folder: write --annotations {inside}")
    if len(kinds) == 1:
        raise UsageError(f"--annotations {text} is not {kinds[0].noun}")
    *names, last = FORMATS
    raise UsageError(
        f"--annotations {text}: not annotations of {', '.join(names)} or {last}; an "
        "--annotation_format shows what is expected"
    )


def check_distinct(sources: Sequence[AnnotationSource]) -> None:
    """Checks that no file is read twice, which would count its objects twice.

    Only sources of which one is in the folder of another one list their files.

    Raises:
      UsageError: two sources are the same, or one of them contains the other.
    """
    for at, one in enumerate(sources):
        for other in sources[:at]:
            if one.uri == other.uri:
                raise UsageError(f"--annotations {one.uri} is set twice: omit one of them")
            if not (_contains(one, other) or _contains(other, one)):
                continue
            if both := sorted(_files(one) & _files(other)):
                raise UsageError(
                    f"--annotations {other.uri} and {one.uri} both have {both[0]}: omit one of them"
                )


def _contains(outer: AnnotationSource, inner: AnnotationSource) -> bool:
    """Returns whether the folder of a source is that of another one, or is below it."""
    return _real(inner.folder).startswith(_real(outer.folder).rstrip("/") + "/")


def _files(source: AnnotationSource) -> set[str]:
    return {_real(file) for files in source.parts() for file in files}


def _real(uri: str) -> str:
    """Returns a URI without symbolic links; a folder of files has a slash at its end."""
    if not storage.is_local(uri):
        return uri
    return os.path.realpath(uri) + ("/" if uri.endswith("/") else "")


def _file_inside(folder: str, kinds: Iterable[type[AnnotationSource]]) -> str:
    """Returns a file of annotations of all images in a folder, as exports have it; or empty."""
    if not storage.is_local(folder) or not os.path.isdir(folder):
        return ""
    files = [entry.path for entry in os.scandir(folder) if entry.name.endswith(_WHOLE)]
    for path in sorted(files)[:_MOST_LOOKED_AT]:
        with suppress(UsageError, BuildError, OSError, storage.ReadError):
            if any(kind.recognizes(path) for kind in kinds if not issubclass(kind, FileOfEach)):
                return path
    return ""
