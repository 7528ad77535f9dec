"""Airflow DAGs that build data sets of images on a schedule: check, build, verify, publish.

Copy this file and imageshards_options.json into your DAGs folder, and edit DATASETS; nothing below
it needs to change. This file imports neither Beam nor TensorFlow nor imageshards: the tasks run
commands of imageshards in a separate environment, with the Python interpreter that the environment
variable IMAGESHARDS_PYTHON names, or in pods of a container image.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from zoneinfo import ZoneInfo

import psutil
from airflow.providers.apache.beam.hooks.beam import BeamHook, beam_options_to_args
from airflow.providers.apache.beam.operators.beam import BeamRunPythonPipelineOperator
from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    Param,
    TriggerRule,
    get_current_context,
    task,
)
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

# DAG id -> the attributes of a `Dataset`, whose docstring describes them.
DATASETS: dict[str, dict[str, Any]] = {
    "photos": {
        # Photographs arrive in one folder per date; {date} is the date of the run.
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
# The shell command of a pod. KubernetesPodOperator returns the content of this file.
_IN_POD = (
    'imageshards "$@" --json > /airflow/xcom/return.json; code=$?; cat /airflow/xcom/return.json; '
    "exit $code"
)
_FAILURES = "imageshards.pipeline.job.failures"
_RUNNERS = {"local": "FnApiRunner", "dataflow": "DataflowRunner"}
# Options that the DAG sets itself; the operator uses `labels` for the labels of the job.
_TAKEN = ("input", "output", "overwrite", "runner", "job_name", "project", "region", "labels")

# JSON Schema of the values in `options`, for the Trigger form. Without the file next to this one,
# the form accepts any value, and the task `check` reports invalid ones.
_SCHEMA = Path(__file__).with_name("imageshards_options.json")
_OPTIONS: dict[str, Any] = json.loads(_SCHEMA.read_text()) if _SCHEMA.exists() else {}


class Dataset(NamedTuple):
    """A data set and its schedule: the defaults of each run, which the Trigger form can change.

    Attributes:
      input: as `imageshards build --input`; `{date}` is replaced by the date of the run.
      output: the folder of a version. It must contain `{date}` or, for several runs per day,
        `{time}`. The pointer file `latest` is next to it.
      start_date: the start of the schedule.
      schedule: a cron expression, or None; a run is for the interval that ends when it starts.
      timezone: of the schedule and of `{date}`.
      since: if `{date}` is in the input, read all dates from this one to the date of the run.
      name: the name of the data set and of the asset that `publish` emits; None: the DAG's id.
      options: further options of `imageshards build` and of Beam, without dashes; `labels` is
        named `labels_from` here.
      engine: `local`, `dataflow` or `flex_template`.
      dataflow: `project`, `region`, `temp_location`, `template` (of a Flex Template), and
        `environment`: that of a Flex Template's job, in the format of Dataflow's API.
      keep_versions: the number of versions to keep; 0: all.
      verify_records: the number of records to verify; 0: all.
      owner: the owner that Airflow shows.
      tags: the tags that Airflow shows.
      retries: retries of a failed task.
      retry_delay: delay before the first retry; it doubles with each retry, up to one hour.
      execution_timeout: time limit of a task.
      python: the Python interpreter of the environment of imageshards.
      image: the container image of imageshards. If it is set, commands run in pods instead of on
        the worker, which requires the provider cncf.kubernetes.
      pod: arguments of KubernetesPodOperator, such as `namespace` and `config_file`.
      gcp_conn_id: the Airflow connection to Google Cloud.
      catchup: whether to run the intervals missed since `start_date`.
    """

    input: str | Sequence[str]
    output: str
    start_date: datetime
    schedule: str | None = "0 2 * * *"
    timezone: str = "UTC"
    since: str | None = None
    name: str | None = None
    options: Mapping[str, Any] | None = None
    engine: str = "local"
    dataflow: Mapping[str, Any] | None = None
    keep_versions: int = 14
    verify_records: int = 0
    owner: str = "data"
    tags: Sequence[str] = ()
    retries: int = 3
    retry_delay: timedelta = timedelta(minutes=5)
    execution_timeout: timedelta = timedelta(hours=12)
    python: str = PYTHON
    image: str | None = None
    pod: Mapping[str, Any] | None = None
    gcp_conn_id: str = "google_cloud_default"
    catchup: bool = False


def dataset_dag(dag_id: str, dataset: Dataset) -> DAG:
    """Makes the DAG of a data set."""
    dataset = dataset._replace(name=dataset.name or dag_id)
    with DAG(
        dag_id,
        schedule=CronDataIntervalTimetable(dataset.schedule, timezone=dataset.timezone)
        if dataset.schedule
        else None,
        start_date=dataset.start_date,
        catchup=dataset.catchup,
        max_active_runs=1,
        tags=["imageshards", *dataset.tags],
        doc_md=_DOC,
        params={
            **_input_params(dataset),
            **_output_params(dataset),
            **_execution_params(dataset),
            **_dataflow_params(dataset),
        },
        default_args={
            "owner": dataset.owner,
            "retries": dataset.retries,
            "retry_delay": dataset.retry_delay,
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(hours=1),
            "execution_timeout": dataset.execution_timeout,
        },
    ) as dag:
        checked = _check_task(dag_id, dataset)
        built = _build_tasks(checked, dataset)
        checked >> built >> _verify_task(dataset) >> _publish_task(dataset)
    return dag


def _check_task(dag_id: str, dataset: Dataset) -> Any:
    @task.branch(doc_md="Lists the inputs. Skips the run if there is nothing to build.")
    def check(**context: Any) -> str:
        params, ti = context["params"], context["ti"]
        options = _options(params, context["dag_run"], dataset.timezone, dataset.name or dag_id)
        found = _imageshards(
            dataset, "fingerprint", "--skip_missing", *beam_options_to_args(options)
        )
        _decide(found, params)
        options["input"] = found["inputs"]
        # Nobody reads an unpublished version, so the files of a failed build of other inputs may be
        # replaced. A failed build of the same inputs is resumed.
        options["overwrite"] = True
        if params["engine"] != "local" and params["temp_location"]:
            options["temp_location"] = params["temp_location"]
        job_name = _job_name(f"{dag_id}-{found['version']}")
        ti.xcom_push("fingerprint", found["digest"])
        ti.xcom_push("runner", _RUNNERS.get(params["engine"], ""))
        ti.xcom_push("options", options)
        ti.xcom_push("job_name", job_name)
        ti.xcom_push("arguments", _build_arguments(params, options, job_name))
        ti.xcom_push("files", found["files"])
        ti.xcom_push("output", found["output"])
        if params["engine"] != "flex_template":
            return "build"
        environment = (dataset.dataflow or {}).get("environment", {})
        ti.xcom_push("body", _flex_body(job_name, params, options, environment))
        return "build_flex_template"

    return check()


def _build_tasks(checked: Any, dataset: Dataset) -> list[Any]:
    """Makes two tasks; each run executes one of them and skips the other."""
    return [
        _pod(dataset, "build", checked["arguments"])
        if dataset.image
        else ImageshardsBuildOperator(
            task_id="build",
            doc_md="`imageshards build`. A retry keeps the shards that earlier tries finished.",
            runner=checked["runner"],
            py_interpreter=dataset.python,
            py_options=["-m", _MODULE],
            py_file="build",
            pipeline_options=checked["options"],
            dataflow_config={
                # The service rejects a second job of this name while the first one runs.
                "job_name": "{{ ti.xcom_pull('check', key='job_name') }}",
                "append_job_name": False,
                "project_id": "{{ params.project or '' }}",
                "location": "{{ params.region or '' }}",
                "gcp_conn_id": dataset.gcp_conn_id,
            },
            gcp_conn_id=dataset.gcp_conn_id,
        ),
        DataflowStartFlexTemplateOperator(
            task_id="build_flex_template",
            doc_md="`imageshards build` as a Flex Template; waits without occupying a worker.",
            body=checked["body"],
            project_id="{{ params.project or '' }}",
            location="{{ params.region or '' }}",
            gcp_conn_id=dataset.gcp_conn_id,
            append_job_name=False,
            deferrable=True,
        ),
    ]


def _verify_task(dataset: Dataset) -> Any:
    @task(
        multiple_outputs=True,
        trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
        doc_md="Reads all records, or a sample. XCom: `rejects`, `report`, ...",
    )
    def verify(**context: Any) -> dict[str, Any]:
        output = context["ti"].xcom_pull("check", key="output")
        sample = f"--sample={context['params']['verify_records']}"
        return _imageshards(dataset, "verify", output, sample)

    return verify()


def _publish_task(dataset: Dataset) -> Any:
    asset = Asset(dataset.name)

    @task(
        multiple_outputs=True,
        outlets=[asset],
        # Two runs of a backfill must not change the pointer at the same time.
        max_active_tis_per_dag=1,
        doc_md="Updates the pointer `latest`, deletes old versions, emits the asset.",
    )
    def publish(**context: Any) -> dict[str, Any]:
        ti = context["ti"]
        published = _imageshards(
            dataset,
            "publish",
            ti.xcom_pull("check", key="output"),
            f"--keep_versions={context['params']['keep_versions']}",
            f"--fingerprint={ti.xcom_pull('check', key='fingerprint')}",
        )
        context["outlet_events"][asset].extra = published
        return published

    return publish()


_NULLABLE_DATE: dict[str, Any] = {"type": ["null", "string"], "format": "date"}


def _input_params(dataset: Dataset) -> dict[str, Param]:
    section, input = "Inputs", dataset.input
    return {
        "input": Param(
            [input] if isinstance(input, str) else list(input),
            "Folders, patterns, archives or manifests, one per line: absolute paths, or gs://, "
            "s3:// or az:// URIs. {date} is replaced by the date of the run.",
            type="array", items={"type": "string", "minLength": 1}, minItems=1, section=section,
        ),
        "date": Param(
            None, "Date of the run. Empty: the date on which its data interval begins.",
            **_NULLABLE_DATE, section=section,
        ),
        "since": Param(
            dataset.since,
            "With {date} in the inputs: read all dates from this one to the date of the run. Dates "
            "without images are skipped. Empty: only the date of the run.",
            **_NULLABLE_DATE, section=section,
        ),
        "allow_empty": Param(
            False, "Skip a run that finds no image at all; otherwise it fails.",
            type="boolean", section=section,
        ),
    }  # fmt: skip


def _output_params(dataset: Dataset) -> dict[str, Param]:
    section = "Output"
    return {
        "output": Param(
            dataset.output,
            "Folder of the version, with {date} or {time}. The pointer latest is next to it.",
            type="string", pattern=r"^(/|[a-z][a-z0-9+.-]*://).+\{(date|time)\}", section=section,
        ),
        "keep_versions": Param(
            dataset.keep_versions, "Number of versions to keep; 0: all.",
            type="integer", minimum=0, section=section,
        ),
        "overwrite": Param(
            False,
            "Build even if nothing changed or this version is published. Until the build ends, "
            "readers of the version find it incomplete.",
            type="boolean", section=section,
        ),
    }  # fmt: skip


def _execution_params(dataset: Dataset) -> dict[str, Param]:
    section = "Execution"
    return {
        "options": Param(
            dict(dataset.options or {}),
            "Further options of imageshards build and of Beam, without dashes, such as "
            '{"num_shards": 64, "splits": "train=0.9,test=0.1"}.',
            type="object", propertyNames={"pattern": "^[a-z][a-z0-9_]*$"}, properties=_OPTIONS,
            section=section,
        ),
        "verify_records": Param(
            dataset.verify_records, "Number of records to read back; 0: all.",
            type="integer", minimum=0, section=section,
        ),
        "engine": Param(
            dataset.engine,
            "local: on the Airflow worker or in a pod; dataflow: a job that the worker or the pod "
            "submits and waits for; flex_template: a job from a template, for which the triggerer "
            "waits.",
            type="string", enum=["local", "dataflow", "flex_template"], section=section,
        ),
    }  # fmt: skip


def _dataflow_params(dataset: Dataset) -> dict[str, Param]:
    dataflow = dataset.dataflow or {}
    return {
        key: Param(dataflow.get(key), text, type=["null", "string"], section="Dataflow")
        for key, text in (
            ("project", "Google Cloud project. Empty, with dataflow: that of the connection."),
            ("region", "Region of the job, such as us-central1."),
            ("temp_location", "A gs:// folder for temporary files of the job."),
            ("template", "gs:// URI of the Flex Template's specification."),
        )
    }


def _options(params: Mapping[str, Any], run: Any, timezone: str, name: str) -> dict[str, Any]:
    """Returns the options of `imageshards build` for a run."""
    taken = [key for key in params["options"] if key in _TAKEN]
    if taken:
        raise AirflowFailException(
            "options: write labels_from instead of labels"
            if taken[0] == "labels"
            else f"options: {taken[0]} cannot be set here; the form has a field for it"
        )
    # A run that was triggered without a logical date has no interval.
    moment = run.data_interval_start or run.logical_date or run.run_after
    local = moment.astimezone(ZoneInfo(timezone))
    day = date.fromisoformat(params["date"]) if params["date"] else local.date()
    texts = {"{date}": day.isoformat(), "{time}": local.strftime("%Y%m%dT%H%M%S")}
    return {
        "name": name,
        **_base_uri(params),
        **params["options"],
        "input": [
            _filled(text, {**texts, "{date}": one.isoformat()})
            for text in params["input"]
            for one in _days(text, params["since"], day)
        ],
        "output": _filled(params["output"], texts),
    }


def _base_uri(params: Mapping[str, Any]) -> dict[str, str]:
    """Names images by their date too, if the images of several dates are inputs of one build."""
    dated = [text.partition("{date}")[0] for text in params["input"] if "{date}" in text]
    folders = {text.rpartition("/")[0] for text in dated}
    if not params["since"] or len(folders) != 1 or "" in folders:
        return {}
    return {"base_uri": folders.pop()}


def _days(text: str, since: str | None, day: date) -> list[date]:
    if not since or "{date}" not in text:
        return [day]
    first = date.fromisoformat(since)
    if first > day:
        raise AirflowFailException(f"since: {first} is later than the date of the run, {day}")
    return [first + timedelta(days=number) for number in range((day - first).days + 1)]


def _filled(text: str, texts: Mapping[str, str]) -> str:
    for placeholder, value in texts.items():
        text = text.replace(placeholder, value)
    return text


def _decide(found: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Skips or fails the run if there is nothing to build."""
    state, version = found["state"], found["version"]
    if state == "empty":
        message = f"no image found in {', '.join(params['input'])}"
        if params["allow_empty"]:
            _skip(message)
        raise AirflowException(message)
    if params["overwrite"] or state == "new":
        return
    if state == "changed":
        raise AirflowFailException(
            f"{found['output']} is published, and its inputs have changed since: trigger a run "
            "with overwrite to replace it, or with another output"
        )
    why = "is published" if state == "done" else "has the same inputs"
    _skip(f"nothing to do: {version} {why}")


