"""run(config, beam_arguments) -> Summary: one build, from its options to its result."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from imageshards.pipeline import graph
from imageshards.pipeline.config import AUTO, Config
from imageshards.pipeline.finish import check_output
from imageshards.pipeline.progress import Progress
from imageshards.pipeline.report import by_count, human_bytes
from imageshards.pipeline.submission import Submission, submission_of
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError, counted
from imageshards.transforms.images.convert import EXIF_KEPT
from imageshards.transforms.inputs.sources import check_source, first_records, identify
from imageshards.transforms.inputs.tfrecords import sample
from imageshards.transforms.records.columns import columns_of
from imageshards.transforms.records.schemas import IMAGENET, SCHEMAS, SLIM
from imageshards.transforms.records.tfrecord import parse_shard_name


class JobError(Exception):
    """A job that failed after it had begun: one line for its user, and the whole for --verbose."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Summary:
    """What a build came to.

    Attributes:
      output: the folder of the data set.
      records: images in it.
      bytes: of all shards.
      shards: files.
      resumed: how many of them an earlier run had finished.
      rejects: images left out, each a line of rejects.jsonl.
      errors: error type -> rejects.
      duplicates: references that named a URI again.
      passed_over: files that were no images by their name.
      leaks: images that are in more than one split.
      converted: images that are not the files as they were.
      conversions: kind of what was done to an image -> images.
      splits: name -> (records, shards).
      notes: what the build decided by itself, and why.
      seconds: wall time, start-up included.
      noun: what a record is: "image" or "text".
    """

    output: str
    records: int
    bytes: int
    shards: int
    resumed: int
    rejects: int
    errors: dict[str, int]
    duplicates: int
    passed_over: int
    leaks: int
    converted: int
    conversions: dict[str, int]
    splits: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    seconds: float
    noun: str = "image"

    def to_json(self) -> str:
        """One line for machines."""
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 3)})

    def _errors(self) -> str:
        return ", ".join(f"{count:,} {error}" for error, count in by_count(self.errors))

    def __str__(self) -> str:
        splits = ", ".join(
            f"{name} {records:,} in {shards:,}" for name, (records, shards) in self.splits.items()
        )
        lines = [
            f"{self.output}",
            f"  {counted(self.records, self.noun)} in {counted(self.shards, 'shard')}, "
            f"{human_bytes(self.bytes)}"
            + (f"  ({splits})" if len(self.splits) > 1 else f"  ({next(iter(self.splits))})"),
            f"  {counted(self.rejects, 'reject')}"
            + (f" ({self._errors()}; metadata/rejects.jsonl)" if self.rejects else "")
            + f", {counted(self.duplicates, 'duplicate')}, "
            f"{counted(self.passed_over, 'file')} passed over",
        ]
        if self.leaks:
            are = "is" if self.leaks == 1 else "are"
            remedy = "; --dedupe pixels takes each once" if self.noun == "image" else ""
            lines.append(
                f"  LEAK: {counted(self.leaks, self.noun)} {are} in more than one split "
                f"(metadata/leaks.jsonl){remedy}"
            )
        kinds = dict(self.conversions)
        kept = kinds.pop(EXIF_KEPT, 0)
        if kinds:
            done = ", ".join(f"{count:,} {kind}" for kind, count in by_count(kinds))
            lines.append(f"  {self.converted:,} converted: {done}")
        if kept:
            lines.append(f"  {kept:,} with an EXIF orientation that readers have to apply")
        lines += [f"  {note}" for note in self.notes]
        if self.resumed == self.shards:
            lines.append("  nothing to do: every shard was there already")
        else:
            were = "was" if self.resumed == 1 else "were"
            done = (
                f"{counted(self.resumed, 'shard')} {were} there already; the rest "
                if self.resumed
                else ""
            )
            rate = (
                ""
                if self.resumed
                else f", {self.records / max(self.seconds, 1e-9):,.0f} {self.noun}s/s"
            )
            lines.append(f"  {done}in {self.seconds:.1f} s{rate}; look at metadata/report.html")
        return "\n".join(lines)


