"""Workers in threads receive whole elements, however long it takes to encode one."""

import time
from collections.abc import Iterable

import apache_beam as beam
import pytest
from apache_beam.coders import Coder, registry
from apache_beam.options.pipeline_options import PipelineOptions

from imageshards.pipeline.job.execution import new_pipeline

FLUSHED = 1.0  # seconds after which Beam flushes a stream by itself


class Number(int):
    """An element that is encoded while the time limit of Beam's streams passes."""


class NumberCoder(Coder):  # type: ignore[misc]
    def encode(self, value: Number) -> bytes:
        time.sleep(1.5 * FLUSHED)
        return b"%d" % value

    def decode(self, encoded: bytes) -> Number:
        return Number(encoded)


@pytest.fixture
def coder():
    registry.register_coder(Number, NumberCoder)
    yield
    registry._coders.pop(Number)


def pairs(numbers: list[int]) -> list[tuple[int, Number]]:
    return [(0, Number(number)) for number in numbers]


def check(pair: tuple[int, Iterable[Number]]) -> None:
    assert sorted(pair[1]) == [7, 8]


@pytest.mark.slow
def test_an_element_is_not_split_while_it_is_written(coder: None):
    arguments = ["--runner=FnApiRunner", "--direct_running_mode=multi_threading"]
    options = PipelineOptions([*arguments, "--direct_num_workers=2"])
    with new_pipeline(options, "") as pipeline:
        flat = beam.FlatMap(pairs).with_output_types(tuple[int, Number])
        groups = pipeline | beam.Create([[7, 8]]) | flat | beam.GroupByKey()
        _ = groups | beam.Map(check)
