"""The command line as a user sees it: what it prints, where, and its exit codes."""

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command
from helpers import every_file, image_bytes, imageshards, told, write_images

from imageshards.launch.cli import main
from imageshards.transforms import storage


def test_stdout_has_only_the_result(command: Command, photos: Path, tmp_path: Path):
    code, out, err = command("build", "--input", photos, "--output", tmp_path / "out")
    assert code == 0
    assert err == ""
    assert out.splitlines()[0] == f"{tmp_path}/out"
    assert "120 images in 1 shard" in out
    code, out, _ = command("build", "--input", photos, "--output", tmp_path / "out", "--json")
    result = json.loads(out)
    assert (result["records"], result["resumed"]) == (120, 1)


BAD = [
    (["--input", "{tmp}/near.csv"], "its column 'Label' is not named 'label'", 2),
    (["--input", "{photos}", "--class_names", ""], "--class_names is empty", 2),
    (["--input", "{photos}", "--base_uri", "/none"], "none of the images is below it", 1),
    (["--input", "foo://x/y"], "foo://x/y: no filesystem", 2),
    (
        ["--input", "{photos}", "--runner", "Nonsense"],
        "--runner=Nonsense: Beam has Dat",
        2,
    ),
    (["--input", "{photos}", "--runner=flinkruner"], "did you mean FlinkRunner?", 2),
    (["--input", "{photos}", "--output", "gs://b/o[1]"], "*, ? and [ for patterns", 2),
    (["--input", "{tmp}/list.json"], "write it as JSONL", 2),
    (["--input", "{tmp}/bad.csv.gz"], "bad.csv.gz: cannot be read", 2),
    (["--input", "{tmp}/none"], "no such file or folder", 2),
    (["--input", "{tmp}/*.jpg"], "no image found: no file matches", 1),
    (["--input", "{tmp}/empty"], "no image found: there is no file in it", 1),
    (["--input", "{tmp}/texts"], "1 file was skipped by name: 1 .txt; a manifest", 1),
    ([], "--input is missing", 2),
    (["--input", "{photos}", "--output", ""], "--output is missing", 2),
    (["--input", "{photos}", "--output", "{tmp}/file"], "is a file, not a folder", 2),
    (["--input", "{photos}", "--output", "{tmp}/file/below"], "is a file, not a folder", 2),
    (["--input", "{photos}", "--output", "/proc/none"], "/proc/none", 1),
    (["--input", "{photos}", "--output", "{tmp}/other"], "another build: train-00000-of", 2),
    (
        ["--input", "{photos}", "--nmu_shards", "3"],
        "unknown option --nmu_shards, did you mean --num_shards?",
        2,
    ),
    (
        ["--input", "{photos}", "--seed", "x"],
        "invalid --seed 'x': expected an integer from 0 to",
        2,
    ),
    (["--input", "{photos}", "--splits", "train=80%,test=20%"], "write train=0.8 instead of", 2),
    (["--input", "{photos}", "--splits", "train=.8,test=.1"], "add up to 0.9, not to 1", 2),
    (["--input", "{photos}", "--num_shards", "121"], "write --num_shards 120 or less", 1),
    (["--input", "{photos}", "--splits", "folder"], "; it must be one of train, training,", 1),
    (["--input", "{photos}", "--labels", "column"], "is not a manifest and has no column", 2),
    (["--input", "{photos}", "--class_names", "{tmp}/names"], "does not hold 5 of the labels", 1),
    (["--input", "{photos}", "--class_names", "{tmp}/none"], "cannot be read: No such file", 2),
    (["--input", "{tmp}/column.csv"], "no column 'uri'", 2),
    (["--input", "{tmp}/good.csv", "--labels", "column:cls"], "no column 'cls'", 2),
    (["--input", "{tmp}/utf8.csv"], "utf8.csv:2: not UTF-8", 2),
    (["--input", "{tmp}/ragged.csv"], "ragged.csv:3: 3 values, but the header has 2", 2),
    (["--input", "{tmp}/split.csv"], "split 'trian'; it must be one of", 1),
    (
        ["--input", "{tmp}/prose.txt"],
        "'Call me Ishmael.' is no image: a .txt file has one URI per line; for a data set of texts",
        2,
    ),
    (["--input", "{tmp}/labels.txt"], "a .csv file with the header uri,label", 2),
    (["--input", "{tmp}/bad"], "were rejected, more than --max_reject_fraction", 1),
    (["photos"], "--input photos", 2),
    (["photos", "help"], "'photos'; did you mean --input photos?", 2),
    (["--input", "a.jpg", "b.jpg", "c.jpg"], "expanded a pattern; quote it: --input '*.jpg'", 2),
    (["--input={photos}/a", "{photos}/b", "{photos}/c"], "quote it: --input '{photos}/*'", 2),
    (["x/1.png", "x/2.png", "x/3.png"], "write --input and quote it: 'x/*.png'", 2),
    (["--input", "a", "b"], "before each input: --input a --input b", 2),
    (["--input", "{photos}", "--overwrite", "true"], "'true': --overwrite takes no value", 2),
    (["--input", "{photos}", "--num_shards", "3", "4"], "'4': --num_shards takes one value", 2),
    (["--input={photos}", "--split_names", "a", "b"], "value; write --split_names a,b", 2),
    (["-input", "{photos}"], "unknown option -input, did you mean --input?", 2),
    (["--in", "{photos}"], "unknown option --in, did you mean --input?", 2),
    (["--input", "{photos}", "--ouput", "x"], "--ouput, did you mean --output?", 2),
    (["--input", "{photos}", "--num-shard=3"], "--num_shard=3, did you mean --num_shards?", 2),
    (["--input", "{photos}", "--temp_locaton=x"], "did you mean --temp_location?", 2),
    (["--input", "{photos}", "--labels", "dirnam"], "did you mean dirname?", 2),
    (
        ["--input", "{photos}", "--seed"],
        "--seed: expected a value (imageshards build --help-all",
        2,
    ),
    (["--input", "{photos}", "--check", "ful"], "expected full or header; did you mean full?", 2),
]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name in ("empty", "texts", "other", "bad"):
        (folder / name).mkdir()
    (folder / "texts/a.txt").touch()
    (folder / "file").touch()
    (folder / "other/train-00000-of-00001.tfrecord").touch()
    (folder / "names").write_text("class00\n")
    for number in range(3):
        (folder / f"bad/{number}.jpg").write_bytes(b"bad")
    (folder / "column.csv").write_text("path\na.jpg\n")
    (folder / "good.csv").write_text("uri,label\na.jpg,x\n")
    (folder / "utf8.csv").write_bytes(b"uri\n\xff.jpg\n")
    (folder / "ragged.csv").write_text("uri,label\na,b\na,b,c\n")
    (folder / "near.csv").write_text("uri,Label\na.jpg,x\n")
    (folder / "list.json").write_text("[]")
    (folder / "prose.txt").write_text("Call me Ishmael.\nSome years ago\n")
    (folder / "labels.txt").write_text("cat/1.jpg 0\ndog/1.jpg 1\n")
    (folder / "bad.csv.gz").write_bytes(gzip.compress(b"uri\n" * 9)[:12] + b"garbage garbage")
    (folder / "split.csv").write_text("uri,split\na.jpg,trian\n")
    return folder


