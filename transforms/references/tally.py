"""Counts of references: `Tally`, whose sum is what the plan of a data set is computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from imageshards.transforms.elements import DUPLICATE_PIXELS, InputCount
from imageshards.transforms.references.annotated import (
    AnnotationCount,
    Unmatched,
    count_objects,
    first_unmatched,
)
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import group_bits

UNLIMITED = (1 << 63) - 1
"""Bytes that are more than any image has."""
_DIGESTED_AT_A_TIME = 1 << 14


@dataclass(frozen=True)
class Tally:
    """Counts of some references. The counts of parts are merged in any order, on any worker.

    Attributes:
      images: (split, bucket) -> references.
      acceptable: split -> references that may become records: they have no problem, and at most
        `--max_bytes`.
      num_bytes: split -> bytes of the acceptable references whose size is known.
      sized: split -> number of acceptable references whose size is known.
      labels: texts of classes.
      listed: references that were listed, duplicates included.
      below_base: listed references whose URI is below `base_uri`.
      duplicates: references that were dropped because another one has the same URI.
      passed_over: files that were left out because their names are not those of images.
      digests: (split, bucket) -> digest of the references in order.
      label_sources: origins of the labels: "folder", "regex" or "column NAME".
      class_names: lists of class names that inputs have, in label order.
      unpacked: URIs of files that the listing wrote below the output, such as unpacked tars.
      blank_lines: lines of text files that hold only white space.
      inputs: text of an input that was listed in parts -> what was found.
      ref_bytes: bytes of the values of the listed references (`RefBatch.value_bytes`).
      split_ref_bytes: split -> bytes of the values of its references.
      annotated: annotation file -> counts of its annotations.
      objects: annotated objects of the references in the buckets.
      object_classes: class of annotated objects -> its number in the files.
      unmatched: images of annotation files that are not among the inputs; the first by name.
      unannotated: references that no annotation file names.
      left_out: option that leaves out references -> number of them.
      lines: lines of the lists of `--exclude`.
      unknown: those that name no image.
      unknown_lines: some of these.
    """

    images: Mapping[tuple[str, int], int] = field(default_factory=dict)
    acceptable: Mapping[str, int] = field(default_factory=dict)
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    sized: Mapping[str, int] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    listed: int = 0
    below_base: int = 0
    duplicates: int = 0
    passed_over: int = 0
    digests: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    label_sources: frozenset[str] = frozenset()
    class_names: frozenset[tuple[str, ...]] = frozenset()
    unpacked: frozenset[str] = frozenset()
    blank_lines: int = 0
    inputs: Mapping[str, InputCount] = field(default_factory=dict)
    ref_bytes: int = 0
    split_ref_bytes: Mapping[str, int] = field(default_factory=dict)
    annotated: Mapping[str, AnnotationCount] = field(default_factory=dict)
    objects: int = 0
    object_classes: Mapping[str, int] = field(default_factory=dict)
    unmatched: tuple[Unmatched, ...] = ()
    unannotated: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    lines: int = 0
    unknown: int = 0
    unknown_lines: frozenset[str] = frozenset()

    @staticmethod
    def of(
        bucket: int,
        splits: Mapping[str, RefBatch],
        duplicates: int,
        sizes: Mapping[str, Sequence[int] | np.ndarray],
        max_bytes: int = UNLIMITED,
    ) -> Tally:
        """The tally of one sorted bucket.

        Args:
          bucket: its number.
          splits: split -> references in key order.
          duplicates: number of references that were dropped.
          sizes: split -> sizes in bytes of its acceptable references, or of a sample of these; -1
            if unknown.
          max_bytes: larger images are rejected.
        """
        known = {}
        for split, values in sizes.items():
            array = np.asarray(values, dtype=np.int64)
            known[split] = array[(array >= 0) & (array <= max_bytes)]
        return Tally(
            images={(split, bucket): len(refs) for split, refs in splits.items()},
            acceptable={
                split: int(refs.acceptable(max_bytes).sum()) for split, refs in splits.items()
            },
            num_bytes={split: int(array.sum()) for split, array in known.items()},
            sized={split: len(array) for split, array in known.items()},
            labels=frozenset[str]().union(*(refs.labels_found() for refs in splits.values())),
            duplicates=duplicates,
            digests={(split, bucket): digest_of(refs) for split, refs in splits.items()},
            split_ref_bytes={split: refs.value_bytes for split, refs in splits.items()},
            objects=sum(map(count_objects, splits.values())),
        )

    def without_listed(self) -> Tally:
        """The tally without the references that went on, which are counted again."""
        listed = sum(self.left_out.values()) + self.duplicates
        return replace(self, listed=listed, ref_bytes=0)

    @staticmethod
    def merge(tallies: Iterable[Tally]) -> Tally:
        """The sum of tallies, in any order."""
        images: Counter[tuple[str, int]] = Counter()
        acceptable: Counter[str] = Counter()
        num_bytes: Counter[str] = Counter()
        sized: Counter[str] = Counter()
        split_ref_bytes: Counter[str] = Counter()
        left_out: Counter[str] = Counter()
        digests: dict[tuple[str, int], bytes] = {}
        text_fields = ("labels", "label_sources", "class_names", "unpacked", "unknown_lines")
        texts: dict[str, set[Any]] = {name: set() for name in text_fields}
        inputs: dict[str, InputCount] = {}
        annotated: dict[str, AnnotationCount] = {}
        object_classes: dict[str, int] = {}
        unmatched: tuple[Unmatched, ...] = ()
        counts = Counter(
            listed=0,
            below_base=0,
            duplicates=0,
            passed_over=0,
            blank_lines=0,
            ref_bytes=0,
            objects=0,
            unannotated=0,
            lines=0,
            unknown=0,
        )
        for tally in tallies:
            images.update(tally.images)
            acceptable.update(tally.acceptable)
            num_bytes.update(tally.num_bytes)
            sized.update(tally.sized)
            split_ref_bytes.update(tally.split_ref_bytes)
            left_out.update(tally.left_out)
            digests.update(tally.digests)
            for name, found in texts.items():
                found |= getattr(tally, name)
            for text, count in tally.inputs.items():
                inputs[text] = inputs.get(text, InputCount()) + count
            for file, of_file in tally.annotated.items():
                annotated[file] = annotated.get(file, AnnotationCount()) + of_file
            for name, order in tally.object_classes.items():
                object_classes[name] = min(order, object_classes.get(name, order))
            if tally.unmatched:
                unmatched = first_unmatched((*unmatched, *tally.unmatched))
            for name in counts:
                counts[name] += getattr(tally, name)
        rest: dict[str, Any] = {name: frozenset(found) for name, found in texts.items()} | counts
        return Tally(
            images, acceptable, num_bytes, sized, digests=digests, inputs=inputs,
            split_ref_bytes=split_ref_bytes, annotated=annotated, object_classes=object_classes,
            unmatched=unmatched, left_out=left_out, **rest,
        )  # fmt: skip


def bits_of(tallies: Iterable[Tally]) -> int:
    """How many bits of the keys the listed references are grouped by (see `keys.group_bits`)."""
    references = num_bytes = 0
    for tally in tallies:
        references += tally.listed
        num_bytes += tally.ref_bytes
    return group_bits(references, num_bytes)


def digest_of(refs: RefBatch) -> bytes:
    """A digest of references in their order, without sizes, stamps and `DuplicatePixels`.

    A changed file, or one with the pixels of another one, affects its shard and not the plan.
    """
    state = blake2b(digest_size=16)
    # NUL separates the values: no store can open a URI that contains it.
    for start in range(0, len(refs), _DIGESTED_AT_A_TIME):
        rows = refs[start : start + _DIGESTED_AT_A_TIME].rows
        for column in ("uri", "label"):
            state.update(b"\0".join(value or b"" for value in rows.column(column).to_pylist()))
        state.update(rows.column("root").to_numpy().tobytes())
        for name in refs.feature_columns:
            state.update(f"{name}{rows.column(name).to_pylist()}".encode())
    state.update(problems_text(refs, without=DUPLICATE_PIXELS))
    return state.digest()


def problems_text(refs: RefBatch, without: str = "") -> bytes:
    """The problems of references as a text to digest, except those of one error type."""
    problems = [item for item in sorted(refs.problems.items()) if item[1].error != without]
    return repr(problems).encode("utf-8", "backslashreplace")
