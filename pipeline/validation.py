"""Checks combinations of options. The declarations of options check single values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imageshards.pipeline.options.declare import AUTO
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError, alternatives
from imageshards.transforms.extras import require
from imageshards.transforms.records.columns import SIDE_OPTIONS, annotation_problem
from imageshards.transforms.records.containers import CONTAINERS
from imageshards.transforms.records.objects import CAPTION_FORMATS
from imageshards.transforms.records.schemas import SCHEMAS, Schema

if TYPE_CHECKING:
    from imageshards.pipeline.assembly import BuildSpec


def check_combinations(spec: BuildSpec) -> None:
    """Checks the options of a build against each other.

    Raises:
      UsageError: two options exclude each other, or one requires another.
    """
    checks = (
        _schema, _pixels, _texts, _images, _labels_and_splits, _choice, _columns, _annotations,
        _container,
        _output,
    )  # fmt: skip
    for check in checks:
        for problem in check(spec):
            raise UsageError(problem)


def _schema(spec: BuildSpec) -> Iterator[str]:
    schema, records = spec.schema, spec.options.records
    name = f"--features {schema.name}"
    array = schema.content.array if schema.content else None
    if records.channels and schema.holds != "pixels":
        yield f"--channels requires a schema of decoded pixels, not {name}"
    if not spec.options.is_default("pixel_range") and not (array and array.dtype == "float32"):
        yield f"--pixel_range requires a schema of float pixels, not {name}"
    if not spec.options.is_default("text_unit") and schema.holds != "text":
        yield f"--text_unit requires --features text, not {name}"
    for side, option in SIDE_OPTIONS.items():
        if not spec.options.is_default(option) and schema.side != side:
            names = alternatives(name for name, known in SCHEMAS.items() if known.side == side)
            yield f"--{option} requires --features {names}, not {name}"
    if not spec.options.is_default("mask_padding") and schema.side != "mask":
        yield f"--mask_padding requires a schema with masks, not {name}"
    if problem := compression_problem(schema, records.compression):
        yield problem


def compression_problem(schema: Schema, compression: str) -> str:
    """Returns why a `--compression` does not suit a schema; empty if it does."""
    if compression == "none" or schema.holds != "encoded":
        return ""
    return (
        f"--compression {compression} is for decoded pixels and texts: the images of --features "
        f"{schema.name} are compressed already"
    )


def _pixels(spec: BuildSpec) -> Iterator[str]:
    schema, images = spec.schema, spec.options.images
    name = f"--features {schema.name}"
    if schema.holds == "pixels":
        if images.convert != "auto" or not spec.options.is_default("quality"):
            yield f"{name} writes decoded pixels: omit --convert and --quality"
        if images.exif == "keep" or images.multi_frame == "all":
            yield (
                f"{name} writes decoded pixels, without orientation or frames: omit --exif keep "
                "and --multi_frame all"
            )
    if schema.image_format and images.convert not in ("auto", schema.image_format):
        yield (
            f"{name} has only {schema.image_format.upper()} images: omit --convert {images.convert}"
        )


def _texts(spec: BuildSpec) -> Iterator[str]:
    if spec.schema.holds != "text":
        return
    values = spec.options.values()
    for option in spec.options.declared().values():
        value = values[option.name]
        if option.images_only and value and value != option.default:
            yield f"{option.flag} is for images: omit it with --features {spec.schema.name}"
    if spec.options.choice.where:
        yield "--where requires columns, which text files do not have"
    if columns := spec.annotator.columns.required:
        yield f"text files have no column {columns[0]!r}: use dirname, regex:RE or none"


def _images(spec: BuildSpec) -> Iterator[str]:
    images = spec.options.images
    if images.resize and images.convert == "never":
        yield "--resize re-encodes images: omit --convert never"
    if images.multi_frame == "all" and (images.resize or images.convert in ("jpeg", "png")):
        yield (
            "--multi_frame all keeps animations unchanged: it cannot be combined with --resize or "
            "--convert jpeg or png"
        )
    if images.enlarge and not images.resize:
        yield "--enlarge requires --resize"


def _labels_and_splits(spec: BuildSpec) -> Iterator[str]:
    labels, splits = spec.options.labels, spec.annotator.splits
    kind = spec.annotator.labels.kind
    if kind == "columns" and labels.class_names:
        yield "--labels columns:... names the classes: omit --class_names"
    if not spec.annotator.labels.has_classes and (labels.class_names or labels.label_offset):
        yield f"--class_names and --label_offset cannot be combined with --labels {labels.labels}"
    if spec.annotator.groups.kind != "uri" and splits.kind != "ratio":
        yield "--group_by requires splits by ratio, such as --splits train=0.8,test=0.2"
    if splits.names_all:
        for split in spec.shard_counts.named:
            if split not in splits.names:
                yield (
                    f"--num_shards names the split {split!r}, but the splits are "
                    f"{', '.join(splits.names)}"
                )
    if spec.options.inputs.label_key and kind not in ("auto", "column"):
        yield f"--label_key cannot be combined with --labels {labels.labels}"


def _choice(spec: BuildSpec) -> Iterator[str]:
    given, splits = spec.options.choice, spec.annotator.splits
    stratify = spec.options.splits.stratify
    rule = spec.annotator.labels
    for name, is_set in (("per_class", given.per_class), ("stratify", stratify)):
        if is_set and not rule.has_classes:
            yield f"--{name} requires classes: omit --labels {spec.options.labels.labels}"
        if is_set and rule.is_multiple:
            yield f"--{name} requires one class for each image, not --labels {rule.text}"
    if stratify and not splits.names_all:
        yield "--stratify requires splits by ratio or by count, such as --splits train=0.8,test=0.2"
    if stratify and spec.annotator.groups.kind != "uri":
        yield "--stratify cannot be combined with --group_by, whose groups have several classes"
    if splits.kind == "count":
        text, total = spec.options.splits.splits, sum(splits.counts)
        if given.per_class and not stratify:
            yield f"--per_class with --splits {text} requires --stratify"
        if total == 100 and given.limit != 100:
            ratios = ",".join(
                f"{name}={count / 100:g}"
                for name, count in zip(splits.names, splits.counts, strict=True)
            )
            yield f"--splits {text}: write {ratios}, or add --limit 100 if you mean 100 images"
        if 0 < given.limit < total:
            yield f"--limit {given.limit} is less than the {total:,} images of --splits {text}"


def _columns(spec: BuildSpec) -> Iterator[str]:
    columns = spec.options.records.features_from
    if AUTO in columns and len(columns) > 1:
        yield "invalid --features_from: auto cannot be combined with columns"
    yield from filter(None, map(annotation_problem, spec.annotator.features))
    inputs = spec.options.inputs
    if inputs.uri_template and not spec.options.is_default("uri_column"):
        yield (
            "--uri_template cannot be combined with --uri_column: write "
            f"{{{inputs.uri_column}}} in the template"
        )
    if inputs.uri_template and "{" not in inputs.uri_template:
        yield (
            f"--uri_template {inputs.uri_template} names no column: write one in braces, such as "
            "train/{id}.jpg"
        )


def _annotations(spec: BuildSpec) -> Iterator[str]:
    given = spec.options.annotations
    if given.annotation_format != AUTO and not given.annotations:
        yield f"--annotation_format {given.annotation_format} requires --annotations"
    if given.object_masks and not given.annotations:
        yield "--object_masks requires --annotations"
    if given.annotation_format in CAPTION_FORMATS:
        if spec.schema.side != "captions":
            yield "--annotations with captions requires --features caption"
        if given.captions:
            yield f"--annotations has the captions: omit --captions {given.captions}"
    if given.object_masks:
        require("coco", "--object_masks")


def _container(spec: BuildSpec) -> Iterator[str]:
    records = spec.options.records
    name, container = records.file_format, CONTAINERS[records.file_format]
    container.check_writable()
    if problem := container_problem(name, records.compression, records.group_size):
        yield problem
    if spec.options.execution.writer == "beam" and not container.beam_writer:
        yield f"--writer beam does not write --file_format {name}: set --writer shard"


def container_problem(file_format: str, compression: str, group_size: int) -> str:
    """Returns why a container does not have a compression or groups; empty if it does."""
    container = CONTAINERS[file_format]
    if compression not in ("none", *container.compressions):
        choices = alternatives(("none", *container.compressions))
        return f"--file_format {file_format} has no --compression {compression}: expected {choices}"
    if group_size != 1 and not container.has_groups:
        return f"--file_format {file_format} has no --group_size: set --file_format array_record"
    return ""


def _output(spec: BuildSpec) -> Iterator[str]:
    root, is_beam = spec.layout.root, spec.options.execution.writer == "beam"
    if re.search(r"[*?\[]", root) and (is_beam or not storage.is_local(root)):
        yield (
            f"invalid --output {spec.options.output.output!r}: Beam takes *, ? and [ for patterns; "
            "use another folder"
        )
    if is_beam and not storage.beam_writes(root):
        yield f"--writer beam cannot write to {root}: use --writer shard"
    if is_beam and spec.options.inputs.billing_project and root.startswith("gs://"):
        yield "--billing_project requires --writer shard: Beam's writer names no project that pays"
    if is_beam:
        for split in spec.beam_splits:
            if spec.shard_counts.of(split) is None:
                yield (
                    f"--writer beam requires --num_shards for the split {split!r}: Beam's writer "
                    "must know it before it starts"
                )
