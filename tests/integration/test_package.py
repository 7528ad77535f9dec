"""The package as users install it: the sdist, the wheel, and the wheel alone in an environment."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import records, rejects, told
from pictures import written
from PIL import Image
from sklearn.datasets import load_digits

from imageshards.transforms.extras import EXTRAS

ROOT = Path(__file__).parents[2]
FOLDERS = ("launch", "pipeline", "reader", "transforms")
NOT_NEEDED = (
    "google-cloud", "google-api", "apitools", "tensorflow", "tensorboard", "jax", "torch", "scikit",
    "pandas", "pytest",
)  # fmt: skip
MOST_MEGABYTES = 550


def modules() -> set[str]:
    """Names in the package of all files in git that belong to it."""
    files = subprocess.run(
        ["git", "ls-files", *FOLDERS, "api"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split()
    return {
        f"imageshards/{name.removeprefix('api/')}"
        for name in files
        if (ROOT / name).with_name("__init__.py").exists()
        and Path(name).suffix in (".py", ".typed", ".npz", ".html")
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, built as Beam does for --setup_file, and the wheel built from it."""
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, files):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    return source / "dist"


def test_the_sdist_contains_the_package_and_its_licence_and_no_tests(dist: Path):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py"} <= names
    in_git = {name.replace("imageshards/", "", 1) for name in modules()}
    assert {name if "/" in name else f"api/{name}" for name in in_git} <= names
    assert not any(name.startswith(("tests", "benchmarks", "docs")) for name in names)


def test_the_wheel_contains_every_module_and_its_data_and_nothing_else(dist: Path):
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {*wheel.namelist()}
    metadata = {name for name in names if ".dist-info/" in name}
    assert {name.rpartition("/")[2] for name in metadata} >= {"LICENSE", "METADATA"}
    data = {"imageshards/launch/digits.txt", "imageshards/launch/fleet/measured.json"}
    assert names - metadata == {*modules(), *data}


def test_the_package_index_would_accept_them(dist: Path):
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it requires; the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    uv = shutil.which("uv") or Path(sys.executable).with_name("uv")
    venv = folder / "venv"
    for command in (
        ["venv", "--python", sys.executable, venv],
        ["pip", "install", "--python", venv / "bin/python", *dist.glob("*.whl")],
    ):
        subprocess.run([uv, *command], check=True, capture_output=True)
    return venv / "bin"


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program outside of the checkout, with standard streams that are no terminals."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), cwd="/", env={**outside, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_installs_what_it_needs_and_nothing_else(environment: Path):
    site = next(environment.parent.glob("lib/*/site-packages"))
    names = {path.name.lower().replace("_", "-") for path in site.glob("*.dist-info")}
    assert "imageshards-0.1.0.dist-info" in names
    assert not [name for name in names if name.startswith(NOT_NEEDED)]
    size = sum(path.lstat().st_size for path in environment.parent.rglob("*"))
    assert size < MOST_MEGABYTES * 1e6


def test_the_demo_builds_and_verifies_a_data_set(environment: Path, tmp_path: Path):
    folder = tmp_path / "demo"
    for run_number in range(2):
        done = run(environment / "imageshards", "demo", folder)
        assert done.returncode == 0, done.stderr
        assert told(done.stderr) == []
        assert "no problems; 1,797 records in 6 shards" in done.stdout
        # A program may be reading the data set of the first run.
        assert ("all shards were complete" in done.stdout) == bool(run_number)
    assert "CC BY 4.0" in (folder / "README.txt").read_text()
    digits = load_digits()
    numbers = []
    for record in records(folder / "digits"):
        label, number = record.first("image/filename").decode().removesuffix(".png").split("/")
        numbers.append(int(number))
        assert int(label) == digits.target[numbers[-1]]
        pixels = np.asarray(Image.open(io.BytesIO(record.first("image/encoded"))))
        assert (pixels == (digits.images[numbers[-1]] * 255 / 16).astype("uint8")).all()
    assert sorted(numbers) == list(range(1797))


