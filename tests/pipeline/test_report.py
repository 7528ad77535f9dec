"""The report and the progress."""

import json
import re
import tarfile
import zipfile
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, write_images
from helpers import rejects as rejects_of
from PIL import Image

from imageshards.pipeline import finish
from imageshards.pipeline.operations.reshard import reshard
from imageshards.reader.report.page import page_data, render
from imageshards.transforms.records.schemas import SLIM


def data_of(page: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def report_of(folder: Path) -> dict[str, Any]:
    return data_of((folder / "metadata/report.html").read_text())


def test_the_report_is_one_file_that_loads_nothing(build: Build, photos: Path, tmp_path: Path):
    bad = tmp_path / "<b>&.jpg"
    bad.write_bytes(b"no image")
    options = {"splits": "train=0.6,test=0.4", "base_uri": str(photos), "seed": 1}
    build(photos, bad, num_shards="2", max_reject_fraction=0.1, **options)
    page = (tmp_path / "out/metadata/report.html").read_text()
    links = re.findall(r"""(?:\bsrc|\bhref|\burl)\s*[=(]\s*["']?([^"'\s>]{0,6})""", page)
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert "connect-src 'self'" in page
    data = data_of(page)
    assert [split["name"] for split in data["splits"]] == ["train", "test"]
    assert sum(map(sum, (split["labels"] for split in data["splits"]))) == 120
    samples = [entry for entry in data["gallery"] if entry["kind"] == "sample"]
    assert [entry["split"] for entry in samples] == ["train"] * 24 + ["test"] * 24
    assert all(entry["image"].startswith("data:image/png;base64,") for entry in samples)
    assert {"uniform", "dark", "bright", "blurred"} < {entry["kind"] for entry in data["gallery"]}
    assert samples[0]["features"]["image/width"] == "24"
    assert data["rejects"]["counts"] == [["NotAnImage", 1]]
    assert data["rejects"]["shown"][0]["uri"] == str(bad)


def test_names_cannot_end_the_script_of_the_report(build: Build, tmp_path: Path, photos: Path):
    name = "<script>alert(1)"
    folder = tmp_path / "in" / name
    folder.mkdir(parents=True)
    for number, path in enumerate(list(photos.rglob("*.jpg"))[:3]):
        (folder / f'"{number}<!--.jpg').write_bytes(path.read_bytes())
    build(tmp_path / "in", num_shards="1")
    page = (tmp_path / "out/metadata/report.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2
    assert data_of(page)["classes"] == [name]
    assert "<!--" not in page


def test_numbers_in_the_report_agree_with_their_nouns(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 1, 60)
    build(tmp_path / "in", splits="train=0.5,test=0.5", num_shards="train=1,test=2")
    facts = {noun: value for value, noun, _ in report_of(tmp_path / "out")["facts"]}
    assert (facts["records"], facts["shards"], facts["class"]) == (60, 3, 1)


def test_the_outliers_are_the_records_that_stand_out(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 2, 30)
    Image.new("RGB", (24, 16), "#777").save(tmp_path / "in/class00/plain.png")
    Image.new("RGB", (24, 16), "white").save(tmp_path / "in/class01/white.png")
    build(tmp_path / "in", num_shards="3")
    found = report_of(tmp_path / "out")
    first = {}
    for entry in found["gallery"]:
        first.setdefault(entry["kind"], entry)
    names = {first["uniform"]["name"], next(
        entry["name"] for entry in found["gallery"]
        if entry["kind"] == "uniform" and entry["name"] != first["uniform"]["name"]
    )}  # fmt: skip
    assert names == {"class00/plain.png", "class01/white.png"}
    assert first["bright"]["name"] == "class01/white.png"
    assert found["splits"][0]["statistics"]["nearly_uniform"] == 2
    # Numbers of records stay valid in other shards.
    reshard(str(tmp_path / "out"), str(tmp_path / "new"), "7")
    assert report_of(tmp_path / "new")["gallery"] == found["gallery"]


def test_boxes_and_masks_are_in_the_report(build: Build, tmp_path: Path):
    tf = pytest.importorskip("tensorflow")
    mask = Image.new("L", (24, 16))
    mask.paste(3, (2, 2, 9, 9))
    mask.save(tmp_path / "mask.png")
    lists = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_bytes(1)])),
        "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"owl"])),
        "image/mask": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[(tmp_path / "mask.png").read_bytes()])
        ),
        **{
            f"image/object/bbox/{side}": tf.train.Feature(
                float_list=tf.train.FloatList(value=[value])
            )
            for side, value in (("xmin", 0.1), ("xmax", 0.5), ("ymin", 0.2), ("ymax", 0.75))
        },
    }
    with tf.io.TFRecordWriter(str(tmp_path / "theirs.tfrecord")) as writer:
        example = tf.train.Example(features=tf.train.Features(feature=lists))
        writer.write(example.SerializeToString())
    build(tmp_path / "theirs.tfrecord", num_shards="1")
    entry = report_of(tmp_path / "out")["gallery"][0]
    assert entry["boxes"] == [[0.1, 0.2, 0.5, 0.75, ""]]
    assert entry["mask"].startswith("data:image/png;base64,")


