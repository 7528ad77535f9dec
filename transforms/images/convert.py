"""Bytes of any image -> the bytes of the image that is written. Pure.

The rule: what is written, `tf.io.decode_image(..., expand_animations=False)` decodes to the
height and width that its record says, with 1 or 3 channels, or 4 where a PNG has alpha. What
meets it passes untouched. The same bytes and rules give the same bytes in every run of the same
versions of Pillow and its libraries.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from typing import Literal

import simplejpeg
from PIL import Image

from imageshards.transforms.images import decode, digests, headers, validate
from imageshards.transforms.images.headers import UPRIGHT
from imageshards.transforms.images.modes import to_grey_or_rgb
from imageshards.transforms.images.resize import MAX_SIDE, Box, Plan, Resize, Size, cut, scale
from imageshards.transforms.images.validate import Check, ImageError, ImageInfo

EXIF_KEPT = "exif-kept"
"""The one kind that leaves an image as it was: an orientation that is not applied."""

_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

# A JPEG is decoded at a reduced size if that is this many times the scaled one in width and
# height. On photographs the result is then at least 39 dB, at the median 52 dB from that of a full
# decoding; at 1.5 times 36 and 50.
_HEADROOM = 2


@dataclass(frozen=True)
class Rules:
    """How images are checked and converted.

    Attributes:
      check: how closely an image is looked at that passes untouched.
      convert: "auto" writes JPEG and PNG as they are, makes a PNG of what is lossless and a JPEG
        of what is lossy; "jpeg" and "png" make that of everything else; "never" rewrites nothing;
        "pixels" decodes everything to raw pixels: of a JPEG that is not resized those of
        tf.io.decode_image, of all else those that "png" would write.
      exif: "bake" applies an EXIF orientation to the pixels, "keep" leaves it to the reader.
      multi_frame: of animations and pages, "first" writes the first; "all" writes animated GIFs
        whole and rejects others; "reject" rejects them.
      resize: or None.
      quality: of JPEGs that are written anew, 1 to 100.
      min_size: pixels; an image with a shorter side is rejected.
      max_pixels: an image with more is rejected.
      max_bytes: a file with more is rejected.
      channels: of raw pixels, 1 or 3; 0 for 1 of what is grey, else 3.
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
    def bakes(self) -> bool:
        """Whether an EXIF orientation is applied."""
        return self.exif == "bake" and self.convert != "never"

    @property
    def rewrites_all(self) -> bool:
        """Whether most images are decoded and written anew, whatever they are."""
        return self.resize is not None or self.convert in ("png", "pixels")

    def limit_bytes(self, size: int) -> None:
        """Refuses a file by its size.

        Raises:
          ImageError: it is too large.
        """
        if size > self.max_bytes:
            raise ImageError("TooLarge", f"{size:,} bytes, more than {self.max_bytes:,}")


@dataclass(frozen=True)
class Converted:
    """An image as it is written.

    Attributes:
      data: its bytes: the very object that was given, where nothing was to be done.
      info: format and size of what is written.
      kinds: what was done, each a short stable name such as "webp-to-jpeg" or "resized".
      channels: of raw pixels; 0 of a file.
    """

    data: bytes
    info: ImageInfo
    kinds: tuple[str, ...] = ()
    channels: int = 0


def is_changed(kinds: tuple[str, ...]) -> bool:
    """Whether an image of which these kinds were noted has other bytes than its file."""
    return any(kind != EXIF_KEPT for kind in kinds)


def convert(data: bytes, rules: Rules) -> Converted:
    """Checks an image, and converts it where the rules or TensorFlow want it.

    Args:
      data: the whole file.
      rules: what to do.

    Raises:
      ImageError: it does not go into the data set.
    """
    rules.limit_bytes(len(data))
    image_format = validate.sniff(data)
    if image_format == "JPEG":
        return _convert_jpeg(data, rules)
    if image_format == "PNG":
        return _convert_png(data, rules)
    if rules.convert == "never" and image_format != "GIF":
        return _untouched(data, rules)
    return _convert_other(data, rules)


def pixel_digest(data: bytes, rules: Rules) -> bytes:
    """16 bytes that are equal for images of which the same pixels are written, at any size.

    Where more is written than 8-bit colours, such as 16 bits, alpha or the frames of an animation,
    that counts too.

    Raises:
      ImageError: it does not go into the data set.
    """
    written = convert(data, replace(rules, check="header", resize=None))
    if rules.convert == "pixels":
        shape = f"{written.info.height} {written.info.width} {written.channels} "
        return digests.file_digest(shape.encode() + written.data)
    if written.data is data:
        if written.info.format == "GIF" or headers.is_deep_png(data):
            return digests.file_digest(data)
        image = _loaded(decode.open_image(data, rules.max_pixels))
        if image.has_transparency_data:
            with validate.decoding(written.info.format):
                image = image.convert("RGBA")
            if image.getchannel("A").getextrema() != (255, 255):
                return digests.pixel_digest(image)
    return digests.pixel_digest(_decode(data, rules))


