"""Tars that the webdataset package writes, and the patterns that its users write."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braceexpand
import pytest
import webdataset
from conftest import Build, Command
from helpers import build_json, image_bytes, names, records, rejects, shards
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.inputs.braces import expand
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Columns

SAMPLES = 30


def samples(first: int = 0, count: int = SAMPLES) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield {
            "__key__": f"sample{number:04d}",
            "jpg": image_bytes(number),
            "cls": number % 3,
            "txt": f"picture {number}\n",
            "json": {"patient": f"p{number // 5}", "age": number, "tags": ["a", "b"][: number % 3]},
        }


def write(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    with webdataset.TarWriter(str(path)) as writer:
        for row in rows:
            writer.write(row)
    return path


def write_members(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wds") / "a.tar", samples())


def test_side_files_are_labels_and_features(build: Build, tar: Path, tmp_path: Path):
    summary = build(
        tar,
        splits="train=0.7,test=0.3",
        group_by="column:patient",
        features_from=("txt", "age:int", "tags:bytes_list", "key=__key__"),
    )
    # The side files are not skipped files, though some are not used.
    assert (summary.records, summary.rejects, summary.passed_over) == (SAMPLES, 0, 0)
    assert build_json(tmp_path / "out")["classes"] == ["0", "1", "2"]
    splits: dict[bytes, set[str]] = {}
    for split in ("train", "test"):
        for record in records(tmp_path / "out", split):
            number = record.first("age")
            assert record.first("image/encoded") == image_bytes(number)
            assert record.first("image/class/label") == number % 3
            assert record.first("image/filename") == b"sample%04d.jpg" % number
            assert record.first("txt") == b"picture %d\n" % number
            assert record.first("key") == b"sample%04d" % number
            assert record.values.get("tags", []) == [b"a", b"b"][: number % 3]
            splits.setdefault(b"p%d" % (number // 5), set()).add(split)
    assert all(len(found) == 1 for found in splits.values())


def test_the_same_images_without_side_files_give_the_same_order(
    build: Build, tar: Path, tmp_path: Path
):
    images = {f"sample{number:04d}.jpg": image_bytes(number) for number in range(SAMPLES)}
    build(write_members(tmp_path / "a.tar", images), output=tmp_path / "plain")
    build(tar)
    assert names(tmp_path / "out") == names(tmp_path / "plain")
    assert build_json(tmp_path / "plain")["classes"] == ["a"]


def test_braces_list_what_a_glob_pattern_lists(build: Build, tmp_path: Path):
    folder = tmp_path / "wds"
    folder.mkdir()
    for number in range(9, 12):
        write(folder / f"part-{number:03d}.tar", samples(number * 10, 10))
    assert build(f"{folder}/part-{{009..011}}.tar").records == 30
    build(f"{folder}/part-*.tar", output=tmp_path / "glob")
    assert [path.read_bytes() for path in shards(tmp_path / "out")] == [
        path.read_bytes() for path in shards(tmp_path / "glob")
    ]
    with pytest.raises(JobError, match=r"part-012\.tar: no such file"):
        build(f"{folder}/part-{{009..012}}.tar", output=tmp_path / "more")


def test_braces_name_folders_patterns_and_files_of_that_name(
    build: Build, photos: Path, tmp_path: Path
):
    assert build(f"{photos}/{{class00,class01/*}}").records == 40
    build(f"{photos}/class0[01]", output=tmp_path / "glob")
    assert names(tmp_path / "out") == names(tmp_path / "glob")
    literal = write(tmp_path / "{1..3}.tar", samples(count=2))
    assert build(literal, output=tmp_path / "literal").records == 2


def test_the_output_cannot_be_inside_a_folder_that_braces_name(command: Command, photos: Path):
    code, _, errors = command(
        "build", "--input", f"{photos}/{{class00,class01}}", "--output", photos / "class01/out"
    )
    assert code == 2
    assert "class01/out" in errors


@given(st.from_regex(r"(a|-|\{(0?\d\.\.1?\d|[a-d]\.\.[a-f]|x,y?,z)\}){1,4}", fullmatch=True))
def test_braces_are_expanded_as_webdataset_expands_them(text: str):
    assert list(expand(text)) == list(braceexpand.braceexpand(text))


def test_a_suffix_selects_one_image_of_each_sample(build: Build, tmp_path: Path):
    rows = (
        {"__key__": f"{n}", "left.png": image_bytes(n, "PNG"), "jpg": image_bytes(n), "cls": n % 2}
        for n in range(8)
    )
    tar = write(tmp_path / "two.tar", rows)
    with pytest.raises(JobError, match=r"several images.* --image_suffix jpg for one"):
        build(tar)
    assert build(tar, image_suffix=("left.png",), output=tmp_path / "left").records == 8
    assert set(names(tmp_path / "left")) == {f"{n}.left.png" for n in range(8)}
    both = build(tar, image_suffix=("jpg", "left.png"), output=tmp_path / "both")
    assert both.records == 16


def test_members_without_an_image_are_skipped(build: Build, tmp_path: Path):
    members = {"a/1.jpg": image_bytes(1), "a/1.xmp": b"-", "a/2.npy": b"-", "README.md": b"-"}
    summary = build(write_members(tmp_path / "a.tar", members), labels="none")
    assert (summary.records, summary.passed_over) == (1, 2)


def mask_bytes(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (24, 16), number + 1).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_masks_and_captions_are_side_files(build: Build, tmp_path: Path, suffix: str):
    rows = (
        {"__key__": f"{n}", "jpg": image_bytes(n), "seg.png": mask_bytes(n), "txt": f"a\n\nb {n}\n"}
        for n in range(8)
        if n != 3
    )
    tar = write(tmp_path / f"a.{suffix}", itertools.chain(
        rows, [{"__key__": "3", "jpg": image_bytes(3)}]))  # fmt: skip
    summary = build(tar, features="segmentation", masks="column:seg.png", max_reject_fraction=0.5)
    assert (summary.records, summary.rejects, summary.passed_over) == (7, 1, 0)
    [line] = rejects(tmp_path / "out")
    assert (line["name"], line["error"]) == ("3.jpg", "MissingMask")
    for record in records(tmp_path / "out"):
        number = int(record.first("image/filename").decode()[0])
        assert record.first("image/segmentation/class/encoded") == mask_bytes(number)
    if suffix == "tar":
        build(
            tar, features="caption", captions="column:txt", image_suffix=("jpg",),
            max_reject_fraction=0.5, output=tmp_path / "texts",
        )  # fmt: skip
        for record in records(tmp_path / "texts"):
            number = int(record.first("image/filename").decode()[0])
            assert record.values["image/caption"] == [b"a", b"b %d" % number]


def test_a_path_of_masks_inside_of_an_archive_is_one_line(build: Build, tar: Path):
    with pytest.raises(JobError, match=r"'\{dir\}/\{stem\}.png' is a path inside of the archive"):
        build(tar, features="segmentation", masks="{dir}/{stem}.png")


def test_a_sample_without_a_label_or_with_broken_json_is_a_reject(build: Build, tmp_path: Path):
    members = {}
    for number in range(20):
        members[f"{number:02d}.jpg"] = image_bytes(number)
        if number != 3:
            members[f"{number:02d}.json"] = b'{"label": "owl"}' if number != 5 else b"{"
    tar = write_members(tmp_path / "a.tar", members)
    summary = build(tar, max_reject_fraction=0.5)
    assert (summary.records, summary.rejects) == (18, 2)
    assert {line["name"]: line["error"] for line in rejects(tmp_path / "out")} == {
        "03.jpg": "NoLabel",
        "05.jpg": "NotJson",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "column:breed"}, r"no column 'breed'.*'sample0000', has \.cls, \.jpg"),
        ({"features_from": ("breed",)}, "no column 'breed'"),
    ],
)
def test_a_missing_column_is_one_line(
    build: Build, tar: Path, options: dict[str, Any], message: str
):
    with pytest.raises(JobError, match=message):
        build(tar, **options)


def test_long_side_files_make_short_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("imageshards.transforms.inputs.listed.CHUNK_BYTES", 100_000)
    members: dict[str, bytes] = {}
    for number in range(20):
        members |= {f"{number}.jpg": b"1", f"{number}.txt": b"a" * 30_000}
    tar = write_members(tmp_path / "a.tar", members)
    options = ListingOptions(columns=Columns(optional=("txt",)))
    chunks = list(list_references(WorkUnit(identify(str(tar))), options))
    assert [len(chunk.refs) for chunk in chunks] == [4] * 5


def test_labels_that_begin_late_are_not_lost(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("imageshards.transforms.inputs.listed.CHUNK_ROWS", 4)
    members = {f"{number}.jpg": image_bytes(number) for number in range(8)}
    tar = write_members(tmp_path / "a.tar", {**members, "7.cls": b"1"})
    with pytest.raises(JobError, match=r"7\.jpg: it has a label"):
        build(tar)
