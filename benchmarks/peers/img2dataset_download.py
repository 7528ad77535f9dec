"""img2dataset from a local server: python img2dataset_download.py IMAGES OUT SHARDS URL."""

import json
import math
import os
import random
import sys
import time
from pathlib import Path
from urllib.parse import quote

from img2dataset import download


def main(images: Path, output: Path, shards: int, server: str) -> None:
    """Downloads all images unchanged into tar files."""
    begin = time.perf_counter()
    paths = sorted(images.glob("*/*"))
    random.seed(0)
    random.shuffle(paths)
    urls = output / "urls.txt"
    urls.write_text("".join(f"{server}/{quote(str(p.relative_to(images)))}\n" for p in paths))
    download(
        url_list=str(urls),
        input_format="txt",
        output_folder=str(output / "webdataset"),
        output_format="webdataset",
        number_sample_per_shard=math.ceil(len(paths) / shards),
        processes_count=os.cpu_count() or 1,
        thread_count=16,
        resize_mode="no",
        disable_all_reencoding=True,
        compute_hash=None,
    )
    stats = (output / "webdataset").glob("*_stats.json")
    images_done = sum(json.loads(path.read_text())["successes"] for path in stats)
    print(json.dumps({"images": images_done, "loop_seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
