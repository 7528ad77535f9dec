"""What a build shows while it runs, and its summary."""

import json
from pathlib import Path

import pytest
from conftest import Build
from helpers import write_images

from imageshards.pipeline.job.progress import Observer, Progress, State, duration, rate
from imageshards.transforms import storage
from imageshards.transforms.shards.layout import Layout

SHARD = "train-00000-of-00004.tfrecord"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A build that has listed 10 images for 4 shards."""
    layout = Layout(str(tmp_path))
    layout.make_folders()
    plan = {"splits": {"train": {"images": 10, "shards": 4, "bytes": 1000}}}
    layout.write(layout.plan, json.dumps(plan).encode())
    return layout


def finish_shard(layout: Layout, size: int, rejects: dict[str, int] | None = None) -> None:
    state = {"report": {"bytes": size}, "rejects": {"errors": rejects} if rejects else None}
    (Path(layout.state) / f"{SHARD}.json").write_text(json.dumps(state))


def test_progress_is_computed_from_the_files(layout: Layout):
    observer = Observer(layout, 0)
    assert observer.look() == State(0, 4, 0, 10)
    finish_shard(layout, 240)
    assert observer.look() == State(1, 4, 3, 10, bytes=240)
    growing = Path(layout.state) / f"train-00001-of-00004.tfrecord.abc{storage.TEMP_SUFFIX}"
    growing.write_bytes(bytes(125))
    assert observer.look() == State(1, 4, 4, 10, bytes=365)
    finish_shard(layout, 99, {"Corrupt": 2, "TooSmall": 1})  # another run writes the shard again
    assert observer.look() == State(1, 4, 4, 10, bytes=224, rejects=3)


def test_a_build_lists_until_its_plan_is_written(tmp_path: Path, layout: Layout):
    assert Observer(Layout(str(tmp_path / "none")), 0).look() is None
    assert Observer(layout, storage.stat(layout.plan)[1]).look() is None


def test_a_line_of_progress_has_counts_rates_and_the_time_left(layout: Layout):
    progress = Progress(layout)
    assert list(progress._facts(None, with_shards=True)) == []
    progress._first = (-1e9, State(0, 4, 0, 2000))  # a billion seconds ago: nothing per second
    state = State(1, 4, 1500, 2000, bytes=5, rejects=1)
    facts = list(progress._facts(state, with_shards=True))
    assert facts[:3] == ["1,500 of 2,000 images (0.0/s, 0.0 MB/s)", "1 of 4 shards", "1 reject"]
    assert facts[3].endswith(" left")
    assert "shard" not in " ".join(progress._facts(state, with_shards=False))


def test_references_are_counted_while_they_are_listed(build: Build, photos: Path, tmp_path: Path):
    progress = Progress(Layout(str(tmp_path / "out")))
    build(photos)
    assert list(progress._facts(None, with_shards=True)) == ["120 images found"]


def test_images_are_counted_while_their_pixels_are_compared(
    build: Build, photos: Path, tmp_path: Path
):
    progress = Progress(Layout(str(tmp_path / "out")))
    build(photos, dedupe="pixels")
    assert list(progress._facts(None, with_shards=True)) == ["pixels of 120 of 120 images compared"]
    assert progress._step(None) == "comparing pixels"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min"), (75, "1 min 15 s"), (3599.6, "1 h"), (7260, "2 h 1 min")],
)
def test_times_are_for_people(seconds: float, text: str):
    assert duration(seconds) == text


def test_small_rates_have_a_decimal():
    assert (rate(0.25), rate(9.94), rate(1234.5)) == ("0.2", "9.9", "1,234")


def test_the_rate_of_the_summary_leaves_the_start_out(build: Build, photos: Path):
    summary = build(photos)
    assert summary.startup_seconds is not None
    assert 0 <= summary.startup_seconds < summary.seconds
    assert f"({summary.startup_seconds:.1f} s to start); " in str(summary)
    assert json.loads(summary.to_json())["startup_seconds"] == round(summary.startup_seconds, 3)


def test_one_of_each_is_singular(build: Build, tmp_path: Path):
    write_images(tmp_path / "in", 1, 1)
    (tmp_path / "in/class00/bad.jpg").write_bytes(b"bad")
    (tmp_path / "in/class00/a.txt").write_text("a")
    text = str(build(tmp_path / "in", max_reject_fraction=0.9))
    assert "  1 image in 1 shard, " in text
    assert "  1 reject (1 NotAnImage; metadata/rejects.jsonl), 0 duplicates, 1 file skipped" in text
    assert "  1 class by folder" in text
