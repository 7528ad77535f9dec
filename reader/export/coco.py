"""Writes the objects of a data set as a JSON file of COCO: https://cocodataset.org/#format-data."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from imageshards.reader.dataset import open_dataset
from imageshards.transforms.elements import UsageError
from imageshards.transforms.records.objects import CROWD, LABEL, TEXT
from imageshards.transforms.records.schemas import AREA, BOX_SIDES
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.read_back import Record


def write_coco(place: str, path: str) -> tuple[int, int]:
    """Writes the images and objects of a data set, of all splits, in the order of its records.

    The boxes are in pixels of the images as they are in the records. Neither the images nor their
    objects are held in memory.

    Args:
      place: the folder of a data set with boxes.
      path: the file to write; an existing one is replaced.

    Returns:
      The numbers of images and of objects.

    Raises:
      UsageError: the records have no boxes, or the file cannot be written.
      BuildError: there is no such data set.
    """
    dataset = open_dataset(place)
    keys = {feature.key for feature in dataset.schema.features}
    if missing := [key for key in BOX_SIDES if key not in keys]:
        raise UsageError(f"--coco: the records of {place} have no boxes ({missing[0]})")
    names: dict[str, int] = {
        name: number for number, name in enumerate(dataset.build.get("object_classes", ()))
    }
    images = objects = 0
    temporary = f"{path}.tmp-{os.getpid()}"
    try:
        with open(temporary, "w") as out, tempfile.TemporaryFile("w+") as held:
            out.write('{"images": [')
            records = (r for shard in dataset.shards for r in read_back.read_shard(shard.uri))
            for images, record in enumerate(records, 1):
                _add(out, images, _image(record, images))
                for item in _objects(record, names):
                    objects += 1
                    _add(held, objects, {"id": objects, "image_id": images, **item})
            held.seek(0)
            out.write('],\n"annotations": [')
            shutil.copyfileobj(held, out)
            out.write('],\n"categories": [')
            classes = [(number, name) for name, number in names.items() if number]
            for at, (number, name) in enumerate(classes, 1):
                _add(out, at, {"id": number, "name": name})
            out.write("]}\n")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"--coco {path} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return images, objects


def _add(file: Any, number: int, item: dict[str, Any]) -> None:
    file.write(("\n" if number == 1 else ",\n") + json.dumps(item))


def _image(record: Record, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "file_name": record.first("image/filename", b"").decode("utf-8", "replace"),
        "width": record.first("image/width", 0),
        "height": record.first("image/height", 0),
    }


def _objects(record: Record, names: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yields the objects of a record; adds to `names` the classes that it does not have."""
    width, height = record.first("image/width", 0), record.first("image/height", 0)
    sides: list[Sequence[float]] = [record.values.get(key, ()) for key in BOX_SIDES]
    texts, labels = record.values.get(TEXT, ()), record.values.get(LABEL, ())
    crowds, areas = record.values.get(CROWD, ()), record.values.get(AREA, ())
    for at, (xmin, ymin, xmax, ymax) in enumerate(zip(*sides, strict=True)):
        box = [xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height]
        item: dict[str, Any] = {
            "bbox": [round(value, 3) for value in box],
            "area": round(areas[at] if areas else box[2] * box[3], 3),
            "iscrowd": crowds[at] if crowds else 0,
        }
        if texts or labels:
            text = texts[at].decode("utf-8", "replace") if texts else str(labels[at])
            item["category_id"] = names.setdefault(text, len(names) or 1)
        yield item
