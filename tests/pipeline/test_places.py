"""The same images from every kind of input, as whole builds."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import web_server
from conftest import Build
from helpers import build_json, contents, image_bytes, names, records, rejects, shards
from web_server import WebServer, after, endless, redirect, status

from imageshards.pipeline import finish
from imageshards.pipeline.job.failures import JobError
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.storage import web

SPLITS = "train=0.7,test=0.3"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(web, "_FIRST_WAIT_SECONDS", 0.01)
    with web_server.running() as running:
        yield running


def tar_folder(folder: Path, target: Path, mode: str = "w") -> Path:
    with tarfile.open(target, mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, arcname=".")
    return target


def tar_of_tars(folder: Path, target: Path) -> Path:
    """As ImageNet's is: a tar a class, whose members have no folder."""
    with tarfile.open(target, "w") as outer:
        for place in sorted(folder.iterdir()):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for path in sorted(place.iterdir()):
                    tar.add(path, arcname=path.name)
            info = tarfile.TarInfo(f"{place.name}.tar")
            info.size = len(inner.getvalue())
            inner.seek(0)
            outer.addfile(info, inner)
    return target


def zip_folder(folder: Path, target: Path, method: int) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in sorted(folder.rglob("*.jpg")):
            archive.write(path, path.relative_to(folder))
    return target


def payloads(folder: Path) -> list[tuple[str, str]]:
    """(hash of the image, name of its class) of all records, sorted."""
    return sorted(
        (
            hashlib.sha256(record.first("image/encoded")).hexdigest(),
            record.first("image/class/text").decode(),
        )
        for record in records(folder)
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shards(folder)}


