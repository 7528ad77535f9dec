"""Measures references without images: python references.py make|run MANIFEST COUNT_OR_SHARDS.

`make` writes a manifest of COUNT synthetic URIs. `run` lists, splits, shuffles and plans them with
the first stages of the graph of `imageshards build`, up to the GroupByKey by shard, and counts
them. Runs in the environment of imageshards.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def make(manifest: Path, count: int) -> None:
    """Writes a CSV file with the columns uri and label: `count` URIs of 1,000 classes."""
    with open(manifest, "w", encoding="utf-8") as file:
        file.write("uri,label\n")
        for number in range(count):
            label = f"n{number * 1000 // count:08d}"
            file.write(f"/data/train/{label}/{label}_{number:08d}.JPEG,{label}\n")


def see(step: str, values: Iterable[Any]) -> None:
    """Measures one element: the batches in it, which are packed until a step reads them."""
    from apache_beam.metrics import Metrics

    sizes = [sum(map(len, value.packed())) for value in values if hasattr(value, "packed")]
    Metrics.distribution("elements", step).update(sum(sizes))


def watch(fn: type[Any], step: str) -> None:
    """Measures the elements (key, batch) or (key, [batch, ...]) that a DoFn takes."""
    process = fn.process

    @functools.wraps(process)  # Beam reads its types
    def watching(dofn: Any, element: tuple[Any, Any], *arguments: Any) -> Any:
        key, value = element
        value = value if hasattr(value, "packed") else list(value)
        see(step, [value] if hasattr(value, "packed") else value)
        return process(dofn, (key, value), *arguments)

    fn.process = watching


def run(manifest: Path, shards: int) -> None:
    """Runs the stages, and prints counts, time, and the largest element of each step as JSON."""
    from imageshards.launch.load import load_beam

    load_beam(lean=True)  # as the command does
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.transforms import shuffle
    from imageshards.transforms.elements import ShardId
    from imageshards.transforms.read import ReadReferences
    from imageshards.transforms.references.batch import RefBatch
    from imageshards.transforms.references.stored import Piece, StoredRefs, loaded

    options = BuildOptions.of(
        input=(str(manifest),),
        output=str(manifest) + ".out",
        num_shards=f"train={shards},test={max(1, shards // 10)}",
        splits="train=0.9,test=0.1",
    )
    spec = BuildSpec(options)
    watch(shuffle._Divide, "listed")
    watch(shuffle._SortGroup, "group")

    def assign(group: tuple[int, dict[str, Any]], *arguments: Any) -> Any:
        see("sorted group", group[1].values())
        return shuffle.assign_shards(group, *arguments)

    def in_order(element: tuple[Any, Iterable[tuple[int, Any]]]) -> tuple[int, int]:
        # What the worker that writes a shard does before it reads the first image.
        pieces = [piece for _, piece in sorted(element[1], key=lambda item: item[0])]
        see("shard", pieces)
        if any(isinstance(piece, StoredRefs) for piece in pieces):
            return sum(map(len, loaded(pieces))), 1
        return len(RefBatch.concat(pieces)), 1

    def add(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        pairs = list(pairs)
        return sum(images for images, _ in pairs), sum(shards for _, shards in pairs)

    counts = manifest.with_name(manifest.name + ".counts")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=manifest.parent) as folder:
        root = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
        listed = root | "Read" >> ReadReferences(options.inputs.input, spec.annotator, spec.listing)
        groups, planned = listed | "Shuffle" >> shuffle.ShuffleReferences(spec.planner)
        _ = (
            groups
            | "AssignShards"
            >> beam.FlatMap(assign, beam.pvalue.AsSingleton(planned), folder).with_output_types(
                tuple[ShardId, tuple[int, Piece]]
            )
            | "GroupByShard" >> beam.GroupByKey()
            | "InOrder" >> beam.Map(in_order)
            | "Add" >> beam.CombineGlobally(add)
            | "Keep" >> beam.Map(lambda total: counts.write_text(json.dumps(total)))
        )
        result = root.run()
        result.wait_until_finish()
    seconds = time.perf_counter() - begin
    images, files = json.loads(counts.read_text())
    counts.unlink()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "images": images, "shards": files, "loop_seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss // 1024,
        "largest_element": {
            found.key.metric.name: found.committed.max
            for found in result.metrics().query()["distributions"]
            if found.key.metric.namespace == "elements"
        },
    }))  # fmt: skip


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
