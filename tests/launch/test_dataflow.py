"""What Dataflow needs of us, as far as it can be told without a service."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from importlib import metadata
from pathlib import Path

import apache_beam
import dockerfile
import pytest
from conftest import Command
from helpers import imageshards, told

from imageshards.launch.dataflow import flex
from imageshards.launch.dataflow.arguments import completed
from imageshards.launch.dataflow.package import write_wheel
from imageshards.launch.dataflow.template import template
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.job.submission import Submission
from imageshards.pipeline.options.beam_arguments import (
    beam_labels,
    is_dataflow,
    is_local_runner,
)
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import options_of
from imageshards.pipeline.options.groups.records import Images
from imageshards.transforms.elements import UsageError
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.references.rules import GroupRule, LabelRule, ShardCounts, SplitRule

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch/dataflow"
SPEC = BuildSpec(BuildOptions.of(input=("gs://bucket/photos",), output="gs://bucket/My Photos_2"))
NEEDED = [
    "--runner=DataflowRunner", "--project=my-project", "--region=us-central1",
    "--temp_location=gs://bucket/tmp",
]  # fmt: skip


def without(option: str) -> list[str]:
    return [argument for argument in NEEDED if not argument.startswith(f"--{option}=")]


REMOTE = ["--input=gs://bucket/photos", "--output=gs://bucket/out"]
WRONG = [
    ([*REMOTE, *without("project")], "--project is missing"),
    ([*REMOTE, *without("region")], "--region is missing"),
    ([*REMOTE, *without("temp_location")], "--temp_location is missing"),
    (
        [*REMOTE, *NEEDED, "--temp_location=/tmp"],
        "--temp_location '/tmp': expected gs://BUCKET/FOLDER",
    ),
    ([*REMOTE, *NEEDED, "--staging_location=b/s"], "--staging_location 'b/s': expected gs://"),
    ([*NEEDED, "--input=photos", "--output=gs://bucket/out"], "--input photos: Dataflow's workers"),
    ([*NEEDED, "--input=gs://bucket/a", "--output=out"], "--output out: Dataflow's workers"),
    (
        [*NEEDED, "--input=gs://bucket/a", "--output=s3://bucket/out"],
        "--output s3://bucket/out: Dataflow's workers have no credentials for it",
    ),
    ([*REMOTE, *NEEDED, "--workers=2"], "--workers is for the local runner"),
    ([*REMOTE, *NEEDED, "--project="], "--project is missing"),
    ([*REMOTE, *NEEDED, "--setup_file=/none/setup.py"], "--setup_file /none/setup.py: no such"),
    ([*REMOTE, "--runner=dataflow"], "--project is missing"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=lambda value: str(value)[-60:])
def test_what_is_missing_is_one_line_before_anything_is_contacted(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
):
    def connect(*_: object) -> None:
        pytest.fail("something was contacted")

    monkeypatch.setattr(socket.socket, "connect", connect)
    # Options that are checked after credentials need some that are not looked for.
    code, out, err = command("build", *arguments, "--no_auth")
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("imageshards: ")
    assert len(told(err)) == 1


def test_waiting_for_a_job_that_is_only_described_is_an_error(command: Command):
    template = "--template_location=gs://bucket/job.json"
    code, _, err = command("build", *REMOTE, *NEEDED, "--no_auth", "--wait", template)
    assert (code, "--wait cannot be combined with --template_location" in err) == (2, True)


@pytest.mark.slow
def test_without_credentials_it_is_one_line(tmp_path: Path):
    for credentials in ("", str(tmp_path / "none.json")):
        done = imageshards(
            "build", *REMOTE, *NEEDED, HOME=str(tmp_path), CLOUDSDK_SPEC=str(tmp_path),
            GOOGLE_APPLICATION_CREDENTIALS=credentials, GCE_METADATA_IP="127.0.0.1:1",
            GCE_METADATA_HOST="127.0.0.1:1",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("imageshards: no Google credentials: ")
        assert "`gcloud auth application-default login`" in done.stderr
        assert len(told(done.stderr)) == 1


def values(arguments: list[str]) -> dict[str, str]:
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments)


def test_what_is_missing_is_added():
    with completed(NEEDED, SPEC) as arguments:
        assert arguments[: len(NEEDED)] == NEEDED
        added = values(arguments[len(NEEDED) :])
        wheel = Path(added.pop("extra_package"))
        assert wheel.name == "imageshards-0.1.0-py3-none-any.whl"
        assert zipfile.is_zipfile(wheel)
    assert not wheel.exists()
    assert added == {
        "labels": "imageshards-version=0-1-0",
        "staging_location": "gs://bucket/tmp/staging",
        "job_name": "imageshards-my-photos-2",
        "number_of_worker_harness_threads": "2",
    }


def test_what_is_given_stays():
    given = [
        *without("temp_location"), "--temp_location", "gs://bucket", "--job_name", "mine",
        "--staging_location=gs://other/s", "--number_of_worker_harness_threads=5",
        "--sdk_container_image=image",
    ]  # fmt: skip
    with completed(given, SPEC) as arguments:
        added = values(arguments[len(given) :])
    # Beam takes gs://bucket for no folder.
    assert added == {
        "labels": "imageshards-version=0-1-0", "temp_location": "gs://bucket/",
    }  # fmt: skip


@pytest.mark.parametrize(
    "option",
    [f"--setup_file={ROOT}/setup.py", "--extra_package=dist/imageshards-1.tar.gz",
     "--extra_packages=a/imageshards-1-py3-none-any.whl", "--worker_harness_container_image=x"],
)  # fmt: skip
def test_who_brings_the_package_gets_no_wheel(option: str):
    with completed([*NEEDED, option], SPEC) as arguments:
        assert not any(argument.startswith("--extra_package=/") for argument in arguments)


def test_job_names_are_what_the_service_takes():
    for name in ("a", "x" * 100, "a_", "photos_2024"):
        options = BuildOptions.of(input=("gs://b/i",), output="gs://bucket/out", name=name)
        with completed(NEEDED, BuildSpec(options)) as arguments:
            job = values(arguments[len(NEEDED) :])["job_name"]
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", job)


def test_the_runner_has_several_names():
    for runner in (
        ["--runner=DataflowRunner"], ["--runner", "dataflow"], ["--runner=dataflowrunner"],
        ["--runner=apache_beam.runners.dataflow.dataflow_runner.DataflowRunner"],
    ):  # fmt: skip
        assert is_dataflow(runner)
        assert not is_local_runner(runner)
    assert not is_dataflow(["--runner=FnApiRunner", "--project=dataflow"])


def test_labels_of_the_job_may_be_json():
    labels = ["auto", "dirname", "airflow-version=v3", '{"goog-template": "x"}']
    assert beam_labels(labels) == [
        "--labels=airflow-version=v3", '--labels={"goog-template": "x"}',
    ]  # fmt: skip


def test_a_submission_says_where_to_look():
    job = Submission("gs://b/o", "123", "https://x/123")
    assert str(job) == "gs://b/o\n  Created job with id: [123]\n  https://x/123"
    assert json.loads(job.to_json())["job"] == "123"


def test_the_wheel_holds_the_files_that_setuptools_packs(tmp_path: Path):
    path = write_wheel(tmp_path)
    (tmp_path / "again").mkdir()
    assert write_wheel(tmp_path / "again").read_bytes() == path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    built = tmp_path / "built"
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--no-compile"]
    subprocess.run([*command, "--build-lib", built], cwd=ROOT, check=True, capture_output=True)
    code = {
        path.relative_to(built).as_posix(): path.read_bytes()
        for path in built.rglob("*")
        if path.is_file()
    }
    assert {"imageshards/py.typed", "imageshards/reader/report/page.html"} <= code.keys()
    info = "imageshards-0.1.0.dist-info"
    assert {name: data for name, data in files.items() if not name.startswith(info)} == code
    assert re.search(rb"(?m)^Requires-Dist: apache-beam\b", files[f"{info}/METADATA"])
    assert b"imageshards = imageshards.launch.cli:entry" in files[f"{info}/entry_points.txt"]
    rows = [line.split(",") for line in files.pop(f"{info}/RECORD").decode().splitlines()]
    assert {name for name, _, _ in rows} == {*files, f"{info}/RECORD"}
    for name, digest, size in rows[:-1]:
        found = urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(files[name]))


def test_without_metadata_there_is_no_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metadata, "distributions", lambda **_: [])
    with pytest.raises(UsageError, match="--setup_file"):
        write_wheel(tmp_path)


OPTIONS = {
    option.name: option for group in BuildOptions.command_line() for option in options_of(group)
}
PARAMETERS = {parameter["name"]: parameter for parameter in template()["parameters"]}


def accepts(name: str, value: str) -> bool:
    return all(re.fullmatch(regex, value) for regex in PARAMETERS[name]["regexes"])


def test_the_template_has_every_option():
    of_beam = {"number_of_worker_harness_threads", "sdk_container_image"}
    not_of_jobs = {"config", "dry_run", "json", "quiet", "wait", "workers"}
    assert OPTIONS.keys() - PARAMETERS.keys() == not_of_jobs
    assert PARAMETERS.keys() - OPTIONS.keys() == of_beam
    assert len(PARAMETERS) == len(template()["parameters"])
    needed = {name for name, parameter in PARAMETERS.items() if not parameter["isOptional"]}
    assert needed == {"input", "output"}
    for name, parameter in PARAMETERS.items():
        assert parameter["label"]
        assert parameter["regexes"]
        if name in OPTIONS:
            assert parameter["helpText"].startswith(OPTIONS[name].description)
            if OPTIONS[name].is_switch:
                assert accepts(name, "true")
                assert not accepts(name, "yes")


def test_the_template_takes_the_defaults():
    for option in OPTIONS.values():
        if option.name in PARAMETERS and isinstance(option.default, (str, int, float)):
            text = f"{option.default}".lower()
            assert not text or accepts(option.name, text), option.name


@pytest.mark.parametrize(
    ("name", "parse", "texts"),
    [
        ("num_shards", ShardCounts.parse, ["auto", "16", "train=3,test=1", "a", "16,", "train=x"]),
        ("labels", LabelRule.parse,
         ["auto", "dirname", "none", "column", "column:x", "regex:(a+)b", "regex:ab", "x", "col"]),
        ("splits", SplitRule.parse,
         ["auto", "folder", "column", "column:s", "train=0.8,test=0.2", "train=1", "train", "a=b"]),
        ("group_by", GroupRule.parse,
         ["uri", "dirname", "column:x", "regex:(a)", "column", "regex:a", "x"]),
        ("resize", Resize.parse,
         ["short:256", "long:5", "32x20", "crop:2x3", "pad:9x9", "short", "2", "crop:2"]),
        ("check", lambda text: Images(check=text), ["full", "header", "Full"]),
        ("convert", lambda text: Images(convert=text), ["auto", "jpeg", "gif"]),
        ("seed", int, ["0", "12", "x"]),
        ("max_reject_fraction", float, ["0.01", "1", ".5", "x"]),
    ],
)  # fmt: skip
def test_the_template_refuses_what_the_command_refuses(name: str, parse: object, texts: list[str]):
    taken = []
    for text in texts:
        try:
            parse(text)  # type: ignore[operator]
        except (ValueError, UsageError):
            continue
        taken.append(text)
    assert 0 < len(taken) < len(texts)
    assert [text for text in texts if accepts(name, text)] == taken


def test_places_of_the_template_are_in_the_cloud():
    assert accepts("input", "gs://bucket/a b/*.jpg,gs://bucket/b")
    assert accepts("input", "https://x/y.tar")
    assert accepts("output", "gs://bucket/out")
    for name in ("input", "output", "class_names"):
        assert not accepts(name, "/tmp/x")


def test_the_launcher_turns_parameters_into_arguments():
    parameters = [
        "--input=gs://b/a,c,gs://b/d,https://x/y", "--overwrite=true", "--enlarge=False",
        "--check=full", "--runner=DataflowRunner", "--labels={'a': 'b'}",
    ]  # fmt: skip
    assert flex.arguments_of(parameters, {"IMAGESHARDS_IMAGE": "image"}) == [
        "build", "--input=gs://b/a,c", "--input=gs://b/d", "--input=https://x/y", "--overwrite",
        "--check=full", "--runner=DataflowRunner", "--labels={'a': 'b'}",
        "--sdk_container_image=image",
    ]  # fmt: skip
    own = ["--sdk_container_image=mine"]
    assert flex.arguments_of(own, {"IMAGESHARDS_IMAGE": "image"}) == ["build", *own]
    assert flex.arguments_of([], {"IMAGESHARDS_IMAGE": ""}) == ["build"]


def test_the_dockerfile_agrees_with_the_package():
    text = (FOLDER / "Dockerfile").read_text()
    found = dockerfile.stages(text)
    arguments = dict(rest.split("=", 1) for _, rest in found[""][1])
    assert arguments["BEAM_VERSION"] == apache_beam.__version__
    assert (
        f'requires-python = ">={arguments["PYTHON_VERSION"]}"'
        in (ROOT / "pyproject.toml").read_text()
    )
    assert f"python{arguments['PYTHON_VERSION'].replace('.', '')}-template" in found["launcher"][0]
    steps = dockerfile.steps_of(text, "dataflow")
    copied = " ".join(rest for instruction, rest in steps if instruction == "COPY").split()
    assert {"api", "pipeline", "transforms", "reader", "launch", "setup.py", "pyproject.toml"} < {
        *copied
    }
    assert not any(instruction == "USER" for instruction, _ in steps)
    assert ("USER", "65532:65532") in dockerfile.steps_of(text, "command")


VARIABLES = {"PROJECT": "p", "REGION": "us-east1", "REPOSITORY": "r", "BUCKET": "b"}


def make_template(path: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    return subprocess.run(
        [shutil.which("bash") or "bash", FOLDER / "template.sh"],
        env={"PATH": path, "PYTHON": sys.executable, **kept, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with what the script needs, and no gcloud."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "mkdir", "cut", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


@pytest.mark.slow
def test_make_template_says_each_command_before_it_runs_it(tools: Path, tmp_path: Path):
    done = make_template(str(tools), **VARIABLES, DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("+ gcloud ")]
    assert [command.split()[2:4] for command in commands] == [
        ["builds", "submit"], ["dataflow", "flex-template"],
    ]  # fmt: skip
    image = "us-east1-docker.pkg.dev/p/r/imageshards:0.1.0"
    assert all(image in command for command in commands)
    assert "gs://b/templates/imageshards-0.1.0.json" in commands[1]
    assert json.loads((ROOT / "build/dataflow/metadata.json").read_text()) == template()
    log = tmp_path / "log"
    (tools / "gcloud").write_text(f'#!/bin/bash\necho "+ gcloud $*" >> {log}\n')
    (tools / "gcloud").chmod(0o755)
    done = make_template(str(tools), **VARIABLES)
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == commands


def test_make_template_says_what_is_missing(tools: Path):
    done = make_template(str(tools), **VARIABLES)
    assert (done.returncode, len(told(done.stderr))) == (1, 1)
    assert "there is no gcloud here" in done.stderr
    done = make_template(str(tools), **{**VARIABLES, "BUCKET": ""})
    assert (done.returncode, len(told(done.stderr))) == (2, 1)
    assert "BUCKET is missing" in done.stderr
