"""Whole builds on the in-process runner, and what must be true of every one."""

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import Build
from helpers import (
    build_json,
    contents,
    image_bytes,
    names,
    records,
    rejects,
    shards,
    write_images,
)  # fmt: skip

from imageshards.pipeline import finish
from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.elements import BuildError, ImageRef, to_bytes
from imageshards.transforms.images.validate import ImageInfo
from imageshards.transforms.references import keys
from imageshards.transforms.references.batch import RefBatch, binary_column
from imageshards.transforms.shards import read_ahead
from imageshards.transforms.shards.encoder import Encoded
from imageshards.transforms.shards.layout import Layout

SPLITS = "train=0.7,validation=0.15,test=0.15"


def test_every_image_once_with_its_label(build: Build, photos: Path, tmp_path: Path):
    summary = build(photos, num_shards="4", splits=SPLITS, base_uri=str(photos))
    assert summary.records == 120
    assert sorted(names(tmp_path / "out")) == sorted(
        str(path.relative_to(photos)) for path in photos.rglob("*.jpg")
    )
    for record in records(tmp_path / "out"):
        name = record.first("image/filename").decode()
        assert record.first("image/encoded") == (photos / name).read_bytes()
        assert record.first("image/class/text").decode() == name.split("/")[0]
        assert record.first("image/class/label") == int(name[5:7])
        assert (record.first("image/height"), record.first("image/width")) == (16, 24)
        assert record.first("image/format") == b"JPEG"


def test_shards_are_even(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="7", splits=SPLITS, base_uri=str(photos))
    for split in ("train", "validation", "test"):
        counts = [row["records"] for row in build_json(tmp_path / "out")["shards"]
                  if row["name"].startswith(f"{split}-")]  # fmt: skip
        assert len(counts) == 7
        assert max(counts) - min(counts) <= 1


def test_the_order_is_that_of_the_keys(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="5", seed=9)
    drawn = keys.hash_keys(9, map(to_bytes, names(tmp_path / "out")))[0].tolist()
    assert drawn == sorted(drawn)


def test_another_seed_gives_another_order(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="1", output=tmp_path / "a")
    build(photos, num_shards="1", output=tmp_path / "b", seed=1)
    assert names(tmp_path / "a") != names(tmp_path / "b")


def test_the_bytes_of_a_data_set_are_those_of_every_version(build: Build, tmp_path: Path):
    """The bytes of a data set are a promise: this digest changes with a breaking change only."""
    folder = tmp_path / "here"
    for label in ("ant", "bee"):
        (folder / label).mkdir(parents=True)
        for number in range(8):
            # Not Pillow's: another version of it may write other bytes.
            (folder / label / f"{number}.bmp").write_bytes(bmp(number, label == "ant"))
    build(folder, num_shards="2", splits="train=0.6,test=0.4", base_uri=str(folder), seed=3)
    digest = hashlib.sha256()
    for path in shards(tmp_path / "out"):
        digest.update(path.name.encode() + path.read_bytes())
    assert digest.hexdigest() == GOLDEN


GOLDEN = "0615a483359779c7335c8bf8456c5d3399f4b78f86c5eb4f8d75ae990b4f35a3"


