"""Compares builds of the same images from each kind of input: python -m benchmarks.inputs IMAGES.

Runs in the environment of imageshards. Archives and outputs are written to a tmpfs if one has
enough room. The kinds take turns. All outputs must be equal; the median times are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import webdataset
from pyarrow import parquet

from benchmarks.measure import measure
from benchmarks.scratch import choose_folder, copy_images, find_images, scratch_folder

_SHARDS = 16
_ROWS_OF_A_GROUP = 100  # as `datasets` writes images
_IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
_SCHEMA = pyarrow.schema([("image", _IMAGE), ("label", pyarrow.string())])


def make_archives(folder: Path, target: Path) -> dict[str, Path]:
    """Writes an archive of each kind; returns kind -> path."""
    target.mkdir()
    archives = {}
    for kind, mode in (("tar", "w"), ("tar.gz", "w:gz")):
        archives[kind] = target / f"a.{kind}"
        level = {"compresslevel": 1} if mode == "w:gz" else {}
        with tarfile.open(archives[kind], mode, **level) as tar:  # type: ignore[call-overload]
            tar.add(folder, ".")
    for kind, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        archives[f"zip, {kind}"] = target / f"{kind}.zip"
        with zipfile.ZipFile(archives[f"zip, {kind}"], "w", method) as archive:
            for path in find_images(folder):
                archive.write(path, path.relative_to(folder))
    return archives


def make_tables(folder: Path, target: Path) -> dict[str, tuple[str, ...]]:
    """Writes the images with labels; returns kind -> the input, and options.

    The tar is written by the webdataset package. One Parquet file has the images as they are, as
    `datasets` writes them; the other one compresses them, as its versions before 4 did.
    """
    target.mkdir()
    paths = find_images(folder)
    with webdataset.TarWriter(str(target / "a.tar")) as tar:
        for path in paths:
            key, suffix = str(path.relative_to(folder)).split(".", 1)
            tar.write({"__key__": key, suffix: path.read_bytes(), "cls": path.parent.name})
    runs = {"WebDataset": (f"{target}/a.tar", f"--base_uri={target}/a.tar")}
    for kind, options in {
        "Parquet": {"compression": "none", "use_dictionary": False},
        "Parquet, snappy": {"compression": "snappy"},
    }.items():
        uri = target / f"{len(runs)}.parquet"
        with parquet.ParquetWriter(uri, _SCHEMA, **options) as writer:
            for start in range(0, len(paths), _ROWS_OF_A_GROUP):
                some = paths[start : start + _ROWS_OF_A_GROUP]
                images = [
                    {"bytes": path.read_bytes(), "path": str(path.relative_to(folder))}
                    for path in some
                ]
                labels = [path.parent.name for path in some]
                writer.write_table(pyarrow.table([images, labels], schema=_SCHEMA))
        runs[kind] = (str(uri), "--name_key=image.path")
    return runs


def build(source: str, output: Path, *options: str) -> float:
    """Runs one build; returns the wall time of the whole process in seconds."""
    shutil.rmtree(output, ignore_errors=True)
    done = measure(
        [
            sys.executable, "-m", "imageshards.launch.cli", "build", f"--input={source}",
            f"--output={output}", "--check=header", f"--num_shards={_SHARDS}", *options,
        ]
    )  # fmt: skip
    if done.problem:
        sys.exit(f"{source}: {done.problem}")
    return done.seconds


def digest(output: Path) -> str:
    """Returns the SHA-256 of all shards."""
    state = hashlib.sha256()
    for path in sorted(output.glob("train-*")):
        state.update(path.read_bytes())
    return state.hexdigest()


def main() -> None:
    """Runs the builds, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    size = args.copies * sum(path.stat().st_size for path in find_images(args.images))
    with scratch_folder(choose_folder(11 * size)) as scratch:
        images = copy_images(args.images, scratch / "files", args.copies)
        sources = {"files": images.folder, **make_archives(images.folder, scratch / "archives")}
        runs = {name: (str(path), f"--base_uri={path}") for name, path in sources.items()}
        build(str(images.folder), scratch / "records", f"--base_uri={images.folder}")
        runs["TFRecords"] = (f"{scratch}/records/train-*", "--name_key=image/filename")
        runs |= make_tables(images.folder, scratch / "tables")
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        found = set()
        for _ in range(args.rounds):
            for name, (source, *options) in runs.items():
                seconds[name].append(build(source, scratch / "out", *options))
                found.add(digest(scratch / "out"))
        if len(found) > 1:
            sys.exit("the outputs differ")
        files = statistics.median(seconds["files"])
        print(f"{images.count:,} images, {images.bytes / 1e6:,.0f} MB; all outputs are equal")
        for name, times in seconds.items():
            median = statistics.median(times)
            print(
                f"{name:14} {median:6.2f} s  {files / median:5.2f} x the rate from files  {times}"
            )


if __name__ == "__main__":
    main()
