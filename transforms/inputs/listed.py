"""The results of listing: batches of references, and counts of skipped files and lines."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from imageshards.transforms.elements import Codec, InputCount, Problem, Skipped
from imageshards.transforms.references.batch import RefBatch

CHUNK_ROWS = 1 << 14
"""Rows of one batch: memory does not grow with the length of an input."""
CHUNK_BYTES = 16 << 20
"""Bytes of the values of one batch: memory does not grow with the length of values, either."""


@dataclass(frozen=True)
class Listed:
    """Some references of an input, and counts of skipped files and lines.

    Attributes:
      refs: the references, as `RefBatch.listed` builds them; may be empty.
      passed_over: files that were left out because their names are not those of images.
      skipped: the kinds of these files; see `InputCount`.
      class_names: column -> names of its classes in label order, if the input has them.
      blank_lines: lines of a text file that hold only white space.
      unpacked: URI of a file that the listing wrote below the output, such as an unpacked tar;
        empty: none.
    """

    refs: RefBatch
    passed_over: int = 0
    blank_lines: int = 0
    unpacked: str = ""
    skipped: Mapping[Skipped, int] = field(default_factory=dict)
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def count(self) -> InputCount:
        """The counts that tell whether an input has references."""
        return InputCount(len(self.refs), self.passed_over, self.skipped)


class ListedRows:
    """Collects references one by one, and returns them as `Listed`.

    Attributes:
      container: URI of the file that all references are byte ranges of; empty: they are files.
      passed_over: see `Listed`.
      blank_lines: see `Listed`.
      held_bytes: about the bytes of URIs and values; who appends to `columns` adds theirs.
      columns: name -> texts of a column that a label, a split or a group may come from; a lister
        appends one text, or None, for each reference.

    >>> rows = ListedRows()
    >>> rows.add("/photos/cat/1.jpg", root_length=8, size=9000)
    >>> rows.take().refs.uris
    ['/photos/cat/1.jpg']
    >>> len(rows)
    0
    """

    def __init__(
        self,
        container: str = "",
        codec: Codec = "stored",
        unpacked: str = "",
        columns: Iterable[str] = (),
    ) -> None:
        """Creates an empty collection.

        Args:
          container: URI of the file that all references are byte ranges of; empty: they are files.
          codec: how to read these ranges.
          unpacked: see `Listed`.
          columns: names of the columns.
        """
        self.container = container
        self._codec = codec
        self._unpacked = unpacked
        self._names = tuple(columns)
        self._clear()

    def _clear(self) -> None:
        self._uris: list[str] = []
        self._roots = array("I")
        self._sizes = array("q")
        self._stamps = array("q")
        self._offsets = array("q")
        self._lengths = array("q")
        self._problems: dict[int, Problem] = {}
        self.columns: dict[str, list[str | None]] = {name: [] for name in self._names}
        self.passed_over = 0
        self._skipped: Counter[Skipped] = Counter()
        self.blank_lines = 0
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._uris)

    def __bool__(self) -> bool:
        """Whether there are references or counts to take."""
        return bool(self._uris or self.passed_over or self.blank_lines)

    @property
    def is_full(self) -> bool:
        """Whether the references must be taken before another one is added."""
        return len(self._uris) >= CHUNK_ROWS or self.held_bytes >= CHUNK_BYTES

    def add(
        self,
        uri: str,
        root_length: int,
        size: int = -1,
        stamp: int = 0,
        offset: int = 0,
        length: int = 0,
        problem: Problem | None = None,
    ) -> None:
        """Appends a reference.

        Args:
          uri: identifies the image.
          root_length: characters of the URI before the name, whose first folder may be a split.
          size: bytes of the image, or -1 if unknown.
          stamp: changes with the content (local files: mtime in ns), or 0 if unknown.
          offset: first byte of the range, if there is a container.
          length: bytes of the range, if there is a container.
          problem: why this cannot be an image of the data set, or None.
        """
        if problem:
            self._problems[len(self._uris)] = problem
        self._uris.append(uri)
        self.held_bytes += len(uri)
        self._roots.append(root_length)
        self._sizes.append(size)
        self._stamps.append(stamp)
        if self.container:
            self._offsets.append(offset)
            self._lengths.append(length)

    def skip(self, kind: Skipped) -> None:
        """Counts a file that is left out because of its name."""
        self.passed_over += 1
        self._skipped[kind] += 1

    def take(self) -> Listed:
        """Returns all rows and counts, and clears them."""
        refs = RefBatch.listed(self._uris, self._roots, self._sizes, self._stamps)
        if self.container:
            refs = refs.with_ranges(self.container, self._codec, self._offsets, self._lengths)
        if self._problems:
            refs = refs.with_problems(self._problems)
        refs = refs.with_texts(self.columns)
        skipped = InputCount(0, self.passed_over, self._skipped) + InputCount()
        found = Listed(
            refs, self.passed_over, self.blank_lines, self._unpacked, dict(skipped.skipped)
        )
        self._clear()
        return found
