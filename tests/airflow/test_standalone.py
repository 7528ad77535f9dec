"""`airflow standalone` on SQLite: scheduled runs, a DAG that waits for the asset, and a backfill.

If IMAGESHARDS_KEEP_AIRFLOW=PATH is set, the URL of Airflow is written to PATH at the end, and it
keeps running until the file PATH.done exists.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from nights import DAGS, data, data_set, splits, write_dag

pytestmark = pytest.mark.standalone
DEADLINE = 420
OPTIONS = {"splits": "train=0.7,test=0.3", "num_shards": 2, "labels_from": "dirname"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Standalone:
    """A running `airflow standalone`, with a client for its REST API."""

    def __init__(self, home: Path, *, log: Path) -> None:
        self.port = free_port()
        self.home = home
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__PARALLELISM": "4",
            # Seconds that SQLite waits while another process writes.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{self.port}/execution/",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__API__BASE_URL": f"http://localhost:{self.port}",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        }
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            ["airflow", "standalone"], env=self.environment, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip

    def get(self, path: str, patch: dict[str, object] | None = None) -> Any:
        """Sends a GET request, or a PATCH request with a body."""
        request = urllib.request.Request(
            f"http://localhost:{self.port}/api/v2/{path}",
            method="PATCH" if patch else "GET",
            data=json.dumps(patch).encode() if patch else None,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def start(self, *dag_ids: str) -> None:
        """Unpauses DAGs as soon as all parts of Airflow are healthy."""

        def healthy() -> bool:
            parts = self.get("monitor/health")
            names = ("metadatabase", "scheduler", "dag_processor")
            return all(parts[name]["status"] == "healthy" for name in names)

        self.wait(healthy)
        for dag_id in dag_ids:
            self.wait(lambda dag_id=dag_id: self.get(f"dags/{dag_id}"))
            self.get(f"dags/{dag_id}", patch={"is_paused": False})

    def wait(self, what: Callable[[], Any]) -> Any:
        """Waits until a function returns a true value, and returns that."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "airflow standalone has ended"
            try:
                if found := what():
                    return found
            except (OSError, ValueError):
                pass  # not listening yet
            time.sleep(1)
        raise AssertionError(f"not in {DEADLINE} s")

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The successful runs of a DAG, in order."""
        runs = self.get(f"dags/{dag_id}/dagRuns?order_by=run_after&state=success&limit=50")
        return list(runs["dag_runs"])

    def states(self, run: dict[str, Any]) -> dict[str, str]:
        found = self.get(f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances")
        return {task["task_id"]: task["state"] for task in found["task_instances"]}

    def log(self, run: dict[str, Any], task_id: str) -> str:
        folder = self.home / "logs" / f"dag_id={run['dag_id']}" / f"run_id={run['dag_run_id']}"
        lines = (folder / f"task_id={task_id}" / "attempt=1.log").read_text().splitlines()
        return "\n".join(json.loads(line)["event"] for line in lines)

    def command(self, *arguments: str) -> None:
        """Runs a command; retries it while the database is locked."""

        def done() -> bool:
            end = subprocess.run(
                ["airflow", *arguments],
                env=self.environment, check=False, capture_output=True, text=True,
            )  # fmt: skip
            assert end.returncode == 0 or "database is locked" in end.stderr, end.stderr
            return end.returncode == 0

        self.wait(done)

    def stop(self) -> None:
        processes = [self._process, *psutil.Process(self._process.pid).children(recursive=True)]
        for process in processes:
            try:
                process.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(processes[1:], 20)
        for process in alive:
            process.kill()
        self._process.wait(20)
        self._log.close()


def text(arguments: dict[str, object]) -> str:
    assignments = [f"{name}={value!r}" for name, value in arguments.items()]
    return ", ".join([*assignments, "retry_delay=timedelta(seconds=5)"])


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[Standalone]:
    home = tmp_path / "airflow"
    home.mkdir()
    arguments = {
        "input": f"{tmp_path}/in", "output": f"{tmp_path}/out/{{time}}", "schedule": "* * * * *",
        "options": OPTIONS, "keep_versions": 14,
    }  # fmt: skip
    write_dag("photos", text(arguments), home / "dags")
    nightly = {
        "input": f"{tmp_path}/by_date/{{date}}", "output": f"{tmp_path}/nights/{{date}}",
        "since": "2026-10-01", "schedule": "0 0 * * *", "options": OPTIONS,
    }  # fmt: skip
    write_dag("nightly", text(nightly), home / "dags")
    shutil.copy(DAGS / "train.py", home / "dags")
    data("images", tmp_path / "in", 0, 30)
    for day in range(3):
        data("images", tmp_path / "by_date" / f"2026-10-0{day + 1}", 1000 * day, 20)
    # 30 images on the first day, 20 on each of the others.
    data("images", tmp_path / "by_date/2026-10-01", 5000, 10)
    running = Standalone(home, log=tmp_path / "standalone.log")
    try:
        yield running
        if keep := os.environ.get("IMAGESHARDS_KEEP_AIRFLOW"):
            Path(keep).write_text(f"http://localhost:{running.port}")
            running.wait(lambda: Path(f"{keep}.done").exists())
    except BaseException:
        print((tmp_path / "standalone.log").read_text()[-5000:])
        raise
    finally:
        running.stop()


def test_the_schedule_builds_publishes_and_triggers_training(airflow: Standalone, tmp_path: Path):
    airflow.start("train", "nightly", "photos")
    latest = tmp_path / "out/latest"
    airflow.wait(latest.exists)
    first = json.loads(latest.read_text())
    data("images", tmp_path / "in", 100, 10)  # the run of the next minute includes them
    second = airflow.wait(lambda: (now := json.loads(latest.read_text())) != first and now)
    assert (first["records"], second["records"]) == (30, 40)
    before = splits(Path(first["uri"]))
    assert before.items() <= splits(Path(second["uri"])).items()

    def built() -> list[dict[str, Any]]:
        runs = airflow.runs("photos")
        return [run for run in runs if airflow.states(run)["publish"] == "success"]

    one, two = airflow.wait(lambda: len(built()) >= 2 and built()[:2])
    assert {one["run_type"], two["run_type"]} == {"scheduled"}
    # The task's log.
    log = airflow.log(one, "build")
    assert "30 images in 4 shards" in log
    assert "0 rejects" in log
    # A minute without new images.
    skipped = airflow.wait(
        lambda: [r for r in airflow.runs("photos") if airflow.states(r)["check"] == "skipped"]
    )
    assert "nothing to do: " in airflow.log(skipped[0], "check")
    # The asset triggers one training for each version, with its URI.
    trained = airflow.wait(lambda: len(runs := airflow.runs("train")) >= 2 and runs)
    assert [run["run_type"] for run in trained] == ["asset_triggered"] * 2
    for run, version in zip(trained, (first, second), strict=True):
        assert f"training on {version['uri']} (train " in airflow.log(run, "train")

    # Airflow's backfill command builds earlier dates.
    airflow.command(
        "backfill", "create", "--dag-id", "nightly", "--max-active-runs", "1",
        "--from-date", "2026-10-01", "--to-date", "2026-10-03",
    )  # fmt: skip
    nights = [tmp_path / "nights" / f"2026-10-0{day}" for day in (1, 2, 3)]
    airflow.wait(lambda: all((night / "metadata/published.json").exists() for night in nights))
    found = [splits(night) for night in nights]
    assert [len(night) for night in found] == [30, 50, 70]
    assert found[0].items() <= found[1].items() <= found[2].items()
    assert data_set(nights[0])
