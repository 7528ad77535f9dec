"""The whole graph on one screen: the pipeline's table of contents."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton

from imageshards.pipeline.claim import claim
from imageshards.pipeline.config import Config
from imageshards.pipeline.finish import finish
from imageshards.transforms import storage
from imageshards.transforms.dedupe import TakePixelsOnce
from imageshards.transforms.elements import ShardId
from imageshards.transforms.read import ReadReferences
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.plan import Plan
from imageshards.transforms.shuffle import Group, ShuffleReferences, assign_shards
from imageshards.transforms.write_beam import EncodeExamples, WriteRejects, WriteSplit
from imageshards.transforms.write_shards import WriteShards, Written


def build(root: beam.Pipeline, config: Config, workers: int | None = 1) -> None:
    """Adds the build of a data set to a pipeline.

    Args:
      root: the pipeline.
      config: what to build.
      workers: processes that write shards, beside those of the runner (see `WriteShards`).
    """
    listed = root | "Read" >> ReadReferences(
        [storage.normalize(place) for place in config.input],  # a worker may be in another folder
        config.annotator,
        config.uri_column,
        config.include_all,
        exclude=config.layout.root,
        scratch=config.layout.state,
        keys=config.record_keys,
        unit=config.unit,
    )  # (bucket, references); tallies
    if config.dedupe == "pixels":
        batches = listed.batches | "Dedupe" >> TakePixelsOnce(config.encoder)
        listed = listed._replace(batches=batches)
    groups, planned = listed | "Shuffle" >> ShuffleReferences(config.planner)
    # groups: (bucket, split -> sorted references); planned: one plan
    plan = AsSingleton(planned | "Claim" >> beam.Map(claim, config).with_output_types(Plan))
    if config.writer == "shard":
        written = write_shards(groups, plan, config, workers)
    else:
        written = write_with_beam(groups, plan, config)
    # written: shard reports; reject reports
    (
        root
        | "Once" >> beam.Impulse()
        | "Finish"
        >> beam.Map(finish, plan, AsIter(written.reports), AsIter(written.rejects), config)
    )


def write_shards(
    groups: beam.PCollection[Group], plan: AsSingleton, config: Config, workers: int | None
) -> Written:
    """`--writer=shard`: every shard is written by one owner, in exact order."""
    written: Written = (
        groups
        | "AssignShards" >> beam.FlatMap(assign_shards, plan)  # (shard, (bucket, references))
        | "WriteShards"
        >> WriteShards(config.layout, config.encoder, config.settings, plan, workers)
    )
    return written


def write_with_beam(groups: beam.PCollection[Group], plan: AsSingleton, config: Config) -> Written:
    """`--writer=beam`: images are encoded in parallel and written by `WriteToTFRecord`."""
    encoded = (
        groups
        | "BySplit" >> beam.FlatMap(_by_split)  # (split, references)
        | "EncodeExamples" >> EncodeExamples(config.encoder, plan)  # (split, Example)
    )
    splits = config.beam_splits
    examples = encoded.examples | "Part" >> beam.Partition(
        lambda element, _: splits.index(element[0]), len(splits)
    )
    conversions = AsIter(
        encoded.conversions  # (split, kinds)
        | "CountConversions" >> beam.combiners.Count.PerElement()  # ((split, kinds), records)
    )
    reports = [
        part
        | f"Examples_{split}" >> beam.Values()
        | f"Write_{split}"
        >> WriteSplit(
            ShardId(split, 0, config.shard_counts.of(split) or 1, config.compression_of_shards),
            config.layout,
            config.schema,
            conversions,
        )
        for split, part in zip(splits, examples, strict=True)
    ]
    rejects = (
        encoded.rejects  # (split, reject)
        | "GroupRejects" >> beam.GroupByKey()
        | "WriteRejects" >> beam.ParDo(WriteRejects(config.layout))
    )
    return Written(reports | "Reports" >> beam.Flatten(), rejects)


def _by_split(group: Group) -> list[tuple[str, RefBatch]]:
    return list(group[1].items())
