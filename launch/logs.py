"""Selects the logs of Beam and its runners that reach stderr, in the command's own process."""

from __future__ import annotations

import logging
import re
import sys
import threading


def set_up(*, verbose: bool) -> None:
    """Configures logging for a process that runs one command.

    Without `verbose`, Beam's tracebacks are suppressed: the command prints errors in one line.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING)
    if verbose:
        return
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    logging.getLogger("apache_beam.runners.dataflow").setLevel(logging.CRITICAL + 1)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_of_a_runner)
    # A worker in this process prints tracebacks, and its threads end with them.
    sdk_worker.print = lambda *_, **__: None
    threading.excepthook = lambda _: None
    # Worker processes print them too.
    original = SubprocessSDKEnvironment.from_command_string
    SubprocessSDKEnvironment.from_command_string = lambda command_string: original(
        command_string.replace(sdk_worker_main.__name__, "imageshards.launch.quiet_worker")
    )


# Beam relays the logs of job servers and workers, including their tracebacks, by these loggers.
_RUNNERS = re.compile(r"root$|PrismRunner|SdkWorker|\w+JobServer$")


def _is_not_of_a_runner(record: logging.LogRecord) -> bool:
    return not _RUNNERS.match(record.name)
