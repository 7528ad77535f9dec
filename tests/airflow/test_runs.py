"""Runs of the DAG with dag.test(), real images and the local runner."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from nights import PYTHON, Run, data, data_set, splits, write_dag

OPTIONS = {
    "splits": "train=0.7,test=0.3", "num_shards": 2, "labels_from": "dirname",
    "max_reject_fraction": 0.1, "enlarge": False, "class_names": None,
}  # fmt: skip
DAYS = ("2026-11-01", "2026-11-02", "2026-11-03")


def arguments(folder: Path, **more: object) -> str:
    values = {
        "input": f"{folder}/in/{{date}}", "since": DAYS[0], "output": f"{folder}/out/{{date}}",
        "name": folder.name, "options": OPTIONS, **more,
    }  # fmt: skip
    return ", ".join(f"{name}={value!r}" for name, value in values.items()) + (
        ", retry_delay=timedelta(seconds=1)"
    )


def arrive(folder: Path, day: int) -> None:
    """Writes the images of a day: 40."""
    data("images", folder / "in" / DAYS[day], day * 1000, 40)


def pointer(folder: Path) -> dict[str, object]:
    return json.loads((folder / "out/latest").read_text())


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_three_nights_build_growing_data_sets(tmp_path: Path, run: Callable[..., Run]):
    """The input grows each night. One run is repeated, one has no new image, all are backfilled."""
    dag = write_dag("three_nights", arguments(tmp_path))
    arrive(tmp_path, 0)
    (tmp_path / "in" / DAYS[0] / "class0/broken.jpg").write_bytes(b"no image")
    first = run(dag, date=DAYS[0])
    assert first.states == {
        "check": "success", "build": "success", "build_flex_template": "skipped",
        "verify": "success", "publish": "success",
    }  # fmt: skip
    output = tmp_path / "out" / DAYS[0]
    assert pointer(tmp_path)["uri"] == str(output)
    assert {name.partition("/")[0] for name in splits(output)} == {DAYS[0]}
    # The task's log.
    assert "40 images in 4 shards" in first.log
    assert "1 reject (1 NotAnImage; metadata/rejects.jsonl)" in first.log
    assert "3 classes by folder" in first.log
    for task in ("verify", "publish"):
        assert first.xcom(task, "rejects") == 1
        assert first.xcom(task, "report") == str(output / "metadata/report.html")
    assert Path(first.xcom("verify", "report")).exists()
    # The event for DAGs that wait for the asset.
    event = first.asset_event()
    assert event is not None
    assert (event["uri"], event["records"], event["rejects"]) == (str(output), 40, 1)
    assert event["splits"] == {
        "train": event["splits"]["train"],
        "test": 40 - event["splits"]["train"],
    }
    assert event["report"] == str(output / "metadata/report.html")

    before = stamps(tmp_path / "out")
    again = run(dag, date=DAYS[0])
    assert set(again.states.values()) == {"skipped"}
    assert "nothing to do: 2026-11-01 is published" in again.log
    assert again.asset_event() is None
    assert stamps(tmp_path / "out") == before

    # A night without new images.
    idle = run(dag, date=DAYS[1])
    assert set(idle.states.values()) == {"skipped"}
    assert "nothing to do: 2026-11-01 has the same inputs" in idle.log
    assert stamps(tmp_path / "out") == before

    # The two following nights.
    for day in (1, 2):
        arrive(tmp_path, day)
        assert run(dag, date=DAYS[day]).state == "success"
    nights = [splits(tmp_path / "out" / day) for day in DAYS]
    assert [len(night) for night in nights] == [40, 80, 120]
    for earlier, later in ((0, 1), (1, 2)):
        assert {uri: nights[later][uri] for uri in nights[earlier]} == nights[earlier]
    assert set(nights[2].values()) == {"train", "test"}

    # A backfill writes the same data sets, and leaves the pointer at the latest version.
    backfill = write_dag("backfill", arguments(tmp_path, output=f"{tmp_path}/late/{{date}}"))
    for day in reversed(DAYS):
        assert run(backfill, date=day).state == "success"
        assert json.loads((tmp_path / "late/latest").read_text())["version"] == DAYS[2]
    for day in DAYS:
        assert data_set(tmp_path / "late" / day) == data_set(tmp_path / "out" / day)


def test_images_that_arrive_late_fail_the_run_without_overwrite(
    tmp_path: Path, run: Callable[..., Run]
):
    dag = write_dag("late", arguments(tmp_path, since=None, keep_versions=1))
    arrive(tmp_path, 0)
    assert run(dag, date=DAYS[0]).state == "success"
    before = stamps(tmp_path / "out")
    data("images", tmp_path / "in" / DAYS[0], 500, 1)
    late = run(dag, date=DAYS[0])
    assert (late.state, late.tries["check"]) == ("failed", 1), "a retry cannot succeed"
    assert "is published, and its inputs have changed since" in late.error()
    assert stamps(tmp_path / "out") == before
    assert run(dag, date=DAYS[0], overwrite=True).state == "success"
    assert pointer(tmp_path)["records"] == 41
    # The next night: the old version is deleted when the pointer moves.
    arrive(tmp_path, 1)
    assert run(dag, date=DAYS[1]).state == "success"
    assert sorted(os.listdir(tmp_path / "out")) == [DAYS[1], "latest"]


def test_a_night_without_images_fails_or_is_skipped(tmp_path: Path, run: Callable[..., Run]):
    dag = write_dag("empty", arguments(tmp_path, since=None, retries=0))
    typo = run(dag, date=DAYS[0], options={"num_shrads": 4})
    assert "unknown option --num_shrads=4" in typo.error()
    assert "no image found in" in (failed := run(dag, date=DAYS[0])).error()
    assert failed.state == "failed"
    skipped = run(dag, date=DAYS[0], allow_empty=True)
    assert set(skipped.states.values()) == {"skipped"}


KILLER = """#!{python}
import json, os, signal, sys
from pathlib import Path

