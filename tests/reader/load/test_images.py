"""reader.load: shapes, pixels and labels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import image_bytes, loaded_names, write_images
from PIL import Image

from imageshards import reader
from imageshards.transforms.elements import UsageError


@pytest.mark.parametrize(
    ("dtype", "expected"), [("uint8", tf.uint8), ("float32", tf.float32), ("bfloat16", tf.bfloat16)]
)
def test_shapes_are_static(dataset, dtype: str, expected: tf.DType):
    data = reader.load(dataset, "train", batch_size=32, image_size=(8, 12), dtype=dtype)
    images, labels = data.element_spec
    assert images == tf.TensorSpec((32, 8, 12, 3), expected)
    assert labels == tf.TensorSpec((32,), tf.int32)
    images, labels = next(iter(data))
    assert images.dtype == expected
    top = float(tf.reduce_max(tf.cast(images, tf.float32)))
    assert (0.5 < top <= 1.0) if dtype != "uint8" else top > 128
    assert data.cardinality() == tf.data.INFINITE_CARDINALITY


def test_images_of_several_sizes_cannot_be_batched(tmp_path: Path, build):
    for number, size in enumerate(((8, 8), (9, 8))):
        (tmp_path / "in/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"in/a/{number}.png").write_bytes(image_bytes(number, "PNG", size=size))
    build(tmp_path / "in", num_shards="1")
    with pytest.raises(UsageError, match=r"from 8x8 to 9x8 pixels.* set image_size"):
        reader.load(tmp_path / "out", batch_size=2)
    assert next(iter(reader.load(tmp_path / "out", batch_size=2, image_size=4)))[0].shape[0] == 2
    assert next(iter(reader.load(tmp_path / "out")))[0].shape[2] == 3


def test_pixels_and_labels_are_those_of_the_files(tmp_path: Path, build):
    folder = tmp_path / "in"
    write_images(folder, 3, 4)
    for number, kind in enumerate(("PNG", "BMP", "GIF")):
        (folder / "class01" / f"x{number}.png").write_bytes(image_bytes(number, kind, (31, 17)))
    build(folder, num_shards="2", base_uri=str(folder))
    order = loaded_names(tmp_path / "out", shuffle=False)
    data = reader.load(tmp_path / "out", shuffle=False, repeat=False, dtype="uint8")
    for name, (image, label) in zip(order, data, strict=True):
        decoded = tf.io.decode_image(
            (folder / name).read_bytes(), channels=3, expand_animations=False
        )
        if not name.endswith("x2.png"):  # the GIF is a PNG now
            np.testing.assert_array_equal(image, decoded)
        assert int(label) == int(name.split("/")[0][-2:])
    data = reader.load(tmp_path / "out", shuffle=False, repeat=False, image_size=9)
    for name, (image, _) in zip(order, data, strict=True):
        decoded = tf.io.decode_image(
            (folder / name).read_bytes(), channels=3, expand_animations=False
        )
        height, width = decoded.shape[:2]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        cut = decoded[top : top + side, left : left + side]
        expected = tf.image.resize(cut, (9, 9)) / 255.0
        # The colours of a JPEG's border come from pixels that are cut off.
        np.testing.assert_allclose(image[:, 1:-1], expected[:, 1:-1], atol=1e-6)
        np.testing.assert_allclose(image, expected, atol=0.1)
    grey = reader.load(tmp_path / "out", image_size=9, channels=1, batch_size=5)
    assert next(iter(grey))[0].shape == (5, 9, 9, 1)


@pytest.mark.parametrize("side", [16, 40, 75, 100, 200])
def test_a_large_jpeg_is_decoded_at_a_reduced_size(tmp_path: Path, build, side: int):
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    rough = Image.fromarray(rng.integers(0, 255, (5, 7, 3), dtype=np.uint8))
    whole = rough.resize((420, 300), Image.Resampling.BICUBIC)
    whole.save(tmp_path / "in" / "a.jpg", quality=95)
    build(tmp_path / "in", num_shards="1", labels="none")
    image = next(iter(reader.load(tmp_path / "out", image_size=side, dtype="uint8")))
    middle = whole.crop((60, 0, 360, 300))
    expected = np.asarray(middle.resize((side, side), Image.Resampling.BOX), np.float64)
    from_all = tf.image.resize(np.asarray(middle), (side, side)).numpy()
    assert image.shape == (side, side, 3)
    assert np.abs(image.numpy() - expected).mean() < np.abs(from_all - expected).mean() + 1


def test_augmentation_differs_between_epochs_and_not_between_runs(dataset):
    def take(seed: int = 0) -> list[np.ndarray]:
        data = reader.load(dataset, "train", image_size=8, augment=True, shuffle=False, seed=seed)
        return [image for image, _ in data.take(121).as_numpy_iterator()]

    first = take()
    np.testing.assert_array_equal(first, take())
    assert not np.array_equal(first[0], first[120])
    assert not np.array_equal(first[0], take(seed=1)[0])


def test_tfrecords_of_other_writers_are_read_by_a_pattern(tmp_path: Path):
    for shard in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"old-{shard}")) as writer:
            for number in range(shard * 10, shard * 10 + 10):
                feature = {
                    "png": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[image_bytes(number, "PNG")])
                    ),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    place = str(tmp_path / "old-*")
    data = reader.load(
        place, image_key="png", label_key="y", batch_size=5, image_size=8, repeat=False
    )
    assert sorted(int(label) for _, labels in data for label in labels) == list(range(30))
    spec = {"y": tf.io.FixedLenFeature([], tf.int64)}
    data = reader.load(place, "[50%:]", features=spec, shuffle=False, repeat=False, batch_size=4)
    assert [y for one in data.as_numpy_iterator() for y in one["y"]] == list(range(15, 30))
    images = reader.load(place, image_key="png", label_key="", image_size=8, repeat=False)
    assert len(list(images)) == 30
    assert images.element_spec.shape == (8, 8, 3)


def test_keras_trains_on_the_data_set(dataset):
    import keras

    data = reader.load(dataset, batch_size=24, image_size=8)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(6)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    history = model.fit(data, epochs=2, steps_per_epoch=data.steps_per_epoch, verbose=0)
    assert len(history.history["loss"]) == 2


@pytest.mark.parametrize("schema", ["imagenet", "raw", "pixels", "shape"])
def test_images_of_every_schema_are_read(build, photos: Path, tmp_path: Path, schema: str):
    resize = {"resize": "12x8"} if schema in ("raw", "pixels") else {}
    build(photos, num_shards="3", features=schema, **resize)
    out = tmp_path / "out"
    opened = list(reader.open(out))
    one_by_one = reader.load(out, shuffle=False, repeat=False, dtype="float32")
    for (image, label), (expected, its_label) in zip(one_by_one, opened, strict=True):
        if expected.dtype == np.uint8:
            expected = expected / np.float32(255)
        np.testing.assert_allclose(image, expected, atol=1e-6)
        assert int(label) == its_label
    batches = reader.load(out, batch_size=40, image_size=(4, 6), augment=True, dtype="bfloat16")
    assert batches.element_spec[0] == tf.TensorSpec((40, 4, 6, 3), tf.bfloat16)
    assert next(iter(batches))[0].shape == (40, 4, 6, 3)
    if resize:
        whole = reader.load(out, batch_size=40, shuffle=False, repeat=False)
        assert whole.element_spec[0] == tf.TensorSpec((None, 8, 12, 3), tf.float32)
        images = np.concatenate([batch for batch, _ in whole.as_numpy_iterator()])
        expected = np.stack([image for image, _ in opened])
        scale = 255 if expected.dtype == np.uint8 else 1
        np.testing.assert_allclose(images, expected / np.float32(scale), atol=1e-6)
    if schema == "raw":
        with pytest.raises(UsageError, match="float32"):
            reader.load(out, dtype="uint8")


def grey_and_coloured(folder: Path) -> Path:
    """Twelve images of 24 x 16: every third is grey, and some are BMPs and GIFs."""
    folder.mkdir()
    for number in range(12):
        kind = ("JPEG", "PNG", "BMP", "GIF")[number % 4]
        image = Image.open(io.BytesIO(image_bytes(number, "PNG")))
        if number % 3 == 0 and kind in ("JPEG", "PNG"):
            image = image.convert("L")
        image.save(folder / f"{number}.{kind.lower()}", kind)
    return folder


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("schema", ["slim", "shape", "pixels", "raw"])
def test_images_have_the_requested_channels(build, tmp_path: Path, schema: str, channels: int):
    folder = grey_and_coloured(tmp_path / "in")
    resize = {"resize": "24x16"} if schema in ("raw", "pixels") else {}
    build(folder, num_shards="1", features=schema, labels="none", **resize)
    opened = list(reader.open(tmp_path / "out", channels=channels))
    assert {image.shape for image in opened} == {(16, 24, channels)}
    levels = 1 if schema == "raw" else 255
    for size in (None, (16, 24), (8, 8)):
        data = reader.load(
            tmp_path / "out", batch_size=12, image_size=size, channels=channels,
            shuffle=False, repeat=False,
        )  # fmt: skip
        assert data.element_spec.shape[-1] == channels
        (images,) = data
        assert images.shape == (12, *(size or (16, 24)), channels)
        if size != (8, 8):
            expected = np.stack(opened).astype(np.float32) / levels
            np.testing.assert_allclose(images, expected, atol=1.01 / 255)


@pytest.mark.parametrize("wanted", [1, 3])
def test_greyscale_pixels_get_the_requested_channels(build, tmp_path: Path, wanted: int):
    folder = grey_and_coloured(tmp_path / "in")
    same = {"features": "pixels", "channels": 1, "resize": "24x16"}
    build(folder, num_shards="1", labels="none", **same)
    grey = np.stack(list(reader.open(tmp_path / "out", channels=0)))
    assert grey.shape == (12, 16, 24, 1)
    expected = np.repeat(grey, wanted, axis=3)
    np.testing.assert_array_equal(
        np.stack(list(reader.open(tmp_path / "out", channels=wanted))), expected
    )
    data = reader.load(
        tmp_path / "out", batch_size=12, channels=wanted, dtype="uint8", shuffle=False
    )
    np.testing.assert_array_equal(next(iter(data)), expected)


def test_pixels_of_the_requested_size_are_cropped_too(build, tmp_path: Path):
    folder = grey_and_coloured(tmp_path / "in")
    build(folder, num_shards="1", features="pixels", resize="24x16", labels="none")
    options = {"batch_size": 12, "image_size": (16, 24), "shuffle": False, "dtype": "uint8"}
    whole = next(iter(reader.load(tmp_path / "out", **options)))
    cut = next(iter(reader.load(tmp_path / "out", **options, crop_fraction=0.5)))
    expected = tf.image.resize(whole[:, 4:12, 6:18], (16, 24))
    np.testing.assert_allclose(tf.cast(cut, tf.float32), expected, atol=0.51)


def test_texts_are_read(build, tmp_path: Path):
    lines = [f"line {number}" for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    build(tmp_path / "a.txt", num_shards="3", features="text", labels="none")
    data = reader.load(tmp_path / "out", batch_size=8, repeat=False)
    found = [text.decode() for batch in data.as_numpy_iterator() for text in batch]
    assert sorted(found) == sorted(lines)
    assert sorted(text.decode() for text in reader.open(tmp_path / "out")) == sorted(lines)
