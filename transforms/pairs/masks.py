"""Masks of segmentation: images whose pixels are class numbers. Pure but for `SideFile.read`."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from imageshards.transforms.images import decode, headers, memory, validate
from imageshards.transforms.images.convert import TRANSPOSES, moved
from imageshards.transforms.images.geometry import Frame, Geometry
from imageshards.transforms.pairs.side_file import SideData, SideFile, SideFileError, SideValues

MASKS, CONVERTED = "masks", "masks_converted"
"""What is counted: masks written; those of them whose file differs from the one that was read."""

_LARGEST = 255


@dataclass(frozen=True)
class Masks(SideFile):
    """The mask of each image: a PNG, whose pixels are class numbers from 0 to 255.

    A mask goes through the geometry of its image, without mixing classes: the nearest pixel is
    taken. Indexes of a palette become gray levels, because decoders replace them by their colors.

    Attributes:
      frame: the pixels of the image that the mask covers.
      padding: the class of the pixels that `--resize pad` adds.
      max_pixels: masks with more pixels are rejected.
    """

    frame: Frame = "stored"
    padding: int = 255
    max_pixels: int = validate.MAX_PIXELS

    noun: ClassVar[str] = "mask"
    missing: ClassVar[str] = "MissingMask"

    def values(self, found: SideData, geometry: Geometry) -> SideValues:
        """Returns the written mask; see `SideFile.values`."""
        try:
            data = self.follow(found.data, geometry)
        except validate.ImageError as error:
            kind = error.kind if error.kind == "MaskSize" else "BadMask"
            raise SideFileError("check", kind, f"its mask {found.uri}: {error}") from error
        counts = {MASKS: 1} if data is found.data else {MASKS: 1, CONVERTED: 1}
        return SideValues({"mask": data, "mask_format": b"PNG"}, counts)

    def follow(self, data: bytes, geometry: Geometry) -> bytes:
        """Returns the mask of a written image as a gray PNG; unchanged if it is one already.

        Args:
          data: the file of the mask.
          geometry: where the pixels of the image's file are in the written image.

        Raises:
          ImageError: it is no mask, or not of the size of the image; kind "MaskSize".
        """
        opened = decode.open_image(data, self.max_pixels)
        if opened.animated:
            raise validate.ImageError("MultiFrame", "it has more than one frame")
        if opened.lossy:
            reason = f"{opened.format}: lossy compression changes class numbers; write PNGs"
            raise validate.ImageError("Lossy", reason)
        with memory.turn(*opened.image.size), validate.image_errors(opened.format):
            return self._follow(data, opened, geometry)

    def _follow(self, data: bytes, opened: decode.Opened, geometry: Geometry) -> bytes:
        header = headers.read_png(data) if opened.format == "PNG" else None
        if opened.format == "PNG":
            validate.check_png_end(data)
            validate.check_png_crcs(data)
        opened.image.load()
        if opened.format == "PNG":
            validate.check_png_pixels(opened.image, data)
        own = header.orientation if header else headers.UPRIGHT
        image = class_numbers(opened.image)
        if own != headers.UPRIGHT and self.frame == "upright":
            image = image.transpose(TRANSPOSES[own])
        self._check_size(image, geometry)
        is_gray_png = opened.format == "PNG" and opened.image.mode == "L"
        if is_gray_png and own == headers.UPRIGHT and geometry.keeps_pixels(self.frame):
            return data
        out = io.BytesIO()
        self._mapped(image, geometry).save(out, "PNG")
        return out.getvalue()

    def _check_size(self, image: Image.Image, geometry: Geometry) -> None:
        expected = geometry.size(self.frame)
        if image.size == expected:
            return
        (width, height), (image_width, image_height) = image.size, expected
        shown = f"{width} x {height} pixels, and its image {image_width} x {image_height}"
        other: Frame = "upright" if self.frame == "stored" else "stored"
        if image.size == geometry.size(other):
            when = "before" if self.frame == "stored" else "after"
            shown += f" {when} its EXIF orientation is applied: set --annotations_on {other}"
        raise validate.ImageError("MaskSize", shown)

    def _mapped(self, image: Image.Image, geometry: Geometry) -> Image.Image:
        return moved(image, geometry, self.frame, self.padding)


def class_numbers(image: Image.Image) -> Image.Image:
    """Returns the class numbers of a decoded mask as an image of mode L.

    They are the indexes of a palette, or the levels of a gray image as decoders return them: 0 and
    255 for one bit.

    Raises:
      ImageError: its pixels are colors, transparent, or numbers above 255.
    """
    if image.mode in ("LA", "RGBA", "PA"):
        if image.getchannel("A").getextrema() != (255, 255):
            raise validate.ImageError("Transparent", "some of its pixels are transparent")
        image = image.convert("RGB") if image.mode == "RGBA" else image.getchannel(0)
    if image.mode == "RGB":
        red, green, blue = image.split()
        if not red.tobytes() == green.tobytes() == blue.tobytes():
            raise validate.ImageError(
                "Colors",
                "it has colors instead of class numbers: convert it to a gray PNG, or one with a "
                "palette",
            )
        image = red
    if image.mode == "P":
        return Image.frombytes("L", image.size, image.tobytes())
    if image.mode == "1":
        return image.convert("L")
    if image.mode != "L":
        numbers = np.asarray(image)
        if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() > _LARGEST:
            found = f"from {numbers.min():g} to {numbers.max():g}"
            reason = f"its values are {found}, and class numbers are from 0 to {_LARGEST}"
            raise validate.ImageError("Range", reason)
        return Image.fromarray(numbers.astype(np.uint8))
    image.info = {}
    return image
