"""Contact sheets: the first images of each split. The data set is shuffled, so they are a sample.

A sheet is written as a PNG or HTML file, or as half blocks to a terminal with 24-bit colors.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from imageshards.reader.files import find
from imageshards.reader.parse import to_uint8
from imageshards.reader.random_access import open as open_records
from imageshards.reader.report.pictures import boxes_of
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SLIM

_SIDE = 128
_MARGIN = 10
_CAPTION = 18
_COLUMNS = 8
_INK, _SOFT, _PAPER = "#1d2430", "#667085", "#ffffff"
_BOX = "#ffdf3d"
_BLOCK_SIDE = 24

_STYLE = """
:root { --ink: #1d2430; --soft: #667085; --page: #fff; color-scheme: light dark }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaf0; --soft: #98a2b3; --page: #101319 } }
body { margin: 0 auto; padding: 32px 24px; max-width: 1120px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 16px; margin: 24px 0 8px }
.soft { color: var(--soft); font-weight: 400 }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: 10px }
figure { margin: 0; min-width: 0 } img { width: 100%; aspect-ratio: 1; object-fit: cover;
  border-radius: 8px; display: block }
figcaption { font-size: 12px; color: var(--soft); white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis }
"""


@dataclass(frozen=True)
class Picture:
    """An image, its caption, and (xmin, ymin, xmax, ymax) of its boxes as fractions of it."""

    image: Image.Image
    caption: str
    boxes: Sequence[Sequence[float]] = ()

    def square(self, side: int) -> Image.Image:
        """Returns the largest centered square of the image, resized, with the boxes on it."""
        width, height = self.image.size
        cut = min(width, height)
        left, top = (width - cut) // 2, (height - cut) // 2
        # Enlarged pixels look better with sharp edges than blurred.
        how = Image.Resampling.NEAREST if cut < side else Image.Resampling.LANCZOS
        found = self.image.resize((side, side), how, (left, top, left + cut, top + cut))
        draw, scale = ImageDraw.Draw(found), (side - 1) / cut
        for xmin, ymin, xmax, ymax in self.boxes:
            x = sorted((across * width - left) * scale for across in (xmin, xmax))
            y = sorted((down * height - top) * scale for down in (ymin, ymax))
            draw.rectangle((x[0], y[0], x[1], y[1]), outline=_BOX)
        return found


@dataclass(frozen=True)
class Sheet:
    """A contact sheet.

    Attributes:
      place: the data set or file.
      splits: name of a split -> the images on the sheet.
      records: name of a split -> the number of its records.
    """

    place: str
    splits: Mapping[str, list[Picture]]
    records: Mapping[str, int]

    def save(self, path: str) -> None:
        """Writes a PNG or an HTML file, depending on the suffix of `path`.

        Raises:
          BuildError: the file cannot be written.
        """
        try:
            if path.endswith(".png"):
                self.image().save(path)
            else:
                with open(path, "w", encoding="utf-8", errors="replace") as file:
                    file.write(self.html())
        except OSError as error:
            reason = error.strerror or error
            raise BuildError(f"cannot write --contact_sheet {path}: {reason}") from error

    def image(self) -> Image.Image:
        """Returns the sheet as an RGB image with 8 images per row."""
        columns = min(_COLUMNS, max(map(len, self.splits.values())))
        cell = _SIDE + _MARGIN
        heights = {
            name: _CAPTION + -(-len(pictures) // columns) * (cell + _CAPTION) + _MARGIN
            for name, pictures in self.splits.items()
        }
        width = max(columns * cell + _MARGIN, 3 * cell)
        sheet = Image.new("RGB", (width, _MARGIN + sum(heights.values())), _PAPER)
        draw = ImageDraw.Draw(sheet)
        font = ImageFont.load_default(12)
        top = _MARGIN
        for name, pictures in self.splits.items():
            draw.text((_MARGIN, top), self._title(name), fill=_INK, font=font)
            for number, picture in enumerate(pictures):
                x = _MARGIN + number % columns * cell
                y = top + _CAPTION + number // columns * (cell + _CAPTION)
                sheet.paste(picture.square(_SIDE), (x, y))
                text = _fit(picture.caption, draw, font)
                draw.text((x, y + _SIDE + 1), text, fill=_SOFT, font=font)
            top += heights[name]
        return sheet

    def html(self) -> str:
        """Returns the sheet as an HTML page with the images inside."""
        body = []
        for name, pictures in self.splits.items():
            figures = "".join(
                f'<figure><img alt="" src="data:image/jpeg;base64,{_jpeg(picture)}">'
                f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
                for picture in pictures
            )
            body.append(f"<h2>{escape(self._title(name))}</h2><div class=sheet>{figures}</div>")
        name = os.path.basename(self.place)
        return (
            "<!doctype html>\n<html lang=en><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f"<title>{escape(name)}: contact sheet</title><style>{_STYLE}</style>"
            f"<h1>{escape(name)}</h1>{''.join(body)}</html>\n"
        )

    def blocks(self, columns: int) -> Iterator[str]:
        """Yields the lines for a terminal of this width: two rows of images per split."""
        each = max(1, (columns - 2) // (_BLOCK_SIDE + 1))
        for name, pictures in self.splits.items():
            shown = min(len(pictures), 2 * each)
            yield f"  {self._title(name, shown)}"
            for begin in range(0, shown, each):
                row = pictures[begin : begin + each]
                pixels = [
                    np.asarray(replace(picture, boxes=()).square(_BLOCK_SIDE), dtype=np.int64)
                    for picture in row
                ]
                for y in range(0, _BLOCK_SIDE, 2):
                    yield "  " + " ".join(_line(image[y], image[y + 1]) for image in pixels)
                yield "  " + " ".join(
                    f"{_printable(picture.caption)[:_BLOCK_SIDE]:<{_BLOCK_SIDE}}" for picture in row
                )

    def _title(self, split: str, shown: int | None = None) -> str:
        count = len(self.splits[split]) if shown is None else shown
        return f"{split or 'all'}: {count:,} of {self.records[split]:,}"


def shows_colors(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Returns whether a stream is a terminal that declares 24-bit colors in the environment."""
    return (
        stream.isatty()
        and environment.get("COLORTERM") in ("truecolor", "24bit")
        and not environment.get("NO_COLOR")
    )