def run(
    config: Config,
    beam_arguments: Sequence[str],
    *,
    workers: int | None = 1,
    show_progress: bool = True,
    begin: float | None = None,
    announce: Callable[[Submission], None] | None = None,
) -> Summary:
    """Builds a data set and waits for it.

    Args:
      config: what to build.
      beam_arguments: Beam's own options, `--runner` among them.
      workers: processes that write shards beside those of the runner; None: as many as pay for
        their start. More than one need a `if __name__ == "__main__"` in the script that calls this.
      show_progress: on stderr.
      begin: `time.perf_counter()` at the start of what is timed; now, if None.
      announce: for a runner that hands the job to a service: is told of it when that has taken it.

    Raises:
      BuildError: it could not begin.
      UsageError: Beam refuses its options.
      JobError: it had begun, and failed.
    """
    begin = time.perf_counter() if begin is None else begin
    config = _checked(config)
    options = _pipeline_options(beam_arguments)
    job = None
    try:
        if announce:
            result = _start(config, options, workers)
            job = submission_of(result, options, config.layout.root)
            if job:
                announce(job)
            with Progress(config.layout, enabled=show_progress, noun=config.schema.noun):
                state = result.wait_until_finish()
            if state != PipelineState.DONE:
                raise JobEnded(state)
        else:
            with Progress(config.layout, enabled=show_progress, noun=config.schema.noun):
                _wait(_start(config, options, workers))
    except UsageError:
        raise
    except Exception as error:
        raise _job_error(error, job) from error
    with storage.open_read(config.layout.build) as file:
        build = json.load(file)
    return _summary(config, build, _resumed(config), time.perf_counter() - begin)


def submit(config: Config, beam_arguments: Sequence[str]) -> Submission:
    """Hands the build of a data set to a service, and returns. All else is done in the graph.

    Args:
      config: what to build.
      beam_arguments: Beam's own options, a `--runner` that does not block among them.

    Raises:
      BuildError: it could not begin.
      UsageError: Beam refuses its options.
      JobError: the service did not take it.
    """
    config = _checked(config)
    options = _pipeline_options(beam_arguments)
    try:
        job = submission_of(_start(config, options, 1), options, config.layout.root)
    except UsageError:
        raise
    except Exception as error:
        raise _job_error(error) from error
    if not job:
        raise JobError("the runner tells no id of the job: use --wait")
    return job


def _checked(config: Config) -> Config:
    """The config, after all that can be told of inputs and output before a job begins."""
    config = _with_other_features(config)
    check_output(config)
    config.planner  # noqa: B018 - reads the class names
    for text in config.input:
        source = identify(text, config.unit)
        if not config.unit and storage.is_local(source.uri):
            annotator = config.annotator
            check_source(
                source,
                config.uri_column,
                annotator.required_columns,
                annotator.optional_columns,
                annotator.feature_columns,
            )
    return config


class _Options(PipelineOptions):  # type: ignore[misc]
    """Makes each view once: Beam looks at them a hundred times, and each is a parser of its own.

    That is 40 ms of the second that a small build takes.
    """

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        # All views share the values; only what is parsed stands apart.
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def _pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    return _Options(list(arguments))


_INVALID = "Pipeline has validations errors: "


def _start(config: Config, options: PipelineOptions, workers: int | None) -> Any:
    """Builds the graph and runs it: to its end here, or until a service has taken it."""
    try:
        pipeline = beam.Pipeline(options=options)
    except ValueError as error:
        if str(error).startswith(_INVALID):
            problems = str(error).removeprefix(_INVALID).split("\n")
            raise UsageError("; ".join(filter(None, problems))) from error
        raise
    graph.build(pipeline, config, workers)
    return pipeline.run()


def _wait(result: PipelineResult) -> None:
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        # A cluster would go on with the job. A server of our own may have ended by the signal.
        with suppress(Exception):
            result.cancel()
        raise


def _with_other_features(config: Config) -> Config:
    """Tells which features `auto` stands for: those of TFRecord inputs that are not ours.

    Raises:
      UsageError: TFRecord inputs have not what --features_from names, or what cannot be a feature.
    """
    if not config.features_from or config.unit:
        return config
    files = [file for text in config.input if (file := first_records(identify(text)))]
    all_records = len(files) == len(config.input)
    rows = [sample(file) for file in files]
    if config.features_from != (AUTO,):
        if all_records:
            _check_columns(config, chain.from_iterable(rows), files)
        return config
    if not all_records:
        return replace(config, features_from=())
    keys = config.record_keys
    schema = SCHEMAS[config.features]
    # What is told of the image in the record need not be true of what is written.
    told = [*schema.features, *(SLIM.features if schema is SLIM else IMAGENET.features)]
    ours = {feature.key for feature in told if not feature.is_open}
    left_out = {*ours, keys.image, keys.label, keys.name}
    columns = columns_of(
        (
            {key: values for key, values in row.items() if key not in left_out}
            for row in chain.from_iterable(rows)
        ),
        lists={feature.key for feature in schema.features if feature.is_open},
    )
    try:
        return replace(config, features_from=tuple(columns))
    except UsageError as error:
        raise UsageError(f"{error}; --features_from none leaves the others out") from error


