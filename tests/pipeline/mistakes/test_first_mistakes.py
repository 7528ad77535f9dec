"""What a new user gets wrong first: it works, or one line says how it works."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import gcs_server
import pytest
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, imageshards, records, shards, write_images

from imageshards import reader
from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.elements import BuildError


def test_an_output_without_any_shard_is_no_obstacle(build: Build, photos: Path, tmp_path: Path):
    manifest = tmp_path / "list.txt"
    manifest.write_text("gone/1.jpg\ngone/2.jpg\n")
    with pytest.raises(JobError, match="2 Missing"):
        build(manifest, num_shards="1")
    assert (tmp_path / "out/metadata/shards/plan.json").exists()
    build(photos, num_shards="2", name="out")
    build(photos, num_shards="2", name="out", output=tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_shard_that_is_being_written_is_an_obstacle(build: Build, photos: Path, tmp_path: Path):
    manifest = tmp_path / "list.txt"
    manifest.write_text("gone/1.jpg\n")
    with pytest.raises(JobError):
        build(manifest, num_shards="1")
    unfinished = tmp_path / "out/metadata/shards/train-00000-of-00001.tfrecord.0123456789ab.tmp"
    unfinished.touch()
    with pytest.raises(BuildError, match="holds an incomplete build with other options"):
        build(photos, num_shards="2")


def test_a_shard_of_another_build_at_the_same_time_is_an_error(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="2")
    (tmp_path / "out/train-00000-of-00007.tfrecord").touch()
    with pytest.raises(JobError, match=r"00007\.tfrecord: another build wrote here"):
        build(photos, num_shards="2")
    # The report is still that of the data set, unless the failed build is the only one.
    report = tmp_path / "out/metadata/report.html"
    assert "another build wrote here" not in report.read_text()
    (tmp_path / "out/dataset_info.json").unlink()
    with pytest.raises(JobError):
        build(photos, num_shards="2")
    assert "another build wrote here" in report.read_text()


MISTAKES = {
    "{name}": (
        "{stem}",
        "exist with .jpg at the end: add it to the URIs in the manifest, or set --uri_template "
        "'{{uri}}.jpg'",
    ),
    "changed": ("{stem}.png", "exist with the suffix .jpg: change the suffix in the manifest"),
    "below": ("{name}", "exist below {tmp}/lists/photos/: move the manifest into that folder"),
    "beside": ("{name}", "exist below {tmp}/photos/: move the manifest into that folder"),
    "above": ("lists/photos/{name}", "exist below {tmp}/: move the manifest into that folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_missing_images_of_a_manifest_suggest_what_would_find_them(
    build: Build, tmp_path: Path, mistake: str
):
    folder = {"below": "lists/photos", "above": "lists/photos", "beside": "photos"}
    paths = write_images(tmp_path / folder.get(mistake, "lists"), 2, 15)
    (tmp_path / "lists").mkdir(exist_ok=True)
    top = tmp_path / folder.get(mistake, "lists")
    line, advice = MISTAKES[mistake]
    names = [path.relative_to(top) for path in paths]
    lines = [line.format(name=name, stem=name.with_suffix("")) for name in names]
    (tmp_path / "lists/list.txt").write_text("\n".join(lines))
    with pytest.raises(JobError) as caught:
        build(tmp_path / "lists/list.txt", num_shards="1")
    message = str(caught.value)
    assert "\n" not in message
    assert (
        f"; 20 of 20 missing images that were looked for {advice.format(tmp=tmp_path)}" in message
    )


@pytest.mark.slow
def test_missing_images_of_a_bucket_suggest_a_suffix(photos: Path, tmp_path: Path):
    with gcs_server.running() as server:
        server.put_folder(photos, "photos")
        lines = [str(path.relative_to(photos).with_suffix("")) for path in photos.rglob("*.jpg")]
        server.put("photos/list.txt", "\n".join(lines).encode())
        done = imageshards(
            "build", "--input=gs://bucket/photos/list.txt", "--output", tmp_path / "out",
            **server.environment,
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "exist with .jpg at the end: add it to the URIs in the manifest" in done.stderr


def test_images_that_are_nowhere_get_no_suggestion(build: Build, photos: Path, tmp_path: Path):
    (tmp_path / "list.txt").write_text("nowhere-a.jpg\nnowhere-b.jpg\n")
    with pytest.raises(JobError) as caught:
        build(tmp_path / "list.txt", num_shards="1")
    assert "looked for" not in str(caught.value)


def test_classes_that_train_does_not_have_are_a_warning(build: Build, photos: Path, tmp_path: Path):
    for split, labels in {"train": (0, 1), "test": (1, 2), "validation": (0, 1)}.items():
        for label in labels:
            name = f"class{label:02d}"
            shutil.copytree(photos / name, tmp_path / "in" / split / name)
    summary = build(tmp_path / "in", num_shards="1", splits="folder")
    assert summary.classes_not_in_train == {"test": ["class02"]}
    says = "NOT IN TRAIN: 1 class of test: class02"
    assert f"{says}; --stratify" not in str(summary)
    assert says in str(summary)
    assert json.loads(summary.to_json())["classes_not_in_train"] == {"test": ["class02"]}
    assert f"{says}; --stratify divides each class" in str(replace(summary, can_stratify=True))
    assert build_json(tmp_path / "out")["counts"]["classes_not_in_train"] == 1
    report = (tmp_path / "out/metadata/report.html").read_text()
    assert '[1,"class not in train",true]' in report


def test_classes_that_train_has_are_no_warning(build: Build, photos: Path, tmp_path: Path):
    summary = build(photos, num_shards="1", splits="train=0.5,test=0.5")
    assert summary.classes_not_in_train == {}
    assert build_json(tmp_path / "out")["counts"]["classes_not_in_train"] == 0
    assert "not in train" not in (tmp_path / "out/metadata/report.html").read_text()


def large(path: Path, size: int) -> None:
    """A file of any size that occupies no space; it is not an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(size)


