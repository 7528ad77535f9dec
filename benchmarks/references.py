"""Measures references without images: python references.py make|run MANIFEST COUNT_OR_SHARDS.

`make` writes a manifest of COUNT synthetic URIs. `run` lists, splits, shuffles and plans them with
the first stages of the graph of `imageshards build`, up to the GroupByKey by shard, and counts
them. Runs in the environment of imageshards.
"""

from __future__ import annotations

import json
import sys
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


def run(manifest: Path, shards: int) -> None:
    """Runs the stages, and prints the counts and the time as JSON."""
    from imageshards.launch.load import load_beam

    load_beam(lean=True)  # as the command does
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imageshards.pipeline.config import Config
    from imageshards.transforms.read import ReadReferences
    from imageshards.transforms.shuffle import ShuffleReferences, assign_shards

    config = Config(
        input=(str(manifest),),
        output=str(manifest) + ".out",
        num_shards=f"train={shards},test={max(1, shards // 10)}",
        splits="train=0.9,test=0.1",
    )

    def in_order(element: tuple[Any, Iterable[tuple[int, Any]]]) -> tuple[int, int]:
        # What the worker that writes a shard does before it reads the first image.
        batches = [batch for _, batch in sorted(element[1], key=lambda item: item[0])]
        return len(type(batches[0]).concat(batches)), 1

    def add(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
        pairs = list(pairs)
        return sum(images for images, _ in pairs), sum(shards for _, shards in pairs)

    counts = manifest.with_name(manifest.name + ".counts")
    begin = time.perf_counter()
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as root:
        listed = root | "Read" >> ReadReferences(config.input, config.annotator, config.listing)
        groups, planned = listed | "Shuffle" >> ShuffleReferences(config.planner)
        _ = (
            groups
            | "AssignShards" >> beam.FlatMap(assign_shards, beam.pvalue.AsSingleton(planned))
            | "GroupByShard" >> beam.GroupByKey()
            | "InOrder" >> beam.Map(in_order)
            | "Add" >> beam.CombineGlobally(add)
            | "Keep" >> beam.Map(lambda total: counts.write_text(json.dumps(total)))
        )
    seconds = time.perf_counter() - begin
    images, files = json.loads(counts.read_text())
    counts.unlink()
    print(json.dumps({"images": images, "shards": files, "loop_seconds": seconds}))


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
