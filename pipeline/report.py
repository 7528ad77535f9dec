"""Renders metadata/report.html: one page with samples and statistics that loads no other files."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from imageshards.pipeline.metadata import classes_not_in_train
from imageshards.reader.parse import to_uint8
from imageshards.transforms import storage
from imageshards.transforms.elements import counted
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.annotations import BOXES, CLIPPED, DROPPED, KEYPOINTS_DROPPED
from imageshards.transforms.shards.layout import DatasetFacts, Layout, first_lines
from imageshards.transforms.shards.stats import SIZE_CLASSES

_SAMPLES = 24
_THUMBNAIL_PIXELS = 128
_CLASSES_SHOWN = 24
_TEXT_SHOWN = 300

_STYLE = """
:root { --ink: #1d2430; --soft: #667085; --line: #e4e7ec; --paper: #fff; --page: #f6f7f9;
  --bar: #4f7cff; --bad: #d4483b; color-scheme: light dark }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --soft: #98a2b3; --line: #2c3340;
  --paper: #181c24; --page: #101319; --bar: #6b92ff; --bad: #f2776b } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px }
h1 { font-size: 28px; margin: 0 } h2 { font-size: 20px; margin: 0 0 4px }
h3 { font-size: 13px; margin: 20px 0 8px; color: var(--soft); font-weight: 600 }
p { margin: 4px 0 } .notes { margin-top: 16px } ul { margin: 0; padding-left: 18px;
  font-size: 13px; overflow-wrap: anywhere } .soft { color: var(--soft) }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 20px }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 20px }
.fact { background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 12px 18px; min-width: 118px }
.fact b { display: block; font-size: 22px; font-variant-numeric: tabular-nums }
.fact.bad b { color: var(--bad) }
.sheet { display: grid; grid-template-columns: repeat(12, 1fr); gap: 10px }
@media (max-width: 900px) { .sheet { grid-template-columns: repeat(8, 1fr) } }
@media (max-width: 560px) { .sheet { grid-template-columns: repeat(4, 1fr) } }
figure { margin: 0; min-width: 0 }
figure img { width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: 8px; display: block;
  background: var(--line) }
figcaption { font-size: 12px; color: var(--soft); white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; margin-top: 3px }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 0 36px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
td { padding: 2px 0; font-size: 13px; vertical-align: middle }
td.name { max-width: 190px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  padding-right: 12px; width: 1% }
td.count { text-align: right; padding-left: 12px; white-space: nowrap; width: 1% }
.bar { height: 9px; border-radius: 5px; background: var(--bar); min-width: 2px }
.bad .bar { background: var(--bad) }
svg { width: 100%; height: 90px; display: block } svg rect { fill: var(--bar) }
code { font: 13px ui-monospace, Menlo, Consolas, monospace }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 20px; margin: 0;
  font-size: 13px } dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
"""


def write_report(layout: Layout, facts: DatasetFacts) -> None:
    """Writes the report. The shards, rejects.jsonl and leaks.jsonl must exist.

    The samples are the first records of each split, a random sample because records are shuffled.

    Args:
      layout: of the data set.
      facts: build.json and the schema.
    """
    rejected = first_lines(layout.rejects)
    leaked = first_lines(layout.leaks) if facts.build["counts"]["leaks"] else []
    page = _page(layout, facts.build, facts.schema, rejected, leaked)
    layout.write(layout.report, page.encode())


def _page(
    layout: Layout,
    build: Mapping[str, Any],
    schema: Schema,
    rejected: Sequence[Mapping[str, str]],
    leaked: Sequence[Mapping[str, Any]],
) -> str:
    body = [_head(build)]
    if leaked:
        body.append(_leaks(build, leaked, schema.noun))
    if unseen := classes_not_in_train(build["splits"], build["classes"]):
        body.append(_not_in_train(build, unseen))
    for name, split in build["splits"].items():
        body.append(_split(name, split, build, layout, schema))
    if build["conversions"]:
        body.append(_conversions(build))
    if annotations := build.get("annotations"):
        body.append(_annotations(annotations))
    body.append(_rejects(build, rejected, schema.noun))
    body.append(_options(build))
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(build['name'])}: imageshards</title><style>{_STYLE}</style>"
        f"<main>{''.join(body)}</main></html>\n"
    )


def human_bytes(size: float) -> str:
    """Returns a size in bytes with a unit.

    >>> human_bytes(110_200_000)
    '110.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _head(build: Mapping[str, Any]) -> str:
    counts = build["counts"]
    facts = [
        _fact(counts["records"], "record"),
        ("in shards", human_bytes(counts["bytes"]), False),
        _fact(len(build["shards"]), "shard"),
    ]
    if build["classes"]:
        facts.append(_fact(len(build["classes"]), "class"))
    facts.append(("converted", f"{counts['converted']:,}", False))
    facts.append(_fact(counts["rejects"], "reject", bad=counts["rejects"] > 0))
    facts.append(_fact(counts["duplicates"], "duplicate"))
    if counts["leaks"]:
        facts.append(("in two splits", f"{counts['leaks']:,}", True))
    if unseen := classes_not_in_train(build["splits"], build["classes"]):
        number = len({name for names in unseen.values() for name in names})
        count, _, noun = counted(number, "class").partition(" ")
        facts.append((f"{noun} not in train", count, True))
    facts.append(_fact(counts["passed_over"], "skipped file"))
    cards = "".join(
        f'<div class="fact{" bad" * bad}"><b>{value}</b><span class=soft>{name}</span></div>'
        for name, value, bad in facts
    )
    notes = "".join(f"<p class=soft>{escape(note)}</p>" for note in build["notes"])
    notes = f"<div class=notes>{notes}</div>"
    return (
        f"<h1>{escape(build['name'])}</h1><p class=soft>A data set of record files, shuffled with"
        f" seed {build['options']['seed']}, built by imageshards {escape(build['imageshards'])}."
        "</p>"
        f"<div class=facts>{cards}</div>{notes}"
    )


