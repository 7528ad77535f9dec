"""Writes metadata/report.html: one page with samples and statistics that loads no other files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.reader.report.gallery import REJECTS_SHOWN, make_gallery
from imageshards.reader.report.page import Quoted, page_data, render
from imageshards.transforms.shards.layout import DatasetFacts, Layout, first_lines


def write_report(
    layout: Layout, facts: DatasetFacts, statistics: Mapping[str, Any], failure: str = ""
) -> None:
    """Writes the report. The shards, rejects.jsonl and leaks.jsonl must exist.

    Args:
      layout: of the data set.
      facts: build.json and the schema.
      statistics: the content of statistics.json; {} without one.
      failure: why the build failed; empty if it did not.
    """
    build = facts.build
    rejected = first_lines(layout.rejects, REJECTS_SHOWN)
    leaked = first_lines(layout.leaks) if build["counts"]["leaks"] else []
    quoted = Quoted(make_gallery(layout, facts, statistics, rejected), rejected, leaked)
    command = command_of(build)
    data = page_data(build, facts.schema, statistics, quoted, command=command, failure=failure)
    layout.write(layout.report, render(data).encode())


def command_of(build: Mapping[str, Any]) -> str:
    """Returns the command that repeats a build.

    Args:
      build: the content of build.json.
    """
    words = ["imageshards", "build"]
    declared = BuildOptions.declared()
    values = {**build["options"], **build.get("about", {}), "name": build["name"]}
    for name, value in values.items():
        option = declared.get(name)
        value = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        if not option or value == option.default:
            continue
        if option.is_switch:
            words.append(option.flag)
        elif value == ():
            words += [option.flag, "none"]
        elif isinstance(value, tuple) and not option.separator:
            words += (word for one in value for word in (option.flag, one))
        elif isinstance(value, tuple):
            words += [option.flag, option.separator.join(value)]
        else:
            words += [option.flag, str(value)]
    return f"{shlex.join(words)} --output OUT"
