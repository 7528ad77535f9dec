"""From counts to a plan: classes, splits, shards, first ranks. Pure.

A `Tally` says what one group of references holds, and tallies add up in any order; the `Plan`
made of their sum is small, and every worker gets it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Literal

import numpy as np

from imageshards.transforms.elements import DUPLICATE_PIXELS, BuildError, ShardId, counted
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.classes import Classes, number_classes
from imageshards.transforms.references.rules import KNOWN_SPLITS, ShardCounts

_DIGESTED_AT_A_TIME = 1 << 14
TARGET_SHARD_BYTES = 150_000_000
"""What "auto" aims at: reads of 100-200 MB are long enough to stream, and few enough hosts wait."""
_GUESSED_BYTES = 100_000
"""Of an image, where nobody says of any how large it is: web servers are not asked twice."""


@dataclass(frozen=True)
class Tally:
    """What some references are, in numbers.

    Attributes:
      images: (split, bucket) -> references.
      num_bytes: split -> bytes of the references whose size is known.
      sized: split -> how many those are.
      labels: class texts.
      listed: references as they were listed.
      below_base: how many of them lie below `base_uri`.
      duplicates: references that named a URI again.
      passed_over: files that were no images by their name.
      digests: (split, bucket) -> digest of the references in order.
      label_sources: where labels came from: "folder", "regex" or "column NAME".
      unpacked: plain tars that were made of compressed ones.
      blank: lines of text files without anything on them.
    """

    images: Mapping[tuple[str, int], int] = field(default_factory=dict)
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    sized: Mapping[str, int] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    listed: int = 0
    below_base: int = 0
    duplicates: int = 0
    passed_over: int = 0
    digests: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    label_sources: frozenset[str] = frozenset()
    unpacked: frozenset[str] = frozenset()
    blank: int = 0

    @staticmethod
    def of(
        bucket: int,
        groups: Mapping[str, RefBatch],
        duplicates: int,
        sizes: Mapping[str, Sequence[int] | np.ndarray],
    ) -> Tally:
        """The tally of one sorted bucket.

        Args:
          bucket: which.
          groups: split -> references in key order.
          duplicates: how many were left out.
          sizes: split -> sizes in bytes of its references, or of some of them; -1 is not known.
        """
        known = {split: np.asarray(sizes[split], dtype=np.int64) for split in groups}
        return Tally(
            images={(split, bucket): len(refs) for split, refs in groups.items()},
            num_bytes={split: int(values[values >= 0].sum()) for split, values in known.items()},
            sized={split: int((values >= 0).sum()) for split, values in known.items()},
            labels=frozenset[str]().union(*(refs.labels_found() for refs in groups.values())),
            duplicates=duplicates,
            digests={(split, bucket): digest_of(refs) for split, refs in groups.items()},
        )

    @staticmethod
    def merge(tallies: Iterable[Tally]) -> Tally:
        """The sum; the order does not matter."""
        images: Counter[tuple[str, int]] = Counter()
        size: Counter[str] = Counter()
        sized: Counter[str] = Counter()
        labels: set[str] = set()
        digests: dict[tuple[str, int], bytes] = {}
        sources: set[str] = set()
        unpacked: set[str] = set()
        listed = below_base = duplicates = passed_over = blank = 0
        for tally in tallies:
            images.update(tally.images)
            size.update(tally.num_bytes)
            sized.update(tally.sized)
            labels |= tally.labels
            digests.update(tally.digests)
            listed += tally.listed
            below_base += tally.below_base
            duplicates += tally.duplicates
            passed_over += tally.passed_over
            blank += tally.blank
            sources |= tally.label_sources
            unpacked |= tally.unpacked
        return Tally(
            dict(images), dict(size), dict(sized), frozenset(labels),
            listed, below_base, duplicates, passed_over, digests, frozenset(sources),
            frozenset(unpacked), blank,
        )  # fmt: skip


def digest_of(refs: RefBatch) -> bytes:
    """A digest of references in their order: all that the listing says but size and stamp.

    Whether a file has changed since, or has the pixels of another, is the business of the shard
    that holds it, not of the plan.
    """
    state = blake2b(digest_size=16)
    # No URI and no file name holds a NUL (storage could not open one that does).
    for start in range(0, len(refs), _DIGESTED_AT_A_TIME):
        rows = refs[start : start + _DIGESTED_AT_A_TIME].rows
        for column in ("uri", "label"):
            state.update(b"\0".join(value or b"" for value in rows.column(column).to_pylist()))
        for name in refs.feature_columns:
            state.update(f"{name}{rows.column(name).to_pylist()}".encode())
    state.update(problems_text(refs, without=DUPLICATE_PIXELS))
    return state.digest()


def problems_text(refs: RefBatch, without: str = "") -> bytes:
    """What is wrong with references, but for one type of error."""
    problems = [item for item in sorted(refs.problems.items()) if item[1].error != without]
    return repr(problems).encode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class SplitPlan:
    """How one split is cut into shards.

    Attributes:
      images: references, rejects to be among them.
      num_shards: shards.
      bytes: of all images, estimated where the listing did not say.
      first_ranks: bucket -> rank of its first reference.
    """

    images: int
    num_shards: int
    bytes: int
    first_ranks: Mapping[int, int]


@dataclass(frozen=True)
class Plan:
    """What every worker must know of the whole.

    Attributes:
      splits: name -> its plan, in the order of the command line or the alphabet.
      classes: names in label order, the background class included; empty without labels.
      labels: label of a reference -> number of its class.
      listed: references as they were listed, duplicates included.
      duplicates: references that named a URI again.
      passed_over: files that were no images by their name.
      notes: what the build decided by itself, and why.
      digest: of all references in order, the classes and the shards.
      unpacked: plain tars that were made of compressed ones, to be deleted at the end.
      compression: of the shards.
      file_format: name of the shards' record container.
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
    compression: Literal["", "gzip"] = ""
    file_format: str = "tfrecord"

    @cached_property
    def shards(self) -> list[ShardId]:
        """Every shard, in order."""
        return [
            ShardId(name, index, split.num_shards, self.compression, self.file_format)
            for name, split in self.splits.items()
            for index in range(split.num_shards)
        ]

    @cached_property
    def class_of(self) -> Mapping[str, tuple[int, bytes]]:
        """Label of a reference -> (number, UTF-8 name) of its class."""
        return {
            label: (number, self.classes[number].encode()) for label, number in self.labels.items()
        }

    @property
    def images(self) -> int:
        """References in all splits."""
        return sum(split.images for split in self.splits.values())


