import gzip
from pathlib import Path

import pytest

from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import ranges, tfrecords
from imageshards.transforms.inputs.kind import ListingOptions, RecordKeys, WorkUnit, list_references
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import Feature, Kind, Schema
from imageshards.transforms.records.tfrecord import frame
from imageshards.transforms.references.annotate import Annotator, Columns
from imageshards.transforms.references.batch import texts_of
from imageshards.transforms.references.rules import GroupRule, LabelRule, SplitRule

ANNOTATOR = Annotator(0, LabelRule("none"), SplitRule.parse("train=1"), GroupRule.parse("uri"))

LABEL = Columns(optional=("label",))
Values = dict[str, bytes | int | float]


def record(values: Values) -> bytes:
    kinds: dict[type, Kind] = {bytes: "bytes", int: "int64", float: "float"}
    features = [Feature(key, kinds[type(value)], key, "Scalar") for key, value in values.items()]
    return b"".join(example.encode(Schema("any", tuple(features)), values))


def framed(data: bytes) -> bytes:
    return b"".join(frame([data]))


def file_of(rows: list[Values]) -> bytes:
    return b"".join(framed(record(row)) for row in rows)


ROWS: list[Values] = [
    {
        "image/encoded": b"image %d" % n, "image/class/text": b"c%d" % (n % 2),
        "image/class/label": n % 2, "image/filename": b"c%d/%d.jpg" % (n % 2, n), "score": n / 2,
    }
    for n in range(6)
]  # fmt: skip


def listed(place: Path, keys: RecordKeys | None = None, columns: Columns = LABEL) -> list[tuple]:  # type: ignore[type-arg]
    """(name, image or error type, label) of every record."""
    keys = keys or RecordKeys()
    result = []
    options = ListingOptions(columns=columns, record_keys=keys)
    for chunk in list_references(WorkUnit(identify(str(place))), options):
        column = chunk.refs.text_column("label")
        labels = [None] * len(chunk.refs) if column is None else texts_of(column)
        for ref, label in zip(ANNOTATOR.annotate(chunk.refs).refs(), labels, strict=True):
            name = ref.uri.removeprefix(f"{place}/")
            if ref.problem:
                result.append((name, ref.problem.error, label))
                continue
            assert ref.range
            data, _ = ranges.read_record(ref.range, ref.stamp, keys.image)
            assert ref.size == len(data)
            result.append((name, data, label))
    return result


def test_every_record_is_a_reference(tmp_path: Path):
    path = tmp_path / "old-00000-of-00001"
    path.write_bytes(file_of(ROWS))
    assert listed(path) == [(f"{n}", b"image %d" % n, f"c{n % 2}") for n in range(6)]
    numbers = RecordKeys(label="image/class/label", name="image/filename")
    assert listed(path, numbers) == [
        (f"c{n % 2}/{n}.jpg", b"image %d" % n, f"{n % 2}") for n in range(6)
    ]
    named = RecordKeys(image="image/filename", label="score")
    assert listed(path, named)[1:3] == [("1", b"c1/1.jpg", "0.5"), ("2", b"c0/2.jpg", "1")]


def test_any_feature_is_a_column(tmp_path: Path):
    path = tmp_path / "a.tfrecords"
    path.write_bytes(file_of(ROWS))
    columns = Columns(required=("score",), optional=("image/filename", "none"))
    (chunk,) = list_references(WorkUnit(identify(str(path))), ListingOptions(columns=columns))
    refs = chunk.refs
    assert texts_of(refs.text_column("score")) == ["0", "0.5", "1", "1.5", "2", "2.5"]
    assert texts_of(refs.text_column("image/filename"))[5] == "c1/5.jpg"
    assert refs.text_column("none") is None


def test_a_pattern_names_many_files(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"old-{number}.tfrecord").write_bytes(file_of(ROWS))
    for beside in ("old-notes.txt", "old-0.tfrecord.idx", "old-00000-of-00001.tfrecord.json"):
        (tmp_path / beside).touch()
    assert len(listed(tmp_path / "old-*.tfrecord")) == 18
    assert len(listed(tmp_path / "old-*")) == 18
    with pytest.raises(BuildError, match="6 files were skipped"):
        listed(tmp_path)


