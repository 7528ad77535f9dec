"""`--resize`: from the size of an image to that of the one written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from PIL import Image

Size = tuple[int, int]
"""Width and height in pixels, as Pillow has them."""

Box = tuple[float, float, float, float]

MAX_SIDE = 65_500
"""The longest side that a JPEG can have in libjpeg."""

# Box-averaging by whole numbers first, Lanczos for the last factor of three or less: on
# photographs the two cannot be told apart, and Lanczos alone reads every pixel many times.
_REDUCING_GAP = 3.0

RULE = re.compile(r"(?:(short|long):(\d+)|(?:(crop|pad):)?(\d+)x(\d+))")


Mode = Literal["short", "long", "exact", "crop", "pad"]


@dataclass(frozen=True)
class Plan:
    """How one image is resized: scaled, then cropped or padded about its centre.

    Attributes:
      scaled: its size after scaling.
      final: its size in the end; smaller than scaled is cropped, larger is padded with black.
    """

    scaled: Size
    final: Size


@dataclass(frozen=True)
class Resize:
    """A rule for sizes.

    Attributes:
      mode: "short" and "long" fix that side and keep the aspect ratio; "exact" does not keep it;
        "crop" covers the size and cuts what is beyond; "pad" fits into it and adds black.
      width: pixels; for "short" and "long" the side.
      height: pixels; for "short" and "long" the side.
      enlarge: whether pixels may become more than they were.
    """

    mode: Mode
    width: int
    height: int
    enlarge: bool = False

    @classmethod
    def parse(cls, text: str, enlarge: bool = False) -> Resize:
        """Of `short:256`, `long:512`, `320x240`, `crop:224x224`, `pad:224x224`.

        Raises:
          ValueError: it is none of them, in one line.
        """
        found = RULE.fullmatch(text)
        if not found:
            raise ValueError(
                f"--resize {text!r}: write short:256, long:512, 320x240, crop:224x224 or "
                "pad:224x224"
            )
        side, length, cut, width, height = found.groups()
        size = (int(length), int(length)) if side else (int(width), int(height))
        if not all(1 <= pixels <= MAX_SIDE for pixels in size):
            raise ValueError(f"--resize {text!r}: write sides from 1 to {MAX_SIDE:,} pixels")
        mode = cast(Mode, side or cut or "exact")
        return cls(mode, *size, enlarge)

    def plan(self, size: Size) -> Plan:
        """What becomes of an image of a size."""
        width, height = size
        if self.mode == "exact":
            exact = (self.width, self.height)
            if not self.enlarge:
                exact = (min(width, self.width), min(height, self.height))
            return Plan(exact, exact)
        # The width decides the scale where the image is, beside the target, the narrower and is
        # to cover it, or the wider and is to fit into it.
        narrow = self.width * height > self.height * width
        by_width = narrow == (self.mode in ("short", "crop"))
        part, whole = (self.width, width) if by_width else (self.height, height)
        if part >= whole and not self.enlarge:
            scaled = size
        elif by_width:
            scaled = (self.width, _scale(height, part, whole))
        else:
            scaled = (_scale(width, part, whole), self.height)
        if self.mode == "crop":
            return Plan(scaled, (min(self.width, scaled[0]), min(self.height, scaled[1])))
        if self.mode == "pad":
            return Plan(scaled, (self.width, self.height))
        return Plan(scaled, scaled)


def _scale(length: int, part: int, whole: int) -> int:
    return max((2 * length * part + whole) // (2 * whole), 1)


def scale(image: Image.Image, size: Size, box: Box | None = None) -> Image.Image:
    """An image of mode L or RGB, scaled.

    Args:
      image: what to scale.
      size: of the result.
      box: (left, top, right, bottom) of the picture in the image, in pixels and parts of them;
        None: all of it.
    """
    box = box or (0, 0, *image.size)
    if image.size == size and box == (0, 0, *size):
        return image
    return image.resize(size, Image.Resampling.LANCZOS, box, reducing_gap=_REDUCING_GAP)


def cut(image: Image.Image, size: Size) -> Image.Image:
    """The centre of an image; where the size is larger, with black around it."""
    if image.size == size:
        return image
    left, top = ((have - want) // 2 for have, want in zip(image.size, size, strict=True))
    # Beyond the image, crop() fills in zeros.
    return image.crop((left, top, left + size[0], top + size[1]))
