"""Builds that take some of the images."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter
from pathlib import Path

import gcs_server
import pytest
from conftest import Build, Command
from helpers import build_json, image_bytes, imageshards, names, records

from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.elements import BuildError, UsageError


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes: 60 big, 20 mid, 3 small."""
    folder = tmp_path_factory.mktemp("uneven")
    for label, count in {"big": 60, "mid": 20, "small": 3}.items():
        (folder / label).mkdir()
        for number in range(count):
            (folder / label / f"{number}.jpg").write_bytes(image_bytes(number))
    return folder


def by_class(out: Path, split: str = "*") -> dict[str, int]:
    return dict(Counter(name.split("/")[-2] for name in names(out, split)))


def test_per_class_draws_from_each_class_whatever_the_order_of_the_inputs(
    build: Build, command: Command, uneven: Path, tmp_path: Path
):
    inputs = [str(uneven / label) for label in ("big", "mid", "small")]
    found = []
    for number, sources in enumerate((inputs, inputs[::-1])):
        out = tmp_path / str(number)
        summary = build(*sources, output=out, base_uri=str(uneven), per_class=5, num_shards="2")
        assert by_class(out) == {"big": 5, "mid": 5, "small": 3}
        assert summary.left_out == {"--per_class": 70}
        assert "70 left out by --per_class" in str(summary)
        found.append(names(out))
    assert found[0] == found[1]
    build(*inputs, output=tmp_path / "2", base_uri=str(uneven), per_class=5, seed=1)
    assert set(names(tmp_path / "2")) != set(found[0])
    counts = build_json(tmp_path / "0")["counts"]
    assert counts["records"] + counts["rejects"] + 70 == counts["inputs"] == 83
    assert "70 inputs" in (tmp_path / "0/DATASET_CARD.md").read_text()
    code, text, _ = command("verify", tmp_path / "0", "--json")
    assert (code, json.loads(text)["problems"]) == (0, [])


def test_a_limit_is_for_all_splits_and_a_dry_run_shows_it(
    build: Build, command: Command, uneven: Path, tmp_path: Path
):
    options = {"limit": 30, "splits": "train=0.5,test=0.5", "per_class": 50}
    code, text, _ = command(
        "build", f"--input={uneven}", f"--output={tmp_path / 'out'}", "--dry_run", "--json",
        *(f"--{name}={value}" for name, value in options.items()),
    )  # fmt: skip
    summary = build(uneven, **options)
    assert summary.records == 30
    assert summary.left_out == {"--per_class and --limit": 53}
    planned = json.loads(text)
    assert code == 0
    assert planned["left_out"] == summary.left_out
    assert {name: split["images"] for name, split in planned["splits"].items()} == {
        name: records for name, (records, _) in summary.splits.items()
    }
    found = by_class(tmp_path / "out")
    assert abs(found["big"] - 30 * 50 / 73) < 1
    assert abs(found["mid"] - 30 * 20 / 73) < 1


def test_per_class_without_labels_is_an_error(build: Build, uneven: Path):
    for labels in ("none", "column:age:float"):
        says = f"--per_class requires classes: omit --labels {labels}"
        with pytest.raises(UsageError, match=says):
            build(uneven, per_class=5, labels=labels)


def test_stratified_splits_have_their_share_of_each_class(
    build: Build, uneven: Path, tmp_path: Path
):
    summary = build(uneven, splits="train=0.8,test=0.2", stratify=True, per_class=30)
    assert summary.splits["train"][0] + summary.splits["test"][0] == 30 + 20 + 3
    assert summary.left_out == {"--per_class": 30}
    train = by_class(tmp_path / "out", "train")
    assert (train["big"], train["mid"]) == (24, 16)
    assert train["small"] in (2, 3)


