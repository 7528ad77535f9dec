"""The graph of an operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import apache_beam as beam

from imageshards.pipeline.operations.operation import Operation, explained, write_outcome


def add_operation(root: beam.Pipeline, operation: Operation[Any, Any], outcome: str) -> None:
    """Adds an operation to a pipeline.

    Args:
      root: the pipeline.
      operation: the operation.
      outcome: URI of the file to which its outcome is written.
    """
    parts = root | "Once" >> beam.Impulse() | "Parts" >> beam.FlatMap(_parts, operation)  # part
    results = []
    for division in range(operation.divisions + 1):
        is_last = division == operation.divisions
        processed = (
            parts
            | f"Distribute{division or ''}" >> beam.Reshuffle()
            | f"Process{division or ''}"
            >> beam.ParDo(_Process(operation.undivided() if is_last else operation)).with_outputs(
                "parts", main="results"
            )
        )  # result; parts: of large parts
        results.append(processed.results)
        parts = processed.parts
    _ = (
        results
        | "Results" >> beam.Flatten()
        | "Merge" >> beam.CombineGlobally(_Merge(operation))
        | "Finish" >> beam.Map(_finish, operation, outcome)
    )


def _parts(_: bytes, operation: Operation[Any, Any]) -> Iterator[Any]:
    with explained():
        yield from operation.parts()


class _Process(beam.DoFn):  # type: ignore[misc]
    def __init__(self, operation: Operation[Any, Any]) -> None:
        self._operation = operation

    def setup(self) -> None:
        self._context = ExitStack()
        self._process = self._context.enter_context(self._operation.worker())

    def process(self, part: Any) -> Iterator[Any]:
        with explained():
            result = self._process(part)
        for rest in self._operation.rest(result):
            yield beam.pvalue.TaggedOutput("parts", rest)
        yield result

    def teardown(self) -> None:
        self._context.close()


class _Merge(beam.CombineFn):  # type: ignore[misc]
    def __init__(self, operation: Operation[Any, Any]) -> None:
        self._operation = operation

    def create_accumulator(self) -> Any:
        return self._operation.empty()

    def add_input(self, accumulator: Any, element: Any) -> Any:
        accumulator.merge(element)
        return accumulator

    def merge_accumulators(self, accumulators: Any) -> Any:
        merged = self._operation.empty()
        for accumulator in accumulators:
            merged.merge(accumulator)
        return merged

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


def _finish(result: Any, operation: Operation[Any, Any], outcome: str) -> None:
    with explained():
        found = operation.finish(result)
    write_outcome(outcome, found)
