"""`verify` judges images by the rules of their build, or with TensorFlow."""

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import Command
from helpers import image_bytes, records, shards, write_images
from odd_images import odd_images

from imageshards.reader.verification.decoders import Decoders
from imageshards.reader.verify import verify


@pytest.fixture
def header_build(tmp_path: Path, command: Command) -> Path:
    """A data set with a JPEG that TensorFlow decodes although its scan is damaged."""
    write_images(tmp_path / "in", 1, 3)
    data = image_bytes(1, "JPEG", (200, 200))
    (tmp_path / "in/class00/x.jpg").write_bytes(data[:-200] + bytes(100) + data[-100:])
    arguments = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--check=header")
    assert command("build", *arguments)[0] == 0
    assert all(
        tf.io.decode_image(r.first("image/encoded")).shape for r in records(tmp_path / "out")
    )
    return tmp_path / "out"


def test_what_a_header_check_accepts_and_tensorflow_decodes_is_no_problem(
    header_build: Path, command: Command
):
    code, out, err = command("verify", header_build)
    assert (code, err) == (0, "")
    assert re.search(r"no problems; 4 records in \d shards?, \d+\.\d kB, ", out)
    assert verify(str(header_build), sample=4).problems == ()


def add_undecodable(folder: Path, command: Command) -> Path:
    png = image_bytes(5, "PNG", (64, 64))
    (folder / "in/class00/y.png").write_bytes(png[:200] + bytes(50) + png[250:])
    arguments = ("--input", folder / "in", "--output", folder / "bad", "--check=header")
    assert command("build", *arguments)[0] == 0
    return folder / "bad"


@pytest.mark.parametrize("decoder", ["build", "tensorflow"])
def test_an_image_that_does_not_decode_is_no_damage(
    header_build: Path, command: Command, decoder: str
):
    bad = add_undecodable(header_build.parent, command)
    code, out, err = command("verify", bad, "--decoder", decoder)
    assert code == 1
    assert err.count("does not decode") == 1
    assert "1 problem; 4 sound records" in out
    assert "build with --check full to reject them" in out
    assert "delete" not in out
    assert "run the build command again" not in out
    # The advice leads to a data set that verify accepts.
    again = ("--input", bad.parent / "in", "--output", bad, "--check=full", "--overwrite")
    assert command("build", *again, "--max_reject_fraction=0.5")[0] == 0
    assert command("verify", bad, "--decoder", decoder)[0] == 0


def test_damage_and_unsuitable_images_are_told_apart(header_build: Path, command: Command):
    bad = add_undecodable(header_build.parent, command)
    verdict = verify(str(bad))
    assert (verdict.damaged, verdict.unsuitable) == (0, 1)
    with shards(bad)[0].open("ab") as file:
        file.write(b"\0")
    code, out, _ = command("verify", bad, "--json")
    found = json.loads(out)
    assert (code, found["unsuitable"]) == (1, 1)
    assert found["damaged"] >= 1
    text = str(verify(str(bad)))
    assert "delete the damaged files" in text
    assert "build with --check full" in text


def test_a_missing_shard_is_noticed_beside_many_other_problems(tmp_path: Path, command: Command):
    (tmp_path / "in").mkdir()
    for number in range(60):
        png = image_bytes(number, "PNG", (64, 64))
        (tmp_path / f"in/{number}.png").write_bytes(png[:200] + bytes(50) + png[250:])
    out = tmp_path / "out"
    arguments = ("--input", tmp_path / "in", "--output", out, "--check=header", "--num_shards=2")
    assert command("build", *arguments)[0] == 0
    shards(out)[0].unlink()
    verdict = verify(str(out))
    assert (verdict.damaged, verdict.missing, verdict.unsuitable) == (0, 1, 30)
    assert len(verdict.problems) == 21
    assert ": 31 problems; " in str(verdict)
    assert "run the build command again to rewrite them" in str(verdict)
    assert "build with --check full to reject them" in str(verdict)


def test_records_of_all_parts_that_wait_have_a_bounded_size():
    gate = threading.Event()
    submitted: list[int] = []

    def check(data: bytes) -> None:
        assert gate.wait(30)

    with Decoders(2, limit=35) as decoders:

        def read_part(size: int) -> None:
            for _ in range(20):
                decoders.submit_record(check, bytes(size))
                submitted.append(size)

        parts = [threading.Thread(target=read_part, args=[size]) for size in (10, 10, 50)]
        for part in parts[:2]:
            part.start()
        deadline = time.monotonic() + 30
        while len(submitted) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        parts[2].start()
        parts[0].join(0.2)
        assert submitted == [10] * 3
        gate.set()
        for part in parts:
            part.join(30)
    assert sorted(submitted) == [10] * 40 + [50] * 20


def test_tensorflow_decodes_every_record(tmp_path: Path, command: Command):
    (tmp_path / "in").mkdir()
    for number, name in enumerate(
        ("gif/87a.gif", "bmp/24.bmp", "png/animated.png", "jpeg/rgb.jpg")
    ):
        (tmp_path / f"in/{number}.jpg").write_bytes(odd_images()[name].data)
    build = ("--input", tmp_path / "in", "--output", tmp_path / "out", "--convert=never")
    assert command("build", *build)[0] == 0
    code, out, err = command("verify", tmp_path / "out", "--decoder", "tensorflow")
    assert (code, err) == (0, "")
    assert "no problems; 4 records" in out


def test_without_tensorflow_its_decoder_is_refused_in_one_line(header_build: Path):
    code = (
        "import sys; sys.modules['tensorflow'] = None; from imageshards.launch.cli import main; "
        f"sys.exit(main(['verify', {str(header_build)!r}, '--decoder', 'tensorflow']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "tensorflow is not installed: pip install 'imageshards[train]'" in done.stderr