def test_the_demo_deletes_nothing_of_its_user(environment: Path, tmp_path: Path):
    (tmp_path / "images").mkdir()
    done = run(environment / "imageshards", "demo", tmp_path)
    assert done.returncode == 2
    assert told(done.stderr) == [
        f"imageshards: {tmp_path}: not empty, and not of an earlier demo; name a new folder"
    ]
    assert (tmp_path / "images").is_dir()


def test_worker_processes_need_no_checkout_and_print_no_logs(
    environment: Path, tmp_path: Path, photos: Path
):
    done = run(
        environment / "imageshards", "build", "--input", photos, "--output", tmp_path / "out",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    )  # fmt: skip
    assert (done.returncode, told(done.stderr)) == (0, [])
    assert "120 images" in done.stdout


def test_cloud_storage_needs_no_extra(environment: Path, photos: Path, gcs: dict[str, str]):
    output = "gs://bucket/from_the_wheel"
    program = environment / "imageshards"
    done = run(program, "build", "--input", photos, "--output", output, "--num_shards=2", **gcs)
    assert done.returncode == 0, done.stderr
    assert run(program, "verify", output, **gcs).returncode == 0


REMOTE = ("build", "--input=gs://bucket/a", "--output=gs://bucket/b")
DATAFLOW = ("--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://bucket/t")
LOAD = """
import sys
from imageshards import reader
try:
    reader.load(sys.argv[1], "train")
except reader.UsageError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def dataset(environment: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of the photos and a HEIC file, which is a reject."""
    folder = tmp_path_factory.mktemp("dataset")
    shutil.copytree(photos, folder / "images")
    (folder / "images/class00/1.heic").write_bytes(written()["HEIF-RGB"])
    options = ["--max_reject_fraction=0.1", "--output", folder / "out"]
    done = run(environment / "imageshards", "build", "--input", folder / "images", *options)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        (
            ("imageshards", *REMOTE, *DATAFLOW),
            "--runner=DataflowRunner: google.api_core", "dataflow",
        ),
        (
            ("imageshards", "build", "--input=DATASET", "--output=gs://bucket/c", "--writer=beam",
             "--num_shards=1"),
            "--writer beam to gs://bucket/c: google.api_core", "dataflow",
        ),
        (
            ("imageshards", "verify", "DATASET", "--decoder=tensorflow"),
            "--decoder tensorflow: tensorflow", "train",
        ),
        (
            ("python", "-m", "imageshards.launch.training.train", "DATASET", "--model_dir=m"),
            "train: tensorflow", "train",
        ),
        (
            ("python", "-m", "imageshards.launch.training.train_jax", "DATASET", "--model_dir=m"),
            "train_jax: jax", "jax",
        ),
        (("python", "-c", LOAD, "DATASET"), "reader.load: tensorflow", "train"),
    ],
    ids=["dataflow", "writer_beam", "decoder", "train", "train_jax", "load"],
)  # fmt: skip
def test_a_missing_extra_is_one_line(
    environment: Path, dataset: Path, gcs: dict[str, str], command: tuple[str, ...],
    missing: str, extra: str,
):  # fmt: skip
    program, *arguments = (word.replace("DATASET", str(dataset)) for word in command)
    done = run(environment / program, *arguments, **gcs)
    line = told(done.stderr)[-1]
    assert done.returncode in (1, 2)
    assert line.removeprefix("imageshards: ") == (
        f"{missing} is not installed: pip install 'imageshards[{extra}]'"
    )
    assert "Traceback" not in done.stderr


def test_a_heic_image_without_its_decoder_names_the_extra(dataset: Path):
    (reject,) = rejects(dataset)
    assert "pip install 'imageshards[heic]'" in reject["reason"]


def test_the_doctor_finds_a_whole_installation_without_extras(environment: Path):
    done = run(environment / "imageshards", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    sections = json.loads(done.stdout)["sections"]
    assert {one["name"]: one["status"] for one in sections["Extras"]} == dict.fromkeys(
        EXTRAS, "note"
    )
    assert {one["status"] for one in sections["Versions"]} == {"ok"}
