"""Data sets of odd images, built twice with every --check, --convert and --multi_frame."""

from pathlib import Path

import pytest
import tensorflow as tf
from helpers import build_json, contents, imageshards, records, rejects
from odd import DAMAGED
from odd_images import may_reject, odd_images, write_odd_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "in"
    assert len(write_odd_images(folder)) >= 300
    return folder


@pytest.mark.parametrize("multi_frame", ["first", "all", "reject"])
@pytest.mark.parametrize("convert", ["auto", "jpeg", "png", "never"])
@pytest.mark.parametrize("check", ["full", "header"])
def test_odd_images_become_the_same_data_set_twice(
    folder: Path, tmp_path: Path, check: str, convert: str, multi_frame: str
):
    for name in ("one", "two"):
        done = imageshards(
            "build", "--input", folder, "--base_uri", folder, "--output", tmp_path / name,
            "--include_all", "--max_reject_fraction=1", "--num_shards=2", "--name=odd",
            "--workers=2", f"--check={check}", f"--convert={convert}",
            f"--multi_frame={multi_frame}",
        )  # fmt: skip
        if convert in ("jpeg", "png") and multi_frame == "all":  # GIFs cannot be kept and rewritten
            assert (done.returncode, "--multi_frame" in done.stderr) == (2, True)
            return
        assert done.returncode == 0, done.stderr
    out = tmp_path / "one"
    assert contents(out) == contents(tmp_path / "two")

    counts = build_json(out)["counts"]
    assert counts["inputs"] == len(odd_images())
    assert counts["records"] + counts["rejects"] + counts["duplicates"] == counts["inputs"]
    for line in rejects(out):
        odd = odd_images()[line["uri"].removeprefix(f"{folder}/")]
        assert may_reject(odd, line["error"], convert, multi_frame), line

    found = records(out)
    assert len(found) == counts["records"]
    for record in found:
        name = record.first("image/filename").decode()
        if check == "header" and odd_images()[name].state == DAMAGED:
            continue
        data = record.first("image/encoded")
        shape = tf.io.decode_image(data, expand_animations=False).shape
        declared = (record.first("image/height"), record.first("image/width"))
        assert tuple(shape[:2]) == declared, name
        if record.first("image/format") == b"GIF":
            assert tf.io.decode_image(data).shape[1:3] == declared, name
    if check == "full":
        # TensorFlow's libjpeg writes its warnings to stderr.
        done = imageshards("verify", out, "--decoder", "tensorflow")
        assert (done.returncode, "imageshards: " in done.stderr) == (0, False)
