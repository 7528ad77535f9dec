"""Checks inputs, class names and output on the launching machine, before a job starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.claim import check_output
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import AUTO
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError, enumerated
from imageshards.transforms.inputs.kind import (
    InputKind,
    ListingOptions,
    RecordSample,
    WorkUnit,
    list_references,
)
from imageshards.transforms.inputs.manifests import Manifest
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.records.columns import columns_of
from imageshards.transforms.records.objects import BOXES
from imageshards.transforms.records.schemas import SCHEMAS
from imageshards.transforms.storage import StoreError

_AT_A_TIME = 16
"""Inputs that are looked into concurrently: on an object store each look is a request or more."""
_MOST_SAMPLED, _MOST_RECORDS, _MOST_RECORDS_EACH = 64, 16_000, 1000
"""TFRecord inputs of which the first records are read, their records, and those of one input."""

_T = TypeVar("_T")
_U = TypeVar("_U")
_Row = Mapping[str, Sequence[Any]]


def prepare(
    options: BuildOptions, *, reads_local_files: bool = True
) -> tuple[BuildSpec, list[InputKind]]:
    """Makes the build and identifies its inputs; runs all checks that do not require a job.

    Args:
      options: of the build.
      reads_local_files: whether the workers can read the files of this machine.

    Raises:
      UsageError: options are wrong, or do not fit the inputs.
      BuildError: the output or the class names cannot be used.
    """
    spec = BuildSpec(options)
    storage.bill(options.inputs.billing_project)
    sources = [identify(text, spec.text_unit) for text in options.inputs.input]
    check_apart(spec, sources)
    spec = _with_other_features(_with_annotations(spec), sources)
    check_output(spec)
    _ = spec.planner  # reads the class names
    lists = options.choice.exclude
    for uri, exists in zip(lists, _concurrently(_exists, lists), strict=True):
        if not exists:
            raise BuildError(f"--exclude {uri}: no such file")
    manifests = []
    for source in sources:
        if not spec.text_unit and storage.is_local(source.uri):
            source.check(spec.listing)
        elif isinstance(source, Manifest) and not reads_local_files:
            manifests.append(source)
    _concurrently(partial(_check_no_local_files, options=spec.listing), manifests)
    return spec, sources


def _concurrently(function: Callable[[_T], _U], items: Sequence[_T]) -> list[_U]:
    """Applies a function to items, some of them at a time; raises the error of the first item."""
    if len(items) < 2:
        return list(map(function, items))
    with ThreadPoolExecutor(_AT_A_TIME, "imageshards-preflight") as threads:
        try:
            return list(threads.map(function, items))
        finally:
            threads.shutdown(cancel_futures=True)


def _exists(uri: str) -> bool:
    return storage.exists(storage.normalize(uri))


def _with_annotations(spec: BuildSpec) -> BuildSpec:
    """Replaces `--annotation_format auto` with the format of the files.

    Raises:
      UsageError: a file does not exist, or its format is not known.
    """
    if not spec.annotation_sources:
        return spec
    return BuildSpec(spec.options.replace(annotation_format=spec.annotation_sources[0].name))


def check_apart(spec: BuildSpec, sources: Sequence[InputKind]) -> None:
    """Checks that no input lists the files of the output.

    Raises:
      UsageError: one does, so that the data set would be written among its own inputs.
    """
    for source in sources:
        if source.holds(spec.layout.root):
            raise UsageError(
                f"--output {spec.options.output.output} is inside --input {source.text}: specify "
                "an output folder that no input contains"
            )


def _check_no_local_files(source: Manifest, options: ListingOptions) -> None:
    """Checks the first rows of a manifest.

    Raises:
      UsageError: a row names a file of this machine.
    """
    try:
        first = next(list_references(WorkUnit(source), options), None)
    except StoreError:  # perhaps only the workers have access
        return
    for uri in first.refs.uris if first else ():
        if storage.is_local(uri):
            raise UsageError(
                f"--input {source.text}: names the file {uri}, but the workers of the service "
                "cannot read files of this machine; write URIs such as gs://BUCKET/1.jpg, or paths "
                "relative to the manifest's folder"
            )


def _with_other_features(spec: BuildSpec, sources: Sequence[InputKind]) -> BuildSpec:
    """Replaces `--features_from auto` with the features of TFRecord inputs not in the schema.

    Raises:
      UsageError: a feature of --features_from is missing in the inputs, or cannot be copied.
    """
    options, given = spec.options, spec.options.records.features_from
    if not given or spec.text_unit:
        return spec
    samples = _samples(sources)
    only_records = len(samples) == len(sources)
    if given != (AUTO,):
        if only_records:
            _check_columns(spec, samples)
        return spec
    if not only_records:
        return BuildSpec(options.replace(features_from=()))
    schema = SCHEMAS[options.records.features]  # with labels, even if the build has none
    keys = spec.listing.record_keys
    left_out = {feature.key for feature in schema.features if not feature.is_open}
    left_out |= {*schema.not_copied, keys.image, keys.label, keys.name, BOXES}
    columns = columns_of(
        (
            {key: values for key, values in row.items() if key not in left_out}
            for row in _first_rows(samples)
        ),
        lists={feature.key for feature in schema.features if feature.is_open},
    )
    try:
        return BuildSpec(options.replace(features_from=tuple(columns)))
    except UsageError as error:
        raise UsageError(f"{error}; --features_from none copies none of them") from error


def _samples(sources: Sequence[InputKind]) -> list[RecordSample]:
    """Returns samples of the inputs, up to the first input that has none: it is not of TFRecords.

    Of the inputs after the first, several are looked into at a time.
    """
    samples: list[RecordSample] = []
    at, number = 0, 1
    while at < len(sources):
        found = _concurrently(lambda source: source.sample(), sources[at : at + number])
        if None in found:
            break
        samples += filter(None, found)
        at, number = at + number, _AT_A_TIME
    return samples


def _first_rows(samples: Sequence[RecordSample]) -> Iterable[_Row]:
    """Returns the first records of some inputs: of 64 at most, evenly spaced; see `_row`."""
    some = samples[:: -(-len(samples) // _MOST_SAMPLED) or 1]
    each = min(_MOST_RECORDS_EACH, _MOST_RECORDS // max(len(some), 1))
    found = _concurrently(lambda sample: list(map(_row, sample.first_records(each))), some)
    return (row for rows in found for row in rows)


def _row(record: _Row) -> _Row:
    """Returns the types of a record's values, as values without content, and two at most.

    Records are as large as their images, and many are held.
    """
    return {key: [type(value)() for value in values[:2]] for key, values in record.items()}


def _check_columns(spec: BuildSpec, samples: Sequence[RecordSample]) -> None:
    found = {key for row in _first_rows(samples) for key in row}
    for column in spec.annotator.columns.feature_names:
        if found and column not in found:
            raise UsageError(
                f"no feature {column!r} in {samples[0].uri}; its first records "
                f"have {enumerated(sorted(found))}"
            )
