"""Decides whether a build failed: lost records, too many rejects, empty splits or shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.missing import suggestion
from imageshards.transforms import storage
from imageshards.transforms.elements import DUPLICATE_PIXELS, LOST, BuildError, ShardReport, counted
from imageshards.transforms.records.containers import is_shard_like, shard_name
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.layout import Layout, first_lines


def check_counts(plan: Plan, shards: Sequence[ShardReport], errors: Counter[str]) -> None:
    """Checks that every reference became a record or a reject.

    Args:
      plan: of the build.
      shards: the reports, in the plan's order.
      errors: type of error -> rejects.

    Raises:
      BuildError: some did not, because of an error in this program or in the runner.
    """
    if [report.shard for report in shards] != plan.shards:
        raise BuildError(
            f"{len(shards):,} of {len(plan.shards):,} shards were reported: run the command again"
        )
    records = sum(report.records for report in shards)
    if records + errors.total() != plan.images:
        raise BuildError(
            f"{records:,} records + {errors.total():,} rejects do not add up to the "
            f"{plan.images:,} images listed: run the command again"
        )


def check_rejects(
    plan: Plan, shards: Sequence[ShardReport], errors: Counter[str], spec: BuildSpec
) -> None:
    """Checks that there are not too many rejects, and that no split or shard is empty.

    Args:
      plan: of the build.
      shards: the reports, in the plan's order.
      errors: type of error -> rejects.
      spec: the build.

    Raises:
      BuildError: there are too many, an input is truncated, or a split or shard is empty.
    """
    problem = (
        truncated(errors, spec)
        or _too_many(plan, errors, spec)
        or _empty_split(plan, shards, spec)
        or _empty_shards(plan, shards, spec)
    )
    if problem:
        # An earlier run with a larger --max_reject_fraction may have written it.
        storage.delete([spec.layout.dataset_info])
        raise BuildError(f"{problem}; see {spec.layout.rejects}")


def check_files(layout: Layout, shards: Sequence[ShardReport]) -> None:
    """Checks that the shards are the reported files: a worker of a lost bundle may still write.

    Raises:
      BuildError: a shard is missing, or has another size or CRC32C; or there is another one.
    """
    entries = {entry.name: entry for entry in storage.entries_in(layout.root)}
    names = {shard_name(report.shard) for report in shards}
    if others := [name for name in entries if is_shard_like(name) and name not in names]:
        raise BuildError(
            f"{storage.join(layout.root, others[0])}: another build wrote here at the same time: "
            "run one at a time, and set --overwrite"
        )
    # Lists of Cloud Storage have no checksums of objects under a customer-managed key.
    unknown = [name for name in names & entries.keys() if entries[name].crc32c is None]
    found = storage.crc32cs([storage.join(layout.root, name) for name in unknown])
    checksums = dict(zip(unknown, found, strict=True))
    for report in shards:
        uri = layout.shard(report.shard)
        name = uri.rpartition("/")[2]
        entry = entries.get(name)
        if report.records and (
            entry is None
            or entry.size != report.bytes
            or checksums.get(name, entry.crc32c) not in (None, report.crc32c)
        ):
            storage.delete([layout.shard_state(report.shard)])
            raise BuildError(
                f"{uri}: changed after this run wrote it, so another run writes here too: run the "
                "command again when the other one has ended"
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
    advice = suggestion(spec.layout) if errors["Missing"] * 2 > plan.images else ""
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


def _empty_split(plan: Plan, shards: Sequence[ShardReport], spec: BuildSpec) -> str:
    for name in plan.splits:
        if not any(report.records for report in shards if report.shard.split == name):
            return f"every {spec.schema.noun} of the split {name!r} was rejected"
    return ""


def _empty_shards(plan: Plan, shards: Sequence[ShardReport], spec: BuildSpec) -> str:
    if spec.options.execution.writer == "beam":
        return ""
    empty = Counter(report.shard.split for report in shards if not report.records)
    for split, count in empty.items():
        if spec.shard_counts.of(split) is not None:  # with "auto", an empty shard is written
            return (
                f"{count:,} of {plan.splits[split].num_shards:,} shards of {split!r} have no "
                f"{spec.schema.noun} left after rejects: set a smaller --num_shards"
            )
    return ""
