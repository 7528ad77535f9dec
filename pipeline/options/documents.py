"""The parts of documents that are made from the options: README.md, and the form of the DAG.

    python -m imageshards.pipeline.options.documents README.md launch/airflow/dags/*_dag.py

writes them again, between the two lines of each file that mark them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of

# What follows the first marker, up to the second.
_MARKED = re.compile(r"(?m)(^.*options:begin.*\n)(?s:.*?)(^.*options:end)")
_OWN_FIELDS = frozenset({"overwrite"})
"""Options for which the Airflow form has another field."""


def markdown(options: type[BuildOptions] = BuildOptions) -> str:
    """One table of Markdown for each group of options."""
    tables = []
    for group in options.command_line():
        rows = "".join(map(_row, options_of(group)))
        tables.append(f"| {group.title} | |\n|---|---|\n{rows}")
    return "\n" + "\n".join(tables) + "\n"


def _row(option: Option) -> str:
    usage = f"{option.flag} {option.metavar}".strip()
    cells = (f"`{usage}`", re.sub(r"[\\*]", r"\\\g<0>", option.description))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def form_schema(options: type[BuildOptions] = BuildOptions) -> dict[str, Any]:
    """JSON Schema of the values of options in the Airflow form: name -> schema.

    Options that accept any text are not in it. null and false omit an option, as Airflow's operator
    does; numbers may be written as texts.
    """
    return {
        option.name: schema
        for option in options.declared().values()
        if option.name not in _OWN_FIELDS and (schema := _schema(option))
    }


def _schema(option: Option) -> dict[str, Any]:
    if option.is_switch:
        return {"type": ["boolean", "null"]}
    if option.choices:
        texts = [choice for choice in option.allowed if isinstance(choice, str)]
        numbers = [form for n in option.allowed if isinstance(n, int) for form in (n, str(n))]
        return {"enum": [*texts, *numbers, None, False]}
    if option.limits:
        return {"minimum": option.limits[0], "maximum": option.limits[1]}
    return {}


def form_source() -> str:
    """The schema as Python source."""
    lines = [f"    {json.dumps(name)}: {schema!r}," for name, schema in form_schema().items()]
    return "\n".join(["_OPTIONS: dict[str, Any] = {", *lines, "}\n"]).replace("'", '"')


def rewritten(text: str, suffix: str) -> str:
    """A document with its marked part made from the options.

    Args:
      text: the document.
      suffix: of its name; `.md` or `.py`.
    """
    part = markdown() if suffix == ".md" else form_source()
    return _MARKED.sub(lambda marks: marks[1] + part + marks[2], text, count=1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewritten(path.read_text(), path.suffix))