def test_files_that_will_be_rejects_do_not_make_shards(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 2, 5)
    large(tmp_path / "in/class00/video.jpg", 30_000_000_000)
    summary = build(tmp_path / "in", max_reject_fraction=0.2)
    assert (summary.shards, summary.records, summary.errors) == (1, 10, {"TooLarge": 1})
    assert "train: 1 shard for 7.4 kB of images" in summary.notes[0]


@pytest.mark.slow
def test_auto_allows_a_shard_whose_images_are_all_rejected(
    build: Build, tmp_path: Path, command: Command
):
    write_images(tmp_path / "in", 2, 2)
    for number in range(4):
        large(tmp_path / f"in/class00/large{number}.jpg", 150_000_000)
    options = {"max_reject_fraction": 0.5, "splits": "train=0.7,test=0.3"}
    summary = build(tmp_path / "in", **options)
    out = tmp_path / "out"
    assert (summary.records, summary.rejects, summary.shards) == (4, 4, 4)
    empty = [row["name"] for row in build_json(out)["shards"] if not row["records"]]
    assert empty
    assert len(shards(out)) == 4
    assert len(records(out)) == 4
    assert command("verify", out)[0] == 0
    assert command("inspect", out)[0] == 0
    for split, (count, _) in summary.splits.items():
        found = tfds.builder_from_directory(str(out)).as_dataset(split=split)
        assert len(list(found)) == count
        assert len(reader.open(str(out), split)) == count
        loaded = reader.load(str(out), split, batch_size=1, image_size=8, repeat=False)
        assert len(list(loaded)) == count
    before = contents(out)
    again = build(tmp_path / "in", **options)
    assert again.resumed == 4
    assert contents(out) == before
    assert command("reshard", out, tmp_path / "new", "--num_shards=1")[0] == 0
    assert len(records(tmp_path / "new")) == 4


def test_a_number_of_shards_that_is_too_large_is_named_by_split(build: Build, tmp_path: Path):
    for split, count in {"train": 5, "test": 3}.items():
        (tmp_path / "in" / split / "c").mkdir(parents=True)
        for number in range(count):
            data = b"bad" if number == 1 else image_bytes(number)
            (tmp_path / "in" / split / "c" / f"{number}.jpg").write_bytes(data)
    with pytest.raises(JobError, match="1 of 5 shards of 'train' have no image left"):
        build(
            tmp_path / "in", splits="folder", num_shards="train=5,test=3", max_reject_fraction=0.5
        )


def test_a_small_build_may_reject_up_to_its_limit(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 1, 1)
    for number in range(9):
        (tmp_path / f"in/class00/bad{number}.jpg").write_bytes(os.urandom(100))
    summary = build(tmp_path / "in", max_reject_fraction=0.9)
    assert (summary.records, summary.rejects, summary.shards) == (1, 9, 1)
