"""How imageshards works with Airflow's Beam operator: its options, output, and errors."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from nights import DAGS, PYTHON, data

Execute = Callable[..., Any]


@pytest.fixture(scope="module")
def dag_file() -> Any:
    spec = importlib.util.spec_from_file_location("dag_file", DAGS / "imageshards_dag.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def operator(dag_file: Any, tmp_path: Path) -> Callable[..., Any]:
    """operator(options, python) -> the operator of the build task; it writes to tmp_path/out."""

    def make(options: Mapping[str, Any], python: Path | str = PYTHON) -> Any:
        return dag_file.ImageshardsBuildOperator(
            task_id="build",
            runner="FnApiRunner",
            py_interpreter=str(python),
            py_options=["-m", "imageshards.launch.cli"],
            py_file="build",
            pipeline_options={"output": str(tmp_path / "out"), "name": "x", **options},
        )

    return make


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    for number in range(2):
        data("images", tmp_path / f"in{number}", number * 100, 6)
    return [str(tmp_path / "in0"), str(tmp_path / "in1")]


def build_json(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "out/metadata/build.json").read_text())


# Runs imageshards, and logs 70 KiB, which is more than a pipe buffers.
CHATTY = """#!{python} -u
import logging, sys
from imageshards.launch import cli
import imageshards.pipeline.run as module
run = module.run

def chatty(*args, **named):
    summary = run(*args, **named)
    for number in range(700):
        logging.getLogger("chatty").warning("%06d %s", number, 93 * "x")
    return summary

module.run = chatty
import imageshards.pipeline.job.progress as progress
progress._LINE_SECONDS = 0.05  # the build is short
sys.argv[1:] = sys.argv[3:]  # without -m imageshards.launch.cli
cli.entry()
"""


def interpreter(path: Path, text: str) -> Path:
    """Writes a program that replaces Python; it runs `python -c`, which the operator also calls."""
    path.write_text(text.replace(
        "import logging", "import os, sys\nif sys.argv[1] == '-c':\n"
        f"    os.execv({str(PYTHON)!r}, [{str(PYTHON)!r}, *sys.argv[1:]])\nimport logging", 1
    ))  # fmt: skip
    path.chmod(0o755)
    return path


def test_a_long_log_before_the_result_does_not_block_the_operator(
    operator: Execute, images: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The operator reads stdout to its end before stderr, so the result must come last."""
    python = interpreter(tmp_path / "python", CHATTY.format(python=PYTHON))
    thread = threading.Thread(
        target=operator({"input": images}, python).execute, args=({},), daemon=True
    )
    thread.start()
    thread.join(120)
    hangs = thread.is_alive()
    for process in psutil.Process().children(recursive=True):
        process.kill()
    assert not hangs
    assert build_json(tmp_path)["counts"]["records"] == 12
    log = capfd.readouterr().out
    # The task's log shows the progress, then the summary.
    assert re.search(r"imageshards: (listing|\d+ of \d+ shards)", log)
    assert log.index("000699 xxx") < log.index("12 images in 1 shard")


def test_a_result_before_a_long_log_would_block_the_operator():
    """Shows with the provider's own function what the test above prevents."""
    program = (
        "import sys, time; print('result', flush=True); time.sleep(1); "
        "sys.stderr.write('x' * 71680)"
    )
    run = (
        "import logging, sys\n"
        "from airflow.providers.apache.beam.hooks.beam import run_beam_command\n"
        f"run_beam_command([sys.executable, '-c', {program!r}], logging.getLogger('x'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", run], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    try:
        # From here on, the operator and the program wait for each other.
        assert any("result" in line for line in iter(process.stdout.readline, ""))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(10)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_options_may_be_lists_false_or_none(operator: Execute, images: list[str], tmp_path: Path):
    (tmp_path / "in0/class0/notes.txt").write_text("no image")
    operator(
        {
            "input": images, "include_all": False, "splits": None, "num_shards": 3,
            "features_from": ["none"], "dedupe": "none",
        }
    ).execute({})  # fmt: skip
    build = build_json(tmp_path)
    assert build["options"]["input"] == images
    assert (build["counts"]["records"], build["counts"]["passed_over"]) == (12, 1)
    assert len(build["shards"]) == 3


def test_labels_that_the_operator_adds_do_not_replace_those_of_images(
    operator: Execute, images: list[str], tmp_path: Path
):
    """The operator appends --labels=airflow-version=... to the arguments."""
    operator({"input": images, "labels_from": r"regex:/class(\d)/"}).execute({})
    build = build_json(tmp_path)
    assert build["options"]["labels"] == r"regex:/class(\d)/"
    assert build["classes"] == ["0", "1", "2"]


