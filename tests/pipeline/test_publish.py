"""Versions, and the pointer that is never half of one."""

import fcntl
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import LOCAL, Command
from helpers import every_file, write_images

from imageshards.pipeline import publish as module
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.publish import publish, state_of, versions
from imageshards.pipeline.run import run
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, 2, 4)
    return folder


def built(images: Path, output: Path, **options: str) -> Path:
    run(
        BuildOptions.of(input=(str(images),), output=str(output), **options),
        LOCAL,
        show_progress=False,
    )
    return output


@pytest.fixture(scope="module")
def version(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(images, tmp_path_factory.mktemp("version") / "x", name="x")


@pytest.fixture
def base(tmp_path: Path, version: Path) -> Path:
    """Five complete data sets, none of them published."""
    for day in range(1, 6):
        shutil.copytree(version, tmp_path / f"base/2026-11-0{day}")
    return tmp_path / "base"


def names(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_the_pointer_names_the_version(base: Path):
    done = publish(str(base / "2026-11-01"), fingerprint="f")
    assert (done.latest, done.records, done.rejects, done.splits) == (
        "2026-11-01",
        8,
        0,
        {"train": 8},
    )
    pointer = json.loads((base / "latest").read_text())
    assert pointer["uri"] == str(base / "2026-11-01")
    assert pointer["report"] == str(base / "2026-11-01/metadata/report.html")
    before = every_file(base)
    assert publish(str(base / "2026-11-01")) == done  # the fingerprint is known by now
    assert every_file(base) == before


def test_a_reader_never_sees_half_a_pointer(base: Path):
    publish(str(base / "2026-11-01"))
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add((base / "latest").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        publish(str(base / "2026-11-02"))
        publish(str(base / "2026-11-01"), rollback=True)
    stop.set()
    reader.join()
    assert {json.loads(text)["version"] for text in seen} == {"2026-11-01", "2026-11-02"}
    assert names(base)[-1] == "latest", "and nothing is left beside it"


def test_an_interrupted_publish_keeps_the_old_pointer(base: Path, monkeypatch: pytest.MonkeyPatch):
    publish(str(base / "2026-11-01"), keep_versions=1)
    replace = os.replace

    def broken(source: str, target: str) -> None:
        if target.endswith("latest"):
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(BuildError, match="disk full"):
        publish(str(base / "2026-11-02"), keep_versions=1)
    assert json.loads((base / "latest").read_text())["version"] == "2026-11-01"
    assert (base / "2026-11-01/dataset_info.json").exists(), "deleted before the switch"


def test_an_earlier_version_does_not_move_the_pointer_back(base: Path):
    publish(str(base / "2026-11-03"))
    done = publish(str(base / "2026-11-02"))
    assert done.latest == "2026-11-03"
    assert "a later version than 2026-11-02 (--rollback replaces it)" in str(done)
    assert versions(str(base)) == ["2026-11-02", "2026-11-03"]
    assert publish(str(base / "2026-11-02"), rollback=True).latest == "2026-11-02"


def test_old_versions_are_deleted_and_nothing_else(base: Path, tmp_path: Path):
    for day in (1, 2, 3):
        publish(str(base / f"2026-11-0{day}"))
    # None of these is a published version of this base.
    (base / "notes").mkdir()
    (base / "notes/metadata").mkdir()
    (base / "0000-00-00").symlink_to(base / "2026-11-01")
    elsewhere = tmp_path / "elsewhere"
    (base / "2026-11-04").rename(elsewhere)
    publish(str(elsewhere))
    (base / "0").symlink_to(elsewhere)
    (base / "2026-11-02/mine.txt").write_text("not of the build")
    foreign = every_file(elsewhere)
    done = publish(str(base / "2026-11-05"), keep_versions=2)
    assert done.deleted == ("2026-11-01", "2026-11-02")
    assert names(base) == [
        "0", "0000-00-00", "2026-11-02", "2026-11-03", "2026-11-05", "latest", "notes",
    ]  # fmt: skip
    assert every_file(base / "2026-11-02") == {
        str(base / "2026-11-02/mine.txt"): b"not of the build"
    }
    assert every_file(elsewhere) == foreign
    assert publish(str(base / "2026-11-05"), keep_versions=2).deleted == ()


def test_the_latest_version_and_later_ones_are_kept(base: Path):
    for day in range(1, 6):
        publish(str(base / f"2026-11-0{day}"))
    done = publish(str(base / "2026-11-02"), rollback=True, keep_versions=1)
    assert done.deleted == ("2026-11-01",)
    assert versions(str(base)) == ["2026-11-02", "2026-11-03", "2026-11-04", "2026-11-05"]


def test_an_unpublished_build_is_kept(base: Path):
    publish(str(base / "2026-11-05"), keep_versions=1)
    assert names(base) == [*(f"2026-11-0{day}" for day in range(1, 6)), "latest"]


def test_an_interrupted_deletion_is_continued(base: Path, monkeypatch: pytest.MonkeyPatch):
    publish(str(base / "2026-11-01"))

    def killed(uris: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "clear", lambda layout: killed(os.unlink(layout.dataset_info)))
    with pytest.raises(KeyboardInterrupt):
        publish(str(base / "2026-11-02"), keep_versions=1)
    monkeypatch.undo()
    assert publish(str(base / "2026-11-02"), keep_versions=1).deleted == ("2026-11-01",)
    assert not (base / "2026-11-01").exists()


def test_a_pointer_to_a_missing_version_is_replaced(base: Path):
    for day in (1, 2, 3, 5):
        publish(str(base / f"2026-11-0{day}"))
    shutil.rmtree(base / "2026-11-05")
    done = publish(str(base / "2026-11-03"), keep_versions=1)
    assert (done.latest, done.deleted) == ("2026-11-03", ("2026-11-01", "2026-11-02"))
    assert json.loads((base / "latest").read_text())["version"] == "2026-11-03"
    assert (base / "2026-11-03/dataset_info.json").exists()


def test_the_version_being_published_is_not_deleted(base: Path):
    for day in (3, 4, 5):
        publish(str(base / f"2026-11-0{day}"))
    done = publish(str(base / "2026-11-01"), keep_versions=2)
    assert (done.latest, done.deleted) == ("2026-11-05", ("2026-11-03",))
    assert state_of(str(base / "2026-11-01"), "", "x")[0] == "done"
    done = publish(str(base / "2026-11-02"), keep_versions=2)
    assert done.deleted == ("2026-11-01",), "one published before may go"
    assert state_of(str(base / "2026-11-02"), "", "x")[0] == "done"


def test_other_data_sets_in_the_folder_are_kept(images: Path, tmp_path: Path):
    for name in ("cats", "dogs"):
        for number in (1, 2):
            built(images, tmp_path / f"{name}-{number}")

    def publish_one(version: str, pointer: str = "", keep: int = 1) -> tuple[str, ...]:
        uri = str(tmp_path / pointer) if pointer else ""
        return publish(str(tmp_path / version), pointer=uri, keep_versions=keep).deleted

    assert publish_one("cats-1", "latest-cats") == ()
    assert publish_one("dogs-1", "latest-dogs") == ()
    assert publish_one("dogs-2", "latest-dogs") == ("dogs-1",)
    assert (tmp_path / "cats-1/dataset_info.json").exists()
    before = every_file(tmp_path)
    with pytest.raises(BuildError, match=r"latest-dogs is the pointer of the data set 'dogs_2' "):
        publish_one("cats-2", "latest-dogs")
    # The mark is emptied and not deleted: another publisher may have written to it meanwhile.
    mark = tmp_path / "cats-2/metadata/published.json"
    assert every_file(tmp_path) == {**before, str(mark): b"{}\n"}
    assert publish_one("cats-2", "latest-cats") == ("cats-1",)
    # Of the same inputs, but not of the same data set.
    publish(str(tmp_path / "cats-2"), pointer=str(tmp_path / "latest-cats"), fingerprint="f")
    assert state_of(str(tmp_path / "cats-3"), "f", "cats_3") == ("unchanged", "cats-2")
    assert state_of(str(tmp_path / "dogs-3"), "f", "dogs_3") == ("new", "dogs-3")


def test_a_version_that_another_pointer_names_is_kept(base: Path):
    stable = str(base / "stable")
    for day in (1, 2):
        publish(str(base / f"2026-11-0{day}"))
    publish(str(base / "2026-11-01"), pointer=stable)
    publish(str(base / "2026-11-03"))
    done = publish(str(base / "2026-11-04"), keep_versions=1)
    assert done.deleted == ("2026-11-02", "2026-11-03")
    publish(str(base / "2026-11-04"), pointer=stable)
    assert publish(str(base / "2026-11-05"), keep_versions=2).deleted == ("2026-11-01",)


def test_a_version_whose_publish_was_interrupted_counts_as_new(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    publish(str(base / "2026-11-01"), fingerprint="f")

    def broken(*_: object) -> bool:
        raise BuildError("disk full")

    monkeypatch.setattr(storage, "replace", broken)
    with pytest.raises(BuildError, match="disk full"):
        publish(str(base / "2026-11-02"), fingerprint="g")
    monkeypatch.undo()
    assert state_of(str(base / "2026-11-02"), "g", "x") == ("new", "2026-11-02")
    assert state_of(str(base / "2026-11-03"), "g", "x") == ("new", "2026-11-03")
    assert publish(str(base / "2026-11-02"), fingerprint="g").latest == "2026-11-02"
    assert state_of(str(base / "2026-11-02"), "g", "x") == ("done", "2026-11-02")


def test_the_latest_of_concurrently_published_versions_wins(base: Path):
    days = [str(base / f"2026-11-0{day}") for day in (4, 1, 5, 2, 3)]
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda day: publish(day, keep_versions=1), days))
    assert json.loads((base / "latest").read_text())["version"] == "2026-11-05"
    assert (base / "2026-11-05/dataset_info.json").exists()


def test_a_version_that_was_deleted_while_it_waited_is_not_published(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    for day in (1, 2):
        publish(str(base / f"2026-11-0{day}"))
    flock = fcntl.flock

    def wait(*arguments: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        publish(str(base / "2026-11-02"), keep_versions=1)
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", wait)
    with pytest.raises(BuildError, match="no complete data set there"):
        publish(str(base / "2026-11-01"))
    assert not (base / "2026-11-01").exists()


def test_without_locks_a_pointer_that_was_replaced_meanwhile_is_read_again(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_locks(*_: object) -> None:
        raise OSError("no locks")

    def meanwhile(*arguments: object) -> bool:
        if not str(arguments[0]).endswith("latest"):
            return replace(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(storage, "replace", replace)
        publish(str(base / "2026-11-02"), keep_versions=1)
        return replace(*arguments)  # type: ignore[arg-type]

    replace = storage.replace
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(storage, "replace", meanwhile)
    assert publish(str(base / "2026-11-01"), keep_versions=1).latest == "2026-11-02"
    assert json.loads((base / "latest").read_text())["version"] == "2026-11-02"


def test_a_pointer_that_others_keep_replacing_is_an_error(
    base: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage, "replace", lambda *_: False)
    with pytest.raises(BuildError, match="run the command again"):
        publish(str(base / "2026-11-01"))
    assert state_of(str(base / "2026-11-01"), "", "x")[0] == "new"


def test_a_version_being_rebuilt_is_neither_counted_nor_deleted(
    base: Path, images: Path, command: Command
):
    for day in (1, 2, 3):
        publish(str(base / f"2026-11-0{day}"))
    anew = ["--input", images, "--output", base / "2026-11-01", "--seed=1", "--overwrite"]
    assert command("build", *anew)[0] == 0
    (base / "2026-11-02/dataset_info.json").unlink()
    before = every_file(base / "2026-11-01"), every_file(base / "2026-11-02")
    assert publish(str(base / "2026-11-04"), keep_versions=2).deleted == ()
    assert (every_file(base / "2026-11-01"), every_file(base / "2026-11-02")) == before
    assert publish(str(base / "2026-11-05"), keep_versions=2).deleted == ("2026-11-03",)


def test_numbers_in_names_are_compared_as_numbers(base: Path):
    (base / "2026-11-01").rename(base / "v9")
    (base / "2026-11-02").rename(base / "v10")
    publish(str(base / "v9"))
    assert publish(str(base / "v10")).latest == "v10"
    assert versions(str(base)) == ["v9", "v10"]


def test_the_state_of_a_version_follows_from_its_fingerprint(base: Path):
    day = [str(base / f"2026-11-0{number}") for number in range(6)]
    assert state_of(day[1], "f", "x") == ("new", "2026-11-01")
    publish(day[1], fingerprint="f")
    assert state_of(day[1], "f", "x") == ("done", "2026-11-01")
    assert state_of(day[1], "g", "x") == ("changed", "2026-11-01")
    assert state_of(day[2], "f", "x") == ("unchanged", "2026-11-01")
    assert state_of(day[2], "g", "x") == ("new", "2026-11-02")
    publish(day[4], fingerprint="g")
    # Of an earlier date counts what there was before it, and not what came later.
    assert state_of(day[2], "f", "x") == ("unchanged", "2026-11-01")
    assert state_of(day[3], "g", "x") == ("new", "2026-11-03")
    assert state_of(day[5], "g", "x") == ("unchanged", "2026-11-04")


def test_a_rebuilt_version_is_not_published(base: Path, images: Path, command: Command):
    output = base / "2026-11-01"
    publish(str(output), fingerprint="f")
    anew = ["--input", images, "--output", output, "--seed=1", "--overwrite"]
    assert command("build", *anew)[0] == 0
    assert state_of(str(output), "f", "x") == ("new", "2026-11-01")


@pytest.mark.parametrize("broken", ["missing", "incomplete", "damaged"])
def test_an_incomplete_data_set_is_not_published(base: Path, broken: str):
    publish(str(base / "2026-11-01"))
    output = base / "2026-11-02"
    if broken == "missing":
        output = base / "2026-12-01"
    elif broken == "incomplete":
        (output / "dataset_info.json").unlink()
    else:
        (output / "metadata/build.json").write_text("{")
    before = every_file(base)
    with pytest.raises(BuildError, match=r"complete|cannot be read"):
        publish(str(output))
    assert every_file(base) == before


def test_a_file_of_another_kind_is_refused_as_pointer(base: Path):
    (base / "latest").write_text("2026-11-01\n")
    with pytest.raises(BuildError, match="not a pointer file"):
        publish(str(base / "2026-11-01"))
    assert (base / "latest").read_text() == "2026-11-01\n"
    with pytest.raises(BuildError, match="not a pointer file"):
        publish(str(base / "2026-11-01"), pointer=str(base / "2026-11-02"))
    done = publish(str(base / "2026-11-01"), pointer=str(base / "current.json"))
    assert done.pointer == str(base / "current.json")


def test_the_command(base: Path, command: Command):
    code, out, _ = command("publish", base / "2026-11-01", f"--fingerprint={'f' * 64}")
    assert code == 0
    assert out.splitlines()[0] == f"{base}/latest -> 2026-11-01"
    code, out, _ = command("publish", f"{base}/2026-11-02/", "--keep_versions=1", "--json")
    assert json.loads(out)["deleted"] == ["2026-11-01"]
    assert json.loads(out)["version"] == "2026-11-02"
    assert command("publish", base / "2026-11-02", "--keep_versions=-1")[0] == 2
    code, _, err = command("publish", base)
    assert (code, err.count("\n")) == (2, 1)