@pytest.mark.slow
def test_the_same_images_from_every_kind_of_input_give_equal_shards(
    build: Build, photos: Path, tmp_path: Path, server: WebServer
):
    same = {"num_shards": "2", "splits": SPLITS}
    build(photos, output=tmp_path / "folder", base_uri=str(photos), **same)
    expected = payloads(tmp_path / "folder")
    assert len(expected) == 120

    archives = [
        tar_folder(photos, tmp_path / "a.tar"),
        tar_folder(photos, tmp_path / "a.tar.gz", "w:gz"),
        zip_folder(photos, tmp_path / "stored.zip", zipfile.ZIP_STORED),
        zip_folder(photos, tmp_path / "deflated.zip", zipfile.ZIP_DEFLATED),
    ]
    urls = []
    for path in sorted(photos.rglob("*.jpg")):
        name = path.relative_to(photos)
        server.pages[f"/d/{name}"] = path.read_bytes()
        urls.append(f"{server.url}/d/{name}\n")
    (tmp_path / "urls.txt").write_text("".join(urls))

    # Where the URIs below the base are equal, so are the shards.
    equal = {archive.name: (archive, {"base_uri": str(archive)}) for archive in archives}
    web_options = {"base_uri": f"{server.url}/d", "allow_private_hosts": True}
    equal["web"] = (tmp_path / "urls.txt", web_options)
    equal["records"] = (Path(f"{tmp_path}/folder/*-of-*"), {"name_key": "image/filename"})
    for name, (source, options) in equal.items():
        summary = build(source, output=tmp_path / f"out-{name}", **same, **options)
        assert (summary.records, summary.rejects, summary.duplicates) == (120, 0, 0)
        assert files(tmp_path / f"out-{name}") == files(tmp_path / "folder"), name
    assert server.requests.total() == 120

    others = {
        "tars": tar_of_tars(photos, tmp_path / "tars.tar"),
        "numbered": Path(f"{tmp_path}/folder/train-*"),
    }
    for name, source in others.items():
        build(source, output=tmp_path / f"out-{name}", **same)
    assert payloads(tmp_path / "out-tars") == expected
    kept = {row[0] for row in payloads(tmp_path / "out-numbered")}
    assert kept == {
        hashlib.sha256(record.first("image/encoded")).hexdigest()
        for record in records(tmp_path / "folder", "train")
    }
    assert "class03.tar/0007.jpg" in names(tmp_path / "out-tars")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_archive_is_opened_once_by_each_process(
    build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
):
    path = tar_folder(photos, tmp_path / "a.tar")
    opened = []
    real = os.open

    def count(name: object, *arguments: int, **named: object) -> int:
        if str(name) == str(path):
            opened.append(name)
        return real(name, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", count)
    beam = ["--runner=FnApiRunner"]
    beam += ["--direct_running_mode=multi_threading", "--direct_num_workers=2"] * (workers - 1)
    build(path, num_shards="8", beam=beam)
    assert 1 <= len(opened) <= workers
    assert storage._LOCAL._open.cache_info().currsize == 0
    assert not [
        number for number in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{number}")
        and os.path.realpath(f"/proc/self/fd/{number}") == str(path)
    ]  # fmt: skip


def test_a_changed_archive_is_noticed(build: Build, photos: Path, tmp_path: Path):
    folder = shutil.copytree(photos, tmp_path / "in")
    path = tar_folder(folder, tmp_path / "a.tar")
    build(path, num_shards="4")
    assert build(path, num_shards="4").resumed == 4
    (folder / "class00/0000.jpg").write_bytes(image_bytes(999))
    tar_folder(folder, path)
    assert build(path, num_shards="4").resumed == 0
    assert image_bytes(999) in [r.first("image/encoded") for r in records(tmp_path / "out")]


def unpacked(out: Path) -> list[str]:
    return [name for name in os.listdir(out / "metadata/shards") if name.startswith("unpacked-")]


def test_an_unpacked_tar_is_kept_for_a_resumed_run_and_then_deleted(
    build: Build, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tar_folder(photos, tmp_path / "a.tgz", "w:gz")
    out = tmp_path / "out"

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(finish, "concatenate", killed)
        with pytest.raises(JobError, match="killed"):
            build(path, num_shards="4")
    (name,) = unpacked(out)
    inode = os.stat(out / "metadata/shards" / name).st_ino
    (out / "metadata/shards/unpacked-of-a-killed-run.tar").touch()
    (out / "train-00001-of-00004.tfrecord").unlink()
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(gzip, "GzipFile", killed)  # it is not unpacked again
        real = finish.concatenate

        def look(*arguments: object) -> None:
            seen.extend(unpacked(out))
            assert os.stat(out / "metadata/shards" / name).st_ino == inode
            real(*arguments)  # type: ignore[arg-type]

        patch.setattr(finish, "concatenate", look)
        assert build(path, num_shards="4").resumed == 3
    assert seen == [name]
    assert unpacked(out) == []


def test_a_refused_build_leaves_nothing_unpacked(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="4")
    before = contents(tmp_path / "out")
    with pytest.raises(JobError, match="holds a build with other inputs"):
        build(tar_folder(photos, tmp_path / "a.tgz", "w:gz"), num_shards="4")
    assert contents(tmp_path / "out") == before


def test_many_archives_are_splits_by_name(build: Build, photos: Path, tmp_path: Path):
    for split, first in (("train", 0), ("test", 3)):
        folder = tmp_path / split
        for label in range(first, first + 3):
            shutil.copytree(photos / f"class{label:02d}", folder / f"class{label:02d}")
        tar_folder(folder, tmp_path / f"{split}.tar")
    summary = build(f"{tmp_path}/t*.tar", num_shards="1", splits="folder")
    assert {name: records for name, (records, _) in summary.splits.items()} == {
        "train": 60, "test": 60,
    }  # fmt: skip


@pytest.mark.parametrize("writer", ["shard", "beam"])
def test_bad_members_are_rejects(build: Build, photos: Path, tmp_path: Path, writer: str):
    path = tar_folder(photos, tmp_path / "a.tar")
    with tarfile.open(path, "a") as tar:
        for name in ("../../etc/evil.jpg", "/etc/evil.jpg", "class00/empty.jpg"):
            tar.addfile(tarfile.TarInfo(name))
        for number in range(2):
            info = tarfile.TarInfo(f"class00/last{number}.jpg")
            info.size = 5000
            tar.addfile(info, io.BytesIO(image_bytes(7, size=(60, 60)).ljust(5000, b"\0")))
    with tarfile.open(path) as tar:
        end = tar.getmember("class00/last1.jpg").offset_data + 100
    path.write_bytes(path.read_bytes()[:end])
    options = {"num_shards": "2", "max_reject_fraction": 1.0, "writer": writer}
    with pytest.raises(JobError, match="1 input is truncated, so that"):
        build(path, base_uri=str(path), **{**options, "max_reject_fraction": 0.1})
    summary = build(path, base_uri=str(path), **options)
    assert summary.records == 121
    found = {line["uri"]: line["error"] for line in rejects(tmp_path / "out")}
    assert {uri.removeprefix(f"{path}/"): error for uri, error in found.items()} == {
        "../../etc/evil.jpg": "UnsafeName", "/etc/evil.jpg": "UnsafeName",
        "class00/empty.jpg": "Empty", "class00/last1.jpg": "Lost",
    }  # fmt: skip
    assert len(build_json(tmp_path / "out")["classes"]) == 6


def test_a_reject_without_a_split_of_its_own(build: Build, photos: Path, tmp_path: Path):
    folder = tmp_path / "in"
    for split, label in (("test", 0), ("val", 1)):
        shutil.copytree(photos / f"class{label:02d}", folder / split / f"class{label:02d}")
    path = tar_folder(folder, tmp_path / "a.tar")
    path.write_bytes(path.read_bytes()[:-20_000])
    summary = build(path, num_shards="1", splits="folder", max_reject_fraction=1.0)
    assert set(summary.splits) == {"test", "val"}
    assert summary.rejects >= 1


def test_urls_and_files_are_read_and_failures_are_rejects(
    build: Build, photos: Path, tmp_path: Path, server: WebServer
):
    good = sorted(photos.rglob("*.jpg"))[:6]
    server.pages = {f"/x/{path.name}": path.read_bytes() for path in good}
    server.pages |= {
        "/x/page.jpg": b"<html>not found</html>", "/x/busy.jpg": status(503),
        "/x/loop.jpg": redirect("/x/loop.jpg"), "/x/file.jpg": redirect("file:///etc/hostname"),
    }  # fmt: skip
    rows = [f"{server.url}{path}?q=1" for path in server.pages]
    rows += [f"{server.url}/x/gone.jpg", str(good[0])]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({"uri": uri}) + "\n" for uri in rows))
    summary = build(
        tmp_path / "m.jsonl", num_shards="1", max_reject_fraction=0.9, user_agent="me/1",
        labels="dirname", web_retries=1, allow_private_hosts=True,
    )  # fmt: skip
    assert (summary.records, summary.rejects) == (7, 5)
    found = {line["uri"]: line["error"] for line in rejects(tmp_path / "out")}
    assert {uri.rpartition("/")[2]: error for uri, error in found.items()} == {
        "page.jpg?q=1": "NotAnImage", "busy.jpg?q=1": "HttpError", "gone.jpg": "Missing",
        "loop.jpg?q=1": "TooManyRedirects", "file.jpg?q=1": "HttpError",
    }  # fmt: skip
    assert server.agents == {"me/1"}
    assert server.requests["/x/busy.jpg"] == 2
    assert {r.first("image/class/text") for r in records(tmp_path / "out")} == {b"x", b"class00"}