killed = Path({killed!r})
if sys.argv[3:4] != ["build"] or killed.exists():
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
from imageshards.launch import cli
from imageshards.transforms import storage

open_sink, opened = storage.open_sink, []

def until_the_fifth(uri, scratch):
    if uri.endswith(".tfrecord"):
        opened.append(uri)
    if len(opened) == 5:
        killed.write_text(json.dumps(sorted(path.name for path in Path(uri).parent.iterdir())))
        os.kill(os.getpid(), signal.SIGKILL)
    return open_sink(uri, scratch)

storage.open_sink = until_the_fifth
sys.argv[1:] = sys.argv[3:]  # without -m imageshards.launch.cli
cli.entry()
"""


def test_a_killed_build_is_completed_by_its_retry(tmp_path: Path, run: Callable[..., Run]):
    arrive(tmp_path, 0)
    options = {**OPTIONS, "num_shards": "train=12,test=1", "workers": 1}
    killer = tmp_path / "python"
    killed = tmp_path / "killed"
    killer.write_text(KILLER.format(python=str(PYTHON), killed=str(killed)))
    killer.chmod(0o755)
    dag = write_dag("killed", arguments(tmp_path, options=options, python=str(killer)))
    done = run(dag, date=DAYS[0])
    there = json.loads(killed.read_text())
    assert any(name.endswith(".tfrecord") for name in there)
    assert "dataset_info.json" not in there
    assert (done.state, done.tries["build"]) == ("success", 2)
    assert "shards were complete; the rest in" in done.log
    whole = write_dag(
        "whole", arguments(tmp_path, options=options, output=f"{tmp_path}/whole/{{date}}")
    )
    assert run(whole, date=DAYS[0]).state == "success"
    assert data_set(tmp_path / "out" / DAYS[0]) == data_set(tmp_path / "whole" / DAYS[0])


def test_after_a_failed_build_other_inputs_can_be_built(tmp_path: Path, run: Callable[..., Run]):
    """The failed build leaves shards; then the inputs change."""
    arrive(tmp_path, 0)
    bad = tmp_path / "in" / DAYS[0] / "class0"
    for number in range(10):
        (bad / f"bad{number}.jpg").write_bytes(b"no image")
    dag = write_dag("failing", arguments(tmp_path, retries=0))
    failed = run(dag, date=DAYS[0])
    assert failed.states == {
        "check": "success", "build": "failed", "build_flex_template": "skipped",
        "verify": "upstream_failed", "publish": "upstream_failed",
    }  # fmt: skip
    assert "imageshards: 10 of 50 images (20.0%) were rejected" in failed.error()
    assert not (tmp_path / "out/latest").exists()
    for number in range(10):
        (bad / f"bad{number}.jpg").unlink()
    assert run(dag, date=DAYS[0]).state == "success"
    assert pointer(tmp_path)["records"] == 40


def test_a_damaged_data_set_is_not_published(tmp_path: Path, run: Callable[..., Run]):
    arrive(tmp_path, 0)
    dag = write_dag("damaged", arguments(tmp_path, retries=0))
    damaging = tmp_path / "python"
    damaging.write_text(
        f"#!/bin/sh\ncase \"$*\" in *' verify '*)\n"
        f"  for shard in {tmp_path}/out/*/train-00000*; do printf x >> $shard; done;;\nesac\n"
        f'exec {PYTHON} "$@"\n'
    )
    damaging.chmod(0o755)
    dag = write_dag("damaged", arguments(tmp_path, retries=0, python=str(damaging)))
    failed = run(dag, date=DAYS[0])
    assert (failed.states["verify"], failed.states["publish"]) == ("failed", "upstream_failed")
    assert "train-00000-of-00002.tfrecord" in failed.error()
    assert not (tmp_path / "out/latest").exists()
