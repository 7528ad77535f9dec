"""Counts that decide speed and memory, where timings would only be noise."""

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from helpers import build_json, image_bytes, rejects, shards, write_images
from references import batch_of, tally

from imageshards.launch.cli import main
from imageshards.pipeline import graph
from imageshards.pipeline.assembly import BuildSpec
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms import dedupe, shuffle, storage, write_beam
from imageshards.transforms.elements import InputCount, ShardId, Skipped
from imageshards.transforms.references import plan
from imageshards.transforms.references import tally as tallies
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.keys import BUCKET_BITS, BUCKETS, group_bits
from imageshards.transforms.references.order import partition, sort_group
from imageshards.transforms.references.plan import Planner
from imageshards.transforms.references.rules import ShardCounts
from imageshards.transforms.references.selection import pixels
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
        monkeypatch.setattr(tallies, "group_bits", lambda references, num_bytes, bits=bits: bits)
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


def test_groups_of_pixels_do_not_grow_with_the_copies_of_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "in"
    write_images(folder, 2, 10)
    for number in range(40):
        label = f"class0{number % 2}"
        (folder / label / f"copy{number}.jpg").write_bytes(image_bytes(number % 2))
    options = ("--num_shards=2", "--dedupe=pixels", "--max_reject_fraction=0.9", "--name=x")
    build(folder, tmp_path / "all", *options)
    sizes: list[int] = []
    mark_group = dedupe.mark_group

    def counting(batches: list[RefBatch]) -> Any:
        sizes.append(sum(map(len, batches)))
        return mark_group(batches)

    monkeypatch.setattr(dedupe, "mark_group", counting)
    monkeypatch.setattr(pixels, "MANY_COPIES", 5)
    build(folder, tmp_path / "bounded", *options)
    assert sum(sizes) <= 20
    for name in ("metadata/rejects.jsonl", *(path.name for path in shards(tmp_path / "all"))):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "bounded" / name).read_bytes()
    assert len(rejects(tmp_path / "bounded")) == 40


def test_groups_do_not_grow_with_the_repeated_lines_of_a_manifest(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second, *others = sorted(photos.rglob("*.jpg"))
    lines = [f"{first},a\n", *(f"{path},b\n" for path in (*others, first, second))]
    lines += [f"{first},a\n", f"{first},c\n", f"{second},b\n"] * 500
    (tmp_path / "list.csv").write_text("uri,label\n" + "".join(lines))
    sizes: list[int] = []
    sort = shuffle.sort_group

    def counting(batches: list[RefBatch]) -> Any:
        sizes.append(sum(map(len, batches)))
        return sort(batches)

    monkeypatch.setattr(shuffle, "sort_group", counting)
    build(tmp_path / "list.csv", tmp_path / "out", "--max_reject_fraction=0.1")
    assert sum(sizes) == len(others) + 4  # with a, b and c, the first image is in conflict
    counts = build_json(tmp_path / "out")["counts"]
    assert counts["inputs"] == len(lines)
    assert counts["duplicates"] == len(lines) - sum(sizes)
    assert counts["rejects"] == 2


def test_no_part_of_the_rejects_grows_with_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "in"
    write_images(folder, 1, 10)
    for number in range(30):
        (folder / f"{number}.jpg").write_bytes(b"\xff\xd8 cut off")
    options = ("--num_shards=1", "--writer=beam", "--max_reject_fraction=0.9")
    build(folder, tmp_path / "one", *options)
    monkeypatch.setattr(write_beam, "_REJECTS_OF_PART", 4)
    sizes: list[int] = []
    write = write_beam.write_rejects

    def counting(*arguments: Any) -> Any:
        sizes.append(len(arguments[3]))
        return write(*arguments)

    monkeypatch.setattr(write_beam, "write_rejects", counting)
    build(folder, tmp_path / "many", *options)
    assert sum(sizes) == 30
    assert max(sizes) <= 10
    one, many = rejects(tmp_path / "one"), rejects(tmp_path / "many")
    assert sorted(line["uri"] for line in many) == [line["uri"] for line in one]
    assert not list((tmp_path / "many").rglob("*joined*"))


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


def test_counts_of_an_input_are_sent_to_other_workers():
    for count in (InputCount(), InputCount(1) + InputCount(0, 2, {Skipped(".txt"): 2})):
        assert pickle.loads(pickle.dumps(count)) == count


def test_what_a_job_hands_to_a_worker_is_small(photos: Path):
    spec = BuildSpec(BuildOptions.of(input=(str(photos),), output="/out"))
    refs = batch_of([f"/photos/class{n % 100:03d}/IMG_{n:08d}.jpg" for n in range(10_000)])
    classes = {f"class{n:03d}": (n, b"class%03d" % n) for n in range(100)}
    job = ShardJob(
        ShardId("train", 0, 1), [refs], classes, spec.layout, spec.encoder, spec.settings
    )
    assert len(pickle.dumps(job)) < 400_000
