"""Schemas of decoded pixels: colours, sizes, every kind of image."""

import struct
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import pytest
import tensorflow as tf
from conftest import Build
from helpers import image_bytes, rejects, write_images
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from schema_builds import SIZE, as_tensorflow_sees, options_of, raw_records, saved, write_folder

from imageshards.pipeline.job.failures import JobError
from imageshards.reader import parse
from imageshards.transforms.images.convert import convert
from imageshards.transforms.images.policy import ImagePolicy
from imageshards.transforms.images.resize import Resize
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import SCHEMAS, SHAPE, Schema
from imageshards.transforms.references import plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "in")


def test_batches_of_one_shape_are_decoded_at_once(build: Build, folder: Path, tmp_path: Path):
    build(folder, **options_of("pixels"))
    schema = parse.schema_of(str(tmp_path / "out"))
    spec = parse.parse_spec(schema)
    data = raw_records(tmp_path / "out")
    batches = (
        tf.data.Dataset.from_tensor_slices(data)
        .batch(4, drop_remainder=True)
        .map(lambda batch: parse.decode(tf.io.parse_example(batch, spec), schema))
    )
    assert batches.element_spec["image"].shape == (4, 16, 24, 3)
    read = np.concatenate([batch["image"].numpy() for batch in batches])
    one_by_one = [parse.decode_numpy(record, schema)["image"] for record in data[:20]]
    np.testing.assert_array_equal(read, one_by_one)
    for name in ("slim", "shape"):
        parsed = {feature.key: tf.constant([b""]) for feature in SCHEMAS[name].features}
        with pytest.raises(ValueError, match="decode before batching"):
            parse.decode(parsed, name)


def test_pixels_have_the_range_and_channels_of_the_options(
    build: Build, folder: Path, tmp_path: Path
):
    build(folder, **options_of("raw"), pixel_range="0..255", channels=1, output=tmp_path / "a")
    build(folder, **options_of("pixels"), channels=1, output=tmp_path / "b")
    build(folder, **options_of("shape"), channels=3, output=tmp_path / "c")
    values = {
        name: [parse.decode_numpy(r, parse.schema_of(str(tmp_path / name))) for r in records]
        for name in "abc"
        for records in [raw_records(tmp_path / name)]
    }
    for a, b, c in zip(values["a"], values["b"], values["c"], strict=True):
        assert a["image"].dtype == np.float32
        assert b["image"].shape == (16, 24, 1)
        np.testing.assert_array_equal(a["image"], b["image"])
        assert c["shape"].tolist() == [16, 24, 3] == list(c["image"].shape)
        grey = np.asarray(Image.fromarray(c["image"]).convert("L"))
        np.testing.assert_array_equal(b["image"][..., 0], grey)


def hard_images(place: Path) -> dict[str, Any]:
    """Writes images of every awkward kind; name -> their pixels as grey or RGB of 8 bits."""
    place.mkdir(parents=True)
    rng = np.random.default_rng(1)
    rgb = rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    alpha = rng.integers(0, 256, (16, 24), dtype=np.uint8)
    deep = rng.integers(0, 65536, (16, 24), dtype=np.uint16)
    rgba = Image.fromarray(np.dstack([rgb, alpha]))
    paper = Image.new("RGB", SIZE, "white")
    paper.paste(rgba, mask=rgba.getchannel("A"))
    exif = Image.Exif()
    exif[0x0112] = 3
    files = {
        "16-bit.png": (saved(Image.fromarray(deep)), (deep >> 8).astype(np.uint8)[..., None]),
        "alpha.png": (saved(rgba), np.asarray(paper)),
        "turned.png": (saved(Image.fromarray(rgb), exif=exif), rgb[::-1, ::-1]),
        "cmyk.tif": (
            saved(Image.fromarray(rgb).convert("CMYK"), "TIFF"),
            np.asarray(Image.fromarray(rgb).convert("CMYK").convert("RGB")),
        ),
        "lossless.webp": (saved(Image.fromarray(rgb), "WEBP", lossless=True), rgb),
    }
    for name, (data, _) in files.items():
        (place / name).write_bytes(data)
    return {name: pixels for name, (_, pixels) in files.items()}


@pytest.mark.parametrize("name", ["raw", "pixels", "shape"])
def test_awkward_images_become_8_bit_colours(build: Build, tmp_path: Path, name: str):
    expected = hard_images(tmp_path / "in/a")
    (tmp_path / "in/a/broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    build(tmp_path / "in", **{**options_of(name), "num_shards": "1"}, max_reject_fraction=0.5)
    schema = parse.schema_of(str(tmp_path / "out"))
    found = []
    for data in raw_records(tmp_path / "out"):
        pixels = parse.decode_numpy(data, schema)["image"]
        found.append((pixels * 255 if name == "raw" else pixels).astype(np.uint8))
    wanted = [
        pixels if name == "shape" or pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)
        for pixels in expected.values()
    ]
    assert sorted(map(np.ndarray.tobytes, found)) == sorted(p.tobytes() for p in wanted)
    (reject,) = rejects(tmp_path / "out")
    assert (Path(reject["uri"]).name, reject["stage"]) == ("broken.jpg", "check")


