"""MDS shards that mosaicml-streaming wrote, and damaged ones."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from conftest import Build
from helpers import names, records, rejects
from PIL import Image

from imageshards.pipeline.job.failures import JobError

MDS = Path(__file__).with_name("mds")
PLAIN = f"{MDS}/plain/*.mds"


def number_in(image: bytes) -> int:
    """The number that `mds/write.py` wrote into the pixels."""
    red, *_ = Image.open(io.BytesIO(image)).resize((1, 1)).getpixel((0, 0))
    return round(red / 10)


def test_samples_have_labels_and_features(build: Build, tmp_path: Path):
    summary = build(PLAIN, features_from=("key", "weight:float", "box:float_list"))
    assert (summary.records, summary.rejects, summary.passed_over) == (20, 0, 0)
    found = set()
    for record in records(tmp_path / "out"):
        number = number_in(record.first("image/encoded"))
        assert record.first("image/class/label") == number % 3
        assert record.first("key") == b"k%02d" % number
        assert record.first("weight") == number / 4
        assert record.values["box"] == pytest.approx([0.25, number / 100])
        found.add(number)
    assert found == set(range(20))
    assert names(tmp_path / "out")[0].startswith("shard.0000")


def test_a_column_gives_the_names(build: Build, tmp_path: Path):
    build(PLAIN, name_key="key", uri_column="image")
    assert set(names(tmp_path / "out")) == {f"k{number:02d}" for number in range(20)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri_column": "label"}, r"no images in 'label'; its columns are: box \(json\), image"),
        ({"uri_column": "thumbnail"}, "20 of 20 images .* were rejected"),
        ({"labels": "column:breed"}, "no column 'breed'; its columns are: .*thumbnail"),
        # The bytes of the thumbnails are read as masks, and are no images.
        (
            {"features": "segmentation", "masks": "column:thumbnail", "labels": "none"},
            "20 of 20 images .* BadMask",
        ),
    ],
)
def test_mistakes_are_one_line(build: Build, options: dict[str, str], message: str):
    with pytest.raises(JobError, match=message):
        build(PLAIN, **options)


def test_compressed_shards_are_unpacked(build: Build, tmp_path: Path):
    assert build(f"{MDS}/zstd/*.mds.zstd", name_key="key").records == 2
    assert set(names(tmp_path / "out")) == {"k00", "k01"}
    assert not list((tmp_path / "out/metadata/shards").glob("unpacked-*"))
    shutil.copy(MDS / "plain/shard.00000.mds", tmp_path / "shard.00000.mds.snappy")
    with pytest.raises(JobError, match=r"mds\.snappy: an MDS shard of this compression is not"):
        build(tmp_path / "shard.00000.mds.snappy", output=tmp_path / "other")


def test_damage_is_found(build: Build, tmp_path: Path):
    shard = tmp_path / "shard.00000.mds"
    shutil.copy(MDS / "plain/shard.00000.mds", shard)
    data = bytearray(shard.read_bytes())
    begin = int.from_bytes(data[4:8], "little")
    data[begin : begin + 4] = b"\xff\xff\xff\x00"  # the size of the first image
    shard.write_bytes(data)
    assert build(shard, max_reject_fraction=0.5).rejects == 1
    [line] = rejects(tmp_path / "out")
    assert (line["name"], line["error"]) == ("shard.00000.mds/0", "Corrupt")
    shard.write_bytes(data[:-1])
    with pytest.raises(JobError, match=r"shard\.00000\.mds: not an MDS shard: cut off: "):
        build(shard, output=tmp_path / "cut")
