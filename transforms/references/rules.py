"""Rules of labels, splits, groups and shard counts, parsed from the texts of their options.

Parsing raises ValueError, whose message contains valid values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal
from urllib.parse import unquote

from imageshards.transforms.records.columns import value_column

ARCHIVE_SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".zip",
)  # fmt: skip
"""Suffixes of archives in lower case. In the URIs of its members, an archive is a folder."""
_WEB = re.compile("https?://", re.IGNORECASE)
_QUERY = re.compile("[?#]")
_ROOT = re.compile("/|[a-zA-Z][a-zA-Z0-9+.-]*://")
_WORDS = re.compile("[a-z]+")
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
KNOWN_SPLITS = (
    "train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval",
)  # fmt: skip
"""Split names that a folder or a column may use without `--split_names`."""


def _check_pattern(option: str, pattern: str) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{option}: {pattern!r} is not a regular expression: {error}") from error
    if compiled.groups < 1:
        raise ValueError(
            f"{option}: {pattern!r} has no group: put parentheses around the part to take, "
            r"as in regex:([a-z]+)\d+\.jpg"
        )


def _suggestion(text: str, words: Sequence[str]) -> str:
    similar = get_close_matches(text, words, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def first_groups(pattern: str, uris: Iterable[str]) -> list[str | None]:
    """The first group of a regular expression at its first match in each URI, or None."""
    search = re.compile(pattern).search
    return [match[1] if (match := search(uri)) else None for uri in uris]


@dataclass(frozen=True)
class LabelRule:
    """Where the class of an image comes from.

    Attributes:
      kind: "auto" takes the column `label` of a manifest that has one, else the folder; "value" is
        a number that is no class: a feature, as all columns that become features. "list" is a
        column with any number of classes, "columns" one column of 0 or 1 for each class.
      argument: name of the column, or of the columns, or the regular expression.
    """

    kind: Literal["auto", "dirname", "column", "value", "list", "columns", "regex", "none"]
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> LabelRule:
        """From `auto`, `dirname`, `column[:NAME]`, `column:NAME:float`, `regex:RE` or `none`."""
        kind, _, argument = text.partition(":")
        if kind in ("auto", "dirname", "none") and not argument:
            return cls(kind)  # type: ignore[arg-type]
        if kind == "list" and argument:
            return cls("list", argument)
        if kind == "columns" and argument:
            names = argument.split(",")
            if "" in names or len(set(names)) < len(names):
                raise ValueError(f"--labels {text!r}: write each column once, as in columns:a,b")
            return cls("columns", argument)
        if value := value_column(text):
            return cls("value", value)
        if text == "column" or (kind == "column" and argument):
            return cls("column", argument or "label")
        if kind == "regex":
            _check_pattern("--labels", argument)
            return cls("regex", argument)
        raise ValueError(
            f"--labels {text!r}: write auto, dirname, column, column:NAME, column:NAME:float, "
            "list:NAME, columns:A,B, regex:RE or none"
            f"{_suggestion(text, ('auto', 'dirname', 'column', 'regex:RE', 'none'))}"
        )

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes."""
        return self.kind not in ("value", "none")

    @property
    def text(self) -> str:
        """The rule as an option."""
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def is_multiple(self) -> bool:
        """Whether an image can have any number of classes."""
        return self.kind in ("list", "columns")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of which each is a class."""
        return tuple(self.argument.split(",")) if self.kind == "columns" else ()

    @property
    def column(self) -> str | None:
        """The column of manifests that classes come from, or None."""
        return {"auto": "label", "column": self.argument, "list": self.argument}.get(self.kind)


@dataclass(frozen=True)
class SplitRule:
    """Which split an image belongs to.

    Attributes:
      kind: "ratio" compares a seeded hash of the group with thresholds; "count" draws so many
        images for each split; "auto" takes the column `split` of a manifest that has one, else all
        images are `train`.
      names: for "ratio" and "count" the splits in order; else the splits that are allowed.
      ratios: for "ratio", one for each name; their sum is 1.
      column: the column of manifests that is needed, or None.
      counts: for "count", the images of each split.
    """

    kind: Literal["auto", "ratio", "count", "column", "folder"]
    names: tuple[str, ...]
    ratios: tuple[float, ...] = ()
    column: str | None = None
    counts: tuple[int, ...] = ()

    @property
    def names_all(self) -> bool:
        """Whether the names are those of all splits of the data set."""
        return self.kind in ("ratio", "count")

    @classmethod
    def parse(cls, text: str, split_names: Sequence[str] = ()) -> SplitRule:
        """From `auto`, `train=0.8,test=0.2`, `train=500,test=100`, `column[:NAME]` or `folder`."""
        for name in split_names:
            _check_split_name("--split_names", name)
        names = tuple(split_names) or KNOWN_SPLITS
        kind, _, argument = text.partition(":")
        if text == "column" or (kind == "column" and argument):
            return cls("column", names, column=argument or "split")
        if text == "folder":
            return cls("folder", names)
        if text == "auto":
            return cls("auto", names, column="split")
        if split_names:
            raise ValueError(f"--split_names requires --splits column or folder, not {text!r}")
        if "=" not in text:
            raise ValueError(
                f"--splits {text!r}: write train=0.8,test=0.2 or train=500,test=100, or column, "
                "column:NAME, folder"
                f"{_suggestion(text, ('auto', 'column', 'folder'))}"
            )
        pairs = _parse_pairs("--splits", text, "train=0.8,test=0.2")
        if all(map(str.isdecimal, pairs.values())) and {*pairs.values()} != {"1"}:
            counts = tuple(map(int, pairs.values()))
            if 0 in counts:
                raise ValueError(f"--splits {text!r}: a split needs at least 1 image")
            return cls("count", tuple(pairs), counts=counts)
        ratios = tuple(_parse_ratio(name, value) for name, value in pairs.items())
        if not math.isclose(sum(ratios), 1, abs_tol=1e-6):
            raise ValueError(f"--splits {text!r}: the ratios add up to {sum(ratios):g}, not to 1")
        return cls("ratio", tuple(pairs), ratios)


def misspelled_splits(rule: SplitRule) -> dict[str, str]:
    """Returns names of splits that may be misspelled -> usual names that are similar.

    >>> misspelled_splits(SplitRule.parse("train=0.7,tset=0.2,test_clean=0.1"))
    {'tset': 'test'}
    """
    from difflib import get_close_matches

    found = {}
    for name in rule.names if rule.names_all else ():
        if not set(KNOWN_SPLITS) & set(_WORDS.findall(name.lower())):
            for similar in get_close_matches(name.lower(), KNOWN_SPLITS, 1, cutoff=0.75):
                found[name] = similar
    return found


def _parse_ratio(name: str, value: str) -> float:
    number = value.removesuffix("%")
    try:
        ratio = float(number)
    except ValueError:
        ratio = -1
    if number != value and 0 < ratio <= 100:
        raise ValueError(f"--splits: write {name}={ratio / 100:g} instead of {name}={value}")
    if not 0 < ratio <= 1:
        number = "a number above 0 and at most 1"
        if ratio > 1:
            number += ", or all splits counts of images"
        raise ValueError(f"--splits: {name}={value} must be {number}")
    return ratio


def _parse_pairs(option: str, text: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals or not value:
            raise ValueError(f"{option} {text!r}: write it like {example}")
        _check_split_name(option, name)
        if name in pairs:
            raise ValueError(f"{option} {text!r}: {name} occurs twice")
        pairs[name] = value
    return pairs


def _check_split_name(option: str, name: str) -> None:
    if not _SPLIT_NAME.fullmatch(name):
        raise ValueError(f"{option}: {name!r} is not a name of a split: use letters, digits and _")


@dataclass(frozen=True)
class GroupRule:
    """Which images must be in the same split, such as all images of a patient or a video.

    Attributes:
      kind: "uri" makes every image a group of its own.
      argument: name of the column, or the regular expression.
    """

    kind: Literal["uri", "dirname", "column", "regex"]
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> GroupRule:
        """From `uri`, `dirname`, `column:NAME` or `regex:RE`."""
        kind, _, argument = text.partition(":")
        if kind in ("uri", "dirname") and not argument:
            return cls(kind)  # type: ignore[arg-type]
        if kind == "column" and argument:
            return cls("column", argument)
        if kind == "regex":
            _check_pattern("--group_by", argument)
            return cls("regex", argument)
        raise ValueError(
            f"--group_by {text!r}: write dirname, column:NAME or regex:RE"
            f"{_suggestion(text, ('uri', 'dirname', 'column:NAME', 'regex:RE'))}"
        )

    @property
    def column(self) -> str | None:
        """The column of manifests that is needed, or None."""
        return self.argument if self.kind == "column" else None


@dataclass(frozen=True)
class ShardCounts:
    """How many shards a split gets.

    Attributes:
      default: shards of every split that is not named; None is "auto": by the bytes of the split.
      named: split -> shards.
    """

    default: int | None
    named: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> ShardCounts:
        """From `16`, `auto` or `train=1024,test=16`; all other splits are "auto"."""
        if text == "auto":
            return cls(None, {})
        if "=" not in text:
            return cls(_parse_count(text, text), {})
        pairs = _parse_pairs("--num_shards", text, "train=1024,test=16")
        return cls(None, {name: _parse_count(value, text) for name, value in pairs.items()})

    def of(self, split: str) -> int | None:
        """Shards of a split, or None for "auto"."""
        return self.named.get(split, self.default)


def _parse_count(value: str, text: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 99_999:
        raise ValueError(
            f"--num_shards {text!r}: write a number from 1 to 99999, train=1024,test=16, "
            "or for a build auto"
        )
    return int(value)


def _folder_name(name: str) -> str:
    """The name of a folder, or of an archive without its suffix."""
    if "." in name:
        small = name.lower()
        for suffix in ARCHIVE_SUFFIXES:
            if small.endswith(suffix):
                return name[: -len(suffix)]
    return name


def parent_name(uri: str) -> str:
    """The name of the folder that holds a file, or empty. An archive is a folder.

    >>> parent_name("/d/train.tar/n01440764.tar/1.JPEG")
    'n01440764'
    """
    if uri[:4].lower() == "http" and _WEB.match(uri):
        path = _QUERY.split(uri, maxsplit=1)[0].partition("://")[2].rpartition("/")[0]
        return unquote(path.rpartition("/")[2]) if "/" in path else ""
    return _folder_name(uri.rpartition("/")[0].rpartition("/")[2])


def top_folder(path: str) -> str:
    """The first folder of a path below its input, or of a URI; empty if there is no folder.

    >>> top_folder("train/cat/1.jpg"), top_folder("/train/1.jpg"), top_folder("1.jpg")
    ('train', 'train', '')
    """
    if absolute := _ROOT.match(path):
        path = path[absolute.end() :]
    return _folder_name(path.partition("/")[0]) if "/" in path else ""