@pytest.mark.parametrize("writer", ["shard", pytest.param("beam", marks=pytest.mark.slow)])
def test_splits_by_count_are_exact(build: Build, uneven: Path, tmp_path: Path, writer: str):
    options = {"splits": "train=40,test=10", "stratify": True, "num_shards": "2"}
    summary = build(uneven, writer=writer, **options)
    assert summary.splits == {"train": (40, 2), "test": (10, 2)}
    assert summary.left_out == {"--splits": 33}
    found = by_class(tmp_path / "out", "train")
    assert all(abs(found[label] - 40 * n / 83) < 1 for label, n in (("big", 60), ("mid", 20)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"splits": "train=80,test=20"}, "write train=0.8,test=0.2, or add --limit 100"),
        ({"splits": "train=8,test=2", "per_class": 5}, "requires --stratify"),
        ({"splits": "train=8,test=2", "limit": 9}, "--limit 9 is less than the 10 images of"),
        ({"splits": "folder", "stratify": True}, "--stratify requires splits by ratio or by count"),
        ({"splits": "train=0.5,test=0.5", "stratify": True, "group_by": "dirname"},
         "--stratify cannot be combined with --group_by"),
        ({"splits": "train=8,test=2", "group_by": "dirname"}, "--group_by requires"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    build: Build, uneven: Path, options: dict[str, object], says: str
):
    with pytest.raises(UsageError, match=says):
        build(uneven, **options)


def test_too_few_images_for_the_counts_are_an_error(build: Build, uneven: Path):
    with pytest.raises(JobError, match="there are 83 images for 84: require fewer"):
        build(uneven, splits="train=80,test=4")


@pytest.fixture
def table(uneven: Path, tmp_path: Path) -> Path:
    """A manifest with columns: every third image is 100 wide, and one is in an unknown split."""
    path = tmp_path / "list.csv"
    images = sorted(uneven.rglob("*.jpg"))
    rows = [
        f"{image},{100 if number % 3 else 300},{'bad' if number == 0 else 'train'},"
        for number, image in enumerate(images)
    ]
    path.write_text("\n".join(["uri,width,split,note", *rows]))
    return path


def test_where_selects_rows_before_anything_else_looks_at_them(
    build: Build, command: Command, table: Path, tmp_path: Path
):
    summary = build(
        table, where="width >= 256 and split != 'bad'", features_from=("width:int",), limit=20
    )
    assert summary.records == 20
    assert summary.left_out == {"--limit": 7, "--where": 56}
    assert {record.first("width") for record in records(tmp_path / "out")} == {300}
    code, _, _ = command("verify", tmp_path / "out")
    assert code == 0
    with pytest.raises(JobError, match="no image is left: 83 are left out by --where"):
        build(table, where="note == 'x'", output=tmp_path / "none")


def test_where_comes_before_annotations_and_exclude_after_them(
    build: Build, uneven: Path, table: Path, tmp_path: Path
):
    names_of = [str(image.relative_to(uneven)) for image in sorted(uneven.rglob("*.jpg"))]
    images = [{"id": n, "file_name": name} for n, name in enumerate(names_of)]
    boxes = [
        {"id": n + 1, "image_id": n, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25}
        for n in range(len(images))
        if n != 3  # one of the 27 selected images has none
    ]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]}
    (tmp_path / "coco.json").write_text(json.dumps(content))
    (tmp_path / "bad.txt").write_text(str(uneven / names_of[6]))
    options = {"annotations": (str(tmp_path / "coco.json"),), "num_shards": "1"}
    where = "width >= 256 and split != 'bad'"
    summary = build(table, where=where, exclude=(str(tmp_path / "bad.txt"),), **options)
    assert summary.records == 26
    assert summary.left_out == {"--exclude": 1, "--where": 56}
    assert summary.unmatched == (56, 56)
    assert "56 annotated images not among the inputs that --where selects" in str(summary)
    assert build_json(tmp_path / "out")["counts"]["inputs"] == 83
    # Image 4, big/12.jpg, is left out. small/1.jpg has the base name of big/1.jpg, too.
    for number, says in (
        (4, "none of its 1 image is among the inputs that --where selects, such as 'big/12.jpg'"),
        (
            1,
            "1 of its images are in other folders than the inputs. They may be images that --where",
        ),
    ):
        few = {"images": [images[number]], "annotations": [{**boxes[0], "image_id": number}]}
        (tmp_path / "coco.json").write_text(json.dumps(content | few))
        with pytest.raises(JobError, match=says):
            build(table, where=where, output=tmp_path / "none", **options)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("widht > 3", "no column 'widht' (of --where); its columns are: uri, width, split, note"),
        ("height > 3", "no column 'height' (of --where; it reads columns, not images: --min_size"),
        ("width = 3", "invalid --where 'width = 3': write == instead of ="),
    ],
)
def test_mistakes_in_where_are_reported_before_the_build(
    command: Command, table: Path, tmp_path: Path, where: str, says: str
):
    code, _, errors = command(
        "build", f"--input={table}", f"--output={tmp_path / 'out'}", f"--where={where}"
    )
    assert code in (1, 2)
    assert says in errors
    assert errors.count("\n") == 1


