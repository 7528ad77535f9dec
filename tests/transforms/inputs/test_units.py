"""The parts of an input hold its references, each once, in whatever order they are listed."""

import gzip
import json
import random
import re
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import gcs_faults
import gcs_server
import pyarrow as pa
import pytest
from conftest import Build
from gcs_faults import Fault
from gcs_server import GcsServer
from helpers import contents, image_bytes, shards
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.job.preflight import prepare
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.transforms.elements import BuildError
from imageshards.transforms.inputs import files, spans, tables
from imageshards.transforms.inputs.kind import (
    InputKind,
    ListingOptions,
    WorkUnit,
    list_references,
    list_unit,
)
from imageshards.transforms.inputs.manifests import Manifest
from imageshards.transforms.inputs.sources import identify
from imageshards.transforms.records import example
from imageshards.transforms.records.schemas import Feature, Schema
from imageshards.transforms.records.tfrecord import frame
from imageshards.transforms.references.annotate import Columns
from imageshards.transforms.storage import parallel_list

SPLITS = "train=0.7,test=0.3"
LABEL = Columns(optional=("label",))
THREADS = ["--runner=FnApiRunner", "--direct_running_mode=multi_threading"]
THREADS.append("--direct_num_workers=2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with gcs_server.running() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are divided too."""
    monkeypatch.setattr(spans, "_PART_BYTES", 64)
    monkeypatch.setattr(spans, "_PART_ROWS", 20)
    monkeypatch.setattr(files, "_FEW_ENTRIES", 3)
    monkeypatch.setattr(files, "_FEWEST_FOLDERS", 2)
    monkeypatch.setattr(files, "_MOST_ENTRIES", 9)
    monkeypatch.setattr(parallel_list, "PAGE_ITEMS", 5)
    monkeypatch.setattr(parallel_list, "FEW_PAGES", 2)


def tar_folder(folder: Path, target: Path, mode: str = "w") -> Path:
    with tarfile.open(target, mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, arcname=".")
    return target


Row = tuple[object, ...]


def rows_of(listed: Iterator[object]) -> Iterator[Row]:
    for found in listed:
        refs = found.refs  # type: ignore[attr-defined]
        labels = refs.text_column("label")
        yield from zip(
            refs.uris, refs.names, refs.sizes.tolist(), refs.stamps.tolist(), refs.ranges,
            labels.to_pylist() if labels is not None else [None] * len(refs), strict=True,
        )  # fmt: skip


def whole(source: InputKind, options: ListingOptions) -> list[Row]:
    return sorted(rows_of(list_references(WorkUnit(source), options)), key=repr)


def in_parts(source: InputKind, seed: int, options: ListingOptions) -> tuple[list[Row], list[int]]:
    """The references, and the number of units of each step."""
    rng = random.Random(seed)
    divide = ListingOptions(**{**vars(options), "divide": True})
    units, rows = [WorkUnit(source)], []
    steps = []
    for _ in range(source.divisions(options)):
        steps.append(len(units))
        rng.shuffle(units)
        further: list[WorkUnit] = []
        for unit in units:
            for found in list_unit(unit, divide):
                if isinstance(found, WorkUnit):
                    further.append(found)
                else:
                    rows += rows_of(iter([found]))
        units = further
    rng.shuffle(units)
    for unit in units:
        rows += rows_of(list_references(unit, options))
    return sorted(rows, key=repr), [*steps, len(units)]


def make_table(path: Path, count: int = 100) -> Path:
    """A manifest in the format that the name says; quoted values hold commas and line breaks."""
    rows = [(f"a/{n}.jpg", 'x, "y"\nz' if n % 7 == 0 else f"c{n % 3}") for n in range(count)]
    if path.suffix == ".parquet":
        uris, labels = zip(*rows, strict=True)
        parquet.write_table(pa.table({"uri": uris, "label": labels}), path, row_group_size=9)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"uri": u, "label": v}) + "\n" for u, v in rows))
    elif path.suffix == ".txt":
        path.write_text("\n".join(uri for uri, _ in rows))
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        lines = [f"uri{comma}label"]
        lines += [f'{u}{comma}"{v.replace(chr(34), chr(34) * 2)}"' for u, v in rows]
        path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n")
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "tsv", "txt"])
def test_parts_of_a_table_hold_its_rows(tmp_path: Path, small: None, suffix: str):
    source = identify(str(make_table(tmp_path / f"list.{suffix}")))
    options = ListingOptions(columns=LABEL)
    expected = whole(source, options)
    assert len(expected) == 100
    for seed in range(3):
        found, steps = in_parts(source, seed, options)
        assert found == expected
        assert steps[0] == 1
        assert steps[1] >= 4


