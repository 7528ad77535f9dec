"""The DAG files as the scheduler parses them; no task runs."""

import json
import os
import subprocess
import sys

import pytest
from nights import DAGS

PARSE = """
import json, sys
for name in ("apache_beam", "tensorflow", "imageshards"):
    sys.modules[name] = None  # as if they were not installed
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
print(json.dumps({
    "errors": bag.import_errors, "warnings": bag.captured_warnings, "dags": sorted(bag.dags),
}))
"""


def test_every_dag_imports_without_error_and_warning():
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(DAGS)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["dags"] == ["photos", "train"]
    assert (found["errors"], found["warnings"]) == ({}, {})
    assert str(DAGS) not in done.stderr, "a warning names one of the DAG files"


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
        ("options", {"--num_shards": 3}), ("engine", "spark"), ("overwrite", "yes"),
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
