import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import listed as listed_rows
from imageshards.transforms.inputs import manifests
from imageshards.transforms.inputs.kind import ListingOptions, WorkUnit, list_references
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.references.annotate import Columns
from imageshards.transforms.references.batch import RefBatch, texts_of


def batches(place: Path | str, **options: object) -> list[RefBatch]:
    chunks = list_references(WorkUnit(identify(str(place))), ListingOptions(**options))  # type: ignore[arg-type]
    return [chunk.refs for chunk in chunks]


def listed(place: Path | str, **options: object) -> tuple[list[str], int]:
    found, passed_over = [], 0
    for chunk in list_references(WorkUnit(identify(str(place))), ListingOptions(**options)):  # type: ignore[arg-type]
        found += chunk.refs.uris
        passed_over += chunk.passed_over
    return found, passed_over


OPTIONAL_LABEL = Columns(optional=("label",))


def relative(found: list[str], folder: Path) -> list[str]:
    return sorted(os.path.relpath(uri, folder) for uri in found)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/1.jpg", "a/2.PNG", "b/c/3.jpeg", "b/notes.txt", ".hidden/4.jpg", "b/._5.jpg"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return tmp_path / "tree"


def test_a_folder_is_walked(tree: Path):
    found, passed_over = listed(tree)
    assert relative(found, tree) == ["a/1.jpg", "a/2.PNG", "b/c/3.jpeg"]
    assert passed_over == 3


def test_include_all_takes_every_file(tree: Path):
    found, passed_over = listed(tree, include_all=True)
    assert len(found) == 6
    assert passed_over == 0


def test_links_are_followed_but_not_in_circles(tree: Path):
    (tree / "again").symlink_to(tree)
    (tree / "more").symlink_to(tree / "a")
    (tree / "gone.jpg").symlink_to("nowhere")
    (tree / "own.jpg").symlink_to("own.jpg")
    found, _ = listed(tree)
    assert relative(found, tree) == [
        "a/1.jpg", "a/2.PNG", "b/c/3.jpeg", "gone.jpg", "more/1.jpg", "more/2.PNG", "own.jpg",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/1.jpg", ["a/1.jpg"]),
        ("**/*.jp*g", ["a/1.jpg", "b/c/3.jpeg"]),
        ("b*", ["b/c/3.jpeg"]),
        ("**/*", ["a/1.jpg", "a/2.PNG", "b/c/3.jpeg"]),
        ("**", ["a/1.jpg", "a/2.PNG", "b/c/3.jpeg"]),
    ],
)
def test_a_pattern_names_files_and_folders(tree: Path, pattern: str, expected: list[str]):
    found, _ = listed(f"{tree}/{pattern}")
    assert relative(found, tree) == expected


def test_hidden_files_of_a_glob_are_skipped(tree: Path):
    assert listed(f"{tree}/**")[1] == listed(tree)[1] == 3
    assert len(listed(f"{tree}/**", include_all=True)[0]) == 6


def test_relative_uris_of_a_remote_manifest_begin_at_its_folder():
    uris = manifests._absolute(["./a.jpg", "../b.jpg", "c.jpg"], "gs://bucket/m", str)
    assert uris == ["gs://bucket/m/a.jpg", "gs://bucket/m/../b.jpg", "gs://bucket/m/c.jpg"]


def test_a_name_with_brackets_is_a_name_if_it_is_there(tmp_path: Path):
    folder = tmp_path / "a[1]*?"
    folder.mkdir()
    (folder / "x.jpg").touch()
    assert listed(folder)[0] == [str(folder / "x.jpg")]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "jsonl", "parquet", "txt"])
def test_all_formats_of_manifests_give_the_same_references(tmp_path: Path, kind: str):
    uris = ["1.jpg", "sub/2 #?.jpg", "/abs/3.jpg", "gs://b/4.jpg", "../5.jpg", "./6[*].jpg"]
    labels = ["x", None, "z", "7", "ü", "w"]
    path = tmp_path / "m" / f"list.{kind}"
    path.parent.mkdir()
    rows = list(zip(uris, labels, strict=True))
    comma = "\t" if kind == "tsv" else ","
    table = "".join(f"{uri}{comma}{label or ''}\n" for uri, label in [("uri", "label"), *rows])
    if kind == "parquet":
        parquet.write_table(pa.table({"label": labels, "uri": uris, "other": [0] * 6}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"uri": u, "label": v}) + "\n" for u, v in rows))
    elif kind == "txt":
        path.write_text("\n\n".join(uris))
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(table.encode()))
    else:
        path.write_text("\ufeff" + table)
    refs = batches(path, columns=OPTIONAL_LABEL)[0]
    assert refs.uris == [
        f"{tmp_path}/m/1.jpg", f"{tmp_path}/m/sub/2 #?.jpg", "/abs/3.jpg", "gs://b/4.jpg",
        f"{tmp_path}/5.jpg", f"{tmp_path}/m/6[*].jpg",
    ]  # fmt: skip
    if kind != "txt":
        assert texts_of(refs.text_column("label")) == labels


def test_numbers_become_texts(tmp_path: Path):
    path = tmp_path / "m.parquet"
    parquet.write_table(pa.table({"uri": ["a", "b", "c"], "label": [3.0, None, 12.0]}), path)
    (refs,) = batches(path, columns=Columns(required=("label",)))
    assert texts_of(refs.text_column("label")) == ["3", None, "12"]