def test_parts_of_a_folder_hold_its_files(tmp_path: Path, small: None):
    for folder in ("", "a/", "a/b/c/d/", "e/.hidden/", "e/f/", "g/h/", "g/i/", "g/i/j/"):
        for name in ("1.jpg", "2.png", ".3.jpg", "4.csv"):
            path = tmp_path / "in" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1")
    # A part knows the folders above it: this link leads to one of them.
    (tmp_path / "in/g/i/loop").symlink_to(tmp_path / "in/g")
    source = identify(str(tmp_path / "in"))
    expected = whole(source, ListingOptions())
    assert len(expected) == 14
    found, steps = in_parts(source, 0, ListingOptions())
    assert found == expected
    assert steps[1] > 1
    assert steps[2] > 1


def test_parts_of_a_prefix_hold_its_objects(server: GcsServer, small: None):
    for number in range(150):
        server.put(f"p/{number % 17}/{number}.jpg", b"1")
    for uri in ("gs://bucket/p", "gs://bucket/p/1*/*.jpg"):
        source = identify(uri)
        expected = whole(source, ListingOptions())
        found, steps = in_parts(source, 0, ListingOptions())
        assert found == expected
        assert steps[1] > 10


def test_each_file_of_a_pattern_is_a_unit(tmp_path: Path, photos: Path, small: None):
    for name in ("a.tar", "b.tar", "c.tar.gz"):
        tar_folder(photos / "class00", tmp_path / name, "w:gz" if name.endswith("gz") else "w")
    (tmp_path / "one.tar.jpg").write_bytes(image_bytes(1))
    source = identify(f"{tmp_path}/*.t*")
    options = ListingOptions(scratch=str(tmp_path / "scratch"))
    found, steps = in_parts(source, 0, options)
    assert len(found) == 61
    assert steps == [1, 3]
    assert found == whole(source, options)


# ------------------------------------------------------------------------------- any CSV

ROWS = ["a,b\n", '"a\nb",c\r\n', '"x""y","\r\n,"\n', "\n", '"",""\n', '"a"b,"\n\n"\n', "\ufeff,c\n"]
PIECES = ["a", '"', '""', ",", "\n", "\r", '"a\nb"', '"",', "\ufeff"]
CSV = st.lists(st.one_of(*map(st.just, ROWS), st.sampled_from(PIECES)), max_size=30)


def values(span: spans.Span) -> list[tuple[object, ...]]:
    _, chunks = tables.open_table(span, ["uri", "label"])
    return [row for rows in chunks for row in zip(*rows.columns.values(), strict=True)]


@given(CSV, st.integers(1, 30), st.integers(1, 9), st.sampled_from([b"", b"\xef\xbb\xbf"]))
@settings(max_examples=300)
def test_a_divided_csv_file_has_the_rows_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], step: int, piece: int, mark: bytes
):
    data = mark + b"uri,label\n" + "".join(cells).encode()
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(data)
    pieces = [data[:20], *(data[at : at + piece] for at in range(20, len(data), piece))]
    try:
        head, *starts = spans.row_starts(pieces, b",", step)
    except spans.NotDivisible:
        return
    everything = spans.Span(Manifest(str(path), str(path)), len(data), path.stat().st_mtime_ns)
    parts = spans._parts(everything, head, starts)
    try:
        expected = values(everything)
    except BuildError:
        with pytest.raises(BuildError):
            [values(part) for part in parts]
        return
    assert [row for part in parts for row in values(part)] == expected


