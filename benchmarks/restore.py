"""Measures restoring a position in a large data set: python -m benchmarks.restore FOLDER.

Makes a data set of SHARDS * RECORDS small images in FOLDER (1,000 * 100,000): all shards are hard
links of one file, and so are their indexes. A state is saved on 32 hosts and restored on 8, 48 and
256, each in a process of its own. Prints for each reader how long it takes to open the data set, to
restore the state, and to get the first batch of the restored host; the bytes that the process has
read, indexes included, and its peak memory.

Runs in the environment of imageshards (extra `dev`). Put FOLDER on a tmpfs: 0.2 GB.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_BATCH = 1536
"""Records of a global batch: a multiple of every number of hosts."""
_STEP = 54_321
_SAVED_ON, _RESTORED_ON = 32, (8, 48, 256)
_IMAGES = 100


def make(folder: Path, shards: int, records: int, file_format: str) -> None:
    """Makes the data set, from one that imageshards builds of a few images."""
    import numpy as np
    from PIL import Image

    from imageshards import reader
    from imageshards.transforms import storage
    from imageshards.transforms.elements import ShardId
    from imageshards.transforms.records.containers import container_of
    from imageshards.transforms.shards.layout import Layout

    images, one = folder / "images", folder / "one"
    random = np.random.default_rng(0)
    for number in range(_IMAGES):
        data = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(data, "JPEG")
        path = images / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.getvalue())
    subprocess.run(
        [sys.executable, "-m", "imageshards.launch.cli", "build", f"--input={images}",
         f"--output={one}", "--num_shards=1", f"--file_format={file_format}", "--name=x",
         "--quiet"],
        check=True,
    )  # fmt: skip
    found = reader.open(one, decode=False)
    data = [found.serialized(number) for number in range(len(found))]
    shutil.copytree(one, folder / file_format)
    layout = Layout(str(folder / file_format))
    for path in (folder / file_format).glob("train-*"):
        path.unlink()
    first = ShardId("train", 0, shards, file_format=file_format)
    with storage.open_sink(layout.shard(first), str(folder)) as sink:
        writer = container_of(first).writer(sink)
        for number in range(records):
            writer.write([data[number % _IMAGES]])
        index = writer.close()
    Path(layout.index(first)).write_bytes(index or b"")
    build, info = (
        json.loads(Path(path).read_bytes()) for path in (layout.build, layout.dataset_info)
    )
    rows = []
    for number in range(shards):
        shard = ShardId("train", number, shards, file_format=file_format)
        if number:
            os.link(layout.shard(first), layout.shard(shard))
            os.link(layout.index(first), layout.index(shard))
        name = layout.shard(shard).rpartition("/")[2]
        rows.append(build["shards"][0] | {
            "name": name, "records": records, "bytes": sink.size, "crc32c": f"{sink.crc32c:08x}",
        })  # fmt: skip
    build["shards"] = rows
    info["splits"][0]["shardLengths"] = [str(records)] * shards
    Path(layout.build).write_text(json.dumps(build))
    Path(layout.dataset_info).write_text(json.dumps(info))


def restore(folder: str, name: str, hosts: int, state: str) -> dict[str, Any]:
    """Restores a state on the last of some hosts, and returns what that takes."""
    from imageshards import reader

    options: dict[str, Any] = {
        "batch_size": _BATCH // hosts, "num_hosts": hosts, "host": hosts - 1, "decode": False,
    }  # fmt: skip
    if name == "reader.load":
        import tensorflow as tf

        tf.data.Dataset.range(1).as_numpy_iterator().next()  # starts its threads
    else:
        import grain  # noqa: F401
    before, begin = _bytes_read(), time.perf_counter()
    if name == "reader.load":
        iterator = reader.load(folder, "train", **options).iterator()
    else:
        iterator = iter(reader.grain(folder, "train", **options))
    opened = time.perf_counter()
    if state and name == "reader.load":
        iterator.restore(json.loads(state))
    elif state:
        iterator.set_state(json.loads(state))
    restored = time.perf_counter()
    found: dict[str, Any] = {}
    if state:
        images, _ = next(iterator)
        assert len(images) == _BATCH // hosts
        found["seconds"] = time.perf_counter() - restored
    else:
        found["state"] = iterator.state() if name == "reader.load" else iterator.get_state()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found | {
        "open": opened - begin, "restore": restored - opened,
        "bytes": _bytes_read() - before, "peak": peak,
    }  # fmt: skip


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def _in_process(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restore", *arguments],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--records", type=int, default=100_000, help="of a shard")
    parser.add_argument("--restore", nargs=3, metavar=("READER", "HOSTS", "STATE"))
    args = parser.parse_args()
    if args.restore:
        name, hosts, state = args.restore
        print(json.dumps(restore(str(args.folder), name, int(hosts), state)))
        return
    print(f"{args.shards * args.records:,} records in {args.shards:,} shards")
    for file_format in ("tfrecord", "array_record"):
        if not (args.folder / file_format).is_dir():
            make(args.folder, args.shards, args.records, file_format)
            shutil.rmtree(args.folder / "images")
            shutil.rmtree(args.folder / "one")
        for name in ("reader.grain", "reader.load"):
            folder = str(args.folder / file_format)
            saved = _in_process(folder, "--restore", name, str(_SAVED_ON), "")["state"]
            state = json.dumps(saved | {"step": _STEP})
            for hosts in _RESTORED_ON:
                found = _in_process(folder, "--restore", name, str(hosts), state)
                print(
                    f"{name}, {file_format}, {_SAVED_ON} -> {hosts} hosts: open "
                    f"{found['open']:.2f} s, restore {found['restore'] * 1e3:.1f} ms, first batch "
                    f"of {_BATCH // hosts} {found['seconds']:.2f} s; {found['bytes'] / 1e6:,.1f} "
                    f"MB read, peak {found['peak'] / 1e6:,.0f} MB"
                )


if __name__ == "__main__":
    main()
