"""The documents as texts: README.md's length, links between documents, generated parts."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from code_blocks import DOCUMENTS, ROOT

from imageshards.launch.commands import COMMANDS

_CODE = re.compile(r"(?ms)^( *)```.*?^ *```$|`[^`\n]+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_readme_is_short_and_has_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "\nmake demo\nmake test\n" in text


def test_links_between_documents_lead_to_files_and_sections():
    """Read in the repository, where no site is built. MkDocs checks the links of the site."""
    for document in DOCUMENTS:
        for link in _LINK.findall(_CODE.sub("", (ROOT / document).read_text())):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, section = link.partition("#")
            target = (ROOT / document.parent / name).resolve() if name else ROOT / document
            assert target.exists(), f"{document}: {link}"
            if section and target.suffix == ".md" and target.name != "python.md":
                assert section in sections(target), f"{document}: {link}"


def sections(path: Path) -> set[str]:
    """The anchors of a document's headings."""
    text = re.sub(r"(?ms)^( *)```.*?^ *```$", "", path.read_text())
    return {slug(title) for title in re.findall(r"(?m)^#+ (.+)$", text)}


def slug(title: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def test_the_command_line_reference_is_that_of_the_parsers():
    text = (ROOT / "docs/reference/command_line.md").read_text()
    made = runpy.run_path(str(ROOT / "docs/command_line.py"))
    assert made["rewritten"](text) == text
    for name in COMMANDS:
        assert f"| [`{name}`](#{name}) |" in text
    for shown in (
        "`--num_shards N`",
        "### publish",
        "imageshards verify DIR",
        "`--keep_versions N`",
    ):
        assert shown in text
