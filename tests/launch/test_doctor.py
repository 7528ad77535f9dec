"""`imageshards doctor` on real folders, a Cloud Storage server, and files of credentials."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import gcs_server
import pytest
from conftest import Command
from packaging.requirements import Requirement

from imageshards.launch.doctor.machine import cpu_quota, memory_limit
from imageshards.transforms.extras import EXTRAS

ROOT = Path(__file__).parents[2]
USER = {
    "type": "authorized_user", "client_id": "id", "client_secret": "hidden-1",
    "refresh_token": "hidden-2", "quota_project_id": "",
}  # fmt: skip
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "STORAGE_EMULATOR_HOST")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's credentials, and no proxy; returns the file of the credentials."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(USER))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


def findings(out: str, section: str) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in json.loads(out)["sections"][section]}


def test_it_names_versions_extras_decoders_and_the_machine(command: Command, tmp_path: Path):
    code, out, err = command("doctor", "--json", "--output", tmp_path / "not/there")
    assert (code, err) == (0, "")
    assert json.loads(out)["ok"]
    versions = findings(out, "Versions")
    required = [Requirement(text) for text in metadata.requires("imageshards") or ()]
    assert {each.name for each in required if not each.marker} <= versions.keys()
    assert {"python", "imageshards"} <= versions.keys()
    assert findings(out, "Extras").keys() == EXTRAS.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() <= project["optional-dependencies"].keys()
    formats = findings(out, "Decoders")
    assert {name: one["status"] for name, one in formats.items()} == dict.fromkeys(
        ("JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF", "JPEG 2000", "AVIF", "HEIC"), "ok"
    )
    machine = findings(out, "Machine")
    assert {"cores", "memory", "temporary files", "output"} <= machine.keys()
    assert str(tmp_path / "not/there") in machine["output"]["value"]
    assert not (tmp_path / "not").exists()


def test_its_text_has_a_line_for_each_finding(command: Command):
    code, out, _ = command("doctor")
    assert code == 0
    assert "  ok decoded" in out
    assert "JPEG, PNG, GIF, BMP, WebP" in out
    assert out.splitlines()[-1].startswith("no problems")
    assert "\x1b" not in out


def test_it_shows_where_credentials_and_proxies_come_from_and_no_secret(
    command: Command, environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("https_proxy", "http://me:hidden-3@proxy:3128")
    monkeypatch.setenv("IMAGESHARDS_BILLING_PROJECT", "payer")
    _, out, _ = command("doctor", "--json")
    assert "hidden" not in out
    cloud = findings(out, "Google Cloud")
    assert cloud["credentials"]["value"] == f"a user's login, in {environment}"
    assert cloud["billing project"]["value"] == "payer pays for requests"
    assert findings(out, "Network")["HTTPS_PROXY"]["value"] == "http://***@proxy:3128"


def test_credentials_that_cannot_be_used_are_a_problem(command: Command, environment: Path):
    environment.write_text("{}")
    code, out, _ = command("doctor", "--json")
    assert code == 1
    assert not json.loads(out)["ok"]
    found = findings(out, "Google Cloud")["credentials"]
    assert found["status"] == "problem"
    assert str(environment) in found["value"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield


def test_it_lists_folders_files_and_patterns(
    command: Command, photos: Path, server: None, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    options = ["--num_shards=2", "--output=gs://bucket/dataset"]
    assert command("build", f"--input={photos}", *options)[0] == 0
    expected = {
        str(photos): "a folder with 6 files in it",
        str(tmp_path / "empty"): "a folder with nothing in it",
        f"{photos}/*/*.jpg": "a pattern that matches 120 files",
        "gs://bucket/dataset/train-*": "a pattern that matches 2 files",
    }
    size = (photos / "class00/0000.jpg").stat().st_size
    expected[str(photos / "class00/0000.jpg")] = f"a file of {size} bytes"
    code, out, err = command("doctor", "--json", *expected, "gs://bucket/dataset/", "gs://bucket")
    found = {name: one["value"] for name, one in findings(out, "URIs").items()}
    assert (code, err) == (0, "")
    assert found.pop("gs://bucket/dataset/") == found.pop("gs://bucket")
    assert found == expected
    assert findings(out, "Google Cloud")["credentials"]["status"] == "note"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("gs://none/photos", "there is no such bucket"),
        ("gs://bucket/none", "nothing is there"),
        ("/none", "nothing is there"),
        ("none://x", "no filesystem supports such URIs"),
        ("http://127.0.0.1:1/1.jpg", "not a public address"),
    ],
)
def test_a_uri_that_cannot_be_read_is_a_problem(
    command: Command, server: None, uri: str, reason: str
):
    code, out, err = command("doctor", uri, "--json")
    assert (code, err) == (1, "")
    found = findings(out, "URIs")[uri]
    assert found["status"] == "problem"
    assert reason in found["value"]
    assert "\n" not in found["value"]


@pytest.mark.parametrize("missing", ["simplejpeg", "PIL", "google_crc32c", "rich"])
def test_a_broken_installation_is_a_problem_and_no_traceback(missing: str):
    code = (
        f"import sys; sys.modules['{missing}'] = None; from imageshards.launch.cli import main; "
        "sys.exit(main(['doctor', *sys.argv[1:]], own_process=True))"
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        words = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    if missing == "rich":
        status, out, err = run()
        assert (status, err) == (0, "")
        assert re.search(r"(?m)^Machine\n +ok memory  .*\n", out)
        return
    status, out, err = run("--json")
    assert (status, err) == (1, "")
    if missing == "google_crc32c":
        assert missing in findings(out, "Google Cloud")["doctor"]["value"]
    else:
        assert missing in findings(out, "Decoders")["decoders"]["value"]
    assert findings(out, "Machine")["memory"]["status"] in ("ok", "warning")


def test_limits_of_containers_are_found(tmp_path: Path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/job/inner\n")
    inner = tmp_path / "v2/job/inner"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    (inner.parent / "memory.max").write_text("2000000000\n")
    (inner.parent / "memory.current").write_text("500000000\n")
    assert cpu_quota(tmp_path / "v2", membership) == 1.5
    assert memory_limit(tmp_path / "v2", membership) == (2_000_000_000, 500_000_000)
    membership.write_text("4:cpu,cpuacct:/job\n3:memory:/job\n")
    for name, text in (
        ("cpu/cpu.cfs_quota_us", "-1"), ("cpu/job/cpu.cfs_quota_us", "400000"),
        ("cpu/job/cpu.cfs_period_us", "100000"),
        ("memory/memory.limit_in_bytes", f"{2**63 - 4096}"),
    ):  # fmt: skip
        (tmp_path / "v1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "v1" / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path / "v1", membership) == 4
    assert memory_limit(tmp_path / "v1", membership) is None
    assert cpu_quota(tmp_path / "none", tmp_path / "none") is None


def test_it_shows_the_credentials_of_other_clouds_and_no_secret(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "hidden-1", "AWS_SECRET_ACCESS_KEY": "hidden-2",
        "AWS_ENDPOINT_URL": "http://me:hidden-3@minio:9000",
        "AZURE_STORAGE_ACCOUNT": "lab", "AZURE_STORAGE_KEY": "aGlkZGVu",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    _, out, _ = command("doctor", "--json")
    assert "hidden" not in out
    assert "aGlkZGVu" not in out
    amazon, azure = findings(out, "Amazon S3"), findings(out, "Azure")
    assert (amazon["credentials"]["status"], amazon["credentials"]["value"]) == ("ok", "env")
    assert amazon["endpoint"]["value"] == "s3:// is http://***@minio:9000"
    assert azure["credentials"]["value"] == "AZURE_STORAGE_KEY"
    monkeypatch.setenv("AWS_PROFILE", "none-such")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    code, out, _ = command("doctor", "--json")
    assert code == 1
    assert "none-such" in findings(out, "Amazon S3")["credentials"]["value"]