def _fact(number: int, noun: str, *, bad: bool = False) -> tuple[str, str, bool]:
    """Returns (noun in the right number, number, bad)."""
    text, _, noun = counted(number, noun).partition(" ")
    return noun, text, bad


def _split(
    name: str,
    split: Mapping[str, Any],
    build: Mapping[str, Any],
    layout: Layout,
    schema: Schema,
) -> str:
    shards = [
        shard
        for shard in build["shards"]
        if (parsed := parse_shard_name(shard["name"])) and parsed.split == name
    ]
    share = split["records"] / max(build["counts"]["records"], 1)
    formats = ", ".join(f"{count:,} {kind}" for kind, count in split["formats"].items())
    sheet = _sheet(shards, layout, schema, build["classes"])
    if schema.holds == "text":
        title, small, large = (
            "Length of the texts, bytes",
            *(f"{split[name][1]:,}" for name in ("smallest", "largest")),
        )
    else:
        title = "Long side of the images, pixels"
        small, large = _size(split["smallest"]), _size(split["largest"])
    charts = [
        f"<div><h3>{title}</h3>{_sizes(split['long_sides'])}"
        f"<p class=soft>smallest {small}, largest {large}</p></div>"
    ]
    if split["labels"]:
        charts.insert(0, f"<div>{_classes(split['labels'], build['classes'])}</div>")
    records = [shard["records"] for shard in shards]
    spread = (
        counted(min(records), "record")
        if min(records) == max(records)
        else f"{min(records):,} to {max(records):,} records"
    )
    each = " each" if len(shards) > 1 else ""
    return (
        f"<section><h2>{escape(name)}</h2><p class=soft>{counted(split['records'], 'record')} "
        f"({share:.1%}), {human_bytes(split['bytes'])}, {formats}</p>"
        f"<h3>A random sample</h3>{sheet}"
        f"<div class=two>{''.join(charts)}</div>"
        f"<h3>Size of each shard: {counted(len(shards), 'shard')} of {spread}{each}, "
        f"{_span([shard['bytes'] for shard in shards])}</h3>{_shard_bars(shards)}</section>"
    )


def _span(sizes: list[int]) -> str:
    least, most = human_bytes(min(sizes)), human_bytes(max(sizes))
    return least if least == most else f"{least} to {most}"


def _sheet(
    shards: list[dict[str, Any]], layout: Layout, schema: Schema, classes: Sequence[str]
) -> str:
    """Returns the first records of a split's shards as HTML."""
    every = (
        record
        for shard in shards
        if shard["records"]
        for record in read_back.read_shard(storage.join(layout.root, shard["name"]))
    )
    records = islice(every, _SAMPLES)
    if schema.holds != "text":
        return f"<div class=sheet>{''.join(_figures(records, schema, classes))}</div>"
    key = schema.key_of("text")
    texts = (record.first(key, b"").decode("utf-8", "replace") for record in records)
    items = "".join(f"<li>{escape(text[:_TEXT_SHOWN])}" for text in texts)
    return f"<ul>{items}</ul>"


