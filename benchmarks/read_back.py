"""Reads an output back: python read_back.py READER OUT EXPECTED.

READER is tfrecord (every CRC checked, every Example parsed), tar or mds; EXPECTED is a JSON file,
`{"ranks": {CRC-32 of an image: its place in the listing}}`. Prints JSON:

  images    records with an image
  bytes     of these images
  checksum  sum of the CRC-32 of these images
  known     images whose bytes are those of an input
  rising    of neighbours in a shard, the part of which the second also comes later in the
            listing: 0.5 if shuffled, 1 if the output follows the listing
  shards    files
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

_TFRECORD = re.compile(r"\.tfrecord(-\d+-of-\d+)?$")


def tfrecord_shards(output: Path) -> Iterator[Iterator[bytes]]:
    """Shard by shard, the image in each Example."""
    import tensorflow as tf

    def payloads(path: Path) -> Iterator[bytes]:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            key = "image/encoded" if "image/encoded" in feature else "image"
            yield feature[key].bytes_list.value[0]

    for path in sorted(output.rglob("*")):
        if _TFRECORD.search(path.name):
            yield payloads(path)


def tar_shards(output: Path) -> Iterator[Iterator[bytes]]:
    """Shard by shard, the images in a tar file."""

    def payloads(path: Path) -> Iterator[bytes]:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.lower().endswith((".jpg", ".jpeg")):
                    file = tar.extractfile(member)
                    # tar stores further names of the same bytes as links to the first.
                    yield file.read() if file else b""

    return (payloads(path) for path in sorted(output.rglob("*.tar")))


def mds_shards(output: Path) -> Iterator[Iterator[bytes]]:
    """Shard by shard, the images of an MDS data set."""
    from streaming.base.format import reader_from_json

    folder = output / "mds"
    for info in json.loads((folder / "index.json").read_text())["shards"]:
        reader = reader_from_json(str(folder), None, info)
        yield (reader[row]["image"] for row in range(len(reader)))


def tally(shards: Iterable[Iterable[bytes]], ranks: dict[int, int]) -> dict[str, float]:
    """Counts what the shards hold."""
    images = total = checksum = known = rising = pairs = files = 0
    for shard in shards:
        files += 1
        previous = None
        for payload in shard:
            crc = zlib.crc32(payload)
            images += 1
            total += len(payload)
            checksum += crc
            rank = ranks.get(crc)
            known += rank is not None
            # Copies of one image have one rank and say nothing of the order.
            if rank is not None and previous is not None and rank != previous:
                pairs += 1
                rising += rank > previous
            previous = rank
    return {
        "images": images,
        "bytes": total,
        "checksum": checksum,
        "known": known,
        "rising": rising / pairs if pairs else 0.0,
        "shards": files,
    }


def main(reader: str, output: Path, expected: Path) -> None:
    """Prints what is in an output."""
    ranks = {int(crc): rank for crc, rank in json.loads(expected.read_text())["ranks"].items()}
    shards = {"tfrecord": tfrecord_shards, "tar": tar_shards, "mds": mds_shards}[reader](output)
    print(json.dumps(tally(shards, ranks)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
