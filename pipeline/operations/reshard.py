"""Copies a data set into other numbers or formats of shards, without decoding images.

The records keep their order and their bytes; shards of a split differ by at most one record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from time import perf_counter

from imageshards.pipeline.operations.operation import Run, run_here
from imageshards.pipeline.operations.resharding.claim import claim, recording_failure
from imageshards.pipeline.operations.resharding.dataset import Resharding, claim_of
from imageshards.pipeline.operations.resharding.files import Conversion, files_to_copy
from imageshards.pipeline.operations.resharding.target import Format, RequestedFormat, Target
from imageshards.reader.dataset import open_dataset
from imageshards.reader.files import is_pattern
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError, alternatives, counted, human_bytes
from imageshards.transforms.records.containers import CONTAINERS, shard_name
from imageshards.transforms.shards.layout import Layout


@dataclass(frozen=True)
class Resharded:
    """The result of `reshard`.

    Attributes:
      output: the new folder.
      source: the old folder.
      records: in all splits.
      bytes: of all new shards.
      shards: split -> (number before, number now).
      seconds: wall time; 0 if the new data set was complete already.
    """

    output: str
    source: str
    records: int
    bytes: int
    shards: dict[str, tuple[int, int]]
    seconds: float

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def __str__(self) -> str:
        shards = ", ".join(f"{name} {old:,} -> {new:,}" for name, (old, new) in self.shards.items())
        took = f"in {self.seconds:.1f} s" if self.seconds else "nothing to do: complete already"
        return (
            f"{self.output}\n  {counted(self.records, 'record')}, {human_bytes(self.bytes)}, from "
            f"{self.source}\n  shards: {shards}\n  {took}"
        )


def reshard(
    folder: str,
    output: str,
    num_shards: str = "",
    file_format: str = "",
    compression: str = "",
    group_size: int = 0,
    run: Run = run_here,
) -> Resharded:
    """Copies a data set into other numbers or another format of shards.

    Args:
      folder: a complete data set that imageshards built; with a `file_format`, also a glob pattern
        of any record files, each of which becomes one shard.
      output: the folder of the new data set.
      num_shards: `16`, or `train=8,test=2`, which keeps the numbers of other splits; empty keeps
        all.
      file_format: the record container of the new shards; empty for that of the data set.
      compression: `none`, `gzip` for TFRecord, or `zstd`, `brotli` or `snappy` for ArrayRecord;
        empty for that of the data set, and for none in another container or of other files.
      group_size: the number of records that ArrayRecord stores together; 0 for that of the data
        set, and for 1 in another container or of other files.
      run: where to do it: `run_here`, or `run_on_beam` with a runner.

    Raises:
      UsageError: an option is invalid, or does not fit this data set.
      BuildError: there is no such data set, or the output holds another one.
      JobError: a shard is damaged, or the runner's job failed.

    >>> reshard("dataset", "dataset-8", "train=8").shards
    {'train': (2, 8), 'test': (1, 1)}
    """
    requested = RequestedFormat(file_format, compression, group_size)
    if not output:
        raise UsageError("the output folder is empty: name a folder for the new data set")
    if is_pattern(folder):
        return _copied_files(folder, Layout(output), num_shards, requested, run)
    return _copied_dataset(folder, Layout(output), num_shards, requested, run)


def _copied_dataset(
    folder: str, layout: Layout, num_shards: str, requested: RequestedFormat, run: Run
) -> Resharded:
    begin = perf_counter()
    dataset = open_dataset(folder)
    old = dataset.layout
    target = Target.of(dataset, num_shards, requested)
    if layout.root == old.root:
        raise UsageError(f"{layout.root} is the data set to reshard: name another output folder")
    if layout.root.startswith(storage.join(old.root, "")):
        raise UsageError(
            f"{layout.root} is inside of the data set to reshard: name another output folder"
        )
    mine = claim_of(dataset, target)
    is_complete = claim(layout, mine, set(map(shard_name, target.shards())))
    if not is_complete:
        sha256 = all(shard.sha256 for shard in dataset.shards)
        with recording_failure(layout, mine):
            run(Resharding(old, layout, target, sha256))
    done = open_dataset(layout.root)
    shards = {name: (len(dataset.lengths[name]), count) for name, count in target.counts}
    return Resharded(
        layout.root, old.root, done.counts["records"], done.counts["bytes"], shards,
        0.0 if is_complete else perf_counter() - begin,
    )  # fmt: skip


def _copied_files(
    pattern: str, layout: Layout, num_shards: str, requested: RequestedFormat, run: Run
) -> Resharded:
    begin = perf_counter()
    if num_shards or not requested.file_format:
        formats = alternatives(CONTAINERS)
        raise UsageError(
            f"{pattern} is not the folder of a data set: set --file_format {formats} without "
            "--num_shards; each file becomes one shard"
        )
    to_copy = files_to_copy(pattern, Format().changed(requested), layout)
    mine = to_copy.claim
    is_complete = claim(layout, mine, set(map(shard_name, to_copy.shards)))
    # A complete data set, too: shards that have been deleted since are written again.
    with recording_failure(layout, mine):
        outcome = run(Conversion(layout, to_copy.format, is_complete))
    return Resharded(
        layout.root, pattern, outcome["records"], outcome["bytes"],
        {name: (count, count) for name, count in mine["num_shards"].items()},
        perf_counter() - begin,
    )  # fmt: skip