def _skip(message: str) -> NoReturn:
    # Airflow does not log the message of the exception.
    logging.getLogger("airflow.task").info(message)
    raise AirflowSkipException(message)


def _job_name(text: str) -> str:
    """Returns a name that Dataflow accepts: a letter, then lower-case letters, digits, hyphens."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"x-{name}"[:63].rstrip("-") if not name[:1].isalpha() else name[:63].rstrip("-")


def _flex_body(
    job_name: str,
    params: Mapping[str, Any],
    options: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the request that launches a Flex Template, whose parameters are all texts.

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


def _build_arguments(
    params: Mapping[str, Any], options: Mapping[str, Any], job_name: str
) -> list[str]:
    """Returns the arguments of `imageshards` for a build in a pod."""
    if params["engine"] != "dataflow":
        return ["build", *beam_options_to_args(dict(options))]
    job = {key: params[key] for key in ("project", "region") if params[key]}
    job |= {"runner": _RUNNERS["dataflow"], "job_name": job_name, "wait": True}
    return ["build", *beam_options_to_args({**options, **job})]


def _pod(dataset: Dataset, task_id: str, arguments: Any) -> Any:
    """Makes the operator that runs a command of imageshards in a pod, and returns its result."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    return KubernetesPodOperator(
        task_id=task_id,
        name=f"imageshards-{task_id}",
        doc_md=f"`imageshards {task_id}` in a pod. A retry of a build resumes it.",
        image=dataset.image,
        cmds=["sh", "-c", _IN_POD, "imageshards"],
        arguments=arguments,
        do_xcom_push=True,
        # The error of a failed task then contains the last lines of its log.
        termination_message_policy="FallbackToLogsOnError",
        **(dataset.pod or {}),
    )


