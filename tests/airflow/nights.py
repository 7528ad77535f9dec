"""Helpers for DAG files, images, data sets, and the results of DAG runs.

Importing this module configures Airflow, so import it before Airflow.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "launch/airflow/dags"
PYTHON = ROOT / ".venv/bin/python"
HOME = Path(tempfile.mkdtemp(prefix="imageshards-airflow-"))

os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(HOME / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT="300",  # for busy machines
    AIRFLOW__LOGGING__COLORED_CONSOLE_LOG="False",
    AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT="google-cloud-platform://?project=my-project",
    IMAGESHARDS_PYTHON=str(PYTHON),
)


def write_dag(dag_id: str, arguments: str, folder: Path = HOME / "dags") -> Path:
    """Writes a copy of the DAG file in which DATASETS has one entry; returns its path."""
    text, edits = re.subn(
        r"^DATASETS: .*?^}\n",
        lambda _: (
            f"DATASETS = {{{dag_id!r}: dict(start_date=datetime(2026, 1, 1), {arguments})}}\n"
        ),
        (DAGS / "imageshards_dag.py").read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    assert edits == 1
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dag_id}.py"
    path.write_text(text)
    return path


def data(*arguments: object) -> str:
    """Runs data.py; returns its output."""
    command = [str(PYTHON), str(ROOT / "tests/airflow/data.py"), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def splits(output: Path) -> dict[str, str]:
    """Image -> its split in a data set."""
    return json.loads(data("names", output))


def data_set(output: Path) -> dict[str, bytes]:
    """Path below the folder -> content, of every file of a data set."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file()
    }


class Run:
    """The result of a DAG run."""

    def __init__(self, dag_run: Any, log: str) -> None:
        instances = dag_run.get_task_instances()
        self.state = str(dag_run.state)
        self.states = {ti.task_id: str(ti.state) for ti in instances}
        self.tries = {ti.task_id: ti.try_number for ti in instances}
        self.log = log
        self._run = dag_run

    def xcom(self, task_id: str, key: str) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.settings import Session
        from sqlalchemy import select

        row = Session().scalar(
            select(XComModel).where(
                XComModel.run_id == self._run.run_id,
                XComModel.task_id == task_id,
                XComModel.key == key,
            )
        )
        return XComModel.deserialize_value(row)

    def asset_event(self) -> dict[str, Any] | None:
        """The extra data of the asset event that the run emitted, or None."""
        from airflow.models.asset import AssetEvent
        from airflow.settings import Session
        from sqlalchemy import select

        return Session().scalar(
            select(AssetEvent.extra).where(AssetEvent.source_run_id == self._run.run_id)
        )

    def error(self) -> str:
        """The last error line in the log; empty without one."""
        errors = re.findall(r"^[\w.]+(?:Exception|Error): .*$", self.log, re.MULTILINE)
        return errors[-1] if errors else ""
