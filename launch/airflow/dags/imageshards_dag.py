"""Airflow DAGs that make data sets of images on a schedule: check, build, verify, publish.

Copy this file into your DAGs folder, and edit DATASETS; nothing below it needs to change.
It is parsed without Beam, TensorFlow or imageshards: what they do is done by the interpreter of an
environment of imageshards' own, which the environment variable IMAGESHARDS_PYTHON names.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import psutil
from airflow.providers.apache.beam.hooks.beam import BeamHook, beam_options_to_args
from airflow.providers.apache.beam.operators.beam import BeamRunPythonPipelineOperator
from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, TriggerRule, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

# DAG -> the arguments of `dataset_dag`, which explains them.
DATASETS: dict[str, dict[str, Any]] = {
    "photos": {
        # Photographs arrive in a folder for each date; {date} is the date that a run is for.
        "input": "/data/photos/{date}",
        "since": "2026-01-01",
        "output": "/data/imageshards/photos/{date}",
        "schedule": "0 2 * * *",
        "start_date": datetime(2026, 1, 1),
        "options": {"splits": "train=0.9,test=0.1", "labels_from": "dirname"},
        "keep_versions": 14,
        "owner": "data",
        # On Google Cloud, with gs:// URIs above:
        # "engine": "dataflow",
        # "dataflow": {"project": "...", "region": "us-central1", "temp_location": "gs://.../tmp"},
    },
}

PYTHON = os.environ.get("IMAGESHARDS_PYTHON", "/opt/imageshards/bin/python")
_MODULE = "imageshards.launch.cli"
_RUNNERS = {"local": "FnApiRunner", "dataflow": "DataflowRunner"}
# What the DAG itself says; `labels` is taken by the operator for those of the job.
_TAKEN = ("input", "output", "overwrite", "runner", "job_name", "project", "region", "labels")


def dataset_dag(
    dag_id: str,
    *,
    input: str | Sequence[str],
    output: str,
    start_date: datetime,
    schedule: str | None = "0 2 * * *",
    timezone: str = "UTC",
    since: str | None = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    engine: str = "local",
    dataflow: Mapping[str, Any] | None = None,
    keep_versions: int = 14,
    verify_records: int = 0,
    owner: str = "data",
    tags: Sequence[str] = (),
    retries: int = 3,
    retry_delay: timedelta = timedelta(minutes=5),
    execution_timeout: timedelta = timedelta(hours=12),
    python: str = PYTHON,
    gcp_conn_id: str = "google_cloud_default",
    catchup: bool = False,
) -> DAG:
    """Makes the DAG. What is said here is the default of each run; the Trigger form may differ.

    Args:
      dag_id: of the DAG and, unless `name` is told, of the data set and the asset.
      input: what `imageshards build --input` takes; `{date}` stands for the date of the run.
      output: the folder of a version, one for each run: `{date}` or, where there are more runs
        than one a day, `{time}` must be in it. The pointer `latest` stands beside it.
      start_date: of the schedule.
      schedule: a cron expression, or None; a run takes the interval that ends when it starts.
      timezone: of the schedule and of `{date}`.
      since: with `{date}` in the input, all dates from this one to the run's are taken.
      name: of the data set and the asset that publishing it emits.
      options: further options of `imageshards build` and of Beam, without the dashes; `labels` is
        called `labels_from` here.
      engine: `local`, `dataflow` or `flex_template`.
      dataflow: `project`, `region`, `temp_location`, `template` (of a Flex Template), and
        `environment`: of a Flex Template's job, as Dataflow's API has it.
      keep_versions: how many versions stay; 0: all.
      verify_records: how many records are verified; 0: every one.
      owner: whom to ask.
      tags: of the DAG.
      retries: of a task that failed.
      retry_delay: before the first of them; it doubles each time, up to an hour.
      execution_timeout: of a task.
      python: the interpreter of imageshards' environment.
      gcp_conn_id: Airflow's connection to Google Cloud.
      catchup: run what was missed since `start_date`.
    """
    name = name or dag_id
    dataflow = dict(dataflow or {})
    environment = dataflow.pop("environment", {})
    asset = Asset(name)
    with DAG(
        dag_id,
        schedule=CronDataIntervalTimetable(schedule, timezone=timezone) if schedule else None,
        start_date=start_date,
        catchup=catchup,
        max_active_runs=1,
        tags=["imageshards", *tags],
        doc_md=_DOC,
        params=_params(
            input, output, since, options, engine, dataflow, keep_versions, verify_records
        ),
        default_args={
            "owner": owner,
            "retries": retries,
            "retry_delay": retry_delay,
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(hours=1),
            "execution_timeout": execution_timeout,
        },
    ) as dag:

        @task.branch(doc_md="Lists the inputs. Skips the run where there is nothing to build.")
        def check(**context: Any) -> str:
            params, ti = context["params"], context["ti"]
            options = _options(params, context["dag_run"], timezone, name)
            found = _imageshards(
                python, "fingerprint", "--skip_missing", *beam_options_to_args(options)
            )
            _decide(found, params)
            options["input"] = found["inputs"]
            # What is not published, nobody reads: the rest of a failed build is in the way of
            # none that has other inputs by now. The same build is resumed all the same.
            options["overwrite"] = True
            if params["engine"] != "local" and params["temp_location"]:
                options["temp_location"] = params["temp_location"]
            ti.xcom_push("fingerprint", found["digest"])
            ti.xcom_push("files", found["files"])
            ti.xcom_push("output", found["output"])
            ti.xcom_push("options", options)
            job_name = _job_name(f"{dag_id}-{found['version']}")
            ti.xcom_push("job_name", job_name)
            ti.xcom_push("runner", _RUNNERS.get(params["engine"], ""))
            if params["engine"] != "flex_template":
                return "build"
            ti.xcom_push("body", _flex_body(job_name, params, options, environment))
            return "build_flex_template"

        checked = check()
        built = [
            ImageshardsBuildOperator(
                task_id="build",
                doc_md="`imageshards build`. A second try takes up what the first one finished.",
                runner=checked["runner"],
                py_interpreter=python,
                py_options=["-m", _MODULE],
                py_file="build",
                pipeline_options=checked["options"],
                dataflow_config={
                    # The service refuses a second job of this name beside the first.
                    "job_name": "{{ ti.xcom_pull('check', key='job_name') }}",
                    "append_job_name": False,
                    "project_id": "{{ params.project or '' }}",
                    "location": "{{ params.region or '' }}",
                    "gcp_conn_id": gcp_conn_id,
                },
                gcp_conn_id=gcp_conn_id,
            ),
            DataflowStartFlexTemplateOperator(
                task_id="build_flex_template",
                doc_md="`imageshards build` as a Flex Template; waits without holding a worker.",
                body=checked["body"],
                project_id="{{ params.project or '' }}",
                location="{{ params.region or '' }}",
                gcp_conn_id=gcp_conn_id,
                append_job_name=False,
                deferrable=True,
            ),
        ]

        @task(
            multiple_outputs=True,
            trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
            doc_md="Reads every record, or a sample. XCom: `rejects`, `report`, ...",
        )
        def verify(**context: Any) -> dict[str, Any]:
            output = context["ti"].xcom_pull("check", key="output")
            sample = f"--sample={context['params']['verify_records']}"
            return _imageshards(python, "verify", output, sample)

        @task(
            multiple_outputs=True,
            outlets=[asset],
            # Two runs of a backfill must not switch the pointer at the same time.
            max_active_tis_per_dag=1,
            doc_md="Switches the pointer `latest`, deletes old versions, emits the asset.",
        )
        def publish(**context: Any) -> dict[str, Any]:
            ti = context["ti"]
            published = _imageshards(
                python,
                "publish",
                ti.xcom_pull("check", key="output"),
                f"--keep_versions={context['params']['keep_versions']}",
                f"--fingerprint={ti.xcom_pull('check', key='fingerprint')}",
            )
            context["outlet_events"][asset].extra = published
            return published

        checked >> built >> verify() >> publish()
    return dag


def _params(
    input: str | Sequence[str],
    output: str,
    since: str | None,
    options: Mapping[str, Any] | None,
    engine: str,
    dataflow: Mapping[str, Any],
    keep_versions: int,
    verify_records: int,
) -> dict[str, Param]:
    """The Trigger form."""
    a_date = {"type": ["null", "string"], "format": "date"}
    goes_in, comes_out, how = "What goes in", "What comes out", "How it is done"
    return {
        "input": Param(
            [input] if isinstance(input, str) else list(input),
            "Folders, patterns, archives or manifests, one a line: absolute paths or gs:// URIs. "
            "{date} stands for the date of the run.",
            type="array", items={"type": "string", "minLength": 1}, minItems=1, section=goes_in,
        ),
        "date": Param(
            None, "The date of the run. Empty: that on which its data interval begins.",
            **a_date, section=goes_in,
        ),
        "since": Param(
            since,
            "With {date} in the inputs: take every date from this one to the run's. Dates "
            "without images are left out. Empty: the run's date alone.",
            **a_date, section=goes_in,
        ),
        "allow_empty": Param(
            False, "Skip a run that finds no image at all, rather than fail.",
            type="boolean", section=goes_in,
        ),
        "output": Param(
            output,
            "Folder of the version, with {date} or {time} in it. latest stands beside it.",
            type="string", pattern=r"^(/|[a-z][a-z0-9+.-]*://).+\{(date|time)\}", section=comes_out,
        ),
        "keep_versions": Param(
            keep_versions, "How many versions stay; 0: all.",
            type="integer", minimum=0, section=comes_out,
        ),
        "overwrite": Param(
            False,
            "Build although nothing changed, or although this version is published: who reads it "
            "meanwhile finds it incomplete.",
            type="boolean", section=comes_out,
        ),
        "options": Param(
            dict(options or {}),
            "Further options of imageshards build and of Beam, without dashes, such as "
            '{"num_shards": 64, "splits": "train=0.9,test=0.1"}.',
            type="object", propertyNames={"pattern": "^[a-z][a-z0-9_]*$"}, section=how,
        ),
        "verify_records": Param(
            verify_records, "How many records are read back; 0: every one.",
            type="integer", minimum=0, section=how,
        ),
        "engine": Param(
            engine,
            "local: on the Airflow worker; dataflow: a job that the worker submits and waits for; "
            "flex_template: a job from a template, waited for by the triggerer.",
            type="string", enum=["local", "dataflow", "flex_template"], section=how,
        ),
        **{
            key: Param(dataflow.get(key), text, type=["null", "string"], section="Dataflow")
            for key, text in (
                ("project", "Google Cloud project. dataflow, empty: that of the connection."),
                ("region", "Region of the job, such as us-central1."),
                ("temp_location", "A gs:// folder for what Dataflow lays down meanwhile."),
                ("template", "gs:// URI of the Flex Template's specification."),
            )
        },
    }  # fmt: skip


def _options(params: Mapping[str, Any], run: Any, timezone: str, name: str) -> dict[str, Any]:
    """The options of `imageshards build` that a run means."""
    taken = [key for key in params["options"] if key in _TAKEN]
    if taken:
        raise AirflowFailException(
            f"options: {taken[0]} has a field of its own"
            + (", labels_from" if taken[0] == "labels" else "")
        )
    # Of a run without an interval, as a trigger without a logical date makes.
    moment = run.data_interval_start or run.logical_date or run.run_after
    local = moment.astimezone(ZoneInfo(timezone))
    day = date.fromisoformat(params["date"]) if params["date"] else local.date()
    texts = {"{date}": day.isoformat(), "{time}": local.strftime("%Y%m%dT%H%M%S")}
    return {
        "name": name,
        **params["options"],
        "input": [
            _filled(text, {**texts, "{date}": one.isoformat()})
            for text in params["input"]
            for one in _days(text, params["since"], day)
        ],
        "output": _filled(params["output"], texts),
    }


def _days(text: str, since: str | None, day: date) -> list[date]:
    if not since or "{date}" not in text:
        return [day]
    first = date.fromisoformat(since)
    if first > day:
        raise AirflowFailException(f"since {first} is later than the date of the run, {day}")
    return [first + timedelta(days=number) for number in range((day - first).days + 1)]


def _filled(text: str, texts: Mapping[str, str]) -> str:
    for placeholder, value in texts.items():
        text = text.replace(placeholder, value)
    return text


def _decide(found: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Skips or fails where there is nothing to build."""
    state, version = found["state"], found["version"]
    if state == "empty":
        message = f"no image in {', '.join(params['input'])}"
        if params["allow_empty"]:
            _skip(message)
        raise AirflowException(message)
    if params["overwrite"] or state == "new":
        return
    if state == "changed":
        raise AirflowFailException(
            f"{found['output']} is published, and its inputs have changed since: trigger with "
            "overwrite to replace it, or with another output"
        )
    tell = "is published" if state == "done" else "is of the same inputs"
    _skip(f"nothing to do: {version} {tell}")


