"""The DAG files as the scheduler parses them; no task runs."""

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from nights import DAGS, PYTHON, data, write_dag

PARSE = """
import json, sys
for name in ("apache_beam", "tensorflow", "imageshards", *sys.argv[2:]):
    sys.modules[name] = None  # as if they were not installed
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors, "warnings": bag.captured_warnings, "dags": sorted(bag.dags),
}))
"""


IMAGE = "us-central1-docker.pkg.dev/p/images/imageshards-command:0.1.0"
KUBERNETES = "airflow.providers.cncf.kubernetes.operators.pod"


def in_pods(folder: Path, retries: int = 3, **pod: str) -> Path:
    """Writes a DAG file of which the commands run in pods, as in Cloud Composer."""
    pod = {"namespace": "composer-user-workloads", **pod}
    data_set = f"input={str(folder / 'in')!r}, output='{folder}/out/{{date}}', retries={retries}"
    return write_dag("pods", f"{data_set}, image={IMAGE!r}, pod={pod}")


@pytest.mark.parametrize("place", ["an environment on the worker", "pods"])
def test_every_dag_imports_without_error_and_warning(place: str, tmp_path: Path):
    # The provider of pods is not required where there are none.
    absent, path, dags = [KUBERNETES], DAGS, ["photos", "train"]
    if place == "pods":
        absent, path, dags = [], in_pods(tmp_path), ["pods"]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(path), *absent],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["errors"], found["warnings"]) == ({}, {})
    assert found["dags"] == dags
    assert str(path) not in done.stderr, "a warning names one of the DAG files"


@pytest.fixture(scope="module")
def dags():
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(DAGS)).dags


def test_tasks_are_documented_and_retried(dags):
    photos = dags["photos"]
    assert photos.max_active_runs == 1
    assert photos.catchup is False
    assert photos.owner == "data"
    assert "imageshards" in photos.tags
    assert photos.doc_md.strip()
    assert set(photos.task_dict) == {"check", "build", "build_flex_template", "verify", "publish"}
    for task in photos.tasks:
        assert task.retries == 3
        assert task.retry_exponential_backoff
        assert task.max_retry_delay is not None
        assert task.execution_timeout is not None
        assert task.doc_md
    assert [asset.name for asset in photos.task_dict["publish"].outlets] == ["photos"]
    assert photos.task_dict["build_flex_template"].deferrable
    assert [asset.name for asset in dags["train"].timetable.asset_condition.objects] == ["photos"]


def test_every_field_of_the_trigger_form_is_described_and_valid(dags):
    params = dags["photos"].params
    for name in params:
        param = params.get_param(name)
        assert param.description, name
        assert param.schema.get("type"), name
        assert param.schema.get("section"), name
        default = param.resolve()  # raises an error if it is invalid
        # The form submits null for an empty text, so that an empty default could never be chosen.
        assert default != "", name
    assert params.get_param("engine").schema["enum"] == ["local", "dataflow", "flex_template"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", "one"), ("input", []), ("date", "yesterday"), ("since", "2026-13-01"),
        ("output", "/data/{day}"), ("output", "relative/{date}"), ("keep_versions", -1),
        ("options", {"--num_shards": 3}), ("options", {"check": "fast"}),
        ("options", {"quality": 101}), ("engine", "spark"), ("overwrite", "yes"),
    ],
)  # fmt: skip
def test_the_form_rejects_invalid_values(dags, name: str, value: object):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        dags["photos"].params.get_param(name).resolve(value)


def test_a_serialized_dag_has_the_same_tasks_and_params(dags):
    """The scheduler and the web server get DAGs in this form."""
    from airflow.serialization.serialized_objects import DagSerialization

    assert dags
    for dag in dags.values():
        restored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        assert restored.dag_id == dag.dag_id
        assert restored.params.dump() == dag.params.dump()
        assert {task.task_id: task.downstream_task_ids for task in restored.tasks} == {
            task.task_id: task.downstream_task_ids for task in dag.tasks
        }
        assert {task.task_id: task.retries for task in restored.tasks} == {
            task.task_id: task.retries for task in dag.tasks
        }


@pytest.fixture
def pods(tmp_path: Path):
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(in_pods(tmp_path))).dags["pods"]


def test_a_dag_with_an_image_has_the_same_tasks(dags, pods):
    def graph(dag: Any) -> dict[str, Any]:
        return {task.task_id: task.downstream_task_ids for task in dag.tasks}

    assert graph(pods) == graph(dags["photos"])
    assert pods.task_dict["build"].image == IMAGE
    assert pods.task_dict["build"].retries == 3


def test_the_command_of_a_pod_prints_and_returns_the_result(pods, tmp_path: Path):
    """Runs the pod's shell command here, with the folder of results below tmp_path."""
    data("images", tmp_path / "in", 0, 6)
    for folder in ("bin", "xcom"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin/imageshards"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -m imageshards.launch.cli "$@"\n')
    program.chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            part.replace("/airflow/xcom", shlex.quote(str(tmp_path / "xcom")))
            for part in pods.task_dict["build"].cmds
        ]
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": path},
        )  # fmt: skip

    done = run("build", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--num_shards=2")
    assert done.returncode == 0, done.stderr
    result = (tmp_path / "xcom/return.json").read_text()
    assert result == done.stdout
    assert json.loads(result)["records"] == 6
    done = run("build", f"--input={tmp_path}/none", f"--output={tmp_path}/out2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("no such file or folder")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A Kubernetes API that has no pods and refuses new ones: its config file, and the new pods."""
    received: list[dict[str, Any]] = []

    class Api(BaseHTTPRequestHandler):
        def respond(self, code: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.respond(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})

        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.respond(403, {"kind": "Status", "code": 403, "message": "exceeded quota"})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    one = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [one],
        "contexts": [context], "users": [{"name": "c", "user": {"token": "t"}}],
    }  # fmt: skip
    (tmp_path / "kube.json").write_text(json.dumps(config))
    yield tmp_path / "kube.json", received
    server.shutdown()
    server.server_close()


def test_a_command_of_a_task_is_a_pod_of_the_image(run, cluster, tmp_path: Path):
    config, received = cluster
    done = run(in_pods(tmp_path, retries=0, config_file=str(config)))
    assert done.states["check"] == "failed"
    assert "exceeded quota" in done.log
    pod = received[0]
    assert pod["metadata"]["namespace"] == "composer-user-workloads"
    main, sidecar = pod["spec"]["containers"]
    assert main["image"] == IMAGE
    assert main["args"][:2] == ["fingerprint", "--skip_missing"]
    assert f"--input={tmp_path}/in" in main["args"]
    assert sidecar["name"] == "airflow-xcom-sidecar"
    assert [mount["mountPath"] for mount in main["volumeMounts"]] == ["/airflow/xcom"]
