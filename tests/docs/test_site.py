"""The built site, in build/site: `make docs` builds it and runs these tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
PAGES = sorted(SITE.rglob("*.html"))

pytestmark = pytest.mark.skipif(not PAGES, reason="make docs builds the site first")

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"),
          ("video", "src"), ("object", "data"), ("img", "srcset"), ("form", "action")}  # fmt: skip
"""Attributes whose URLs a browser requests, or to which it sends data, without a click."""


class Page(HTMLParser):
    """Collects ids, links, URLs that are loaded, and images without a text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.unnamed: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if tag == "a" and (href := found.get("href")):
            self.links.append(href)
        self.loaded += [value for name, value in attrs if (tag, name) in LOADED and value]
        if tag == "img" and not found.get("alt"):
            self.unnamed.append(found.get("src") or "")


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    return {path: Page(path) for path in PAGES}


def test_no_page_loads_anything_from_another_host(pages: dict[Path, Page]):
    for path, page in pages.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc], path
    for path in SITE.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')\s]+)", path.read_text())
        assert not [url for url in urls if re.match(r"(https?:)?//", url)], path


def test_links_lead_to_pages_and_sections(pages: dict[Path, Page]):
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if target.is_dir():
                target /= "index.html"
            assert target.exists(), f"{path}: {link}"
            if url.fragment and target in pages:
                assert unquote(url.fragment) in pages[target].ids, f"{path}: {link}"


def test_every_picture_has_a_text(pages: dict[Path, Page]):
    assert not [f"{path}: {src}" for path, page in pages.items() for src in page.unnamed]


def test_the_site_has_pages_from_the_whole_repository(pages: dict[Path, Page]):
    for name in ("airflow", "dataflow", "flink"):
        assert (SITE / f"production/{name}.html") in pages
    reference = (SITE / "reference/python.html").read_text()
    for name in ("load.load", "open", "Records", "CorruptRecord"):
        assert f'id="imageshards.reader.{name}"' in reference
    for name in ("BuildOptions", "ReadReferences", "WriteDataset"):
        assert f'id="imageshards.{name}"' in reference
    assert "batch_size" in reference
    assert "Add an input kind" in (SITE / "design/contributing.html").read_text()


def test_tables_show_alternatives_without_a_backslash():
    page = (SITE / "reference/command_line.html").read_text()
    assert "<code>--check full|header</code>" in page
