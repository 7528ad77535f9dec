"""Labels, splits, groups and shuffle keys of the references found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imageshards.transforms.elements import BuildError, Problem, to_bytes
from imageshards.transforms.inputs.listing import Listing
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.references.batch import RefBatch, range_column
from imageshards.transforms.references.keys import (
    hash_keys,
    split_places,
    split_thresholds,
)
from imageshards.transforms.references.rules import (
    GroupRule,
    LabelRule,
    SplitRule,
    matched_text,
    parent_name,
    top_folder,
)


@dataclass(frozen=True)
class Annotator:
    """Gives every listed image its key, split and label.

    Attributes:
      seed: 0 .. 2**64 - 1; fixes order and hashed splits.
      labels: where classes come from.
      splits: into which split an image goes.
      groups: what the splits must not tear apart.
      base: what is left out of the beginning of a URI before it is hashed, so that a copy of the
        images elsewhere gives the same data set; empty, or with a slash at its end.
      features: manifest columns that become features.
    """

    seed: int
    labels: LabelRule
    splits: SplitRule
    groups: GroupRule
    base: str = ""
    features: tuple[FeatureColumn, ...] = ()

    @property
    def feature_columns(self) -> list[str]:
        """Manifest columns that become features."""
        return list(dict.fromkeys(feature.column for feature in self.features))

    @property
    def required_columns(self) -> list[str]:
        """Manifest columns without which the rules make no sense."""
        named = [self.groups.column]
        if self.labels.kind == "column":
            named.append(self.labels.column)
        if self.splits.kind == "column":
            named.append(self.splits.column)
        return [column for column in dict.fromkeys(named) if column]

    @property
    def optional_columns(self) -> list[str]:
        """Manifest columns that are used where they are."""
        named = []
        if self.labels.kind == "auto":
            named.append(self.labels.column)
        if self.splits.kind == "auto":
            named.append(self.splits.column)
        return [column for column in named if column]

    def label_source(self, listing: Listing) -> str:
        """Where the labels of a listing come from: "folder", "regex" or "column NAME"."""
        if self.labels.column in listing.columns:
            return f"column {self.labels.column}"
        return "regex" if self.labels.kind == "regex" else "folder"

    def annotate(self, listing: Listing) -> RefBatch:
        """References of a listing.

        Raises:
          BuildError: a split that is not known.
        """
        uris = [to_bytes(uri) for uri in listing.uris]
        base = to_bytes(self.base)
        problems = dict(listing.problems)
        keys, split_keys = hash_keys(self.seed, [uri.removeprefix(base) for uri in uris])
        labels = self._labels(listing, problems)
        if listing.problems:  # what is not taken names no class
            labels = [
                None if row in listing.problems else label for row, label in enumerate(labels)
            ]
        if self.groups.kind != "uri":
            groups = self._groups(listing, problems)
            _, split_keys = hash_keys(self.seed, map(to_bytes, groups))
        splits = self._splits(listing, split_keys, problems)
        features = self._features(listing, problems)
        return RefBatch.of(
            keys, uris, labels, splits, listing.sizes, listing.stamps, problems,
            range_column(listing), features,
        )  # fmt: skip

    def _features(
        self, listing: Listing, problems: dict[int, Problem]
    ) -> dict[FeatureColumn, list[Any]]:
        features: dict[FeatureColumn, list[Any]] = {}
        if listing.codec == "example":
            return features  # the owner of its shard takes them from the record itself
        for feature in self.features:
            features[feature], wrong = feature.values(listing.features[feature.column])
            for row, reason in wrong.items():
                problems.setdefault(row, Problem("features", "NoFeature", reason))
        return features

    def _labels(self, listing: Listing, problems: dict[int, Problem]) -> list[str | None]:
        labels: list[str | None]
        if self.labels.kind == "none":
            return [None] * len(listing.uris)
        if self.labels.column in listing.columns:
            labels = listing.columns[self.labels.column or ""]
            reason = f"no value in the column {self.labels.column!r}"
        elif self.labels.kind == "regex":
            pattern = self.labels.pattern
            labels = [matched_text(pattern, uri) for uri in listing.uris]
            reason = f"the URI does not match {self.labels.argument!r}"
        else:
            labels = [parent_name(uri) for uri in listing.uris]
            reason = "the URI has no folder"
        if not all(labels):
            problem = Problem("label", "NoLabel", reason)
            for row, label in enumerate(labels):
                if not label:
                    problems.setdefault(row, problem)
        return labels

    def _splits(
        self, listing: Listing, split_keys: np.ndarray, problems: Mapping[int, Problem]
    ) -> list[str]:
        rule = self.splits
        uris = listing.uris
        if rule.kind == "ratio":
            if len(rule.names) == 1:
                return [rule.names[0]] * len(uris)
            places = split_places(split_keys, split_thresholds(rule.ratios))
            return [rule.names[place] for place in places]
        if rule.kind == "folder":
            found: list[str | None] = [
                top_folder(uri[root:]) for uri, root in zip(uris, listing.roots, strict=True)
            ]
        elif rule.column in listing.columns:
            found = listing.columns[rule.column or ""]
        else:
            return ["train"] * len(uris)
        known = set(rule.names)
        splits = []
        for row, (uri, split) in enumerate(zip(uris, found, strict=True)):
            if split not in known:
                if row in problems:  # what could not be listed may have no split of its own
                    splits.append(next((name for name in found if name in known), rule.names[0]))
                    continue
                what = f"split {split!r}" if split else "no split"
                raise BuildError(
                    f"{uri}: {what}; it must be one of {', '.join(rule.names)} "
                    "(--split_names A,B names others)"
                )
            splits.append(split)
        return splits

    def _groups(self, listing: Listing, problems: dict[int, Problem]) -> Sequence[str]:
        rule = self.groups
        if rule.kind == "dirname":
            return [uri.removeprefix(self.base).rpartition("/")[0] for uri in listing.uris]
        found: Sequence[str | None]
        if rule.kind == "column":
            found = listing.columns[rule.argument]
            reason = f"no value in the column {rule.argument!r}"
        else:
            pattern = rule.pattern
            found = [matched_text(pattern, uri) for uri in listing.uris]
            reason = f"the URI does not match {rule.argument!r}"
        for row, group in enumerate(found):
            if not group:
                problems.setdefault(row, Problem("group", "NoGroup", reason))
        return [group or "" for group in found]
