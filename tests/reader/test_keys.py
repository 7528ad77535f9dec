"""Elements with any features of the record: `keys` of reader.load, labels of any type."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import shards
from PIL import Image

from imageshards import reader
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.schemas import BOX_SIDES

LABELS = "image/object/class/label"
BOXES = "image/object/bbox"
COUNT = 12
SIZE = 64
RED, BLUE = (240, 30, 20), (20, 60, 220)


def rectangle(number: int) -> tuple[int, int, int, int]:
    """ymin, xmin, ymax and xmax of the red part of image `number`, of 48 x 96 pixels."""
    return 8 + number, 20 + 2 * number, 30 + number, 60 + 2 * number


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with a red rectangle, a box around it and one of the whole right half; and a price."""
    folder = tmp_path_factory.mktemp("boxed")
    rows = []
    for number in range(COUNT):
        ymin, xmin, ymax, xmax = rectangle(number)
        pixels = np.full((48, 96, 3), BLUE, np.uint8)
        pixels[ymin:ymax, xmin:xmax] = RED
        Image.fromarray(pixels).save(folder / f"{number}.png")
        boxes = [(xmin / 96, ymin / 48, xmax / 96, ymax / 48), (0.5, 0, 1, 1)][: 1 + number % 2]
        sides = {key: [box[at] for box in boxes] for at, key in enumerate(BOX_SIDES)}
        words = ["red", "half"][: len(boxes)]
        labels = [7, 8][: len(boxes)]
        rows.append(
            {"uri": f"{number}.png", "label": "ab"[number % 2], "price": number + 0.5,
             "stamp": 1 << 40 | number, "words": words, LABELS: labels, **sides}
        )  # fmt: skip
    manifest = folder / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = [f"{key}:float_list" for key in BOX_SIDES]
    columns += [f"{LABELS}:int_list", "price:float", "stamp:int", "words:bytes_list"]
    options = BuildOptions.of(
        input=(str(manifest),), output=str(folder / "out"), num_shards="2",
        features_from=tuple(columns), name="boxed", base_uri=str(folder),
    )  # fmt: skip
    run(options, ["--runner=FnApiRunner"], show_progress=False)
    return folder / "out"


KEYS = [BOXES, LABELS, "price", "stamp", "words", "image/format"]


def test_batches_have_the_features_that_are_named(boxed: Path):
    data = reader.load(boxed, keys=KEYS, batch_size=COUNT, image_size=SIZE, shuffle=False)
    batch = next(iter(data))
    assert sorted(batch) == sorted(["image", "label", *KEYS])
    assert batch["image"].shape == (COUNT, SIZE, SIZE, 3)
    assert data.class_names == ["a", "b"]
    assert data.num_classes == 2
    assert (batch["price"].dtype, batch["stamp"].dtype) == (tf.float32, tf.int64)
    numbers = (batch["price"].numpy() - 0.5).astype(int)
    assert sorted(numbers) == list(range(COUNT))
    assert batch["stamp"].numpy().tolist() == [1 << 40 | number for number in numbers.tolist()]
    assert isinstance(batch[BOXES], tf.RaggedTensor)
    assert isinstance(batch["words"], tf.RaggedTensor)
    assert batch["image/format"].numpy().tolist() == [b"PNG"] * COUNT
    for number, words in zip(numbers, batch["words"].to_list(), strict=True):
        assert words == [b"red", b"half"][: 1 + number % 2]  # not a list of objects: always whole
    # Of 96 x 48 pixels, the square crop has columns 24 to 72.
    for number, boxes, labels in zip(numbers, batch[BOXES], batch[LABELS], strict=True):
        ymin, xmin, ymax, xmax = rectangle(int(number))
        left, right = (max(xmin, 24) - 24) / 48, (min(xmax, 72) - 24) / 48
        expected = [[ymin / 48, left, ymax / 48, right], [0, 0.5, 1, 1]][: 1 + number % 2]
        np.testing.assert_allclose(boxes, expected, atol=1e-6)
        assert labels.numpy().tolist() == [7, 8][: 1 + number % 2]


def red_box(image: np.ndarray) -> list[float]:
    """The box around the red pixels, as fractions."""
    rows, columns = np.nonzero((image[..., 0] > 0.5) & (image[..., 2] < 0.5))
    return [rows.min() / SIZE, columns.min() / SIZE, (rows.max() + 1) / SIZE,
            (columns.max() + 1) / SIZE]  # fmt: skip


