"""MosaicML streaming's MDSWriter: python mds_writer.py IMAGES OUT SHARDS."""

import json
import random
import sys
import time
from pathlib import Path

from streaming import MDSWriter


def main(images: Path, output: Path, shards: int) -> None:
    """Writes the shards one after another."""
    # A shard ends before the image that would exceed the limit: 2 % above the average size.
    limit = int(1.02 * sum(path.stat().st_size for path in images.glob("*/*")) / shards)
    begin = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    labels = {name: label for label, name in enumerate(sorted({p.parent.name for p in paths}))}
    random.seed(0)
    random.shuffle(paths)
    columns = {"image": "bytes", "label": "int", "filename": "str"}
    with MDSWriter(out=str(output / "mds"), columns=columns, size_limit=limit) as writer:
        for path in paths:
            with open(path, "rb") as file:
                data = file.read()
            label = labels[path.parent.name]
            writer.write({"image": data, "label": label, "filename": path.name})
    print(json.dumps({"images": len(paths), "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
