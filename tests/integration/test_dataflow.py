"""A job for Dataflow, from the command to the data set, with all but Google's machines.

The API is a stub, the buckets are a GCS server's. What was staged runs in an environment that has
what the Dockerfile installs.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dockerfile
import pytest
from dataflow_server import JOB_ID, Service, serve
from helpers import IMAGESHARDS, image_bytes, imageshards, write_images

from imageshards.launch.dataflow.template import template

ROOT = Path(__file__).parents[2]
LINK = f"https://console.cloud.google.com/dataflow/jobs/us-central1/{JOB_ID}?project=my-project"
SUBMIT = [
    "--runner=DataflowRunner", "--project=my-project", "--region=us-central1",
    "--temp_location=gs://bucket/tmp",
]  # fmt: skip
BUILD = [
    "build", "--input=gs://bucket/photos", "--splits=train=0.8,test=0.2", "--num_shards=3",
    "--max_reject_fraction=0.1", "--name=same",
]  # fmt: skip


class Bucket:
    """gs://bucket, and the environment that leads clients to it."""

    def __init__(self, environment: dict[str, str], class_names: Path) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        self.environment = environment
        self.build = [*BUILD, f"--class_names={class_names}"]
        client = storage.Client(
            project="project", credentials=AnonymousCredentials(),
            client_options={"api_endpoint": environment["STORAGE_EMULATOR_HOST"]},
        )  # fmt: skip
        self._objects = client.bucket("bucket")

    def put(self, name: str, data: bytes) -> None:
        self._objects.blob(name).upload_from_string(data)

    def get(self, uri: str) -> bytes:
        return self._objects.blob(uri.removeprefix("gs://bucket/")).download_as_bytes()

    def below(self, folder: str) -> dict[str, bytes]:
        prefix = folder.removeprefix("gs://bucket/").rstrip("/") + "/"
        names = [blob.name for blob in self._objects.list_blobs(prefix=prefix)]
        return {name.removeprefix(prefix): self.get(name) for name in names}