def _imageshards(dataset: Dataset, *arguments: str) -> dict[str, Any]:
    """Runs a command of imageshards, logs its output, and returns the JSON that it prints last."""
    if dataset.image:
        pod = _pod(dataset, arguments[0], list(arguments))
        # Airflow warns of the method `execute` inside another task, or refuses it.
        returned: dict[str, Any] = pod.execute_sync(get_current_context())
        return returned
    hook = SubprocessHook()
    try:
        done = hook.run_command([dataset.python, "-m", _MODULE, *arguments, "--json"])
    except BaseException:  # such as a timeout; the process would continue
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
    """A hook that raises the last line of a failed pipeline's output as its exception."""

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
    """The Beam provider's operator; it also reports why a build failed, and ends its processes."""

    def _init_pipeline_options(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._init_pipeline_options(*args, **kwargs)
        self.beam_hook = _Hook(runner=self.runner)
        return found

    def _cast_dataflow_config(self) -> None:
        if self.runner == "DataflowRunner":  # for other runners the method logs a warning
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
        """The reason that Dataflow reports for a failed job."""
        with suppress(Exception):  # the failure of the job matters more
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
            done = subprocess.run(
                [self.py_interpreter, "-m", _FAILURES],
                input="\n".join(errors), capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
            return done.stdout
        return ""

    def on_kill(self) -> None:
        """Ends the processes of the pipeline, which would continue during the next try."""
        super().on_kill()
        for process in psutil.Process().children(recursive=True):
            process.send_signal(signal.SIGTERM)


_DOC = """
### A data set of images, on a schedule

| task | does |
|---|---|
| `check` | lists the inputs; skips the run if nothing has changed since the last version |
| `build` | `imageshards build`, on the worker or on Dataflow; a retry resumes |
| `build_flex_template` | the same build as a Dataflow Flex Template |
| `verify` | reads the records back; `rejects` and `report` are in its XCom |
| `publish` | updates the pointer `latest`, deletes old versions, emits the asset |

To repair a failed run, use *Clear*: it resumes the build. **Trigger** builds with the values of the
form; without changes to the form, it checks the last interval again.
"""

for _dag_id, _arguments in DATASETS.items():
    dataset_dag(_dag_id, Dataset(**_arguments))
