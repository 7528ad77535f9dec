"""PTransform `ShuffleReferences`: puts references in a random order, and plans their shards.

A unique random key per element does not shuffle, because a GroupByKey may yield its groups in the
order of their arrival. Here the key *is* the order: references are grouped by the top bits of their
keys, as many as their number requires, and sorted in each group. The counts of the groups give each
group its first rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import apache_beam as beam
import numpy as np

from imageshards.transforms import metrics, storage
from imageshards.transforms.elements import ShardId
from imageshards.transforms.failure import Failures
from imageshards.transforms.grouping import Divide, merged
from imageshards.transforms.records.containers import shard_name
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import BUCKET_BITS, cut
from imageshards.transforms.references.order import sort_group
from imageshards.transforms.references.plan import Plan, Planner
from imageshards.transforms.references.stored import PREFIX, Piece, StoredRefs
from imageshards.transforms.references.tally import Tally

# "auto" needs sizes. If the listing did not report any, this many images of each bucket and split
# are measured, 1,000 or more in all: a random sample, because keys are random.
_SIZED_PER_BUCKET = 4

Group = tuple[int, dict[str, RefBatch]]
"""Number of the group, split -> its references in key order."""


class _ShardIdCoder(beam.coders.Coder):  # type: ignore[misc]
    """Encodes the keys that shards are grouped by; Beam warns if it has to find a coder itself."""

    def encode(self, value: ShardId) -> bytes:
        return json.dumps(astuple(value)).encode()

    def decode(self, encoded: bytes) -> ShardId:
        return ShardId(*json.loads(encoded))

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(ShardId, _ShardIdCoder)


class Shuffled(NamedTuple):
    """Sorted groups, and the plan that is computed from their counts.

    Attributes:
      groups: sorted, in any order.
      plan: a single plan.
    """

    groups: beam.PCollection[Group]
    plan: beam.PCollection[Plan]


class _Divide(Divide):
    """Divides by the keys of the references.

    The references of a bucket are passed on if buckets are small enough to be groups: they are not
    even unpacked.
    """

    def process(
        self, element: tuple[int, RefBatch], sizes: Iterable[Tally]
    ) -> Iterator[tuple[int, RefBatch]]:
        if (bits := self.bits(sizes)) <= BUCKET_BITS:
            bucket, batch = element
            yield bucket >> (BUCKET_BITS - bits), batch
        else:
            yield from super().process(element, sizes)


class _SortGroup(beam.DoFn):  # type: ignore[misc]
    def __init__(self, shuffle: ShuffleReferences) -> None:
        self._measure = shuffle.planner.num_shards.default is None
        self._max_bytes = shuffle.planner.max_bytes
        self._failures = shuffle.failures

    def process(
        self, element: tuple[int, Iterable[RefBatch]]
    ) -> Iterator[Group | beam.pvalue.TaggedOutput]:
        bucket, batches = element
        with self._failures.recording():
            groups, duplicates = sort_group(batches)
        sizes = {split: self._sizes(refs) for split, refs in groups.items()}
        metrics.GROUPS_SORTED.inc()
        yield bucket, groups
        tally = Tally.of(bucket, groups, duplicates, sizes, self._max_bytes)
        yield beam.pvalue.TaggedOutput("tallies", tally)

    def _sizes(self, refs: RefBatch) -> Sequence[int] | np.ndarray:
        """Sizes of the acceptable references, or of a sample of these."""
        acceptable = np.flatnonzero(refs.acceptable(self._max_bytes))
        if not self._measure or (refs.sizes >= 0).any():
            return refs.sizes[acceptable]
        return [storage.size(uri) for uri in refs.take(acceptable[:_SIZED_PER_BUCKET]).uris]


@dataclass
class ShuffleReferences(beam.PTransform):  # type: ignore[misc]
    """Sorts references, drops duplicates, and plans splits, shards and classes.

    Attributes:
      planner: computes the plan.
      failures: where an error that a retry cannot mend is recorded.
      accept: called with the plan before anything else uses it; returns it.
    """

    planner: Planner
    failures: Failures = field(default_factory=Failures)
    accept: Callable[[Plan], Plan] | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def expand(
        self, listed: tuple[beam.PCollection[tuple[int, RefBatch]], beam.PCollection[Tally]]
    ) -> Shuffled:
        """Adds the transform to (batches, tallies), as `ReadReferences` returns them."""
        batches, tallies = listed
        sorted_groups = (
            batches  # (bucket, references)
            | "Divide"
            >> beam.ParDo(_Divide(), merged(tallies, "Sizes", only_sizes=True)).with_output_types(
                tuple[int, RefBatch]
            )  # (group, references)
            | "GroupByKeys" >> beam.GroupByKey()  # (group, [references, ...])
            | "Sort" >> beam.ParDo(_SortGroup(self)).with_outputs("tallies", main="groups")
        )
        all_tallies = (tallies, sorted_groups.tallies) | "Tallies" >> beam.Flatten()
        plan = (
            batches.pipeline
            | "Once" >> beam.Impulse()
            | "Plan"
            >> beam.Map(_plan, merged(all_tallies), self.planner, self.failures, self.accept)
        )  # one plan
        return Shuffled(sorted_groups.groups, plan)


def _plan(
    _: bytes,
    tallies: Iterable[Tally],
    planner: Planner,
    failures: Failures,
    accept: Callable[[Plan], Plan] | None,
) -> Plan:
    with failures.ending():
        plan = planner.plan(Tally.merge(tallies))
    return accept(plan) if accept else plan


def assign_shards(
    group: Group, plan: Plan, folder: str = ""
) -> Iterator[tuple[ShardId, tuple[int, Piece]]]:
    """Cuts a sorted group at the bounds of shards.

    Args:
      group: the references.
      plan: of the build.
      folder: where the references of large shards are stored; empty: they are elements too.

    Yields:
      (shard, (number of the group, references in order)). A shard contains its references in the
      order of their groups.
    """
    number, groups = group
    for name, refs in groups.items():
        split = plan.splits[name]
        first = split.first_ranks[number]
        stores = folder and plan.stores_references(name)
        for index, start, stop in cut(first, len(refs), split.num_shards, split.images):
            shard = plan.shard(name, index)
            piece: Piece = refs[start:stop]
            if stores:
                file = f"{PREFIX}{plan.digest}-{shard_name(shard)}-{number}"
                piece = StoredRefs.store(refs[start:stop], storage.join(folder, file), folder)
            yield shard, (number, piece)
