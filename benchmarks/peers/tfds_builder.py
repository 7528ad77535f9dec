"""A tensorflow_datasets builder: python tfds_builder.py IMAGES OUT SHARDS."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf  # noqa: F401 - otherwise the import would be timed
import tensorflow_datasets as tfds

IMAGES, OUTPUT, SHARDS = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])


class Photographs(tfds.core.GeneratorBasedBuilder):
    """Images of a folder with a sub-folder for each class."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        classes = sorted(place.name for place in IMAGES.iterdir())
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(encoding_format="jpeg"),
                    "filename": tfds.features.Text(),
                    "label": tfds.features.ClassLabel(names=classes),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(IMAGES)}

    def _generate_examples(self, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
        for path in sorted(folder.glob("*/*")):
            key = f"{path.parent.name}/{path.name}"
            yield key, {"image": str(path), "filename": path.name, "label": path.parent.name}


def main() -> None:
    """Writes the data set."""
    begin = time.perf_counter()
    builder = Photographs(data_dir=OUTPUT, file_format="tfrecord")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=SHARDS, try_download_gcs=False)
    )
    images = builder.info.splits["train"].num_examples
    print(json.dumps({"images": images, "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
