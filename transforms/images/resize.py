"""Resizing of images; implements `--resize`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from PIL import Image

Size = tuple[int, int]
"""(width, height) in pixels: Pillow's order."""

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels and fractions of pixels."""

MAX_SIDE = 65_500
"""The longest side of a JPEG that libjpeg supports, in pixels."""

# Pillow first averages boxes of pixels, and then scales by at most this factor with Lanczos. On
# photographs the result looks the same as with Lanczos alone, which reads every pixel many times.
_REDUCING_GAP = 3.0

RULE = re.compile(r"(?:(short|long):(\d+)|(?:(crop|pad):)?(\d+)x(\d+))")
"""The syntax of `--resize`."""

Mode = Literal["short", "long", "exact", "crop", "pad"]


@dataclass(frozen=True)
class ResizePlan:
    """How one image is resized: scaled, then cropped or padded around its centre.

    Attributes:
      scaled: the size after scaling.
      final: the size after cropping (if smaller than `scaled`) or padding with black (if larger).
    """

    scaled: Size
    final: Size


@dataclass(frozen=True)
class Resize:
    """The sizes that images are resized to.

    Attributes:
      mode: "short" and "long" set the shorter or longer side and keep the aspect ratio; "exact"
        sets both sides; "crop" scales the image to cover the size and crops it; "pad" scales it to
        fit into the size and pads it with black.
      width: in pixels; for "short" and "long" the length of that side.
      height: in pixels; for "short" and "long" the length of that side.
      enlarge: whether images smaller than the target are enlarged.

    >>> Resize.parse("short:256").plan((1024, 512))
    ResizePlan(scaled=(512, 256), final=(512, 256))
    >>> Resize.parse("crop:224x224").plan((1024, 512))
    ResizePlan(scaled=(448, 224), final=(224, 224))
    """

    mode: Mode
    width: int
    height: int
    enlarge: bool = False

    @classmethod
    def parse(cls, text: str, enlarge: bool = False) -> Resize:
        """Parses `short:256`, `long:512`, `320x240`, `crop:224x224` or `pad:224x224`.

        Raises:
          ValueError: the text has another form, or a side is not from 1 to `MAX_SIDE` pixels.
        """
        found = RULE.fullmatch(text)
        if not found:
            raise ValueError(
                f"--resize {text!r}: write short:256, long:512, 320x240, crop:224x224 or "
                "pad:224x224"
            )
        side, length, shape, width, height = found.groups()
        size = (int(length), int(length)) if side else (int(width), int(height))
        if not all(1 <= pixels <= MAX_SIDE for pixels in size):
            raise ValueError(f"--resize {text!r}: write sides from 1 to {MAX_SIDE:,} pixels")
        mode = cast(Mode, side or shape or "exact")
        return cls(mode, *size, enlarge)

    def plan(self, size: Size) -> ResizePlan:
        """Returns how an image of this size is resized."""
        width, height = size
        if self.mode == "exact":
            exact = (self.width, self.height)
            if not self.enlarge:
                exact = (min(width, self.width), min(height, self.height))
            return ResizePlan(exact, exact)
        # The width determines the scale if the image has to cover the target and is narrower, or
        # has to fit into it and is wider.
        narrow = self.width * height > self.height * width
        by_width = narrow == (self.mode in ("short", "crop"))
        part, whole = (self.width, width) if by_width else (self.height, height)
        if part >= whole and not self.enlarge:
            scaled = size
        elif by_width:
            scaled = (self.width, _scaled_side(height, part, whole))
        else:
            scaled = (_scaled_side(width, part, whole), self.height)
        if self.mode == "crop":
            return ResizePlan(scaled, (min(self.width, scaled[0]), min(self.height, scaled[1])))
        if self.mode == "pad":
            return ResizePlan(scaled, (self.width, self.height))
        return ResizePlan(scaled, scaled)


def _scaled_side(length: int, part: int, whole: int) -> int:
    return max((2 * length * part + whole) // (2 * whole), 1)


def scale(image: Image.Image, size: Size, box: Box | None = None) -> Image.Image:
    """Scales an image, or a box of it, to a size.

    Args:
      image: an image of mode L or RGB.
      size: the size of the result.
      box: the part of the image to scale; None: the whole image.
    """
    box = box or (0, 0, *image.size)
    if image.size == size and box == (0, 0, *size):
        return image
    return image.resize(size, Image.Resampling.LANCZOS, box, reducing_gap=_REDUCING_GAP)


def crop_corner(size: Size, final: Size) -> tuple[int, int]:
    """Returns the left and top pixel at which a crop to the final size begins; negative: padding.

    >>> crop_corner((448, 224), (224, 225))
    (112, -1)
    """
    return (size[0] - final[0]) // 2, (size[1] - final[1]) // 2


def crop_or_pad(image: Image.Image, size: Size) -> Image.Image:
    """Crops an image to a size around its centre; pads it with black where it is smaller."""
    if image.size == size:
        return image
    left, top = crop_corner(image.size, size)
    # crop() fills pixels outside of the image with zeros.
    return image.crop((left, top, left + size[0], top + size[1]))
