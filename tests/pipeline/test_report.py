"""The report and the progress."""

import json
import re
import shutil
from pathlib import Path

from conftest import Build
from helpers import build_json, write_images

from imageshards.pipeline.job.progress import State, observe
from imageshards.transforms import storage
from imageshards.transforms.shards.layout import Layout


def test_the_report_is_one_file_that_loads_nothing(build: Build, photos: Path, tmp_path: Path):
    bad = tmp_path / "<b>&.jpg"
    bad.write_bytes(b"no image")
    options = {"splits": "train=0.6,test=0.4", "base_uri": str(photos), "seed": 1}
    build(photos, bad, num_shards="2", max_reject_fraction=0.1, **options)
    page = (tmp_path / "out/metadata/report.html").read_text()
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(.{5})""", page)
    assert len(links) == page.count("<figure") == 24 + 24
    assert set(links) == {"data:"}
    for part in ("NotAnImage", "&lt;b&gt;&amp;.jpg", "class00", "class05", "1 to 32", "pixels"):
        assert part in page


def test_numbers_in_the_report_agree_with_their_nouns(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 1, 60)
    shutil.copytree(tmp_path / "in/class00", tmp_path / "in/class00/copies")
    build(
        tmp_path / "in", splits="train=0.5,test=0.5", num_shards="train=1,test=2",
        labels=r"regex:(class\d+)",
    )  # fmt: skip
    page = (tmp_path / "out/metadata/report.html").read_text()
    assert "<b>3</b><span class=soft>shards<" in page
    assert "<b>1</b><span class=soft>class<" in page
    assert "<h3>Size of each shard: 1 shard of " in page
    assert "<h3>Size of each shard: 2 shards of " in page
    leaks = build_json(tmp_path / "out")["counts"]["leaks"]
    assert leaks > 20
    listed = page.partition("<h2>Leaks</h2>")[2].partition("</section>")[0]
    assert f"{leaks} images are in more than one split" in listed
    assert "<h3>The first 20</h3>" in listed
    assert listed.count("<li>") == 20


def test_names_of_images_are_escaped_in_the_report(build: Build, tmp_path: Path, photos: Path):
    folder = tmp_path / "in" / "<script>"
    folder.mkdir(parents=True)
    for number, path in enumerate(list(photos.rglob("*.jpg"))[:3]):
        (folder / f'"{number}<i>.jpg').write_bytes(path.read_bytes())
    build(tmp_path / "in", num_shards="1")
    page = (tmp_path / "out/metadata/report.html").read_text()
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page


def test_progress_is_computed_from_the_files(tmp_path: Path):
    layout = Layout(str(tmp_path))
    assert observe(layout, 0) is None
    layout.make_folders()
    plan = {"splits": {"train": {"images": 10, "shards": 4, "bytes": 1000}}}
    layout.write(layout.plan, json.dumps(plan).encode())
    assert observe(layout, 0) == State(0, 4, 0, 10)
    (tmp_path / "metadata/shards/train-00000-of-00004.tfrecord.json").touch()
    assert observe(layout, 0) == State(1, 4, 3, 10)
    growing = tmp_path / f"metadata/shards/train-00001-of-00004.tfrecord.abc{storage.TEMP_SUFFIX}"
    growing.write_bytes(bytes(125))
    assert observe(layout, 0) == State(1, 4, 4, 10)
    assert observe(layout, storage.stat(layout.plan)[1]) is None
