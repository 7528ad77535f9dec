"""The two ends of a build in its output: claim the folder, and complete the data set.

Both run inside the graph, so that they happen whatever launched the job, and both may run
again after a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from imageshards.pipeline import metadata
from imageshards.pipeline.config import Config
from imageshards.pipeline.leaks import write_leaks
from imageshards.pipeline.report import LINES_SHOWN, report_html
from imageshards.transforms import storage
from imageshards.transforms.elements import (
    DUPLICATE_PIXELS,
    LOST,
    BuildError,
    RejectReport,
    ShardId,
    ShardReport,
)
from imageshards.transforms.inputs.unpack import PREFIX as UNPACKED_PREFIX
from imageshards.transforms.records.schemas import SCHEMAS
from imageshards.transforms.records.tfds import features_json
from imageshards.transforms.records.tfrecord import GZIP_SUFFIX, SHARD_LIKE
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shards.layout import DIGESTS_SUFFIX, REJECTS_SUFFIX, Layout


def claim(plan: Plan, config: Config) -> Plan:
    """Takes the output for this build, and returns the plan.

    The same build of an earlier run is taken up where it ended.

    Raises:
      BuildError: another build's files are in the way, or nothing can be written there.
    """
    layout = config.layout
    mine = metadata.plan_json(plan, config)
    try:
        found = foreign_files(config, plan.digest)
        if found and not config.overwrite:
            storage.delete(sorted(plan.unpacked))
            raise BuildError(found)
        if found:
            clear(layout)
        layout.make_folders()
        storage.sweep(layout.state)
        _sweep_unpacked(layout, keep=plan.unpacked)
        if config.writer == "beam":
            storage.delete([layout.dataset_info])
            for split in plan.splits:
                storage.sweep_folders(layout.root, f"beam-temp-{split}-")
        if not storage.create(layout.plan, metadata.to_json(mine), layout.state):
            _check_still_mine(plan, config)
            # Written again: what is older than the plan is of an earlier run.
            layout.write(layout.plan, metadata.to_json(mine))
    except OSError as error:
        raise BuildError(
            f"--output {config.output}: cannot be written: {error.strerror or error}"
        ) from error
    return plan


def check_output(config: Config) -> None:
    """What can be told of the output before anything is listed.

    Raises:
      BuildError: it is a file, or holds a build with other options.
    """
    root = config.layout.root
    if problem := storage.folder_problem(root):
        raise BuildError(f"--output {config.output}: {problem}")
    found = foreign_files(config, None)
    if found and not config.overwrite:
        raise BuildError(found)


_WHAT_TO_DO = "(--overwrite replaces it, another --output leaves it alone)"


def foreign_files(config: Config, digest: str | None) -> str:
    """What of another build is in the output, as a sentence; empty if there is none.

    Args:
      config: of this build.
      digest: of this build's plan; None: not yet known.
    """
    layout = config.layout
    plan = _read_json(layout.plan)
    if plan is not None:
        differs = ""
        if plan.get("settings") != config.settings:
            differs = f"another build: {_differences(plan, config)}"
        elif digest not in (None, plan.get("digest")):
            differs = "a build of other inputs"
        if differs and not storage.exists(layout.dataset_info):
            differs += ", which is not complete"
        return f"{layout.root} holds {differs} {_WHAT_TO_DO}" if differs else ""
    names = _unplanned(layout)
    if names:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        files = ", ".join(names[:3]) + more
        return f"{layout.root} holds files of another build: {files} {_WHAT_TO_DO}"
    return ""


def _sweep_unpacked(layout: Layout, keep: Collection[str] = ()) -> None:
    """Deletes the plain tars that were made of compressed ones."""
    ours = [
        storage.join(layout.state, name)
        for name in storage.names_in(layout.state)
        if name.startswith(UNPACKED_PREFIX)
    ]
    storage.delete([uri for uri in ours if uri not in keep])


def _differences(plan: dict[str, Any], config: Config) -> str:
    theirs = plan.get("options")
    theirs = theirs if isinstance(theirs, dict) else {}
    mine = json.loads(json.dumps(config.options))
    changed = [
        f"--{name} {_option_text(theirs.get(name, _default(name)))}, now {_option_text(mine[name])}"
        for name in mine
        if theirs.get(name, _default(name)) != mine[name]
    ]
    return "; ".join(changed) or "of another version of imageshards"


def _default(option: str) -> Any:
    """What a build of an earlier version did, which had no such option."""
    return getattr(Config, option, None)


def _option_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value) or "(none)"


def _check_still_mine(plan: Plan, config: Config) -> None:
    theirs = _read_json(config.layout.plan) or {}
    if (theirs.get("digest"), theirs.get("settings")) != (plan.digest, config.settings):
        raise BuildError(
            f"{config.layout.root}: another build has taken this output; run one at a time"
        )


def _read_json(uri: str) -> dict[str, Any] | None:
    try:
        with storage.open_read(uri) as file:
            value = json.load(file)
            return value if isinstance(value, dict) else {}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}


def _unplanned(layout: Layout) -> list[str]:
    """Names in a folder without a plan that readers would take for parts of a data set."""
    return [
        name
        for name in storage.names_in(layout.root)
        if SHARD_LIKE.fullmatch(name) or name in ("dataset_info.json", "features.json")
    ]


def clear(layout: Layout) -> None:
    """Deletes the files of a build, and no others; what made it complete goes first."""
    storage.delete([layout.dataset_info])
    shards = _planned(layout)
    if not shards:  # no plan, or one that cannot be read
        storage.delete([storage.join(layout.root, name) for name in _unplanned(layout)])
        storage.delete([layout.plan, layout.reshard])
        return
    there = {
        folder: set(storage.names_in(folder))
        for folder in (layout.root, layout.index_folder, layout.state)
    }
    ours = [*map(layout.shard, shards), *map(layout.index, shards)]
    ours += map(layout.shard_state, shards)
    ours += [storage.join(layout.state, name) for name in there[layout.state]
             if name.endswith((REJECTS_SUFFIX, DIGESTS_SUFFIX))]  # fmt: skip
    ours += [
        layout.features, layout.build, layout.report, layout.rejects, layout.leaks,
        *(layout.labels(key) for schema in SCHEMAS.values() if (key := schema.key_of("label"))),
    ]  # fmt: skip
    storage.delete(
        [
            uri
            for uri in ours
            for folder, _, name in [uri.rpartition("/")]
            if folder not in there or name in there[folder]
        ]
    )
    storage.sweep(layout.state)
    storage.delete([layout.plan, layout.reshard])


def _planned(layout: Layout) -> list[ShardId]:
    """The shards of a folder, as the plan of its build or what `reshard` wrote there tells."""
    plan = _read_json(layout.plan) or {}
    gzip = (plan.get("options") or {}).get("compression") == "gzip"
    counts = [
        (split, counts["shards"], gzip) for split, counts in (plan.get("splits") or {}).items()
    ]
    resharded = _read_json(layout.reshard) or {}
    gzip = any(name.endswith(GZIP_SUFFIX) for name, _ in resharded.get("shards") or ())
    counts += [
        (split, number, gzip) for split, number in (resharded.get("num_shards") or {}).items()
    ]
    return [
        ShardId(split, index, number, "gzip" if gzip else "")
        for split, number, gzip in counts
        for index in range(number)
    ]


def finish(
    _: bytes,
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
    leaks = 0
    if len(plan.splits) > 1:
        leaks = write_leaks(layout, shards, config.schema)
    build = metadata.build_json(plan, shards, errors, leaks, config)
    layout.write(layout.build, metadata.to_json(build))
    features = features_json(config.schema, len(plan.classes))
    layout.write(layout.features, metadata.to_json(features))
    label_key = config.schema.key_of("label")
    if label_key:
        names = "".join(f"{name}\n" for name in plan.classes)
        layout.write(layout.labels(label_key), names.encode())
    rejected = _first_lines(layout.rejects)
    leaked = _first_lines(layout.leaks) if leaks else []
    layout.write(
        layout.report, report_html(build, layout, config.schema, rejected, leaked).encode()
    )
    storage.sweep(layout.state)
    _check_still_mine(plan, config)
    _check_shards(layout, shards)
    _sweep_unpacked(layout)
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


def _check_shards(layout: Layout, shards: Sequence[ShardReport]) -> None:
    """That the files are those of the reports: a worker taken for dead may write once more."""
    there = {entry.name: entry for entry in storage.entries_in(layout.root)}
    for report in shards:
        uri = layout.shard(report.shard)
        entry = there.get(uri.rpartition("/")[2])
        if report.records and (
            entry is None or entry.size != report.bytes or entry.crc32c not in (None, report.crc32c)
        ):
            storage.delete([layout.shard_state(report.shard)])
            raise BuildError(
                f"{uri}: is not as this run wrote it, so that another one writes here too: run the "
                "command again when that has ended"
            )


def _write_rejects(layout: Layout, parts: Sequence[RejectReport]) -> None:
    with storage.open_sink(layout.rejects, layout.state) as sink:
        for part in parts:
            with storage.open_read(layout.rejects_part(part.part)) as file:
                while data := file.read(1 << 20):
                    sink.write([data])


def _first_lines(uri: str) -> list[dict[str, Any]]:
    with storage.open_read(uri) as file:
        return [json.loads(line) for line in islice(file, LINES_SHOWN)]


def _judge(plan: Plan, shards: Sequence[ShardReport], errors: Counter[str], config: Config) -> None:
    problem = _verdict(plan, shards, errors, config)
    if problem:
        # It may be there from a run that was less strict.
        storage.delete([config.layout.dataset_info])
        raise BuildError(f"{problem}; see {config.layout.rejects}")


def _example(layout: Layout) -> str:
    """The first of the rejects, for a message; empty where it is too far down."""
    for line in _first_lines(layout.rejects):
        if line["error"] != DUPLICATE_PIXELS:
            return f", such as {line['uri']} ({line['reason']})"
    return ""


def _verdict(
    plan: Plan, shards: Sequence[ShardReport], errors: Counter[str], config: Config
) -> str:
    if errors[LOST] and config.max_reject_fraction < 1:
        break_off = "inputs break" if errors[LOST] > 1 else "input breaks"
        return (
            f"{errors[LOST]:,} {break_off} off, and what came behind is not known: mend it, or "
            "write --max_reject_fraction 1 to take what is there"
        )
    noun = config.schema.noun
    # Those are not faults of the images.
    rejects = errors.total() - errors[DUPLICATE_PIXELS]
    if rejects > config.max_reject_fraction * plan.images:
        faults = [line for line in errors.most_common() if line[0] != DUPLICATE_PIXELS]
        kinds = ", ".join(f"{count:,} {error}" for error, count in faults)
        return (
            f"{rejects:,} of {plan.images:,} {noun}s ({rejects / plan.images:.1%}) were rejected, "
            f"more than --max_reject_fraction {config.max_reject_fraction:g}: {kinds}"
            f"{_example(config.layout)}"
        )
    for name in plan.splits:
        if not any(report.records for report in shards if report.shard.split == name):
            return f"every {noun} of the split {name!r} was rejected"
    empty = [report.shard for report in shards if not report.records]
    if empty and config.writer == "shard":
        return (
            f"{len(empty):,} of {empty[0].num_shards:,} shards of {empty[0].split!r} have no "
            f"{noun} left after rejects: write fewer --num_shards"
        )
    return ""
