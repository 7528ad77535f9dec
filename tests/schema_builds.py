"""Images and options for builds of every schema, and the records of these builds."""

import io
import json
from pathlib import Path
from typing import Any

import tensorflow as tf
from helpers import image_bytes, write_images
from PIL import Image

from imageshards.transforms.records.schemas import SCHEMAS

SIZE = (24, 16)
BOX = "image/object/bbox"
IMAGES = [name for name, schema in SCHEMAS.items() if schema.holds != "text" and not schema.side]


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def raw_records(out: Path) -> list[bytes]:
    paths = sorted(str(path) for path in out.glob("*-of-*"))
    compressed = any(path.endswith(".gz") for path in paths)
    data = tf.data.TFRecordDataset(paths, compression_type="GZIP" if compressed else "")
    return list(data.as_numpy_iterator())


def as_tensorflow_sees(data: bytes, channels: int = 3) -> Any:
    return tf.io.decode_image(data, channels=channels, expand_animations=False).numpy()


def options_of(name: str) -> dict[str, Any]:
    resize = {"resize": f"{SIZE[0]}x{SIZE[1]}"} if SCHEMAS[name].fixed else {}
    return {"features": name, "num_shards": "2", **resize}


def write_boxes(place: Path) -> Path:
    rows = [
        {"uri": f"{n}.jpg", "label": "ab"[n % 2], "x0": [0.25] * n, "x1": [0.5] * n}
        for n in range(3)
    ]
    for number in range(3):
        (place / f"{number}.jpg").write_bytes(image_bytes(number))
    path = place / "boxes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_folder(place: Path) -> Path:
    """Writes images of one size: JPEGs and PNGs, colour and grey."""
    write_images(place, 3, 6)
    for number, kind in enumerate(("PNG", "BMP")):
        (place / f"class01/x{number}.png").write_bytes(image_bytes(90 + number, kind, SIZE))
    grey = Image.open(io.BytesIO(image_bytes(95, size=SIZE))).convert("L")
    (place / "class02/grey.png").write_bytes(saved(grey))
    (place / "class02/grey.jpg").write_bytes(saved(grey, "JPEG"))
    return place
