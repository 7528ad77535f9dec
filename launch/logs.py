"""What of the logs of Beam and its runners reaches stderr."""

from __future__ import annotations

import logging
import re
import sys
import threading


def set_up(*, verbose: bool) -> None:
    """Lets through everything, or only what we do not tell in one line ourselves."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING)
    if verbose:
        return
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    # Beam logs the traceback of what we tell in one line.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    logging.getLogger("apache_beam.runners.dataflow").setLevel(logging.CRITICAL + 1)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_not_of_runners)
    # So does a worker in this process, and prints it; its threads end with one of their own.
    sdk_worker.print = lambda *_, **__: None
    threading.excepthook = lambda _: None
    # And so do worker processes.
    of_beam = SubprocessSDKEnvironment.from_command_string
    SubprocessSDKEnvironment.from_command_string = lambda command_string: of_beam(
        command_string.replace(sdk_worker_main.__name__, "imageshards.launch.quiet_worker")
    )


# Under these names Beam passes on what job servers and workers log, the errors that we tell too.
_OF_RUNNERS = re.compile(r"root$|PrismRunner|SdkWorker|\w+JobServer$")


def _not_of_runners(record: logging.LogRecord) -> bool:
    return not _OF_RUNNERS.match(record.name)
