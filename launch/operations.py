"""Where an operation on a data set runs: in this process, or on the runner of `--runner`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b

from imageshards.launch import logs
from imageshards.launch.load import WORKER_SETTINGS, hidden, load_beam, without_logs
from imageshards.launch.terminal import complain, warn
from imageshards.pipeline.operations.operation import Run, run_here, run_on_beam
from imageshards.pipeline.options.beam_arguments import (
    given_runner,
    ignored_options,
    is_dataflow,
    is_in_process,
    uses_other_machines,
)
from imageshards.pipeline.options.parser import refuse
from imageshards.transforms import storage


@contextmanager
def runs(args: Namespace, uris: Sequence[tuple[str, str]]) -> Iterator[Run]:
    """Yields the function that runs an operation: with the runner of `--runner`, or here without.

    Args:
      args: the parsed command line.
      uris: (argument, value) of the files and folders that workers must be able to reach.

    Raises:
      UsageError: an argument is wrong, or the workers cannot reach a file.
    """
    arguments = list(args.beam_arguments)
    if not arguments:
        yield run_here
        return
    from imageshards.pipeline.options.command_line import check_beam_arguments

    if not given_runner(arguments):
        with without_logs():
            check_beam_arguments(arguments, args.arguments, args.parser)
        if not args.takes_options_of_build:  # those may be of a job that the build submits
            refuse(f"{arguments[0].partition('=')[0]} requires --runner")
        yield run_here
        return
    with ExitStack() as stack:
        if args.own_process:
            load_beam(lean=is_in_process(arguments), resumes=args.resumes)
            logs.set_up(verbose=args.verbose)
        check_beam_arguments(arguments, args.arguments, args.parser)
        has_folder = any(word.partition("=")[0] == "--temp_location" for word in arguments)
        if is_dataflow(arguments):
            from imageshards.launch.dataflow.arguments import check_access, completed_for

            command = args.parser.prog.rpartition(" ")[2]
            if any(argument.startswith("--template_location") for argument in arguments):
                refuse(f"--template_location is an option of build; {command} waits for a job")
            # A second job that writes to the same folder has the same name, and is rejected.
            named = [uri for _, uri in (uris[-1:] if command == "reshard" else uris)]
            name = job_name(command, named)
            arguments = stack.enter_context(completed_for(arguments, uris, name))
            check_access(arguments)
        elif uses_other_machines(arguments) and not has_folder:
            refuse(
                "--temp_location is missing: specify a folder that this machine and all workers "
                "can access, to which the result is written"
            )
        if ignored := ignored_options(arguments):
            warn(ignored)
        if not is_in_process(arguments):
            arguments.append(WORKER_SETTINGS)
        # Beam would import IPython to find out whether this is a notebook.
        stack.enter_context(hidden(("IPython",) if args.own_process else ()))
        yield partial(run_on_beam, beam_arguments=arguments, announce=_announce)


def job_name(command: str, uris: Sequence[str]) -> str:
    """Returns the name of a job, which differs between folders of the same name.

    >>> job_name("verify", ["gs://bucket/2024/birds/"])
    'verify-birds-3eeeba44'
    """
    whole = "\0".join(storage.normalize(uri).rstrip("/") for uri in uris)
    folder = uris[-1].rstrip("/").rpartition("/")[2]
    return f"{command}-{folder[:32]}-{blake2b(whole.encode(), digest_size=4).hexdigest()}"


def _announce(job: str, link: str) -> None:
    complain(f"waiting for job {job}; {link}", 0)
