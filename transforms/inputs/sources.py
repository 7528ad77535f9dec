"""The kinds of inputs, and which of them an `--input` is."""

from __future__ import annotations

import os

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, Codec
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs.archives import Archive
from imageshards.transforms.inputs.files import Folder, Pattern, SingleFile
from imageshards.transforms.inputs.kind import InputKind, TextUnit
from imageshards.transforms.inputs.manifests import Manifest
from imageshards.transforms.inputs.texts import TextFile
from imageshards.transforms.inputs.tfrecords import TFRecordFile

KINDS: list[type[InputKind]] = [Manifest, Archive, TFRecordFile]
"""The kinds that are recognised by the name of a file; the first that matches is taken."""


def register(kind: type[InputKind]) -> type[InputKind]:
    """Adds a kind, before the others. A class decorator.

    On a runner with worker processes, the module that calls this must be installed on the workers.
    """
    KINDS.insert(0, kind)
    return kind


def kind_of_codec(codec: Codec) -> type[InputKind]:
    """The kind that reads byte ranges of a codec."""
    return next((kind for kind in KINDS if codec in kind.codecs), SingleFile)


def identify(text: str, text_unit: TextUnit | None = None) -> InputKind:
    """Tells what an `--input` is.

    Args:
      text: as the user wrote it.
      text_unit: what one record of a text file is, if inputs are texts; None: they are images.

    Raises:
      BuildError: the input does not exist, or cannot be read.

    >>> identify("gs://bucket/photos/*.jpg")
    Pattern(text='gs://bucket/photos/*.jpg', uri='gs://bucket/photos/*.jpg')
    >>> identify("gs://bucket/list.csv").noun
    'a manifest'
    """
    if not text:
        raise BuildError("--input is empty: write a folder, a pattern or a manifest")
    uri = storage.normalize(text)
    named = next((kind for kind in KINDS if kind.recognises(uri)), None)
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
    if Pattern.recognises(uri) and not (is_local and os.path.lexists(uri)):
        return Pattern(text, uri)
    if text_unit and named and not TextFile.recognises(uri):
        raise BuildError(f"--input {text} is {named.noun}, but --features text requires text files")
    if is_local and not os.path.lexists(uri):
        raise BuildError(f"--input {text}: no such file or folder")
    if not (is_local or named or is_image_name(uri) or (text_unit and TextFile.recognises(uri))):
        return Folder(text, uri)  # object stores hold no folders, only prefixes of names
    kind = TextFile if text_unit else named or SingleFile
    return kind(text, uri)
