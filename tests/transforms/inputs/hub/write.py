"""Writes the files of this folder: in an environment with datasets and pillow, `python write.py`.

It wrote these with datasets 5.2.0, pyarrow 26.0.1, pandas 3.1.1, and Pillow 12.3. The package is no
requirement of the tests, because Beam imports pandas wherever it is installed.
"""

from __future__ import annotations

import io
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow
from pyarrow import parquet

HERE = Path(__file__).parent
NAMES = ["zebra", "ant", "owl"]  # not sorted: the numbers of labels are those of this list


def image(number: int) -> bytes:
    """A JPEG file; the number is in the brightness of its pixels."""
    out = io.BytesIO()
    Pillow.new("RGB", (24, 16), (10 * number, 128, 255 - 10 * number)).save(out, "JPEG")
    return out.getvalue()


def rows(first: int, last: int) -> Dataset:
    """Rows of a data set as it is loaded from the Hub."""
    numbers = range(first, last)
    return Dataset.from_dict(
        {
            "image": [{"bytes": image(n), "path": f"{n}.jpg"} for n in numbers],
            "label": [n % 3 for n in numbers],
            "caption": [f"picture {n}" for n in numbers],
        },
        features=Features(
            {"image": Image(), "label": ClassLabel(names=NAMES), "caption": Value("string")}
        ),
    )


if __name__ == "__main__":
    rows(0, 7).to_parquet(HERE / "train-00000-of-00002.parquet", batch_size=4)
    # Versions before 4 compressed the images too, and encoded them by a dictionary.
    parquet.write_table(rows(7, 14).data.table, HERE / "train-00001-of-00002.parquet")
    rows(14, 20).to_parquet(HERE / "test-00000-of-00001.parquet")