def _skip(message: str) -> NoReturn:
    # Airflow keeps the message of the exception to itself.
    logging.getLogger("airflow.task").info(message)
    raise AirflowSkipException(message)


def _job_name(text: str) -> str:
    """As Dataflow takes it: small letters, digits and hyphens, a letter first."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"x-{name}"[:63].rstrip("-") if not name[:1].isalpha() else name[:63].rstrip("-")


def _flex_body(
    job_name: str,
    params: Mapping[str, Any],
    options: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The request that launches a Flex Template, whose parameters are texts.

    Format: projects.locations.flexTemplates.launch of Dataflow's REST API.
    """
    for key in ("project", "region", "template"):
        if not params[key]:
            raise AirflowFailException(f"engine flex_template: {key} is missing")
    temp_location = {"tempLocation": options["temp_location"]} if "temp_location" in options else {}
    return {
        "launchParameter": {
            "jobName": job_name,
            "containerSpecGcsPath": params["template"],
            "parameters": {
                "labels" if key == "labels_from" else key: _text(value)
                for key, value in options.items()
                if key != "temp_location" and value is not None and value is not False
            },
            "environment": {**environment, **temp_location},
        }
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _imageshards(python: str, *arguments: str) -> dict[str, Any]:
    """Runs a command of imageshards; its log becomes the task's, its last line is the result."""
    hook = SubprocessHook()
    try:
        done = hook.run_command([python, "-m", _MODULE, *arguments, "--json"])
    except BaseException:  # a timeout: nothing is left to run on
        with suppress(ProcessLookupError):
            hook.send_sigterm()
        raise
    try:
        result = json.loads(done.output)
    except ValueError:
        result = None
    if done.exit_code == 0 and isinstance(result, dict):
        return result
    problems = result.get("problems") if isinstance(result, dict) else None
    raise AirflowException(problems[0] if problems else done.output or f"exit {done.exit_code}")


class _Hook(BeamHook):
    """Says of a pipeline that failed what its last line said."""

    def start_python_pipeline(
        self, *args: Any, process_line_callback: Callable[[str], None] | None = None, **kwargs: Any
    ) -> None:
        last = ""

        def keep(line: str) -> None:
            nonlocal last
            last = line.strip() or last
            if process_line_callback:
                process_line_callback(line)

        try:
            super().start_python_pipeline(*args, process_line_callback=keep, **kwargs)
        except AirflowException as error:
            raise AirflowException(last or str(error)) from error


class ImageshardsBuildOperator(BeamRunPythonPipelineOperator):
    """The operator of the Beam provider, with what it lacks: a reason for failures, and an end."""

    def _init_pipeline_options(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._init_pipeline_options(*args, **kwargs)
        self.beam_hook = _Hook(runner=self.runner)
        return found

    def _cast_dataflow_config(self) -> None:
        if self.runner == "DataflowRunner":  # of others it would warn that they need none
            super()._cast_dataflow_config()

    def execute(self, context: Any) -> Any:
        """Runs the pipeline, or submits it and waits."""
        try:
            return super().execute(context)
        except AirflowException as error:
            if not self.dataflow_job_id:
                raise
            reason = self._reason() or error
            raise AirflowException(f"{self.dataflow_job_id}: {reason}") from error

    def _reason(self) -> str:
        """What Dataflow says of a job that failed."""
        with suppress(Exception):  # the job's own failure is what counts
            messages = self.dataflow_hook.fetch_job_messages_by_id(
                job_id=self.dataflow_job_id,
                project_id=self.dataflow_config.project_id,
                location=self.dataflow_config.location,
            )
            errors = [
                message["messageText"]
                for message in messages
                if message["messageImportance"] == "JOB_MESSAGE_ERROR"
            ]
            ours = re.search(
                r"elements\.BuildError: (.*?)(?: \[while running|\n|$)", "\n".join(errors)
            )
            return ours[1] if ours else errors[-1].strip().splitlines()[-1]
        return ""

    def on_kill(self) -> None:
        """Ends the pipeline's processes, which would go on beside the next try."""
        super().on_kill()
        for process in psutil.Process().children(recursive=True):
            process.send_signal(signal.SIGTERM)


_DOC = """
### A data set of images, on a schedule

| task | does |
|---|---|
| `check` | lists the inputs; skips the run where nothing has changed since the last version |
| `build` | `imageshards build`, here or on Dataflow; a second try resumes the first |
| `build_flex_template` | the same from a Flex Template |
| `verify` | reads the records back; `rejects` and `report` are in its XCom |
| `publish` | switches the pointer `latest`, deletes old versions, emits the asset |

A run that failed is repaired by *Clear*: what is done stays done. **Trigger** builds what the form
says; with nothing filled in, it checks the last interval again.
"""

for _dag_id, _arguments in DATASETS.items():
    dataset_dag(_dag_id, **_arguments)