@pytest.mark.parametrize(("arguments", "says", "exit_code"), BAD, ids=lambda v: str(v)[:60])
def test_bad_input_is_one_clear_line(
    command: Command,
    bad: Path,
    photos: Path,
    tmp_path: Path,
    arguments: list[str],
    says: str,
    exit_code: int,
):
    arguments = [a.format(tmp=bad, photos=photos) for a in arguments]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "out")]
    before = every_file(bad)
    code, out, err = command("build", *arguments)
    assert code == exit_code
    assert out == ""
    assert says.format(tmp=bad, photos=photos) in err
    assert err.startswith("imageshards: ")
    assert len(told(err)) == 1, err
    assert every_file(bad) == before
    assert not (tmp_path / "out/dataset_info.json").exists()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_errors_of_worker_processes_are_one_line_too(bad: Path, tmp_path: Path):
    done = imageshards(
        "build", "--input", bad / "bad", "--output", tmp_path / "out",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    )  # fmt: skip
    assert done.returncode == 1
    assert "3 of 3 images (100.0%) were rejected" in done.stderr
    assert len(told(done.stderr)) == 1, done.stderr


def test_a_misspelled_input_is_not_called_missing(command: Command):
    code, _, err = command("build", "--inptu", "photos", "--output", "out")
    assert code == 2
    assert "unknown option --inptu, did you mean --input?" in err


