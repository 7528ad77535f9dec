"""Builds that take some of the images."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import Build, Command
from helpers import build_json, image_bytes, names

from imageshards.transforms.elements import UsageError


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
    with pytest.raises(UsageError, match="--per_class requires labels"):
        build(uneven, per_class=5, labels="none")
