"""Whether inputs have changed since: a digest of their listing. No pixels, no Beam.

Archives and TFRecord files are not looked into: their own names, sizes and times stand for what
they hold. Of a manifest it is what it says, and not what has become of the images that it names.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.images.validate import is_image_name
from imageshards.transforms.inputs.archives import is_archive
from imageshards.transforms.inputs.listing import Source
from imageshards.transforms.inputs.sources import identify, list_source
from imageshards.transforms.inputs.tfrecords import is_records

_SUM = 1 << 128


@dataclass(frozen=True)
class Fingerprint:
    """What a cheap listing of inputs says.

    Attributes:
      digest: another one when a file came, went or changed, or when `settings` differ; the order
        and the number of the inputs are nothing to it. 32 hexadecimal digits.
      files: images, archives, TFRecord files and manifests.
      bytes: of those whose size is known.
      inputs: those that hold anything.
    """

    digest: str
    files: int
    bytes: int
    inputs: tuple[str, ...]


def fingerprint(
    inputs: Sequence[str],
    settings: str = "",
    *,
    include_all: bool = False,
    exclude: str = "",
    skip_missing: bool = False,
) -> Fingerprint:
    """Lists inputs, and digests what it finds.

    Args:
      inputs: as `--input` has them.
      settings: digested with it: what else decides the data set.
      include_all: files count whatever their name.
      exclude: a folder that is not walked into: the output.
      skip_missing: an input that is not there, or holds no image, is left out; else it is an error.

    Raises:
      BuildError: an input is not there, or cannot be listed.
    """
    # A sum, since folders are listed in any order, and not all files fit into memory.
    total = files = size = 0
    found = []
    for text in dict.fromkeys(inputs):
        before = files
        if not (skip_missing and _is_missing(text)):
            for uri, length, stamp in _files(identify(text), include_all, exclude, skip_missing):
                line = f"{uri}\0{length}\0{stamp}".encode("utf-8", "surrogateescape")
                total += int.from_bytes(blake2b(line, digest_size=16).digest())
                files += 1
                size += max(length, 0)
        if files > before:
            found.append(text)
        elif not skip_missing:
            raise BuildError(f"--input {text}: no image there")
    whole = f"{settings}\0{files}\0{total % _SUM:032x}".encode()
    return Fingerprint(blake2b(whole, digest_size=16).hexdigest(), files, size, tuple(found))


def _is_missing(text: str) -> bool:
    uri = storage.normalize(text)
    return storage.is_local(uri) and not glob.has_magic(uri) and not os.path.lexists(uri)


_File = tuple[str, int, int | str]  # uri, bytes or -1, what changes with its content


def _files(source: Source, include_all: bool, exclude: str, skip_missing: bool) -> Iterator[_File]:
    uri = source.uri
    if source.kind == "manifest":
        # By content, since manifests are often written anew with nothing changed.
        yield uri, *_content(uri)
    elif source.kind == "folder":
        yield from _folder(source, include_all, exclude, skip_missing)
    elif source.kind == "glob":
        for path, size, stamp in _matches(source, include_all, exclude):
            named = is_image_name(path) or is_archive(path) or is_records(path)
            if include_all or (named and not path.rpartition("/")[2].startswith(".")):
                yield path, size, stamp
    else:
        yield uri, *storage.stat(uri)


def _content(uri: str) -> tuple[int, str]:
    digest, size = blake2b(digest_size=16), 0
    try:
        with storage.open_read(uri) as file:
            while data := file.read(1 << 20):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise BuildError(f"{uri}: cannot be read: {error.strerror or error}") from error
    return size, digest.hexdigest()


def _folder(source: Source, include_all: bool, exclude: str, skip_missing: bool) -> Iterator[_File]:
    try:
        for chunk in list_source(source, include_all=include_all, exclude=exclude):
            yield from zip(chunk.uris, chunk.sizes, chunk.stamps, strict=True)
    except BuildError as error:
        if not (skip_missing and f"{source.text}: no image there" in str(error)):
            raise


def _matches(source: Source, include_all: bool, exclude: str) -> Iterator[_File]:
    if not storage.is_local(source.uri):
        yield from (found for found in storage.match(source.uri) if not found[0].endswith("/"))
        return
    for path in glob.iglob(source.uri, recursive=True):
        if not os.path.isdir(path):
            yield path, *storage.stat(path)
        elif "**" not in source.uri:  # which yields all that is below a folder by itself
            yield from _folder(Source(source.text, path, "folder"), include_all, exclude, True)
