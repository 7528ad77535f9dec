"""A worker process of the local runner that prints no tracebacks.

The command prints the worker's error in one line. The retries are those of the command: only the
workers of a fleet, which import `worker_settings`, wait for a bucket to scale.
"""

from __future__ import annotations

import sys

from imageshards.launch.load import without_logs
from imageshards.transforms.images.silence import silence_pillow
from imageshards.transforms.references.batch import use_system_allocator

with without_logs():
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main

if __name__ == "__main__":
    silence_pillow()
    use_system_allocator()
    sdk_worker.print = lambda *_, **__: None
    sdk_worker_main.main(sys.argv)