def _decode(data: bytes, rules: Rules) -> Image.Image:
    """The pixels of an image, grey or RGB, turned as the rules say, and at their own size."""
    opened = decode.open_image(data, rules.max_pixels)
    image = _loaded(opened)
    turn, _ = _turn(headers.exif_orientation(_exif(image)), rules)
    with validate.decoding(opened.format):
        image, _ = to_grey_or_rgb(image)
    return image if turn == UPRIGHT else image.transpose(_TRANSPOSES[turn])


def _convert_jpeg(data: bytes, rules: Rules) -> Converted:
    header = headers.read_jpeg(data)
    if not header:
        return _untouched(data, rules)
    size = (header.width, header.height)
    turn, kept = _turn(headers.exif_orientation(header.exif) if header.exif else UPRIGHT, rules)
    plan = _plan(rules, size, turn)
    as_usual = header.is_plain and header.components in (1, 3)
    if rules.convert == "never" or (
        as_usual and rules.convert not in ("png", "pixels") and turn == UPRIGHT and not plan
    ):
        info = validate.inspect_jpeg(data, header, rules.check, rules.max_pixels)
        return _as_it_is(data, info, rules, kept)
    _check_size(size, rules)
    validate.limit_scans(data, header)
    box = None
    if as_usual:
        scaled = _turned(plan.scaled, turn) if plan else size
        # Pixels that are not scaled are those of tf.io.decode_image, which takes the fast DCT.
        fast = rules.convert == "pixels" and not plan
        image, box = _decode_jpeg(data, header, scaled, fast)
    else:
        if header.is_plain:
            # It finds what is garbled, which Pillow decodes without a word.
            validate.inspect_jpeg(data, header, "full", rules.max_pixels)
        image = _loaded(decode.open_image(data, rules.max_pixels))
    return _write(image, _Source("JPEG", lossy=True, box=box), rules, turn, kept, plan)


