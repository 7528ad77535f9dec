"""Builds over an untidy folder: every record decodes, and what was done is counted."""

import io
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, records, rejects, write_images
from pictures import picture, saved
from PIL import Image

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.command_line import add_options, options_from
from imageshards.pipeline.options.parser import Parser
from imageshards.reader.verify import verify
from imageshards.transforms.images import headers

SIZE = (24, 16)

KINDS = {
    "16-bit-to-8-bit": 1, "alpha-on-white": 1, "cmyk-to-rgb": 1, "exif-rotated": 2,
    "first-frame": 2, "gif-to-png": 2, "heif-to-jpeg": 1, "jpeg2000-to-png": 1,
    "palette-to-rgb": 2, "tiff-to-png": 2, "webp-to-jpeg": 1, "webp-to-png": 1,
}  # fmt: skip
CONVERTED = 11


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    write_images(folder, 2, 5)
    rgb = picture("RGB", SIZE)
    turned = headers.exif_with_orientation(6)
    files = {
        "png called.jpg": image_bytes(1, "PNG"),
        "jpeg called.png": image_bytes(2),
        "cmyk.jpg": saved(picture("CMYK", SIZE), "JPEG"),
        "turned.jpg": saved(rgb, "JPEG", exif=turned),
        "turned.png": saved(rgb, "PNG", exif=turned),
        "photo.webp": saved(rgb, "WEBP"),
        "drawing.webp": saved(picture("RGBA", SIZE), "WEBP", lossless=True),
        "photo.heic": saved(rgb, "HEIF"),
        "scan.jp2": saved(rgb, "JPEG2000"),
        "deep.tif": saved(picture("I;16", SIZE), "TIFF"),
        "pages.tif": saved(rgb, "TIFF", save_all=True, frames=3),
        "still.gif": saved(rgb, "GIF"),
        "moving.gif": saved(rgb, "GIF", save_all=True, frames=3),
        "cut.webp": saved(rgb, "WEBP")[:60],
        "page.tif": b"<html>404</html>",
        "small.jpg": saved(picture("RGB", (7, 30)), "JPEG"),
    }
    for name, data in files.items():
        (folder / "class01" / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_every_record_decodes_and_conversions_are_counted(
    build: Build, untidy: Path, tmp_path: Path, writer: str
):
    out = tmp_path / "out"
    summary = build(
        untidy, num_shards="2", writer=writer, min_size=8, max_reject_fraction=0.5, name="x"
    )
    for record in records(out):
        image = tf.io.decode_image(record.first("image/encoded"), expand_animations=False)
        assert image.shape[:2] == (record.first("image/height"), record.first("image/width"))
        assert image.shape[2] in (1, 3)
        kind = Image.open(io.BytesIO(record.first("image/encoded"))).format
        assert record.first("image/format").decode() == kind
    found = build_json(out)
    assert found["conversions"] == found["splits"]["train"]["conversions"] == KINDS
    assert found["counts"]["converted"] == summary.converted == CONVERTED
    assert summary.records + summary.rejects == 26
    assert {Path(line["uri"]).name: line["error"] for line in rejects(out)} == {
        "cut.webp": "Corrupt", "page.tif": "NotAnImage", "small.jpg": "TooSmall",
    }  # fmt: skip
    assert f"  {CONVERTED} converted: 2 exif-rotated, 2 first-frame, 2 gif-to-png" in str(summary)
    page = (out / "metadata/report.html").read_text()
    assert all(kind in page for kind in KINDS)
    assert verify(str(out)).problems == ()
    read = tfds.as_numpy(tfds.builder_from_directory(str(out)).as_dataset(split="train"))
    assert {example["image/encoded"].shape[2] for example in read} == {3}


def test_resized_shards_are_the_same_in_every_run(build: Build, untidy: Path, tmp_path: Path):
    options = {"num_shards": "2", "resize": "crop:8x8", "max_reject_fraction": 0.5, "name": "x"}
    for name in ("a", "b"):
        build(untidy, output=tmp_path / name, **options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    sizes = {(r.first("image/height"), r.first("image/width")) for r in records(tmp_path / "a")}
    assert sizes == {(8, 8), (8, 7)}
    again = build(untidy, output=tmp_path / "a", **options)
    assert again.resumed == 2
    assert again.conversions["resized"] == again.converted == 24


def test_animations_are_kept_with_multi_frame_all(build: Build, untidy: Path, tmp_path: Path):
    build(untidy, num_shards="1", multi_frame="all", max_reject_fraction=0.5)
    formats = build_json(tmp_path / "out")["splits"]["train"]["formats"]
    assert formats["GIF"] == 1
    assert [Path(line["uri"]).name for line in rejects(tmp_path / "out")
            if line["error"] == "MultiFrame"] == ["pages.tif"]  # fmt: skip
    assert verify(str(tmp_path / "out")).problems == ()


def test_kept_exif_orientations_are_counted(build: Build, untidy: Path, tmp_path: Path):
    summary = build(untidy, num_shards="1", convert="never", max_reject_fraction=0.6)
    assert (summary.converted, summary.conversions) == (0, {"exif-kept": 2})
    assert "  2 with an EXIF orientation that readers have to apply" in str(summary)
    assert "converted" not in str(summary)


def test_a_large_file_is_not_read(build: Build, photos: Path, tmp_path: Path):
    big = tmp_path / "big.jpg"
    big.write_bytes(image_bytes(1))
    with big.open("ab") as file:
        file.truncate(1 << 40)
    build(photos, big, num_shards="1", max_bytes=100_000, max_reject_fraction=0.1)
    assert [line["error"] for line in rejects(tmp_path / "out")] == ["TooLarge"]


def test_the_command_line_has_the_options(command: Command, untidy: Path, tmp_path: Path):
    code, stdout, _ = command(
        "build", f"--input={untidy}", f"--output={tmp_path / 'out'}", "--resize=pad:12x12",
        "--enlarge", "--convert=png", "--exif=keep", "--multi_frame=reject", "--quality=80",
        "--min_size=8", "--max_pixels=1000", "--max_bytes=100000", "--max_reject_fraction=0.5",
    )  # fmt: skip
    assert code == 0
    assert "converted: " in stdout
    options = build_json(tmp_path / "out")["options"]
    assert options["resize"] == "pad:12x12"
    assert options["enlarge"] is True
    for record in records(tmp_path / "out"):
        assert record.first("image/format") == b"PNG"
        assert (record.first("image/height"), record.first("image/width")) == (12, 12)


def test_the_defaults_of_the_command_line_are_those_of_the_declarations():
    parser = Parser()
    add_options(parser)
    parsed = options_from(parser.parse_args(["--input=a", "--output=/o"]))
    assert parsed == BuildOptions.of(input=("a",), output="/o")
