"""`imageshards build`: runs a build, or submits it to a service."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from imageshards.launch import logs
from imageshards.launch.load import WORKER_SETTINGS, hidden, load_beam, without_logs
from imageshards.launch.process import advice
from imageshards.launch.terminal import complain, show, warn
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.options.beam_arguments import (
    beam_labels,
    ignored_options,
    is_dataflow,
    is_in_process,
    is_local_runner,
    with_runner,
)
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.command_line import (
    check_beam_arguments,
    check_stray,
    command_options_from,
    options_from,
    waits,
    worker_processes,
)
from imageshards.pipeline.options.groups.running import CommandOptions
from imageshards.transforms.references.rules import misspelled_splits

if TYPE_CHECKING:
    from imageshards.pipeline.job.submission import Submission
    from imageshards.pipeline.job.summary import Summary


def run(args: Namespace, begin: float) -> int:
    """Runs the command and returns its exit code.

    Args:
      args: the parsed command line.
      begin: `time.perf_counter()` at the start of the command.
    """
    if args.beam_arguments and not (args.input and args.output):
        check_stray(args.beam_arguments, args.arguments)
        # The missing option may be a misspelled one.
        with without_logs():
            check_beam_arguments(args.beam_arguments, args.arguments)
    options: BuildOptions = options_from(args)
    command = command_options_from(args)
    spec = BuildSpec(options)  # reports wrong combinations before Beam is loaded
    for name, similar in misspelled_splits(spec.annotator.splits).items():
        warn(f"--splits has a split {name!r}: if it is misspelled, write {similar!r}")
    beam_arguments = with_runner([*args.beam_arguments, *beam_labels(args.labels)])
    workers = worker_processes(options, command, beam_arguments)
    wait = waits(command, beam_arguments)
    with _completed(beam_arguments, spec) as complete:
        if command.dry_run:
            return _forecast(args, options, command, beam_arguments)
        if workers != 1 and options.execution.writer == "shard":
            from imageshards.transforms.shards.workers import pool_problem, start_server

            if not pool_problem():
                start_server()  # the server process starts while Beam is loaded
        if args.own_process:
            load_beam(lean=is_in_process(complete))
            logs.set_up(verbose=command.verbose)
        check_beam_arguments(complete, args.arguments)
        _warn(spec, complete)
        if not is_in_process(complete):
            complete = [*complete, WORKER_SETTINGS]
        # Beam would import IPython to find out whether this is a notebook.
        with hidden(("IPython",) if args.own_process else ()):
            return _launch(options, command, complete, workers, begin if wait else None)


def _forecast(
    args: Namespace, options: BuildOptions, command: CommandOptions, beam_arguments: list[str]
) -> int:
    """Prints what the build would do; this machine lists the inputs, whatever the runner is."""
    if args.own_process:
        load_beam(lean=True)
        logs.set_up(verbose=command.verbose)
    check_beam_arguments(args.beam_arguments, args.arguments)
    from imageshards.launch.fleet.estimate import estimate
    from imageshards.pipeline.job.forecast import forecast

    remote = is_dataflow(args.beam_arguments)
    with hidden(("IPython",) if args.own_process else ()):
        try:
            found = forecast(options, reads_local_files=not remote)
            check = BuildSpec(options).encoder.check
            found = replace(found, estimate=estimate(found, beam_arguments, check))
            show(found, json=command.json, quiet=command.quiet)
            return int(bool(found.would_fail))
        except JobError as error:
            if command.verbose:
                print(error.details, file=sys.stderr)
            return complain(str(error), 1)


@contextmanager
def _completed(beam_arguments: list[str], spec: BuildSpec) -> Iterator[list[str]]:
    """Yields Beam's arguments; for Dataflow, missing ones that can be derived are added."""
    if not is_dataflow(beam_arguments):
        yield beam_arguments
        return
    from imageshards.launch.dataflow.arguments import check_access, completed

    with completed(beam_arguments, spec) as complete:
        check_access(complete)
        yield complete


def _warn(spec: BuildSpec, beam_arguments: list[str]) -> None:
    from imageshards.pipeline.claim import other_files_in

    output, options = spec.options.output, spec.options
    if others := [] if output.overwrite else other_files_in(spec.layout):
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        what = f"{others[0]}{more} will stay beside the data set"
        warn(f"--output {output.output} is not empty: {what}")
    if options.execution.writer == "beam" and is_local_runner(beam_arguments):
        warn(
            "--writer beam on the local runner needs about 6.5 times the size of the data set in "
            "memory; --writer shard does not"
        )
    if ignored := ignored_options(beam_arguments):
        warn(ignored)


def _launch(
    options: BuildOptions,
    command: CommandOptions,
    beam_arguments: list[str],
    workers: int | None,
    begin: float | None,
) -> int:
    """Runs the build and prints the result; without `begin` submits it and does not wait."""
    from imageshards.pipeline.run import run, submit

    submitted: list[Submission] = []

    def announce(job: Submission) -> None:
        submitted.append(job)
        print(f"imageshards: waiting for job {job.job}; {job.link}", file=sys.stderr, flush=True)

    result: Summary | Submission
    try:
        if begin is None:
            result = submit(options, beam_arguments)
        else:
            result = run(
                options,
                beam_arguments,
                workers=workers,
                show_progress=not command.quiet,
                begin=begin,
                announce=announce if is_dataflow(beam_arguments) else None,
            )
    except JobError as error:
        if command.verbose:
            print(error.details, file=sys.stderr)
        return complain(f"{error}{advice(str(error))}", 1)
    except KeyboardInterrupt:
        if not submitted:
            raise
        return complain(f"interrupted; the job continues: {submitted[0].link}", 130)
    return show(result, json=command.json, quiet=command.quiet)
