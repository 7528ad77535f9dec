"""References without files, for tests of their order and of the plan."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from imageshards.transforms.elements import Problem
from imageshards.transforms.references.annotate import Annotator
from imageshards.transforms.references.batch import RefBatch, binary_column
from imageshards.transforms.references.names import Roots
from imageshards.transforms.references.order import partition, sort_group
from imageshards.transforms.references.rules import GroupRule, LabelRule, SplitRule
from imageshards.transforms.references.tally import Tally


def annotator(
    labels: str = "dirname", splits: str = "train=1", groups: str = "uri", base: str = ""
) -> Annotator:
    return Annotator(
        0,
        LabelRule.parse(labels),
        SplitRule.parse(splits),
        GroupRule.parse(groups),
        roots=Roots(base=base),
    )


def listing(uris: list[str], root: str = "/d/", **columns: list[str | None]) -> RefBatch:
    count = len(uris)
    refs = RefBatch.listed(uris, [len(root)] * count, [100] * count, [1] * count)
    return refs.with_texts(columns)


def batch_of(
    uris: list[str],
    keys: list[int] | None = None,
    labels: list[str | None] | None = None,
    splits: list[str] | None = None,
    problems: dict[int, Problem] | None = None,
) -> RefBatch:
    batch = annotator(splits="train=0.5,test=0.5").annotate(listing(uris))
    refs = listing(uris).annotated(
        batch.keys if keys is None else np.array(keys, np.uint64),
        binary_column(labels or batch.labels),
        pa.array(splits or batch.splits, pa.string()),
    )
    return refs.with_problems(problems) if problems else refs


def tally(batch: RefBatch, columns: bool = False) -> Tally:
    source = "column label" if columns else "folder"
    tallies = [Tally(listed=len(batch), label_sources=frozenset([source]))]
    for bucket, part in partition(batch):
        groups, duplicates = sort_group([part])
        sizes = {split: refs.sizes[refs.acceptable(1 << 62)] for split, refs in groups.items()}
        tallies.append(Tally.of(bucket, groups, duplicates, sizes))
    return Tally.merge(tallies)