def test_images_of_private_hosts_are_rejects_and_are_read_once_they_are_allowed(
    build: Build, photos: Path, tmp_path: Path, server: WebServer
):
    good = sorted(photos.rglob("*.jpg"))[:3]
    server.pages["/a.jpg"] = image_bytes(7)
    rows = [*map(str, good), f"{server.url}/a.jpg"]
    (tmp_path / "m.txt").write_text("".join(f"{uri}\n" for uri in rows))
    options = {"num_shards": "1", "labels": "none"}
    with pytest.raises(JobError, match=r"1 PrivateHost, such as .*--allow_private_hosts"):
        build(tmp_path / "m.txt", **options)
    assert server.requests.total() == 0
    summary = build(tmp_path / "m.txt", allow_private_hosts=True, **options)
    assert (summary.records, summary.rejects) == (4, 0)


def test_auto_guesses_the_shards_of_urls_and_notes_it(
    build: Build, tmp_path: Path, server: WebServer
):
    server.pages = {f"/{n}.jpg": image_bytes(n) for n in range(4)}
    (tmp_path / "m.txt").write_text("".join(f"{server.url}{path}\n" for path in server.pages))
    summary = build(tmp_path / "m.txt", labels="none", allow_private_hosts=True)
    assert "1 shard for 400.0 kB of images, assuming 100 kB each" in summary.notes[0]
    assert server.requests.total() == 4


