"""Claims the output folder for a build, and clears the files of another one.

`claim` runs inside the graph, so that it happens whatever launched the job. It may run again after
a failure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from imageshards.pipeline import metadata
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.marks import read_mark
from imageshards.pipeline.options.build_options import FORMAT_VERSION
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, OutputTaken, ShardId
from imageshards.transforms.inputs.unpack import PREFIX as UNPACKED_PREFIX
from imageshards.transforms.records.containers import is_shard_like, parse_shard_name
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.references.stored import PREFIX as STORED_PREFIX
from imageshards.transforms.shards.layout import Layout, is_joined, read_json, to_json

_WHAT_TO_DO = "(--overwrite replaces it; another --output keeps it)"


def claim(plan: Plan, spec: BuildSpec) -> Plan:
    """Claims the output for this build, and returns the plan.

    An earlier run of the same build is resumed.

    Raises:
      BuildError: the output holds another build, or cannot be written.
    """
    with spec.failures.ending():
        return _claim(plan, spec)


def _claim(plan: Plan, spec: BuildSpec) -> Plan:
    layout = spec.layout
    mine = to_json(metadata.plan_json(plan, spec))
    try:
        with _of_output():
            found = other_build_in(spec, plan.digest)
        if found and not (spec.options.output.overwrite or failed_without_shard(spec)):
            storage.delete(sorted(plan.unpacked))
            raise OutputTaken(found)
        if found:
            clear(layout)
        layout.make_folders()
        spec.failures.clear()
        if read_mark(layout).get("deleting"):  # by a publish that was interrupted
            storage.delete([layout.uri("published")])
        storage.sweep(layout.state)
        storage.abort_uploads(layout.root)
        sweep_temporary(layout, plan)
        if not storage.exists(layout.dataset_info):
            # A failed run of this build has written them; this run may fail for another reason.
            storage.delete([layout.rejects, layout.report])
        if spec.options.execution.writer == "beam":
            storage.delete([layout.dataset_info])
            for split in plan.splits:
                storage.sweep_folders(layout.root, f"beam-temp-{split}-")
        if not storage.create(layout.plan, mine, layout.state):
            check_ownership(plan, spec)
            # With a new plan, older files in the folder are known to be from an earlier run.
            layout.write(layout.plan, mine)
    except OSError as error:
        raise BuildError(
            f"--output {spec.options.output.output} cannot be written: {error.strerror or error}"
        ) from error
    return plan


def check_output(spec: BuildSpec) -> None:
    """Checks the output before the inputs are listed.

    Raises:
      BuildError: the output is a file, or holds a build with other options.
    """
    root = spec.layout.root
    if problem := storage.folder_problem(root):
        raise BuildError(f"--output {spec.options.output.output}: {problem}")
    with _of_output():
        found = other_build_in(spec, None)
    if found and not (spec.options.output.overwrite or failed_without_shard(spec)):
        raise OutputTaken(found)


@contextmanager
def _of_output() -> Iterator[None]:
    """Names, where the output cannot be read, the role that also allows to write it."""
    try:
        yield
    except storage.Refused as refused:
        raise storage.Refused(refused.as_output) from refused


def check_ownership(plan: Plan, spec: BuildSpec) -> None:
    """Checks that the plan in the output is still the one of this build.

    Raises:
      BuildError: another build has claimed the output.
    """
    found = read_json(spec.layout.plan) or {}
    if (found.get("digest"), found.get("settings")) != (plan.digest, spec.settings):
        raise OutputTaken(
            f"{spec.layout.root}: another build has claimed this output; run one at a time"
        )


def failed_without_shard(spec: BuildSpec) -> bool:
    """Returns whether the build in the output has failed, and left no shard that could be lost.

    Without its record of that, it may be running: its first shards may be uploads in progress.
    """
    layout = spec.layout
    if not spec.failures.is_of((read_json(layout.plan) or {}).get("digest", "")):
        return False
    unfinished = any(name.endswith(storage.TEMP_SUFFIX) for name in storage.names_in(layout.state))
    return not (unfinished or dataset_files_in(layout))


def other_build_in(spec: BuildSpec, digest: str | None) -> str:
    """Returns an error message if the output holds another build; empty if it does not.

    Args:
      spec: this build.
      digest: of this build's plan; None if it is not known yet.
    """
    layout = spec.layout
    plan = read_json(layout.plan)
    if plan is not None:
        options = plan.get("options")
        changed = ""
        if plan.get("settings") != spec.settings:
            changed = spec.options.differences(options if isinstance(options, dict) else {})
            changed = f"with other options: {changed}" if changed else ""
            # Up to version 0.1.0, plan.json had no format.
            if not changed or ("settings" in plan and plan.get("format") != FORMAT_VERSION):
                changed = f"of another version of imageshards {changed}".rstrip()
            # plan.json does not record --input.
            built = (read_json(layout.build) or {}).get("options")
            before = built.get("input") if isinstance(built, dict) else None
            now = list(spec.options.inputs.input)
            if isinstance(before, list) and before != now:
                changed += f"; --input was {','.join(map(str, before))}, now {','.join(now)}"
        elif digest not in (None, plan.get("digest")):
            changed = "with other inputs"
        if not changed:
            return ""
        build = "a build" if storage.exists(layout.dataset_info) else "an incomplete build"
        return f"{layout.root} holds {build} {changed} {_WHAT_TO_DO}"
    names = dataset_files_in(layout)
    if names:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        files = ", ".join(names[:3]) + more
        return f"{layout.root} holds files of another build: {files} {_WHAT_TO_DO}"
    return ""


def dataset_files_in(layout: Layout) -> list[str]:
    """Returns the names in a folder that look like files of a data set."""
    return [
        name
        for name in storage.names_in(layout.root)
        if is_shard_like(name) or name in ("dataset_info.json", "features.json")
    ]


def other_files_in(layout: Layout) -> list[str]:
    """Returns the names in a local folder that no build has written; empty if one has written it.

    A build keeps such files.
    """
    if not storage.is_local(layout.root) or storage.exists(layout.plan):
        return []
    if dataset_files_in(layout):
        return []  # `other_build_in` refuses them
    return [name for name in storage.names_in(layout.root) if not name.startswith(".")]


def sweep_temporary(
    layout: Layout, plan: Plan | None = None, keep: Collection[str] = frozenset()
) -> None:
    """Deletes unpacked tar files, stored references and joined rejects, whichever run wrote them.

    Args:
      layout: paths of the data set.
      plan: the unpacked tar files and stored references of this plan are kept.
      keep: URIs of further files to keep.
    """
    mine = f"{STORED_PREFIX}{plan.digest}-" if plan else ""
    kept = {*keep, *(plan.unpacked if plan else ())}
    found = [
        storage.join(layout.state, name)
        for name in storage.names_in(layout.state)
        if (name.startswith((UNPACKED_PREFIX, STORED_PREFIX)) or is_joined(name))
        and not (mine and name.startswith(mine))
    ]
    storage.delete([uri for uri in found if uri not in kept])


def clear(layout: Layout) -> None:
    """Deletes the files of a build and no others, first those that mark it as complete."""
    storage.delete(layout.uris_cleared("first"))
    shards = _planned_shards(layout)
    if shards:
        uris = [*map(layout.shard, shards), *layout.uris_cleared("next", shards)]
        existing = {
            folder: set(storage.names_in(folder))
            for folder in (layout.root, layout.index_folder, layout.state)
        }
        storage.delete(
            [
                uri
                for uri in uris
                for folder, _, name in [uri.rpartition("/")]
                if folder not in existing or name in existing[folder]
            ]
        )
        storage.sweep(layout.state)
    else:  # there is no plan, or it is damaged
        storage.delete([storage.join(layout.root, name) for name in dataset_files_in(layout)])
    storage.delete(layout.uris_cleared("last"))


def _planned_shards(layout: Layout) -> list[ShardId]:
    """Returns the shards of a folder, according to plan.json and to reshard.json."""
    plan = read_json(layout.plan) or {}
    options = plan.get("options") or {}
    file_format = options.get("file_format", "tfrecord")
    gzip = options.get("compression") == "gzip"
    shards = [
        ShardId(split, index, counts["shards"], "gzip" if gzip else "", file_format)
        for split, counts in (plan.get("splits") or {}).items()
        for index in range(counts["shards"])
    ]
    return shards + _resharded_shards(layout)


def _resharded_shards(layout: Layout) -> list[ShardId]:
    """Returns the shards of a folder, according to reshard.json."""
    resharded = read_json(layout.uri("reshard")) or {}
    shard = ShardId("", 0, 0)
    if sources := resharded.get("shards"):  # whose format is kept, unless it is specified
        shard = parse_shard_name(sources[0][0]) or shard
    shard = replace(
        shard,
        file_format=resharded.get("file_format", shard.file_format),
        compression=resharded.get("compression", shard.compression),
    )
    return [
        replace(shard, split=split, index=index, num_shards=number)
        for split, number in (resharded.get("num_shards") or {}).items()
        for index in range(number)
    ]
