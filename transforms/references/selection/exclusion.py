"""Lists of names and URIs that a data set leaves out: one per line of a text file."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO, NamedTuple, cast

import pyarrow as pa

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import hash_keys
from imageshards.transforms.references.names import Roots

_LINES_AT_A_TIME = 1 << 16
_LONGEST_LINE = 1 << 16


def read_list(uri: str, roots: Roots, files: Mapping[str, int], seed: int) -> Iterator[RefBatch]:
    """Reads a list, and yields its lines as references with keys: those of the images they name.

    Args:
      uri: URI of the file; it is compressed if it ends in .gz.
      roots: of the inputs: a line that is a URI gets the name that an image there has.
      files: URI of each input that is a file -> length of its root.
      seed: of the data set.

    Raises:
      BuildError: it cannot be read.
    """
    try:
        with storage.open_read(uri) as file:
            lines = _lines(uri, file)
            while some := list(islice(lines, _LINES_AT_A_TIME)):
                uris = [storage.normalize(line) if is_uri(line) else line for line in some]
                starts = [roots.length_of(line, files) if is_uri(line) else 0 for line in uris]
                listed = RefBatch.listed(uris, starts)
                keys, _ = hash_keys(seed, listed.encoded_names)
                nothing = pa.nulls(len(uris), pa.string())
                yield listed.annotated(keys, pa.nulls(len(uris), pa.large_binary()), nothing)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BuildError(f"--exclude {uri}: cannot be read: {reason}") from error


def _lines(uri: str, file: IO[bytes]) -> Iterator[str]:
    data = gzip.GzipFile(fileobj=file) if uri.lower().endswith(".gz") else file
    text = io.TextIOWrapper(cast(IO[bytes], data), "utf-8-sig", errors="surrogateescape")
    number = 0
    while line := text.readline(_LONGEST_LINE):
        number += 1
        if len(line) >= _LONGEST_LINE:
            raise BuildError(
                f"--exclude {uri}:{number}: a line of more than {_LONGEST_LINE:,} characters, "
                "which is no name or URI"
            )
        if name := line.rstrip("\r\n"):
            yield name


def is_uri(line: str) -> bool:
    """Whether a line of a list is a URI or an absolute path, and not a name.

    >>> is_uri("gs://bucket/1.jpg"), is_uri("/d/1.jpg"), is_uri("cat/1.jpg")
    (True, True, False)
    """
    return line.startswith(("/", "~")) or "://" in line


class Compared(NamedTuple):
    """References and lines with the same keys, compared.

    Attributes:
      others: the references that no line names.
      lines: number of lines.
      unknown: lines that name no reference.
    """

    others: RefBatch
    lines: int
    unknown: list[str]


def compare(refs: RefBatch, lines: RefBatch) -> Compared:
    """Leaves out the references that lines name.

    >>> refs = RefBatch.listed(["/d/cat/1.jpg", "/d/cat/2.jpg"], [3, 3])
    >>> compare(refs, RefBatch.listed(["cat/1.jpg", "cat/3.jpg"], [0, 0])).unknown
    ['cat/3.jpg']
    """
    names, wanted = refs.encoded_names, lines.encoded_names
    found, listed = set(names), set(wanted)
    others = [row for row, name in enumerate(names) if name not in listed]
    uris = lines.uris
    unknown = [uris[row] for row, name in enumerate(wanted) if name not in found]
    return Compared(refs.take(others), len(wanted), unknown)
