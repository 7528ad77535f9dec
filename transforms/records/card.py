"""The content of DATASET_CARD.md: what people who find the data set need to know. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from imageshards.transforms.elements import counted
from imageshards.transforms.records.croissant import description_of, license_url
from imageshards.transforms.records.schemas import SOURCES, Feature, Schema

_CLASSES_SHOWN = 50
_ESCAPED = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#|"} | {"\n": " ", "\r": " "})


def card(build: Mapping[str, Any], schema: Schema) -> bytes:
    """Returns the data card as Markdown, with front matter as the Hugging Face Hub reads it.

    Args:
      build: the content of build.json.
      schema: the features of a record.
    """
    about, counts, classes = build["about"], build["counts"], build["classes"]
    front = {"pretty_name": build["name"]}
    if about.get("license"):
        front["license"] = about["license"]
    lines = ["---", *(f"{key}: {json.dumps(text)}" for key, text in front.items()), "---", ""]
    lines += [f"# {_escaped(build['name'])}", "", description_of(build, schema), ""]
    lines += [f"- {name}: {text}" for name, text in _facts(build)]
    lines += ["", "## Splits", "", "| split | records | bytes | shards |", "|---|---:|---:|---:|"]
    for name, split in build["splits"].items():
        lines.append(
            f"| {name} | {split['records']:,} | {split['bytes']:,} | {split['shards']:,} |"
        )
    lines += ["", "## Features", "", "| feature | type | content |", "|---|---|---|"]
    for feature in schema.features:
        lines.append(f"| `{feature.key}` | {feature.kind} | {_content(feature)} |")
    if classes:
        lines += ["", "## Classes", "", f"{counted(len(classes), 'class')}, in label order."]
        shown = [f"{label}. {_escaped(name)}" for label, name in enumerate(classes)]
        lines += ["", *shown[:_CLASSES_SHOWN]]
        if len(classes) > _CLASSES_SHOWN:
            lines += ["", f"The other {len(classes) - _CLASSES_SHOWN:,} are in the labels file."]
    lines += ["", "## How it was made", "", _made(build, counts, schema)]
    if about.get("citation"):
        lines += ["", "## Citation", "", *(f"    {line}" for line in about["citation"].split("\n"))]
    return ("\n".join(lines) + "\n").encode()


def _facts(build: Mapping[str, Any]) -> list[tuple[str, str]]:
    about = build["about"]
    found = []
    if name := about.get("license"):
        url = license_url(name)
        found.append(("License", f"[{_escaped(name)}]({url})" if url != name else _escaped(name)))
    for title, key in (("Made by", "creator"), ("Published", "date_published"),
                       ("Homepage", "homepage")):  # fmt: skip
        if about.get(key):
            found.append((title, _escaped(about[key])))
    found.append(("Machine-readable description", "`croissant.json` (Croissant 1.1)"))
    found.append(("Charts and samples", "`metadata/report.html`"))
    return found


def _content(feature: Feature) -> str:
    return SOURCES.get(feature.source, "a column of the inputs")


def _made(build: Mapping[str, Any], counts: Mapping[str, int], schema: Schema) -> str:
    text = (
        f"imageshards {build['imageshards']} wrote {counted(counts['records'], schema.noun)} of "
        f"{counts['inputs']:,} inputs, in a random order with the seed {build['options']['seed']}: "
        f"{counted(counts['rejects'], 'reject')}, {counted(counts['duplicates'], 'duplicate')}, "
        f"{counts['converted']:,} converted."
    )
    if left_out := sum(build.get("left_out", {}).values()):
        text += f" Options leave out {left_out:,} inputs."
    leaks = counts["leaks"]
    if leaks:
        text += f" {counted(leaks, schema.noun)} {'is' if leaks == 1 else 'are'} in two splits."
    return text + " The options and versions are in `metadata/build.json`."


def _escaped(text: str) -> str:
    """A text as Markdown, on one line."""
    return text.translate(_ESCAPED)
