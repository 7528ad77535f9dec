"""The project that pays for requests reaches the workers of a runner."""

import json
import subprocess
import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from conftest import Command

from imageshards.pipeline.job import access

WORKER = """
import sys
from apache_beam.runners.worker.sdk_worker_main import create_harness
create_harness({"PIPELINE_OPTIONS": sys.argv[1], "CONTROL_API_SERVICE_DESCRIPTOR": ""}, True)
from imageshards.transforms.storage import gcs_auth
print(gcs_auth.billing_project())
"""


@pytest.mark.slow
def test_a_worker_process_bills_the_project_of_the_job():
    options = PipelineOptions(["--beam_plugins=json"])
    access.carry("payer", options)
    given = options.get_all_options(drop_default=True)
    assert "json" in given["beam_plugins"]
    text = json.dumps({f"beam:option:{name}:v1": value for name, value in given.items()})
    done = subprocess.run(
        [sys.executable, "-c", WORKER, text], capture_output=True, text=True, check=False
    )
    assert done.stdout == "payer\n", done.stderr


def test_a_job_without_a_project_has_no_further_options():
    options = PipelineOptions([])
    access.carry("", options)
    assert options.get_all_options(drop_default=True) == {}


def test_the_writer_of_beam_cannot_name_a_project(command: Command):
    code, _, errors = command(
        "build", "--input=gs://b/photos", "--output=gs://b/out", "--num_shards=1", "--writer=beam",
        "--billing_project=payer",
    )  # fmt: skip
    assert code == 2
    assert "--billing_project requires --writer shard" in errors
