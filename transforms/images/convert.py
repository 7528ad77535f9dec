"""Conversion of image files of any format to files that TensorFlow decodes. Pure.

`tf.io.decode_image(..., expand_animations=False)` decodes every returned file to the height and
width in its record, with 1 or 3 channels, or with 4 for a PNG with alpha. A file that fulfills this
already is returned unchanged. The output is reproducible: with the same versions of Pillow and its
libraries, the same file and policy give the same bytes.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace

from PIL import Image

from imageshards.transforms.images import decode, digests, gif, headers, jpeg, memory, validate
from imageshards.transforms.images.geometry import Frame, Geometry, inverse, oriented
from imageshards.transforms.images.headers import UPRIGHT
from imageshards.transforms.images.measure import Appearance, measure_image
from imageshards.transforms.images.modes import to_grey_or_rgb
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import (
    MAX_SIDE,
    Box,
    ResizePlan,
    Size,
    crop_corner,
    crop_or_pad,
    scale,
)
from imageshards.transforms.images.validate import ImageError, ImageInfo

EXIF_KEPT = "exif-kept"
"""The one conversion that does not change the file: its EXIF orientation is not applied."""

TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_ROTATE_BY_FORMAT = ("AVIF", "HEIF")
"""Formats whose rotation is no metadata: every reader applies it."""

# A JPEG is decoded at a reduced size that is at least this many times the scaled size. On
# photographs the PSNR to scaling a full decoding is then at least 39 dB (median 52 dB); with a
# factor of 1.5 it is 36 dB (median 50 dB).
_HEADROOM = 2


@dataclass(frozen=True)
class Converted:
    """The content of a record.

    Attributes:
      data: an image file, or raw pixels (uint8, row by row). If nothing was converted, it is the
        object that was passed in, not a copy.
      info: format and size of `data`.
      geometry: where the pixels of the file are in `data`.
      conversions: short stable names of the conversions, such as "webp-to-jpeg" or "resized".
      channels: the channels of raw pixels, 1 or 3; 0 for an image file.
    """

    data: bytes
    info: ImageInfo
    geometry: Geometry
    conversions: tuple[str, ...] = ()
    channels: int = 0


def is_changed(conversions: tuple[str, ...]) -> bool:
    """Returns whether conversions change the bytes of a file.

    >>> is_changed(("webp-to-jpeg",)), is_changed((EXIF_KEPT,))
    (True, False)
    """
    return any(conversion != EXIF_KEPT for conversion in conversions)


def convert(data: bytes, policy: ImagePolicy) -> Converted:
    """Validates an image file, and converts it if the policy or TensorFlow requires it.

    Args:
      data: the whole file.
      policy: how to validate and convert it.

    Raises:
      ImageError: the image is rejected.

    >>> convert(b"P5 3 2 255 " + bytes(6), ImagePolicy()).info
    ImageInfo(format='PNG', height=2, width=3)
    """
    policy.check_file_size(len(data))
    image_format = validate.detect_format(data)
    if image_format == "JPEG":
        return _convert_jpeg(data, policy)
    if image_format == "PNG":
        return _convert_png(data, policy)
    if policy.convert == "never" and image_format != "GIF":
        return _without_conversion(data, policy)
    return _convert_other(data, policy)


def pixel_digest(data: bytes, policy: ImagePolicy) -> tuple[bytes, Geometry]:
    """Returns a digest of the pixels that are written for an image, before resizing.

    Images with identical pixels have equal digests, even if their formats differ. The digest covers
    all pixel data that is written, including 16-bit samples, alpha, and frames of an animation.

    Returns:
      The digest, 16 bytes, and where the pixels of the file are in the image that `convert` returns
      for it, after resizing.

    Raises:
      ImageError: the image is rejected.
    """
    written = convert(data, replace(policy, check="header", resize=None))
    geometry = written.geometry
    if plan := _plan_resize(policy, geometry.final, UPRIGHT):
        geometry = replace(geometry, scaled=plan.scaled, final=plan.final)
    return _written_digest(data, written, policy), geometry


def _written_digest(data: bytes, written: Converted, policy: ImagePolicy) -> bytes:
    if policy.convert == "pixels":
        shape = f"{written.info.height} {written.info.width} {written.channels} "
        return digests.bytes_digest(shape.encode() + written.data)
    unchanged = written.data is data
    if unchanged and (written.info.format == "GIF" or headers.is_16_bit_png(data)):
        return digests.bytes_digest(data)
    opened = decode.open_image(data, policy.max_pixels)
    with memory.turn(*opened.image.size):
        return _decoded_digest(data, opened, policy, unchanged)


def _decoded_digest(
    data: bytes, opened: decode.Opened, policy: ImagePolicy, unchanged: bool
) -> bytes:
    image = _loaded(opened)
    applied, _ = _split_orientation(_orientation(data, image), policy)
    with validate.image_errors(opened.format):
        if unchanged and image.has_transparency_data:
            with_alpha = image.convert("RGBA")
            if with_alpha.getchannel("A").getextrema() != (255, 255):
                return digests.decoded_digest(with_alpha)
        image, _ = to_grey_or_rgb(image)
    if applied != UPRIGHT:
        image = image.transpose(TRANSPOSES[applied])
    return digests.decoded_digest(image)


def _convert_jpeg(data: bytes, policy: ImagePolicy) -> Converted:
    header = headers.read_jpeg(data)
    if not header:
        return _without_conversion(data, policy)
    size = (header.width, header.height)
    applied, kept = _split_orientation(header.orientation, policy)
    plan = _plan_resize(policy, size, applied)
    grey_or_rgb = header.is_widely_supported and header.components in (1, 3)
    if policy.convert == "never" or (
        grey_or_rgb and policy.convert not in ("png", "pixels") and applied == UPRIGHT and not plan
    ):
        info = validate.inspect_jpeg(data, header, policy.check, policy.max_pixels)
        return _unchanged(data, info, policy, kept)
    policy.check_size(size)
    if not grey_or_rgb:
        if header.is_widely_supported:
            # This finds corrupt data that Pillow decodes without an error.
            validate.inspect_jpeg(data, header, "full", policy.max_pixels)
        with memory.turn(*size):
            image = _loaded(decode.open_image(data, policy.max_pixels))
            source = _Source("JPEG", lossy=True, size=size)
            return _write(image, source, policy, applied, kept, plan)
    if not memory.can_hold_jpeg(*size, len(data)):
        raise validate.too_few_bytes("JPEG", header.height, header.width, data)
    with memory.turn(*size):
        scaled = oriented(plan.scaled, applied) if plan else size
        # Raw pixels that are not scaled must equal tf.io.decode_image, which uses the fast DCT.
        fast = policy.convert == "pixels" and not plan
        image, box = _decode_jpeg(data, header, scaled, fast)
        source = _Source("JPEG", lossy=True, size=size, box=box)
        return _write(image, source, policy, applied, kept, plan)


def _decode_jpeg(
    data: bytes, header: headers.JpegHeader, scaled: Size, fast: bool
) -> tuple[Image.Image, Box | None]:
    """Decodes a JPEG, at a reduced size if it will be scaled down by a factor of more than 2.

    Args:
      data: the whole file.
      header: its header.
      scaled: the size that it will be scaled to, before the orientation is applied.
      fast: whether to use the fast DCT.

    Returns:
      The decoded image, and the box in it that contains the picture; None for the whole image. The
      decoder rounds a reduced size up, so the box may end within a pixel. Without the box, a shift
      of a third of a pixel would be visible at every edge.
    """
    size = (header.width, header.height)
    need = max(8 * _HEADROOM * part / whole for part, whole in zip(scaled, size, strict=True))
    eighths = min(math.ceil(need), 8)
    width, height = (-(-pixels * eighths // 8) for pixels in size)
    grey = header.components == 1
    try:
        jpeg.check_scan_count(data, header.process)
        pixels = jpeg.decode(
            data, colorspace="GRAY" if grey else "RGB", min_width=width, min_height=height,
            fastdct=fast,
        )  # fmt: skip
    except ValueError as error:
        raise validate.jpeg_error(error, data) from error
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    if image.size == size:
        return image, None
    return image, (0, 0, size[0] * eighths / 8, size[1] * eighths / 8)


def _convert_png(data: bytes, policy: ImagePolicy) -> Converted:
    header = headers.read_png(data)
    if not header:
        return _without_conversion(data, policy)
    if header.animated:
        policy.check_frames("PNG")
    size = (header.width, header.height)
    applied, kept = _split_orientation(header.orientation, policy)
    plan = _plan_resize(policy, size, applied)
    if policy.convert == "never" or (
        header.color_type != headers.GREY_WITH_ALPHA
        and policy.convert not in ("jpeg", "pixels")
        and applied == UPRIGHT
        and not plan
    ):
        return _without_conversion(data, policy, kept)
    policy.check_size(size)
    validate.check_png_end(data)
    with validate.image_errors("PNG"):
        validate.check_png_crcs(data)
    done = ("first-frame",) if header.animated else ()
    with memory.turn(*size):
        opened = decode.open_image(data, policy.max_pixels)
        image = _loaded(opened)
        with validate.image_errors("PNG"):
            validate.check_png_pixels(opened.image, data)
        source = _Source("PNG", lossy=False, size=size, conversions=done)
        return _write(image, source, policy, applied, kept, plan)


def _convert_other(data: bytes, policy: ImagePolicy) -> Converted:
    opened = decode.open_image(data, policy.max_pixels)
    done: tuple[str, ...] = ()
    if opened.animated:
        policy.check_frames(opened.format)
        if policy.multi_frame == "all":
            return _without_conversion(data, policy)
        done = ("first-frame",)
    if policy.convert == "never":
        return _without_conversion(data, policy)
    policy.check_size(opened.image.size)
    if policy.convert == "auto" and opened.format == "BMP":
        size = opened.image.size
        if validate.is_supported_bmp(data, *size[::-1]) and not _plan_resize(policy, size, UPRIGHT):
            return _without_conversion(data, policy)
    with memory.turn(*opened.image.size):
        if opened.format == "GIF":
            validate.check_gif_end(data)
            with validate.image_errors("GIF"):
                gif.check_first_frame(data)
        turned = _turned_by_pillow(opened)
        image = _loaded(opened)
        # Pillow knows the true size of ICO and TIFF only after decoding.
        policy.check_size(image.size)
        applied, kept = _split_orientation(_orientation(data, image), policy)
        plan = _plan_resize(policy, image.size, applied)
        size = oriented(image.size, inverse(turned))
        source = _Source(opened.format, opened.lossy, size, done, turned=turned)
        return _write(image, source, policy, applied, kept, plan)


def _loaded(opened: decode.Opened) -> Image.Image:
    with validate.image_errors(opened.format):
        opened.image.load()
    # Pillow keeps the canvases of libwebp and libavif: 8 bytes per pixel.
    vars(opened.image).pop("_decoder", None)
    return opened.image


def _turned_by_pillow(opened: decode.Opened) -> int:
    """Returns the orientation that Pillow applies by itself when it decodes an image."""
    if opened.format != "TIFF":
        return UPRIGHT
    with validate.image_errors("TIFF"):
        found = opened.image.getexif().get(headers.ORIENTATION_TAG)
    return found if found in TRANSPOSES else UPRIGHT


def _orientation(data: bytes, image: Image.Image) -> int:
    """Returns the orientation that has to be applied to an image that Pillow has decoded."""
    if image.format in ("JPEG", "MPO", "PNG"):
        read = headers.read_png if image.format == "PNG" else headers.read_jpeg
        header = read(data)
        return header.orientation if header else UPRIGHT
    if image.format == "TIFF":  # Pillow has applied it.
        return UPRIGHT
    exif, xmp = (image.info.get(key, b"") for key in ("exif", "xmp"))
    if image.format in _ROTATE_BY_FORMAT:  # They declare it outside of the XMP packet.
        xmp = b""
    return headers.orientation(*(part if isinstance(part, bytes) else b"" for part in (exif, xmp)))


def _without_conversion(data: bytes, policy: ImagePolicy, kept: int = UPRIGHT) -> Converted:
    info = validate.inspect(data, policy.check, policy.max_pixels)
    if policy.convert == "pixels":
        opened = decode.open_image(data, policy.max_pixels)
        plan = _plan_resize(policy, opened.image.size, UPRIGHT)
        source = _Source(opened.format, True, opened.image.size)
        with memory.turn(*opened.image.size):
            return _write(_loaded(opened), source, policy, UPRIGHT, kept, plan)
    return _unchanged(data, info, policy, kept)


def _unchanged(data: bytes, info: ImageInfo, policy: ImagePolicy, kept: int) -> Converted:
    size = (info.width, info.height)
    policy.check_size(size)
    geometry = Geometry(size, size, size, from_upright=inverse(kept))
    return Converted(data, info, geometry, () if kept == UPRIGHT else (EXIF_KEPT,))


def _split_orientation(orientation: int, policy: ImagePolicy) -> tuple[int, int]:
    """Returns (the orientation to apply to the pixels, the orientation to keep as metadata)."""
    bakes = policy.exif == "bake" and policy.convert != "never"
    return (orientation, UPRIGHT) if bakes else (UPRIGHT, orientation)


def _plan_resize(policy: ImagePolicy, size: Size, orientation: int) -> ResizePlan | None:
    """Returns how an image of a stored size is resized; None if its size does not change."""
    if not policy.resize or 0 in size:
        return None
    shown = oriented(size, orientation)
    plan = policy.resize.plan(shown)
    return plan if (plan.scaled, plan.final) != (shown, shown) else None


@dataclass(frozen=True)
class _Source:
    """Properties of the file of a decoded image.

    Attributes:
      format: the file's format.
      lossy: whether the file's compression is lossy.
      size: of the stored pixels.
      conversions: names of the conversions made so far.
      box: the part of the image that contains the picture; None for the whole image.
      turned: the orientation that the decoder has applied.
    """

    format: str
    lossy: bool
    size: Size
    conversions: tuple[str, ...] = ()
    box: Box | None = None
    turned: int = UPRIGHT

    def geometry(self, applied: int, kept: int, plan: ResizePlan | None) -> Geometry:
        """Returns where the stored pixels are in the written image."""
        orientation = self.turned if self.turned != UPRIGHT else applied
        from_upright = inverse(kept)
        stored = self.size
        if self.format in _ROTATE_BY_FORMAT:
            stored = oriented(stored, applied if applied != UPRIGHT else kept)
            orientation = from_upright
        size = oriented(stored, orientation)
        scaled, final = (plan.scaled, plan.final) if plan else (size, size)
        return Geometry(stored, scaled, final, orientation, from_upright)


def _write(
    image: Image.Image,
    source: _Source,
    policy: ImagePolicy,
    applied: int,
    kept: int,
    plan: ResizePlan | None,
) -> Converted:
    """Encodes an image: converts its mode, applies orientation and size, then writes the format."""
    with validate.image_errors(source.format):
        image, conversions = to_grey_or_rgb(image)
    conversions += source.conversions
    if plan:
        # A very long and narrow image may exceed the limit when it is enlarged.
        validate.check_pixel_count(plan.scaled[1], plan.scaled[0], validate.MAX_PIXELS)
        image = scale(image, oriented(plan.scaled, applied), source.box)
    if applied != UPRIGHT:
        image = image.transpose(TRANSPOSES[applied])
    if applied != UPRIGHT or source.turned != UPRIGHT:
        conversions += ("exif-rotated",)
    if plan:
        image = crop_or_pad(image, plan.final)
        conversions += ("resized",)
    appearance = measure_image(image)
    geometry = source.geometry(applied, kept, plan)
    if policy.convert == "pixels":
        return _raw(image, appearance, geometry, policy.channels, conversions)
    target = {"jpeg": "JPEG", "png": "PNG"}.get(policy.convert, "JPEG" if source.lossy else "PNG")
    if target == "JPEG" and max(image.size) > MAX_SIDE:
        if policy.convert == "jpeg":
            reason = f"a side is longer than {MAX_SIDE:,} pixels, the limit of JPEG"
            raise ImageError("TooLarge", reason)
        target = "PNG"
    exif = b""
    if kept != UPRIGHT:
        exif = headers.exif_with_orientation(kept)
        conversions += (EXIF_KEPT,)
    out = io.BytesIO()
    if target == "JPEG":
        image.save(out, target, quality=policy.quality, subsampling=0, exif=exif)
    else:
        image.save(out, target, exif=exif)
    if source.format != target:
        conversions = (f"{source.format.lower()}-to-{target.lower()}", *conversions)
    info = ImageInfo(target, image.height, image.width, appearance)
    return Converted(out.getvalue(), info, geometry, conversions)


def _raw(
    image: Image.Image,
    appearance: Appearance | None,
    geometry: Geometry,
    channels: int,
    conversions: tuple[str, ...],
) -> Converted:
    """Returns the pixels as uint8, row by row, with the channels interleaved."""
    mode = {1: "L", 3: "RGB"}.get(channels, image.mode)
    if image.mode != mode:
        conversions += ("rgb-to-grey" if mode == "L" else "grey-to-rgb",)
        image = image.convert(mode)
    info = ImageInfo("uint8", image.height, image.width, appearance)
    return Converted(image.tobytes(), info, geometry, conversions, len(image.getbands()))


def moved(mask: Image.Image, geometry: Geometry, frame: Frame, padding: int) -> Image.Image:
    """Moves the pixels of a mask as those of its image are moved, and takes the nearest ones.

    Args:
      mask: an image of mode L; it may have another size than its image, but the same shape.
      geometry: where the pixels of the image's file are in the written image.
      frame: the pixels of the image that the mask covers.
      padding: the value of pixels that `--resize pad` adds.
    """
    turn = geometry.turn(frame)
    if turn != UPRIGHT:
        mask = mask.transpose(TRANSPOSES[turn])
    if mask.size != geometry.scaled:
        mask = mask.resize(geometry.scaled, Image.Resampling.NEAREST)
    if geometry.scaled == geometry.final:
        return mask
    left, top = crop_corner(geometry.scaled, geometry.final)
    final = Image.new("L", geometry.final, padding)
    final.paste(mask, (-left, -top))
    return final
