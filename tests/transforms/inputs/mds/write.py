"""Writes the shards of this folder: in an environment with mosaicml-streaming, `python write.py`.

It wrote these with mosaicml-streaming 0.13.0, which requires PyTorch.
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from streaming import MDSWriter

HERE = Path(__file__).parent
COLUMNS = {
    "image": "jpeg", "label": "int", "key": "str", "weight": "float32", "box": "json",
    "thumbnail": "bytes",
}  # fmt: skip


def image(number: int) -> Image.Image:
    """A picture; the number is in the brightness of its pixels."""
    out = io.BytesIO()
    Image.new("RGB", (24, 16), (10 * number, 128, 255 - 10 * number)).save(out, "JPEG")
    return Image.open(out)


if __name__ == "__main__":
    for compression in (None, "zstd"):
        out = HERE / (compression or "plain")
        with MDSWriter(
            out=str(out), columns=COLUMNS, compression=compression, size_limit=8000
        ) as writer:
            for number in range(20 if compression is None else 2):
                writer.write(
                    {
                        "image": image(number),
                        "label": number % 3,
                        "key": f"k{number:02d}",
                        "weight": number / 4,
                        "box": [0.25, number / 100],
                        "thumbnail": bytes([number]),
                    }
                )
