"""Fixtures for tests that run in Airflow's environment, which does not have imageshards.

Run with --confcutdir tests/airflow: the other conftest.py imports imageshards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nights import Run


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's database, on SQLite."""
    from airflow.utils.db import initdb

    initdb()


Runner = Callable[..., Run]


@pytest.fixture
def run(database: None, capfd: pytest.CaptureFixture[str]) -> Runner:
    """run(dag file, **params) -> Run: runs the DAG once with dag.test()."""

    def do(path: Path, **params: Any) -> Run:
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(dag_folder=str(path))
        assert not bag.import_errors
        (dag,) = bag.dags.values()
        capfd.readouterr()
        dag_run = dag.test(run_conf=params)
        captured = capfd.readouterr()
        return Run(dag_run, captured.out + captured.err)

    return do
