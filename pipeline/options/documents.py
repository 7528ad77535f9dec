"""The documents that are generated from the options: tables in Markdown, the Airflow form.

    python -m imageshards.pipeline.options.documents > launch/airflow/dags/imageshards_options.json

prints the JSON Schema of the form. `docs/command_line.py` writes the tables, with the other
commands, to docs/reference/command_line.md.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.options.declare import Option, options_of

# The lines from the first marker to the second.
_MARKED = re.compile(r"(?m)(^.*options:begin.*\n)(?s:.*?)(^.*options:end)")
_OWN_FIELDS = frozenset({"overwrite"})
"""Options that have a field of their own in the Airflow form."""


def markdown(options: type[BuildOptions] = BuildOptions) -> str:
    """Returns a Markdown table for each group of options."""
    tables = []
    for group in options.command_line():
        rows = "".join(map(_row, options_of(group)))
        title = f"### Options: {group.title}"
        tables.append(f"{title}\n\n| option | what it does |\n|---|---|\n{rows}")
    return "\n" + "\n".join(tables) + "\n"


def _row(option: Option) -> str:
    usage = f"{option.flag} {option.shown_metavar}".strip()
    cells = (f"`{usage}`", re.sub(r"[\\*]", r"\\\g<0>", option.description))
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def form_schema(options: type[BuildOptions] = BuildOptions) -> dict[str, Any]:
    """Returns the JSON Schema of option values in the Airflow form: name -> schema.

    It leaves out options that accept any text. The form accepts null and false because Airflow's
    operator then omits the option; numbers may be written as texts.
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


def form_json() -> str:
    """Returns the content of imageshards_options.json: `form_schema`, one option per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(s)}" for name, s in form_schema().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rewritten(text: str) -> str:
    """Returns a document in which the marked lines are replaced by the tables of options."""
    return _MARKED.sub(lambda marks: marks[1] + markdown() + marks[2], text, count=1)


if __name__ == "__main__":
    sys.stdout.write(form_json())
