"""The report's page: its data as JSON in a template, `page.html`, that draws it.

The page has a bounded size, whatever the size of the data set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from imageshards.transforms.annotations.objects import CAPTIONS, LEFT_OUT, REJECTED
from imageshards.transforms.elements import counted, human_bytes
from imageshards.transforms.images.measure import NEARLY_UNIFORM
from imageshards.transforms.pairs.masks import CONVERTED, MASKS
from imageshards.transforms.records.containers import parse_shard_name
from imageshards.transforms.records.schemas import Schema
from imageshards.transforms.shards.annotations import (
    BOXES,
    CLIPPED,
    DROPPED,
    KEYPOINTS_DROPPED,
    ORIENTED,
    OUTSIDE,
    WITHOUT_BOXES,
)
from imageshards.transforms.shards.profile import (
    LUMA_CLASSES,
    SHARPNESS_CLASSES,
    SIDE_BOUNDS,
)

_CLASS_BYTES = 4_000_000
_SHARDS_SHOWN = 2048
_ASPECTS = ("narrower", "1:3", "1:2", "9:16", "2:3", "3:4", "< 1:1", "1:1", "> 1:1", "4:3", "3:2",
            "16:9", "2:1", "3:1", "wider")  # fmt: skip
_STATISTICS = ("measured", "sampled", "nearly_uniform", "channels", "counts")


@dataclass(frozen=True)
class Quoted:
    """Single images and lines of a data set that the page shows.

    Attributes:
      gallery: the entries of the gallery.
      rejected: the first lines of rejects.jsonl.
      leaked: the first lines of leaks.jsonl.
    """

    gallery: Sequence[Mapping[str, Any]] = ()
    rejected: Sequence[Mapping[str, Any]] = ()
    leaked: Sequence[Mapping[str, Any]] = ()


def render(data: Mapping[str, Any]) -> str:
    """Returns the page as HTML.

    Args:
      data: the result of `page_data`.
    """
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    # In a script element only "<" could end the text.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = escape(f"{data['name']}: imageshards")
    return template.replace("$title", title, 1).replace("$data", text, 1)


def annotations_text(counts: Mapping[str, int]) -> str:
    """Describes the masks and boxes of a data set, from `annotations` of its build.json.

    >>> annotations_text({"boxes": 1204, "clipped": 12, "dropped": 3})
    '1,204 boxes, 12 of them clipped; 3 boxes dropped, of which too little is in the image'
    >>> annotations_text({"boxes": 7, "without_boxes": 2})
    '7 boxes; 2 images without boxes'
    >>> annotations_text({"captions": 10, "rejected": 5})
    '10 captions; 5 in rejected images'
    """
    text = ""
    if masks := counts.get(MASKS):
        converted = counts.get(CONVERTED, 0)
        text = counted(masks, "mask") + (f", {converted:,} of them converted" if converted else "")
        if not counts.keys() - {MASKS, CONVERTED}:
            return text
        text += "; "
    captions = counts.get(CAPTIONS, 0)
    if captions:
        text += counted(captions, "caption")
    if not captions or counts.get(BOXES):
        text += f"{', ' if captions else ''}{counted(counts.get(BOXES, 0), 'box')}"
    if clipped := counts.get(CLIPPED):
        text += f", {clipped:,} of them clipped"
    if dropped := counts.get(DROPPED):
        text += f"; {counted(dropped, 'box')} dropped, of which too little is in the image"
    if rejected := counts.get(REJECTED):
        text += f"; {rejected:,} in rejected images"
    if left_out := counts.get(LEFT_OUT):
        text += f"; {left_out:,} in images that are left out"
    if without := counts.get(WITHOUT_BOXES):
        text += f"; {counted(without, 'image')} without boxes"
    if outside := counts.get(OUTSIDE):
        text += f"; {counted(outside, 'box')} beyond the edges of the image"
    if oriented := counts.get(ORIENTED):
        text += (
            f"; {counted(oriented, 'image')} with an EXIF orientation, whose boxes refer to the "
            "pixels of --annotations_on"
        )
    if keypoints := counts.get(KEYPOINTS_DROPPED):
        text += f"; {counted(keypoints, 'keypoint')} outside of the image"
    return text


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns (name, count), the largest count first, equal counts by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def page_data(
    build: Mapping[str, Any],
    schema: Schema,
    statistics: Mapping[str, Any],
    quoted: Quoted | None = None,
    *,
    command: str = "",
    failure: str = "",
    served: bool = False,
) -> dict[str, Any]:
    """Returns the data of the page.

    Args:
      build: the content of build.json.
      schema: the schema of the records.
      statistics: the content of statistics.json; {} without one.
      quoted: the images and lines that the page shows; None for none.
      command: the command that repeats the build.
      failure: why the build failed; empty if it did not.
      served: whether a server provides all records to the page.
    """
    counts = build["counts"]
    quoted = quoted or Quoted()
    classes = _classes_shown(build)
    profiles = statistics.get("splits", {})
    about = [[key.replace("_", " "), text] for key, text in build.get("about", {}).items()]
    return {
        "name": build["name"],
        "noun": schema.noun,
        "served": served,
        "named": bool(schema.key_of("filename") or schema.key_of("source")),
        "failure": failure,
        "summary": f"A data set of record files, shuffled with seed {build['options']['seed']}, "
        f"built by imageshards {build['imageshards']}.",
        "facts": _facts(build),
        "notes": list(build["notes"]),
        "splits": _splits(build, schema, profiles, len(classes)),
        "classes": classes,
        "class_count": len(build["classes"]),
        "bounds": {
            "sides": SIDE_BOUNDS,
            "aspects": _ASPECTS,
            "luma": LUMA_CLASSES,
            "sharpness": SHARPNESS_CLASSES,
            "uniform": NEARLY_UNIFORM,
        },
        "sampling": _sampling(build, profiles),
        "gallery": list(quoted.gallery),
        "rejects": {
            "counts": by_count(build["rejects"]),
            "total": counts["rejects"],
            "shown": [
                {key: line[key] for key in ("error", "uri", "reason")} for line in quoted.rejected
            ],
        },
        "leaks": {"total": counts["leaks"], "shown": [line["images"] for line in quoted.leaked]},
        "conversions": by_count(build["conversions"]),
        "converted": counts["converted"],
        "boxes": annotations_text(build["annotations"]) if build.get("annotations") else "",
        "command": command,
        "features": [[feature.key, f"{feature.kind} ({feature.tfds})"]
                     for feature in schema.features],
        "versions": [["imageshards", build["imageshards"]], *map(list, build["versions"].items())],
        "about": about,
    }  # fmt: skip


def _facts(build: Mapping[str, Any]) -> list[list[Any]]:
    """Returns [value, noun, whether it is a problem] of each count."""
    counts = build["counts"]
    facts = [
        _fact(counts["records"], "record"),
        [human_bytes(counts["bytes"]), "in shards", False],
        _fact(len(build["shards"]), "shard"),
    ]
    if build["classes"]:
        facts.append(_fact(len(build["classes"]), "class"))
    facts.append([counts["converted"], "converted", False])
    facts.append(_fact(counts["rejects"], "reject", bad=counts["rejects"] > 0))
    facts.append(_fact(counts["duplicates"], "duplicate"))
    if counts["leaks"]:
        facts.append([counts["leaks"], "in two splits", True])
    if unseen := counts.get("classes_not_in_train"):
        noun = "class" if unseen == 1 else "classes"
        facts.append([unseen, f"{noun} not in train", True])
    facts.append(_fact(counts["passed_over"], "skipped file"))
    if left_out := sum(build.get("left_out", {}).values()):
        facts.append([left_out, "left out", False])
    return facts


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Returns a clause on the references that options leave out; empty if there are none.

    >>> left_out_text({"--limit": 1200})
    ', 1,200 left out by --limit'
    """
    return "".join(f", {count:,} left out by {name}" for name, count in left_out.items())


