"""Which format an `--annotations` has."""

from __future__ import annotations

from imageshards.transforms import storage
from imageshards.transforms.annotations.coco import Coco
from imageshards.transforms.annotations.source import AnnotationSource
from imageshards.transforms.elements import UsageError

FORMATS: dict[str, type[AnnotationSource]] = {source.name: source for source in (Coco,)}
"""Name of a format -> its class."""


def identify(text: str, name: str) -> AnnotationSource:
    """Returns an `--annotations` as an object of its format.

    Args:
      text: as the user wrote it.
      name: of the format, or `auto`.

    Raises:
      UsageError: there is no such file, or its format is not known.
    """
    uri = storage.normalize(text)
    kinds = [FORMATS[name]] if name in FORMATS else list(FORMATS.values())
    try:
        for kind in kinds:
            if kind.recognizes(uri):
                return kind(uri)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"--annotations {text}: no such file or folder") from error
    nouns = ", ".join(kind.noun for kind in kinds)
    raise UsageError(f"--annotations {text} is not {nouns}")
