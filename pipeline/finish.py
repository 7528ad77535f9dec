"""The two ends of a build in its output: claim the folder, and complete the data set.

Both run inside the graph, so that they happen whatever launched the job, and both may run
again after a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from imageshards.pipeline import metadata
from imageshards.pipeline.config import Config
from imageshards.pipeline.report import report_html
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, RejectReport, ShardReport
from imageshards.transforms.layout import Layout
from imageshards.transforms.plan import Plan
from imageshards.transforms.tfrecord import SHARD_LIKE

_TEMP_FOLDER_OF_BEAM = "beam-temp-"


def claim(plan: Plan, config: Config) -> Plan:
    """Takes the output for this build, and returns the plan.

    The same build of an earlier run is taken up where it ended.

    Raises:
      BuildError: another build's files are in the way, or nothing can be written there.
    """
    layout = config.layout
    mine = metadata.plan_json(plan, config)
    try:
        found = foreign_files(layout, mine["digest"], mine["settings"])
        if found or config.overwrite:
            if not config.overwrite:
                raise BuildError(f"{found} {_WHAT_TO_DO}")
            clear(layout)
        layout.make_folders()
        for folder in (layout.root, layout.metadata, layout.state, layout.index_folder):
            storage.sweep(folder)
        storage.sweep_folders(layout.root, _TEMP_FOLDER_OF_BEAM)
        if config.writer == "beam":
            storage.delete([layout.dataset_info])
        layout.write(layout.plan, metadata.to_json(mine))
    except OSError as error:
        raise BuildError(
            f"--output {config.output}: cannot be written: {error.strerror or error}"
        ) from error
    return plan


_WHAT_TO_DO = "(--overwrite replaces it, another --output leaves it alone)"


def check_output(config: Config) -> None:
    """What can be told of the output before anything is listed.

    Raises:
      BuildError: it is a file, or holds a build with other options.
    """
    root = config.layout.root
    if storage.is_local(root):
        problem = storage.folder_problem(root)
        if problem:
            raise BuildError(f"--output {config.output}: {problem}")
    if not config.overwrite:
        found = foreign_files(config.layout, None, config.settings)
        if found:
            raise BuildError(f"{found} {_WHAT_TO_DO}")


def foreign_files(layout: Layout, digest: str | None, settings: str) -> str:
    """What of another build is in a folder, as a sentence; empty if there is none.

    Args:
      layout: the folder.
      digest: of this build's plan; None: not yet known.
      settings: of this build's options.
    """
    plan = _read_json(layout.plan)
    if plan is not None:
        if plan.get("settings") != settings:
            return f"{layout.root} holds a build with other options."
        if digest not in (None, plan.get("digest")):
            return f"{layout.root} holds a build of other inputs."
        return ""
    names = [
        name
        for name in storage.names_in(layout.root)
        if SHARD_LIKE.fullmatch(name) or name in ("dataset_info.json", "features.json")
    ]
    if names:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        return f"{layout.root} holds files of another build: {', '.join(names[:3])}{more}."
    return ""


def _read_json(uri: str) -> dict[str, object] | None:
    try:
        with storage.open_read(uri) as file:
            value = json.load(file)
            return value if isinstance(value, dict) else {}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}


def clear(layout: Layout) -> None:
    """Deletes the files of a build, and no others; what made it complete goes first."""
    names = storage.names_in(layout.root)
    storage.delete([layout.dataset_info])
    for folder, mine in (
        (layout.root, [name for name in names if _is_ours(name)]),
        (layout.index_folder, storage.names_in(layout.index_folder)),
        (layout.metadata, storage.names_in(layout.metadata)),
        (layout.state, [n for n in storage.names_in(layout.state) if n != "plan.json"]),
    ):
        storage.delete([storage.join(folder, name) for name in mine])
    storage.delete([layout.plan])


def _is_ours(name: str) -> bool:
    return (
        SHARD_LIKE.fullmatch(name) is not None
        or name == "features.json"
        or name.endswith(".labels.txt")
    )


def finish(
    _: None,
    plan: Plan,
    reports: Iterable[ShardReport],
    rejects: Iterable[RejectReport],
    config: Config,
) -> None:
    """Checks that nothing is lost, and writes the metadata; dataset_info.json last.

    Raises:
      BuildError: too many rejects, or shards without any image.
    """
    layout = config.layout
    place = {shard: number for number, shard in enumerate(plan.shards)}
    shards = sorted(reports, key=lambda report: place[report.shard])
    parts = sorted(rejects, key=lambda part: part.part)
    errors: Counter[str] = Counter()
    for part in parts:
        errors.update(part.errors)
    _conserve(plan, shards, errors)
    _write_rejects(layout, parts)
    _judge(plan, shards, errors, config)
    build = metadata.build_json(plan, shards, errors, config)
    layout.write(layout.build, metadata.to_json(build))
    layout.write(layout.features, metadata.to_json(metadata.features_json(config.schema, plan)))
    label_key = config.schema.key_of("label")
    if label_key:
        names = "".join(f"{name}\n" for name in plan.classes)
        layout.write(layout.labels(label_key), names.encode())
    layout.write(layout.report, report_html(build, layout, config.schema).encode())
    storage.sweep(layout.state)
    info = metadata.dataset_info_json(plan, shards, config)
    layout.write(layout.dataset_info, metadata.to_json(info))


def _conserve(plan: Plan, shards: Sequence[ShardReport], errors: Counter[str]) -> None:
    """Every reference is a record or a reject. Anything else is a fault of ours or the runner's."""
    if [report.shard for report in shards] != plan.shards:
        raise BuildError(
            f"{len(shards):,} of {len(plan.shards):,} shards were reported: run the command again"
        )
    records = sum(report.records for report in shards)
    if records + errors.total() != plan.images:
        raise BuildError(
            f"{records:,} records + {errors.total():,} rejects are not the {plan.images:,} images "
            "listed: run the command again"
        )


def _write_rejects(layout: Layout, parts: Sequence[RejectReport]) -> None:
    with storage.open_sink(layout.rejects, layout.state) as sink:
        for part in parts:
            with storage.open_read(layout.rejects_part(part.part)) as file:
                while data := file.read(1 << 20):
                    sink.write([data])


def _judge(plan: Plan, shards: Sequence[ShardReport], errors: Counter[str], config: Config) -> None:
    problem = _verdict(plan, shards, errors, config)
    if problem:
        # It may be there from a run that was less strict.
        storage.delete([config.layout.dataset_info])
        raise BuildError(f"{problem}; see {config.layout.rejects}")


def _verdict(
    plan: Plan, shards: Sequence[ShardReport], errors: Counter[str], config: Config
) -> str:
    rejects = errors.total()
    if rejects > config.max_reject_fraction * plan.images:
        kinds = ", ".join(f"{count:,} {error}" for error, count in errors.most_common())
        return (
            f"{rejects:,} of {plan.images:,} images ({rejects / plan.images:.1%}) were rejected, "
            f"more than --max_reject_fraction {config.max_reject_fraction:g}: {kinds}"
        )
    for name in plan.splits:
        if not any(report.records for report in shards if report.shard.split == name):
            return f"every image of the split {name!r} was rejected"
    empty = [report.shard for report in shards if not report.records]
    if empty and config.writer == "shard":
        return (
            f"{len(empty):,} of {empty[0].num_shards:,} shards of {empty[0].split!r} have no image "
            "left after rejects: write fewer --num_shards"
        )
    return ""