def test_the_error_of_a_failed_build_is_reported(
    operator: Execute, images: list[str], tmp_path: Path
):
    with pytest.raises(AirflowException, match=r"^imageshards: .*no such file or folder$"):
        operator({"input": str(tmp_path / "gone")}).execute({})
    (tmp_path / "in0/class0/bad.jpg").write_bytes(b"no image")
    with pytest.raises(AirflowException, match=r"^imageshards: 1 of 13 images \(7.7%\) was rej"):
        operator({"input": images}).execute({})
    with pytest.raises(AirflowException, match=r"^imageshards: 1 of 13 images"):
        operator({"input": images, "verbose": True}).execute({})


def test_a_task_that_is_killed_leaves_no_process(
    operator: Execute, images: list[str], tmp_path: Path
):
    """As on a timeout: Airflow interrupts execute(), then calls on_kill()."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *" build "*) {PYTHON} -c "import time; time.sleep(600)";; *) '
        f'exec {PYTHON} "$@";; esac\n'
    )
    python.chmod(0o755)
    build = operator({"input": images}, python)
    failed: list[BaseException] = []

    def execute() -> None:
        try:
            build.execute({})
        except AirflowException as error:
            failed.append(error)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60

    def sleeping() -> list[psutil.Process]:
        return [
            process
            for process in psutil.Process().children(recursive=True)
            if process.status() != psutil.STATUS_ZOMBIE
            and "time.sleep(600)" in " ".join(process.cmdline())
        ]

    while not sleeping():
        assert time.monotonic() < deadline
    build.on_kill()
    thread.join(60)
    assert failed
    assert not sleeping()


FORM = {
    "input": ["/in/{date}", "/more"], "output": "/out/{date}", "date": None, "since": None,
    "options": {}, "engine": "local", "template": "",
}  # fmt: skip


def options_of(dag_file: Any, **params: object) -> dict[str, Any]:
    run = SimpleNamespace(data_interval_start=datetime(2026, 11, 2, 23, 30, tzinfo=UTC))
    return dag_file._options({**FORM, **params}, run, "Europe/Berlin", "x")


def test_the_date_of_a_run_is_in_the_time_zone_of_the_team(dag_file: Any):
    assert options_of(dag_file)["output"] == "/out/2026-11-03"
    assert options_of(dag_file, date="2025-01-01")["output"] == "/out/2025-01-01"
    assert options_of(dag_file, output="/out/{time}")["output"] == "/out/20261103T003000"
    assert options_of(dag_file)["input"] == ["/in/2026-11-03", "/more"]
    assert options_of(dag_file, since="2026-11-01")["input"] == [
        "/in/2026-11-01", "/in/2026-11-02", "/in/2026-11-03", "/more",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"options": {"output": "/tmp/x"}}, "options: output cannot be set here"),
        ({"options": {"labels": "dirname"}}, "write labels_from instead of labels"),
        ({"since": "2026-12-01"}, "since: 2026-12-01 is later than the date of the run"),
    ],
)
def test_an_invalid_form_fails_without_a_retry(dag_file: Any, params: dict[str, Any], message: str):
    with pytest.raises(AirflowFailException, match=message):
        options_of(dag_file, **params)


def test_the_request_for_a_flex_template_has_the_options(dag_file: Any):
    options = {
        "input": ["gs://b/1", "gs://b/2"], "labels_from": "dirname", "overwrite": True,
        "enlarge": False, "resize": None, "num_shards": 4, "temp_location": "gs://b/tmp",
    }  # fmt: skip
    environment = {"machineType": "e2-standard-2"}
    params = {"project": "p", "region": "r", "template": "gs://b/t.json"}
    body = dag_file._flex_body("x", params, options, environment)
    assert body["launchParameter"] == {
        "jobName": "x",
        "containerSpecGcsPath": "gs://b/t.json",
        "parameters": {
            "input": "gs://b/1,gs://b/2", "labels": "dirname", "overwrite": "true",
            "num_shards": "4",
        },
        "environment": {"machineType": "e2-standard-2", "tempLocation": "gs://b/tmp"},
    }  # fmt: skip
    for key in params:
        with pytest.raises(AirflowFailException, match=f"{key} is missing"):
            dag_file._flex_body("x", {**params, key: None}, options, {})


def test_job_names_are_valid_for_dataflow(dag_file: Any):
    assert dag_file._job_name("My_Photos-2026-11-01") == "my-photos-2026-11-01"
    assert dag_file._job_name("7days") == "x-7days"
    assert len(dag_file._job_name("x" * 100)) == 63