def test_paths_below_a_manifest_begin_at_its_folder(tmp_path: Path):
    (tmp_path / "m.csv").write_text("uri\nsub/1.jpg\n/elsewhere/2.jpg\ngs://bucket/3.jpg\n")
    (refs,) = batches(tmp_path / "m.csv")
    assert refs.names == ["sub/1.jpg", "/elsewhere/2.jpg", "gs://bucket/3.jpg"]


BROKEN = {
    "no-column.csv": (b"path,label\na.jpg,1\n", "no column 'uri'.*path, label"),
    "utf8.csv": (b"uri\na.jpg\n\xff\xfe.jpg\n", "utf8.csv:3: not UTF-8"),
    "ragged.csv": (b"uri,label\na,b\nc\n", "ragged.csv:3: 1 value, but the header has 2"),
    "quote.csv": (b'uri\n"abc\n', "quote.csv:2: unexpected end"),
    "nouri.csv": (b"uri,label\n,x\n", "nouri.csv:2: no value in the column 'uri'"),
    "later.csv": (b'uri,label\n"a\nb.jpg",x\n\n,y\n', "later.csv:5: no value in the column 'uri'"),
    "header.csv": (b"uri,label\n", "no image found: it has no rows"),
    "empty.csv": (b"", "empty"),
    "empty.jsonl": (b"\n", "empty"),
    "bad.jsonl": (b'{"uri": "a"}\n{"uri": \n', "bad.jsonl:2: not JSON"),
    "list.jsonl": (b"[1]\n", "list.jsonl:1: not a JSON object"),
    "nouri.jsonl": (
        b'{"uri": "a"}\n{"path": "b"}\n',
        "nouri.jsonl:2: no value in the column 'uri'",
    ),
    "late.jsonl": (b'{"uri": "a"}\n{"uri": "b", "label": 1}\n', "late.jsonl:2: has 'label'"),
    "object.jsonl": (b'{"uri": {"a": 1}}\n', "object.jsonl:1: uri must be a text"),
    "surrogate.jsonl": (b'{"uri": "\\ud800"}\n', "surrogate.jsonl:1: uri is not Unicode"),
    "no.parquet": (b"PAR1 not", "not a Parquet file"),
    "bad.csv.gz": (gzip.compress(b"uri\n" * 99, mtime=0)[:15], "cannot be read"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_manifests_say_where(tmp_path: Path, name: str):
    data, says = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BuildError, match=says) as caught:
        listed(tmp_path / name, columns=OPTIONAL_LABEL)
    assert "\n" not in str(caught.value)


def test_an_input_without_an_image_is_an_error(tmp_path: Path):
    with pytest.raises(BuildError, match="no such file or folder"):
        identify(str(tmp_path / "none"))
    with pytest.raises(BuildError, match=r"no image found: there is no file in it$"):
        listed(tmp_path)
    (tmp_path / "a.txt.orig").touch()
    with pytest.raises(BuildError, match=r"1 file was skipped by name: 1 \.orig; --include"):
        listed(tmp_path)
    with pytest.raises(BuildError, match=r"no image found: no file matches$"):
        listed(tmp_path / "*.jpg")
    (tmp_path / "below").mkdir()
    for name in ("1.mp4", "2.MP4", "3.tar.gz", "4.csv", "README", ".hidden", "5.mov", "6.mov"):
        (tmp_path / "below" / name).touch()
    with pytest.raises(BuildError) as caught:
        listed(tmp_path)
    assert str(caught.value) == (
        f"--input {tmp_path}: no image found (9 files were skipped by name: 2 .mov, 2 .mp4, "
        "2 other, 1 .csv, 2 more; --include_all takes all files; a manifest or an archive has to "
        "be an --input itself)"
    )


def test_a_pattern_that_is_not_of_manifests_does_not_select_them(tmp_path: Path):
    for name in ("a.csv", "b.csv", "b.parquet"):
        (tmp_path / name).touch()
    for pattern, number in {"b.*": 2, "*": 3}.items():
        what = rf"no image found .{number} files were skipped by name: .*; a manifest has to be an"
        with pytest.raises(BuildError, match=what):
            listed(tmp_path / pattern)
    (tmp_path / "c.orig").touch()
    with pytest.raises(BuildError, match=r"4 files were skipped by name: .*; --include_all"):
        listed(tmp_path / "*")


def test_a_folder_has_no_columns(tree: Path):
    with pytest.raises(BuildError, match="not a manifest and has no column 'label'"):
        listed(tree, columns=Columns(required=("label",)))


def test_long_manifests_come_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listed_rows, "CHUNK_ROWS", 10)
    (tmp_path / "m.txt").write_text("".join(f"{i}.jpg\n" for i in range(25)))
    assert [len(refs) for refs in batches(tmp_path / "m.txt")] == [10, 10, 5]


def test_values_of_a_csv_may_hold_anything(tmp_path: Path):
    (tmp_path / "m.csv").write_text('uri,label\n"a, ""b"".jpg","x\ny"\n\n c.jpg,007\nNULL,NA\n')
    (refs,) = batches(tmp_path / "m.csv", columns=OPTIONAL_LABEL)
    assert [uri.rpartition("/")[2] for uri in refs.uris] == ['a, "b".jpg', " c.jpg", "NULL"]
    assert texts_of(refs.text_column("label")) == ["x\ny", "007", "NA"]