def test_a_csv_file_with_a_quote_inside_a_value_is_not_divided(
    tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture
):
    rows = "".join(f'{number}.jpg,5" disk\n' for number in range(50))
    (tmp_path / "m.csv").write_text(f"uri,label\n{rows}")
    with caplog.at_level("INFO", spans.__name__):
        found, steps = in_parts(identify(f"{tmp_path}/m.csv"), 0, ListingOptions(columns=LABEL))
    assert len(found) == 50
    assert steps == [1, 0]
    assert "m.csv: listed by one worker, because a value that is not quoted" in caplog.text


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("m.csv", b",x\n", "m.csv:31: no value in the column 'uri'"),
        ("m.csv", b"\xff,x\n", "m.csv:31: not UTF-8"),
        ("m.csv", b"only\n", "m.csv:31: 1 value, but the header has 2"),
        ("m.csv", b"a\0.jpg,x\n", "m.csv:31: the URI 'a\\x00.jpg' has a NUL"),
        ("m.jsonl", b"no json\n", "m.jsonl:31: not JSON"),
        ("m.jsonl", b'{"uri": "a", "uri": "b"}\n', "m.jsonl:31: an object has the key 'uri'"),
        ("m.jsonl", b'{"uri": "a", "label": 1, "new": 2}\n{}\n', "m.jsonl:32: no value in"),
        ("m.txt", b"\xff\n", "m.txt:31: not UTF-8"),
    ],
)
def test_an_error_in_a_part_names_the_line_of_the_file(
    tmp_path: Path, small: None, name: str, row: bytes, message: str
):
    good = {"m.csv": b"a%d.jpg,x\n", "m.jsonl": b'{"uri": "a%d.jpg", "label": "x"}\n'}
    lines = [good.get(name, b"a%d.jpg\n") % number for number in range(60)]
    lines[:0] = [b"uri,label\n"] if name == "m.csv" else []
    lines[30:30] = [row]
    (tmp_path / name).write_bytes(b"".join(lines))
    with pytest.raises(BuildError, match=re.escape(message)):
        in_parts(identify(f"{tmp_path}/{name}"), 0, ListingOptions(columns=LABEL))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "marked"])
@pytest.mark.parametrize("blank", [b"\n", b"\r\n\n", b" \n", b"\t\r\n \n", "\u00a0\n".encode()])
@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.jsonl", "m.txt"])
def test_no_row_is_lost_after_blank_first_lines(
    tmp_path: Path, small: None, name: str, blank: bytes, mark: bytes
):
    row = {"m.jsonl": b'{"uri": "%d.jpg"}\n'}.get(name, b"%d.jpg\n")
    head = b"uri\n" if name in ("m.csv", "m.tsv") else b""
    rows = b"".join(row % number for number in range(60))
    (tmp_path / name).write_bytes(mark + blank + head + rows)
    source = identify(f"{tmp_path}/{name}")
    if head and blank.strip(b"\r\n"):  # white space is the name of a column
        for read in (whole, lambda *given: in_parts(given[0], 0, given[1])):
            with pytest.raises(BuildError, match="column"):
                read(source, ListingOptions())
        return
    found, steps = in_parts(source, 0, ListingOptions())
    assert len(found) == 60
    assert found == whole(source, ListingOptions())
    assert steps[1] > 3


