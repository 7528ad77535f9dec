"""Small real images, and functions that read data sets and run the command line."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imageshards import reader
from imageshards.transforms.shards import read_back
from imageshards.transforms.shards.read_back import Record


def image_bytes(number: int, kind: str = "JPEG", size: tuple[int, int] = (24, 16)) -> bytes:
    """An image file with a different picture for every number; size is (width, height)."""
    rng = np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8))
    out = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).save(out, kind)
    return out.getvalue()


def write_images(folder: Path, classes: int, per_class: int) -> list[Path]:
    """Writes folder/CLASS/NUMBER.jpg; returns the paths, class by class."""
    paths = []
    for label in range(classes):
        class_folder = folder / f"class{label:02d}"
        class_folder.mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            path = class_folder / f"{number:04d}.jpg"
            path.write_bytes(image_bytes(label * per_class + number))
            paths.append(path)
    return paths


def shards(folder: Path | str, split: str = "*") -> list[Path]:
    return sorted(Path(folder).glob(f"{split}-*.tfrecord"))


def records(folder: Path | str, split: str = "*") -> list[Record]:
    """All records of a split, in the order of its shards."""
    return [record for path in shards(folder, split) for record in read_back.read_shard(str(path))]


def names(folder: Path | str, split: str = "*") -> list[str]:
    return [record.first("image/filename").decode() for record in records(folder, split)]


def loaded_names(place: Any, split: str | None = "train", **options: Any) -> list[str]:
    """The names of the images of an epoch, in the order of `reader.load`."""
    options.setdefault("repeat", False)
    data = reader.load(place, split, keys=["image/filename"], decode=False, **options)
    return [one["image/filename"].decode() for one in data.as_numpy_iterator()]


def contents(folder: Path | str) -> dict[str, bytes]:
    """Path below the folder -> content, of every file."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def build_json(folder: Path | str) -> dict:  # type: ignore[type-arg]
    return json.loads((Path(folder) / "metadata/build.json").read_text())


def rejects(folder: Path | str) -> list[dict]:  # type: ignore[type-arg]
    text = (Path(folder) / "metadata/rejects.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def every_file(folder: Path) -> dict[str, bytes]:
    """Absolute path -> content, of every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(errors: str) -> list[str]:
    """The lines of stderr without progress, which only a slow machine shows."""
    progress = re.compile(r"imageshards: (listing|writing|finishing): .*")
    return [line for line in errors.splitlines() if not progress.fullmatch(line)]


IMAGESHARDS = [sys.executable, "-m", "imageshards.launch.cli"]


def imageshards(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own, and waits for it."""
    return subprocess.run(
        [*IMAGESHARDS, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )
