"""Pictures of records and rejects for the report: small images, boxes and masks."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from imageshards.reader.parse import to_uint8
from imageshards.transforms.images import decode
from imageshards.transforms.images.modes import to_grey_or_rgb
from imageshards.transforms.records.objects import TEXT
from imageshards.transforms.records.schemas import CAPTION_KEY, Schema
from imageshards.transforms.shards import read_back

SIDE = 192
"""The longer side of a picture on the page, in pixels."""
_MAX_PIXELS = 50_000_000
_PIXELATED = 64
_BOXES_SHOWN = 200
_BBOX = "image/object/bbox/"
_MAGIC = (b"\x89PNG", b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe1", b"GIF8")
_MASKS_SHOWN = 50
_VALUES_SHOWN = 20
_TEXT_SHOWN = 300


def open_picture(record: read_back.Record, schema: Schema) -> Image.Image:
    """Returns the image of a record, RGB or gray, decoded to at least `SIDE` pixels.

    Raises:
      Exception: an error of any type, if the image does not decode.
    """
    content = schema.content
    data = record.first(content.key, b"") if content else b""
    if not content or not content.array:
        return open_file(data)
    info = read_back.info_of(record, schema)
    values = np.frombuffer(data, np.dtype(content.array.dtype).newbyteorder("<"))
    pixels = to_uint8(values).reshape(info.height, info.width, -1)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def open_file(data: bytes) -> Image.Image:
    """Returns the image in a file of any format that a build reads; see `open_picture`."""
    image: Image.Image = decode.open_image(data, _MAX_PIXELS).image
    image.draft("RGB", (SIDE, SIDE))  # JPEGs only
    image.load()
    return to_grey_or_rgb(image)[0]


def picture(image: Image.Image) -> dict[str, Any]:
    """Returns the entries of the page for an image: its URL, and whether it is very small."""
    small = max(image.size) <= _PIXELATED
    kind, data = small_file(image)
    entry = {"image": _url(kind, data)}
    return {**entry, "small": True} if small else entry


def small_file(image: Image.Image) -> tuple[str, bytes]:
    """Returns (media type, content) of an image that is reduced to `SIDE` pixels."""
    out = io.BytesIO()
    if max(image.size) <= _PIXELATED:
        image.save(out, "PNG")
        return "image/png", out.getvalue()
    image.thumbnail((SIDE, SIDE), reducing_gap=2)
    image.save(out, "JPEG", quality=75)
    return "image/jpeg", out.getvalue()


def content_file(record: read_back.Record, schema: Schema) -> tuple[str, bytes]:
    """Returns (media type, content) of a record's image as a browser shows it."""
    content = schema.content
    data: bytes = record.first(content.key, b"") if content else b""
    types = {
        b"\xff\xd8": "image/jpeg",
        b"\x89P": "image/png",
        b"GI": "image/gif",
        b"BM": "image/bmp",
    }
    if content and not content.array and data[:2] in types:
        return types[data[:2]], data
    out = io.BytesIO()
    open_picture(record, schema).save(out, "PNG")
    return "image/png", out.getvalue()


def mask_of(record: read_back.Record, schema: Schema) -> str:
    """Returns the URL of a record's masks: a feature with other images; empty without one.

    A feature with one mask of 0 and 1 for each object becomes one picture.
    """
    main = schema.content.key if schema.content else ""
    for key in sorted(record.values):
        values = record.values[key]
        if key != main and values and isinstance(values[0], bytes) and values[0][:4] in _MAGIC:
            try:
                return _mask([decode.open_image(value, _MAX_PIXELS).image
                              for value in values[:_MASKS_SHOWN]])  # fmt: skip
            except Exception:  # a decoder's error of any type: there is no mask to show
                return ""
    return ""