def png(colour: int, bits: int, transparent: bool = False) -> bytes:
    """A PNG of 7 x 5 random pixels, of a colour type and depth of the format's table 11.1."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    rng = np.random.default_rng(10 * colour + bits)
    row = -(-7 * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] * bits // 8)
    rows = b"".join(b"\0" + rng.bytes(row) for _ in range(5))
    palette = chunk(b"PLTE", rng.bytes(3 << bits)) if colour == 3 else b""
    alpha = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: rng.bytes(1 << bits) if colour == 3 else b""}
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 5, bits, colour, 0, 0, 0)) + palette
    if transparent:
        head += chunk(b"tRNS", alpha[colour])
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("colour", "depths", "transparent"),
    [
        (0, (1, 2, 4, 8, 16), False),
        (0, (1, 2, 4, 8, 16), True),
        (2, (8, 16), False),
        (2, (8, 16), True),
        (3, (1, 2, 4, 8), False),
        (3, (1, 2, 4, 8), True),
        (4, (8, 16), False),
        (6, (8, 16), False),
    ],
)
def test_every_kind_of_png_is_decoded_as_tensorflow_does(
    colour: int, depths: tuple[int, ...], transparent: bool
):
    for bits in depths:
        data = png(colour, bits, transparent)
        colours, grey = parse.decode_image(data), parse.decode_image(data, channels=1)
        np.testing.assert_array_equal(colours, as_tensorflow_sees(data))
        expected = as_tensorflow_sees(data, channels=1)
        assert grey.shape == expected.shape
        if colour in (0, 4):
            np.testing.assert_array_equal(grey, expected)
        else:
            np.testing.assert_allclose(grey, expected.astype(int), atol=1)
        as_it_is = parse.decode_image(data, channels=0)
        np.testing.assert_array_equal(as_it_is, grey if colour == 0 else colours)


def test_pixels_are_those_that_png_would_hold(tmp_path: Path):
    data = image_bytes(3, size=(200, 120))
    for resize in (Resize.parse("32x32"), Resize.parse("pad:64x64")):
        png = convert(data, ImagePolicy(convert="png", resize=resize)).data
        raw = convert(data, ImagePolicy(convert="pixels", resize=resize))
        assert raw.data == as_tensorflow_sees(png).tobytes()
        assert (raw.info.format, raw.channels) == ("uint8", 3)
    assert convert(data, ImagePolicy(convert="pixels")).data == as_tensorflow_sees(data).tobytes()


@pytest.mark.parametrize("resize", ["24x16", "crop:24x16"])
def test_images_that_do_not_reach_the_size_are_rejected(build: Build, tmp_path: Path, resize: str):
    write_images(tmp_path / "in", 1, 3)
    (tmp_path / "in/class00/small.png").write_bytes(image_bytes(7, "PNG", (12, 8)))
    with pytest.raises(JobError, match=r"1 WrongSize, such as .*small.png \(12 x 8 .*--enlarge"):
        build(tmp_path / "in", features="pixels", resize=resize, num_shards="1")
    summary = build(
        tmp_path / "in", features="pixels", resize=resize, enlarge=True, num_shards="1",
        overwrite=True,
    )  # fmt: skip
    assert summary.records == 4


def test_the_automatic_number_of_shards_follows_from_the_pixels(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_images(tmp_path / "in", 1, 10)
    monkeypatch.setattr(plan, "TARGET_SHARD_BYTES", 200_000)
    summary = build(tmp_path / "in", features="raw", resize="24x16", num_shards="auto")
    assert summary.shards == 1
    again = build(
        tmp_path / "in", features="raw", resize="96x64", enlarge=True, output=tmp_path / "b"
    )
    assert again.shards == round(10 * 96 * 64 * 3 * 4 / 200_000) == 4


def test_records_become_pixels_without_the_features_of_their_images(
    build: Build, folder: Path, tmp_path: Path
):
    build(folder, num_shards="1", output=tmp_path / "slim")
    build(f"{tmp_path}/slim/train-*", **options_of("pixels"))
    (record, *_) = raw_records(tmp_path / "out")
    assert sorted(example.decode(record)) == ["image", "label"]


PIXEL_VALUES = st.tuples(
    st.integers(1, 8), st.integers(1, 8), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1)
)


@given(PIXEL_VALUES, st.sampled_from(["float32", "uint8", "shape"]), st.integers(0, 1000))
def test_any_pixels_are_read_back(drawn: tuple[int, int, int, int], kind: str, label: int):
    *size, seed = drawn
    dtype = "uint8" if kind == "shape" else kind
    pixels = np.random.default_rng(seed).integers(0, 256, size).astype(dtype)
    schema: Schema = SHAPE
    if kind != "shape":
        name = "raw" if kind == "float32" else "pixels"
        schema = SCHEMAS[name].with_shape((size[0], size[1], size[2]))
    values = {"pixels": pixels.tobytes(), "label": label, "shape": np.array(size, "<i4").tobytes()}
    data = b"".join(example.encode(schema, values))
    found = parse.decode_numpy(data, schema)
    np.testing.assert_array_equal(found["image"], pixels)
    assert (found["image"].dtype, found["label"]) == (pixels.dtype, label)
    values["pixels"] = pixels.tobytes()[:-1]
    with pytest.raises(example.CorruptExample, match="bytes"):
        parse.decode_numpy(b"".join(example.encode(schema, values)), schema)