@pytest.mark.parametrize("by", ["load", "grain"])
def test_boxes_follow_the_crop_and_the_mirroring(boxed: Path, by: str):
    options = {"keys": [BOXES, LABELS], "image_size": SIZE, "augment": True, "list_length": 3}
    if by == "load":
        elements = reader.load(boxed, **options).as_numpy_iterator()
    else:
        elements = iter(reader.grain(boxed, **options))
    seen = dropped = 0
    for element in islice(elements, 8 * COUNT):
        boxes, size = element[BOXES], int(element[f"{BOXES}/size"])
        assert boxes.shape == (3, 4)
        assert size == int(element[f"{LABELS}/size"])
        assert not boxes[size:].any()
        labels = element[LABELS][:size].tolist()
        dropped += 7 not in labels
        if 7 in labels:
            seen += 1
            np.testing.assert_allclose(boxes[labels.index(7)], red_box(element["image"]), atol=0.05)
    assert seen > 4 * COUNT
    assert dropped


def test_grain_gives_the_features_that_load_gives(boxed: Path):
    options = {"keys": KEYS, "image_size": SIZE, "list_length": 3, "batch_size": COUNT}
    loaded = next(reader.load(boxed, shuffle=False, **options).as_numpy_iterator())
    batch = next(iter(reader.grain(boxed, shuffle=False, **options)))
    assert batch.keys() == loaded.keys()
    for key, values in loaded.items():
        assert batch[key].dtype == values.dtype, key
        if key == "image":
            assert np.abs(batch[key] - values).mean() < 0.02
        elif values.dtype == np.float32:
            np.testing.assert_allclose(batch[key], values, atol=1e-6)
        else:
            assert batch[key].tolist() == values.tolist(), key


def test_lists_are_padded_or_cut_to_a_length(boxed: Path):
    data = reader.load(
        boxed, keys=["words", BOXES], batch_size=COUNT, list_length=1, shuffle=False, decode=False
    )
    assert data.element_spec["words"].shape == (COUNT, 1)
    assert data.element_spec[BOXES].shape == (COUNT, 1, 4)
    batch = next(iter(data))
    assert batch["words"].numpy().tolist() == [[b"red"]] * COUNT
    assert sorted(batch["words/size"].numpy().tolist()) == [1] * 6 + [2] * 6
    assert batch["image"].dtype == tf.string


def test_labels_have_any_type(boxed: Path):
    for key, dtype in (("price", tf.float32), ("stamp", tf.int64), ("image/format", tf.string)):
        _, labels = next(iter(reader.load(boxed, label_key=key, batch_size=4, image_size=8)))
        assert labels.dtype == dtype
        _, label = reader.open(boxed, label_key=key)[0]
        assert isinstance(label, {"price": float, "stamp": int}.get(key, bytes))
    files = shards(boxed)
    files[0].with_name("copy.bin").write_bytes(files[0].read_bytes())
    # Files without metadata: the types are those of the first record, and features are lists.
    other = str(boxed / "copy.bi*")
    _, price = next(iter(reader.load(other, label_key="price", image_size=8)))
    assert price.dtype == tf.float32
    element = next(iter(reader.load(other, label_key="", keys=[BOXES, "price"], image_size=8)))
    assert sorted(element) == sorted(["image", BOXES, "price"])
    assert element["price"].shape == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["prize"]}, r"keys 'prize': .* has no such feature: did you mean price\?"),
        ({"keys": "price"}, "invalid keys 'price': must be a list"),
        ({"keys": ["label"]}, "'label' is the name of the element's label: .* label_key='label'"),
        ({"keys": ["price"], "features": {}}, "cannot be combined"),
        ({"list_length": 3}, "list_length requires keys"),
        ({"keys": [BOXES], "batch_size": 2}, "known size: set image_size or list_length"),
        ({"label_key": "prize"}, r"label_key 'prize': .* has no such feature: did you mean price"),
    ],
)
def test_wrong_keys_are_one_line(boxed: Path, options: dict, message: str):
    with pytest.raises(UsageError, match=message):
        reader.load(boxed, **options)