@pytest.fixture(scope="module")
def bucket(gcs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """gs://bucket/photos/CLASS/NUMBER.jpg, one to convert and a broken one among them."""
    folder = tmp_path_factory.mktemp("local")
    # The one file of the launcher's machine that a build may read.
    names = folder / "names.txt"
    names.write_text("".join(f"class{number:02d}\n" for number in reversed(range(4))))
    filled = Bucket(gcs, names)
    for path in write_images(folder, 4, 20):
        filled.put(f"photos/{path.relative_to(folder)}", path.read_bytes())
    filled.put("photos/class00/a b.webp", image_bytes(1000, "WEBP"))
    filled.put("photos/class00/broken.jpg", b"no image")
    return filled


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.txt", "photos/class00/0000.jpg\n/photos/1.jpg\n"),
        ("list.csv", "uri,label\nfile:///photos/1.jpg,a\n"),
        ("list.jsonl", '{"uri": "~/photos/1.jpg"}\n'),
    ],
)
def test_a_manifest_that_names_files_of_this_machine_is_not_submitted(
    bucket: Bucket, name: str, content: str
):
    bucket.put(f"local/{name}", content.encode())
    build = ["build", f"--input=gs://bucket/local/{name}", "--output=gs://bucket/none", *SUBMIT]
    # Submitting would fail with another error.
    done = imageshards(*build, "--dataflow_endpoint=http://localhost:1", **bucket.environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"--input gs://bucket/local/{name}: names the file /" in line
    assert "photos/1.jpg, but the workers of the service cannot read files of this machine" in line


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> dockerfile.Image:
    """What the Dockerfile installs."""
    cache = request.config.cache.mkdir("dataflow-image")
    return dockerfile.build(ROOT / "launch/dataflow/Dockerfile", "dataflow", ROOT, cache)


def data_set(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a data set that say nothing of who wrote it, nor where."""
    return {
        name: data for name, data in files.items()
        if not name.startswith("metadata/shards/")
        and name not in ("metadata/build.json", "metadata/report.html")
    }  # fmt: skip


@pytest.fixture(scope="module")
def local(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The same build on this machine."""
    out = tmp_path_factory.mktemp("out")
    done = imageshards(*bucket.build, "--output", out, **bucket.environment)
    assert done.returncode == 0, done.stderr
    paths = [path for path in out.rglob("*") if path.is_file()]
    found = data_set({path.relative_to(out).as_posix(): path.read_bytes() for path in paths})
    assert len([name for name in found if name.endswith(".tfrecord")]) == 6
    assert found["metadata/rejects.jsonl"]
    return found


def run_staged(image: dockerfile.Image, bucket: Bucket, job: dict[str, Any], work: Path) -> str:
    """Does what Dataflow does with a job: installs its package, and runs its pipeline."""
    options = job["environment"]["sdkPipelineOptions"]["options"]
    staged = options["pipelineUrl"].rpartition("/")[0]
    packages = [
        package["name"] for package in job["environment"]["workerPools"][0]["packages"]
        if package["name"].endswith((".whl", ".tar.gz"))
    ]  # fmt: skip
    assert len(packages) == 1
    for name in (*packages, "pipeline.pb"):
        (work / name).write_bytes(bucket.get(f"{staged}/{name}"))
    shutil.copy(ROOT / "tests/run_staged.py", work)
    python = str(image.python)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall"]
    for command in ([*pip, str(work / packages[0])],
                    [python, str(work / "run_staged.py"), str(work / "pipeline.pb")]):  # fmt: skip
        done = image.run(command, **bucket.environment)
        assert done.returncode == 0, done.stderr
    (place,) = done.stdout.split()
    assert place.startswith(str(image.root))
    info = next(Path(place).parents[2].glob("imageshards-*.dist-info/direct_url.json"))
    assert json.loads(info.read_text())["url"].endswith(packages[0])
    return packages[0]


def test_the_image_holds_the_package_and_no_tensorflow(
    image: dockerfile.Image, record_property: Callable[[str, object], None]
):
    installed = image.run([str(image.python), "-m", "pip", "list", "--format=json"])
    names = {package["name"].lower() for package in json.loads(installed.stdout)}
    assert {"imageshards", "apache-beam", "pillow", "simplejpeg"} <= names
    assert not [name for name in names if "tensorflow" in name or name == "pytest"]
    assert image.run([str(image.python), "-m", "pip", "check"]).returncode == 0
    assert image.environment["FLEX_TEMPLATE_PYTHON_PY_FILE"] == "/template/flex.py"
    launched = image.run([str(image.python), str(image.root / "template/flex.py"), "--help"])
    assert (launched.returncode, "--num_shards" in launched.stdout) == (0, True)
    size = sum(path.stat().st_size for path in image.root.rglob("*") if path.is_file())
    record_property("megabytes", round(size / 1e6))
    record_property("seconds", round(sum(image.seconds), 1))
    print(f"{len(names)} packages, {size / 1e6:,.0f} MB, installed in {sum(image.seconds):.1f} s")


def test_from_submission_to_the_data_set(
    image: dockerfile.Image, bucket: Bucket, local: dict[str, bytes], tmp_path: Path
):
    ran: list[str] = []

    def end(job: dict[str, Any]) -> str:
        ran.append(run_staged(image, bucket, job, tmp_path))
        return "JOB_STATE_DONE"

    with serve(Service(end)) as service:
        done = imageshards(
            *bucket.build, "--output=gs://bucket/waited", *SUBMIT, "--wait", "--labels=team=vision",
            f"--dataflow_endpoint={service.endpoint}", "--num_workers=3",
            "--worker_machine_type=e2-standard-2", **bucket.environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ran == ["imageshards-0.1.0-py3-none-any.whl"]
    assert "81 images in 6 shards" in done.stdout
    assert f"imageshards: waiting for job {JOB_ID}; {LINK}\n" in done.stderr
    assert data_set(bucket.below("gs://bucket/waited")) == local
    job = service.job
    assert job["name"] == "imageshards-same"
    assert job["labels"] == {"team": "vision", "imageshards-version": "0-1-0"}
    pool = job["environment"]["workerPools"][0]
    assert (pool["numWorkers"], pool["machineType"]) == (3, "e2-standard-2")
    assert pool["numThreadsPerWorker"] == 2
    assert pool["workerHarnessContainerImage"].endswith("/beam_python3.11_sdk:2.77.0")
    assert job["environment"]["userAgent"]["name"] == "Apache Beam Python 3.11 SDK"
    options = job["environment"]["sdkPipelineOptions"]["options"]
    assert options["staging_location"].startswith("gs://bucket/tmp/staging/imageshards-same.")
    assert options["temp_location"].startswith("gs://bucket/tmp/imageshards-same.")
    assert options["save_main_session"] is False
    assert "use_runner_v2" in job["environment"]["experiments"]


def test_a_described_job_with_a_setup_file(
    image: dockerfile.Image, bucket: Bucket, local: dict[str, bytes], tmp_path: Path
):
    done = imageshards(
        *bucket.build, "--output=gs://bucket/described", *SUBMIT, f"--setup_file={ROOT}/setup.py",
        "--template_location=gs://bucket/job.json", **bucket.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "written to gs://bucket/job.json; it was not started" in done.stdout
    assert not bucket.below("gs://bucket/described")
    job = json.loads(bucket.get("gs://bucket/job.json"))
    assert run_staged(image, bucket, job, tmp_path) == "workflow.tar.gz"
    assert data_set(bucket.below("gs://bucket/described")) == local


def test_it_returns_when_the_job_is_submitted(bucket: Bucket):
    never = threading.Event()

    def end(job: dict[str, Any]) -> str:
        never.wait(120)
        return "JOB_STATE_DONE"

    with serve(Service(end)) as service:
        done = imageshards(
            *bucket.build, "--output=gs://bucket/left", *SUBMIT, "--json", "--job_name=mine",
            "--sdk_container_image=us-docker.pkg.dev/p/r/imageshards:1",
            f"--dataflow_endpoint={service.endpoint}", **bucket.environment,
        )  # fmt: skip
        never.set()
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "output": "gs://bucket/left", "job": JOB_ID, "link": LINK, "template": "",
    }  # fmt: skip
    assert len(service.requests) == 1
    pool = service.job["environment"]["workerPools"][0]
    assert service.job["name"] == "mine"
    assert pool["workerHarnessContainerImage"] == "us-docker.pkg.dev/p/r/imageshards:1"
    # The image has the package.
    assert not any("imageshards" in package["name"] for package in pool["packages"])


def test_the_launcher_of_the_template_submits_what_is_installed(
    image: dockerfile.Image, bucket: Bucket
):
    done = image.run(
        [
            str(image.python), str(image.root / "template/flex.py"), *SUBMIT,
            "--template_location=gs://bucket/flex/job_object", "--input=gs://bucket/photos",
            "--output=gs://bucket/flexible", "--overwrite=true", "--include_all=false",
            '--labels={"goog-dataflow-provided": "x"}', "--job_name=flex-1",
        ],
        **bucket.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = json.loads(bucket.get("gs://bucket/flex/job_object"))
    assert job["name"] == "flex-1"
    assert job["labels"] == {"goog-dataflow-provided": "x", "imageshards-version": "0-1-0"}
    options = job["environment"]["sdkPipelineOptions"]["options"]
    wheel = bucket.get(
        options["pipelineUrl"].replace("pipeline.pb", "imageshards-0.1.0-py3-none-any.whl")
    )
    with zipfile.ZipFile(io.BytesIO(wheel)) as staged:
        code = {name for name in staged.namelist() if name.endswith(".py")}
        requirements = staged.read("imageshards-0.1.0.dist-info/METADATA").decode()
        flex = staged.read("imageshards/launch/dataflow/flex.py")
    assert len(code) > 50
    assert flex == (ROOT / "launch/dataflow/flex.py").read_bytes()
    assert "Requires-Dist: simplejpeg" in requirements


def test_an_interrupt_leaves_the_job_alone(bucket: Bucket):
    never = threading.Event()

    def end(job: dict[str, Any]) -> str:
        never.wait(120)
        return "JOB_STATE_DONE"

    with serve(Service(end)) as service:
        command = [
            *IMAGESHARDS, *bucket.build, "--output=gs://bucket/interrupted", *SUBMIT, "--wait",
            f"--dataflow_endpoint={service.endpoint}",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **bucket.environment},
        )  # fmt: skip
        assert process.stderr
        assert f"waiting for job {JOB_ID}" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        never.set()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == f"imageshards: interrupted; the job continues: {LINK}"
    assert all("jobs" in request and "PUT" not in request for request in service.requests)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (
            "--temp_location=gs://none/tmp",
            "--temp_location gs://none/tmp: bucket 'none' does not exist",
        ),
        ("--max_num_workers=1", "num_workers (2) cannot exceed max_num_workers (1)"),
        ("--project=12345", "Invalid Project ID (12345)"),
    ],
)
def test_what_could_not_run_is_not_submitted(bucket: Bucket, option: str, says: str):
    # Without a stub: Beam looks at these only where the endpoint is Dataflow's own.
    done = imageshards(
        *bucket.build, "--output=gs://bucket/never", *SUBMIT, "--num_workers=2", option,
        **bucket.environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


FAILURES = {
    "failed": (
        Service(
            lambda _: "JOB_STATE_FAILED",
            error="Traceback (most recent call last):\n  File \"x.py\", line 1\n"
            "imageshards.transforms.elements.BuildError: 9 of 9 images were rejected "
            "[while running 'Finish-ptransform-7']\n\nNote: more\n",
        ),
        f"imageshards: 9 of 9 images were rejected; {LINK}\n",
    ),
    "no quota": (
        Service(lambda _: "JOB_STATE_FAILED", error="Workflow failed. Causes: no quota\nfor that"),
        f"the job failed: Workflow failed. Causes: no quota for that; {LINK} (--verbose",
    ),
    "cancelled": (
        Service(lambda _: "JOB_STATE_CANCELLED"), f"the job was cancelled; {LINK}\n",
    ),
    "refused": (Service(refuse=403), "403 POST"),
}  # fmt: skip


@pytest.fixture(scope="module")
def failed(bucket: Bucket) -> Iterator[dict[str, tuple[int, str, str]]]:
    """Each case -> exit code, stdout, stderr; side by side, since Beam sleeps while it waits."""

    def fail(case: str) -> tuple[int, str, str]:
        with serve(FAILURES[case][0]) as service:
            done = imageshards(
                *bucket.build, f"--output=gs://bucket/fails/{case.replace(' ', '')}", *SUBMIT,
                "--wait", f"--dataflow_endpoint={service.endpoint}", **bucket.environment,
            )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor() as pool:
        yield dict(zip(FAILURES, pool.map(fail, FAILURES), strict=True))


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_one_line(failed: dict[str, tuple[int, str, str]], case: str):
    code, out, err = failed[case]
    assert (code, out) == (1, ""), err
    progress = (f"imageshards: waiting for job {JOB_ID}", "imageshards: listing")
    lines = [line for line in err.splitlines() if not line.startswith(progress)]
    assert len(lines) == 1, err
    assert FAILURES[case][1] in err


def test_hadolint_finds_nothing():
    hadolint = shutil.which("hadolint") or shutil.which(
        "hadolint", path=Path(sys.executable).parent
    )
    if not hadolint:
        pytest.skip("hadolint is not installed")
    text = (ROOT / "launch/dataflow/Dockerfile").read_text()
    for source, found in ((text, ""), (text.replace("--no-cache-dir", ""), "DL3042")):
        done = subprocess.run(
            [hadolint, "-"], input=source, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0, found in done.stdout) == (not found, True), done.stdout


def test_gcloud_takes_the_metadata(tmp_path: Path):
    """It checks it before it would upload anything, and prints the template."""
    gcloud = shutil.which("gcloud")
    if not gcloud:
        pytest.skip("gcloud is not installed")
    metadata = json.dumps(template())
    (tmp_path / "metadata.json").write_text(metadata)
    done = subprocess.run(
        [
            gcloud, "dataflow", "flex-template", "build", "gs://b/t.json", "--project=my-project",
            "--image=us-docker.pkg.dev/p/r/i", "--sdk-language=PYTHON", "--print-only",
            f"--metadata-file={tmp_path}/metadata.json",
        ],
        env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for parameter in template()["parameters"]:
        assert f'"name": "{parameter["name"]}"' in done.stdout
