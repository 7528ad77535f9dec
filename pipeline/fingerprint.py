"""A digest of the listing of inputs, which shows whether they have changed. It reads no image.

The digest covers the names, sizes and stamps of archives and TFRecord files, which are not opened.
For a manifest, it covers the manifest's content, but not the images that the manifest names.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from imageshards.transforms import storage
from imageshards.transforms.elements import InputCount
from imageshards.transforms.inputs.kind import (
    ListingOptions,
    TextUnit,
    roots_of,
)
from imageshards.transforms.inputs.sources import identify

_MODULUS = 1 << 256


@dataclass(frozen=True)
class Fingerprint:
    """The result of `fingerprint`.

    Attributes:
      digest: 64 hexadecimal digits, which differ when a file is added, removed or changed, or when
        `settings` differ, or when the inputs give the images other names. The order of the inputs
        does not matter.
      files: images, archives, TFRecord files, manifests and text files.
      bytes: of the files whose size is known.
      inputs: the inputs that hold any file.
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
    skip_missing: bool = False,
    text_unit: TextUnit | None = None,
) -> Fingerprint:
    """Lists inputs, and digests the listing.

    Args:
      inputs: the values of `--input`.
      settings: a text that is digested too, such as `BuildOptions.settings`.
      include_all: whether to count files without the suffix of an image.
      skip_missing: skip inputs that do not exist or hold no image, instead of raising.
      text_unit: the part of a text file that becomes one record; None: inputs are images.

    Raises:
      BuildError: an input does not exist, or cannot be listed.

    >>> fingerprint(["photos"]).files
    40
    """
    options = ListingOptions(include_all=include_all, text_unit=text_unit)
    # A sum does not depend on the order of the listing, and needs no memory for the files.
    total = files = size = 0
    found = []
    texts = [text for text in dict.fromkeys(inputs) if not (skip_missing and _is_missing(text))]
    sources = [identify(text, text_unit) for text in texts]
    roots = roots_of(sources)
    for source in sources:
        before = files
        root = roots.outermost(source.root) or len(source.root)
        for uri, length, stamp in source.fingerprint(options):
            line = f"{uri}\0{root}\0{length}\0{stamp}".encode("utf-8", "surrogateescape")
            total += int.from_bytes(blake2b(line, digest_size=32).digest())
            files += 1
            size += max(length, 0)
        if files > before:
            found.append(source.text)
        elif not skip_missing:
            InputCount().check(source.text, text_unit)
    whole = f"{settings}\0{files}\0{total % _MODULUS:064x}".encode()
    return Fingerprint(blake2b(whole, digest_size=32).hexdigest(), files, size, tuple(found))


def _is_missing(text: str) -> bool:
    uri = storage.normalize(text)
    return storage.is_local(uri) and not glob.has_magic(uri) and not os.path.lexists(uri)