def _fact(number: int, noun: str, *, bad: bool = False) -> list[Any]:
    return [number, counted(number, noun).partition(" ")[2], bad]


def _classes_shown(build: Mapping[str, Any]) -> list[str]:
    """Returns the names of the classes, or of as many as leave the page small enough."""
    shown: list[str] = []
    size = 0
    for name in build["classes"]:
        text = name if len(name) <= 100 else f"{name[:97]}..."
        size += len(json.dumps(text)) + 1 + 7 * len(build["splits"])
        if size > _CLASS_BYTES:
            break
        shown.append(text)
    return shown


def _splits(
    build: Mapping[str, Any], schema: Schema, profiles: Mapping[str, Any], classes: int
) -> list[dict[str, Any]]:
    shards: dict[str, list[list[int]]] = {name: [] for name in build["splits"]}
    step = -(-len(build["shards"]) // _SHARDS_SHOWN)
    for number in range(0, len(build["shards"]), step or 1):
        row = build["shards"][number]
        parsed = parse_shard_name(row["name"])
        if parsed:
            shards[parsed.split].append([row["records"], row["bytes"]])
    found = []
    for name, split in build["splits"].items():
        profile = profiles.get(name)
        found.append(
            {
                "name": name,
                "records": split["records"],
                "bytes": split["bytes"],
                "shard_count": split["shards"],
                "shards": shards[name],
                "formats": split["formats"],
                "range": _range(split, schema),
                "labels": [split["labels"].get(str(label), 0) for label in range(classes)],
                "statistics": {key: profile[key] for key in _STATISTICS}
                if profile and profile["counts"]["sizes"]
                else None,
            }
        )
    return found


def _range(split: Mapping[str, Any], schema: Schema) -> str:
    if not split["records"]:
        return "-"
    small, large = split["smallest"], split["largest"]
    if schema.holds == "text":
        return f"{small[1]:,} to {large[1]:,} bytes"
    texts = [f"{width:,} x {height:,}" for height, width in (small, large)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _sampling(build: Mapping[str, Any], profiles: Mapping[str, Any]) -> str:
    """Returns a sentence that says which images were measured, and how."""
    sampled = sum(profile["sampled"] for profile in profiles.values())
    records = {name: build["splits"][name]["records"] for name in profiles}
    partly = [name for name, profile in profiles.items() if profile["measured"] < records[name]]
    measured = sum(profiles[name]["measured"] for name in partly)
    total = sum(records[name] for name in partly)
    sample = f"in a random sample of {measured:,} of {counted(total, 'image')}"
    if not partly:
        which = f"All {counted(sum(records.values()), 'image')} were measured"
    elif len(partly) == len(profiles):
        which = f"Measured {sample}"
    else:
        whole = ", ".join(name for name in profiles if name not in partly)
        which = f"Measured in all images of {whole}, and {sample} of the other splits"
    return (
        f"{which}, reduced by a factor of up to 8. The standard deviation of the channels includes "
        "the variance within the reduced pixels, from a random sample of "
        f"{counted(sampled, 'image')} at full size."
    )
