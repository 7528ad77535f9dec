"""The DAG with the engine Dataflow; the service and Cloud Storage are servers on localhost.

The service runs the job: it reads the staged pipeline, and runs it in the environment of
imageshards.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from dataflow_server import JOB_ID, Service, serve
from google.api_core.client_options import ClientOptions
from google.cloud import storage
from nights import PYTHON, ROOT, Run, data, write_dag

Runner = Callable[..., Run]
DAY = "2026-11-01"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables of clients of a server with images in gs://bucket/photos/DAY."""
    folder = tmp_path_factory.mktemp("gcs")
    data("images", folder / "in/photos" / DAY, 0, 30)
    credentials = folder / "credentials.json"
    credentials.write_text(json.dumps({
        "type": "authorized_user", "token": "t", "refresh_token": "r", "client_id": "c",
        "client_secret": "s", "expiry": "2999-01-01T00:00:00Z",
    }))  # fmt: skip
    server = subprocess.Popen(
        [str(PYTHON), str(ROOT / "tests/airflow/data.py"), "gcs", str(folder / "in/photos")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin
    assert server.stdout
    yield {
        **json.loads(server.stdout.readline()), "GOOGLE_APPLICATION_CREDENTIALS": str(credentials)
    }  # fmt: skip
    server.stdin.close()
    server.wait(30)


@pytest.fixture
def bucket(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> storage.Bucket:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = {"api_endpoint": environment["STORAGE_EMULATOR_HOST"]}
    return storage.Client(project="project", client_options=options).bucket("bucket")


@dataclass
class Dataflow(Service):
    """The service with Flex Templates: it runs the command of the launcher's image."""

    work: Path = Path()
    bucket: Any = None
    ran: list[str] = field(default_factory=list)
    launched: dict[str, Any] = field(default_factory=dict)

    def answer(self, request: str, body: bytes) -> tuple[int, dict[str, Any]]:
        launch = "POST /v1b3/projects/my-project/locations/us-central1/flexTemplates:launch"
        if not request.startswith(launch):
            return super().answer(request, body)
        self.launched = json.loads(body)["launchParameter"]
        parameters = {
            **self.launched["parameters"], "runner": "DataflowRunner", "project": "my-project",
            "region": "us-central1", "job_name": self.launched["jobName"],
            "temp_location": self.launched["environment"]["tempLocation"],
            "dataflow_endpoint": self.endpoint,
        }  # fmt: skip
        self.python(
            "-m", "imageshards.launch.dataflow.flex",
            *(f"--{name}={value}" for name, value in parameters.items()),
        )  # fmt: skip
        return 200, {"job": self._known()}

    def run_staged(self, job: dict[str, Any]) -> str:
        url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        blob = self.bucket.blob(url.removeprefix("gs://bucket/"))
        (self.work / "pipeline.pb").write_bytes(blob.download_as_bytes())
        self.python(str(ROOT / "tests/run_staged.py"), str(self.work / "pipeline.pb"))
        self.ran.append(job["name"])
        return "JOB_STATE_DONE"

    def python(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(PYTHON), *arguments], capture_output=True, text=True, cwd=self.work, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def dataflow(
    bucket: storage.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Dataflow]:
    from airflow.providers.google.cloud.hooks.dataflow import DataflowHook

    service = Dataflow(work=tmp_path, bucket=bucket)
    service.end = service.run_staged
    with serve(service):
        monkeypatch.setattr(
            DataflowHook,
            "get_client_options",
            lambda *_: ClientOptions(api_endpoint=service.endpoint),
        )
        yield service


def dag(name: str, endpoint: str, **more: object) -> Path:
    options = {
        "splits": "train=0.7,test=0.3", "num_shards": 2, "labels_from": "dirname",
        "dataflow_endpoint": endpoint,
    }  # fmt: skip
    arguments = {
        "input": "gs://bucket/photos/{date}", "since": "2026-10-30", "retries": 0,
        "output": f"gs://bucket/{name}/{{date}}", "options": options, "engine": "dataflow",
        "dataflow": {"region": "us-central1", "temp_location": "gs://bucket/tmp"}, **more,
    }  # fmt: skip
    return write_dag(name, ", ".join(f"{key}={value!r}" for key, value in arguments.items()))


def test_a_dataflow_job_is_built_verified_and_published(
    dataflow: Dataflow, bucket: storage.Bucket, run: Runner
):
    done = run(dag("in_the_cloud", dataflow.endpoint), date=DAY)
    assert done.states == {
        "check": "success", "build": "success", "build_flex_template": "skipped",
        "verify": "success", "publish": "success",
    }, done.error()  # fmt: skip
    # The operator found the job's id in the log, and waited until the job was done.
    assert done.xcom("build", "dataflow_job_id") == JOB_ID
    assert dataflow.ran == [f"in-the-cloud-{DAY}"]
    assert any(request.startswith("GET /v1b3/") for request in dataflow.requests)
    labels = dataflow.job["labels"]
    assert labels["airflow-version"].startswith("v3-")
    pointer = json.loads(bucket.blob("in_the_cloud/latest").download_as_bytes())
    assert (pointer["uri"], pointer["records"]) == (f"gs://bucket/in_the_cloud/{DAY}", 30)
    again = run(dag("in_the_cloud", dataflow.endpoint), date=DAY)
    assert set(again.states.values()) == {"skipped"}


def test_the_error_of_a_failed_job_is_reported(dataflow: Dataflow, run: Runner):
    dataflow.end = lambda job: "JOB_STATE_FAILED"
    dataflow.error = (
        "Traceback (most recent call last):\n"
        "imageshards.transforms.elements.BuildError: 9 of 9 images were rejected "
        "[while running 'Finish-ptransform-7']\n"
    )
    failed = run(dag("failing_job", dataflow.endpoint), date=DAY)
    assert failed.states["build"] == "failed"
    assert failed.error().endswith(f": {JOB_ID}: 9 of 9 images were rejected")


@pytest.fixture
def job_service(dataflow: Dataflow, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The gRPC service that triggers poll: google.dataflow.v1beta3.JobsV1Beta3."""
    from airflow.providers.google.cloud.hooks.dataflow import AsyncDataflowHook
    from google.cloud.dataflow_v1beta3 import GetJobRequest, Job, JobState
    from google.cloud.dataflow_v1beta3.services.jobs_v1_beta3.transports import (
        JobsV1Beta3GrpcAsyncIOTransport,
    )

    def get_job(request: GetJobRequest, _: grpc.ServicerContext) -> Job:
        state = dataflow._known()["currentState"]
        return Job(id=request.job_id, current_state=JobState[state])

    handler = grpc.unary_unary_rpc_method_handler(
        get_job,
        request_deserializer=GetJobRequest.deserialize,
        response_serializer=Job.serialize,
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    service = "google.dataflow.v1beta3.JobsV1Beta3"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"GetJob": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    async def initialize_client(_: object, client_class: Any) -> Any:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return client_class(transport=JobsV1Beta3GrpcAsyncIOTransport(channel=channel))

    monkeypatch.setattr(AsyncDataflowHook, "initialize_client", initialize_client)
    yield
    server.stop(None)


def test_a_flex_template_is_launched_with_the_options_of_the_form(
    dataflow: Dataflow, job_service: None, bucket: storage.Bucket, run: Runner
):
    template = {
        "project": "my-project", "region": "us-central1", "temp_location": "gs://bucket/tmp",
        "template": "gs://bucket/template.json", "environment": {"maxWorkers": 3},
    }  # fmt: skip
    path = dag("flex", dataflow.endpoint, engine="flex_template", dataflow=template)
    done = run(path, date=DAY)
    assert done.states == {
        "check": "success", "build": "skipped", "build_flex_template": "success",
        "verify": "success", "publish": "success",
    }, done.error()  # fmt: skip
    assert dataflow.launched["containerSpecGcsPath"] == "gs://bucket/template.json"
    assert dataflow.launched["environment"]["maxWorkers"] == 3
    assert dataflow.ran == [f"flex-{DAY}"]
    pointer = json.loads(bucket.blob("flex/latest").download_as_bytes())
    assert (pointer["uri"], pointer["records"]) == (f"gs://bucket/flex/{DAY}", 30)
