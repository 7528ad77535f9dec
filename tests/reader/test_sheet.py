"""Contact sheets: PNG, HTML and half blocks."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Build, Command
from helpers import shards
from PIL import Image

from imageshards.reader.sheet import make_sheet, shows_colors

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}


@pytest.fixture
def dataset(build: Build, tmp_path: Path) -> Path:
    objects: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    for name, colour in COLOURS.items():
        folder = tmp_path / "in" / name
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (40 + number, 30), colour).save(folder / f"{number}.png")
            key = len(objects["images"])
            objects["images"].append({"id": key, "file_name": f"{name}/{number}.png"})
            box = [(40 + number - 30) // 2 + 3, 6, 24, 18]
            objects["annotations"].append(
                {"id": key, "image_id": key, "category_id": 1, "bbox": box}
            )
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({**objects, "categories": [{"id": 1, "name": "beak"}]}))
    build(tmp_path / "in", num_shards="2", annotations=(str(path),), labels="dirname")
    return tmp_path / "out"


def test_a_png_shows_the_first_images_and_their_classes(
    dataset: Path, tmp_path: Path, command: Command
):
    path = tmp_path / "sheet.png"
    code, out, _ = command("inspect", dataset, "--contact_sheet", path, "--images", 10)
    assert code == 0
    assert f"contact sheet: {path}" in out
    assert re.search(r"12 records in 2 shards, \d\.\d kB; ", out)
    assert re.search(r"2 shards +\d\.\d kB   12 PNG", out)
    sheet = make_sheet(str(dataset), 10)
    assert sheet is not None
    pixels = np.asarray(Image.open(path))
    for number, picture in enumerate(sheet.splits["train"]):
        x, y = 10 + number % 8 * 138, 10 + 18 + number // 8 * 156
        middle = tuple(int(value) for value in pixels[y + 64, x + 64])
        assert middle == COLOURS[picture.caption]
        assert len(picture.boxes) == 1
        assert {tuple(map(int, pixels[y + 64, x + at])) for at in (12, 114)} == {(255, 223, 61)}
    assert len(sheet.splits["train"]) == 10


def test_an_html_sheet_is_one_file(dataset: Path, tmp_path: Path, command: Command):
    path = tmp_path / "sheet.html"
    assert command("inspect", dataset, "--contact_sheet", path)[0] == 0
    page = path.read_text()
    assert page.count("<figure>") == 12
    assert "<figcaption>green</figcaption>" in page
    assert "http" not in page


def test_half_blocks_have_the_colours_of_the_images(dataset: Path):
    sheet = make_sheet(str(dataset), 4)
    assert sheet is not None
    lines = list(sheet.blocks(102))
    assert lines[0].strip() == "train: 4 of 12"
    assert len(lines) == 1 + 12 + 1
    found = re.findall(r"38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m", lines[1])
    assert len(found) == 4 * 24
    for number, picture in enumerate(sheet.splits["train"]):
        colour = tuple(map(int, found[number * 24 + 12]))
        assert colour == COLOURS[picture.caption] * 2
    assert all(len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= 102 for line in lines)


def test_only_a_terminal_that_declares_them_gets_colours(dataset: Path, command: Command):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert shows_colors(Terminal(), {"COLORTERM": "truecolor"})
    assert not shows_colors(Terminal(), {})
    assert not shows_colors(Terminal(), {"COLORTERM": "truecolor", "NO_COLOR": "1"})
    assert not shows_colors(io.StringIO(), {"COLORTERM": "truecolor"})
    assert "\x1b" not in command("inspect", dataset)[1]


def test_images_of_every_schema_of_pixels_are_shown(build: Build, dataset: Path, tmp_path: Path):
    for name, options in {
        "pixels": {"resize": "8x8"}, "raw": {"resize": "8x8"}, "shape": {},
    }.items():  # fmt: skip
        build(tmp_path / "in", num_shards="1", features=name, output=tmp_path / name, **options)
        sheet = make_sheet(str(tmp_path / name), 3)
        assert sheet is not None
        for picture in sheet.splits["train"]:
            found = picture.image.getpixel((4, 4))
            assert np.abs(np.subtract(found, COLOURS[picture.caption])).max() <= 1


def test_captions_are_labels_of_every_kind(
    build: Build, dataset: Path, tmp_path: Path, command: Command
):
    table = tmp_path / "list.csv"
    table.write_text("uri,tags,age\nin/red/0.png,wet|cold,0.25\nin/blue/1.png,[],12\n")
    found = {}
    for name, labels in {"tags": "list:tags", "ages": "column:age:float"}.items():
        build(table, num_shards="1", labels=labels, output=tmp_path / name)
        sheet = make_sheet(str(tmp_path / name), 2)
        assert sheet is not None
        found[name] = {picture.caption for picture in sheet.splits["train"]}
    assert found == {"tags": {"cold, wet", ""}, "ages": {"0.25", "12"}}

    table.write_text("uri,mask\nin/red/0.png,mask.png\n")
    Image.new("L", (40, 30), 3).save(tmp_path / "mask.png")
    build(table, num_shards="1", features="segmentation", output=tmp_path / "masks")
    code, out, err = command(
        "inspect", tmp_path / "masks", "--contact_sheet", tmp_path / "masks.png"
    )
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith("    image/")]
    kinds = ("int64", "bytes")
    assert len({row.index(kind) for row in rows for kind in kinds if f" {kind} " in row}) == 1
    code, _, err = command("inspect", tmp_path / "masks", "--coco=a.json", "--contact_sheet=a.png")
    assert code == 2
    assert "--coco and --contact_sheet cannot be combined" in err


def test_a_data_set_of_texts_has_no_sheet(build: Build, tmp_path: Path, command: Command):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    build(tmp_path / "a.txt", num_shards="1", features="text", labels="none")
    code, _, err = command("inspect", tmp_path / "out", "--contact_sheet", tmp_path / "a.png")
    assert code == 2
    assert "contains texts, not images" in err


def test_a_shard_has_a_sheet_too(
    build: Build, photos: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    build(photos, num_shards="2", features="pixels", resize="8x8", labels="none")
    shard = shards(tmp_path / "out")[0]
    assert command("inspect", shard, "--contact_sheet", tmp_path / "a.png")[0] == 0
    assert Image.open(tmp_path / "a.png").size[0] > 100
    other = tmp_path / "other.tfrecord"
    other.write_bytes(shard.read_bytes())
    code, _, err = command("inspect", other, "--contact_sheet", tmp_path / "b.png")
    assert code == 1
    assert "no feature 'image/encoded'" in err
    monkeypatch.setattr("imageshards.reader.sheet.shows_colors", lambda *_: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = command("inspect", other)
    assert code == 0
    assert "no images to show" in out


def test_an_invalid_path_is_an_error_of_one_line(dataset: Path, command: Command):
    code, out, err = command("inspect", dataset, "--contact_sheet", "a.gif")
    assert (code, out) == (2, "")
    assert "write FILE.png or FILE.html" in err
    code, _, err = command("inspect", dataset, "--contact_sheet", "/none/a.png")
    assert code == 2
    assert "/none/a.png: No such file" in err
