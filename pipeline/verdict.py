"""Decides whether a build failed: lost records, too many rejects, empty splits or shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.missing import suggestion
from imageshards.transforms import storage
from imageshards.transforms.annotations.objects import CAPTIONS, REJECTED
from imageshards.transforms.elements import DUPLICATE_PIXELS, LOST, BuildError, ShardId, counted
from imageshards.transforms.records.containers import is_shard_like, parse_shard_name, shard_name
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.annotations import BOXES, DROPPED
from imageshards.transforms.shards.layout import Layout, first_lines
from imageshards.transforms.shards.totals import Totals

_CHECKSUMS_AT_A_TIME = 1000


def check_counts(plan: Plan, totals: Totals) -> None:
    """Checks that every reference became a record or a reject.

    Args:
      plan: of the build.
      totals: the sum of the shards' reports.

    Raises:
      BuildError: some did not, because of an error in this program or in the runner.
    """
    reported = {name: totals.rows(name)["index"] for name in plan.splits}
    if not all(
        np.array_equal(reported[name], np.arange(split.num_shards))
        for name, split in plan.splits.items()
    ):
        count = sum(map(len, reported.values()))
        raise BuildError(
            f"{count:,} of {plan.num_shards:,} shards were reported: run the command again"
        )
    annotations = totals.all_splits.values()["annotations"]
    written = sum(annotations.get(kind, 0) for kind in (BOXES, CAPTIONS, DROPPED, REJECTED))
    if plan.annotated and written != plan.objects:
        raise BuildError(
            f"the images have {plan.objects:,} annotations, but {written:,} were written, "
            "dropped or rejected: run the command again"
        )
    rejects = totals.errors.total()
    if totals.records + rejects != plan.images:
        raise BuildError(
            f"{totals.records:,} records + {rejects:,} rejects do not add up to the "
            f"{plan.images:,} images listed: run the command again"
        )


def check_rejects(plan: Plan, totals: Totals, spec: BuildSpec) -> None:
    """Checks that there are not too many rejects, and that no split or shard is empty.

    Args:
      plan: of the build.
      totals: the sum of the shards' reports.
      spec: the build.

    Raises:
      BuildError: there are too many, an input is truncated, or a split or shard is empty.
    """
    problem = (
        truncated(totals.errors, spec)
        or _too_many(plan, totals.errors, spec)
        or _empty_split(plan, totals, spec)
        or _empty_shards(plan, totals, spec)
    )
    if problem:
        # An earlier run with a larger --max_reject_fraction may have written it.
        storage.delete([spec.layout.dataset_info])
        raise BuildError(f"{problem}; see {spec.layout.rejects}")


def check_files(layout: Layout, plan: Plan, totals: Totals) -> None:
    """Checks that the shards are the reported files: a worker of a lost bundle may still write.

    Raises:
      BuildError: a shard is missing, or has another size or CRC32C; or there is another one.
    """
    rows = {name: totals.rows(name) for name in plan.splits}
    missing = {name: table["records"] > 0 for name, table in rows.items()}
    unknown = []
    for entry in storage.scan(layout.root):
        shard = parse_shard_name(entry.name)
        if (
            not shard
            or shard.split not in rows
            or shard.index >= len(rows[shard.split])
            or entry.name != shard_name(plan.shard(shard.split, shard.index))
        ):
            if not is_shard_like(entry.name):
                continue
            raise BuildError(
                f"{storage.join(layout.root, entry.name)}: another build wrote here at the same "
                "time: run one at a time, and set --overwrite"
            )
        row = rows[shard.split][shard.index]
        if row["records"] and (
            entry.size != row["bytes"] or entry.crc32c not in (None, row["crc32c"])
        ):
            raise _changed(layout, shard)
        missing[shard.split][shard.index] = False
        # Lists of Cloud Storage have no checksums of objects under a customer-managed key.
        if entry.crc32c is None and row["records"]:
            unknown.append(shard)
        if len(unknown) >= _CHECKSUMS_AT_A_TIME:
            _check_checksums(layout, unknown, rows)
            unknown = []
    _check_checksums(layout, unknown, rows)
    for split, absent in missing.items():
        for index in np.flatnonzero(absent)[:1].tolist():
            raise _changed(layout, plan.shard(split, index))


def _check_checksums(
    layout: Layout, shards: Sequence[ShardId], rows: Mapping[str, np.ndarray]
) -> None:
    found = storage.crc32cs([layout.shard(shard) for shard in shards])
    for shard, crc32c in zip(shards, found, strict=True):
        if crc32c not in (None, rows[shard.split][shard.index]["crc32c"]):
            raise _changed(layout, shard)


def _changed(layout: Layout, shard: ShardId) -> BuildError:
    storage.delete([layout.shard_state(shard)])
    return BuildError(
        f"{layout.shard(shard)}: changed after this run wrote it, so another run writes here too: "
        "run the command again when the other one has ended"
    )


def truncated(errors: Counter[str], spec: BuildSpec) -> str:
    """Returns why a build with these rejects fails if an input is truncated; otherwise empty."""
    if not errors[LOST] or spec.options.output.max_reject_fraction >= 1:
        return ""
    inputs = "inputs are" if errors[LOST] > 1 else "input is"
    return (
        f"{errors[LOST]:,} {inputs} truncated, so that the number of lost images is not known: "
        "repair it, or set --max_reject_fraction 1 to build from the rest"
    )


def _too_many(plan: Plan, errors: Counter[str], spec: BuildSpec) -> str:
    # Duplicates are rejected on purpose, and are not counted against the limit.
    rejects = errors.total() - errors[DUPLICATE_PIXELS]
    most = spec.options.output.max_reject_fraction
    if rejects <= most * plan.images:
        return ""
    faults = [line for line in errors.most_common() if line[0] != DUPLICATE_PIXELS]
    kinds = ", ".join(f"{count:,} {error}" for error, count in faults)
    images = counted(plan.images, spec.schema.noun)
    were = "was" if rejects == 1 else "were"
    advice = (
        suggestion(spec.layout, spec.options.inputs.template_column)
        if errors["Missing"] * 2 > plan.images
        else ""
    )
    return (
        f"{rejects:,} of {images} ({rejects / plan.images:.1%}) {were} rejected, "
        f"more than --max_reject_fraction {most:g}: {kinds}"
        f"{_example(spec.layout)}{advice and '; '}{advice}"
    )


def _example(layout: Layout) -> str:
    """Returns the first reject for a message; empty if it is not among the first lines."""
    for line in first_lines(layout.rejects):
        if line["error"] != DUPLICATE_PIXELS:
            return f", such as {line['uri']} ({line['reason']})"
    return ""


def _empty_split(plan: Plan, totals: Totals, spec: BuildSpec) -> str:
    for name in plan.splits:
        if not totals.of_split(name).records:
            return f"every {spec.schema.noun} of the split {name!r} was rejected"
    return ""


def _empty_shards(plan: Plan, totals: Totals, spec: BuildSpec) -> str:
    if spec.options.execution.writer == "beam":
        return ""
    for split, planned in plan.splits.items():
        count = int(np.count_nonzero(totals.rows(split)["records"] == 0))
        # With "auto", an empty shard is written.
        if count and spec.shard_counts.of(split) is not None:
            return (
                f"{count:,} of {planned.num_shards:,} shards of {split!r} have no "
                f"{spec.schema.noun} left after rejects: set a smaller --num_shards"
            )
    return ""
