"""The report's page in Chromium: it draws without an error, and its controls work."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from conftest import Build
from helpers import build_json

from imageshards.reader.report.gallery import make_gallery
from imageshards.reader.report.page import Quoted, page_data, render
from imageshards.transforms.records.schemas import SLIM
from imageshards.transforms.shards.layout import DatasetFacts, Layout

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium"),
]

# Runs after the page's own script, and leaves what it finds in the document.
PROBE = """
<script>
const found = {errors: window.problems};
const type = (selector, text) => {
  const input = document.querySelector(selector);
  input.value = text;
  input.dispatchEvent(new Event("input", {bubbles: true}));
};
const rows = () => [...document.querySelectorAll("#classes tbody")].at(-1).rows;
found.ready = document.body.dataset.ready;
found.rows = rows().length;
type("#class-search", SEARCH);
found.matches = [...rows()].map((row) => row.cells[1].textContent);
type("#class-search", "");
const only = document.querySelector("#classes input[type=checkbox]");
if (only) {
  only.click();
  found.missing = [...rows()].map((row) => [row.cells[1].textContent, row.cells[2].className,
    row.cells[2].textContent]);
}
const [split, kind] = document.querySelectorAll("#gallery select");
const show = (select, value) => {
  select.value = value;
  select.dispatchEvent(new Event("change", {bubbles: true}));
};
const tiles = () => [...document.querySelectorAll("#gallery .sheet button")];
show(split, "test");
found.splits = [...new Set(tiles().map((tile) => tile.lastChild.textContent.split(",")[0]))];
show(split, "");
show(kind, "reject:NotAnImage");
found.rejects = tiles().map((tile) => tile.title);
show(kind, "sample");
tiles()[0].click();
const dialog = document.getElementById("record");
found.dialog = dialog.open && dialog.textContent;
found.orientation = getComputedStyle(dialog.querySelector(".shown img")).imageOrientation;
dialog.close();
found.objects = document.querySelector("main").textContent.includes("[object");
found.bars = document.querySelectorAll(".bar").length;
found.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
found.unnamed = [...document.querySelectorAll("svg, input, select, [role=region]")]
  .filter((e) => !e.getAttribute("aria-label") && !e.labels?.length).length;
const result = document.createElement("pre");
result.id = "found";
result.textContent = JSON.stringify(found);
document.body.append(result);
</script>
"""
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
</script>"""


def in_browser(page: str, search: str, folder: Path, width: int = 1280) -> dict[str, Any]:
    """Opens a page, uses its controls, and returns what was found."""
    probe = PROBE.replace("SEARCH", json.dumps(search))
    page = page.replace("<style>", f"{WATCH}<style>", 1).replace("</body>", f"{probe}</body>")
    (folder / "page.html").write_text(page)
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
            "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
            (folder / "page.html").as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:]
    return json.loads(unescape(found[1]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("classes", [10, 1000, 20_000])
def test_the_page_draws_and_searches(classes: int, build: Build, photos: Path, tmp_path: Path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    build(photos, tmp_path / "bad.jpg", splits="train=0.7,test=0.3", num_shards="2",
          max_reject_fraction=0.1)  # fmt: skip
    # The real data set, with as many classes as are asked for; every tenth is not in train.
    document = build_json(tmp_path / "out")
    document["classes"] = [f"kind {label:05d}" for label in range(classes)]
    for name, split in document["splits"].items():
        split["labels"] = {
            str(label): 1 + label % 7 for label in range(classes) if name == "test" or label % 10
        }
    layout = Layout(str(tmp_path / "out"))
    statistics = json.loads((tmp_path / "out/metadata/statistics.json").read_text())
    line = json.loads((tmp_path / "out/metadata/rejects.jsonl").read_text())
    gallery = make_gallery(layout, DatasetFacts(document, SLIM), statistics, [line])
    page = render(page_data(document, SLIM, statistics, Quoted(gallery, [line])))
    assert len(page.encode()) < 10_000_000
    for width in (1280, 500):
        found = in_browser(page, f"{classes - 2:05d}", tmp_path, width)
        assert found["errors"] == []
        assert found["ready"] == "true"
        assert found["rows"] == min(classes, 20)
        assert found["matches"] == [f"kind {classes - 2:05d}"]
        assert found["missing"][0] == ["kind 00000", "n bad", "0, missing"]
        assert len(found["missing"]) == min(classes // 10, 20)
        assert found["splits"] == ["test"]
        assert found["rejects"] == [f"NotAnImage: {line['name']}"]
        assert "image/filename" in found["dialog"]
        assert found["orientation"] == "none"  # boxes are those of the stored pixels
        assert not found["objects"]
        assert found["bars"] == 1 + (2 * classes if classes == 10 else 0)  # of rejects, of classes
        assert not found["overflow"]
        assert found["unnamed"] == 0


def test_the_page_of_texts_draws(build: Build, tmp_path: Path):
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(50)))
    build(tmp_path / "lines.txt", features="text", num_shards="1")
    page = (tmp_path / "out/metadata/report.html").read_text()
    watch = page.replace("<style>", f"{WATCH}<style>", 1)
    (tmp_path / "page.html").write_text(watch)
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu",
         f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
         "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert 'data-ready="true"' in done.stdout
    assert "line 7" in done.stdout
