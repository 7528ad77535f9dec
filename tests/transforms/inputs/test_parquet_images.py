"""Parquet files with images inside: those that `datasets` wrote, and those of other programs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gcs_server
import pyarrow as pa
import pytest
import tensorflow_datasets as tfds
from conftest import Build
from helpers import build_json, image_bytes, imageshards, names, records, rejects
from PIL import Image
from pyarrow import parquet

from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.operations.fingerprint import fingerprint
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import ranges
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.batch import RefBatch

HUB = Path(__file__).with_name("hub")
NAMES = ["zebra", "ant", "owl"]


def number_in(image: bytes) -> int:
    """The number that `hub/write.py` wrote into the pixels."""
    red, *_ = Image.open(io.BytesIO(image)).resize((1, 1)).getpixel((0, 0))
    return round(red / 10)


def write(path: Path, count: int = 40, column: str = "image", **options: Any) -> Path:
    """A Parquet file with a binary column."""
    images = [image_bytes(number) for number in range(count)]
    table = pa.table({column: images, "label": [number % 4 for number in range(count)]})
    parquet.write_table(table, path, **options)
    return path


def test_files_of_the_hub_have_splits_labels_and_captions(build: Build, tmp_path: Path):
    summary = build(f"{HUB}/*.parquet", features_from=("caption",), num_shards="2")
    assert (summary.records, summary.rejects) == (20, 0)
    assert build_json(tmp_path / "out")["classes"] == NAMES
    found = {}
    for split, numbers in {"train": range(14), "test": range(14, 20)}.items():
        for record in records(tmp_path / "out", split):
            number = number_in(record.first("image/encoded"))
            assert number in numbers
            assert record.first("image/class/label") == number % 3
            assert record.first("image/class/text").decode() == NAMES[number % 3]
            assert record.first("caption") == b"picture %d" % number
            found[number] = record.first("image/filename").decode()
    assert found == {
        number: f"{file}-0000{part}-of-0000{of}.parquet/{row}"
        for file, part, of, start, end in (
            ("train", 0, 2, 0, 7), ("train", 1, 2, 7, 14), ("test", 0, 1, 14, 20)
        )
        for row, number in enumerate(range(start, end))
    }  # fmt: skip
    assert not list((tmp_path / "out/metadata/shards").glob("unpacked-*"))
    info = tfds.builder_from_directory(str(tmp_path / "out")).info
    assert info.features["image/class/label"].names == NAMES
    assert info.splits["test"].num_examples == 6


def test_a_column_gives_the_names(build: Build, tmp_path: Path):
    build(f"{HUB}/*.parquet", name_key="image.path")
    assert set(names(tmp_path / "out")) == {f"{number}.jpg" for number in range(20)}
    with pytest.raises(JobError, match=r"no column 'file' for --name_key; .* label, caption"):
        build(f"{HUB}/*.parquet", name_key="file", output=tmp_path / "other")


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "none", "use_dictionary": False, "data_page_size": 2000},
        {"compression": "none", "use_dictionary": False, "column_encoding": {
            "image": "DELTA_LENGTH_BYTE_ARRAY", "label": "PLAIN"}},
        {"compression": "none"},
        {"compression": "zstd", "row_group_size": 7, "data_page_version": "2.0"},
    ],
)  # fmt: skip
def test_images_are_found_in_every_encoding(tmp_path: Path, options: dict[str, Any]):
    path = write(tmp_path / "a.parquet", **options)
    refs = listed(path, tmp_path / "scratch")
    assert refs.uris == [f"{path}/{number}" for number in range(40)]
    for number, place in enumerate(refs.ranges):
        assert place
        assert ranges.read(place, path.stat().st_mtime_ns) == image_bytes(number)


def listed(path: Path, scratch: Path) -> RefBatch:
    unit = WorkUnit(identify(str(path)))
    options = ListingOptions(scratch=str(scratch))
    return RefBatch.concat(batch.refs for batch in list_references(unit, options))


def test_images_that_are_stored_as_they_are_are_not_copied(tmp_path: Path):
    plain = write(tmp_path / "a.parquet", compression="none", use_dictionary=False)
    assert set(listed(plain, tmp_path / "scratch").files()) == {str(plain)}
    assert not (tmp_path / "scratch").exists()
    packed = write(tmp_path / "b.parquet")
    [copy] = set(listed(packed, tmp_path / "scratch").files())
    assert Path(copy).stat().st_size == sum(len(image_bytes(number)) for number in range(40))
    before = Path(copy).stat().st_ino
    assert set(listed(packed, tmp_path / "scratch").files()) == {copy}
    assert Path(copy).stat().st_ino == before, "a resumed build uses the copy"


def test_a_damaged_file_is_reported_and_leaves_nothing(tmp_path: Path):
    path = write(tmp_path / "a.parquet", row_group_size=10)
    begin = parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * 2000)
    with pytest.raises(BuildError, match=r"a\.parquet"):
        listed(path, tmp_path / "scratch")
    assert not list((tmp_path / "scratch").glob("unpacked-*"))


def test_missing_images_and_labels_are_rejects(build: Build, tmp_path: Path):
    images = [image_bytes(number) if number != 3 else None for number in range(20)]
    labels = [number % 3 if number != 5 else -1 for number in range(20)]
    schema = parquet.read_schema(HUB / "test-00000-of-00001.parquet")
    table = pa.table({"image": [{"bytes": image, "path": None} for image in images]})
    table = table.append_column("label", [labels]).replace_schema_metadata(schema.metadata)
    parquet.write_table(table, tmp_path / "a.parquet")
    summary = build(tmp_path / "a.parquet", max_reject_fraction=0.2)
    assert (summary.records, summary.rejects) == (18, 2)
    found = {line["name"]: line["error"] for line in rejects(tmp_path / "out")}
    assert found == {"a.parquet/3": "Missing", "a.parquet/5": "NoLabel"}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_masks_are_a_column(build: Build, tmp_path: Path, compression: str):
    images, masks = [image_bytes(n) for n in range(12)], []
    for number in range(12):
        out = io.BytesIO()
        Image.new("L", (24, 16), number).save(out, "PNG")
        masks.append(out.getvalue())
    values = [{"bytes": mask, "path": None} for mask in masks]
    table = pa.table({"image": images, "annotation": [*values[:5], None, *values[6:]]})
    parquet.write_table(
        table, tmp_path / "a.parquet", compression=compression, use_dictionary=False
    )
    summary = build(
        tmp_path / "a.parquet", features="segmentation", masks="column:annotation",
        max_reject_fraction=0.5,
    )  # fmt: skip
    assert (summary.records, summary.rejects) == (11, 1)
    [line] = rejects(tmp_path / "out")
    assert (line["name"], line["error"]) == ("a.parquet/5", "MissingMask")
    for record in records(tmp_path / "out"):
        number = int(record.first("image/filename").decode().partition("/")[2])
        assert record.first("image/encoded") == images[number]
        assert record.first("image/segmentation/class/encoded") == masks[number]
    assert not list((tmp_path / "out/metadata/shards").glob("unpacked-*"))


def test_mistakes_are_one_line(build: Build, tmp_path: Path):
    images = [image_bytes(0)]
    parquet.write_table(pa.table({"a": images, "b": images}), tmp_path / "two.parquet")
    with pytest.raises(BuildError, match="the columns a, b may be the images: select one by"):
        build(tmp_path / "two.parquet", labels="none")
    assert build(tmp_path / "two.parquet", labels="none", uri_column="b").records == 1
    with pytest.raises(BuildError, match="no column 'label': write --labels column:NAME, or"):
        build(tmp_path / "two.parquet", uri_column="b", output=tmp_path / "c")
    with pytest.raises(BuildError, match="no column 'size'; its columns are: a, b"):
        build(
            tmp_path / "two.parquet", labels="none", uri_column="b", features_from=("size:int",),
            output=tmp_path / "d",
        )  # fmt: skip


def test_the_fingerprint_opens_no_image(tmp_path: Path):
    path = write(tmp_path / "a.parquet")
    before = fingerprint([str(path)])
    assert (before.files, before.bytes) == (1, path.stat().st_size)
    write(path, 41)
    assert fingerprint([str(path)]).digest != before.digest


@pytest.mark.slow
def test_remote_files_are_read_by_row_groups(tmp_path: Path):
    write(tmp_path / "a.parquet", 400, row_group_size=100)
    with gcs_server.running() as server:
        server.put("data/a.parquet", (tmp_path / "a.parquet").read_bytes())
        done = imageshards(
            "build", "--input=gs://bucket/data/*.parquet", "--output", tmp_path / "out",
            **server.environment,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (0, 0), done.stderr
        assert sum(server.requests.values()) < 0.05 * 400, server.requests
    assert len(records(tmp_path / "out")) == 400


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_imagefolder_layout_names_files(build: Build, tmp_path: Path, suffix: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.jpg").write_bytes(image_bytes(number))
    path = folder / f"metadata.{suffix}"
    if suffix == "csv":
        lines = [f"{number}.jpg,{'ab'[number % 2]}" for number in range(6)]
        path.write_text("\n".join(["file_name,label", *lines]))
    elif suffix == "jsonl":
        lines = [json.dumps({"file_name": f"{n}.jpg", "label": "ab"[n % 2]}) for n in range(6)]
        path.write_text("\n".join(lines))
    else:
        files = [f"{number}.jpg" for number in range(6)]
        parquet.write_table(pa.table({"file_name": files, "label": [*"ababab"]}), path)
    assert build(path).records == 6
    assert build_json(tmp_path / "out")["classes"] == ["a", "b"]
