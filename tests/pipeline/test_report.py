"""The report and the progress."""

import re
import shutil
from pathlib import Path

from conftest import Build
from helpers import build_json, write_images


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