def _figures(
    records: Iterable[read_back.Record], schema: Schema, classes: Sequence[str]
) -> Iterable[str]:
    for record in records:
        label = record.first(schema.label_key)
        text = classes[label] if label is not None and label < len(classes) else ""
        name = record.first(schema.key_of("filename"), b"").decode("utf-8", "replace")
        info = read_back.info_of(record, schema)
        data = _thumbnail(record, schema)
        title = escape(", ".join(filter(None, (name, f"{info.width} x {info.height}"))), quote=True)
        yield (
            f'<figure title="{title}"><img alt="" src="data:image/jpeg;base64,{data}">'
            f"<figcaption>{escape(text or name.rpartition('/')[2])}</figcaption></figure>"
        )


def _open(record: read_back.Record, schema: Schema) -> Image.Image:
    """Returns the image of a record."""
    content = schema.content
    data = record.first(content.key, b"") if content else b""
    if not content or not content.array:
        return Image.open(io.BytesIO(data))
    info = read_back.info_of(record, schema)
    values = np.frombuffer(data, np.dtype(content.array.dtype).newbyteorder("<"))
    pixels = to_uint8(values).reshape(info.height, info.width, -1)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _thumbnail(record: read_back.Record, schema: Schema) -> str:
    out = io.BytesIO()
    # With --check=header some records do not decode; the page shows a gray square.
    try:
        with _open(record, schema) as image:
            image.draft("RGB", (_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
            small = image.convert("RGB")
            small.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
            small.save(out, "JPEG", quality=80)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        Image.new("RGB", (8, 8), "#888").save(out, "JPEG")
    return base64.b64encode(out.getvalue()).decode()


def _rows(counts: Iterable[tuple[str, int]], bad: bool = False) -> str:
    counts = list(counts)
    most = max((count for _, count in counts), default=1) or 1
    rows = "".join(
        f'<tr><td class=name title="{escape(name, quote=True)}">{escape(name)}'
        f'<td><div class=bar style="width:{100 * count / most:.1f}%"></div>'
        f"<td class=count>{count:,}"
        for name, count in counts
    )
    return f"<table{' class=bad' * bad}>{rows}</table>"


def _classes(labels: Mapping[str, int], classes: list[str]) -> str:
    counts = {classes[int(label)]: count for label, count in labels.items()}
    absent = len(classes) - len(counts)
    note = f"<p class=soft>{absent:,} of {len(classes):,} classes have no record here</p>"
    return _class_bars(counts) + (note if absent else "")


def _class_bars(counts: Mapping[str, int]) -> str:
    if len(counts) <= _CLASSES_SHOWN:
        return f"<h3>Records of each class</h3>{_rows(counts.items())}"
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    half = _CLASSES_SHOWN // 2
    most, median, least = (ordered[at][1] for at in (0, len(ordered) // 2, -1))
    if most == least:
        classes = counted(len(counts), "class")
        return f"<h3>Records of each class</h3><p>{classes} of {most:,} each</p>"
    return (
        f"<h3>The largest of {len(counts):,} classes (median {median:,})</h3>"
        f"{_rows(ordered[:half])}<h3>The smallest</h3>{_rows(ordered[-half:])}"
    )


def _sizes(sides: Mapping[str, int]) -> str:
    names = {"0": f"over {SIZE_CLASSES[-1]:,}"}
    lower = 0
    for bound in SIZE_CLASSES:
        names[str(bound)] = f"{lower + 1:,} to {bound:,}"
        lower = bound
    ordered = sorted(sides.items(), key=lambda item: int(item[0]) or SIZE_CLASSES[-1] + 1)
    return _rows((names[bound], count) for bound, count in ordered)


def _size(size: Iterable[int]) -> str:
    height, width = size
    return f"{width:,} x {height:,}"


def _shard_bars(shards: list[dict[str, Any]]) -> str:
    # At most 512 bars; every n-th shard is shown.
    step = -(-len(shards) // 512)
    shown = shards[::step]
    most = max(shard["bytes"] for shard in shards) or 1
    width = min(1000 / len(shown), 62)
    bars = "".join(
        f'<rect x="{i * width:.2f}" y="{90 - 88 * shard["bytes"] / most:.1f}" '
        f'width="{max(width * 0.82, 0.8):.2f}" height="{88 * shard["bytes"] / most:.1f}">'
        f"<title>{escape(shard['name'])}: {counted(shard['records'], 'record')}, "
        f"{human_bytes(shard['bytes'])}</title></rect>"
        for i, shard in enumerate(shown)
    )
    return f'<svg viewBox="0 0 1000 90" preserveAspectRatio="none">{bars}</svg>'


def _leaks(build: Mapping[str, Any], leaked: Sequence[Mapping[str, Any]], noun: str) -> str:
    items = "".join(
        "<li>"
        + ", ".join(
            f"<code>{escape(image['filename'])}</code> <span class=soft>in "
            f"{escape(image['split'])}</span>"
            for image in line["images"]
        )
        for line in leaked
    )
    remedy = " <code>--dedupe pixels</code> keeps one of each." if noun == "image" else ""
    leaks = build["counts"]["leaks"]
    are = "is" if leaks == 1 else "are"
    first = f"<h3>The first {len(leaked):,}</h3>" if len(leaked) < leaks else ""
    return (
        f"<section><h2>Leaks</h2><p class=soft>{counted(leaks, noun)} {are} in more "
        "than one split. Each is a line of <code>metadata/leaks.jsonl</code>."
        f"{remedy}</p>{first}<ul>{items}</ul></section>"
    )


def _not_in_train(build: Mapping[str, Any], unseen: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for split, names in unseen.items():
        labels = build["splits"][split]["labels"].items()
        counts = {build["classes"][int(label)]: count for label, count in labels}
        ordered = by_count({name: counts[name] for name in names})[:_CLASSES_SHOWN]
        parts.append(f"<h3>{escape(split)}: {counted(len(names), 'class')}</h3>")
        parts.append(_rows(ordered, bad=True))
    return (
        "<section><h2>Not in train</h2><p class=soft>Records of classes of which train has none. A "
        f"model cannot learn them.</p>{''.join(parts)}</section>"
    )


def _conversions(build: Mapping[str, Any]) -> str:
    converted = counted(build["counts"]["converted"], "converted image")
    return (
        f"<section><h2>Conversions</h2><p class=soft>{converted}. "
        "Images by kind of conversion; one image may have several.</p>"
        f"{_rows(by_count(build['conversions']))}</section>"
    )


def _annotations(counts: Mapping[str, int]) -> str:
    return f"<section><h2>Boxes</h2><p class=soft>{annotations_text(counts)}.</p></section>"


def annotations_text(counts: Mapping[str, int]) -> str:
    """Describes the boxes of a data set, from `annotations` of its build.json.

    >>> annotations_text({"boxes": 1204, "clipped": 12, "dropped": 3})
    '1,204 boxes, 12 of them clipped; 3 boxes dropped, of which too little is in the image'
    """
    text = counted(counts.get(BOXES, 0), "box")
    if clipped := counts.get(CLIPPED):
        text += f", {clipped:,} of them clipped"
    if dropped := counts.get(DROPPED):
        text += f"; {counted(dropped, 'box')} dropped, of which too little is in the image"
    if keypoints := counts.get(KEYPOINTS_DROPPED):
        text += f"; {counted(keypoints, 'keypoint')} outside of the image"
    return text


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns (name, count), the largest count first, equal counts by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _rejects(build: Mapping[str, Any], rejected: Sequence[Mapping[str, str]], noun: str) -> str:
    if not build["rejects"]:
        none = f"None: every {noun} is in the data set."
        return f"<section><h2>Rejects</h2><p class=soft>{none}</p></section>"
    ordered = by_count(build["rejects"])
    items = "".join(
        f"<li><code>{escape(line['uri'])}</code> <span class=soft>{escape(line['error'])}: "
        f"{escape(line['reason'])}</span></li>"
        for line in rejected
    )
    return (
        "<section><h2>Rejects</h2><p class=soft>Each is a line of "
        "<code>metadata/rejects.jsonl</code>, with its URI and the reason."
        f"</p>{_rows(ordered, bad=True)}"
        f"<h3>The first rejects</h3><ul>{items}</ul></section>"
    )


def _options(build: Mapping[str, Any]) -> str:
    pairs = [(f"--{name}", value) for name, value in build["options"].items()]
    pairs += list(build["versions"].items())
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd><code>{escape(_value(value))}</code></dd>"
        for name, value in pairs
    )
    return f"<section><h2>Options and versions</h2><dl>{items}</dl></section>"


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    return str(value) if value != "" else "-"
