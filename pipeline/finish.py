"""Completes a data set: checks the shards and writes the metadata, dataset_info.json last.

`finish` runs inside the graph, so that it happens whatever launched the job. It may run again
after a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from imageshards.pipeline import metadata
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.claim import check_ownership, sweep_unpacked
from imageshards.pipeline.leaks import write_leaks
from imageshards.pipeline.options.config_file import build_yaml
from imageshards.pipeline.report import write_report
from imageshards.pipeline.verdict import check_counts, check_files, check_rejects
from imageshards.transforms import storage
from imageshards.transforms.elements import RejectReport, ShardReport
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.layout import DatasetFacts, Layout, to_json


def finish(
    _: bytes,
    plan: Plan,
    reports: Iterable[ShardReport],
    rejects: Iterable[RejectReport],
    spec: BuildSpec,
) -> None:
    """Checks that no image is lost, and writes the metadata files.

    Args:
      plan: the plan of the build.
      reports: the reports of all shards, in any order.
      rejects: the reports of all parts of rejects.jsonl, in any order.
      spec: the build.

    Raises:
      BuildError: images are lost, too many are rejected, or a split or shard is empty.
    """
    with spec.failures.of(plan).ending():
        _finish(plan, reports, rejects, spec)


def _finish(
    plan: Plan, reports: Iterable[ShardReport], rejects: Iterable[RejectReport], spec: BuildSpec
) -> None:
    layout = spec.layout
    order = {shard: number for number, shard in enumerate(plan.shards)}
    shards = sorted(reports, key=lambda report: order[report.shard])
    parts = sorted(rejects, key=lambda part: part.part)
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    check_counts(plan, shards, errors)
    _write_rejects(layout, parts)
    check_rejects(plan, shards, errors, spec)
    if spec.options.execution.writer == "shard":
        _write_empty_shards(layout, shards)
    leaks = 0
    if len(plan.splits) > 1:
        leaks = write_leaks(layout, shards, spec.schema)
    facts = DatasetFacts(metadata.build_json(plan, shards, errors, leaks, spec), spec.schema)
    layout.write(layout.build, to_json(facts.build))
    layout.write(
        layout.uri("build_yaml"),
        build_yaml(spec.options, name=spec.dataset_name, version=metadata.version()),
    )
    layout.write_derived(facts)
    write_report(layout, facts)
    storage.sweep(layout.state)
    check_ownership(plan, spec)
    check_files(layout, shards)
    sweep_unpacked(layout)
    layout.write(layout.dataset_info, to_json(metadata.dataset_info_json(plan, shards, spec)))


def _write_empty_shards(layout: Layout, shards: Sequence[ShardReport]) -> None:
    """Writes the shards of "auto" all of whose images were rejected; writers write none of them."""
    for report in shards:
        if not report.records:
            with storage.open_sink(layout.shard(report.shard), layout.state) as sink:
                container_of(report.shard).writer(sink).close()


def _write_rejects(layout: Layout, parts: Sequence[RejectReport]) -> None:
    with storage.open_sink(layout.rejects, layout.state) as sink:
        for part in parts:
            with storage.open_read(layout.rejects_part(part.part)) as file:
                while data := file.read(1 << 20):
                    sink.write([data])
