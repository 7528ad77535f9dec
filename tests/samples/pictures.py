"""Small image files of every format and mode, corrupt ones, and checks of converted images."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from functools import cache

import numpy as np
import pillow_heif
from PIL import Image, ImageCms

from imageshards.transforms.images import headers
from imageshards.transforms.images.convert import Converted, convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError

WIDTH, HEIGHT = 37, 22

FORMATS = (
    "AVIF", "BLP", "BMP", "DDS", "DIB", "GIF", "HEIF", "ICNS", "ICO", "IM", "JPEG", "JPEG2000",
    "MPO", "MSP", "PCX", "PNG", "PPM", "QOI", "SGI", "SPIDER", "TGA", "TIFF", "WEBP", "XBM",
)  # fmt: skip
MODES = (
    "1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV",
    "I", "F", "I;16", "I;16B",
)  # fmt: skip
_VARIANTS = (
    ("JPEG", "RGB", {"progressive": True}),
    ("JPEG", "RGB", {"subsampling": 0, "quality": 100}),
    ("PNG", "RGB", {"save_all": True, "frames": 2}),
    ("GIF", "RGB", {"save_all": True, "frames": 3}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGBA", {"save_all": True, "frames": 3}),
    ("AVIF", "RGB", {"save_all": True, "frames": 2}),
    ("TIFF", "RGB", {"save_all": True, "frames": 2}),
    *(
        ("TIFF", mode, {"compression": compression})
        for mode in ("RGB", "L")
        for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "zstd", "lzma")
    ),
    ("TIFF", "1", {"compression": "group4"}),
    ("TGA", "RGB", {"compression": "tga_rle"}),
    ("JPEG2000", "RGB", {"irreversible": True, "quality_layers": [20]}),
    ("ICO", "RGBA", {"bitmap_format": "bmp"}),
)


def picture(mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A smooth picture in a mode of Pillow; size is (width, height)."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    grey = x * (1 - y)
    if mode in ("I;16", "I;16B"):
        wide = Image.fromarray((grey * 65535).astype(np.uint16))
        return wide if mode == "I;16" else Image.frombytes(mode, size, wide.tobytes("raw", mode))
    if mode == "I":
        return Image.fromarray((grey * 65535).astype(np.int32))
    if mode == "F":
        return Image.fromarray(grey.astype(np.float32))
    colours = np.stack([x * 255, y * 255, grey * 255, 255 - y * 200], axis=-1).astype(np.uint8)
    rgba = Image.fromarray(colours)
    if mode in ("LA", "La", "RGBA", "RGBa", "PA"):
        through = {"La": "LA", "RGBa": "RGBA", "PA": "LA"}.get(mode, mode)
        image = rgba.convert(through)
        return image if mode == through else image.convert(mode)
    rgb = rgba.convert("RGB")
    if mode == "LAB":
        transform = ImageCms.buildTransform(
            ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
        )
        return ImageCms.applyTransform(rgb, transform)
    return rgb.convert(mode)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """An image file; `frames` is its number of frames."""
    if kind == "HEIF":
        pillow_heif.register_heif_opener()
    if kind == "ICNS":  # Pillow would write a megabyte: all sizes up to 1024
        png = saved(image.resize((16, 16), Image.Resampling.NEAREST), "PNG")
        return struct.pack(">4sI4sI", b"icns", len(png) + 16, b"icp4", len(png) + 8) + png
    frames = options.pop("frames", 0)
    if frames:
        flips = (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)
        options["append_images"] = [image.transpose(flip) for flip in flips[: frames - 1]]
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@cache
def written() -> dict[str, bytes]:
    """ "FORMAT-MODE" or "FORMAT-MODE-VARIANT" -> a file, for all that Pillow can write."""
    found = {}
    for kind in FORMATS:
        for mode in MODES:
            # Pillow lists nowhere which modes a format supports.
            try:
                found[f"{kind}-{mode}"] = saved(picture(mode), kind)
            except (OSError, ValueError, KeyError, SystemError, RuntimeError, TypeError):
                continue
    for kind, mode, options in _VARIANTS:
        name = "-".join([kind, mode, *map(str, options.values())])
        found[name] = saved(picture(mode), kind, **options)
    return {**found, **dict(_by_hand())}


def _by_hand() -> Iterator[tuple[str, bytes]]:
    """Files of formats that Pillow only reads, and PNGs that it does not write."""
    rgb = np.asarray(picture())
    planes = np.moveaxis(rgb, -1, 0).tobytes()
    yield "PSD-RGB", (
        struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, HEIGHT, WIDTH, 8, 3) + bytes(12) + bytes(2)
        + planes
    )  # fmt: skip
    yield (
        "SUN-RGB",
        (
            struct.pack(">8I", 0x59A66A95, WIDTH, HEIGHT, 24, 0, 1, 0, 0)
            + b"".join(row[:, ::-1].tobytes() + b"\0" * (WIDTH % 2) for row in rgb)
        ),
    )
    yield (
        "XPM-RGB",
        (
            b'/* XPM */\nstatic char *a[] = {\n"3 2 2 1",\n"a c #ff0000",\n"b c #00ff00",\n'
            b'"aba",\n"bab"\n};\n'
        ),
    )
    yield "PPM-plain", b"P3\n2 2\n255\n255 0 0 0 255 0 0 0 255 9 9 9\n"
    yield "CUR-RGB", _cursor()
    for colour, depths, samples in (
        (0, (1, 2, 4, 8, 16), 1), (2, (8, 16), 3), (3, (1, 2, 4, 8), 1), (4, (8, 16), 2),
        (6, (8, 16), 4),
    ):  # fmt: skip
        for depth in depths:
            yield f"PNG-type{colour}-{depth}-bit", png(colour, depth, samples)
            if colour in (0, 2, 3):
                yield f"PNG-type{colour}-{depth}-bit-tRNS", png(colour, depth, samples, True)


def _cursor() -> bytes:
    bitmap = saved(picture("RGB"), "DIB")
    body = bitmap[:8] + struct.pack("<i", 2 * HEIGHT) + bitmap[12:]
    body += bytes((WIDTH + 31) // 32 * 4 * HEIGHT)
    head = struct.pack("<HHH", 0, 2, 1)
    return head + struct.pack("<BBBBHHII", WIDTH, HEIGHT, 0, 0, 1, 1, len(body), 22) + body


def chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(colour: int, depth: int, samples: int, transparent: bool = False) -> bytes:
    """A PNG of noise, of any colour type and bit depth."""
    rng = np.random.default_rng(depth)
    row = (WIDTH * samples * depth + 7) // 8
    rows = b"".join(b"\0" + rng.bytes(row) for _ in range(HEIGHT))
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, 0))]
    if colour == 3:
        parts.append(chunk(b"PLTE", rng.bytes(3 << depth)))
    if transparent:
        parts.append(chunk(b"tRNS", {0: b"\0\1", 2: b"\0\1" * 3, 3: b"\0\x80"}[colour]))
    parts += [chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def truncated(data: bytes, times: int = 10) -> list[bytes]:
    """The beginnings of a file, cut at evenly spaced positions."""
    return [data[: len(data) * part // times] for part in range(times)]


def corrupted(data: bytes, times: int = 10) -> list[bytes]:
    """Copies of a file with four bytes changed each; in half of them within the first 64 bytes."""
    rng = np.random.default_rng(len(data))
    found = []
    for number in range(times):
        broken = bytearray(data)
        reach = len(data) if number % 2 else min(len(data), 64)
        for at in rng.integers(0, reach, 4):
            broken[at] = rng.integers(0, 256)
        found.append(bytes(broken))
    return found


def pixels(data: bytes) -> np.ndarray:
    """What TensorFlow decodes: uint8, (height, width, channels)."""
    import tensorflow as tf

    return tf.io.decode_image(data, expand_animations=False).numpy()


def assert_decodes(image: Converted) -> None:
    """TensorFlow decodes the file to the stated size, and its format is the stated one."""
    shape = pixels(image.data).shape
    assert shape[:2] == (image.info.height, image.info.width)
    assert shape[2] in (1, 3) or (shape[2] == 4 and image.info.format == "PNG")
    assert image.info.format == Image.open(io.BytesIO(image.data)).format.replace("MPO", "JPEG")


KINDS = {"Empty", "NotAnImage", "Unsupported", "TooLarge", "TooSmall", "Truncated", "Corrupt"}


def outcome(data: bytes, policy: ImagePolicy | None = None) -> str:
    """Converts a file; returns "decodes" or the kind of the error. Nothing else may happen."""
    try:
        image = convert(data, policy or ImagePolicy())
    except ImageError as caught:
        error = caught
    else:
        assert_decodes(image)
        return "decodes"
    assert str(error)
    assert "\n" not in str(error)
    assert error.kind in KINDS
    return error.kind


def with_orientation(orientation: int, kind: str, order: str = "big") -> bytes:
    """A file whose EXIF block, in the given byte order, holds an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "A camera"
    blob = exif.tobytes()
    if order == "big":
        blob = headers.exif_with_orientation(orientation)
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {"lossless": True}
    return saved(picture(), kind, exif=blob, **options)
