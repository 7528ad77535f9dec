"""Which kind of input an `--input` is."""

from __future__ import annotations

import os
import pkgutil
from importlib import import_module

from imageshards.transforms import inputs, storage
from imageshards.transforms.elements import BuildError, Codec
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs.braces import Braces
from imageshards.transforms.inputs.files import Folder, Pattern, SingleFile
from imageshards.transforms.inputs.kind import KINDS, InputKind, TextUnit, kind_of_name
from imageshards.transforms.inputs.texts import TextFile


def kind_of_codec(codec: Codec) -> type[InputKind]:
    """The kind that reads byte ranges of a codec."""
    return next((kind for kind in KINDS if codec in kind.codecs), InputKind)


def identify(text: str, text_unit: TextUnit | None = None) -> InputKind:
    """Returns an `--input` as an object of its kind.

    Args:
      text: as the user wrote it.
      text_unit: the part of a text file that becomes one record; None: inputs are images.

    Raises:
      BuildError: the input does not exist, or its kind cannot be read.

    >>> identify("gs://bucket/photos/*.jpg")
    Pattern(text='gs://bucket/photos/*.jpg', uri='gs://bucket/photos/*.jpg')
    >>> identify("gs://bucket/list.csv").noun
    'a manifest'
    """
    if not text:
        raise BuildError("--input is empty: write a folder, a pattern or a manifest")
    uri = storage.normalize(text)
    storage.require_filesystem(uri)
    named = kind_of_name(uri)
    is_local = storage.is_local(uri)
    if not storage.can_list(uri):
        if text_unit:
            raise BuildError(f"--input {text}: texts are not read from the web: download the file")
        if named or uri.endswith("/"):
            raise BuildError(
                f"--input {text}: only single images are read from the web: download a "
                "manifest or an archive, and list the images of a folder in a manifest"
            )
        return SingleFile(text, uri)
    if is_local and os.path.isdir(uri):
        return Folder(text, uri)
    if is_local and uri.lower().endswith(".json") and not text_unit:
        raise BuildError(f"--input {text}: write it as JSONL, with one object per line (.jsonl)")
    if is_local and uri.lower().endswith((".xls", ".xlsx", ".ods")) and not text_unit:
        raise BuildError(f"--input {text} is a spreadsheet: save it as CSV, with a column uri")
    pattern = next((kind for kind in (Braces, Pattern) if kind.recognizes(uri)), None)
    if pattern and not (is_local and os.path.lexists(uri)):
        return pattern(text, uri)
    is_text = bool(text_unit) and TextFile.recognizes(uri)
    if text_unit and named and not is_text:
        raise BuildError(f"--input {text} is {named.noun}, but --features text requires text files")
    if is_local and not os.path.lexists(uri):
        raise BuildError(f"--input {text}: no such file or folder")
    if not (is_local or named or is_image_name(uri) or is_text):
        return Folder(text, uri)  # object stores hold no folders, only prefixes of names
    kind = TextFile if text_unit else named or SingleFile
    return kind(text, uri)


# Each module registers its kinds. This is the last step, because some modules import this one.
for _module in pkgutil.walk_packages(inputs.__path__, f"{inputs.__name__}."):
    import_module(_module.name)
