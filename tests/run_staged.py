"""Runs a staged pipeline.pb in this process: python run_staged.py FILE.

It replaces the workers of Dataflow, and runs in an environment without the tests.
"""

import sys
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

proto = beam_runner_api_pb2.Pipeline.FromString(Path(sys.argv[1]).read_bytes())
for environment in proto.components.environments.values():
    environment.urn = python_urns.EMBEDDED_PYTHON
    environment.payload = b""
    del environment.dependencies[:]
FnApiRunner().run_via_runner_api(proto, PipelineOptions([])).wait_until_finish()
assert "tensorflow" not in sys.modules
print(sys.modules["imageshards.pipeline.finish"].__file__)