def test_inputs_that_cannot_be_listed_are_errors(build: Build, tmp_path: Path):
    for text, says in [
        ("https://h.org/photos/", "only single images are read from the web"),
        ("https://h.org/a.tar", "download a manifest or an archive"),
        ("https://h.org/m.csv", "download a manifest or an archive"),
    ]:
        with pytest.raises(BuildError, match=says):
            build(text)
    (tmp_path / "a.tar").write_bytes(b"junk" * 1000)
    with pytest.raises(JobError, match=r"a\.tar: not a tar") as caught:
        build(tmp_path / "a.tar")
    assert "\n" not in str(caught.value)


def test_records_of_the_output_itself_are_not_overwritten(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="4")
    before = contents(tmp_path / "out")
    for text in (f"{tmp_path}/out/train-*", f"{tmp_path}/out/train-00000-of-00004.tfrecord"):
        with pytest.raises(UsageError, match=r"^--output .*/out is inside --input .*/out/train-"):
            build(text, num_shards="2", overwrite=True)
    assert contents(tmp_path / "out") == before


def test_a_pipe_is_no_archive(build: Build, tmp_path: Path):
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(JobError, match=r"a\.tar: not a regular file"):
        build(tmp_path / "a.tar")


def test_a_resumed_build_reads_only_failed_urls_again(
    build: Build, photos: Path, tmp_path: Path, server: WebServer
):
    paths = sorted(photos.rglob("*.jpg"))[:8]
    urls = []
    for number, path in enumerate(paths):
        page = path.read_bytes()
        server.pages[f"/c/{number}.jpg"] = after(2, status(503), page) if number % 2 else page
        urls.append(f"{server.url}/c/{number}.jpg\n")
    (tmp_path / "urls.txt").write_text("".join(urls))
    options = {"num_shards": "2", "web_retries": 1, "allow_private_hosts": True}
    with pytest.raises(JobError, match="4 of 8 images"):
        build(tmp_path / "urls.txt", **options)
    summary = build(tmp_path / "urls.txt", **options)
    assert (summary.records, summary.rejects) == (8, 0)
    before = server.requests.total()
    again = build(tmp_path / "urls.txt", **options)
    assert (again.resumed, server.requests.total()) == (2, before)


def test_max_bytes_bounds_what_is_read(
    build: Build, photos: Path, tmp_path: Path, server: WebServer
):
    good = next(photos.rglob("*.jpg")).read_bytes()
    server.pages = {"/good.jpg": good, "/endless.jpg": endless}
    (tmp_path / "urls.txt").write_text(f"{server.url}/good.jpg\n{server.url}/endless.jpg\n")
    build(
        tmp_path / "urls.txt", num_shards="1", labels="none", max_bytes=5000,
        max_reject_fraction=0.5, allow_private_hosts=True,
    )  # fmt: skip
    assert rejects(tmp_path / "out")[0]["reason"] == "more than 5,000 bytes"


def test_records_with_one_name_are_conflicting_duplicates(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos, num_shards="1", output=tmp_path / "old", base_uri=str(photos))
    summary = build(
        f"{tmp_path}/old/train-*", name_key="image/class/text", num_shards="1", labels="none",
        max_reject_fraction=1.0,
    )  # fmt: skip
    assert (summary.records, summary.rejects, summary.duplicates) == (6, 114, 0)
    assert {line["error"] for line in rejects(tmp_path / "out")} == {"ConflictingDuplicate"}
