"""What shards report is merged in any order, in parts, and written piece by piece."""

import json
from collections import UserList
from pathlib import Path
from random import Random

import pytest
from conftest import Build
from helpers import contents, write_images
from hypothesis import given
from hypothesis import strategies as st

from imageshards.pipeline import finish
from imageshards.pipeline.job.failures import JobError
from imageshards.transforms.elements import RejectReport, ShardId, ShardReport
from imageshards.transforms.references.plan import Plan, SplitPlan
from imageshards.transforms.shards import facts, layout
from imageshards.transforms.shards.layout import Layout, json_pieces, to_json
from imageshards.transforms.shards.state import ShardResult
from imageshards.transforms.shards.totals import Totals


def plan_of(train: int, test: int) -> Plan:
    splits = {"train": SplitPlan(9 * train, train, 0, {}), "test": SplitPlan(9 * test, test, 0, {})}
    return Plan(splits, (), {}, 9 * (train + test), 0, 0, (), "digest")


def result_of(plan: Plan, split: str, index: int) -> ShardResult:
    shard = plan.shard(split, index)
    side = 20 + index % 7
    report = ShardReport(
        shard, 8, 1000 + index, index, {index % 5: 8}, {"jpeg": 8}, {32: 8}, (20, 20), (side, 40)
    )
    rejects = RejectReport(split, f"{split}-{index:05d}", {"Truncated": 1}) if index % 3 else None
    return ShardResult(report, rejects)


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_reports_are_summed_in_any_order(random: Random, bundle: int):
    plan = plan_of(train=600, test=30)
    results = [
        result_of(plan, name, index)
        for name, split in plan.splits.items()
        for index in range(split.num_shards)
    ]
    random.shuffle(results)
    grouped: dict[facts.Key, list[object]] = {}
    for begin in range(0, len(results), bundle):
        collector = facts.Collector(plan)
        for result in results[begin : begin + bundle]:
            assert not list(collector.add(result))
        for key, value in collector.flush():
            grouped.setdefault(key, []).append(value)
    totals = Totals.of(
        facts.merge(key, values, Layout("/none"))
        for key, values in grouped.items()
        if key[0] == "totals"
    )
    assert len([key for key in grouped if key[0] == "totals"]) <= 3
    for name, split in plan.splits.items():
        rows = totals.rows(name)
        assert rows["index"].tolist() == list(range(split.num_shards))
        assert rows["bytes"].tolist() == [1000 + index for index in range(split.num_shards)]
        assert totals.of_split(name).records == 8 * split.num_shards
    assert totals.all_splits.values()["labels"] == dict.fromkeys(range(5), 8 * 126)
    assert totals.errors.total() == sum(bool(result.rejects) for result in results)


def test_the_end_of_a_build_receives_few_sums_of_a_million_shards():
    plan = plan_of(train=1_000_000, test=0)
    keys = set()
    for index in range(0, 1_000_000, 500):
        collector = facts.Collector(plan)
        assert not list(collector.add(result_of(plan, "train", index)))
        keys |= {key for key, _ in collector.flush() if key[0] == "totals"}
    assert 64 <= len(keys) <= 256  # enough for many workers


@pytest.mark.slow
def test_the_rejects_of_many_shards_are_joined_by_several_workers(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_images(tmp_path / "in", 2, 20)
    for number in range(0, 20, 2):
        (tmp_path / f"in/class01/{number:04d}.jpg").write_bytes(b"\xff\xd8 cut off")
    options = {"splits": "train=0.5,test=0.5", "num_shards": "5", "max_reject_fraction": 0.5}
    build(tmp_path / "in", output=tmp_path / "one", **options)
    joined = []
    concatenate = facts.concatenate

    def spy(*arguments: object) -> None:
        joined.append(arguments[2])
        concatenate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(facts, "concatenate", spy)
    for module in (facts, layout):
        monkeypatch.setattr(module, "SHARDS_PER_MERGE", 2)
    build(tmp_path / "in", output=tmp_path / "many", name="many", **options)
    rejects = [tmp_path / name / "metadata/rejects.jsonl" for name in ("one", "many")]
    assert rejects[0].read_bytes() == rejects[1].read_bytes()
    assert len(rejects[0].read_text().splitlines()) == 10
    assert len(joined) >= 2
    assert not list((tmp_path / "many").rglob("*joined*"))
    # A runner may run each step again, also the last one after it has completed the data set.
    twice = ["--runner=FnApiRunner", "--direct_runner_bundle_repeat=2"]
    build(tmp_path / "in", output=tmp_path / "twice", name="many", beam=twice, **options)
    assert contents(tmp_path / "twice") == contents(tmp_path / "many")


@pytest.fixture
def joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Options of a build whose rejects are joined, and a folder with many of these."""
    for module in (facts, layout):
        monkeypatch.setattr(module, "SHARDS_PER_MERGE", 2)
    write_images(tmp_path / "in", 2, 20)
    for number in range(20):
        path = tmp_path / f"in/class01/{number:04d}.jpg"
        path.rename(path.with_suffix(".good"))
        path.write_bytes(b"\xff\xd8 cut off")
    return {"num_shards": "5", "max_reject_fraction": 0.5, "name": "x"}


def test_joined_rejects_of_a_failed_build_are_deleted(
    build: Build, tmp_path: Path, joining: dict[str, object]
):
    with pytest.raises(JobError, match="20 of 40 images"):
        build(tmp_path / "in", **{**joining, "max_reject_fraction": 0.1})
    assert list((tmp_path / "out").rglob("*joined*"))
    for path in (tmp_path / "in/class01").glob("*.good"):
        path.replace(path.with_suffix(".jpg"))
    for output in ("out", "fresh"):
        build(tmp_path / "in", output=tmp_path / output, **joining)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_another_run_that_deletes_joined_rejects_is_named(
    build: Build, tmp_path: Path, joining: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    def meanwhile(*_: object) -> None:
        for path in (tmp_path / "out").rglob("*joined*"):
            path.unlink()

    monkeypatch.setattr(finish, "check_counts", meanwhile)
    with pytest.raises(JobError, match=r"joined\.rejects\.jsonl: deleted .* another build"):
        build(tmp_path / "in", **joining)
    assert not (tmp_path / "out/dataset_info.json").exists()
    assert not (tmp_path / "out/metadata/shards/failure.json").exists()


def test_json_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch):
    rows = [{"name": f"a\n{number}", "list": [1, {}], "text": "'\"é"} for number in range(9)]
    value = {"a": 1, "b": {"c": [], "d": [1, [2]]}, "rows": rows, "none": None, "text": "x\ny"}
    for size in (1, 5, 1 << 14):
        monkeypatch.setattr(layout, "_PIECES", size)
        pieces = list(json_pieces({**value, "rows": UserList(rows), "e": UserList([])}))
        assert b"".join(pieces) == to_json({**value, "e": []})
        assert len(pieces) > 1 or size > 100
    assert json.loads(b"".join(pieces))["rows"] == rows


def test_a_position_names_a_shard():
    plan = plan_of(train=3, test=2)
    assert plan.first_shards == {"train": 0, "test": 3}
    assert plan.shard("test", 1) == ShardId("test", 1, 2)
