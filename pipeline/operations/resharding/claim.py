"""Claims the output folder of a reshard, so that the shards of two commands do not mix.

The claim is reshard.json, which identifies the command: what it copies, and the shards it writes.
The same command resumes an interrupted one. Another command is refused, unless the first one is
known to have failed: then its shards are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from imageshards.pipeline.claim import clear, dataset_files_in
from imageshards.pipeline.job.failures import JobError, job_error
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError
from imageshards.transforms.records.containers import is_shard_like
from imageshards.transforms.shards.layout import Layout, read_json

_STATE = "state"
_FAILED, _COMPLETE = "failed", "complete"


def claim(layout: Layout, mine: Mapping[str, Any], shards: Collection[str]) -> bool:
    """Claims a folder, and returns whether an earlier run of the command has completed it.

    Args:
      layout: paths of the folder.
      mine: identifies the command.
      shards: the file names of the shards that the command writes.

    Raises:
      BuildError: the folder holds something else, or cannot be written.
    """
    if problem := storage.folder_problem(layout.root):
        raise BuildError(f"{layout.root}: {problem}")
    found = read_json(layout.uri("reshard")) or {}
    planned = storage.exists(layout.plan)
    is_mine = _identity(found) == mine and not planned
    if not (is_mine or planned) and found.get(_STATE) == _FAILED:
        clear(layout)
        found = {}
    others = dataset_files_in(layout)
    if is_mine:
        others = [name for name in others if is_shard_like(name) and name not in shards]
    if others or planned:
        what = f"holds another data set: {', '.join(others[:3])}" if others else "holds a build"
        raise BuildError(f"{layout.root} {what}; name another folder, or empty this one")
    if is_mine and (found.get(_STATE) == _COMPLETE or storage.exists(layout.dataset_info)):
        return True
    with _writing(layout):
        layout.make_folders()
        if not storage.create(layout.uri("reshard"), _to_line(mine), layout.state):
            check_ownership(layout, mine)
            if found.get(_STATE) == _FAILED:
                layout.write(layout.uri("reshard"), _to_line(mine))
        storage.sweep(layout.state)
        storage.abort_uploads(layout.root)
    return False


def check_ownership(layout: Layout, mine: Mapping[str, Any]) -> None:
    """Checks that no other reshard and no build has claimed the folder.

    Raises:
      BuildError: another one has.
    """
    found = _identity(read_json(layout.uri("reshard")) or {})
    if found != mine or storage.exists(layout.plan):
        raise BuildError(
            f"{layout.root}: another reshard or build has claimed this folder; name another "
            "folder, or empty this one"
        )


@contextmanager
def recording_failure(layout: Layout, mine: Mapping[str, Any]) -> Iterator[None]:
    """Records in the claim that the command failed, so that another one can replace it.

    Raises:
      JobError: the block raised one, or a `BuildError`.
      BuildError: the folder cannot be written.
    """
    try:
        with _writing(layout):
            yield
    except (BuildError, JobError) as error:
        failed = error if isinstance(error, JobError) else job_error(error)
        with suppress(BuildError, OSError):  # the command fails with its own error
            if not failed.may_run and read_json(layout.uri("reshard")) == mine:
                layout.write(layout.uri("reshard"), _to_line({**mine, _STATE: _FAILED}))
        if failed is error:
            raise
        raise failed from error


def complete(layout: Layout, mine: Mapping[str, Any]) -> None:
    """Records that all shards are written; for folders that get no dataset_info.json."""
    check_ownership(layout, mine)
    layout.write(layout.uri("reshard"), _to_line({**mine, _STATE: _COMPLETE}))


def claimed(layout: Layout) -> dict[str, Any]:
    """Returns what identifies the command that has claimed a folder; empty if none has."""
    return _identity(read_json(layout.uri("reshard")) or {})


def _identity(mark: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mark.items() if name != _STATE}


def _to_line(mark: Mapping[str, Any]) -> bytes:
    return (json.dumps(mark) + "\n").encode()


@contextmanager
def _writing(layout: Layout) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(f"{layout.root} cannot be written: {error.strerror or error}") from error
