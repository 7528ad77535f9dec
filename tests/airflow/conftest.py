"""Airflow in an environment of its own, and imageshards in the project's.

Run with --confcutdir tests/airflow, since nothing of imageshards can be imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nights import Run


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's, on SQLite."""
    from airflow.utils.db import initdb

    initdb()


Runner = Callable[..., Run]


@pytest.fixture
def run(database: None, capfd: pytest.CaptureFixture[str]) -> Runner:
    """run(dag file, **params): one run of its DAG, by dag.test()."""

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