def test_a_failed_build_has_a_report(build: Build, photos: Path, tmp_path: Path, command: Command):
    small = [tmp_path / f"small{number}.jpg" for number in range(4)]
    for number, path in enumerate(small):
        path.write_bytes(image_bytes(number, size=(8, 8)))
    inputs = [small[0], *(tmp_path / f"small.{suffix}" for suffix in ("tar", "zip", "tar.gz"))]
    with tarfile.open(inputs[1], "w") as tar, tarfile.open(inputs[3], "w:gz") as gzipped:
        tar.add(small[1], small[1].name)
        gzipped.add(small[3], small[3].name)
    with zipfile.ZipFile(inputs[2], "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(small[2], small[2].name)
    code, _, errors = command(
        "build", *(f"--input={path}" for path in (photos, *inputs)), "--labels=none",
        "--min_size=10", f"--output={tmp_path / 'out'}", "--num_shards=2",
    )  # fmt: skip
    assert code == 1
    found = report_of(tmp_path / "out")
    assert "4 of 124 images (3.2%) were rejected" in found["failure"]
    assert found["failure"] in errors
    rejects = {entry["uri"]: entry for entry in found["gallery"] if entry["kind"] == "reject"}
    assert {entry["error"] for entry in rejects.values()} == {"TooSmall"}
    # They decode, so that they can be looked at. What was unpacked is deleted.
    pictures = {uri for uri, entry in rejects.items() if "image" in entry}
    assert len(rejects) == 4
    assert rejects.keys() - pictures == {f"{inputs[3]}/{small[3].name}"}
    ranges = {
        line["uri"]: line["range"] for line in rejects_of(tmp_path / "out") if "range" in line
    }
    assert {uri: place["uri"] for uri, place in ranges.items()} == {
        f"{path}/{member.name}": str(path)
        for path, member in zip(inputs[1:3], small[1:3], strict=True)
    }
    assert not (tmp_path / "out/dataset_info.json").exists()


def test_a_report_that_cannot_be_written_hides_no_error(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "in").mkdir()
    for number in range(9):
        (tmp_path / f"in/{number}.jpg").write_bytes(b"no image" if number else image_bytes(0))

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(finish, "write_report", fail)
    code, _, errors = command("build", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert code == 1
    assert "were rejected" in errors.splitlines()[-1]


def test_the_header_check_says_that_statistics_are_of_a_sample(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, check="header", num_shards="1")
    assert "random sample of 20 of 120 images" in report_of(tmp_path / "out")["sampling"]
    build(photos, num_shards="1", output=tmp_path / "full")
    assert "All 120 images were measured" in report_of(tmp_path / "full")["sampling"]


def test_the_command_in_the_report_repeats_the_build(
    build: Build, photos: Path, tmp_path: Path, command: Command
):
    build(photos, splits="train=0.5,test=0.5", seed=3, quality=80, resize="10x10", name="pictures",
          features_from=(), num_shards="2", license="CC0-1.0", description="-dash",
          max_reject_fraction=0.5, web_timeout=5.0)  # fmt: skip
    line = report_of(tmp_path / "out")["command"].replace("OUT", str(tmp_path / "again"))
    words = unescape(line).split()
    assert {"--description=-dash", "--max_reject_fraction=0.5", "--web_timeout=5.0"} <= {*words}
    assert words[:2] == ["imageshards", "build"]
    assert command(*words[1:])[0] == 0
    assert {name: content for name, content in contents(tmp_path / "again").items()
            if not name.startswith("metadata/shards/")} == {
        name: content for name, content in contents(tmp_path / "out").items()
        if not name.startswith("metadata/shards/")
    }  # fmt: skip


@pytest.mark.parametrize("classes", [400_000])
def test_the_size_of_the_page_is_bounded(classes: int, build: Build, photos: Path, tmp_path: Path):
    build(photos, splits="train=0.7,test=0.3", num_shards="2")
    document = build_json(tmp_path / "out")
    document["classes"] = [f"class number {label} with a name" for label in range(classes)]
    for split in document["splits"].values():
        split["labels"] = {str(label): label % 1000 for label in range(classes)}
    document["shards"] *= 25_000
    page = render(page_data(document, SLIM, {}))
    assert len(page.encode()) < 6_000_000
    assert data_of(page)["class_count"] == classes
