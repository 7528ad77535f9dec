"""Builds on Flink and on Prism write the bytes of a local build, also after faults.

This module tests each cell of the table in docs/production/engines.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import broken_data_sets
import pytest
from gcs_server import GcsServer
from helpers import IMAGESHARDS, contents, image_bytes, imageshards, names, write_images
from web_server import WebServer, reply, running

from imageshards.pipeline.options.beam_arguments import ignored_options

ROOT = Path(__file__).parents[2]
FIRST_DOWNLOAD = 1200
OPTIONS = ["--num_shards=3", "--name=x", "--splits", "train=0.8,test=0.2"]


def made(target: str, *tools: str) -> Path:
    """The path of a file that make fetches; skips the test if that is not possible."""
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"make {target} needs {tool}, which is not installed")
    done = subprocess.run(
        ["make", "-s", target],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=FIRST_DOWNLOAD,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        pytest.skip(f"make {target} failed: {lines[0] if lines else done.returncode}")
    return ROOT / target


@pytest.fixture(scope="module")
def prism() -> list[str]:
    """The options of a build on Prism."""
    return ["--runner=PrismRunner", f"--prism_location={made('.engines/bin/prism', 'go')}"]


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory, gcs: dict[str, str]) -> Iterator[list[str]]:
    """The options of a build on Flink. The cluster ends when its stdin does."""
    made(".engines/flink.made", "java", "mvn")
    folder = tmp_path_factory.mktemp("flink")
    script = ROOT / "launch/flink/cluster.py"
    options = ["--folder", folder, "--rest_port=0", "--job_port=0", "--restarts=1"]
    cluster = subprocess.Popen(
        [sys.executable, script, "run", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **gcs},
    )  # fmt: skip
    assert cluster.stdin
    assert cluster.stdout
    try:
        started = cluster.stdout.readline()
        assert started, [path.read_text()[-500:] for path in folder.glob("*.log")]
        yield json.loads(started)["options"]
    finally:
        cluster.stdin.close()
        cluster.wait(60)
        await_that(lambda: not in_group(cluster.pid), "processes of the cluster are still running")


@pytest.fixture(params=["flink", "prism"])
def engine(request: pytest.FixtureRequest) -> list[str]:
    options: list[str] = request.getfixturevalue(request.param)
    return options


@pytest.fixture(scope="module")
def local(
    photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, bytes]]:
    """local(*options) -> the files of a local build of the photos."""

    @cache
    def built(*options: str) -> dict[str, bytes]:
        out = tmp_path_factory.mktemp("local") / "out"
        done = imageshards("build", "--input", photos, "--output", out, *OPTIONS, *options)
        assert done.returncode == 0, done.stderr
        return contents(out)

    return built


def await_that(condition: Callable[[], object], otherwise: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def processes() -> Iterator[tuple[int, int, int, str]]:
    """(pid, parent, group, command line) of all processes of this machine."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, stat = (folder / "stat").read_text().rpartition(")")
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        state, parent, group = stat.split()[:3]
        if state != "Z":
            yield int(folder.name), int(parent), int(group), command


def in_group(group: int) -> list[int]:
    return [pid for pid, _, of, _ in processes() if of == group]


def below(ancestor: int, command: str) -> list[int]:
    """The descendants of a process whose command line contains `command`."""
    found = list(processes())
    family = {ancestor}
    while more := {pid for pid, parent, _, _ in found if parent in family} - family:
        family |= more
    return [pid for pid, _, _, line in found if pid in family - {ancestor} and command in line]


