"""Writes label_studio.tar.xz: with label-studio-sdk installed, `python write_label_studio.py`.

The tasks are what Label Studio exports as JSON; its converter writes the other formats of them.
Version 2.0.19 wrote the files.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from label_studio_sdk.converter import Converter
from scene import CLASSES, PICTURES, Picture, packed, upload_name, write_images

LABELS = "".join(f'<Label value="{name}"/>' for name in CLASSES)
CONFIG = f"""<View><Image name="image" value="$image"/>
<RectangleLabels name="label" toName="image">{LABELS}</RectangleLabels></View>"""


def task(number: int, picture: Picture) -> dict[str, Any]:
    """A task with its annotation; sides are percents."""
    width, height = picture.size
    result = [
        {
            "id": f"r{at}",
            "type": "rectanglelabels",
            "from_name": "label",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": {
                "x": 100 * left / width,
                "y": 100 * top / height,
                "width": 100 * (right - left) / width,
                "height": 100 * (bottom - top) / height,
                "rotation": 0,
                "rectanglelabels": [label],
            },
        }
        for at, (label, (left, top, right, bottom)) in enumerate(picture.things)
    ]
    annotation = {"id": number, "result": result, "completed_by": 1, "was_cancelled": False}
    return {
        "id": number,
        "data": {"image": f"/data/upload/1/{upload_name(picture)}"},
        "annotations": [annotation],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, packed("label_studio") as target:
        uploads = Path(folder, "upload")
        write_images(uploads / "1", uploads=True)
        tasks = [task(number, picture) for number, picture in enumerate(PICTURES, 1)]
        file = Path(folder, "tasks.json")
        file.write_text(json.dumps(tasks))
        converter = Converter(CONFIG, str(folder), upload_dir=str(uploads))
        converter.convert_to_coco(str(file), str(target / "coco"), is_dir=False)
        converter.convert_to_voc(str(file), str(target / "voc"), is_dir=False)
        converter.convert_to_yolo(str(file), str(target / "yolo"), is_dir=False)
        converter.convert_to_csv(str(file), str(target / "csv"), is_dir=False, sep=",", header=True)