@dataclass(frozen=True)
class Planner:
    """What the command line says of splits, shards and classes.

    Attributes:
      num_shards: how many shards.
      split_order: splits that must come out, in their order; empty: those that are found.
      class_names: given class names in label order, or None.
      class_texts: what records say of a class beside its name.
      label_offset: 1 leaves label 0 to a background class.
      with_labels: whether there are labels at all.
      base: what URIs are taken relative to, or empty.
      compression: of the shards.
      noun: what one reference stands for, in messages.
      record_bytes: of each record, where all have one size; else 0, and what comes in tells.
      file_format: name of the shards' record container.
    """

    num_shards: ShardCounts
    split_order: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    class_texts: Mapping[bytes, bytes] = field(default_factory=dict)
    label_offset: int = 0
    with_labels: bool = True
    base: str = ""
    compression: Literal["", "gzip"] = ""
    noun: str = "image"
    record_bytes: int = 0
    file_format: str = "tfrecord"

    def plan(self, tally: Tally) -> Plan:
        """The plan of a build.

        Raises:
          BuildError: it cannot be built as it was asked for.
        """
        images: Counter[str] = Counter()
        for (split, _), count in tally.images.items():
            images[split] += count
        if not images:
            raise BuildError(f"no {self.noun} in any --input")
        if tally.listed != images.total() + tally.duplicates:
            raise BuildError(
                f"{tally.listed:,} references were listed, but {images.total():,} and "
                f"{tally.duplicates:,} duplicates came out of the shuffle: the runner lost some"
            )
        if self.base and not tally.below_base:
            raise BuildError(f"--base_uri {self.base}: none of the {self.noun}s is below it")
        names = self.split_order or _usual_order(images)
        for name in images:
            if name not in names:
                raise BuildError(
                    f"split {name!r} was found, but the splits are {', '.join(names)}: "
                    "name all of them in --split_names"
                )
        for name in names:
            if not images[name]:
                raise BuildError(
                    f"split {name!r} gets none of the {images.total():,} {self.noun}s: give it a "
                    "larger ratio, take smaller groups, or leave it out"
                )
        for name in self.num_shards.named:
            if name not in images:
                raise BuildError(
                    f"--num_shards names the split {name!r}; the splits are {', '.join(names)}"
                )
        notes: list[str] = []
        splits = {name: self._split(name, images[name], tally, notes) for name in names}
        classes = Classes()
        if self.with_labels:
            classes = number_classes(
                tally.labels, tally.label_sources, self.class_names, self.label_offset
            )
            noun = "class" if len(classes.names) == 1 else "classes"
            notes.append(f"{len(classes.names):,} {noun} {classes.note}")
        if self.compression:
            notes.append(
                "gzip: TensorFlow reads it with compression_type='GZIP', TensorFlow Datasets does "
                "not; no index files, since a compressed file has no random access"
            )
        if tally.blank:
            lines = "1 empty line was" if tally.blank == 1 else f"{tally.blank:,} empty lines were"
            notes.append(f"{lines} left out")
        labels = classes.numbers or {}
        shards = [(name, split.num_shards) for name, split in splits.items()]
        head = json.dumps([shards, classes.names, sorted(labels.items())])
        digest = blake2b(head.encode(), digest_size=16)
        for texts in sorted(self.class_texts.items()):
            digest.update(b"%b\t%b\n" % texts)
        for (split, bucket), value in sorted(tally.digests.items()):
            digest.update(f"{split}:{bucket}:".encode() + value)
        return Plan(
            splits, classes.names, labels, tally.listed, tally.duplicates, tally.passed_over,
            tuple(notes), digest.hexdigest(), tally.unpacked, self.compression,
            self.file_format,
        )  # fmt: skip

    def _split(self, name: str, images: int, tally: Tally, notes: list[str]) -> SplitPlan:
        sized = tally.sized.get(name, 0)
        size = tally.num_bytes.get(name, 0) * images // sized if sized else images * _GUESSED_BYTES
        if self.record_bytes:
            size, sized = images * self.record_bytes, images
        num_shards = self.num_shards.of(name)
        if num_shards is None:
            num_shards = max(1, min(images, round(size / TARGET_SHARD_BYTES)))
            how = "" if sized == images else f", going by {sized:,} of {images:,}"
            if not sized:
                how = f", were they of {_GUESSED_BYTES // 1000} kB each,"
            notes.append(
                f"{name}: {counted(num_shards, 'shard')} for {size / 1e6:,.1f} MB of "
                f"{self.noun}s{how} (auto aims at {TARGET_SHARD_BYTES / 1e6:.0f} MB a shard)"
            )
        if num_shards > images:
            raise BuildError(
                f"split {name!r} has {counted(images, self.noun)} for {num_shards:,} "
                f"shards: write --num_shards {images} or less, or auto"
            )
        ranks: dict[int, int] = {}
        rank = 0
        for (split, bucket), count in sorted(tally.images.items()):
            if split == name:
                ranks[bucket] = rank
                rank += count
        return SplitPlan(images, num_shards, size, ranks)


def _usual_order(splits: Iterable[str]) -> tuple[str, ...]:
    usual = {name: place for place, name in enumerate(KNOWN_SPLITS)}
    return tuple(sorted(splits, key=lambda name: (usual.get(name, len(usual)), name)))