def _mask(images: Sequence[Image.Image]) -> str:
    for image in images:
        image.thumbnail((2 * SIDE, 2 * SIDE), Image.Resampling.NEAREST)
    image = images[0]
    if image.mode in ("1", "L", "P") or image.mode.startswith("I"):  # the values are classes
        numbers = np.asarray(image).astype(np.int64)
        for number, other in enumerate(images[1:], 2):
            if other.size == image.size:
                numbers = np.where(np.asarray(other.convert("L")) > 0, number, numbers)
        # Distinct colors for consecutive classes; 0 is the background.
        colors = np.stack([numbers * 67 % 256, numbers * 151 % 256, 255 - numbers * 29 % 256], -1)
        alpha = np.where(numbers > 0, 255, 0)
        image = Image.fromarray(np.dstack([colors, alpha]).astype(np.uint8))
    out = io.BytesIO()
    image.save(out, "PNG")
    return _url("image/png", out.getvalue())


def boxes_of(values: Mapping[str, Sequence[Any]], classes: Sequence[str]) -> list[list[Any]]:
    """Returns [xmin, ymin, xmax, ymax, class] of each box; coordinates are from 0 to 1.

    Boxes with a NaN or an infinity, which JSON cannot represent, are left out.

    Args:
      values: key -> values of the features of a record.
      classes: names of the classes.
    """
    sides = [values.get(_BBOX + name, []) for name in ("xmin", "ymin", "xmax", "ymax")]
    labels = values.get(TEXT) or values.get(f"{_BBOX}label", [])
    boxes = []
    for at, box in enumerate(zip(*sides, strict=False)):
        if at == _BOXES_SHOWN or not all(isinstance(side, int | float) for side in box):
            break
        if not all(map(math.isfinite, box)):
            continue
        label = labels[at] if at < len(labels) else ""
        if isinstance(label, int) and 0 <= label < len(classes):
            label = classes[label]
        if isinstance(label, bytes):
            label = label.decode("utf-8", "replace")
        boxes.append([*(round(float(side), 5) for side in box), str(label)])
    return boxes


def features_of(record: read_back.Record) -> dict[str, str]:
    """Returns all features of a record as texts: key -> text."""
    return {key: _text(record.values[key]) for key in sorted(record.values)}


def _text(values: Sequence[Any]) -> str:
    if len(values) != 1:
        shown = ", ".join(_text([value]) for value in values[:_VALUES_SHOWN])
        more = f", and {len(values) - _VALUES_SHOWN:,} more" if values[_VALUES_SHOWN:] else ""
        return f"[{shown}{more}]"
    value = values[0]
    if not isinstance(value, bytes):
        return str(round(value, 6)) if isinstance(value, float) else str(value)
    if len(value) > 1000 or b"\0" in value:
        return f"{len(value):,} bytes"
    return value.decode("utf-8", "backslashreplace")[:_TEXT_SHOWN]


def entry_of(record: read_back.Record, schema: Schema, classes: Sequence[str]) -> dict[str, Any]:
    """Returns the entries of the page that describe a record, without its picture."""
    entry: dict[str, Any] = {"features": features_of(record)}
    labels = record.values.get(schema.class_key or "", ())
    if known := [classes[label] for label in labels if 0 <= label < len(classes)]:
        entry["class"] = ", ".join(known)
    key = schema.key_of("filename") or schema.key_of("source")
    if captions := record.values.get(CAPTION_KEY):
        text = b"\n".join(captions).decode("utf-8", "replace")
        entry["caption"] = text[:_TEXT_SHOWN]
    if name := record.first(key, b""):
        entry["name"] = name.decode("utf-8", "replace")
    if boxes := boxes_of(record.values, classes):
        entry["boxes"] = boxes
    if schema.holds == "text":
        text = record.first(schema.key_of("text"), b"")
        entry["text"] = text.decode("utf-8", "replace")[:_TEXT_SHOWN]
    elif mask := mask_of(record, schema):
        entry["mask"] = mask
    return entry


def with_picture(
    entry: Mapping[str, Any], record: read_back.Record, schema: Schema
) -> dict[str, Any]:
    """Returns an entry with the picture of its record, if that decodes."""
    if schema.holds == "text":
        return dict(entry)
    try:
        return {**entry, **picture(open_picture(record, schema))}
    except Exception:  # With --check=header some records do not decode; errors are of many types.
        return dict(entry)


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
