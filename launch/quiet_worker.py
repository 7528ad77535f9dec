"""A worker process of the local runner that imports `worker_settings` and prints no tracebacks.

The command prints the worker's error in one line.
"""

from __future__ import annotations

import sys

from apache_beam.runners.worker import sdk_worker, sdk_worker_main

if __name__ == "__main__":
    # The local runner passes no options to its workers, such as --beam_plugins.
    import imageshards.launch.worker_settings  # noqa: F401

    sdk_worker.print = lambda *_, **__: None
    sdk_worker_main.main(sys.argv)
