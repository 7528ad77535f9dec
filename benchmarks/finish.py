"""Measures the end of a build with synthetic shards: python benchmarks/finish.py SHARDS [CLASSES].

What the writers of SHARDS shards report, with records of CLASSES classes (1,000) and one reject
each, runs through the last steps of the graph: it is merged, the metadata is written, and the list
of shards in the output is checked. The shards do not exist: a store of this program lists them, and
returns one small shard for each. Runs in the environment of imageshards.

Another process makes the reports beforehand, because in a build the writers make them while they
write. `loop_seconds`, `cpu_seconds` and `peak_mib` are those of the last steps alone; the process
has `start_mib` before them. All steps run in this process, which also holds what a service would
keep in its shuffle. The comparison of digests is measured by benchmarks/copies.py.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from imageshards.transforms import storage
from imageshards.transforms.elements import RejectReport, ShardId, ShardReport
from imageshards.transforms.references.plan import Plan, SplitPlan
from imageshards.transforms.shards.facts import Collector, Fact
from imageshards.transforms.shards.layout import rejects_part_of, to_json
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.stats import ShardStats
from imageshards.transforms.shards.totals import Totals
from imageshards.transforms.storage.local import LocalStore
from imageshards.transforms.storage.protocol import Entry, Store

SCHEME = "synthetic"
SIZE = 150_000_000
RECORDS = 1000
BUNDLE = 100
"""Shards that one writer reports together."""
REJECT = {"name": "n.jpg", "uri": "n.jpg", "split": "train", "stage": "check",
          "error": "Truncated", "reason": "the file breaks off"}  # fmt: skip


def shards(count: int) -> Iterator[ShardId]:
    """Yields the shards: nine of ten in train, the others in test."""
    tests = max(1, count // 10)
    for split, number in (("train", count - tests), ("test", tests)):
        for index in range(number):
            yield ShardId(split, index, number)


def report(shard: ShardId, classes: int, profile: dict[str, Any]) -> ShardReport:
    """A report of a shard with one reject."""
    labels = dict.fromkeys(range(classes), RECORDS // max(classes, 1) + 1)
    sides = {256: 300, 512: 500, 1024: 199}
    return ShardReport(
        shard, RECORDS - 1, SIZE, shard.index, labels, {"jpeg": RECORDS - 1}, sides, (64, 64),
        (900, 800), profile=profile,
    )  # fmt: skip


class SyntheticStore(Store):
    """Lists shards that do not exist, and reads one small shard in place of each.

    All other files are local ones.
    """

    def __init__(self, count: int, small: bytes, index: bytes) -> None:
        self._count = count
        self._contents = {".tfrecord": small, ".idx": index}
        self._reject = (json.dumps(REJECT) + "\n").encode()
        self._local = LocalStore()

    def open_read(self, uri: str, /) -> IO[bytes]:
        """A small shard or index, the line of a reject, or a local file."""
        for suffix, content in self._contents.items():
            if uri.endswith(suffix):
                return io.BytesIO(content)
        if uri.endswith(".rejects.jsonl") and ".joined." not in uri:
            return io.BytesIO(self._reject)
        return self._local.open_read(path_of(uri))

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Of a local file."""
        return self._local.stat(path_of(uri))

    def entries_in(self, folder: str, /) -> Iterator[Entry]:
        """All shards, or the files of a local folder."""
        if folder.endswith("/shards"):
            yield from self._local.entries_in(path_of(folder))
            return
        from imageshards.transforms.records.containers import shard_name

        for shard in shards(self._count):
            yield Entry(shard_name(shard), 1, SIZE, shard.index)

    def delete(self, uri: str, /) -> None:
        """Deletes a local file."""
        self._local.delete(path_of(uri))

    def open_sink(self, uri: str, scratch: str, /) -> Any:
        """Opens a local file."""
        return self._local.open_sink(path_of(uri), path_of(scratch))


def path_of(uri: str) -> str:
    """The path of a file that exists."""
    return uri.removeprefix(f"{SCHEME}://")


def small_shard(folder: Path) -> tuple[bytes, bytes, dict[str, Any]]:
    """The content of a shard of ten images, its index, and its profile."""
    from PIL import Image

    from imageshards.launch.cli import main

    images = folder / "images"
    images.mkdir()
    for number in range(10):
        Image.new("RGB", (64, 64), (number * 20, 0, 0)).save(images / f"{number}.jpg")
    arguments = ["--labels=none", "--num_shards=1", "--splits=train=1"]
    assert main(["build", f"--input={images}", f"--output={folder / 'small'}", *arguments]) == 0
    shard = folder / "small/train-00000-of-00001.tfrecord"
    index = folder / "small/metadata/index/train-00000-of-00001.idx"
    state = json.loads((folder / f"small/metadata/shards/{shard.name}.json").read_text())
    return shard.read_bytes(), index.read_bytes(), state["report"]["profile"]