@pytest.mark.parametrize("options", [(), ("--file_format=array_record",)])
def test_an_engine_writes_the_bytes_of_a_local_build(
    engine: list[str],
    photos: Path,
    local: Callable[..., dict[str, bytes]],
    tmp_path: Path,
    options: tuple[str, ...],
):
    before = {pid for pid, _, _, _ in processes()}
    out = tmp_path / "out"
    done = imageshards(
        "build", "--input", photos, "--output", out, *OPTIONS, *options, *engine, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert contents(out) == local(*options)
    assert json.loads(done.stdout)["records"] == 120
    assert all(line.startswith("imageshards: ") for line in done.stderr.splitlines()), done.stderr
    left = [line for pid, parent, _, line in processes() if pid not in before and parent == 1]
    assert not [line for line in left if "prism" in line or "job-server" in line]


def test_operations_on_a_data_set_have_the_same_result_on_an_engine(
    engine: list[str], photos: Path, tmp_path: Path
):
    made = imageshards("build", "--input", photos, "--output", tmp_path / "out", *OPTIONS)
    assert made.returncode == 0, made.stderr
    resharded = []
    for name, options in (("here", []), ("there", engine)):
        new = tmp_path / name / "new"
        done = imageshards("reshard", tmp_path / "out", new, "--num_shards=2", *options)
        assert (done.returncode, done.stderr) == (0, "")
        resharded.append(contents(new))
    assert resharded[0] == resharded[1]
    inputs = ["--input", photos / "class00", "--input", photos / "class01"]
    listed = ["fingerprint", *inputs, "--output", tmp_path / "sets/v1", "--json"]
    assert imageshards(*listed).stdout == imageshards(*listed, *engine).stdout != ""
    (tmp_path / "out/train-00001-of-00003.tfrecord").unlink()
    found = []
    for options in ([], engine):
        done = imageshards("verify", tmp_path / "out", "--json", *options)
        found.append((done.returncode, {**json.loads(done.stdout), "seconds": 0}, done.stderr))
    assert found[0] == found[1]
    assert found[0][1]["missing"] == 1


def test_broken_inputs_are_the_same_lines_on_an_engine(engine: list[str], tmp_path: Path):
    broken_data_sets.make(tmp_path)

    def command(*arguments: object) -> tuple[int, str, str]:
        done = imageshards(*arguments)
        return done.returncode, done.stdout, done.stderr

    found = {
        name: [
            broken_data_sets.outcome(command, case, tmp_path, *runner) for runner in ([], engine)
        ]
        for name, case in broken_data_sets.CASES.items()
        if case.code == 1  # the others are refused before there is a job
    }
    assert {name: outcomes for name, outcomes in found.items() if outcomes[0] != outcomes[1]} == {}


def test_relative_paths_work_on_an_engine(engine: list[str], photos: Path, tmp_path: Path):
    # Workers have other working directories.
    shutil.copytree(photos / "class00", tmp_path / "in/class00")
    (tmp_path / "names.txt").write_text("class00\n")
    made = []
    for out, runner in (("a", []), ("b", engine)):
        done = subprocess.run(
            [*IMAGESHARDS, "build", "--input=in", f"--output={out}", "--class_names=names.txt",
             "--base_uri=in", "--name=x", *runner],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append(contents(tmp_path / out))
    assert made[0] == made[1]


def test_the_beam_writer_runs_on_an_engine(engine: list[str], photos: Path, tmp_path: Path):
    out = tmp_path / "out"
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    done = imageshards(
        "build", "--input", photos, "--input", tmp_path / "broken.jpg", "--output", out, *OPTIONS,
        *engine, "--writer=beam",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(set(names(out))) == 120
    done = imageshards("verify", out)
    assert "120 records in 6 shards" in done.stdout, done.stderr


def test_a_job_on_prism_may_take_longer_than_a_request(prism: list[str]):
    # With Beam's default of 300 s for a request, a longer job would fail; here it is 3 s.
    code = """if True:
        import sys, time
        import apache_beam as beam
        from imageshards.pipeline.job import execution

        execution._request_seconds = lambda: 3
        options = execution.CachedOptions([*sys.argv[1:], "--job_server_timeout=3"])
        pipeline = execution.new_pipeline(options, "")
        _ = pipeline | beam.Create([8.0]) | beam.Map(time.sleep)
        execution.wait_for(pipeline.run())
        """
    done = subprocess.run(
        [sys.executable, "-c", code, *prism],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


METRICS = """if True:
    import json, sys
    from imageshards.pipeline import graph
    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.job.execution import CachedOptions, new_pipeline, wait_for
    from imageshards.pipeline.options.build_options import BuildOptions

    photos, bad, output, *arguments = sys.argv[1:]
    options = BuildOptions.of(
        input=(photos, bad), output=output, num_shards="3", max_reject_fraction=0.1
    )
    pipeline = new_pipeline(CachedOptions(arguments), "")
    graph.build(pipeline, BuildSpec(options))
    result = pipeline.run()
    wait_for(result)
    print(json.dumps({
        metric.key.metric.name: metric.result for metric in result.metrics().query()["counters"]
        if metric.key.metric.namespace == "imageshards"
    }))
    """


def test_an_engine_reports_the_metrics_of_a_local_build(
    engine: list[str], photos: Path, tmp_path: Path
):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    found = []
    for name, runner in (("here", ["--runner=FnApiRunner"]), ("there", engine)):
        done = subprocess.run(
            [sys.executable, "-c", METRICS, str(photos), str(bad), str(tmp_path / name), *runner],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
    assert found[1]["images_written"] == 120
    assert found[1]["rejects/NotAnImage"] == 1


def test_a_failed_build_prints_one_line(engine: list[str], tmp_path: Path):
    write_images(tmp_path / "in", 1, 3)
    (tmp_path / "in/class00/bad.jpg").write_bytes(b"nonsense")
    out = tmp_path / "out"
    done = imageshards("build", "--input", tmp_path / "in", "--output", out, *engine)
    lines = [line for line in done.stderr.splitlines() if not is_progress(line)]
    assert done.returncode == 1
    assert len(lines) == 1, done.stderr
    assert "1 of 4 images (25.0%) was rejected" in lines[0]
    assert "1 NotAnImage, such as" in lines[0]
    assert not (out / "dataset_info.json").exists()


def test_a_bad_manifest_is_read_no_more_often_on_flink_than_locally(
    flink: list[str], gcs: dict[str, str], server: GcsServer, tmp_path: Path
):
    # Only the workers find the error, which is beyond the first rows.
    server.put("list.jsonl", b'{"uri": "a.jpg"}\n' * 20_000 + b"no JSON")
    reads = []
    for number, runner in enumerate(([], flink)):
        server.requests.clear()
        done = imageshards(
            "build", "--input=gs://bucket/list.jsonl", "--output", tmp_path / f"{number}",
            "--labels=none", *runner, **gcs,
        )  # fmt: skip
        assert done.returncode == 1
        assert "list.jsonl:20001: not JSON" in done.stderr.splitlines()[-1]
        reads.append(server.requests["GET media"])
    assert reads[0] == reads[1] > 0, "the restarted job read it again"


def is_progress(line: str) -> bool:
    return re.match(r"imageshards: (listing|writing|finishing): ", line) is not None


def test_options_without_effect_are_reported(prism: list[str], photos: Path, tmp_path: Path):
    done = imageshards(
        "build", "--input", photos, "--output", tmp_path / "out", *prism,
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = "imageshards: warning: PrismRunner ignores --direct_running_mode, --direct_num_workers\n"
    assert line in done.stderr


@pytest.mark.parametrize(
    ("runner", "option", "message"),
    [
        ("FlinkRunner", "--direct_num_workers=2", "FlinkRunner ignores --direct_num_workers"),
        ("FlinkRunner", "--num_workers=2", "FlinkRunner ignores --num_workers"),
        ("FlinkRunner", "--parallelism=2", ""),
        ("FnApiRunner", "--parallelism=2", "FnApiRunner ignores --parallelism"),
        ("FnApiRunner", "--direct_num_workers=2", ""),
    ],
)
def test_options_that_a_runner_ignores_are_named(runner: str, option: str, message: str):
    assert ignored_options([f"--runner={runner}", option]) == message


def test_workers_are_refused_on_other_runners(photos: Path, tmp_path: Path):
    for runner in ("FlinkRunner", "PrismRunner"):
        done = imageshards(
            "build", "--input", photos, "--output", tmp_path / "out", f"--runner={runner}",
            "--workers=2",
        )  # fmt: skip
        assert done.returncode == 2
        assert "--workers is for the local runner in one process" in done.stderr


# ------------------------------------------------------------------------------------- faults


class Gate:
    """A web page that does not answer until the gate is opened."""

    def __init__(self, body: bytes) -> None:
        self.asked = threading.Event()
        self.open = threading.Event()
        self._body = body

    def __call__(self, handler: object) -> None:
        self.asked.set()
        self.open.wait(200)
        reply(handler, 200, self._body)  # type: ignore[arg-type]


@pytest.fixture
def web() -> Iterator[WebServer]:
    with running() as server:
        yield server


@pytest.fixture
def halfway(web: WebServer, tmp_path: Path) -> tuple[Gate, list[str], dict[str, bytes]]:
    """A build that waits in the middle of a shard: its gate, options and expected files."""
    for number in range(40):
        web.pages[f"/c{number % 2}/{number}.jpg"] = image_bytes(number)
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{web.url}{path}\n" for path in web.pages))
    options = ["build", f"--input={listed}", "--num_shards=2", "--name=x", "--web_timeout=300"]
    options.append("--allow_private_hosts")
    done = imageshards(*options, "--output", tmp_path / "local")
    assert done.returncode == 0, done.stderr
    gate = web.pages["/c1/7.jpg"] = Gate(image_bytes(7))
    return gate, options, contents(tmp_path / "local")


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A running command; it is killed when the block ends."""
    process = subprocess.Popen(
        [*IMAGESHARDS, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


Halfway = tuple[Gate, list[str], dict[str, bytes]]


def test_flink_replaces_a_worker_that_is_killed_while_it_writes(
    flink: list[str], halfway: Halfway, tmp_path: Path
):
    gate, options, expected = halfway
    out = tmp_path / "out"
    with started(*options, "--output", out, *flink) as build:
        assert gate.asked.wait(600)
        workers = below(os.getpid(), "imageshards-worker --id")
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        gate.open.set()
        _, errors = build.communicate(timeout=200)
    assert build.returncode == 0, errors
    assert contents(out) == expected


def test_a_killed_worker_of_the_local_runner_fails_the_build_and_the_next_completes_it(
    halfway: Halfway, tmp_path: Path
):
    gate, options, expected = halfway
    out = tmp_path / "out"
    running = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with started(*options, "--output", out, *running) as build:
        assert gate.asked.wait(600)
        workers = below(build.pid, "launch.quiet_worker")
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        gate.open.set()
        _, errors = build.communicate(timeout=120)
    assert build.returncode == 1
    # Another worker may report that it lost its connection.
    assert "Traceback" not in errors
    assert "imageshards: a worker process was killed" in errors.splitlines()[-1]
    assert not (out / "dataset_info.json").exists()
    done = imageshards(*options, "--output", out)
    assert done.returncode == 0, done.stderr
    assert contents(out) == expected
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("runner", ["local", "flink"])
def test_two_builds_of_the_same_data_set_at_once_write_the_same_bytes(
    runner: str, halfway: Halfway, tmp_path: Path, request: pytest.FixtureRequest
):
    gate, options, expected = halfway
    chosen = request.getfixturevalue("flink") if runner == "flink" else []
    out = tmp_path / "out"
    with started(*options, "--output", out, *chosen) as first:
        assert gate.asked.wait(600)
        # Both builds wait in the middle of the same shard.
        gate.asked.clear()
        with started(*options, "--output", out) as second:
            assert gate.asked.wait(600)
            gate.open.set()
            errors = [build.communicate(timeout=200)[1] for build in (first, second)]
    assert first.returncode == second.returncode == 0, errors
    assert contents(out) == expected
