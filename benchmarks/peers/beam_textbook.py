"""The textbook Beam graph: python beam_textbook.py IMAGES OUT SHARDS.

A unique random key, GroupByKey, a DoFn with tf.train.Example, WriteToTFRecord(num_shards).
"""

import io
import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions
from PIL import Image


def int64_feature(value: int) -> tf.train.Feature:
    """Returns a feature with one integer."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def bytes_feature(value: bytes) -> tf.train.Feature:
    """Returns a feature with one byte string."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


class ToExample(beam.DoFn):
    """Converts a path to a serialized tf.train.Example."""

    def __init__(self, labels: dict[str, int]) -> None:
        self.labels = labels

    def process(self, path: str) -> Iterator[bytes]:
        """Reads an image, and its size from its header."""
        with open(path, "rb") as file:
            data = file.read()
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            channels = len(image.getbands())
        folder, name = path.split("/")[-2:]
        feature = {
            "image/encoded": bytes_feature(data),
            "image/format": bytes_feature(b"JPEG"),
            "image/filename": bytes_feature(name.encode()),
            "image/height": int64_feature(height),
            "image/width": int64_feature(width),
            "image/channels": int64_feature(channels),
            "image/class/label": int64_feature(self.labels[folder]),
            "image/class/text": bytes_feature(folder.encode()),
        }
        yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def main(images: Path, output: Path, shards: int) -> None:
    """Builds and runs the graph on the in-process runner."""
    begin = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    labels = {name: label for label, name in enumerate(sorted({p.parent.name for p in paths}))}
    # Named, because DirectRunner first tries to download Prism.
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        _ = (
            pipeline
            | beam.Create([str(path) for path in paths])
            | "RandomKey" >> beam.Map(lambda path: (uuid.uuid4().hex, path))
            | "Shuffle" >> beam.GroupByKey()
            | "DropKey" >> beam.FlatMap(lambda group: group[1])
            | "ToExample" >> beam.ParDo(ToExample(labels))
            | "Write"
            >> beam.io.WriteToTFRecord(
                str(output / "train"), file_name_suffix=".tfrecord", num_shards=shards
            )
        )
    print(json.dumps({"images": len(paths), "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
