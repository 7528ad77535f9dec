"""Hooks of MkDocs: pages that are kept elsewhere in the repository, and links between both.

A link in a document is a path in the repository, so that it works where the files are read too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINKED = {
    "launch/airflow/README.md": "production/airflow.md",
    "launch/airflow/graph.png": "production/graph.png",
    "launch/airflow/grid.png": "production/grid.png",
    "launch/dataflow/README.md": "production/dataflow.md",
    "launch/dataflow/SCALE.md": "production/scale.md",
    "launch/flink/README.md": "production/flink.md",
    "benchmarks/RESULTS.md": "design/results.md",
    "benchmarks/results.png": "design/results.png",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "design/contributing.md",
    "SECURITY.md": "reference/security.md",
    "transforms/records/SCHEMAS.md": "design/adding_a_schema.md",
}
"""Path in the repository -> path in the site."""
PACKAGES = {"": "api", "launch": "launch", "pipeline": "pipeline", "reader": "reader",
            "transforms": "transforms"}  # fmt: skip
"""Package below `imageshards` -> folder, as in setup.py."""

_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
_FENCED = re.compile(r"(?ms)^( *)(`{3,}).*?^ *\2`*$|`[^`\n]+`")
_INLINE_CODE = re.compile(r"<code>[^<]*</code>")
_NOWHERE = "not-in-the-site"


def on_startup(command: str, dirty: bool) -> None:
    """Links the packages to build/site-packages/imageshards, where the API reference finds them."""
    package = ROOT / "build/site-packages/imageshards"
    package.mkdir(parents=True, exist_ok=True)
    for name, folder in PACKAGES.items():
        target = package / (name or "__init__.py")
        target.unlink(missing_ok=True)
        target.symlink_to(ROOT / folder if name else ROOT / folder / "__init__.py")


def on_files(files: Files, config: Any) -> Files:
    """Adds the files of the repository that are pages of the site."""
    for source, page in LINKED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Rewrites links to files of the repository as links to pages of the site."""
    sources = {where: source for source, where in LINKED.items()}
    src_uri = page.file.src_uri
    source = sources.get(src_uri, f"docs/{src_uri}")
    code = [match.span() for match in _FENCED.finditer(text)]

    def rewritten(link: re.Match[str]) -> str:
        if any(begin <= link.start() < end for begin, end in code):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        target = LINKED.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else None
        )
        if target is None and path == "README.md":
            target = "index.md"
        if target is None:
            if not (ROOT / path).exists():
                raise PluginError(f"{source}: no file {path}")
            # The site does not have the repository's code: the link's text names the file.
            return f"]({_NOWHERE})"
        relative = posixpath.relpath(target, posixpath.dirname(src_uri) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    text = _LINK.sub(rewritten, text)
    return re.sub(rf"\[([^\[\]]*)\]\({re.escape(_NOWHERE)}\)", r"\1", text)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Names the dialog of the theme's search, for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    r"""Shows `\|` in code as `|`: tables need the backslash, and Python-Markdown keeps it."""
    return _INLINE_CODE.sub(lambda code: code[0].replace(r"\|", "|"), html)
