"""A digest of the listing of inputs, which shows whether they have changed. It reads no image.

The digest covers the names, sizes and stamps of archives and TFRecord files, which are not opened.
For a manifest, it covers the manifest's content, but not the images that the manifest names. Of the
other files that a build reads, such as annotations, it covers the sizes and stamps.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from imageshards.pipeline.operations.operation import Operation, Run, run_here
from imageshards.transforms import storage
from imageshards.transforms.elements import InputCount
from imageshards.transforms.inputs.kind import (
    FileState,
    InputKind,
    ListingOptions,
    TextUnit,
    WorkUnit,
    roots_of,
)
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.pairs.pattern import PathPattern
from imageshards.transforms.references.names import Roots

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
    side: PathPattern | None = None,
    others: Iterable[FileState] = (),
    run: Run = run_here,
) -> Fingerprint:
    """Lists inputs, and digests the listing.

    Args:
      inputs: the values of `--input`.
      settings: a text that is digested too, such as `BuildOptions.settings`.
      include_all: whether to count files without the suffix of an image.
      skip_missing: skip inputs that do not exist or hold no image, instead of raising.
      text_unit: the part of a text file that becomes one record; None: inputs are images.
      side: see `ListingOptions`.
      others: the state of other files that the data set depends on. They are not counted.
      run: where to list: `run_here`, or `run_on_beam` with a runner.

    Raises:
      BuildError: an input does not exist, or cannot be listed.
      JobError: the runner's job failed.

    >>> fingerprint(["photos"]).files
    40
    """
    options = ListingOptions(include_all=include_all, text_unit=text_unit, divide=True, side=side)
    texts = [text for text in dict.fromkeys(inputs) if not (skip_missing and _is_missing(text))]
    sources = [identify(text, text_unit) for text in texts]
    outcome = run(Fingerprinting(tuple(sources), options, roots_of(sources)))
    files: dict[str, int] = outcome["files"]
    found = [source for number, source in enumerate(sources) if str(number) in files]
    if len(found) < len(sources) and not skip_missing:
        missing = next(source for source in sources if source not in found)
        InputCount().check(missing.text, text_unit, missing.empty)
    number = sum(files.values())
    total = (int(outcome["total"], 16) + sum(_number(*other) for other in others)) % _MODULUS
    whole = f"{settings}\0{number}\0{total:064x}".encode()
    digest = blake2b(whole, digest_size=32).hexdigest()
    return Fingerprint(digest, number, outcome["bytes"], tuple(source.text for source in found))


@dataclass
class Listing:
    """A digest of files in any order: a sum of their hashes, which needs no memory for the files.

    Attributes:
      total: the sum.
      bytes: of the files whose size is known.
      files: number of an input -> number of its files.
      rest: (number of an input, unit of work) for other workers.
    """

    total: int = 0
    bytes: int = 0
    files: Counter[int] = field(default_factory=Counter)
    rest: list[tuple[int, WorkUnit]] = field(default_factory=list)

    def merge(self, other: Listing) -> None:
        """Adds other files."""
        self.total = (self.total + other.total) % _MODULUS
        self.bytes += other.bytes
        self.files += other.files


@dataclass(frozen=True)
class Fingerprinting(Operation[tuple[int, WorkUnit], Listing]):
    """Lists the units of work of all inputs.

    Attributes:
      sources: the inputs.
      options: how to list.
      roots: of the inputs.
    """

    sources: tuple[InputKind, ...]
    options: ListingOptions
    roots: Roots

    @property
    def divisions(self) -> int:  # type: ignore[override]
        """How many times inputs may be divided, as in their listing."""
        return max((source.divisions(self.options) for source in self.sources), default=0)

    def parts(self) -> Iterator[tuple[int, WorkUnit]]:
        """Yields each input, with its number."""
        return ((number, WorkUnit(source)) for number, source in enumerate(self.sources))

    def undivided(self) -> Fingerprinting:
        """Returns the operation for a worker that lists each unit as a whole."""
        return replace(self, options=replace(self.options, divide=False))

    def rest(self, result: Listing) -> list[tuple[int, WorkUnit]]:
        """Removes the units for other workers."""
        rest, result.rest = result.rest, []
        return rest

    def process(self, part: tuple[int, WorkUnit]) -> Listing:
        """Lists a unit."""
        number, unit = part
        source = unit.input
        root = self.roots.outermost(source.root) or len(source.root)
        listing = Listing()
        for found in source.fingerprint(unit, self.options):
            if isinstance(found, WorkUnit):
                listing.rest.append((number, found))
                continue
            uri, size, stamp = found
            listing.total += _number(uri, root, size, stamp)
            listing.bytes += max(size, 0)
            listing.files[number] += 1
        listing.total %= _MODULUS
        return listing

    def empty(self) -> Listing:
        """Returns the listing of no unit."""
        return Listing()

    def finish(self, result: Listing) -> dict[str, Any]:
        """Returns the listing."""
        return {
            "total": f"{result.total:064x}",
            "bytes": result.bytes,
            "files": {str(number): files for number, files in result.files.items()},
        }


def _number(*state: object) -> int:
    """Returns a hash of a file's state."""
    line = "\0".join(map(str, state)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(line, digest_size=32).digest())


def _is_missing(text: str) -> bool:
    uri = storage.normalize(text)
    return storage.is_local(uri) and not glob.has_magic(uri) and not os.path.lexists(uri)
