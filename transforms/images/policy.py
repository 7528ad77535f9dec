"""The policy for the validation and conversion of images. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from imageshards.transforms.images import validate
from imageshards.transforms.images.resize import Resize, Size
from imageshards.transforms.images.validate import Check, ImageError


@dataclass(frozen=True)
class ImagePolicy:
    """How images are validated and converted.

    Attributes:
      check: the validation level of images that are not rewritten; see `validate.inspect`.
      convert: "auto" keeps JPEG and PNG, and writes other lossless formats as PNG and other lossy
        formats as JPEG; "jpeg" and "png" write all images in that format; "never" rewrites nothing;
        "pixels" decodes all images to raw pixels. A JPEG that is not resized then has the pixels of
        tf.io.decode_image, any other image the pixels that "png" would write.
      exif: "bake" applies the EXIF orientation to the pixels, "keep" leaves it in the metadata.
      multi_frame: "first" writes the first frame or page; "all" writes animated GIFs unchanged and
        rejects other animations; "reject" rejects all images with several frames.
      resize: the target size, or None.
      quality: the quality of JPEGs that are rewritten, 1 to 100.
      min_size: images with a shorter side are rejected; in pixels.
      max_pixels: images with more pixels are rejected.
      max_bytes: larger files are rejected.
      channels: the channels of raw pixels, 1 or 3; 0 means 1 for grey images and 3 for all others.
    """

    check: Check = "full"
    convert: Literal["auto", "jpeg", "png", "never", "pixels"] = "auto"
    exif: Literal["bake", "keep"] = "bake"
    multi_frame: Literal["first", "all", "reject"] = "first"
    resize: Resize | None = None
    quality: int = 95
    min_size: int = 1
    max_pixels: int = validate.MAX_PIXELS
    max_bytes: int = 1 << 28
    channels: int = 0

    @property
    def rewrites_all(self) -> bool:
        """Whether most images are decoded and rewritten, whatever their format."""
        return self.resize is not None or self.convert in ("png", "pixels")

    def check_file_size(self, size: int) -> None:
        """Raises an `ImageError` for a file that is larger than `max_bytes`."""
        if size > self.max_bytes:
            raise ImageError("TooLarge", f"{size:,} bytes, more than {self.max_bytes:,}")

    def check_size(self, size: Size) -> None:
        """Raises an `ImageError` for an image with too many pixels or with too short a side."""
        validate.check_pixel_count(size[1], size[0], self.max_pixels)
        if min(size) < self.min_size:
            pixels = f"{size[0]} x {size[1]} pixels"
            raise ImageError("TooSmall", f"{pixels}, a side is shorter than {self.min_size}")

    def check_frames(self, image_format: str) -> None:
        """Raises an `ImageError` if images of a format with several frames are rejected."""
        if self.multi_frame == "reject":
            raise ImageError("MultiFrame", f"{image_format}: it has more than one frame")
        if self.multi_frame == "all" and image_format != "GIF":
            reason = f"{image_format}: TensorFlow decodes all frames of GIFs only"
            raise ImageError("MultiFrame", reason)
