"""The objects that a build consists of, made from its options."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import AUTO
from imageshards.pipeline.validation import check_combinations
from imageshards.transforms import storage
from imageshards.transforms.annotations.formats import check_distinct, identify
from imageshards.transforms.annotations.source import AnnotationSource
from imageshards.transforms.elements import BuildError, UsageError, quoted
from imageshards.transforms.failure import Failures
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.inputs.fetch import ImageReader
from imageshards.transforms.inputs.kind import ListingOptions, RecordKeys, TextUnit, real_folder
from imageshards.transforms.pairs.captions import Captions
from imageshards.transforms.pairs.masks import Masks
from imageshards.transforms.pairs.pattern import PathPattern
from imageshards.transforms.pairs.side_file import SideFile
from imageshards.transforms.records.columns import (
    SIDE_KEY,
    SIDE_OPTIONS,
    FeatureColumn,
    annotation_columns,
    channels_of,
    feature_columns,
    has_captions,
    label_rule,
    schema_of,
    side_column,
)
from imageshards.transforms.records.containers import variant_of
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.names import Roots
from imageshards.transforms.references.plan import Planner
from imageshards.transforms.references.rules import GroupRule, LabelRule, ShardCounts, SplitRule
from imageshards.transforms.references.selection.choice import Choice
from imageshards.transforms.references.selection.where import Where
from imageshards.transforms.shards.annotations import Annotations
from imageshards.transforms.shards.encoder import ImageEncoder
from imageshards.transforms.shards.layout import Layout
from imageshards.transforms.storage.protocol import Match
from imageshards.transforms.storage.web import WebOptions


@dataclass(frozen=True)
class BuildSpec:
    """A build: its options, and what the steps of the graph are made of.

    Attributes:
      options: of the build.
      job: identifies the job for a runner that retries what fails; empty: it does not retry.

    Raises:
      UsageError: a rule is malformed, or options exclude each other.
    """

    options: BuildOptions
    job: str = ""

    def __post_init__(self) -> None:
        try:
            # Malformed rules are reported before anything runs.
            _ = (self.annotator, self.shard_counts, self.rules, self.schema, self._side)
        except ValueError as error:
            raise UsageError(str(error)) from error
        check_combinations(self)

    @cached_property
    def settings(self) -> str:
        """The digest of the options that affect the shards."""
        return self.options.settings

    @cached_property
    def annotator(self) -> Annotator:
        """Assigns labels, splits and keys to references."""
        splits = self.options.splits
        return Annotator(
            seed=self.options.output.seed,
            labels=LabelRule.parse(label_rule(self.options.values())),
            splits=SplitRule.parse(splits.splits, splits.split_names),
            groups=GroupRule.parse(splits.group_by),
            features=feature_columns(self.options.values()),
            roots=Roots(base=self.base),
            where=Where(where) if (where := self.options.choice.where) else None,
        )

    @property
    def base(self) -> str:
        """The folder of `--base_uri`, with a slash at its end; empty: none."""
        base_uri = self.options.inputs.base_uri
        return storage.normalize(base_uri).rstrip("/") + "/" if base_uri else ""

    @cached_property
    def shard_counts(self) -> ShardCounts:
        """The number of shards of each split."""
        return ShardCounts.parse(self.options.output.num_shards)

    @property
    def beam_splits(self) -> tuple[str, ...]:
        """The splits of a build with `--writer beam`, which must be known before listing.

        Raises:
          UsageError: they are not known.
        """
        splits = self.annotator.splits
        if splits.names_all or self.options.splits.split_names:
            return splits.names
        if splits.kind == "auto":
            return ("train",)
        raise UsageError(
            f"--writer beam with --splits {self.options.splits.splits} requires --split_names, "
            "such as train,test: Beam's writer must know them before it starts"
        )

    @cached_property
    def planner(self) -> Planner:
        """Decides on splits, shards and classes; reads the class names.

        Raises:
          BuildError: the file of class names cannot be read, or is malformed.
        """
        splits, is_beam = self.annotator.splits, self.options.execution.writer == "beam"
        is_fixed = splits.names_all or bool(self.options.splits.split_names) or is_beam
        names = self.beam_splits if is_beam else splits.names
        return Planner(
            num_shards=self.shard_counts,
            split_order=names if is_fixed else (),
            class_names=tuple(name for name, _ in self._class_lines)
            or self.annotator.labels.names
            or None,
            class_texts=self._class_texts,
            label_offset=max(self.options.labels.label_offset, self.schema.label_offset),
            with_labels=self.annotator.labels.has_classes,
            base=self.base,
            compression=self.compression,
            file_format=self.options.records.file_format,
            noun=self.schema.noun,
            record_bytes=self._pixel_bytes,
            max_bytes=self.options.images.max_bytes,
        )

    @cached_property
    def choice(self) -> Choice:
        """How many of the references the data set takes."""
        given, splits = self.options.choice, self.annotator.splits
        stratify = self.options.splits.stratify
        is_exact = splits.kind == "count" or (splits.kind == "ratio" and stratify)
        return Choice(
            given.limit,
            given.per_class,
            splits=splits.names if is_exact else (),
            ratios=splits.ratios if stratify else (),
            counts=splits.counts,
            stratify=stratify,
            max_bytes=self.options.images.max_bytes,
        )

    @cached_property
    def _class_lines(self) -> tuple[tuple[str, str], ...]:
        """Name and description of each class in `--class_names`."""
        uri = self.options.labels.class_names
        return _read_class_names(uri, self.schema.has_class_texts) if uri else ()

    @property
    def _class_texts(self) -> dict[bytes, bytes]:
        return {name.encode(): text.encode() for name, text in self._class_lines if text != name}

    @property
    def _pixel_bytes(self) -> int:
        """The bytes of the pixels of a record; 0 where they differ."""
        array = self.schema.content.array if self.schema.content else None
        if not array or array.shape is None:
            return 0
        return math.prod(array.shape) * (4 if array.dtype == "float32" else 1)

    @property
    def compression(self) -> str:
        """How records are compressed and grouped, as in `ShardId`."""
        records = self.options.records
        return variant_of(records.compression, records.group_size)

    @cached_property
    def schema(self) -> Schema:
        """The features of a record."""
        return schema_of(self.options.values())

    @cached_property
    def rules(self) -> ImagePolicy:
        """How images are validated and converted."""
        images = self.options.images
        pixels = "pixels" if self.schema.holds == "pixels" else ""
        return ImagePolicy(
            check=images.check,  # type: ignore[arg-type]
            convert=pixels or self.schema.image_format or images.convert,  # type: ignore[arg-type]
            exif=images.exif,  # type: ignore[arg-type]
            multi_frame=images.multi_frame,  # type: ignore[arg-type]
            resize=Resize.parse(images.resize, images.enlarge) if images.resize else None,
            quality=images.quality,
            min_size=images.min_size,
            max_pixels=images.max_pixels,
            max_bytes=images.max_bytes,
            channels=channels_of(self.options.values()),
        )

    @cached_property
    def encoder(self) -> ImageEncoder:
        """Makes records of references, for both writers."""
        return ImageEncoder(
            self.schema,
            self.rules,
            self.reader,
            self.annotator.features,
            unit_range=self.options.records.pixel_range == "0..1",
            class_texts=self._class_texts,
            annotations=self._annotations,
            side=self._side,
        )

    @property
    def annotation_columns(self) -> tuple[FeatureColumn, ...]:
        """The features that `--annotations` fills."""
        return annotation_columns(self.options.values())

    @cached_property
    def annotation_sources(self) -> tuple[AnnotationSource, ...]:
        """The files and folders of annotations; may read their beginnings.

        Raises:
          UsageError: one does not exist, or the formats differ or are not known, or two of them
            have the same file.
        """
        given, name_key = self.options.annotations, self.options.inputs.name_key
        found = [
            identify(text, given.annotation_format, given.object_masks, name_key)
            for text in given.annotations
        ]
        if len({source.name for source in found}) > 1:
            raise UsageError(
                f"--annotations {found[0].uri} is {found[0].noun}, but {found[-1].uri} is "
                f"{found[-1].noun}: build from annotations of one format"
            )
        check_distinct(found)
        return tuple(found)

    @property
    def _annotations(self) -> Annotations | None:
        """How the annotations among the columns are mapped; None if there are none."""
        given = self.options.annotations
        annotations = Annotations(
            (
                *(column for column in self.annotator.features if column.key != SIDE_KEY),
                *self.annotation_columns,
            ),
            frame=given.annotations_on,  # type: ignore[arg-type]
            min_visible=given.min_box_visible,
            without_boxes=given.without_boxes,  # type: ignore[arg-type]
            estimates_areas=bool(self.annotation_columns),
        )
        return annotations if annotations.are_needed else None

    def other_files(self) -> Iterator[Match]:
        """Yields (URI, bytes, stamp) of files besides the inputs that the data set depends on.

        Raises:
          UsageError: annotations do not exist, or have no known format.
        """
        for source in self.annotation_sources:
            yield from source.files_in()
        for text in (*self.options.choice.exclude, self.options.labels.class_names):
            if text:
                uri = storage.normalize(text)
                yield uri, *storage.stat(uri)

    @property
    def _side_pattern(self) -> PathPattern | None:
        """The paths of the images' side files; None if a column has them, or there are none."""
        values = self.options.values()
        if not self.schema.side or side_column(values) or has_captions(values):
            return None
        name = SIDE_OPTIONS[self.schema.side]
        text = values[name]
        is_absolute = text.startswith(("/", "~", "file:"))
        text = storage.normalize(text) if is_absolute else text
        return PathPattern.parse(f"--{name}", text, self.base)

    @cached_property
    def _side(self) -> SideFile | None:
        """Reads the second file of each image; None if there is none."""
        pattern, images = self._side_pattern, self.options.images
        if self.schema.side == "captions" and pattern:
            return Captions(pattern, None, images.max_bytes, self.reader.web)
        if self.schema.side != "mask":
            return None
        column = next((f for f in self.annotator.features if f.key == SIDE_KEY), None)
        given = self.options.annotations
        return Masks(
            pattern,
            column,
            images.max_bytes,
            self.reader.web,
            frame=given.annotations_on,  # type: ignore[arg-type]
            padding=given.mask_padding,
            max_pixels=images.max_pixels,
        )

    @property
    def computes_sha256(self) -> bool:
        """Whether the SHA-256 of each shard is computed."""
        choice = self.options.about.sha256
        return self.encoder.check == "full" if choice == AUTO else choice == "yes"

    @property
    def reader(self) -> ImageReader:
        """Reads the bytes of images."""
        inputs = self.options.inputs
        web = WebOptions(
            inputs.user_agent,
            inputs.web_timeout,
            inputs.web_retries,
            inputs.requests_per_host,
            inputs.allow_private_hosts,
        )
        return ImageReader(inputs.image_key, web)

    @property
    def text_unit(self) -> TextUnit | None:
        """The part of a text file that is a record; None for schemas of images."""
        if self.schema.holds != "text":
            return None
        return "paragraph" if self.options.records.text_unit == "paragraph" else "line"

    @property
    def listing(self) -> ListingOptions:
        """How inputs are listed."""
        inputs = self.options.inputs
        return ListingOptions(
            columns=self.annotator.columns,
            uri_column=inputs.uri_column,
            uri_template=inputs.uri_template,
            include_all=inputs.include_all,
            image_suffixes=inputs.image_suffix,
            scratch=self.layout.state,
            record_keys=RecordKeys(inputs.image_key, inputs.label_key, inputs.name_key),
            text_unit=self.text_unit,
            output=real_folder(self.layout.root),
            side=self._side_pattern,
        )

    @cached_property
    def layout(self) -> Layout:
        """The paths of the data set's files."""
        return Layout(self.options.output.output)

    @property
    def failures(self) -> Failures:
        """Where the job's failure is recorded."""
        return Failures(self.layout, self.job)

    @property
    def dataset_name(self) -> str:
        """The name in dataset_info.json."""
        folder = os.path.basename(self.layout.root)
        return self.options.output.name or default_name(folder)


def default_name(folder: str) -> str:
    """The name of a data set without `--name`, made from the name of its folder.

    >>> default_name("My Photos")
    'my_photos'
    """
    base = re.sub(r"[^a-z0-9_]+", "_", folder.lower()).strip("_")
    return base if re.match("[a-z]", base) else f"dataset_{base}".rstrip("_")


def _read_class_names(uri: str, with_texts: bool) -> tuple[tuple[str, str], ...]:
    """Reads (name, description) of every class; they are equal where a line has no tab."""
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
            raise BuildError(f"--class_names {uri}: line {number} repeats {quoted(name)}")
        seen.add(name)
    return tuple((name, text or name) for name, _, text in rows)
