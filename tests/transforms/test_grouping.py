"""Tallies of many groups reach the plan as few, each with the labels once."""

from collections.abc import Iterable

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from imageshards.transforms.grouping import merged
from imageshards.transforms.references.tally import Tally

GROUPS = 500
THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]


def tally_of(group: int) -> Tally:
    labels = frozenset({"cat", "dog", f"rare{group % 7}"})
    return Tally({("train", group): 3}, labels=labels, listed=3, ref_bytes=group)


def summary(_: bytes, tallies: Iterable[Tally]) -> tuple[bool, Tally]:
    found = list(tallies)
    return len(found) <= 64, Tally.merge(found)


@pytest.mark.parametrize("only_sizes", [False, True])
def test_tallies_are_merged_where_several_workers_read_them(only_sizes: bool):
    every = Tally.merge(map(tally_of, range(GROUPS)))
    if only_sizes:
        every = Tally.merge([Tally(listed=every.listed, ref_bytes=every.ref_bytes)])
    with beam.Pipeline("FnApiRunner", PipelineOptions(THREADS)) as root:
        tallies = root | beam.Create(range(GROUPS)) | beam.Map(tally_of)
        found = root | beam.Impulse() | beam.Map(summary, merged(tallies, "M", only_sizes))
        assert_that(found, equal_to([(True, every)]))