def check_path(path: str) -> None:
    """Checks the value of `--contact_sheet`.

    Raises:
      UsageError: it is not the name of a PNG or HTML file.
    """
    if not path.endswith((".png", ".html")):
        raise UsageError(f"invalid --contact_sheet {path}: write FILE.png or FILE.html")


def make_sheet(place: str, images: int) -> Sheet | None:
    """Returns the first images of each split, or None if the records are texts.

    Args:
      place: the folder of a data set, or a TFRecord file.
      images: the number of images per split.

    Raises:
      BuildError: there is no such data set, or it is damaged.
    """
    source = find(place)
    if source.schema.holds == "text":
        return None
    splits, counts = {}, {}
    for name in source.splits:
        records = open_records(place, name)
        if not source.described and SLIM.label_key not in records.features(0):
            records = open_records(place, name, label_key="")
        counts[name] = len(records)
        splits[name] = [
            _picture(records[number], records.serialized(number), records.classes)
            for number in range(min(images, len(records)))
        ]
    return Sheet(storage.folder_uri(place), splits, counts)


def _picture(element: Any, record: bytes, classes: list[str]) -> Picture:
    pixels, label = element if isinstance(element, tuple) else (element, None)
    pixels = to_uint8(pixels)
    if pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    image = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
    boxes = [box for *box, _ in boxes_of(example.decode(record), classes)]
    return Picture(image, _caption(label, classes), boxes)


def _caption(label: Any, classes: list[str]) -> str:
    """The text below an image: its class, its classes, its number, or nothing for a mask."""
    if label is None or isinstance(label, np.ndarray):
        return ""
    if isinstance(label, list):
        return ", ".join(_caption(each, classes) for each in label)
    if isinstance(label, float):
        return f"{label:g}"
    return classes[label] if 0 <= label < len(classes) else str(label)


def _jpeg(picture: Picture) -> str:
    out = io.BytesIO()
    picture.square(_SIDE).save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode()


def _line(above: npt.NDArray[np.int64], below: npt.NDArray[np.int64]) -> str:
    """Returns half blocks: the upper pixel is the foreground, the lower one the background."""
    cells = (
        f"\x1b[38;2;{r};{g};{b};48;2;{s};{h};{c}m\N{UPPER HALF BLOCK}"
        for (r, g, b), (s, h, c) in zip(above.tolist(), below.tolist(), strict=True)
    )
    return "".join(cells) + "\x1b[0m"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _fit(text: str, draw: ImageDraw.ImageDraw, font: Any) -> str:
    text = _printable(text)
    if draw.textlength(text, font) <= _SIDE:
        return text
    while text and draw.textlength(text + "...", font) > _SIDE:
        text = text[:-1]
    return text + "..."
