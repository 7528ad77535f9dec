"""Writes metadata/report.html: one page with samples and statistics that loads no other files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from imageshards.pipeline.options.config_file import arguments_of
from imageshards.reader.report.gallery import REJECTS_SHOWN, make_gallery
from imageshards.reader.report.page import Quoted, page_data, render
from imageshards.transforms.shards.layout import DatasetFacts, Layout, first_lines


def write_report(
    layout: Layout,
    facts: DatasetFacts,
    statistics: Mapping[str, Any],
    options: bytes,
    failure: str = "",
) -> None:
    """Writes the report. The shards, rejects.jsonl and leaks.jsonl must exist.

    Args:
      layout: of the data set.
      facts: build.json and the schema.
      statistics: the content of statistics.json; {} without one.
      options: the content of build.yaml; empty if there is none.
      failure: why the build failed; empty if it did not.
    """
    build = facts.build
    rejected = first_lines(layout.rejects, REJECTS_SHOWN)
    leaked = first_lines(layout.leaks) if build["counts"]["leaks"] else []
    quoted = Quoted(make_gallery(layout, facts, statistics, rejected), rejected, leaked)
    command = command_of(options)
    data = page_data(build, facts.schema, statistics, quoted, command=command, failure=failure)
    layout.write(layout.report, render(data).encode())


def command_of(options: bytes) -> str:
    """Returns the command that repeats a build.

    Args:
      options: the content of build.yaml; empty if there is none.
    """
    if not options:
        return ""
    return f"{shlex.join(['imageshards', 'build', *arguments_of(options)])} --output OUT"
