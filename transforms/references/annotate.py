"""Annotates references with shuffle keys, splits and labels, by the rules that the user sets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imageshards.transforms.elements import LABEL_SEPARATOR, BuildError, Problem, quoted, to_bytes
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.references.batch import RefBatch, binary_column, texts_of
from imageshards.transforms.references.keys import (
    hash_keys,
    split_indices,
    split_thresholds,
)
from imageshards.transforms.references.names import Roots
from imageshards.transforms.references.rules import (
    GroupRule,
    LabelRule,
    SplitRule,
    first_groups,
    parent_name,
    top_folder,
)
from imageshards.transforms.references.selection.where import Where

_OF_IMAGES = ("width", "height")


@dataclass(frozen=True)
class Columns:
    """Columns of a manifest, or features of TFRecord files, that the rules and the schema use.

    Attributes:
      required: columns that labels, splits or groups come from; without them the build fails.
      optional: columns that labels or splits come from if a manifest has them.
      features: columns that become features; without them the build fails.
      where: those of the required columns that `--where` names.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    features: tuple[FeatureColumn, ...] = ()
    where: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns that become features, without repetition."""
        return tuple(dict.fromkeys(feature.column for feature in self.features))

    @property
    def all_required(self) -> tuple[str, ...]:
        """Names of the columns without which the build fails."""
        return (*self.required, *self.feature_names)

    def origin(self, column: str) -> str:
        """The option that requires a column, and advice, for the message that it is missing."""
        role = next((feature.role for feature in self.features if feature.column == column), "")
        if role == "uri":
            return " (--masks sets another column, or a path such as 'masks/{stem}.png')"
        if role == "captions":
            return " (--captions sets another column, or a path such as '{dir}/{stem}.txt')"
        if column not in self.where:
            return ""
        sizes = "; it reads columns, not images: --min_size rejects small ones"
        return f" (of --where{sizes if column in _OF_IMAGES else ''})"


@dataclass(frozen=True)
class Annotator:
    """Adds key, split and label to every listed reference.

    Attributes:
      seed: 0 .. 2**64 - 1; determines the order of the data set, and splits by ratio.
      labels: where classes come from.
      splits: which split a reference belongs to.
      groups: which references must land in the same split.
      features: columns that become features.
      roots: where names begin. Names are hashed, and not URIs, so that a copy of the images in
        another folder gives the same data set.
      where: which references the data set takes; None: all.

    >>> labels, splits = LabelRule.parse("dirname"), SplitRule.parse("train=1")
    >>> annotator = Annotator(0, labels, splits, GroupRule.parse("uri"))
    >>> refs = annotator.annotate(RefBatch.listed(["/photos/cat/1.jpg"], [8]))
    >>> refs.labels, refs.splits
    (['cat'], ['train'])
    """

    seed: int
    labels: LabelRule
    splits: SplitRule
    groups: GroupRule
    features: tuple[FeatureColumn, ...] = ()
    roots: Roots = Roots()
    where: Where | None = None

    @property
    def columns(self) -> Columns:
        """The columns to list with each reference."""
        required = [self.groups.column, *self.labels.names]
        optional: list[str | None] = []
        for rule in (self.labels, self.splits):
            (required if rule.kind in ("column", "list") else optional).append(rule.column)
        where = self.where.columns if self.where else ()
        return Columns(
            tuple(column for column in dict.fromkeys([*required, *where]) if column),
            tuple(column for column in optional if column),
            self.features,
            where,
        )

    def select(self, refs: RefBatch) -> RefBatch:
        """Returns the listed references that `where` selects.

        Raises:
          BuildError: a value does not have the type that the expression requires.
        """
        return refs.take(np.flatnonzero(self.where.mask(refs))) if self.where else refs

    def label_source(self, refs: RefBatch) -> str:
        """Where the labels of listed references come from: "folder", "regex" or "column NAME"."""
        if self.labels.kind == "columns":
            return "columns"
        if refs.text_column(self.labels.column) is not None:
            return f"column {self.labels.column}"
        return "regex" if self.labels.kind == "regex" else "folder"

    def count_below_base(self, refs: RefBatch) -> int:
        """The number of URIs that begin with `roots.base`; 0 without a base."""
        if not self.roots.base:
            return 0
        below = pc.starts_with(refs.rows.column("uri"), to_bytes(self.roots.base))
        return int(pc.sum(below).as_py() or 0)

    def annotate(self, refs: RefBatch) -> RefBatch:
        """Returns listed references with key, label and split, and with the roots of their names.

        Raises:
          BuildError: a reference has no split, or an unknown one.
        """
        listed = refs.problems
        # Any other problem replaces that of a value that cannot be a feature.
        problems = {row: value for row, value in listed.items() if value.stage != "features"}
        unreadable = tuple(problems)
        named = refs.with_roots(self.roots.lengths(refs))
        keys, split_keys = hash_keys(self.seed, named.encoded_names)
        labels = self._labels(refs, problems)
        if unreadable:  # these references must not define classes
            mask = np.zeros(len(refs), bool)
            mask[list(unreadable)] = True
            labels = pc.if_else(pa.array(mask), pa.scalar(None, labels.type), labels)
        if self.groups.kind != "uri":
            groups = self._groups(named, problems)
            _, split_keys = hash_keys(self.seed, map(to_bytes, groups))
        splits = self._splits(refs, split_keys, problems)
        if len(problems) > len(unreadable):
            named = named.with_problems({**listed, **problems})
        return named.annotated(keys, labels, splits)

    def _labels(self, refs: RefBatch, problems: dict[int, Problem]) -> pa.Array:
        if not self.labels.has_classes:
            return pa.nulls(len(refs), pa.large_binary())
        if self.labels.kind == "columns":
            return self._named_columns(refs, problems)
        column = refs.text_column(self.labels.column)
        if column is not None and self.labels.kind == "list":
            lists = texts_of(column)
            column = binary_column([None if text is None else _joined(text) for text in lists])
        elif column is not None and pc.any(pc.match_substring(column, LABEL_SEPARATOR)).as_py():
            name = self.labels.column
            raise BuildError(f"the labels in column {name!r} are lists: write --labels list:{name}")
        if column is not None:
            reason = f"no value in the column {self.labels.column!r}"
            missing = column.is_null().to_numpy(zero_copy_only=False)
        else:
            texts: list[str | None]
            if self.labels.kind == "regex":
                texts = first_groups(self.labels.argument, refs.uris)
                reason = f"the URI does not match {self.labels.argument!r}"
            else:
                texts = [parent_name(uri) for uri in refs.uris]
                reason = "the URI has no folder"
            column = binary_column(texts)
            missing = np.array([not text for text in texts], bool)
        problem = Problem("label", "NoLabel", reason)
        for row in np.flatnonzero(missing).tolist():
            problems.setdefault(row, problem)
        return column

    def _named_columns(self, refs: RefBatch, problems: dict[int, Problem]) -> pa.Array:
        """The names of the columns that are 1."""
        found: list[list[str] | None] = [[] for _ in range(len(refs))]
        for name in self.labels.names:
            column = refs.text_column(name)
            assert column is not None, "listing returns the required columns"
            for row, text in enumerate(texts_of(column)):
                value = _TRUTH.get(str(text).lower())
                names = found[row]
                if value is None:
                    shown = f"{quoted(text)}, which is neither 0 nor 1" if text else "empty"
                    problem = Problem("label", "NoLabel", f"the column {name!r} is {shown}")
                    problems.setdefault(row, problem)
                    found[row] = None
                elif value and names is not None:
                    names.append(name)
        return binary_column(
            [None if names is None else LABEL_SEPARATOR.join(names) for names in found]
        )

    def _splits(
        self, refs: RefBatch, split_keys: np.ndarray, problems: Mapping[int, Problem]
    ) -> pa.Array:
        rule = self.splits
        if rule.kind == "ratio":
            indices = split_indices(split_keys, split_thresholds(rule.ratios))
            return pa.array(rule.names).take(pa.array(indices))
        if rule.kind == "count":  # until the draw
            return pa.repeat(rule.names[0], len(refs))
        column = refs.text_column(rule.column)
        if rule.kind == "folder":
            found: list[str | None] = [top_folder(name) for name in refs.names]
        elif column is not None:
            found = texts_of(column)
        else:
            return pa.repeat("train", len(refs))
        known = set(rule.names)
        for row, split in enumerate(found):
            if split in known:
                continue
            if row not in problems:
                what = f"split {quoted(split)}" if split else "no split"
                raise BuildError(
                    f"{refs.uris[row]}: {what}; it must be one of {', '.join(rule.names)} "
                    "(--split_names A,B specifies others)"
                )
            # A reference with a problem may have no split: it gets one that is in use.
            found[row] = next((name for name in found if name in known), rule.names[0])
        return pa.array(found, pa.string())

    def _groups(self, refs: RefBatch, problems: dict[int, Problem]) -> Sequence[str]:
        rule = self.groups
        if rule.kind == "dirname":
            return [name.rpartition("/")[0] for name in refs.names]
        found: Sequence[str | None]
        if rule.kind == "column":
            column = refs.text_column(rule.argument)
            assert column is not None, "listing returns the required columns"
            found = texts_of(column)
            reason = f"no value in the column {rule.argument!r}"
        else:
            found = first_groups(rule.argument, refs.names)
            reason = f"the name below the input does not match {rule.argument!r}"
        for row, group in enumerate(found):
            if not group:
                problems.setdefault(row, Problem("group", "NoGroup", reason))
        return [group or "" for group in found]


_TRUTH = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_LIST = re.compile(r"[|;,]")


def _joined(text: str) -> str:
    """Returns the classes of a list as a label: of a text with |, ; or commas, or a JSON list."""
    if LABEL_SEPARATOR in text:
        names = text.split(LABEL_SEPARATOR)
    else:
        names = _LIST.split(text)
        if text.startswith("["):
            with suppress(ValueError):  # a text in brackets
                names = [str(name) for name in json.loads(text)]
    stripped = (name.strip() for name in names)
    return LABEL_SEPARATOR.join(dict.fromkeys(name for name in stripped if name))