def bmp(number: int, tall: bool) -> bytes:
    width, height = (4, 8) if tall else (8, 4)
    pixels = bytes((number * 17 + i) % 256 for i in range(width * height * 3))
    head = b"BM" + (54 + len(pixels)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    info = b"".join(
        value.to_bytes(size, "little")
        for value, size in [(40, 4), (width, 4), (height, 4), (1, 2), (24, 2)]
    )
    return head + info + bytes(24) + pixels


@pytest.mark.slow
def test_the_same_bytes_however_it_runs(build: Build, photos: Path, tmp_path: Path):
    two = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    ways = {
        "in_process": [],
        "two_processes": two,
        "bundles_twice": ["--direct_runner_bundle_repeat=2"],
        "threads": ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
        "direct": ["--runner=DirectRunner"],
    }
    found = {}
    same = {"num_shards": "4", "splits": SPLITS, "name": "x", "base_uri": str(photos)}
    for way, options in ways.items():
        beam = options if way == "direct" else ["--runner=FnApiRunner", *options]
        build(photos, output=tmp_path / way, beam=beam, **same)
        found[way] = contents(tmp_path / way)
    # Not the shards alone: the metadata too.
    assert all(found[way] == found["in_process"] for way in ways)


@pytest.mark.slow
def test_beams_writer_writes_all_shards_after_a_retry(build: Build, photos: Path, tmp_path: Path):
    twice = ["--runner=FnApiRunner", "--direct_runner_bundle_repeat=2"]
    summary = build(photos, writer="beam", num_shards="3", splits=SPLITS, beam=twice)
    assert (summary.records, summary.rejects) == (120, 0)
    assert len(set(names(tmp_path / "out"))) == 120
    assert len(shards(tmp_path / "out")) == 9


def test_a_copy_elsewhere_gives_the_same_bytes(build: Build, photos: Path, tmp_path: Path):
    shutil.copytree(photos, tmp_path / "copy")
    for name, folder in (("a", photos), ("b", tmp_path / "copy")):
        build(folder, num_shards="3", splits=SPLITS, base_uri=str(folder), output=tmp_path / name)
    a, b = ([path.read_bytes() for path in shards(tmp_path / name)] for name in "ab")
    assert a == b


def every_kind_of_bad_file(folder: Path) -> dict[str, str]:
    """Writes them; name -> error type of its reject."""
    good = image_bytes(1)
    png = image_bytes(1, "PNG", (64, 64))
    bad = {
        "empty.jpg": (b"", "Empty"),
        "cut.jpg": (image_bytes(2, size=(200, 200))[:-700], "Truncated"),
        "cut.png": (png[: len(png) // 2], "Truncated"),
        "garbled.png": (png[:200] + bytes(50) + png[250:], "Corrupt"),
        "page.jpg": (b"<html>404</html>", "NotAnImage"),
        "photo.jxl": (b"\xff\x0a" + bytes(50), "Unsupported"),
    }
    (folder / "bad").mkdir(parents=True)
    for name, (data, _) in bad.items():
        (folder / "bad" / name).write_bytes(data)
    (folder / "bad/called.png").write_bytes(good)  # a JPEG: fine, its content decides
    (folder / "bad/gone.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "bad/pipe.jpg")
    (folder / "bad/notes.txt").write_text("no image by its name")
    return {
        **{name: error for name, (_, error) in bad.items()},
        "gone.jpg": "Missing", "pipe.jpg": "NotAFile",
    }  # fmt: skip


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_nothing_is_lost(build: Build, tmp_path: Path, writer: str):
    folder = tmp_path / "in"
    write_images(folder, 3, 10)
    bad = every_kind_of_bad_file(folder)
    files = sum(len(names) for _, _, names in os.walk(folder))
    summary = build(
        folder, f"{folder}/class00", num_shards="2", max_reject_fraction=0.5, writer=writer
    )
    assert summary.duplicates == 10
    assert summary.records + summary.rejects + summary.passed_over == files
    found = {Path(line["uri"]).name: line["error"] for line in rejects(tmp_path / "out")}
    assert found == bad
    assert all(line["reason"] and line["stage"] in ("read", "check")
               for line in rejects(tmp_path / "out"))  # fmt: skip
    counts = build_json(tmp_path / "out")["counts"]
    assert counts["records"] + counts["rejects"] + counts["duplicates"] == counts["inputs"]
    assert "bad/called.png" in names(tmp_path / "out")


def test_too_many_rejects_fail_and_leave_no_data_set(build: Build, tmp_path: Path):
    folder = tmp_path / "in"
    write_images(folder, 2, 5)
    every_kind_of_bad_file(folder)
    build(folder, num_shards="1", max_reject_fraction=1.0)
    assert (tmp_path / "out/dataset_info.json").exists()
    with pytest.raises(JobError) as caught:
        build(folder, num_shards="1")
    message = str(caught.value)
    assert "8 of 19 images (42.1%) were rejected, more than --max_reject_fraction 0.01" in message
    assert "2 Truncated" in message
    assert f"see {tmp_path}/out/metadata/rejects.jsonl" in message
    assert not (tmp_path / "out/dataset_info.json").exists()
    assert len(rejects(tmp_path / "out")) == 8


def test_a_split_without_a_good_image_fails_the_job(build: Build, tmp_path: Path):
    (tmp_path / "in/c").mkdir(parents=True)
    for number in range(4):
        (tmp_path / f"in/c/{number}.jpg").write_bytes(b"no image")
    with pytest.raises(JobError, match="every image of the split 'train' was rejected"):
        build(tmp_path / "in", num_shards="2", max_reject_fraction=1.0)
    assert not shards(tmp_path / "out")
    assert not (tmp_path / "out/dataset_info.json").exists()


def test_a_shard_without_a_good_image_fails_the_job(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 1, 3)
    (tmp_path / "in/class00/bad.jpg").write_bytes(b"no image")
    with pytest.raises(JobError, match="1 of 4 shards of 'train' have no image left"):
        build(tmp_path / "in", num_shards="4", max_reject_fraction=1.0)
    assert len(shards(tmp_path / "out")) == 3


def test_the_same_command_again_does_nothing(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="4")
    before = {path: path.stat().st_mtime_ns for path in shards(tmp_path / "out")}
    again = build(photos, num_shards="4")
    assert again.resumed == again.shards == 4
    assert "all shards were complete" in str(again)
    assert {path: path.stat().st_mtime_ns for path in shards(tmp_path / "out")} == before


def test_missing_files_are_written_again_with_the_same_bytes(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="4")
    before = contents(tmp_path / "out")
    (tmp_path / "out/train-00001-of-00004.tfrecord").unlink()
    (tmp_path / "out/metadata/index/train-00002-of-00004.idx").unlink()
    (tmp_path / "out/train-00003-of-00004.tfrecord").write_bytes(b"short")
    (tmp_path / "out/dataset_info.json").unlink()
    (tmp_path / "out/metadata/shards/x.tfrecord.0123456789ab.tmp").touch()
    again = build(photos, num_shards="4")
    assert again.resumed == 1
    kept = json.loads((tmp_path / "out/metadata/build.json").read_text())["shards"][0]["records"]
    assert again.written == 120 - kept
    assert "1 shard was complete; the rest in " in str(again)
    assert " images/s; see" in str(again)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_the_shard_of_a_changed_image_is_rewritten(build: Build, tmp_path: Path, kind: str):
    paths = write_images(tmp_path / "in", 2, 10)
    source = tmp_path / "in"
    if kind == "manifest":
        source = tmp_path / "m.txt"
        source.write_text("\n".join(map(str, paths)))
    build(source, num_shards="4")
    paths[3].write_bytes(image_bytes(999))
    again = build(source, num_shards="4")
    assert again.resumed == 3
    assert image_bytes(999) in [r.first("image/encoded") for r in records(tmp_path / "out")]


def test_another_build_in_the_way_is_refused(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="4")
    before = contents(tmp_path / "out")
    with pytest.raises(BuildError, match="a build with other options: --num_shards was 4, now 5"):
        build(photos, num_shards="5")
    with pytest.raises(BuildError, match=r"was 4, now 5; --input was [^,]*, now .*/class00 [(]"):
        build(f"{photos}/class00", num_shards="5")
    with pytest.raises(JobError, match="holds a build with other inputs"):
        build(f"{photos}/class00", num_shards="4")
    assert contents(tmp_path / "out") == before
    build(photos, num_shards="5", overwrite=True)
    assert len(shards(tmp_path / "out")) == 5
    build(photos, num_shards="5", output=tmp_path / "fresh", name="out")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_files_of_others_are_named_and_kept(build: Build, photos: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "train-00000-of-00002").touch()
    with pytest.raises(BuildError, match=r"another build: train-00000-of-00002 \(--overwrite"):
        build(photos, num_shards="2")
    build(photos, num_shards="2", overwrite=True)
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == [
        "DATASET_CARD.md", "croissant.json", "dataset_info.json", "features.json",
        "image.class.label.labels.txt", "notes.txt",
        "train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord",
    ]  # fmt: skip


def test_nothing_but_shards_matches_a_split(build: Build, photos: Path, tmp_path: Path):
    for writer in ("shard", "beam"):
        build(photos, num_shards="3", writer=writer, overwrite=True)
        assert [path.name for path in (tmp_path / "out").glob("train*")] == [
            path.name for path in (tmp_path / "out").glob("train-0000?-of-00003.tfrecord")
        ]
        assert len(list((tmp_path / "out").glob("train-*"))) == 3
        assert not list((tmp_path / "out").rglob("*tmp*"))
        assert not list((tmp_path / "out").glob("beam-temp*"))


def test_both_writers_write_the_same_records(build: Build, photos: Path, tmp_path: Path):
    found = {}
    same = {"num_shards": "3", "splits": SPLITS, "base_uri": str(photos)}
    for writer in ("shard", "beam"):
        build(photos, writer=writer, output=tmp_path / writer, **same)
        found[writer] = {
            split: sorted(str(record.values) for record in records(tmp_path / writer, split))
            for split in ("train", "validation", "test")
        }
        assert len(shards(tmp_path / writer)) == 9
    assert found["shard"] == found["beam"]


def test_the_index_finds_every_record(build: Build, photos: Path, tmp_path: Path):
    for writer in ("shard", "beam"):
        out = tmp_path / writer
        build(photos, num_shards="3", writer=writer, output=out)
        for path in shards(out):
            lines = (out / f"metadata/index/{path.stem}.idx").read_text().splitlines()
            data = path.read_bytes()
            assert sum(int(line.split()[1]) for line in lines) == len(data)
            for line in lines:
                offset, size = map(int, line.split())
                assert int.from_bytes(data[offset : offset + 8], "little") == size - 16


def test_a_data_set_without_labels_has_no_label_feature(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="1", labels="none")
    assert "image/class/label" not in records(tmp_path / "out")[0].values
    assert not list((tmp_path / "out").glob("*.labels.txt"))
    features = json.loads((tmp_path / "out/features.json").read_text())
    assert "image/class/label" not in features["featuresDict"]["features"]


def test_inputs_of_several_kinds_are_combined(build: Build, photos: Path, tmp_path: Path):
    one = next(photos.rglob("*.jpg"))
    manifest = tmp_path / "m.csv"
    manifest.write_text(f"uri,label\n{photos}/class01/0001.jpg,class01\n")
    summary = build(
        manifest, f"{photos}/class02", f"{photos}/class03/*.jpg", one,
        num_shards="1", base_uri=str(photos),
    )  # fmt: skip
    assert summary.records == 1 + 20 + 20 + 1
    assert [entry for entry in build_json(tmp_path / "out")["classes"] if entry == "class01"]


def test_any_file_name_is_read_and_recorded(build: Build, tmp_path: Path):
    folder = tmp_path / "in" / "c"
    folder.mkdir(parents=True)
    odd = [
        "a b.jpg",
        "#1?.jpg",
        "50%20.jpg",
        "[1]*.jpg",
        "ü.jpg",
        os.fsdecode(b"\xe9.jpg"),
        "n\n.jpg",
    ]
    for number, name in enumerate(odd):
        (folder / name).write_bytes(image_bytes(number))
    summary = build(tmp_path / "in", num_shards="1")
    assert summary.records == len(odd)
    found = {record.first("image/filename") for record in records(tmp_path / "out")}
    assert found == {os.fsencode(f"c/{name}") for name in odd}


def test_overwrite_deletes_the_files_of_the_build_and_no_others(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="4")
    out = tmp_path / "out"
    mine = [
        "metadata/patients.csv", "metadata/index/mine.idx", "notes.tmp", "my.labels.txt",
        "model-00001-of-00002.safetensors", "beam-temp-mine/a", "metadata/shards/mine.json",
    ]  # fmt: skip
    for name in mine:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    build(photos, num_shards="2", overwrite=True)
    left = {name for name, data in contents(out).items() if data == b"mine"}
    assert left == set(mine)
    assert len(shards(out)) == 2
    assert not [name for name in contents(out) if "of-00004" in name]


def test_overwrite_replaces_another_build_and_resumes_its_own(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="4")
    assert build(photos, num_shards="5", overwrite=True).resumed == 0
    assert build(photos, num_shards="5", overwrite=True).resumed == 5


def test_overwrite_reads_rejected_images_again(build: Build, tmp_path: Path):
    photos = tmp_path / "in"
    write_images(photos, 2, 6)
    image = photos / "class00/0000.jpg"
    good = image.read_bytes()
    image.write_bytes(bytes(9) + good[9:])
    before = image.stat()
    same = {"num_shards": "3", "max_reject_fraction": 1}
    with pytest.raises(JobError, match=r"1 of 12 images .* was rejected"):
        build(photos, num_shards="3", max_reject_fraction=0)
    assert build(photos, **same).rejects == 1
    image.write_bytes(good)  # restored with its time, such as by `rsync --times`
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build(photos, **same).rejects == 1
    again = build(photos, **same, overwrite=True)
    assert (again.rejects, again.resumed) == (0, 2)
    assert not (tmp_path / "out/metadata/rejects.jsonl").read_bytes()


def test_a_failed_run_does_not_show_the_rejects_of_an_earlier_one(build: Build, tmp_path: Path):
    photos = tmp_path / "in"
    write_images(photos, 1, 3)
    (photos / "class00/0000.jpg").write_bytes(b"broken")
    with pytest.raises(JobError, match="was rejected"):
        build(photos, max_reject_fraction=0)
    files = [tmp_path / "out/metadata" / name for name in ("rejects.jsonl", "report.html")]
    assert all(file.exists() for file in files)
    (tmp_path / "out/train-00000-of-00001.tfrecord").unlink()
    (tmp_path / "out/train-00000-of-00001.tfrecord").mkdir()
    with pytest.raises(JobError, match="directory"):
        build(photos, max_reject_fraction=1)
    assert not any(file.exists() for file in files)


def test_another_build_that_claims_the_output_meanwhile_is_noticed(
    build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_report = finish.write_report

    def meanwhile(*arguments: object) -> None:
        plan = tmp_path / "out/metadata/shards/plan.json"
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "digest": "another"}))
        write_report(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(finish, "write_report", meanwhile)
    with pytest.raises(JobError, match="another build has claimed this output"):
        build(photos, num_shards="2")
    assert not (tmp_path / "out/dataset_info.json").exists()


def test_uris_of_an_unknown_scheme_are_rejects(build: Build, photos: Path, tmp_path: Path):
    manifest = tmp_path / "m.txt"
    manifest.write_text(f"{photos}/class00/0001.jpg\nfoo://x/a.jpg\n")
    build(manifest, max_reject_fraction=0.5)
    assert [line["error"] for line in rejects(tmp_path / "out")] == ["Unreadable"]


def test_reads_in_flight_are_bounded_where_sizes_are_unknown(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(read_ahead, "IN_FLIGHT_BYTES", 10_000)
    monkeypatch.setattr(read_ahead, "_FIRST_GUESS_BYTES", 1000)
    payload = bytes(2000)
    alive = most = 0

    def encode(ref: ImageRef) -> Encoded:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        return Encoded([payload], ImageInfo("JPEG", 1, 1), payload, None)

    count = 200
    listed = RefBatch.listed([f"/x/{n}" for n in range(count)], [3] * count, stamps=[1] * count)
    refs = listed.annotated(
        np.arange(count, dtype=np.uint64),
        binary_column([None] * count),
        pa.array(["train"] * count),
    )
    with ThreadPoolExecutor(8) as executor:
        for _ in read_ahead.encode_all(refs.refs(), encode, read_ahead.ReadAhead(executor, 64, 1)):
            alive -= 1
    assert 2 <= most <= 12


def test_overwrite_works_on_a_damaged_plan(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="4")
    (tmp_path / "out/metadata/shards/plan.json").write_text("{")
    with pytest.raises(BuildError, match="holds a build with other options"):
        build(photos, num_shards="2")
    build(photos, num_shards="2", overwrite=True)
    assert len(shards(tmp_path / "out")) == 2


def test_a_shard_is_not_taken_for_another_of_its_size(
    build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = shutil.copytree(photos, tmp_path / "photos")
    image = source / "class00/0000.jpg"
    before, stat = image.read_bytes(), image.stat()
    build(source, num_shards="2", check="header")
    whole = contents(tmp_path / "out")
    other = before[:-4] + bytes([before[-4] ^ 1]) + before[-3:]
    image.write_bytes(other)
    real = Layout.write

    def fail(layout: Layout, uri: str, data: bytes) -> None:
        if "/metadata/shards/train-" in uri and uri.endswith(".json"):
            raise OSError("no space")
        real(layout, uri, data)

    monkeypatch.setattr(Layout, "write", fail)
    with pytest.raises(JobError):
        build(source, num_shards="2", check="header")
    monkeypatch.setattr(Layout, "write", real)
    assert contents(tmp_path / "out") != whole
    image.write_bytes(before)
    os.utime(image, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    build(source, num_shards="2", check="header")
    assert contents(tmp_path / "out") == whole
