"""Reads an output back: python read_back.py READER OUT EXPECTED.

READER is tfrecord (checks every CRC, parses every Example), tar or mds. EXPECTED is a JSON file,
`{"ranks": {CRC-32 of an image: its position in the listing}}`. Prints JSON:

  images    number of records
  bytes     size of their images
  checksum  sum of the CRC-32 of their images
  known     number of images with the bytes of an input
  rising    fraction of pairs of neighbours in a shard that have the same order in the listing:
            0.5 if the output is shuffled, 1 if it follows the listing
  shards    number of files
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
    """Yields for each shard the image in each Example."""
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
    """Yields for each tar file its images."""

    def payloads(path: Path) -> Iterator[bytes]:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.lower().endswith((".jpg", ".jpeg")):
                    file = tar.extractfile(member)
                    # tar stores other hard links to the same file as links to the first.
                    yield file.read() if file else b""

    return (payloads(path) for path in sorted(output.rglob("*.tar")))


def mds_shards(output: Path) -> Iterator[Iterator[bytes]]:
    """Yields for each shard of an MDS data set its images."""
    from streaming.base.format import reader_from_json

    folder = output / "mds"
    for info in json.loads((folder / "index.json").read_text())["shards"]:
        reader = reader_from_json(str(folder), None, info)
        yield (reader[row]["image"] for row in range(len(reader)))


def tally(shards: Iterable[Iterable[bytes]], ranks: dict[int, int]) -> dict[str, float]:
    """Counts the images in the shards."""
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
            # Copies of an image have the same rank, which tells nothing about the order.
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
    """Reads an output, and prints the counts."""
    ranks = {int(crc): rank for crc, rank in json.loads(expected.read_text())["ranks"].items()}
    shards = {"tfrecord": tfrecord_shards, "tar": tar_shards, "mds": mds_shards}[reader](output)
    print(json.dumps(tally(shards, ranks)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