@pytest.mark.parametrize(
    "name", ["a-00000-of-00001", "d-train.tfrecord-00000-of-00010", "A.TFRecords"]
)
def test_tfrecord_files_are_recognized_by_their_names(name: str):
    assert tfrecords.TFRecordFile.recognizes(f"gs://b/{name}")
    assert not tfrecords.TFRecordFile.recognizes(f"gs://b/{name}.idx")


def test_what_is_wrong_with_a_record_is_a_reject(tmp_path: Path):
    good = [framed(record(row)) for row in ROWS]
    garbled = bytearray(good[1])
    garbled[40] ^= 1
    path = tmp_path / "a.tfrecord"
    nothing = framed(b"")
    no_image = framed(record({"image/class/text": b"c0"}))
    foreign = framed(b"no example at all")
    path.write_bytes(nothing + good[0] + garbled + no_image + foreign + good[4] + good[5][:-1])
    assert listed(path) == [
        ("0", "Missing", None), ("1", b"image 0", "c0"), ("2", "Corrupt", None),
        ("3", "Missing", "c0"), ("4", "Corrupt", None), ("5", b"image 4", "c0"),
        ("6", "Lost", None),
    ]  # fmt: skip


def test_a_lost_frame_ends_a_file_in_one_reject(tmp_path: Path):
    data = bytearray(file_of(ROWS))
    data[len(framed(record(ROWS[0]))) + 3] ^= 1
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    assert [row[1] for row in listed(path)] == [b"image 0", "Lost"]


def test_every_cut_loses_the_last_record_only(tmp_path: Path):
    data = file_of(ROWS[:2])
    size = len(framed(record(ROWS[0])))
    path = tmp_path / "a.tfrecord"
    for cut in range(size + 1, len(data)):
        path.write_bytes(data[:cut])
        assert [row[1] for row in listed(path)] == [b"image 0", "Lost"]


def test_a_record_that_is_too_long_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tfrecords, "_LONGEST_RECORD", 1000)
    long: Values = {**ROWS[0], "image/encoded": bytes(2000)}
    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of([ROWS[0], long, ROWS[1]]))
    assert [row[1] for row in listed(path)] == [b"image 0", "Corrupt", b"image 1"]


def test_features_that_are_not_there_are_named(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of([{"jpg": b"1", "cls": 1}]))
    with pytest.raises(BuildError, match=r"'image/encoded' \(--image_key .* has cls, jpg"):
        listed(path)
    with pytest.raises(BuildError, match="no feature image/class/text or image/class/label for"):
        listed(path, RecordKeys(image="jpg"))
    with pytest.raises(BuildError, match="no feature klass for the label"):
        listed(path, RecordKeys(image="jpg", label="klass"))
    with pytest.raises(BuildError, match="no feature 'patient'"):
        listed(path, RecordKeys(image="jpg"), Columns(required=("patient",)))
    assert listed(path, RecordKeys(image="jpg", label="cls")) == [("0", b"1", "1")]
    assert listed(path, RecordKeys(image="jpg"), Columns()) == [("0", b"1", None)]


def test_records_without_a_name_have_a_number(tmp_path: Path):
    path = tmp_path / "a.tfrecord"
    rows: list[Values] = [ROWS[0], {**ROWS[1], "image/filename": b""}, {"image/encoded": b"i"}]
    path.write_bytes(file_of(rows))
    keys = RecordKeys(name="image/filename")
    assert [row[0] for row in listed(path, keys)] == ["c0/0.jpg", "1", "2"]


@pytest.mark.parametrize("name", ["a.tfrecord.gz", "a.tfrecord", "a-00000-of-00001"])
def test_compressed_files_are_refused(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(gzip.compress(file_of(ROWS)))
    with pytest.raises(BuildError, match="cannot be read at random: decompress it first"):
        listed(tmp_path / name)


def test_an_empty_file_is_an_error_like_an_empty_folder(tmp_path: Path):
    (tmp_path / "a.tfrecord").touch()
    with pytest.raises(BuildError, match="no image found"):
        listed(tmp_path / "a.tfrecord")
