"""Compares conversions of COCO's annotations: python -m benchmarks.coco IMAGES [--masks].

Both contenders write the same JPEG files with the same synthetic objects to TFRecords with the keys
of the TF Object Detection API: imageshards, and create_coco_tf_record.py of tf-models-official,
each in two processes and in one. They take turns. All records must have the same images, boxes,
classes, areas and pixels of masks; the median times and memory are printed. The CPU time of two
processes of imageshards is without that of its workers, which a fork server starts.

`--large` builds once from a JSON file of the size of COCO's instances_train2017 (118,000 images and
860,000 objects with polygons), of which IMAGES are inputs, and prints the time and memory.

Runs in the environment of imageshards; tf-models-official gets an environment of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import environments
from benchmarks.measure import Measurement, measure
from benchmarks.scratch import choose_folder, find_images, scratch_folder

_HERE = Path(__file__).resolve().parent
_SHARDS = 8
_CLASSES = 80
_OBJECTS = 7
"""Of an image; COCO has 7.3."""
_POINTS = 33
"""Of a polygon, on average: a file of the size of COCO's is as large."""
_DIFFERENT = 1000
"""Objects of images of one size that differ; more of them are the same again."""
_LARGE = 118_000
_KEY = "image/object/"
_TFRECORD = re.compile(r"\.tfrecord(-\d+-of-\d+)?$")
_Object = tuple[bytes, float, tuple[float, ...], int]
_SIDES = tuple(f"{_KEY}bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))


def copy_flat(source: Path, folder: Path, copies: int) -> list[tuple[str, tuple[int, int]]]:
    """Copies the images to one folder, as COCO's are; returns their names and sizes."""
    folder.mkdir()
    found = []
    for number, path in enumerate(find_images(source)):
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            size = image.size
        for copy in range(copies):
            name = f"{copy:03d}{number:09d}.jpg"
            (folder / name).write_bytes(data)
            found.append((name, size))
    return found


def write_annotations(images: Sequence[tuple[str, tuple[int, int]]], path: Path) -> int:
    """Writes the annotations of all images, object by object; returns the number of objects."""
    with path.open("w") as file:
        file.write('{"images": ')
        entries = [
            {"id": number, "file_name": name, "width": width, "height": height}
            for number, (name, (width, height)) in enumerate(images)
        ]
        json.dump(entries, file)
        file.write(', "categories": ')
        json.dump([{"id": n + 1, "name": f"class {n:02d}"} for n in range(_CLASSES)], file)
        file.write(', "annotations": [')
        rng = random.Random(0)
        texts: dict[tuple[int, int], list[str]] = {}
        for number, (_, size) in enumerate(images):
            of_size = texts.setdefault(size, [])
            if len(of_size) < _DIFFERENT:
                of_size += (json.dumps(item)[1:] for item in _objects(size, rng))
            for at, text in enumerate(of_size[-_OBJECTS:]):
                count = number * _OBJECTS + at
                file.write(f'{"," * bool(count)}\n{{"id": {count}, "image_id": {number}, {text}')
            of_size[:] = of_size[_OBJECTS:] + of_size[:_OBJECTS]
        file.write("]}")
    return len(images) * _OBJECTS


def _objects(size: tuple[int, int], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yields objects with the outline of a star around a point."""
    width, height = size
    for _ in range(_OBJECTS):
        across, down = rng.uniform(0.05, 0.2) * width, rng.uniform(0.05, 0.2) * height
        x, y = rng.uniform(across, width - across), rng.uniform(down, height - down)
        points: list[float] = []
        for at in range(_POINTS):
            angle, length = 2 * math.pi * at / _POINTS, rng.uniform(0.5, 0.99)
            points.append(round(x + math.cos(angle) * length * across, 2))
            points.append(round(y + math.sin(angle) * length * down, 2))
        left, top = min(points[::2]), min(points[1::2])
        box = [left, top, round(max(points[::2]) - left, 2), round(max(points[1::2]) - top, 2)]
        yield {
            "category_id": rng.randrange(_CLASSES) + 1,
            "bbox": box,
            "area": round(box[2] * box[3] / 2, 4),
            "iscrowd": 0,
            "segmentation": [points],
        }


def read_objects(output: Path) -> dict[str, tuple[int, list[_Object]]]:
    """Returns the name of an image -> its bytes' hash, and its objects.

    Each object is (class, area, sides, hash of the mask's pixels).
    """
    import tensorflow as tf

    found = {}
    for path in filter(_is_shard, sorted(output.rglob("*"))):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            texts = feature[f"{_KEY}class/text"].bytes_list.value
            areas = feature[f"{_KEY}area"].float_list.value
            sides = zip(*(feature[key].float_list.value for key in _SIDES), strict=True)
            pngs = feature[f"{_KEY}mask"].bytes_list.value or [b""] * len(texts)
            name = feature["image/filename"].bytes_list.value[0].decode()
            objects = list(zip(texts, areas, sides, map(_pixels, pngs), strict=True))
            found[name] = hash(feature["image/encoded"].bytes_list.value[0]), objects
    return found


def _is_shard(path: Path) -> bool:
    return _TFRECORD.search(path.name) is not None


def _pixels(png: bytes) -> int:
    return hash(np.asarray(Image.open(io.BytesIO(png))).tobytes()) if png else 0


def are_equal(
    one: dict[str, tuple[int, list[_Object]]], other: dict[str, tuple[int, list[_Object]]]
) -> bool:
    """Returns whether two outputs have the same images with the same objects."""
    if one.keys() != other.keys():
        return False
    for name, (image, objects) in one.items():
        other_image, other_objects = other[name]
        if image != other_image or len(objects) != len(other_objects):
            return False
        for (text, area, sides, pixels), found in zip(objects, other_objects, strict=True):
            numbers = [found[1], *found[2]]
            if (text, pixels) != (found[0], found[3]):
                return False
            if not np.allclose([area, *sides], numbers, rtol=1e-6, atol=1e-6):
                return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison, and prints it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coco", description=__doc__)
    parser.add_argument("images", type=Path, metavar="IMAGES", help="a folder of JPEG files")
    parser.add_argument("--copies", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--masks", action="store_true", help="also write the masks of objects")
    parser.add_argument("--large", action="store_true", help="build from a large JSON file")
    args = parser.parse_args(arguments)
    size = sum(path.stat().st_size for path in find_images(args.images)) * args.copies
    if not size:
        print(f"benchmarks.coco: no JPEG file below {args.images}", file=sys.stderr)
        return 2
    with scratch_folder(choose_folder(4 * size + (1 << 30))) as folder:
        images = copy_flat(args.images, folder / "images", args.copies)
        if args.large:
            return _large(images, folder, args.masks)
        return _compare(images, folder, args.rounds, args.masks)


def _ours(folder: Path, output: Path, masks: bool, *more: str) -> list[str]:
    program = Path(sys.executable).with_name("imageshards")
    return [
        str(program), "build", f"--input={folder}/images", f"--output={output}",
        f"--annotations={folder}/instances.json", f"--num_shards={_SHARDS}", "--check=header",
        "--exif=keep",
        *(["--object_masks"] if masks else []), *more,
    ]  # fmt: skip


def _theirs(python: Path, folder: Path, output: Path, masks: bool, *more: str) -> list[str]:
    return [
        str(python), str(_HERE / "peers/coco_tf_models.py"), f"--image_dir={folder}/images",
        f"--object_annotations_file={folder}/instances.json",
        f"--output_file_prefix={output}/train", f"--num_shards={_SHARDS}",
        *(["--include_masks"] if masks else []), *more,
    ]  # fmt: skip


def _compare(
    images: Sequence[tuple[str, tuple[int, int]]], folder: Path, rounds: int, masks: bool
) -> int:
    environment = environments.ensure("coco")
    if environment.error:
        print(f"benchmarks.coco: {environment.error}", file=sys.stderr)
        return 1
    python = environment.python
    objects = write_annotations(images, folder / "instances.json")
    two, one = "--num_processes=2", "--num_processes=0"
    commands = {
        "imageshards": _ours(folder, folder / "out/0", masks, "--workers=2"),
        "create_coco_tf_record": _theirs(python, folder, folder / "out/1", masks, two),
        "imageshards, one process": _ours(folder, folder / "out/2", masks, "--workers=1"),
        "create_coco_tf_record, one process": _theirs(python, folder, folder / "out/3", masks, one),
    }
    runs: dict[str, list[Measurement]] = {name: [] for name in commands}
    expected: dict[str, tuple[int, list[_Object]]] = {}
    for number in range(rounds):
        for at, (name, command) in enumerate(commands.items()):
            output = folder / f"out/{at}"
            output.mkdir(parents=True, exist_ok=True)
            run = measure([*command, *(["--overwrite"] if name.startswith("imageshards") else [])])
            if run.problem:
                print(f"{name}: {run.problem}", file=sys.stderr)
                return 1
            runs[name].append(run)
            if number == 0:
                found = read_objects(output)
                expected = expected or found
                count = sum(len(items) for _, items in found.values())
                if count != objects or not are_equal(expected, found):
                    print(f"{name}: {count:,} objects, or other ones", file=sys.stderr)
                    return 1
    versions = environments.versions(python, ("tf-models-no-deps", "tensorflow-cpu"))
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(
        f"{len(images):,} images, {objects:,} objects{' with masks' * masks}, {_SHARDS} shards, "
        f"medians of {rounds} rounds, all records equal; peers: {shown}"
    )
    print(f"{'':36}{'seconds':>9}{'CPU s':>8}{'peak MB':>9}")
    for name, measured in runs.items():
        seconds, cpu, peak = (
            median(getattr(run, key) for run in measured)
            for key in ("seconds", "cpu_seconds", "peak_bytes")
        )
        print(f"{name:36}{seconds:9.1f}{cpu:8.1f}{peak / 1e6:9.0f}")
    return 0


def _large(images: Sequence[tuple[str, tuple[int, int]]], folder: Path, masks: bool) -> int:
    others = [(f"{number:012d}x.jpg", (640, 480)) for number in range(_LARGE - len(images))]
    path = folder / "instances.json"
    objects = write_annotations([*images, *others], path)
    run = measure(_ours(folder, folder / "out", masks))
    if run.problem:
        print(f"imageshards: {run.problem}", file=sys.stderr)
        return 1
    print(
        f"{path.stat().st_size / 1e6:.0f} MB of JSON, {_LARGE:,} images, {objects:,} objects"
        f"{' with masks' * masks}; {len(images):,} images are inputs: {run.seconds:.1f} s, "
        f"{run.cpu_seconds:.1f} CPU s, {run.peak_bytes / 1e6:.0f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