def plan_of(count: int, classes: int) -> Plan:
    """The plan of a build with so many shards."""
    numbers: dict[str, int] = {}
    for shard in shards(count):
        numbers[shard.split] = shard.num_shards
    splits = {
        name: SplitPlan(number * RECORDS, number, number * SIZE, {})
        for name, number in numbers.items()
    }
    names = tuple(f"n{number:08d}" for number in range(classes))
    return Plan(
        splits, names, {name: number for number, name in enumerate(names)}, count * RECORDS, 0, 0,
        (), "synthetic",
    )  # fmt: skip


def make_facts(count: int, classes: int, folder: Path) -> None:
    """Writes what the writers report to `facts`, and the offset of each bundle to `offsets`.

    The numbers of each shard are its own. The statistics of bundles of the same length are equal,
    and are computed once.
    """
    _, _, profile = pickle.loads((folder / "shard").read_bytes())
    plan = plan_of(count, classes)
    statistics: dict[int, ShardStats] = {}
    offsets = []
    with (folder / "facts").open("wb") as file:
        for split, planned in plan.splits.items():
            for at in range(0, planned.num_shards, BUNDLE):
                bundle = range(at, min(at + BUNDLE, planned.num_shards))
                if len(bundle) not in statistics:
                    example = report(ShardId(split, 0, 1), classes, profile)
                    statistics[len(bundle)] = ShardStats([example] * len(bundle))
                offsets.append(file.tell())
                pickle.dump(facts_of(plan, split, bundle, statistics[len(bundle)]), file)
    (folder / "offsets").write_bytes(pickle.dumps(offsets))


def facts_of(plan: Plan, split: str, bundle: range, statistics: ShardStats) -> list[Fact]:
    """What a writer reports of consecutive shards with these statistics."""
    collector = Collector(plan)
    facts: list[Fact] = []
    for index in bundle:
        shard = plan.shard(split, index)
        rejects = RejectReport(split, rejects_part_of(shard), {"Truncated": 1})
        facts += collector.add(ShardResult(report(shard, 0, {}), rejects))
    facts += collector.flush()
    for _, value in facts:
        if isinstance(value, Totals):
            value.stats[split] = statistics
    return facts


def run(count: int, classes: int, folder: Path) -> dict[str, Any]:
    """Runs the steps, and returns the time and the peak memory."""
    from imageshards.launch.load import load_beam

    load_beam(lean=True)  # as the command does
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imageshards.pipeline import metadata
    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.finish import finish
    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.transforms.merge_facts import MergeFacts

    small, index, _ = pickle.loads((folder / "shard").read_bytes())
    storage.STORES[SCHEME] = SyntheticStore(count, small, index)
    output = folder / "out"
    spec = BuildSpec(
        BuildOptions.of(
            input=(str(folder / "images"),),
            output=f"{SCHEME}://{output}",
            splits="train=0.9,test=0.1",
            num_shards="auto",
            max_reject_fraction=0.5,
        )
    )
    plan = plan_of(count, classes)
    (output / "metadata/shards").mkdir(parents=True)
    spec.layout.write(spec.layout.plan, to_json(metadata.plan_json(plan, spec)))
    path = folder / "facts"

    class ReadFacts(beam.DoFn):  # type: ignore[misc]
        def process(self, offset: int) -> Iterator[Fact]:
            with path.open("rb") as file:
                file.seek(offset)
                yield from pickle.load(file)

    offsets = pickle.loads((folder / "offsets").read_bytes())
    start = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    begin, used_before = time.perf_counter(), cpu_seconds()
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as root:
        planned = beam.pvalue.AsSingleton(root | "Plan" >> beam.Create([plan]))
        facts = (
            root
            | "Bundles" >> beam.Create(offsets)
            | "ReadFacts" >> beam.ParDo(ReadFacts()).with_output_types(Fact)
        )
        merged = facts | MergeFacts(spec.layout)
        _ = (
            root
            | beam.Impulse()
            | "Finish" >> beam.Map(finish, planned, beam.pvalue.AsIter(merged), spec)
        )
    seconds, used = time.perf_counter() - begin, cpu_seconds() - used_before
    files = {
        str(path.relative_to(output)): path.stat().st_size
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }
    return {
        "shards": count, "classes": classes, "loop_seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1), "start_mib": start >> 20,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "files": files,
    }  # fmt: skip


def cpu_seconds() -> float:
    """The CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def in_process(function: Callable[..., None], *arguments: Any) -> None:
    """Runs a function in another process, so that its memory does not count."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def make(count: int, classes: int, folder: Path) -> None:
    """Makes the small shard and the reports."""
    (folder / "shard").write_bytes(pickle.dumps(small_shard(folder)))
    make_facts(count, classes, folder)


def main(count: int, classes: int = 1000) -> None:
    """Prints the figures as one line of JSON."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        begin = time.perf_counter()
        in_process(make, count, classes, folder)
        seconds = time.perf_counter() - begin
        print(json.dumps({**run(count, classes, folder), "made_seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
