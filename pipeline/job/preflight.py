"""What is checked on the launching machine before a job starts: inputs, class names, output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.finish import check_output
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.groups import AUTO
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError
from imageshards.transforms.inputs.sources import check_source, first_records, identify
from imageshards.transforms.inputs.tfrecords import sample
from imageshards.transforms.records.columns import columns_of
from imageshards.transforms.records.schemas import SCHEMAS


def prepare(options: BuildOptions) -> BuildSpec:
    """Makes the build, after all checks that need no job.

    Raises:
      UsageError: options are wrong, or do not fit the inputs.
      BuildError: the output or the class names cannot be used.
    """
    spec = _with_other_features(BuildSpec(options))
    check_output(spec)
    _ = spec.planner  # reads the class names
    for text in options.inputs.input:
        source = identify(text, spec.text_unit)
        if not spec.text_unit and storage.is_local(source.uri):
            check_source(
                source,
                options.inputs.uri_column,
                spec.annotator.required_columns,
                spec.annotator.optional_columns,
                spec.annotator.feature_columns,
            )
    return spec


def _with_other_features(spec: BuildSpec) -> BuildSpec:
    """Replaces `--features_from auto` by the features of TFRecord inputs that the schema lacks.

    Raises:
      UsageError: TFRecord inputs lack a feature of --features_from, or one cannot be copied.
    """
    options, given = spec.options, spec.options.records.features_from
    if not given or spec.text_unit:
        return spec
    inputs = options.inputs.input
    files = [file for text in inputs if (file := first_records(identify(text)))]
    only_records = len(files) == len(inputs)
    rows = [sample(file) for file in files]
    if given != (AUTO,):
        if only_records:
            _check_columns(spec, chain.from_iterable(rows), files)
        return spec
    if not only_records:
        return BuildSpec(options.replace(features_from=()))
    schema = SCHEMAS[options.records.features]  # with labels, even if the build has none
    keys = spec.record_keys
    left_out = {feature.key for feature in schema.features if not feature.is_open}
    left_out |= {*schema.not_copied, keys.image, keys.label, keys.name}
    columns = columns_of(
        (
            {key: values for key, values in row.items() if key not in left_out}
            for row in chain.from_iterable(rows)
        ),
        lists={feature.key for feature in schema.features if feature.is_open},
    )
    try:
        return BuildSpec(options.replace(features_from=tuple(columns)))
    except UsageError as error:
        raise UsageError(f"{error}; --features_from none copies none of them") from error


def _check_columns(spec: BuildSpec, rows: Iterable[Mapping[str, object]], files: list[str]) -> None:
    found = set(chain.from_iterable(rows))
    for column in spec.annotator.feature_columns:
        if found and column not in found:
            raise UsageError(
                f"--features_from: no feature {column!r} in {files[0]}; its first records have "
                f"{', '.join(sorted(found))}"
            )
