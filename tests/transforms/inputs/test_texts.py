"""Text files: every line or paragraph is a record."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, contents, records, rejects, shards
from hypothesis import given
from hypothesis import strategies as st

from imageshards.pipeline.job.failures import JobError
from imageshards.reader import parse
from imageshards.reader.inspect import inspect
from imageshards.reader.verify import verify
from imageshards.transforms.elements import BuildError, ByteRange
from imageshards.transforms.inputs import ranges, texts
from imageshards.transforms.inputs.kind import ListingOptions, TextUnit
from imageshards.transforms.inputs.texts import TextFile
from imageshards.transforms.storage import ReadError

HAMLET = "To be, or not to be:\nthat is the question.\n\n  \nWhether 'tis nobler\n\n"
SONNET = "Shall I compare thee\r\nto a summer's day?\r\n\r\nThou art — lovely"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    for folder, text in (("plays", HAMLET), ("sonnets", SONNET)):
        (place / folder).mkdir(parents=True)
        (place / folder / "1.txt").write_bytes(text.encode())
    (place / "notes.md").write_text("not a text by its name\n")
    (place / "plays/.hidden.txt").write_text("hidden\n")
    return place


def listed(path: Path, unit: TextUnit) -> tuple[list[tuple[str, bytes]], int]:
    """(name, bytes) of every text of a file, and the number of empty lines."""
    data = path.read_bytes() if path.exists() else b""
    found = []
    blank = 0
    source = TextFile(str(path), str(path))
    for chunk in source.list_file(0, 0, 0, ListingOptions(text_unit=unit)):
        blank += chunk.blank_lines
        refs = chunk.refs
        for uri, span in zip(refs.uris, refs.ranges, strict=True):
            assert span
            name = uri.removeprefix(f"{path}:")
            error = refs.problems.get(len(found))
            text = data[span.offset : span.offset + span.size]
            found.append((name, error.reason.encode() if error else text))
    return found, blank


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines", "paragraphs"),
    [
        (b"", [], []),
        (b"\n\n", [], []),
        (b"a", [("1", b"a")], [("1", b"a")]),
        (b"a\nb\n\nc\n", [("1", b"a"), ("2", b"b"), ("4", b"c")], [("1", b"a\nb"), ("4", b"c")]),
        (b"a\r\nb\r\n \r\nc", [("1", b"a"), ("2", b"b"), ("4", b"c")],
         [("1", b"a\r\nb"), ("4", b"c")]),
        (b"\xef\xbb\xbfa\n", [("1", b"a")], [("1", b"a")]),
        (b"\xef\xbb\xbf\n a \n", [("2", b" a ")], [("2", b" a ")]),
        (b"\xef\xbb\xbf", [], []),
    ],
)  # fmt: skip
def test_lines_and_paragraphs_are_records(
    tmp_path: Path, data: bytes, lines: list[tuple[str, bytes]], paragraphs: list[tuple[str, bytes]]
):
    path = written(tmp_path / "a.txt", data)
    assert listed(path, "line")[0] == lines
    assert listed(path, "paragraph")[0] == paragraphs


LINE = st.text(st.sampled_from("ab \r\té"), max_size=12)


@given(st.lists(LINE), st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.integers(1, 6))
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: bytes, ends: bool, block: int
):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    rows = [line.encode().rstrip(b"\r") for line in lines]
    path.write_bytes(end.join(rows) + end * ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_BLOCK_BYTES", block)
        found, blank = listed(path, "line")
        paragraphs, _ = listed(path, "paragraph")
    expected = [(f"{n}", row) for n, row in enumerate(rows, 1) if row.strip()]
    assert found == expected
    empty_at_the_end = bool(rows) and not ends and not rows[-1]
    if rows:
        assert blank == len(rows) - len(expected) - empty_at_the_end
    joined = [row for _, text in paragraphs for row in text.split(end)]
    assert joined == [row for _, row in expected]
    numbers = [int(number) for number, _ in paragraphs]
    assert all(
        any(not row.strip() for row in rows[first:second])
        for first, second in pairwise(numbers)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7fELF\0\0", "a binary file: there is a NUL in its beginning"),
        ("über".encode("utf-16"), "UTF-16: write it as UTF-8"),
        (b"\x1f\x8b\x08", "a gzip file: gunzip it first"),
    ],
)
def test_a_file_that_is_not_a_text_is_one_reject(tmp_path: Path, data: bytes, reason: str):
    path = written(tmp_path / "a.txt", data)
    assert listed(path, "line")[0] == [(f"{path}", reason.encode())]


def test_texts_are_shuffled_and_parse_back(build: Build, corpus: Path, tmp_path: Path):
    summary = build(corpus, features="text", num_shards="2", base_uri=str(corpus), seed=4)
    assert (summary.records, summary.passed_over) == (6, 2)
    assert "6 texts in 2 shards" in str(summary)
    assert "4 empty lines were left out" in str(summary)
    out = tmp_path / "out"
    schema = parse.schema_of(str(out))
    spec = parse.parse_spec("text")
    found = set()
    for data in tf.data.TFRecordDataset([str(path) for path in shards(out)]):
        message = tf.train.Example.FromString(data.numpy())
        assert message.SerializeToString(deterministic=True) == data.numpy()
        values = parse.decode(tf.io.parse_single_example(data, spec), schema)
        assert parse.decode_numpy(data.numpy(), schema) == {
            key: value.numpy() for key, value in values.items()
        }
        text, source, label = (values[key].numpy() for key in ("text", "source", "label"))
        found.add((text.decode(), source.decode(), int(label)))
    assert found == {
        *((line, "plays/1.txt", 0) for line in HAMLET.splitlines() if line.strip()),
        *((line, "sonnets/1.txt", 1) for line in SONNET.splitlines() if line),
    }
    builder = tfds.builder_from_directory(str(out))
    assert builder.info.features["label"].names == ["plays", "sonnets"]
    read = {row["text"].decode() for row in tfds.as_numpy(builder.as_dataset(split="train"))}
    assert read == {text for text, _, _ in found}
    assert not verify(str(out)).problems
    assert "6 text, 18 to 21 bytes" in inspect(str(out))
    report = (out / "metadata/report.html").read_text()
    assert '"range":"18 to 21 bytes"' in report
    assert "Thou art \\u2014 lovely" in report


def test_paragraphs_keep_their_line_ends(build: Build, corpus: Path, tmp_path: Path):
    build(corpus / "*/*.txt", features="text", text_unit="paragraph", num_shards="1",
          labels=r"regex:/(\w+)/1\.txt", compression="gzip")  # fmt: skip
    path = str(tmp_path / "out/train-00000-of-00001.tfrecord.gz")
    data = tf.data.TFRecordDataset(path, compression_type="GZIP")
    found = {parse.decode_numpy(record.numpy(), "text")["text"] for record in data}
    assert found == {
        b"To be, or not to be:\nthat is the question.", b"Whether 'tis nobler",
        b"Shall I compare thee\r\nto a summer's day?", "Thou art — lovely".encode(),
    }  # fmt: skip
    assert build_json(tmp_path / "out")["classes"] == ["plays", "sonnets"]
    assert not verify(str(tmp_path / "out")).problems


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_what_is_not_utf8_is_a_reject_with_its_line(
    build: Build, corpus: Path, tmp_path: Path, writer: str
):
    bad = written(corpus / "plays/bad.txt", b"good\n\nb\xffd\nlast\n")
    (corpus / "plays/photo.txt").write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF")
    summary = build(
        corpus, bad, features="text", num_shards="1", max_reject_fraction=0.5, writer=writer
    )
    assert (summary.records, summary.rejects, summary.duplicates) == (8, 2, 3)
    found = {line["uri"].rpartition("/")[2]: line["reason"] for line in rejects(tmp_path / "out")}
    assert found == {
        "bad.txt:3": "not UTF-8 at its byte 1",
        "photo.txt": "a binary file: there is a NUL in its beginning",
    }
    with pytest.raises(JobError, match=r"2 of 10 texts \(20.0%\) were rejected"):
        build(corpus, features="text", num_shards="1", output=tmp_path / "b")


def test_a_long_line_is_not_read(build: Build, corpus: Path, tmp_path: Path):
    (corpus / "plays/long.txt").write_bytes(b"short\n" + b"x" * 300_000 + b"\nshort too\n")
    build(corpus, features="text", num_shards="1", max_bytes=1000, max_reject_fraction=0.5)
    (reject,) = rejects(tmp_path / "out")
    assert (reject["uri"].rpartition("/")[2], reject["error"]) == ("long.txt:2", "TooLarge")
    assert len(records(tmp_path / "out")) == 8


def test_texts_in_two_splits_are_reported(build: Build, tmp_path: Path):
    lines = [f"line {n % 60}\n" for n in range(120)]
    path = written(tmp_path / "a.txt", "".join(lines).encode())
    same = {
        "features": "text", "splits": "train=0.5,test=0.5", "num_shards": "2",
        "base_uri": str(tmp_path),
    }  # fmt: skip
    summary = build(path, **same, labels="none")
    assert summary.leaks
    assert f"LEAK: {summary.leaks} texts are in more than one split" in str(summary)
    assert "--dedupe" not in str(summary)
    leak = (tmp_path / "out/metadata/leaks.jsonl").read_text().splitlines()[0]
    assert "a.txt: line " in leak
    zipped = build(path, **same, labels="none", compression="gzip", output=tmp_path / "b")
    assert zipped.leaks == summary.leaks
    assert (tmp_path / "b/metadata/leaks.jsonl").read_text().splitlines()[0] == leak
    # A file stays in one split if it is a group.


def test_a_file_stays_in_one_split_if_it_is_a_group(build: Build, tmp_path: Path):
    place = tmp_path / "in"
    place.mkdir()
    for number in range(12):
        written(place / f"{number}.txt", b"one\ntwo\nthree\n")
    build(
        place, features="text", labels="none", splits="train=0.5,test=0.5", num_shards="1",
        group_by=r"regex:(.*):\d+$",
    )  # fmt: skip
    files = {
        split: {record.first("source") for record in records(tmp_path / "out", split)}
        for split in ("train", "test")
    }
    assert len(files["train"]) + len(files["test"]) == 12
    assert not files["train"] & files["test"]


@pytest.mark.slow
def test_builds_of_texts_are_reproducible_and_resumed(build: Build, corpus: Path, tmp_path: Path):
    same = {"features": "text", "num_shards": "3", "name": "x", "base_uri": str(corpus)}
    build(corpus, **same)
    before = contents(tmp_path / "out")
    build(corpus, **same, output=tmp_path / "b",
          beam=["--runner=FnApiRunner", "--direct_running_mode=multi_processing",
                "--direct_num_workers=2"])  # fmt: skip
    assert contents(tmp_path / "b") == before
    shards(tmp_path / "out")[1].unlink()
    assert build(corpus, **same).resumed == 2
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("http://example.org/a.txt", "texts are not read from the web"),
        ("{tmp}/a.tar", "is an archive, but --features text requires text files"),
        ("{tmp}/a.tfrecord", "is a TFRecord file, but"),
        ("{tmp}/a.csv", "is a manifest, but"),
        ("{tmp}/a.txt.gz", "is a manifest, but"),
        ("{tmp}/none.txt", "no such file or folder"),
        ("{tmp}/empty", "no text found (1 file was skipped by name: 1 "),
    ],
)
def test_inputs_that_are_not_texts_are_refused(
    command: Command, tmp_path: Path, name: str, message: str
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/a.jpg").touch()
    for file in ("a.tar", "a.tfrecord", "a.csv", "a.txt.gz"):
        (tmp_path / file).touch()
    place = name.format(tmp=tmp_path)
    code, _, errors = command(
        "build", f"--input={place}", f"--output={tmp_path}/out", "--features=text"
    )
    assert code in (1, 2)
    assert message in errors
    assert errors.count("\n") == 1


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path):
    with pytest.raises(BuildError, match="cannot be read"):
        listed(tmp_path / "x.txt", "line")


def test_a_text_file_that_changed_is_written_again(build: Build, corpus: Path, tmp_path: Path):
    build(corpus, features="text", num_shards="1")
    (corpus / "plays/1.txt").write_bytes(HAMLET.replace("To be", "To do").encode())
    again = build(corpus, features="text", num_shards="1")
    assert again.resumed == 0
    assert b"To do, or not to be:" in [row.first("text") for row in records(tmp_path / "out")]


def test_a_change_of_a_text_file_while_it_is_read_is_detected(tmp_path: Path):
    path = written(tmp_path / "a.txt", b"one\ntwo\n")
    stamp = path.stat().st_mtime_ns
    place = ByteRange(str(path), 4, 3, "stored")
    assert ranges.read(place, stamp) == b"two"
    os.utime(path, ns=(stamp, stamp + 1))
    with pytest.raises(ReadError, match="the file that holds it has changed since it was listed"):
        ranges.read(place, stamp)
