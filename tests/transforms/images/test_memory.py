"""The memory of decoders is bounded, also for hostile files."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hand_jpeg import jpeg
from odd_tiff import tiff
from pictures import picture, saved
from PIL import Image

from imageshards.transforms.images import memory
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError

pytestmark = pytest.mark.slow

SIDE = 1800

# Converts files, as many at a time as the first argument says; prints the growth of the peak RSS.
MEASURE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.validate import ImageError

def attempt(path, convert_to="auto"):
    try:
        convert(open(path, "rb").read(), ImagePolicy(convert=convert_to))
    except ImageError:
        pass

def high_water():
    # ru_maxrss would count the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

threads, convert_to, warm, *paths = sys.argv[1:]
attempt(warm)
before = high_water()
with ThreadPoolExecutor(int(threads)) as executor:
    list(executor.map(attempt, paths, [convert_to] * len(paths)))
print(high_water() - before)
"""


def peak(folder: Path, files: list[bytes], threads: int = 1, convert_to: str = "auto") -> int:
    """The bytes by which the peak memory of a process grows that converts files."""
    kind = "WEBP" if files[0][8:12] == b"WEBP" else "TIFF"
    paths = []
    for number, data in enumerate([saved(picture(), kind), *files]):
        path = folder / f"{number}"
        path.write_bytes(data)
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(threads), convert_to, *paths],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def large(mode: str, side: int = SIDE) -> Image.Image:
    return picture(mode, (200, 200)).resize((side, side), Image.Resampling.NEAREST)


CASES = {
    "WEBP": ("RGBA", {"lossless": True, "method": 0}),
    "TIFF": ("RGBA", {"compression": "tiff_lzw"}),
    "JPEG2000": ("RGBA", {}),
    "AVIF": ("RGBA", {"speed": 10}),
    "JPEG": ("CMYK", {}),
}


@pytest.mark.parametrize("convert_to", ["auto", "pixels"])
@pytest.mark.parametrize("kind", CASES)
def test_a_conversion_takes_no_more_bytes_per_pixel_than_stated(
    tmp_path: Path, kind: str, convert_to: str
):
    mode, options = CASES[kind]
    data = saved(large(mode), kind, **options)
    most = memory.bytes_per_pixel(kind) * SIDE * SIDE
    assert most / 3 < peak(tmp_path, [data], convert_to=convert_to) < most


def test_the_documentation_states_the_measured_bytes():
    document = Path(__file__).parents[3] / "docs/guide/images.md"
    text = " ".join(document.read_text().split())
    most = [memory.bytes_per_pixel(kind) for kind in ("TIFF", "JPEG2000")]
    assert "up to {} bytes per pixel, of a JPEG 2000 up to {}".format(*most) in text
    assert f"more than {memory.TURN_PIXELS >> 20} million pixels are decoded one at a time" in text


def test_large_images_take_turns(tmp_path: Path):
    side = 4200
    data = saved(Image.new("RGBA", (side, side), "red"), "TIFF", compression="tiff_lzw")
    assert 2 * side * side > memory.TURN_PIXELS
    most = 2 * memory.bytes_per_pixel("TIFF") * side * side
    assert peak(tmp_path, [data] * 4, threads=4, convert_to="pixels") < most


def blp(width: int, height: int, inside: bytes) -> bytes:
    """A texture of Blizzard's whose header declares a size, with a JPEG inside."""
    tables = struct.pack("<16I", 160, *[0] * 15) + struct.pack("<16I", len(inside), *[0] * 15)
    return b"BLP1" + struct.pack("<iI2Iii", 0, 0, width, height, 4, 0) + tables + bytes(4) + inside


def hostile() -> dict[str, bytes]:
    """Small files whose headers declare many pixels."""
    wide, high = 12_600, 12_600
    grey = bytearray(saved(picture("L"), "JPEG", progressive=True))
    at = grey.index(b"\xff\xc2") + 5
    grey[at : at + 4] = struct.pack(">HH", high, wide)
    textures = struct.pack("<i4b2I", 1, 2, 0, 0, 0, wide, high) + bytes(1315)
    runs = saved(picture(), "TGA", compression="tga_rle")
    tags = {
        256: (wide,), 257: (high,), 258: (8, 8, 8), 259: (5,), 262: (2,), 273: (0,), 277: (3,),
        278: (high,), 279: (99,),
    }  # fmt: skip
    return {
        "progressive.jpg": bytes(grey),
        "baseline.jpg": jpeg(size=(64, 64)).replace(
            struct.pack(">HH", 64, 64), struct.pack(">HH", high, wide)
        ),
        "jpeg.blp": blp(wide, high, bytes(grey)),
        "small-jpeg.blp": blp(wide, high, saved(picture(), "JPEG")),
        "dxt.blp": b"BLP2" + textures,
        "lzw.tif": tiff(tags, bytes(99)),
        "gray.pgm": b"P5 12600 12600 255\n" + bytes(99),
        "brush.gbr": struct.pack(">5I", 21, 1, wide, high, 4) + bytes(99),
        "runs.tga": runs[:12] + struct.pack("<HH", wide, high) + runs[16:],
    }


def test_small_files_that_declare_many_pixels_take_no_memory(tmp_path: Path):
    for name, data in hostile().items():
        assert len(data) < 5000, name
        with pytest.raises(ImageError, match="cannot hold") as caught:
            convert(data, ImagePolicy())
        assert caught.value.kind == "Truncated", name
    # A process that has freed large blocks of memory fills them with zeros when it uses them again.
    released = saved(large("RGBA"), "TIFF", compression="tiff_lzw")
    before = peak(tmp_path, [released])
    assert peak(tmp_path, [released, *hostile().values()]) < before + 20_000_000


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "GIF", "WEBP", "JPEG2000", "JPEG", "BMP", "QOI"])
@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_one_color_is_no_reason_to_reject_a_large_image(kind: str, mode: str):
    side = 300 if kind in ("QOI", "BMP") else 3000
    options = {"compression": "tiff_lzw"} if kind == "TIFF" else {}
    mode = "RGB" if kind in ("QOI", "WEBP") else mode
    if (kind, mode) in (("JPEG2000", "1"), ("JPEG", "1")):
        mode = "L"
    data = saved(Image.new(mode, (side, side)), kind, **options)
    image = convert(data, ImagePolicy())
    assert (image.info.width, image.info.height) == (side, side)


def test_a_size_without_pixels_is_not_printed():
    sizes = struct.pack(">4I", 5, 5, 9, 0xF0000000)
    for data in (b"\xff\x4f\xff\x51\0\x29\0\0" + sizes + bytes(60), jpeg(size=(37, 0))):
        with pytest.raises(ImageError, match="a size without pixels"):
            convert(data, ImagePolicy())


def test_an_empty_picture_of_a_size_that_takes_gigabytes_is_rejected():
    data = bytearray(saved(Image.new("RGB", (64, 64)), "JPEG2000", no_jp2=True))
    data[8:16] = struct.pack(">II", 12_600, 12_600)
    # It may be intact: its kind is not Truncated.
    with pytest.raises(ImageError, match="too much memory") as caught:
        convert(bytes(data), ImagePolicy())
    assert caught.value.kind == "TooLarge"
