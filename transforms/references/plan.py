"""The plan of a data set: its splits, shards and classes, computed from counts of its references.

The plan is small, and every worker gets it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate

from imageshards.transforms.elements import BuildError, ShardId, counted, human_bytes, quoted
from imageshards.transforms.records.containers import find_container
from imageshards.transforms.references.annotated import (
    AnnotationCount,
    Unmatched,
    check_annotated,
    match_notes,
    number_objects,
)
from imageshards.transforms.references.classes import Classes, number_classes
from imageshards.transforms.references.rules import KNOWN_SPLITS, ShardCounts
from imageshards.transforms.references.tally import UNLIMITED, Tally

TARGET_SHARD_BYTES = 150_000_000
"""Size of a shard with "auto": large enough to stream, small enough for many hosts to share."""
MOST_SHARD_BYTES = 1 << 26
"""Bytes of the references of a shard that reach its writer as one element: some 500,000."""
_GUESSED_BYTES = 100_000
"""Assumed size of an image if no size is known. Web servers are not asked for sizes."""


@dataclass(frozen=True)
class SplitPlan:
    """How one split is cut into shards.

    Attributes:
      images: references, including those that will be rejected.
      num_shards: shards.
      bytes: bytes of the images that may become records; an estimate if sizes are unknown.
      first_ranks: bucket -> rank of its first reference.
      ref_bytes: bytes of the values of the references.
    """

    images: int
    num_shards: int
    bytes: int
    first_ranks: Mapping[int, int]
    ref_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """The facts about the whole data set that every worker needs.

    Attributes:
      splits: name -> plan of the split, in the order of the options or of the alphabet.
      classes: names in label order, with the background class; empty without labels.
      labels: label of a reference -> number of its class.
      listed: references that were listed, duplicates included.
      duplicates: references that were dropped because another one has the same URI.
      passed_over: files that were left out because their names are not those of images.
      notes: sentences for the user: decisions that no option made, with their reasons.
      digest: digest of all references in order, the classes and the shards.
      unpacked: URIs of files that the listing wrote below the output, such as unpacked tars; the
        build deletes them.
      compression: how their records are compressed and grouped, as in `Container`.
      file_format: name of the record container of the shards.
      object_classes: names of the classes of annotated objects, by number; empty without them.
      annotated: annotation file -> counts of its annotations.
      objects: annotated objects of all references.
      unmatched: images of annotation files that are not among the inputs; the first by name.
      left_out: option that leaves out references -> number of them.
    """

    splits: Mapping[str, SplitPlan]
    classes: tuple[str, ...]
    labels: Mapping[str, int]
    listed: int
    duplicates: int
    passed_over: int
    notes: tuple[str, ...]
    digest: str
    unpacked: frozenset[str] = frozenset()
    compression: str = ""
    file_format: str = "tfrecord"
    object_classes: tuple[str, ...] = ()
    annotated: Mapping[str, AnnotationCount] = field(default_factory=dict)
    objects: int = 0
    unmatched: tuple[Unmatched, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def shard(self, split: str, index: int) -> ShardId:
        """One shard of a split."""
        count = self.splits[split].num_shards
        return ShardId(split, index, count, self.compression, self.file_format)

    def stores_references(self, split: str) -> bool:
        """Whether the references of a shard are too large for an element of the graph."""
        found = self.splits[split]
        return found.ref_bytes // found.num_shards > MOST_SHARD_BYTES

    @property
    def num_shards(self) -> int:
        """Shards of all splits."""
        return sum(split.num_shards for split in self.splits.values())

    @property
    def first_shards(self) -> dict[str, int]:
        """Split -> the number of its first shard, where all shards are numbered in order."""
        numbers = accumulate((split.num_shards for split in self.splits.values()), initial=0)
        return dict(zip(self.splits, numbers, strict=False))

    @cached_property
    def class_of(self) -> Mapping[str, tuple[int, bytes]]:
        """Label of a reference -> (number, UTF-8 name) of its class."""
        return {
            label: (number, self.classes[number].encode()) for label, number in self.labels.items()
        }

    @cached_property
    def object_numbers(self) -> Mapping[bytes, int]:
        """UTF-8 name of a class of annotated objects -> its number."""
        return {name.encode(): number for number, name in enumerate(self.object_classes)}

    @property
    def images(self) -> int:
        """References in all splits."""
        return sum(split.images for split in self.splits.values())


@dataclass(frozen=True)
class Planner:
    """Computes the plan from counts and from the options of splits, shards and classes.

    Attributes:
      num_shards: how many shards each split gets.
      split_order: the splits of the data set, in order; empty: the splits that are found.
      class_names: given class names in label order, or None.
      class_texts: class name -> its text in the records, where that is not the name.
      label_offset: 1 reserves label 0 for a background class.
      with_labels: whether records have labels.
      base: prefix that at least one URI must have, or empty.
      compression: how their records are compressed and grouped, as in `Container`.
      noun: "image" or "text", for messages.
      record_bytes: bytes of each record, if all have one size; 0: sizes come from the references.
      file_format: name of the record container of the shards.
      max_bytes: larger images are rejected.
    """

    num_shards: ShardCounts
    split_order: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    class_texts: Mapping[bytes, bytes] = field(default_factory=dict)
    label_offset: int = 0
    with_labels: bool = True
    base: str = ""
    compression: str = ""
    noun: str = "image"
    record_bytes: int = 0
    file_format: str = "tfrecord"
    max_bytes: int = UNLIMITED

    def plan(self, tally: Tally) -> Plan:
        """The plan of a build.

        Raises:
          BuildError: the references do not allow what the options require.
        """
        images: Counter[str] = Counter()
        for (split, _), count in tally.images.items():
            images[split] += count
        self._check(tally, images)
        names = self.split_order or _usual_order(images)
        self._check_splits(names, images)
        notes: list[str] = []
        splits = {name: self._split(name, images[name], tally, notes) for name in names}
        classes = Classes()
        if self.with_labels:
            given = self.class_names or _only(tally.class_names)
            classes = number_classes(tally.labels, tally.label_sources, given, self.label_offset)
            notes.append(f"{counted(len(classes.names), 'class')} {classes.note}")
        if note := find_container(self.file_format, self.compression).note:
            notes.append(note)
        if tally.unknown:
            shown = ", ".join(map(quoted, sorted(tally.unknown_lines)[:3]))
            name = "names" if tally.unknown == 1 else "name"
            notes.append(
                f"{tally.unknown:,} of {counted(tally.lines, 'line')} of --exclude {name} no "
                f"{self.noun} of --input: {shown}{', ...' if tally.unknown > 3 else ''}"
            )
        if blank := tally.blank_lines:
            were = "was" if blank == 1 else "were"
            notes.append(f"{counted(blank, 'empty line')} {were} left out")
        joined = tally.listed - tally.left_out.get("--where", 0)
        notes += match_notes(tally.annotated, tally.unannotated, joined)
        object_classes = number_objects(tally.object_classes)
        return Plan(
            splits=splits,
            classes=classes.names,
            labels=classes.numbers,
            listed=tally.listed,
            duplicates=tally.duplicates,
            passed_over=tally.passed_over,
            notes=tuple(notes),
            digest=self._digest(splits, classes, tally, object_classes),
            unpacked=tally.unpacked,
            compression=self.compression,
            file_format=self.file_format,
            object_classes=object_classes,
            annotated=tally.annotated,
            objects=tally.objects,
            unmatched=tally.unmatched,
            left_out={name: count for name, count in sorted(tally.left_out.items()) if count},
        )

    def _check(self, tally: Tally, images: Counter[str]) -> None:
        for text, count in sorted(tally.inputs.items()):
            count.check(text, is_text=self.noun == "text")
        left_out = sum(tally.left_out.values())
        if not images and left_out:
            options = " and ".join(sorted(name for name, count in tally.left_out.items() if count))
            raise BuildError(f"no {self.noun} is left: {left_out:,} are left out by {options}")
        if not images:
            raise BuildError(f"no {self.noun} in any --input")
        if tally.listed != images.total() + tally.duplicates + left_out:
            raise BuildError(
                f"{tally.listed:,} references were listed, but {images.total():,} and "
                f"{tally.duplicates:,} duplicates came out of the shuffle, and {left_out:,} were "
                "left out: the runner lost some"
            )
        selected = bool(tally.left_out.get("--where"))
        check_annotated(tally.annotated, tally.unmatched, selected)
        if self.base and not tally.below_base:
            raise BuildError(f"--base_uri {self.base}: none of the {self.noun}s is below it")

    def _check_splits(self, names: Sequence[str], images: Counter[str]) -> None:
        for name in images:
            if name not in names:
                raise BuildError(
                    f"split {name!r} was found, but the splits are {', '.join(names)}: "
                    "list all of them in --split_names"
                )
        for name in names:
            if not images[name]:
                raise BuildError(
                    f"split {name!r} gets none of {counted(images.total(), self.noun)}: give it a "
                    "larger ratio, use smaller groups, or remove it"
                )
        for name in self.num_shards.named:
            if name not in images:
                raise BuildError(
                    f"--num_shards names the split {name!r}; the splits are {', '.join(names)}"
                )

    def _digest(
        self,
        splits: Mapping[str, SplitPlan],
        classes: Classes,
        tally: Tally,
        object_classes: Sequence[str],
    ) -> str:
        shards = [(name, split.num_shards) for name, split in splits.items()]
        facts = [shards, classes.names, sorted(classes.numbers.items())]
        head = json.dumps(facts + [object_classes] * bool(object_classes))
        digest = blake2b(head.encode(), digest_size=16)
        for texts in sorted(self.class_texts.items()):
            digest.update(b"%b\t%b\n" % texts)
        for (split, bucket), value in sorted(tally.digests.items()):
            digest.update(f"{split}:{bucket}:".encode() + value)
        return digest.hexdigest()

    def _split(self, name: str, images: int, tally: Tally, notes: list[str]) -> SplitPlan:
        # Images that will be rejected need no space, and must not be a shard of their own.
        sized, acceptable = tally.sized.get(name, 0), tally.acceptable.get(name, 0)
        size = acceptable * _GUESSED_BYTES
        if sized:
            size = tally.num_bytes.get(name, 0) * acceptable // sized
        if self.record_bytes:
            size, sized = acceptable * self.record_bytes, acceptable
        num_shards = self.num_shards.of(name)
        if num_shards is None:
            num_shards = max(1, min(acceptable, round(size / TARGET_SHARD_BYTES)))
            how = "" if sized == acceptable else f", estimated from {sized:,} of {acceptable:,}"
            if not sized:
                how = f", assuming {_GUESSED_BYTES // 1000} kB each"
            notes.append(
                f"{name}: {counted(num_shards, 'shard')} for {human_bytes(size)} of "
                f"{self.noun}s{how} (auto aims at {TARGET_SHARD_BYTES / 1e6:.0f} MB a shard)"
            )
        if num_shards > images:
            raise BuildError(
                f"split {name!r} has {counted(images, self.noun)} for "
                f"{counted(num_shards, 'shard')}: write --num_shards {images} or less, or auto"
            )
        ranks: dict[int, int] = {}
        rank = 0
        for (split, bucket), count in sorted(tally.images.items()):
            if split == name:
                ranks[bucket] = rank
                rank += count
        return SplitPlan(images, num_shards, size, ranks, tally.split_ref_bytes.get(name, 0))


def _only(names: Collection[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The class names of the inputs; None if they have none.

    Raises:
      BuildError: the inputs number their classes differently.
    """
    if len(names) > 1:
        first, second, *_ = (", ".join(some[:3]) for some in sorted(names))
        raise BuildError(
            f"the inputs have different classes, such as {first}, ... and {second}, ...: name all "
            "of them in --class_names"
        )
    return next(iter(names), None)


def _usual_order(splits: Iterable[str]) -> tuple[str, ...]:
    usual = {name: index for index, name in enumerate(KNOWN_SPLITS)}
    return tuple(sorted(splits, key=lambda name: (usual.get(name, len(usual)), name)))
