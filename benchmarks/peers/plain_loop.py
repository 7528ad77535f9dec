"""The loop of the tutorials: python plain_loop.py IMAGES OUT SHARDS [--decode]."""

import io
import json
import random
import sys
import time
from pathlib import Path

import tensorflow as tf
from PIL import Image


def int64_feature(value: int) -> tf.train.Feature:
    """Returns a feature with one integer."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def bytes_feature(value: bytes) -> tf.train.Feature:
    """Returns a feature with one byte string."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def main(images: Path, output: Path, shards: int, decode: bool) -> None:
    """Writes the shards one after another."""
    begin = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    labels = {name: label for label, name in enumerate(sorted({p.parent.name for p in paths}))}
    random.seed(0)
    random.shuffle(paths)
    for shard in range(shards):
        name = output / f"train-{shard:05d}-of-{shards:05d}.tfrecord"
        with tf.io.TFRecordWriter(str(name)) as writer:
            for path in paths[shard::shards]:
                with open(path, "rb") as file:
                    data = file.read()
                with Image.open(io.BytesIO(data)) as image:
                    if decode:
                        image.load()
                    width, height = image.size
                    channels = len(image.getbands())
                feature = {
                    "image/encoded": bytes_feature(data),
                    "image/format": bytes_feature(b"JPEG"),
                    "image/filename": bytes_feature(path.name.encode()),
                    "image/height": int64_feature(height),
                    "image/width": int64_feature(width),
                    "image/channels": int64_feature(channels),
                    "image/class/label": int64_feature(labels[path.parent.name]),
                    "image/class/text": bytes_feature(path.parent.name.encode()),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    print(json.dumps({"images": len(paths), "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), "--decode" in sys.argv[4:])
