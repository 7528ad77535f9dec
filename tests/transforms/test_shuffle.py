"""Shuffle quality, as a figure: would a random permutation look like this?

The input is 1,000 images of 10 classes, sorted by class. Two statistics of the output, each in
standard deviations (z) from what a uniform random permutation gives:

- runs: the number of maximal runs of one class in the order of records; sorted input has 10,
  a random order of 10 x 100 about 901.
- chi-square of the counts of classes in shards; a shuffle that deals sorted input in turn is
  *too even* and fails as much as one that does not shuffle.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import Build
from helpers import image_bytes, records, shards

from imageshards.transforms import read
from imageshards.transforms.inputs import listed
from imageshards.transforms.references import order
from imageshards.transforms.shards import read_back

CLASSES = 10
PER_CLASS = 100
SHARDS = 10
Z = 4.0  # a fair shuffle exceeds it once in 16,000 seeds; the seeds here are fixed


@pytest.fixture(scope="module")
def sorted_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sorted")
    data = image_bytes(0, size=(8, 8))
    for label in range(CLASSES):
        (folder / f"{label}").mkdir()
        for number in range(PER_CLASS):
            (folder / f"{label}" / f"{number:03d}.jpg").write_bytes(data)
    return folder


def z_of_runs(labels: Sequence[int]) -> float:
    """Wald-Wolfowitz, for any number of classes (Mood 1940)."""
    n = len(labels)
    counts = Counter(labels).values()
    runs = 1 + sum(a != b for a, b in pairwise(labels))
    p2, p3 = (sum((count / n) ** power for count in counts) for power in (2, 3))
    mean = n * (1 - p2) + p2
    variance = n * (p2 + p2**2 - 2 * p3)
    return (runs - mean) / math.sqrt(variance)


def z_of_counts(by_shard: Sequence[Sequence[int]]) -> float:
    total = Counter(label for labels in by_shard for label in labels)
    n = sum(total.values())
    chi2 = 0.0
    for labels in by_shard:
        found = Counter(labels)
        for label, count in total.items():
            expected = count * len(labels) / n
            chi2 += (found[label] - expected) ** 2 / expected
    freedom = (len(by_shard) - 1) * (len(total) - 1)
    return (chi2 - freedom) / math.sqrt(2 * freedom)


def quality(out: Path) -> tuple[float, float]:
    by_shard = [
        [record.first("image/class/label") for record in read_back.read_shard(str(path))]
        for path in shards(out)
    ]
    return z_of_runs([label for labels in by_shard for label in labels]), z_of_counts(by_shard)


@pytest.mark.parametrize("writer", ["shard", pytest.param("beam", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_looks_like_a_random_permutation(
    build: Build, sorted_photos: Path, tmp_path: Path, writer: str, seed: int
):
    build(sorted_photos, num_shards=str(SHARDS), writer=writer, seed=seed)
    runs, counts = quality(tmp_path / "out")
    assert abs(runs) < Z, f"z of class runs {runs:.1f}"
    assert abs(counts) < Z, f"z of class counts in shards {counts:.1f}"


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_without_the_sort_by_key_the_order_does_not_look_random(
    build: Build,
    sorted_photos: Path,
    tmp_path: Path,
    writer: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """The figure is able to fail: take the sort out, and input order comes out."""
    monkeypatch.setattr(read, "partition", lambda batch: [(0, batch)])  # one group for all
    monkeypatch.setattr(order, "key_order", lambda batch: np.arange(len(batch)))
    manifest = tmp_path / "in.txt"
    manifest.write_text("\n".join(map(str, sorted(sorted_photos.rglob("*.jpg")))))
    build(manifest, num_shards=str(SHARDS), writer=writer, base_uri=str(sorted_photos))
    runs, counts = quality(tmp_path / "out")
    assert abs(runs) > Z
    assert abs(counts) > Z


def test_the_order_of_inputs_and_batches_does_not_matter(
    build: Build, sorted_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(read, "FLUSH_ROWS", 40)
    monkeypatch.setattr(listed, "CHUNK_ROWS", 30)
    inputs = [sorted_photos / str(label) for label in range(4)]
    found = []
    for number, places in enumerate((inputs, inputs[::-1], [*inputs[2:], *inputs[:2]])):
        out = tmp_path / str(number)
        build(*places, num_shards="3", output=out, base_uri=str(sorted_photos))
        found.append([path.read_bytes() for path in shards(out)])
    assert found[0] == found[1] == found[2]


def test_a_short_split_is_shuffled_too(build: Build, sorted_photos: Path, tmp_path: Path):
    build(sorted_photos, num_shards="2", splits="train=0.9,test=0.1")
    labels = [record.first("image/class/label") for record in records(tmp_path / "out", "test")]
    assert abs(z_of_runs(labels)) < Z
