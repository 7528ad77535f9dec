"""Measures the end of a build with synthetic shards: python benchmarks/finish.py SHARDS [CLASSES].

Reports of SHARDS shards with records of CLASSES classes (1,000) each, and one reject each, run
through the last steps of the graph: they are merged, the metadata is written, and the list of
shards in the output is checked. The shards do not exist: a store of this program lists them, and
returns one small shard for each. Runs in the environment of imageshards.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId, ShardReport
from imageshards.transforms.storage.local import LocalStore
from imageshards.transforms.storage.protocol import Entry, Store

SCHEME = "synthetic"
SIZE = 150_000_000
RECORDS = 1000


def shards(count: int) -> Iterator[ShardId]:
    """Yields the shards: nine of ten in train, the others in test."""
    tests = max(1, count // 10)
    for split, number in (("train", count - tests), ("test", tests)):
        for index in range(number):
            yield ShardId(split, index, number)


def report(shard: ShardId, classes: int) -> ShardReport:
    """A report of a shard with one reject."""
    labels = dict.fromkeys(range(classes), RECORDS // classes + 1)
    sides = {256: 300, 512: 500, 1024: 199}
    return ShardReport(
        shard, RECORDS - 1, SIZE, shard.index, labels, {"jpeg": RECORDS - 1}, sides, (64, 64),
        (900, 800),
    )  # fmt: skip


class SyntheticStore(Store):
    """Lists shards that do not exist, and reads one small shard in place of each.

    All other files are local ones.
    """

    def __init__(self, count: int, small: bytes, index: bytes) -> None:
        self._count = count
        self._contents = {".tfrecord": small, ".idx": index}
        self._local = LocalStore()

    def open_read(self, uri: str, /) -> IO[bytes]:
        """A small shard or index, the line of a reject, or a local file."""
        for suffix, content in self._contents.items():
            if uri.endswith(suffix):
                return io.BytesIO(content)
        if uri.endswith(".rejects.jsonl") and ".joined." not in uri:
            line = {"name": "n.jpg", "uri": uri, "split": "train", "stage": "check",
                    "error": "Truncated", "reason": "the file breaks off"}  # fmt: skip
            return io.BytesIO((json.dumps(line) + "\n").encode())
        return self._local.open_read(path_of(uri))

    def stat(self, uri: str, /) -> tuple[int, int]:
        """Of a local file."""
        return self._local.stat(path_of(uri))

    def entries_in(self, folder: str, /) -> list[Entry]:
        """All shards, or the files of a local folder."""
        if folder.endswith("/shards"):
            return self._local.entries_in(path_of(folder))
        from imageshards.transforms.records.containers import shard_name

        return [Entry(shard_name(shard), 1, SIZE, shard.index) for shard in shards(self._count)]

    def delete(self, uri: str, /) -> None:
        """Deletes a local file."""
        self._local.delete(path_of(uri))

    def open_sink(self, uri: str, scratch: str, /) -> Any:
        """Opens a local file."""
        return self._local.open_sink(path_of(uri), path_of(scratch))


def path_of(uri: str) -> str:
    """The path of a file that exists."""
    return uri.removeprefix(f"{SCHEME}://")


def small_shard(folder: Path) -> tuple[bytes, bytes]:
    """The content of a shard of ten images, and its index."""
    from PIL import Image

    from imageshards.launch.cli import main

    images = folder / "images"
    images.mkdir()
    for number in range(10):
        Image.new("RGB", (64, 64), (number * 20, 0, 0)).save(images / f"{number}.jpg")
    arguments = ["--labels=none", "--num_shards=1", "--splits=train=1"]
    assert main(["build", f"--input={images}", f"--output={folder / 'small'}", *arguments]) == 0
    name = "train-00000-of-00001"
    index = folder / f"small/metadata/index/{name}.idx"
    return (folder / f"small/{name}.tfrecord").read_bytes(), index.read_bytes()


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
    from imageshards.transforms.elements import RejectReport
    from imageshards.transforms.merge_facts import MergeFacts
    from imageshards.transforms.references.plan import Plan, SplitPlan
    from imageshards.transforms.shards.facts import Collector, Fact
    from imageshards.transforms.shards.layout import rejects_part_of, to_json
    from imageshards.transforms.shards.state import ShardResult

    storage.STORES[SCHEME] = SyntheticStore(count, *small_shard(folder))
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
    numbers: dict[str, int] = {}
    for shard in shards(count):
        numbers[shard.split] = shard.num_shards
    splits = {
        name: SplitPlan(number * RECORDS, number, number * SIZE, {})
        for name, number in numbers.items()
    }
    names = tuple(f"n{number:08d}" for number in range(classes))
    plan = Plan(
        splits, names, {name: number for number, name in enumerate(names)}, count * RECORDS, 0, 0,
        (), "synthetic",
    )  # fmt: skip
    (output / "metadata/shards").mkdir(parents=True)
    spec.layout.write(spec.layout.plan, to_json(metadata.plan_json(plan, spec)))

    class Report(beam.DoFn):  # type: ignore[misc]
        def process(self, numbers: tuple[int, int], plan: Plan) -> Iterator[Fact]:
            collector = Collector(plan)
            example = report(ShardId("train", 0, 1), classes)
            first = plan.first_shards
            for number in range(*numbers):
                split = next(name for name in reversed(first) if first[name] <= number)
                shard = plan.shard(split, number - first[split])
                part = rejects_part_of(shard)
                rejects = RejectReport(split, part, {"Truncated": 1})
                found = replace(example, shard=shard, crc32c=shard.index)
                yield from collector.add(ShardResult(found, rejects))
            yield from collector.flush()

    bundle = 100
    begin = time.perf_counter()
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as root:
        planned = beam.pvalue.AsSingleton(root | "Plan" >> beam.Create([plan]))
        facts = (
            root
            | "Bundles"
            >> beam.Create([(at, min(at + bundle, count)) for at in range(0, count, bundle)])
            | "Report" >> beam.ParDo(Report(), planned).with_output_types(Fact)
        )
        merged = facts | MergeFacts(spec.layout)
        _ = (
            root
            | beam.Impulse()
            | "Finish" >> beam.Map(finish, planned, beam.pvalue.AsIter(merged), spec)
        )
    seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_SELF)
    files = {
        str(path.relative_to(output)): path.stat().st_size
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }
    return {
        "shards": count, "classes": classes, "loop_seconds": round(seconds, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": used.ru_maxrss // 1024, "files": files,
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found = run(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1000, Path(made))
    print(json.dumps(found))
