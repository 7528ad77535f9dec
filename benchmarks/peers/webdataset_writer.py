"""webdataset's ShardWriter: python webdataset_writer.py IMAGES OUT SHARDS."""

import json
import math
import random
import sys
import time
from pathlib import Path

import webdataset as wds


def main(images: Path, output: Path, shards: int) -> None:
    """Writes the shards one after another."""
    begin = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    labels = {name: label for label, name in enumerate(sorted({p.parent.name for p in paths}))}
    random.seed(0)
    random.shuffle(paths)
    pattern = str(output / "train-%06d.tar")
    with wds.ShardWriter(pattern, maxcount=math.ceil(len(paths) / shards), verbose=0) as sink:
        for index, path in enumerate(paths):
            with open(path, "rb") as file:
                data = file.read()
            sink.write({"__key__": f"{index:08d}", "jpg": data, "cls": labels[path.parent.name]})
    print(json.dumps({"images": len(paths), "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
