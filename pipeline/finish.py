"""Completes a data set: checks the shards and writes the metadata, dataset_info.json last.

`finish` runs inside the graph, so that it happens whatever launched the job. It may run again
after a failure.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

import numpy as np

from imageshards.pipeline import metadata
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.claim import check_ownership, sweep_temporary
from imageshards.pipeline.leaks import write_leaks
from imageshards.pipeline.options.config_file import build_yaml
from imageshards.pipeline.report import command_of, write_report
from imageshards.pipeline.verdict import check_counts, check_files, check_rejects
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, OutputTaken
from imageshards.transforms.records.containers import container_of
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.facts import Merged, RejectParts
from imageshards.transforms.shards.layout import DatasetFacts, Layout, json_pieces, to_json
from imageshards.transforms.shards.leaked import Leaks
from imageshards.transforms.shards.rejects import concatenate
from imageshards.transforms.shards.totals import Totals
from imageshards.transforms.storage import StoreError

_LOG = logging.getLogger(__name__)


def finish(_: bytes, plan: Plan, facts: Iterable[Merged], spec: BuildSpec) -> None:
    """Checks that no image is lost, and writes the metadata files.

    Args:
      plan: the plan of the build.
      facts: what the shards hold, in any order.
      spec: the build.

    Raises:
      BuildError: images are lost, too many are rejected, or a split or shard is empty.
    """
    with spec.failures.of(plan).ending():
        _finish(plan, facts, spec)


def _finish(plan: Plan, facts: Iterable[Merged], spec: BuildSpec) -> None:
    layout = spec.layout
    totals, leaks = Totals(), Leaks()
    parts: list[RejectParts] = []
    for fact in facts:
        if isinstance(fact, Totals):
            totals.merge(fact)
        elif isinstance(fact, Leaks):
            leaks = leaks.merged(fact)
        else:
            parts.append(fact)
    parts.sort()
    rejects = [name for part in parts for name in part.names]
    joined = [name for part in parts if part.temporary for name in part.names]
    temporary = list(map(layout.rejects_part, joined))
    check_counts(plan, totals)
    try:
        concatenate(layout, rejects, layout.rejects)
    except OutputTaken:
        check_ownership(plan, spec)
        if not (temporary and storage.exists(layout.dataset_info)):
            raise
        # An earlier attempt at this step, or another run of this build, has completed the data set.
        check_rejects(plan, totals, spec)
        return
    try:
        check_rejects(plan, totals, spec)
        _write_metadata(plan, totals, leaks, spec)
        check_files(layout, plan, totals)
    except (StoreError, OutputTaken):
        raise
    except BuildError as error:
        _report_failure(plan, totals, spec, error)
        raise
    sweep_temporary(layout, keep=temporary)
    info = metadata.dataset_info_json(plan, totals, spec)
    layout.write_pieces(layout.dataset_info, json_pieces(info))
    storage.delete(temporary)  # not earlier: another attempt at this step would read them


def _write_metadata(plan: Plan, totals: Totals, leaks: Leaks, spec: BuildSpec) -> None:
    """Writes all files but dataset_info.json."""
    layout = spec.layout
    if spec.options.execution.writer == "shard":
        _write_empty_shards(layout, plan, totals)
    if len(plan.splits) > 1:
        write_leaks(layout, plan, leaks, spec.schema)
    if plan.annotated:
        lines = (json.dumps(item._asdict()) + "\n" for item in plan.unmatched)
        layout.write(layout.uri("unmatched"), "".join(lines).encode())
    facts = DatasetFacts(metadata.build_json(plan, totals, leaks.count, spec), spec.schema)
    layout.write_pieces(layout.build, json_pieces(facts.build))
    options = _build_yaml(spec)
    layout.write(layout.uri("build_yaml"), options)
    statistics = metadata.statistics_json(plan, totals)
    layout.write(layout.uri("statistics"), to_json(statistics))
    layout.write_derived(facts)
    write_report(layout, facts, statistics, command_of(options, type(spec.options)))
    storage.sweep(layout.state)
    check_ownership(plan, spec)


def _build_yaml(spec: BuildSpec) -> bytes:
    return build_yaml(spec.options, name=spec.dataset_name, version=metadata.version())


def _report_failure(plan: Plan, totals: Totals, spec: BuildSpec, error: BuildError) -> None:
    """Writes the report of a build that failed, or logs why it cannot be written."""
    try:
        if storage.exists(spec.layout.dataset_info):
            return  # another run of this build has completed the data set, which has its report
        facts = DatasetFacts(metadata.build_json(plan, totals, 0, spec), spec.schema)
        statistics = metadata.statistics_json(plan, totals)
        command = command_of(_build_yaml(spec), type(spec.options))
        write_report(spec.layout, facts, statistics, command, str(error))
    except Exception:  # the user must see the error of the build
        _LOG.warning("%s cannot be written", spec.layout.report, exc_info=True)


def _write_empty_shards(layout: Layout, plan: Plan, totals: Totals) -> None:
    """Writes the shards of "auto" all of whose images were rejected; writers write none of them."""
    for split in plan.splits:
        for index in np.flatnonzero(totals.rows(split)["records"] == 0).tolist():
            shard = plan.shard(split, index)
            with storage.open_sink(layout.shard(shard), layout.state) as sink:
                container_of(shard).writer(sink).close()
