"""Counts that decide speed and memory, where timings would only be noise."""

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from helpers import shards
from references import batch_of, tally

from imageshards.launch.cli import main
from imageshards.pipeline import graph
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms import storage
from imageshards.transforms.elements import ShardId
from imageshards.transforms.references import plan
from imageshards.transforms.references.keys import BUCKET_BITS, BUCKETS, group_bits
from imageshards.transforms.references.order import partition, sort_group
from imageshards.transforms.references.plan import Planner
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.references.stored import StoredRefs
from imageshards.transforms.shards.write import ShardJob
from imageshards.transforms.shuffle import assign_shards


def build(photos: Path, out: Path, *options: str) -> None:
    assert main(["build", f"--input={photos}", f"--output={out}", *options]) == 0


def test_an_image_is_opened_once_and_its_bytes_are_never_copied(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []
    read: list[bytes] = []
    written: dict[int, Any] = {}
    open_, read_, writev = os.open, storage.read, os.writev

    def counting_open(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(os.fspath(path))
        return open_(path, *arguments, **options)

    def counting_read(uri: str, *arguments: Any) -> tuple[bytes, int]:
        data, stamp = read_(uri, *arguments)
        read.append(data + bytes(8192))  # a payload of a size that is kept apart
        return read[-1], stamp

    def counting_writev(file: int, parts: list[bytes]) -> int:
        written.update((id(part), part) for part in parts)
        return writev(file, parts)

    monkeypatch.setattr(os, "open", counting_open)
    monkeypatch.setattr(storage, "read", counting_read)
    monkeypatch.setattr(os, "writev", counting_writev)
    build(photos, tmp_path / "out", "--num_shards=3", "--workers=1")
    images = sorted(str(path) for path in photos.rglob("*.jpg"))
    assert sorted(path for path in opened if path in set(images)) == images
    assert len(read) == len(images)
    assert all(id(data) in written for data in read)
    framing = sum(path.stat().st_size for path in shards(tmp_path / "out")) - sum(map(len, read))
    assert framing < 400 * len(images)


def test_the_graph_is_small(photos: Path, tmp_path: Path):
    """Beam takes 10 ms for a step, whatever the step does."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    options = BuildOptions.of(input=(str(photos),), output=str(tmp_path))
    graph.build(pipeline, BuildSpec(options))
    proto = pipeline.to_runner_api()
    kinds = Counter(step.spec.urn for step in proto.components.transforms.values())
    assert kinds["beam:transform:group_by_key:v1"] == 3
    assert 0 < kinds["beam:transform:pardo:v1"] <= 11


@pytest.mark.parametrize("dedupe", ["none", "pixels"])
def test_the_bytes_do_not_depend_on_the_number_of_groups(
    photos: Path, tmp_path: Path, dedupe: str, monkeypatch: pytest.MonkeyPatch
):
    found = []
    for bits in (1, BUCKET_BITS, 12):
        monkeypatch.setattr(plan, "group_bits", lambda references, num_bytes, bits=bits: bits)
        out = tmp_path / f"{bits}"
        splits = ("--splits=train=0.5,test=0.5", "--num_shards=3", f"--dedupe={dedupe}")
        build(photos, out, *splits, "--workers=1")
        found.append([path.read_bytes() for path in shards(out)])
    assert found[0] == found[1] == found[2]


def test_references_of_large_shards_are_stored_in_pieces(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    manifest = tmp_path / "list.txt"  # without stamps, which are read with the images
    manifest.write_text("".join(f"{path}\n" for path in sorted(photos.rglob("*.jpg"))))
    common = ("--splits=train=0.5,test=0.5", "--num_shards=2", "--workers=2", "--json")
    build(manifest, tmp_path / "elements", *common)
    monkeypatch.setattr(plan, "MOST_SHARD_BYTES", 0)
    stored = []
    store = StoredRefs.store
    monkeypatch.setattr(
        StoredRefs, "store", staticmethod(lambda *given: stored.append(given) or store(*given))
    )
    for _ in range(2):
        capsys.readouterr()
        build(manifest, tmp_path / "pieces", *common)
    assert '"resumed": 4' in capsys.readouterr().out
    assert len(stored) > 2 * 2 * 4
    assert all(len(pickle.dumps(StoredRefs(uri))) < 1000 for _, uri, _ in stored)
    assert not list((tmp_path / "pieces").rglob("references-*"))
    for mine, other in zip(shards(tmp_path / "pieces"), shards(tmp_path / "elements"), strict=True):
        assert mine.read_bytes() == other.read_bytes()


def test_no_group_is_larger_than_its_bounds():
    for references in (1, 10**6, 10**8, 5 * 10**9):
        for each in (20, 120, 40_000):
            groups = 1 << group_bits(references, references * each)
            assert references / groups <= 200_000
            assert references * each / groups <= 25 << 20 or groups == BUCKETS


def test_references_travel_in_few_small_elements():
    count = 20_000
    batch = batch_of([f"/photos/class{n % 100:03d}/IMG_{n:08d}.jpg" for n in range(count)])
    parts = list(partition(batch))
    assert len(parts) <= BUCKETS
    assert sum(len(pickle.dumps(part)) for part in parts) < 40 * count
    groups = [(bucket, sort_group([part])[0]) for bucket, part in parts]
    planned = Planner(ShardCounts.parse("train=64,test=16")).plan(tally(batch))
    slices = [piece for group in groups for piece in assign_shards(group, planned)]
    assert len(slices) <= 2 * BUCKETS + 64 + 16
    assert sum(len(pickle.dumps(refs)) for _, (_, refs) in slices) < 40 * count


def test_what_a_job_hands_to_a_worker_is_small(photos: Path):
    spec = BuildSpec(BuildOptions.of(input=(str(photos),), output="/out"))
    refs = batch_of([f"/photos/class{n % 100:03d}/IMG_{n:08d}.jpg" for n in range(10_000)])
    classes = {f"class{n:03d}": (n, b"class%03d" % n) for n in range(100)}
    job = ShardJob(
        ShardId("train", 0, 1), [refs], classes, spec.layout, spec.encoder, spec.settings
    )
    assert len(pickle.dumps(job)) < 400_000