def _check_columns(config: Config, rows: Iterable[Mapping[str, object]], files: list[str]) -> None:
    found = set(chain.from_iterable(rows))
    for column in config.annotator.feature_columns:
        if found and column not in found:
            raise UsageError(
                f"--features_from: no feature {column!r} in {files[0]}; its first records have "
                f"{', '.join(sorted(found))}"
            )


def _resumed(config: Config) -> int:
    """Shards that an earlier run had finished: older than the plan, which every run writes."""
    stamps = {entry.name: entry.changed for entry in storage.entries_in(config.layout.state)}
    plan = stamps.get(config.layout.plan.rpartition("/")[2], 0)
    return sum(
        name.endswith(".json")
        and parse_shard_name(name.removesuffix(".json")) is not None
        and stamp < plan
        for name, stamp in stamps.items()
    )


def _summary(config: Config, build: dict[str, Any], resumed: int, seconds: float) -> Summary:
    counts = build["counts"]
    return Summary(
        output=config.layout.root,
        records=counts["records"],
        bytes=counts["bytes"],
        shards=len(build["shards"]),
        resumed=resumed,
        rejects=counts["rejects"],
        errors=build["rejects"],
        duplicates=counts["duplicates"],
        passed_over=counts["passed_over"],
        leaks=counts["leaks"],
        converted=counts["converted"],
        conversions=build["conversions"],
        splits={
            name: (split["records"], split["shards"]) for name, split in build["splits"].items()
        },
        notes=tuple(build["notes"]),
        seconds=seconds,
        noun=config.schema.noun,
    )


_WHILE_RUNNING = re.compile(r"\s*\[while running .*$", re.DOTALL)
# The local runner's words, and those of Flink.
_WORKER_DIED = re.compile(r"Channel closed prematurely|Process died with exit code")
_OURS = re.compile(r"(elements\.BuildError|protocol\.(StoreError|NoFilesystem))$")
_CAUSE = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")


class JobEnded(Exception):
    """A service says that the job came to another end than its own."""


_AT_DATAFLOW = re.compile(r"Dataflow pipeline failed\. State: (\w+), Error:\n(.*)", re.DOTALL)


def _job_error(error: Exception, job: Submission | None = None) -> JobError:
    """The cause of a failed job.

    The in-process runner raises what a worker raised; others hand over its traceback as a text.
    """
    details = "".join(traceback.format_exception(error))
    where = f"; {job.link}" if job and job.link else ""
    if isinstance(error, BuildError):
        return JobError(_WHILE_RUNNING.sub("", str(error)), details)
    state, told = _told(error)
    if state != PipelineState.FAILED:
        return JobError(f"the job was {state.lower()}{where}", details)
    lines = [line.strip() for line in (told or details).splitlines()]
    for line in lines:
        name, _, message = line.partition(": ")
        if _OURS.search(name) and message:
            return JobError(_WHILE_RUNNING.sub("", message) + where, details)
    if any("remote job server jar" in line for line in lines):
        return JobError(
            "there is no job server: name one by --job_endpoint=HOST:PORT, or its jar and the "
            "cluster by --flink_job_server_jar and --flink_master (make flink starts all of it)",
            details,
        )
    if any(_WORKER_DIED.search(line) for line in lines):
        return JobError(
            "a worker process was killed, most likely for want of memory: the same command again "
            f"does the rest{where}",
            details,
        )
    causes = [line for line in lines if _CAUSE.match(line)]
    if causes and "KeyboardInterrupt" in causes[-1]:
        raise KeyboardInterrupt
    if causes:
        cause = _WHILE_RUNNING.sub("", causes[-1])
    else:
        cause = " ".join((told or f"{type(error).__name__}: {error}").split())
    return JobError(f"the job failed: {cause}{where} (--verbose shows where)", details)


def _told(error: Exception) -> tuple[str, str]:
    """What a service says of a job's end: its state, and the text of its last error."""
    if isinstance(error, JobEnded):
        return str(error), ""
    if found := _AT_DATAFLOW.match(str(error)):
        return found[1], "no reason is given" if found[2] == "None" else found[2]
    return PipelineState.FAILED, ""
