"""The command works, or prints one line with advice, in processes that lack what others have."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from conftest import Build
from helpers import IMAGESHARDS, contents, image_bytes, imageshards, names, told, write_images

from imageshards.pipeline.job.progress import Observer
from imageshards.transforms import storage
from imageshards.transforms.shards.layout import Layout

pytestmark = pytest.mark.slow

COMMAND = " ".join(IMAGESHARDS)


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash, in which `imageshards` is the command."""
    line = line.replace("imageshards ", f"{COMMAND} ")
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images in `in`, some with names that are not ASCII, and their data set."""
    found = tmp_path_factory.mktemp("process")
    write_images(found / "in", 2, 4)
    (found / "in/größe").mkdir()
    (found / "in/größe/café.jpg").write_bytes(image_bytes(9))
    assert shell("imageshards build --input in --output usual --name x", found).returncode == 0
    return found


@pytest.fixture
def usual(folder: Path) -> dict[str, bytes]:
    return contents(folder / "usual")


BUILD = "imageshards build --input in --output {out} --name x"


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"])
def test_a_build_does_not_need_its_standard_streams(
    folder: Path, usual: dict[str, bytes], tmp_path: Path, closed: str
):
    done = shell(f"{BUILD.format(out=tmp_path / 'out')} {closed}", folder)
    assert done.returncode == 0
    assert contents(tmp_path / "out") == usual
    assert not told(done.stderr)
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_an_error_is_not_written_to_stdout_if_stderr_is_closed(folder: Path):
    done = shell("imageshards build --input nowhere --output out 2>&-", folder)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_result_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path):
    done = shell(f"{BUILD.format(out=tmp_path / 'out')} > /dev/full", folder)
    assert done.returncode == 1
    assert told(done.stderr) == [
        "imageshards: the result cannot be written to stdout: No space left on device"
    ]
    assert (tmp_path / "out/dataset_info.json").exists()


def test_a_deleted_working_directory_is_one_line(folder: Path, tmp_path: Path):
    gone = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir ../gone"
    done = shell(f"{gone} && imageshards build --input {folder}/in --output {tmp_path}/out", folder)
    assert done.returncode == 2
    assert done.stderr == (
        "imageshards: the working directory was deleted: change to another one (cd)\n"
    )


def test_few_open_files_are_enough_for_one_process(
    folder: Path, usual: dict[str, bytes], tmp_path: Path
):
    build = BUILD.format(out=tmp_path / "out")
    done = shell(f"ulimit -n 20; {build} --num_shards 2 --workers 2", folder)
    assert done.returncode == 0, done.stderr
    (line,) = told(done.stderr)
    assert line.endswith(
        "one process writes all shards: more require 64 open files, and the limit is 20 (ulimit -n)"
    )
    assert sorted(names(tmp_path / "out")) == sorted(names(folder / "usual"))


def test_few_open_files_are_enough_for_many_archives(tmp_path: Path):
    for number in range(40):
        (tmp_path / f"{number}.jpg").write_bytes(image_bytes(number))
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            tar.add(tmp_path / f"{number}.jpg", f"{number}.jpg")
    done = shell(
        "ulimit -n 20; imageshards build --input '*.tar' --output out --num_shards 1", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(names(tmp_path / "out")) == 40


def test_little_memory_is_one_line(folder: Path, tmp_path: Path):
    done = shell(f"ulimit -v 300000; {BUILD.format(out=tmp_path / 'out')}", folder)
    assert done.returncode == 1
    (line,) = told(done.stderr)
    assert line.endswith(
        "this process is limited to 307 MB of address space: raise the limit (ulimit -v unlimited)"
    )


@pytest.mark.parametrize("damage", ["mount -t tmpfs -o ro none /dev/shm", "umount -l /dev/shm"])
def test_without_shared_memory_one_process_writes_all_shards(
    folder: Path, tmp_path: Path, damage: str
):
    if shell("unshare --mount true", folder).returncode:
        pytest.skip("this user may not change what is mounted")
    done = shell(
        f"unshare --mount bash -c '{damage}; {COMMAND} build --input in --output {tmp_path}/out "
        "--name x --num_shards 2 --workers 2'",
        folder,
    )
    assert done.returncode == 0, done.stderr
    lines = told(done.stderr)
    if lines:  # where /dev is writable, the folder is made
        assert "one process writes all shards: more require shared memory" in lines[0]
    assert len(lines) == ("ro" in damage)
    assert sorted(names(tmp_path / "out")) == sorted(names(folder / "usual"))


def test_names_are_utf_8_in_any_locale(folder: Path, usual: dict[str, bytes], tmp_path: Path):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell(BUILD.format(out=tmp_path / "out"), folder, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == usual
    done = shell(f"imageshards inspect {tmp_path}/out --records 9", folder, **ascii_only)
    assert "café.jpg" in done.stdout


def test_a_clock_that_was_set_back_does_not_change_what_is_resumed(folder: Path, tmp_path: Path):
    build = ["build", "--input", folder / "in", "--output", tmp_path / "out", "--num_shards=3"]
    assert imageshards(*build).returncode == 0
    (tmp_path / "out/train-00001-of-00003.tfrecord").unlink()
    for path in tmp_path.rglob("*"):
        os.utime(path, (4e9, 4e9))  # a build of the future
    layout = Layout(str(tmp_path / "out"))
    before = storage.stat(layout.plan)[1]
    observer = Observer(layout, before)
    assert observer.look() is None
    done = imageshards(*build)
    assert "2 shards were complete; the rest in" in done.stdout
    state = observer.look()
    assert state
    assert (state.shards, state.all_shards) == (3, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "{out}"],
        ["inspect", "{out}", "--contact_sheet", "{tmp}/sheet.png"],
        ["verify", "{out}", "--json"],
        ["features"],
        ["fingerprint", "--input", "{photos}", "--output", "{out}"],
        ["build", "--input", "{photos}", "--output", "{out}", "--num_shards=1", "--dry_run"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_every_command_reports_a_result_that_cannot_be_written(
    build: Build, photos: Path, tmp_path: Path, arguments: list[str]
):
    build(photos, num_shards="1")
    filled = [a.format(out=tmp_path / "out", tmp=tmp_path, photos=photos) for a in arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*IMAGESHARDS, *filled], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    reason = "the result cannot be written to stdout: No space left on device"
    assert told(done.stderr) == [f"imageshards: {reason}"]
    assert done.returncode == 1