def test_a_folder_has_no_columns(build: Build, uneven: Path):
    with pytest.raises(BuildError, match=r"has no column 'width' \(of --where; it reads columns"):
        build(uneven, where="width > 3")


@pytest.mark.slow
def test_excluded_images_are_left_out_of_every_kind_of_input(
    build: Build, command: Command, uneven: Path, tmp_path: Path
):
    with tarfile.open(tmp_path / "mid.tar", "w") as archive:
        archive.add(uneven / "mid", "mid")
    manifest = tmp_path / "small.csv"
    manifest.write_text("uri\n" + "".join(f"{uneven}/small/{n}.jpg\n" for n in range(3)))
    # By its name below the input, and by URIs: a file, a member, and a row.
    lines = ["3.jpg", f"{uneven}/big/4.jpg", f"{tmp_path}/mid.tar/mid/5.jpg", "none.jpg"]
    lists = tmp_path / "first.txt", tmp_path / "second.txt"
    lists[0].write_text("\n".join(lines))
    lists[1].write_text(f"{uneven}/small/1.jpg")
    sources = (uneven / "big", tmp_path / "mid.tar", manifest)
    summary = build(*sources, exclude=tuple(map(str, lists)), per_class=30)
    assert summary.left_out == {"--exclude": 4, "--per_class": 28}
    found = names(tmp_path / "out")
    assert len(found) == 30 + 19 + 2
    assert not {"3.jpg", "4.jpg", "mid/5.jpg", f"{uneven}/small/1.jpg"} & {*found}
    note = "1 of 5 lines of --exclude names no image of --input: 'none.jpg'"
    assert note in summary.notes
    assert note in build_json(tmp_path / "out")["notes"]
    code, _, _ = command("verify", tmp_path / "out")
    assert code == 0
    # The content of the lists decides, and not their names.
    lists[1].rename(tmp_path / "third.txt")
    again = build(*sources, exclude=(str(lists[0]), str(tmp_path / "third.txt")), per_class=30)
    assert again.resumed == again.shards
    lists[0].write_text("3.jpg\n")
    with pytest.raises(JobError, match="with other inputs"):
        build(*sources, exclude=(str(lists[0]),), per_class=30)


def test_a_missing_list_is_an_error_before_the_build(build: Build, uneven: Path):
    with pytest.raises(BuildError, match=r"--exclude nowhere\.txt: no such file"):
        build(uneven, exclude=("nowhere.txt",))


@pytest.mark.slow
def test_lists_and_images_may_be_in_a_bucket(uneven: Path, tmp_path: Path):
    with gcs_server.running() as server:
        server.put_folder(uneven, "photos")
        server.put("lists/bad.txt.gz", gzip.compress(b"gs://bucket/photos/big/1.jpg\nmid/2.jpg\n"))
        done = imageshards(
            "build", "--input=gs://bucket/photos", "--output", tmp_path / "out",
            "--exclude=gs://bucket/lists/bad.txt.gz", "--limit=40", "--json", **server.environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["left_out"] == {"--exclude": 2, "--limit": 41}
    found = names(tmp_path / "out")
    assert len(found) == 40
    assert not {"big/1.jpg", "mid/2.jpg"} & {*found}
