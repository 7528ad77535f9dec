"""Images that are there twice: taken once, or told loudly when they are in two splits."""

import bisect
import io
import json
import pickle
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from conftest import Build, Command
from helpers import build_json, image_bytes, names, rejects, write_images
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from references import batch_of

from imageshards.pipeline.job.failures import JobError
from imageshards.transforms import dedupe
from imageshards.transforms.images.digests import image_digest
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.shards import leaked

SPLITS = "train=0.5,test=0.5"


def with_comment(data: bytes) -> bytes:
    """The same JPEG with a comment and an EXIF block."""
    exif = b"\xff\xe1\x00\x10Exif\0\0II*\0\x08\0\0\0"
    return data[:2] + exif + b"\xff\xfe\x00\x06note" + data[2:]


def recoded(data: bytes, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """40 images, of which 20 are there again with other metadata and in another folder."""
    folder = tmp_path / "in"
    write_images(folder, 2, 20)
    (folder / "copies").mkdir()
    for number in range(20):
        data = (folder / f"class00/{number:04d}.jpg").read_bytes()
        (folder / f"copies/{number:04d}.jpg").write_bytes(with_comment(data))
    return folder


def torn_apart(out: Path) -> set[str]:
    """Names of the images that are in train under one name and in test under the other."""
    found = {
        split: {name.rpartition("/")[2] for name in names(out, split) if "class01" not in name}
        for split in ("train", "test")
    }
    return found["train"] & found["test"]


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_a_leak_is_reported(build: Build, twice: Path, tmp_path: Path, writer: str):
    out = tmp_path / "out"
    summary = build(twice, splits=SPLITS, num_shards="3", base_uri=str(twice), writer=writer)
    both = torn_apart(out)
    assert 0 < len(both) < 20
    assert summary.leaks == build_json(out)["counts"]["leaks"] == len(both)
    assert f"LEAK: {len(both)} images are in more than one split" in str(summary)
    lines = [json.loads(line) for line in (out / "metadata/leaks.jsonl").read_text().splitlines()]
    assert {line["images"][0]["filename"].rpartition("/")[2] for line in lines} == both
    assert all({i["split"] for i in line["images"]} == {"train", "test"} for line in lines)
    assert f'"leaks":{{"total":{len(both)},' in (out / "metadata/report.html").read_text()


def test_a_damaged_shard_of_an_earlier_run_is_named(build: Build, twice: Path, tmp_path: Path):
    same = {"splits": SPLITS, "num_shards": "1", "base_uri": str(twice)}
    build(twice, **same)
    shard = tmp_path / "out/train-00000-of-00001.tfrecord"
    whole = shard.read_bytes()
    shard.write_bytes(bytes(len(whole)))
    with pytest.raises(JobError, match=rf"{shard}: .*: delete this file, and run the same"):
        build(twice, **same)
    shard.unlink()
    build(twice, **same)
    assert shard.read_bytes() == whole


def test_no_leak_is_reported_if_there_is_none(build: Build, photos: Path, tmp_path: Path):
    summary = build(photos, splits=SPLITS, num_shards="3", base_uri=str(photos))
    assert summary.leaks == 0
    assert "LEAK" not in str(summary)
    assert (tmp_path / "out/metadata/leaks.jsonl").read_text() == ""


def test_equal_images_within_a_split_are_no_leak(build: Build, twice: Path, tmp_path: Path):
    assert build(twice, num_shards="3").leaks == 0
    assert not (tmp_path / "out/metadata/leaks.jsonl").exists()


def test_dedupe_keeps_one_of_each_set_of_equal_images(build: Build, twice: Path, tmp_path: Path):
    first = (twice / "class01/0000.jpg").read_bytes()
    (twice / "class01/as.png").write_bytes(recoded(first, "PNG"))
    (twice / "class01/as.bmp").write_bytes(recoded(first, "BMP"))
    (twice / "class01/as.webp").write_bytes(recoded(first, "WEBP", lossless=True))
    (twice / "class01/other.png").write_bytes(recoded(image_bytes(999), "PNG"))
    (twice / "class01/broken.jpg").write_bytes(first[:300])
    summary = build(
        twice, splits=SPLITS, num_shards="2", dedupe="pixels", base_uri=str(twice),
        max_reject_fraction=0.02,
    )  # fmt: skip
    out = tmp_path / "out"
    assert (summary.records, summary.rejects, summary.leaks) == (41, 24, 0)
    lines = {line["uri"].removeprefix(f"{twice}/"): line for line in rejects(out)}
    assert lines.pop("class01/broken.jpg")["error"] == "Truncated"
    assert {line["error"] for line in lines.values()} == {"DuplicatePixels"}
    kept = set(names(out))
    for line in lines.values():
        assert line["reason"].split(",")[0].removeprefix("the same pixels as ") in kept
    copies = [line for name, line in lines.items() if "class01" not in name]
    assert all("whose label is" in line["reason"] for line in copies)
    same = {f"class01/{name}" for name in ("0000.jpg", "as.png", "as.bmp", "as.webp")}
    assert len(same & kept) == 1


def test_pixels_are_compared_before_they_are_resized(build: Build, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    data = image_bytes(1, size=(90, 60))
    (folder / "a.jpg").write_bytes(data)
    (folder / "b.png").write_bytes(recoded(data, "PNG"))
    (folder / "c.jpg").write_bytes(image_bytes(2, size=(90, 60)))
    summary = build(folder, num_shards="1", dedupe="pixels", resize="short:30")
    assert (summary.records, summary.rejects) == (2, 1)


def test_images_that_differ_in_more_than_colours_are_not_equal(build: Build, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        deep = rng.integers(0, 255, (16, 16)).astype(np.uint16)
        Image.fromarray(deep).save(folder / f"deep{number}.png")
        clear = rng.integers(0, 255, (16, 16, 4)).astype(np.uint8)
        clear[..., 3] = 0
        Image.fromarray(clear).save(folder / f"clear{number}.png")
        frames = [Image.new("RGB", (8, 8), colour) for colour in ((9, 9, 9), (number, 0, 0))]
        frames[0].save(folder / f"{number}.gif", save_all=True, append_images=frames[1:])
    build(folder, num_shards="1", dedupe="pixels", multi_frame="all")
    assert len(names(tmp_path / "out")) == 9


def test_the_image_that_is_kept_is_not_rejected(build: Build, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        data = image_bytes(number, "PNG")
        (folder / f"{number}.png").write_bytes(data)
        (folder / f"{number}.webp").write_bytes(recoded(data, "WEBP", lossless=True))
    build(folder, num_shards="1", dedupe="pixels", convert="never", max_reject_fraction=0.6)
    assert len(names(tmp_path / "out")) == 6
    assert {line["error"] for line in rejects(tmp_path / "out")} == {"Unsupported"}


def test_different_bitmaps_with_equal_margins_are_no_leak(build: Build, tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        picture = Image.new("RGB", (200, 200), "white")
        picture.paste(Image.open(io.BytesIO(image_bytes(number))), (60, 20))
        picture.save(folder / f"{number}.bmp")
    assert build(folder, num_shards="1", splits=SPLITS).leaks == 0


def test_a_changed_image_does_not_make_another_build(build: Build, twice: Path):
    options = {"num_shards": "2", "dedupe": "pixels", "base_uri": str(twice)}
    first = build(twice, **options)
    (twice / "copies/0003.jpg").write_bytes(image_bytes(777))
    summary = build(twice, **options)
    assert summary.records == first.records + 1


def test_the_image_that_is_kept_does_not_depend_on_the_order_of_arrival(
    build: Build, twice: Path, tmp_path: Path
):
    found = []
    folders = [twice / "copies", twice / "class00", twice / "class01"]
    for number, order in enumerate((folders, folders[::-1])):
        out = tmp_path / f"out{number}"
        build(
            *order, splits=SPLITS, num_shards="2", dedupe="pixels", output=out, base_uri=str(twice)
        )
        found.append(names(out))
    assert len(found[0]) == 40
    assert found[0] == found[1]


def test_an_image_named_twice_stays_a_duplicate(build: Build, photos: Path):
    place = photos / "class00"
    summary = build(place, photos / "class00/0000.jpg", num_shards="1", dedupe="pixels")
    assert (summary.records, summary.duplicates, summary.rejects) == (20, 1, 0)


def test_an_unknown_dedupe_is_refused(command: Command, photos: Path):
    code, _, errors = command("build", f"--input={photos}", "--output=x", "--dedupe=bytes")
    assert (code, errors) == (2, "imageshards: invalid --dedupe 'bytes': expected none or pixels\n")


def test_digests_ignore_the_metadata_of_jpegs():
    data = image_bytes(1, size=(640, 480))
    assert image_digest(with_comment(data)) == image_digest(data)
    large = recoded(image_bytes(2, size=(900, 700)), "BMP")
    assert len(large) > 1_000_000
    assert image_digest(large) != image_digest(large[:-1] + b"\0" + large[-1:])
    different = {image_digest(image_bytes(number)) for number in range(300)}
    assert len(different) == 300
    for odd in (b"", b"\xff\xd8", b"\xff\xd8\xff\xe1", b"\xff\xd8\xff\xe0\0\0" * 9, b"x" * 5000):
        assert len(image_digest(odd)) == 8


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=2, max_size=9),
    st.integers(0, 4),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_leaks_are_found_in_any_number_of_parts_and_tables(
    values: list[list[int]], bits: int, shards_per_table: int, random: Random
):
    first_shards = [0, len(values) // 3, len(values) // 2]
    spread = [[value * 0x9E3779B97F4A7C15 % 2**64 for value in shard] for shard in values]
    want: dict[int, list[tuple[int, int]]] = {}
    for shard, digests in enumerate(spread):
        for row, digest in enumerate(digests):
            want.setdefault(digest, []).append((shard, row))
    split_of = [bisect.bisect_right(first_shards, shard) for shard in range(len(values))]
    for digest, places in list(want.items()):
        if len({split_of[shard] for shard, _ in places}) < 2:
            del want[digest]
    parts: dict[int, list[bytes]] = {}
    shards = list(range(len(values)))
    random.shuffle(shards)
    for at in range(0, len(shards), shards_per_table):
        tables = [
            leaked.positions(b"".join(v.to_bytes(8, "little") for v in spread[shard]), shard)
            for shard in shards[at : at + shards_per_table]
        ]
        for part, table in leaked.cut(leaked.compact(tables, first_shards), bits):
            parts.setdefault(part, []).append(table.tobytes())
    found = leaked.Leaks()
    for tables in parts.values():
        found = found.merged(leaked.find_leaks(tables, first_shards))
    assert found.count == len(want)
    listed = {
        digest: [leaked.position_of(number) for number in numbers]
        for digest, numbers in found.listed
    }
    for digest, places in want.items():
        of_split = [[p for p in places if split_of[p[0]] == split] for split in (1, 2, 3)]
        assert listed[digest] == [p for some in of_split for p in some[: leaked.RECORDS_LISTED]]


def test_an_image_that_is_repeated_without_end_takes_no_memory():
    tables = [leaked.positions(bytes(8) * 50_000, shard) for shard in range(4)]
    assert len(leaked.compact(tables, [0, 2])) == 2 * leaked.RECORDS_LISTED


def test_tables_of_one_image_are_compared_without_holding_them(monkeypatch: pytest.MonkeyPatch):
    """A group of the shuffle holds 20 records of each bundle: millions, of one image."""
    monkeypatch.setattr(leaked, "RECORDS_PER_PART", 1000)
    real, sizes = leaked.compact, []

    def measured(tables: Iterable[np.ndarray], first_shards: Sequence[int]) -> np.ndarray:
        tables = list(tables)
        sizes.append(sum(map(len, tables)))
        return real(tables, first_shards)

    monkeypatch.setattr(leaked, "compact", measured)
    tables = (leaked.positions(bytes(8) * 20, shard).tobytes() for shard in range(10_000))
    found = leaked.find_leaks(tables, [0, 5000])
    assert max(sizes) <= 1000 + 20 + 2 * leaked.RECORDS_LISTED
    assert sum(sizes) > 200_000
    assert found.count == 1
    [(_, places)] = found.listed
    each = range(leaked.RECORDS_LISTED)
    want = [(shard, row) for shard in (0, 5000) for row in each]
    assert [leaked.position_of(place) for place in places] == want


class Group:
    """A group of the shuffle, whose batches a runner reads from its disk each time."""

    def __init__(self, batches: int, rows: int) -> None:
        self.packed = []
        for number in range(batches):
            uris = [f"/d/cat/{number * rows + row}.jpg" for row in range(rows)]
            batch = batch_of(uris).with_pixels([b"the same pixels!"] * rows)
            self.packed.append(pickle.dumps(batch))
        self.alive: weakref.WeakSet[Batch] = weakref.WeakSet()
        self.most = 0

    def __iter__(self) -> Iterator[RefBatch]:
        for data in self.packed:
            batch = Batch.unpack(*pickle.loads(data).packed())
            self.alive.add(batch)
            self.most = max(self.most, len(self.alive))
            yield batch


class Batch(RefBatch):
    """A batch that weak references can count."""

    __slots__ = ("__weakref__",)


def test_copies_of_one_image_are_marked_without_holding_them(monkeypatch: pytest.MonkeyPatch):
    """All references with the same pixels are in one group: millions, of one image."""
    monkeypatch.setattr(dedupe, "_HELD_BYTES", 10_000)
    group = Group(batches=100, rows=50)
    marked = kept = most = 0
    for _, batch in dedupe._mark((0, group)):
        marked += len(batch.problems)
        kept += len(batch) - len(batch.problems)
        most = max(most, len(batch))
    assert (kept, marked) == (1, 4999)
    assert group.most <= 3
    assert most < 1000
