"""Images of any format are opened without spending memory or running programs."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from helpers import image_bytes
from pictures import chunk, picture, saved, written

from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError


def test_a_tiff_whose_strips_do_not_cover_it_is_rejected():
    data = bytearray(saved(picture(), "TIFF"))
    at = next(n for n in range(8, len(data)) if struct.unpack_from("<H", data, n) == (257,))
    data[at + 2 : at + 12] = struct.pack("<HII", 4, 1, 4_000_000)
    with pytest.raises(ImageError, match="do not cover"):
        convert(bytes(data), ImagePolicy())


def bombs() -> dict[str, bytes]:
    """50,000 x 50,000 pixels, by their headers; those that Pillow would give memory first too."""
    side = 50_000
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = zlib.compress(bytes(10_000))
    png = b"\x89PNG\r\n\x1a\n" + ihdr + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    jpeg = bytearray(image_bytes(1))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", side, side)
    vp8x = struct.pack("<4sIB3x", b"VP8X", 10, 0) + 2 * (side - 1).to_bytes(3, "little")
    webp = b"RIFF\0\0\0\0WEBP" + vp8x + saved(picture(), "WEBP")[12:]
    jp2 = bytearray(saved(picture(), "JPEG2000", no_jp2=True))
    jp2[8:16] = struct.pack(">II", side, side)
    tiff = bytearray(saved(picture(), "TIFF"))
    for tag in (256, 257):
        at = next(n for n in range(8, len(tiff)) if struct.unpack_from("<H", tiff, n) == (tag,))
        tiff[at + 2 : at + 12] = struct.pack("<HII", 4, 1, side)
    ico = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png
    return {
        "PNG": png,
        "JPEG": bytes(jpeg),
        "GIF": b"GIF89a" + struct.pack("<HH", side, side) + saved(picture(), "GIF")[10:],
        "WEBP": webp,
        "JPEG2000": bytes(jp2),
        "TIFF": bytes(tiff),
        "ICO": ico,
        "PPM": b"P6\n50000 50000\n255\n" + bytes(100),
        "PSD": struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, side, side, 8, 3) + bytes(14),
    }


_MEASURE = """
import sys
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError
def high_water():
    # ru_maxrss would count the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
convert(open(sys.argv[1], "rb").read(), ImagePolicy())
before = high_water()
kinds = []
for name in sys.argv[2:]:
    try:
        convert(open(name, "rb").read(), ImagePolicy())
    except ImageError as error:
        kinds.append(error.kind)
print(*kinds, high_water() - before)
"""


def test_decompression_bombs_are_rejected_without_using_memory(tmp_path: Path):
    paths = []
    good = {"good.tif": saved(picture(), "TIFF")}
    for name, data in (good | bombs()).items():
        (tmp_path / name).write_bytes(data)
        paths.append(str(tmp_path / name))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *paths], capture_output=True, text=True, check=True
    )
    *kinds, kilobytes = done.stdout.split()
    assert kinds == ["TooLarge"] * len(bombs())
    assert int(kilobytes) < 20_000


def test_postscript_is_rejected_without_running_ghostscript():
    postscript = saved(picture(), "EPS")
    with pytest.raises(ImageError, match="PostScript") as caught:
        convert(postscript, ImagePolicy())
    assert caught.value.kind == "Unsupported"


def test_without_the_heic_decoder_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    heic = written()["HEIF-RGB"]
    assert convert(heic, ImagePolicy()).conversions == ("heif-to-jpeg",)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"imageshards\[heic\]"):
        convert(heic, ImagePolicy())
