"""The graph of a build: all of its steps, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton

from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.claim import claim
from imageshards.pipeline.finish import finish
from imageshards.transforms import storage
from imageshards.transforms.choose import ChooseReferences, Chosen
from imageshards.transforms.dedupe import TakePixelsOnce
from imageshards.transforms.elements import ShardId, UsageError
from imageshards.transforms.exclude import ExcludeReferences, Remaining
from imageshards.transforms.inputs.kind import InputKind, ListingOptions
from imageshards.transforms.join_annotations import JoinAnnotations
from imageshards.transforms.merge_facts import MergeFacts
from imageshards.transforms.read import ReadReferences, References
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.stored import Piece
from imageshards.transforms.shards.facts import Fact
from imageshards.transforms.shuffle import Group, ShuffleReferences, assign_shards
from imageshards.transforms.write_beam import EncodeExamples, WriteRejects, WriteSplit
from imageshards.transforms.write_shards import WriteShards


def build(
    root: beam.Pipeline,
    spec: BuildSpec,
    workers: int | None = 1,
    sources: Sequence[InputKind] | None = None,
) -> None:
    """Adds the build of a data set to a pipeline.

    Args:
      root: the pipeline.
      spec: what to build.
      workers: processes that write shards besides the runner's (see `WriteShards`).
      sources: the inputs, if they are already identified.
    """
    inputs = spec.options.inputs.input if sources is None else sources
    references = read(root, inputs, spec, spec.listing)
    _ = references | "Dataset" >> WriteDataset(spec, workers)


@dataclass
class WriteDataset(beam.PTransform):  # type: ignore[misc]
    """Writes a data set: shuffles references, writes shards and all metadata.

    Attributes:
      spec: what to build. Its inputs are ignored.
      workers: processes that write shards besides the runner's (see `WriteShards`).
    """

    spec: BuildSpec
    workers: int | None = 1

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, references: References | Remaining) -> beam.PCollection[None]:
        """Takes the result of `ReadReferences`; yields one None when the data set is complete.

        Raises:
          UsageError: `--exclude` is set, and has not been applied to the references.
        """
        spec = self.spec
        if spec.options.choice.exclude and isinstance(references, References):
            raise UsageError(
                "--exclude is for whole builds: in a pipeline of your own, drop references with "
                "References.apply"
            )
        if spec.options.images.dedupe == "pixels":
            batches = references | "Dedupe" >> TakePixelsOnce(spec.encoder, spec.failures)
            references = references._replace(batches=batches)
        chosen = choose(references, spec)
        groups, planned = chosen | "Shuffle" >> ShuffleReferences(
            spec.planner, spec.failures, partial(claim, spec=spec)
        )
        # groups: (group, split -> sorted references); planned: one plan, which claims the output
        plan = AsSingleton(planned)
        if spec.options.execution.writer == "shard":
            facts = write_shards(groups, plan, spec, self.workers)
        else:
            facts = write_with_beam(groups, plan, spec)
        # facts: (key, value), what the shards hold
        merged = facts | "Facts" >> MergeFacts(spec.layout, spec.failures)  # totals, rejects, leaks
        return (
            groups.pipeline
            | "Once" >> beam.Impulse()
            | "Finish" >> beam.Map(finish, plan, AsIter(merged), spec)
        )


def read(
    root: beam.Pipeline, inputs: Sequence[str | InputKind], spec: BuildSpec, listing: ListingOptions
) -> References | Remaining:
    """Lists the inputs with their annotations, and leaves out what `--exclude` lists."""
    reading = ReadReferences(inputs, spec.annotator, listing, spec.failures)
    references: References = root | "Read" >> reading
    if spec.annotation_sources:
        references = References(
            *references
            | "Annotations"
            >> JoinAnnotations(spec.annotation_sources, spec.annotation_columns, spec.failures)
        )
    lists = spec.options.choice.exclude
    if not lists:
        return references
    uris = list(dict.fromkeys(map(storage.normalize, lists)))
    sources = [source for source in reading.inputs if isinstance(source, InputKind)]
    files = {source.uri: len(source.root) for source in sources if source.is_file and source.root}
    remaining: Remaining = references | "Exclude" >> ExcludeReferences(
        uris, reading.annotator.roots, files, spec.annotator.seed, spec.failures
    )
    return remaining


def choose(references: References | Remaining, spec: BuildSpec) -> References | Remaining | Chosen:
    """Takes some of the references, if options limit their number."""
    if not spec.choice:
        return references
    chosen: Chosen = references | "Choose" >> ChooseReferences(spec.choice, spec.failures)
    return chosen


def write_shards(
    groups: beam.PCollection[Group], plan: AsSingleton, spec: BuildSpec, workers: int | None
) -> beam.PCollection[Fact]:
    """`--writer=shard`: one worker writes each shard, with all records in order."""
    return (
        groups
        | "AssignShards"
        >> beam.FlatMap(assign_shards, plan, spec.layout.state).with_output_types(
            tuple[ShardId, tuple[int, Piece]]
        )
        | "WriteShards"
        >> WriteShards(
            spec.layout,
            spec.encoder,
            spec.settings,
            plan,
            workers,
            failures=spec.failures,
            sha256=spec.computes_sha256,
            retries_rejects=spec.options.output.overwrite,
        )
    )


def write_with_beam(
    groups: beam.PCollection[Group], plan: AsSingleton, spec: BuildSpec
) -> beam.PCollection[Fact]:
    """`--writer=beam`: images are encoded in parallel, and `WriteToTFRecord` writes them."""
    encoded = (
        groups
        | "BySplit" >> beam.FlatMap(_by_split)  # (split, references)
        | "EncodeExamples" >> EncodeExamples(spec.encoder, plan)  # (split, Example)
    )
    splits = spec.beam_splits
    examples = encoded.examples | "Part" >> beam.Partition(
        lambda element, _: splits.index(element[0]), len(splits)
    )
    conversions = AsIter(
        encoded.conversions  # (split, kinds)
        | "CountConversions" >> beam.combiners.Count.PerElement()  # ((split, kinds), records)
    )
    annotations = AsIter(
        encoded.annotations  # ((split, kind), number)
        | "CountAnnotations" >> beam.CombinePerKey(sum)
    )
    facts = [
        part
        | f"Examples_{split}" >> beam.Values()
        | f"Write_{split}"
        >> WriteSplit(
            ShardId(split, 0, spec.shard_counts.of(split) or 1, spec.compression),
            spec.layout,
            spec.schema,
            conversions,
            annotations,
            plan,
            spec.computes_sha256,
        )
        for split, part in zip(splits, examples, strict=True)
    ]
    rejects = (
        encoded.rejects  # (split, reject)
        | "WriteRejects" >> WriteRejects(spec.layout, plan)
    )
    return (*facts, rejects) | "AllFacts" >> beam.Flatten()


def _by_split(group: Group) -> list[tuple[str, RefBatch]]:
    return list(group[1].items())