def test_an_error_of_the_machine_is_one_line(
    command: Command, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    code, _, err = command("build", "--input", photos, "--output", tmp_path / "out")
    assert code == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert len(told(err)) == 1, err
    assert not (tmp_path / "out/dataset_info.json").exists()


def test_the_beam_writer_warns_of_its_memory(command: Command, photos: Path, tmp_path: Path):
    code, _, err = command(
        "build", "--input", photos, "--output", tmp_path, "--writer=beam", "--num_shards=2"
    )
    assert code == 0
    assert "6.5 times the size of the data set in memory" in err


def test_labels_of_the_job_are_passed_to_beam(command: Command, photos: Path, tmp_path: Path):
    """Airflow's operators add them; the option of imageshards has the same name."""
    code, _, err = command(
        "build", "--input", photos, "--output", tmp_path / "out", "--labels=none",
        "--labels=airflow-version=v3-3-2",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert not list((tmp_path / "out").glob("*.labels.txt"))


def test_a_name_with_control_characters_stays_on_one_line(command: Command, tmp_path: Path):
    write_images(tmp_path / "in\n\x1b[31m", 1, 1)
    code, _, err = command(
        "build", "--input", tmp_path / "in\n\x1b[31m", "--output", tmp_path / "o",
        "--splits=folder",
    )  # fmt: skip
    assert code == 1
    assert len(told(err)) == 1
    assert "in\\x0a\\x1b[31m/class00" in err


def test_an_interrupt_that_an_import_would_catch_ends_the_command():
    code = """
import os, signal, time
from imageshards.launch.load import _left_by_interrupt
with _left_by_interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
    except BaseException:
        print("caught")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "imageshards: interrupted; run the same command again to resume\n"


def test_verify_finds_damage_in_every_file(command: Command, photos: Path, tmp_path: Path):
    out = tmp_path / "out"
    command("build", "--input", photos, "--output", out, "--num_shards", 4)
    code, text, err = command("verify", out)
    assert (code, err) == (0, "")
    assert "no problems; 120 records in 4 shards" in text
    damages = {
        "metadata/index/train-00001-of-00004.idx": "index",
        "train-00002-of-00004.tfrecord": "record at byte",
        "train-00003-of-00004.tfrecord": None,
        "metadata/index/train-00000-of-00004.idx": None,
        "image.class.label.labels.txt": None,
        "features.json": None,
    }
    for name, says in damages.items():
        path = out / name
        whole = path.read_bytes()
        if says:
            at = whole.index(b" ", 100) + 1 if says == "index" else 100  # of an index, a digit
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        else:
            path.unlink()
        code, text, err = command("verify", out)
        assert code == 1
        assert (says or "missing") in err
        assert ("delete the damaged files" in text) == bool(says)
        assert name in err
        path.write_bytes(whole)
    labels = out / "image.class.label.labels.txt"
    whole = labels.read_bytes()
    labels.write_bytes(b"\n".join(reversed(whole.split())) + b"\n")
    assert "labels.txt: does not match" in command("verify", out)[2]
    labels.write_bytes(whole)
    (out / "train-00000-of-00009.tfrecord").touch()
    code, _, err = command("verify", out)
    assert "not of this data set" in err
    assert command("verify", tmp_path)[0] == 2
    (out / "dataset_info.json").unlink()
    code, _, err = command("verify", out)
    assert code == 2
    assert "not complete: run its build command again" in err


def test_verify_finds_damage_that_a_header_check_accepted(command: Command, tmp_path: Path):
    write_images(tmp_path / "in", 1, 3)
    png = image_bytes(5, "PNG", (64, 64))
    (tmp_path / "in/class00/x.png").write_bytes(png[:200] + bytes(50) + png[250:])
    arguments = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--check=header")
    assert command("build", *arguments)[0] == 0
    code, _, err = command("verify", tmp_path / "out")
    assert code == 1
    assert "does not decode" in err


def test_inspect_shows_a_data_set_and_a_shard(command: Command, photos: Path, tmp_path: Path):
    out = tmp_path / "out"
    command("build", "--input", photos, "--output", out, "--splits", "train=.5,test=.5")
    code, text, _ = command("inspect", out)
    assert code == 0
    for part in ("120 records", "train", "test", "image/encoded", "class05", "record 0"):
        assert part in text
    shard = next(out.glob("train-*"))
    code, text, _ = command("inspect", shard, "--records=1")
    assert "image/height            16" in text
    assert "record 1" not in text
    shard.write_bytes(shard.read_bytes()[:-3])
    code, text, _ = command("inspect", shard)
    assert "breaks off" in text
    shard.write_bytes(b"\1" * 40)
    code, _, err = command("inspect", out, "--records=1")
    assert (code, err.count("\n"), "CorruptRecord" in err) == (1, 1, False)
    assert err.startswith(f"imageshards: {shard}: record at byte 0: ")
    assert "; run imageshards verify" in err
    code, _, err = command("inspect", next(photos.rglob("*.jpg")))
    assert (code, "not a record file" in err) == (2, True)
    assert "one data set at a time" in command("verify", out, out)[2]
    code, _, err = command("inspect", tmp_path / "x.tfrecord")
    assert (code, "no such file" in err) == (2, True)


def test_the_summary_explains_what_auto_chose(command: Command, photos: Path, tmp_path: Path):
    _, out, _ = command("build", "--input", photos, "--output", tmp_path / "out")
    assert "train: 1 shard for " in out
    assert "6 classes by folder" in out
    assert "auto aims at 150 MB a shard" in out


def test_auto_measures_files_whose_size_a_manifest_does_not_have(
    command: Command, photos: Path, tmp_path: Path
):
    uris = "\n".join(map(str, photos.rglob("*.jpg")))
    (tmp_path / "m.txt").write_text(uris)
    _, out, _ = command("build", "--input", tmp_path / "m.txt", "--output", tmp_path / "out")
    assert "1 shard for " in out


def test_the_command_runs_where_the_streams_are_those_of_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["features"]) == 0
    assert "slim" in out.getvalue()


def test_the_demo_refuses_uris(command: Command):
    code, out, err = command("demo", "gs://bucket/demo")
    assert (code, out) == (2, "")
    assert err == (
        "imageshards: gs://bucket/demo: the demo writes to a folder of this machine; name a local "
        "folder\n"
    )


def test_only_commands_that_resume_promise_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "bill", interrupt)
    ends = [command("verify", tmp_path)[2], command("reshard", tmp_path, "n", "--num_shards=1")[2]]
    assert ends == [
        "imageshards: interrupted\n",
        "imageshards: interrupted; run the same command again to resume\n",
    ]


def test_a_split_that_may_be_misspelled_is_a_warning(
    photos: Path, tmp_path: Path, command: Command
):
    build = ["build", f"--input={photos}", f"--output={tmp_path}/out", "--dry_run"]
    warning = "imageshards: warning: --splits has a split 'tset': if it is misspelled, write 'test'"
    assert warning in command(*build, "--splits=train=0.8,tset=0.2")[2].splitlines()
    assert "warning" not in command(*build, "--splits=train=0.8,test_clean=0.1,query=0.1")[2]


def test_files_beside_the_data_set_are_kept_with_a_warning(
    photos: Path, tmp_path: Path, command: Command
):
    output = tmp_path / "out"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    build = ("build", "--input", photos, "--output", output)
    warning = (
        f"imageshards: warning: --output {output} is not empty: "
        "notes.txt will stay beside the data set"
    )
    assert warning in command(*build)[2].splitlines()
    assert (output / "notes.txt").read_text() == "mine"
    assert "not empty" not in command(*build)[2]