def _decode_jpeg(
    data: bytes, header: headers.JpegHeader, scaled: Size, fast: bool
) -> tuple[Image.Image, Box | None]:
    """Decodes a JPEG that will be scaled, at a reduced size if that is large enough.

    Returns:
      The image, and what of it is the picture: the decoder rounds sizes up, and a third of a pixel
      in the wrong place is seen at every edge.
    """
    size = (header.width, header.height)
    need = max(8 * _HEADROOM * part / whole for part, whole in zip(scaled, size, strict=True))
    eighths = min(math.ceil(need), 8)
    width, height = (-(-pixels * eighths // 8) for pixels in size)
    grey = header.components == 1
    try:
        pixels = simplejpeg.decode_jpeg(
            data,
            colorspace="GRAY" if grey else "RGB",
            min_width=width,
            min_height=height,
            fastdct=fast,
        )
    except ValueError as error:
        raise validate.jpeg_error(error, data) from error
    image = Image.fromarray(pixels[..., 0] if grey else pixels)
    if image.size == size:
        return image, None
    return image, (0, 0, size[0] * eighths / 8, size[1] * eighths / 8)


def _convert_png(data: bytes, rules: Rules) -> Converted:
    header = headers.read_png(data)
    if not header:
        return _untouched(data, rules)
    if header.animated:
        _check_frames(rules, "PNG")
    size = (header.width, header.height)
    turn, kept = _turn(headers.exif_orientation(header.exif), rules)
    plan = _plan(rules, size, turn)
    if rules.convert == "never" or (
        header.colour != headers.GREY_WITH_ALPHA
        and rules.convert not in ("jpeg", "pixels")
        and turn == UPRIGHT
        and not plan
    ):
        return _untouched(data, rules, kept)
    _check_size(size, rules)
    validate.check_png_end(data)
    with validate.decoding("PNG"):
        # load() does not compare the CRCs of pixel data, verify() does.
        decode.open_image(data, rules.max_pixels).image.verify()
    image = _loaded(decode.open_image(data, rules.max_pixels))
    done = ("first-frame",) if header.animated else ()
    return _write(image, _Source("PNG", False, done), rules, turn, kept, plan)


def _convert_other(data: bytes, rules: Rules) -> Converted:
    opened = decode.open_image(data, rules.max_pixels)
    done: tuple[str, ...] = ()
    if opened.animated:
        _check_frames(rules, opened.format)
        if rules.multi_frame == "all":
            return _untouched(data, rules)
        done = ("first-frame",)
    if rules.convert == "never":
        return _untouched(data, rules)
    _check_size(opened.image.size, rules)
    if rules.convert == "auto" and opened.format == "BMP":
        width, height = opened.image.size
        if validate.is_plain_bmp(data, height, width) and not _plan(
            rules, (width, height), UPRIGHT
        ):
            return _untouched(data, rules)
    if opened.format == "GIF":
        validate.check_gif_end(data)
    image = _loaded(opened)
    # ICO and TIFF tell their true size only now.
    _check_size(image.size, rules)
    turn, kept = _turn(headers.exif_orientation(_exif(image)), rules)
    plan = _plan(rules, image.size, turn)
    source = _Source(opened.format, opened.lossy, done)
    return _write(image, source, rules, turn, kept, plan)


def _loaded(opened: decode.Opened) -> Image.Image:
    with validate.decoding(opened.format):
        opened.image.load()
    return opened.image


def _exif(image: Image.Image) -> bytes:
    # Pillow applies the orientation of a TIFF by itself; of others it has the block.
    exif = image.info.get("exif", b"")
    return exif if isinstance(exif, bytes) and image.format != "TIFF" else b""


def _untouched(data: bytes, rules: Rules, kept: int = UPRIGHT) -> Converted:
    info = validate.inspect(data, rules.check, rules.max_pixels)
    if rules.convert == "pixels":
        opened = decode.open_image(data, rules.max_pixels)
        plan = _plan(rules, opened.image.size, UPRIGHT)
        return _write(_loaded(opened), _Source(opened.format, True), rules, UPRIGHT, kept, plan)
    return _as_it_is(data, info, rules, kept)


def _as_it_is(data: bytes, info: ImageInfo, rules: Rules, kept: int) -> Converted:
    _check_size((info.width, info.height), rules)
    return Converted(data, info, () if kept == UPRIGHT else (EXIF_KEPT,))


def _check_size(size: Size, rules: Rules) -> None:
    validate.limit(size[1], size[0], rules.max_pixels)
    if min(size) < rules.min_size:
        raise ImageError(
            "TooSmall", f"{size[0]} x {size[1]} pixels, a side less than {rules.min_size}"
        )


def _check_frames(rules: Rules, image_format: str) -> None:
    if rules.multi_frame == "reject":
        raise ImageError("MultiFrame", f"{image_format}: it has more frames than one")
    if rules.multi_frame == "all" and image_format != "GIF":
        raise ImageError(
            "MultiFrame", f"{image_format}: TensorFlow decodes all frames of GIF alone"
        )


def _turn(orientation: int, rules: Rules) -> tuple[int, int]:
    """An orientation as what is applied, and what is kept."""
    return (orientation, UPRIGHT) if rules.bakes else (UPRIGHT, orientation)


def _turned(size: Size, turn: int) -> Size:
    return size[::-1] if turn in _SIDEWAYS else size


def _plan(rules: Rules, size: Size, turn: int) -> Plan | None:
    """What resizing changes of an image stored with a size; None if nothing."""
    if not rules.resize or 0 in size:
        return None
    shown = _turned(size, turn)
    plan = rules.resize.plan(shown)
    return plan if (plan.scaled, plan.final) != (shown, shown) else None


@dataclass(frozen=True)
class _Source:
    """What is known of a decoded image.

    Attributes:
      format: of its file.
      lossy: whether that lost something.
      done: kinds of what was done already.
      box: the picture within the image, if that is a reduced decoding.
    """

    format: str
    lossy: bool
    done: tuple[str, ...] = ()
    box: Box | None = None


def _write(
    image: Image.Image, source: _Source, rules: Rules, turn: int, kept: int, plan: Plan | None
) -> Converted:
    """Writes pixels anew: mode, orientation, size, then the format."""
    with validate.decoding(source.format):
        image, kinds = to_grey_or_rgb(image)
    kinds += source.done
    if plan:
        # Enlarged, a thin strip may be longer than anything.
        validate.limit(plan.scaled[1], plan.scaled[0], validate.MAX_PIXELS)
        image = scale(image, _turned(plan.scaled, turn), source.box)
    if turn != UPRIGHT:
        image = image.transpose(_TRANSPOSES[turn])
        kinds += ("exif-rotated",)
    if plan:
        image = cut(image, plan.final)
        kinds += ("resized",)
    if rules.convert == "pixels":
        return _raw(image, rules.channels, kinds)
    target = {"jpeg": "JPEG", "png": "PNG"}.get(rules.convert, "JPEG" if source.lossy else "PNG")
    if target == "JPEG" and max(image.size) > MAX_SIDE:
        if rules.convert == "jpeg":
            raise ImageError("TooLarge", f"a JPEG has no side of more than {MAX_SIDE:,} pixels")
        target = "PNG"
    exif = b""
    if kept != UPRIGHT:
        exif = headers.exif_of(kept)
        kinds += (EXIF_KEPT,)
    out = io.BytesIO()
    if target == "JPEG":
        image.save(out, target, quality=rules.quality, subsampling=0, exif=exif)
    else:
        image.save(out, target, exif=exif)
    if source.format != target:
        kinds = (f"{source.format.lower()}-to-{target.lower()}", *kinds)
    return Converted(out.getvalue(), ImageInfo(target, image.height, image.width), kinds)


def _raw(image: Image.Image, channels: int, kinds: tuple[str, ...]) -> Converted:
    """The pixels themselves, uint8, row by row."""
    mode = {1: "L", 3: "RGB"}.get(channels, image.mode)
    if image.mode != mode:
        kinds += ("rgb-to-grey" if mode == "L" else "grey-to-rgb",)
        image = image.convert(mode)
    info = ImageInfo("uint8", image.height, image.width)
    return Converted(image.tobytes(), info, kinds, len(image.getbands()))
