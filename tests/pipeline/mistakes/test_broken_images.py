"""Data sets of broken images: reproducible, and without a word that is not about the images."""

import re
from pathlib import Path

import pytest
from helpers import build_json, contents, imageshards, rejects
from odd import DAMAGED, EXOTIC
from odd_images import odd_images, write_odd_images

ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")
TIME = re.compile(rb"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of broken images, and of a few good ones."""
    folder = tmp_path_factory.mktemp("broken") / "in"
    write_odd_images(
        folder,
        lambda name, odd: odd.state in (DAMAGED, EXOTIC) or name.startswith(("bmp", "orientation")),
    )
    return folder


def build(folder: Path, output: Path) -> str:
    """Builds a data set in a process of its own; returns its stderr."""
    done = imageshards(
        "build", "--input", folder, "--base_uri", folder, "--output", output, "--include_all",
        "--max_reject_fraction=1", "--num_shards=2", "--name=broken", "--workers=2",
        TMPDIR=str(output.parent),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_two_builds_of_broken_images_are_equal_and_hold_no_addresses_paths_or_times(
    broken: Path, tmp_path: Path
):
    errors = [build(broken, tmp_path / name) for name in ("one", "two")]
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    counts = build_json(tmp_path / "one")["counts"]
    assert counts["records"] + counts["rejects"] + counts["duplicates"] == counts["inputs"]
    assert counts["rejects"] > 100
    reasons = "\n".join(line["reason"] for line in rejects(tmp_path / "one")).encode()
    for name, content in {**one, "reasons": reasons}.items():
        if name.endswith((".tfrecord", "plan")):
            continue
        assert not ADDRESS.search(content), name
        assert str(tmp_path).encode() not in content, name
        assert b"tempfile" not in content, name
        assert b"_io." not in content, name
    assert not TIME.search(reasons)
    assert not re.search(rb"-\d+ x|x -\d+", reasons)
    # Decoders write nothing to stderr: libtiff would, without the name of the file.
    for line in "".join(errors).splitlines():
        assert line.startswith("imageshards: "), line


def test_every_reason_is_one_line_with_the_name_of_the_image(broken: Path, tmp_path: Path):
    build(broken, tmp_path / "out")
    for line in rejects(tmp_path / "out"):
        assert line["reason"]
        assert "\n" not in line["reason"]
        odd = odd_images()[line["uri"].removeprefix(f"{broken}/")]
        assert odd.state in (DAMAGED, EXOTIC), line
