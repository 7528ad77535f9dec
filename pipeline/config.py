"""One build, as a frozen value: every option is checked at construction."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import MAX_SIDE, Resize
from imageshards.transforms.images.validate import MAX_PIXELS
from imageshards.transforms.inputs.fetch import ImageReader
from imageshards.transforms.inputs.kind import IMAGE_KEY, ListingOptions, RecordKeys, TextUnit
from imageshards.transforms.records.columns import FeatureColumn, channels_of, schema_of
from imageshards.transforms.records.schemas import SCHEMAS, Schema
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.plan import Planner
from imageshards.transforms.references.rules import GroupRule, LabelRule, ShardCounts, SplitRule
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.storage.web import USER_AGENT, Manners

FORMAT_VERSION = 2
"""Part of every fingerprint; changes when the same options give other bytes than before."""

CHOICES = {
    "check": ("full", "header"),
    "convert": ("auto", "jpeg", "png", "never"),
    "exif": ("bake", "keep"),
    "multi_frame": ("first", "all", "reject"),
    "dedupe": ("none", "pixels"),
    "writer": ("shard", "beam"),
    "features": tuple(SCHEMAS),
    "pixel_range": ("0..1", "0..255"),
    "text_unit": ("line", "paragraph"),
    "compression": ("none", "gzip"),
}
# Option -> its largest value; the least is 1.
_LIMITS = {
    "quality": 100,
    "min_size": MAX_SIDE,
    "max_pixels": MAX_PIXELS,
    "max_bytes": storage.MAX_BYTES,
}
AUTO = "auto"
_TFDS_NAME = re.compile(r"[a-z][a-z0-9_]*")

# Options that earlier versions had not: at their defaults they are left out of a build's digest, so
# that it is the same build as before.
_ADDED = ("channels", "pixel_range", "text_unit", "compression")

# What of the options is about images.
_OF_IMAGES = (
    "convert", "exif", "multi_frame", "resize", "enlarge", "quality", "min_size", "max_pixels",
    "check", "dedupe", "features_from", "uri_column", "image_key", "label_key", "name_key",
)  # fmt: skip

# Options that decide nothing in the data set itself.
_NOT_OF_THE_DATA = (
    "input", "output", "name", "overwrite", "max_reject_fraction",
    "user_agent", "web_timeout", "web_retries", "requests_per_host",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All options of a build. The defaults are those of the command line.

    Attributes:
      input: folders, glob patterns, manifests, archives, TFRecord files, images.
      output: the folder of the data set, local or remote.
      num_shards: `16`, `train=1024,test=16` or `auto`.
      seed: 0 .. 2**64 - 1; fixes the order and the hashed splits.
      labels: `auto`, `dirname`, `column[:NAME]`, `regex:RE` or `none`.
      class_names: a text file, one name a line in label order; empty: the sorted labels. With the
        schema imagenet a line may be SYNSET, a tab, and a text.
      label_offset: 1 leaves label 0 to TF-slim's background class.
      splits: `auto`, `train=0.8,test=0.2`, `column[:NAME]` or `folder`.
      split_names: which splits a column or folder may name.
      group_by: `uri`, `dirname`, `column:NAME` or `regex:RE`.
      uri_column: the manifests' column of URIs.
      image_key: the feature of the records of TFRecord files that is the image.
      label_key: their feature that is the label; empty: `image/class/text`, else
        `image/class/label`.
      name_key: their feature that is the image's name; empty: it is FILE/NUMBER.
      user_agent: what web servers are told we are.
      web_timeout: seconds that one image from the web may take, retries included.
      web_retries: further attempts after a failure that may pass.
      requests_per_host: at a time, from one machine.
      base_uri: URIs below it are shuffled, split and named relative to it.
      include_all: take files whatever their name.
      features: name of the schema.
      channels: of raw pixels, 1 or 3; 0: 3 where all images have one shape, else the image's.
      pixel_range: of raw float pixels, `0..1` or `0..255`.
      text_unit: what of a text file is a record, `line` or `paragraph`.
      compression: of the shards, `none` or `gzip`.
      features_from: columns that become features: `COLUMN:TYPE` or `KEY=COLUMN:TYPE`; `auto` stands
        for the other features of TFRecord inputs, and is none until `run` has looked at them.
      check: `full` or `header`.
      convert: `auto`, `jpeg`, `png` or `never`.
      exif: `bake` or `keep`.
      multi_frame: `first`, `all` or `reject`.
      resize: `short:256`, `long:512`, `320x240`, `crop:224x224` or `pad:224x224`; empty: as it is.
      enlarge: whether resizing may enlarge.
      quality: of JPEGs that are written anew, 1 to 100.
      min_size: pixels of the shortest side that is taken.
      max_pixels: of an image.
      max_bytes: of a file.
      dedupe: `none`, or `pixels` to take images of equal pixels once.
      writer: `shard` or `beam`.
      name: of the data set; empty: that of the output folder.
      max_reject_fraction: more rejects than this fail the build.
      overwrite: replace what another build left in the output.

    Raises:
      UsageError: an option has a bad value.
    """

    input: tuple[str, ...]
    output: str
    num_shards: str = "auto"
    seed: int = 0
    labels: str = "auto"
    class_names: str = ""
    label_offset: int = 0
    splits: str = "auto"
    split_names: tuple[str, ...] = ()
    group_by: str = "uri"
    uri_column: str = "uri"
    image_key: str = IMAGE_KEY
    label_key: str = ""
    name_key: str = ""
    user_agent: str = USER_AGENT
    web_timeout: float = 60.0
    web_retries: int = 3
    requests_per_host: int = 16
    base_uri: str = ""
    include_all: bool = False
    features: str = "slim"
    channels: int = 0
    pixel_range: str = "0..1"
    text_unit: str = "line"
    compression: str = "none"
    features_from: tuple[str, ...] = (AUTO,)
    check: str = "full"
    convert: str = "auto"
    exif: str = "bake"
    multi_frame: str = "first"
    resize: str = ""
    enlarge: bool = False
    quality: int = 95
    min_size: int = 1
    max_pixels: int = MAX_PIXELS
    max_bytes: int = storage.MAX_BYTES
    dedupe: str = "none"
    writer: str = "shard"
    name: str = ""
    max_reject_fraction: float = 0.01
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.input:
            raise UsageError("--input is missing: name a folder, a pattern or a manifest")
        if not self.output:
            raise UsageError("--output is missing: name a folder for the data set")
        for option, choices in CHOICES.items():
            if getattr(self, option) not in choices:
                raise UsageError(
                    f"--{option} {getattr(self, option)!r}: write {' or '.join(choices)}"
                )
        for option, most in _LIMITS.items():
            if not 1 <= getattr(self, option) <= most:
                raise UsageError(
                    f"--{option} {getattr(self, option)}: write a number from 1 to {most}"
                )
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"--seed {self.seed}: write a number from 0 to 2**64 - 1")
        if not 0 <= self.max_reject_fraction <= 1:
            raise UsageError(
                f"--max_reject_fraction {self.max_reject_fraction}: write a number from 0 to 1"
            )
        if self.label_offset not in (0, 1):
            raise UsageError(f"--label_offset {self.label_offset}: write 0 or 1")
        for option in ("web_timeout", "web_retries", "requests_per_host"):
            least = 0 if option == "web_retries" else 1
            if not least <= getattr(self, option) <= 3600:
                raise UsageError(
                    f"--{option} {getattr(self, option)}: write a number from {least} to 3600"
                )
        if not self.user_agent.isprintable() or not self.user_agent.isascii():
            raise UsageError(f"--user_agent {self.user_agent!r}: write printable ASCII")
        if self.name and not _TFDS_NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r}: write a small letter, then small letters, digits and _"
            )
        try:
            # Parsed here so that a bad value is told before anything runs.
            rules = (self.annotator, self.shard_counts, self.rules, self.schema)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._check_together(rules[0])

    def _check_schema(self) -> None:
        """Refuses options that mean nothing for the records of this schema."""
        schema = self.schema
        name = f"--features {self.features}"
        if self.channels not in (0, 1, 3):
            raise UsageError(f"--channels {self.channels}: write 1 or 3")
        if self.channels and schema.holds != "pixels":
            raise UsageError(f"--channels is for raw pixels: it does not go with {name}")
        content = schema.content
        floats = content and content.array and content.array.dtype == "float32"
        if self._is_told("pixel_range") and not floats:
            raise UsageError(f"--pixel_range is for float pixels: it does not go with {name}")
        if self._is_told("text_unit") and schema.holds != "text":
            raise UsageError(f"--text_unit is for --features text, not {self.features}")
        if self.compression != "none" and schema.holds == "encoded":
            raise UsageError(
                f"--compression gzip is for pixels and texts: the images of {name} are compressed"
            )
        if schema.holds == "pixels":
            if self.convert != "auto" or self._is_told("quality"):
                raise UsageError(
                    f"{name} writes pixels, and no image files: leave --convert and --quality out"
                )
            if self.exif == "keep" or self.multi_frame == "all":
                raise UsageError(
                    f"{name} writes pixels, which hold no orientation and no frames: leave --exif "
                    "keep and --multi_frame all out"
                )
        if self.features == "imagenet" and self.convert not in ("auto", "jpeg"):
            raise UsageError(f"{name} holds JPEGs alone: leave --convert {self.convert} out")
        if schema.holds == "text":
            for option in _OF_IMAGES:
                if self._is_told(option) and getattr(self, option):
                    raise UsageError(f"--{option} is for images: it does not go with {name}")
            if self.annotator.columns.required:
                raise UsageError(
                    f"a text file has no column {self.annotator.columns.required[0]!r}: write "
                    "dirname, regex:RE or none"
                )

    def _is_told(self, option: str) -> bool:
        return bool(getattr(self, option) != _DEFAULTS[option])

    def _check_together(self, annotator: Annotator) -> None:
        self._check_schema()
        splits = annotator.splits
        if self.resize and self.convert == "never":
            raise UsageError("--resize writes images anew: leave --convert never out")
        if self.multi_frame == "all" and (self.resize or self.convert in ("jpeg", "png")):
            raise UsageError(
                "--multi_frame all writes animations as they are: it does not go with --resize "
                "or --convert jpeg or png"
            )
        if self.enlarge and not self.resize:
            raise UsageError("--enlarge goes with --resize")
        if annotator.labels.kind == "none" and (self.class_names or self.label_offset):
            raise UsageError("--class_names and --label_offset do not go with --labels none")
        if annotator.groups.kind != "uri" and splits.kind != "ratio":
            raise UsageError(
                "--group_by goes with splits by ratio, such as --splits train=0.8,test=0.2"
            )
        if splits.kind == "ratio":
            for split in self.shard_counts.named:
                if split not in splits.names:
                    raise UsageError(
                        f"--num_shards names the split {split!r}; "
                        f"the splits are {', '.join(splits.names)}"
                    )
        if AUTO in self.features_from and len(self.features_from) > 1:
            raise UsageError("--features_from: auto and none stand alone")
        if self.label_key and annotator.labels.kind not in ("auto", "column"):
            raise UsageError(f"--label_key does not go with --labels {self.labels}")
        root = self.layout.root
        if re.search(r"[*?\[]", root) and (self.writer == "beam" or not storage.is_local(root)):
            raise UsageError(
                f"--output {self.output}: Beam takes *, ? and [ for patterns: name another folder"
            )
        if self.writer == "beam":
            for split in self.beam_splits:
                if self.shard_counts.of(split) is None:
                    raise UsageError(
                        f"--writer beam needs a number of shards for {split!r}: "
                        f"Beam's writer must know it before it starts"
                    )

    @property
    def base(self) -> str:
        """What of a URI is neither hashed nor recorded."""
        return storage.normalize(self.base_uri).rstrip("/") + "/" if self.base_uri else ""

    @cached_property
    def annotator(self) -> Annotator:
        """Labels, splits and keys."""
        return Annotator(
            seed=self.seed,
            labels=LabelRule.parse(self.labels),
            splits=SplitRule.parse(self.splits, self.split_names),
            groups=GroupRule.parse(self.group_by),
            base=self.base,
            features=tuple(
                FeatureColumn.parse(text) for text in self.features_from if text != AUTO
            ),
        )

    @cached_property
    def shard_counts(self) -> ShardCounts:
        """How many shards."""
        return ShardCounts.parse(self.num_shards)

    @property
    def beam_splits(self) -> tuple[str, ...]:
        """The splits that Beam's writer must know before anything is listed.

        Raises:
          UsageError: they cannot be known.
        """
        splits = self.annotator.splits
        if splits.kind == "ratio" or self.split_names:
            return splits.names
        if splits.kind == "auto":
            return ("train",)
        raise UsageError(
            f"--writer beam with --splits {self.splits} needs --split_names, such as train,test: "
            "Beam's writer must know them before it starts"
        )

    @cached_property
    def planner(self) -> Planner:
        """Splits, shards and classes; reads the class names.

        Raises:
          BuildError: the file of class names is not what it must be.
        """
        splits = self.annotator.splits
        fixed = splits.kind == "ratio" or bool(self.split_names) or self.writer == "beam"
        return Planner(
            num_shards=self.shard_counts,
            split_order=(self.beam_splits if self.writer == "beam" else splits.names)
            if fixed
            else (),
            class_names=self._class_names,
            class_texts=self._class_texts,
            label_offset=max(self.label_offset, self.schema.label_offset),
            with_labels=self.has_labels,
            base=self.base,
            compression=self.compression_of_shards,
            noun=self.schema.noun,
            record_bytes=self._pixel_bytes,
        )

    @cached_property
    def _class_lines(self) -> tuple[tuple[str, str], ...]:
        """Name and text of every given class."""
        if not self.class_names:
            return ()
        return _read_class_names(self.class_names, with_texts=self.features == "imagenet")

    @property
    def _class_names(self) -> tuple[str, ...] | None:
        return tuple(name for name, _ in self._class_lines) or None

    @property
    def _class_texts(self) -> dict[bytes, bytes]:
        return {name.encode(): text.encode() for name, text in self._class_lines if text != name}

    @property
    def _pixel_bytes(self) -> int:
        array = self.schema.content.array if self.schema.content else None
        if not array or array.shape is None:
            return 0
        return math.prod(array.shape) * (4 if array.dtype == "float32" else 1)

    @property
    def compression_of_shards(self) -> Literal["", "gzip"]:
        """As the names of shards have it."""
        return "gzip" if self.compression == "gzip" else ""

    @property
    def has_labels(self) -> bool:
        """Whether records have a class."""
        return self.annotator.labels.kind != "none"

    @cached_property
    def schema(self) -> Schema:
        """The features of a record."""
        return schema_of(self.options)

    @cached_property
    def rules(self) -> ImagePolicy:
        """How images are checked and converted."""
        convert = self.convert
        if SCHEMAS[self.features].holds == "pixels":
            convert = "pixels"
        elif self.features == "imagenet":
            convert = "jpeg"  # TPU code for ImageNet decodes nothing else
        return ImagePolicy(
            check=self.check,  # type: ignore[arg-type]
            convert=convert,  # type: ignore[arg-type]
            exif=self.exif,  # type: ignore[arg-type]
            multi_frame=self.multi_frame,  # type: ignore[arg-type]
            resize=Resize.parse(self.resize, self.enlarge) if self.resize else None,
            quality=self.quality,
            min_size=self.min_size,
            max_pixels=self.max_pixels,
            max_bytes=self.max_bytes,
            channels=channels_of(self.options),
        )

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The encoder of both writers."""
        return ImageEncoder(
            self.schema, self.rules, self.base, self.reader, self.annotator.features,
            unit=self.pixel_range == "0..1", class_texts=self._class_texts,
        )  # fmt: skip

    @property
    def reader(self) -> ImageReader:
        """Gets the bytes of images."""
        manners = Manners(
            self.user_agent, self.web_timeout, self.web_retries, self.requests_per_host
        )
        return ImageReader(self.image_key, manners)

    @property
    def unit(self) -> TextUnit | None:
        """What of a text file is a record; None where inputs are images."""
        if SCHEMAS[self.features].holds != "text":
            return None
        return "paragraph" if self.text_unit == "paragraph" else "line"

    @property
    def listing(self) -> ListingOptions:
        """How inputs are listed."""
        return ListingOptions(
            columns=self.annotator.columns,
            uri_column=self.uri_column,
            include_all=self.include_all,
            output=self.layout.root,
            scratch=self.layout.state,
            record_keys=RecordKeys(self.image_key, self.label_key, self.name_key),
            text_unit=self.unit,
        )

    @cached_property
    def layout(self) -> Layout:
        """Where everything lies."""
        return Layout(storage.normalize(self.output))

    @property
    def dataset_name(self) -> str:
        """The name in dataset_info.json."""
        return self.name or default_name(os.path.basename(self.layout.root.rstrip("/")))

    @property
    def options(self) -> dict[str, Any]:
        """Options that decide what is in the data set, as build.json has them."""
        return {
            field.name: value
            for field in fields(self)
            if field.name not in _NOT_OF_THE_DATA
            for value in [getattr(self, field.name)]
        }

    @property
    def settings(self) -> str:
        """A digest of all that decides the bytes of a shard beside its references."""
        options = {
            name: value
            for name, value in self.options.items()
            if name not in _ADDED or self._is_told(name)
        }
        text = json.dumps([FORMAT_VERSION, options], sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()


_DEFAULTS = {field.name: field.default for field in fields(Config)}


def default_name(folder: str) -> str:
    """The name of a data set that is given none, from that of its folder."""
    base = re.sub(r"[^a-z0-9_]+", "_", folder.lower()).strip("_")
    return base if _TFDS_NAME.fullmatch(base) else f"dataset_{base}".rstrip("_")


def _read_class_names(uri: str, with_texts: bool) -> tuple[tuple[str, str], ...]:
    """Reads the file: (name, text) of every class, which are the same without a tab between."""
    try:
        with storage.open_read(storage.normalize(uri)) as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BuildError(f"--class_names {uri}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise BuildError(
            f"--class_names {uri}: cannot be read: {error.strerror or 'no such file'}"
        ) from error
    lines = tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))
    rows = [line.partition("\t") if with_texts else (line, "", "") for line in lines]
    names = [name for name, _, _ in rows]
    if "" in names:
        raise BuildError(f"--class_names {uri}: line {names.index('') + 1} is empty")
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        if name in seen:
            raise BuildError(f"--class_names {uri}:{number}: {name!r} is there twice")
        seen.add(name)
    return tuple((name, text or name) for name, _, text in rows)