@pytest.mark.parametrize("name", ["m.csv.gz", "m.jsonl.gz", "m.txt.gz"])
def test_a_row_of_any_length_is_an_error_in_bounded_memory(tmp_path: Path, name: str):
    begin = {"m.csv.gz": b"uri\na\n", "m.jsonl.gz": b'{"uri": "a"}\n"', "m.txt.gz": b"a\n"}[name]
    (tmp_path / name).write_bytes(gzip.compress(begin + b"x" * (128 << 20), 1))
    tracemalloc.start()
    with pytest.raises(BuildError, match=rf"{name}:[23]: a row of more than 4,194,304 charac"):
        whole(identify(f"{tmp_path}/{name}"), ListingOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_two_columns_with_one_name_are_an_error(tmp_path: Path, suffix: str):
    path = tmp_path / f"list.{suffix}"
    if suffix == "parquet":
        columns = [["/a.jpg"], ["x"], ["y"], ["z"]]
        parquet.write_table(pa.table(columns, names=["uri", "label", "label", "uri2"]), path)
    else:
        comma = "\t" if suffix == "tsv" else ","
        path.write_text("uri,label,label\n/a.jpg,x,y\n".replace(",", comma))
    with pytest.raises(BuildError, match=rf"{path}: 2 columns have the name 'label': rename"):
        whole(identify(str(path)), ListingOptions(columns=LABEL))
    assert len(whole(identify(str(path)), ListingOptions())) == 1  # which does not need it


def test_json_that_is_nested_too_deeply_is_an_error(tmp_path: Path):
    path = tmp_path / "list.jsonl"
    path.write_text(
        '{"uri": "/a.jpg"}\n{"uri": "/b.jpg", "x": ' + "[" * 10**5 + "]" * 10**5 + "}\n"
    )
    with pytest.raises(BuildError, match=rf"{path}:2: not JSON: maximum recursion depth"):
        whole(identify(str(path)), ListingOptions())


# ------------------------------------------------------------------------------- builds


@pytest.mark.slow
def test_divided_inputs_give_the_bytes_of_whole_ones(
    build: Build, server: GcsServer, photos: Path, tmp_path: Path, small: None
):
    server.put_folder(photos, "photos")
    for number in range(4):
        tar_folder(photos / f"class0{number}", tmp_path / f"{number}.tar")
        server.put(f"tars/{number}.tar", (tmp_path / f"{number}.tar").read_bytes())

    rows = [f"{path},{path.parent.name}\n" for path in sorted(photos.rglob("*.jpg"))]
    for number in range(3):
        path = tmp_path / f"list-{number}.csv"
        path.write_text("uri,label\n" + "".join(rows[number::3]))
    cases = {
        "prefix": ("gs://bucket/photos", 120),
        "tars": ("gs://bucket/tars/*.tar", 80),
        "folder": (photos, 120),
        "manifests": (f"{tmp_path}/list-*.csv", 120),
    }
    for name, (source, images) in cases.items():
        outputs = []
        for runner in (["--runner=FnApiRunner"], THREADS):
            out = tmp_path / f"{name}-{len(runner)}"
            summary = build(
                source, output=out, name="x", beam=runner, splits=SPLITS, num_shards="2"
            )
            assert (summary.records, summary.rejects) == (images, 0)
            outputs.append(contents(out))
        assert outputs[0] == outputs[1], name


def test_a_pattern_of_manifests_is_the_manifests(build: Build, photos: Path, tmp_path: Path):
    rows = [f"{path}\n" for path in sorted(photos.rglob("*.jpg"))]
    for number in range(3):
        (tmp_path / f"list-{number}.csv").write_text("uri\n" + "".join(rows[number::3]))
    each = [tmp_path / f"list-{number}.csv" for number in range(3)]
    build(*each, output=tmp_path / "each", name="x")
    build(f"{tmp_path}/list-*.csv", output=tmp_path / "pattern", name="x")
    expected = [path.read_bytes() for path in shards(tmp_path / "each")]
    assert [path.read_bytes() for path in shards(tmp_path / "pattern")] == expected


@pytest.mark.slow
def test_a_divided_input_without_an_image_is_an_error(build: Build, server: GcsServer, small: None):
    for number in range(60):
        server.put(f"notes/{number}.csv", b"1")
    for runner in (["--runner=FnApiRunner"], THREADS):
        with pytest.raises(
            JobError, match=r"gs://bucket/notes: no image found \(60 files were skip"
        ):
            build("gs://bucket/notes", beam=runner)


@pytest.mark.slow
def test_a_text_table_in_a_bucket_takes_few_requests(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
):
    server.put("list.txt", b"a" * 99 + b"\n" + b"%099d\n" % 0 * 99_999)
    monkeypatch.setattr(spans, "_PART_BYTES", 4 << 20)
    source = identify("gs://bucket/list.txt")
    assert len(whole(source, ListingOptions())) == 100_000
    assert server.requests.total() == 3
    found, steps = in_parts(source, 0, ListingOptions())
    assert len(found) == 100_000
    assert steps == [1, 3]
    # The size, a byte that shows whether ranges can be read, and for each part its bounds and rows.
    assert server.requests.total() <= 3 + 2 + 3 * 4


@pytest.mark.parametrize("source", ["p", "p/*.jpg", "p/**", "p/x*"])
def test_the_launching_machine_makes_few_requests(server: GcsServer, tmp_path: Path, source: str):
    for number in range(5000):
        server.put(f"p/{number}.jpg", b"1")
    output = str(tmp_path / "out")
    prepare(BuildOptions.of(input=(f"gs://bucket/{source}",), output=output))
    assert server.requests.total() <= 4


def test_the_launching_machine_looks_into_few_of_many_inputs(server: GcsServer, tmp_path: Path):
    for number in range(500):
        server.put(f"p/{number}/1.jpg", b"1")
    inputs = tuple(f"gs://bucket/p/{number}/*.jpg" for number in range(500))
    prepare(BuildOptions.of(input=inputs, output=str(tmp_path / "out")))
    assert server.requests.total() <= 4


@pytest.mark.parametrize("as_pattern", [False, True])
def test_the_launching_machine_reads_few_of_many_record_files(
    server: GcsServer, tmp_path: Path, as_pattern: bool
):
    features = (
        Feature("image/encoded", "bytes", "image/encoded", "Text"),
        Feature("n", "int64", "n", "Scalar"),
    )
    values = {"image/encoded": b"1", "n": 3}
    data = b"".join(frame([b"".join(example.encode(Schema("any", features), values))]))
    for number in range(300):
        server.put(f"p/{number:03}.tfrecord", data)
    inputs = tuple(f"gs://bucket/p/{number:03}.tfrecord" for number in range(300))
    if as_pattern:
        inputs = ("gs://bucket/p/{000..299}.tfrecord",)
    server.delay = 0.005
    spec, _ = prepare(BuildOptions.of(input=inputs, output=str(tmp_path / "out")))
    assert spec.options.records.features_from == ("n:int",)
    files = {request for request in server.log if "tfrecord" in request}
    assert len(files) == (1 if as_pattern else 60)
    assert server.requests.total() <= 2 * len(files)
    assert as_pattern or server.most_at_a_time > 4


@pytest.mark.slow
def test_a_unit_that_fails_is_listed_again_and_no_other_one(
    build: Build, server: GcsServer, photos: Path, tmp_path: Path
):
    build(photos / "class00", output=tmp_path / "records", num_shards="1", name="x")
    (records,) = shards(tmp_path / "records")
    for number in range(6):
        server.put(f"in/{number}.tfrecord", records.read_bytes())

    def requests(out: str, *faults: Fault) -> list[int]:
        server.log.clear()
        with server.failing(*faults):
            build("gs://bucket/in/*.tfrecord", output=tmp_path / out, name="x", beam=THREADS)
        return [server.matching(rf"GET /bucket/in%2F{number}\.tfrecord") for number in range(6)]

    before = requests("a")
    # The first request succeeds, with bytes that differ from the object's checksum.
    fault = Fault(gcs_faults.corrupt, r"GET /bucket/in%2F3\.tfrecord$", times=1)
    after = requests("b", fault)
    assert server.failed == 1
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    more = [later - earlier for earlier, later in zip(before, after, strict=True)]
    assert more[3] > 0
    assert not any(more[:3] + more[4:])
