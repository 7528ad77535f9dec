"""Names of images: the same folder elsewhere, and in other stores, gives the same data set."""

import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import gcs_server
import pytest
import yaml
from conftest import Build, Command
from helpers import build_json, contents, image_bytes, imageshards, names, rejects, write_images

from imageshards.pipeline.job.failures import JobError
from imageshards.pipeline.options.build_options import FORMAT_VERSION
from imageshards.transforms.elements import UsageError
from imageshards.transforms.inputs.kind import (
    ListingOptions,
    WorkUnit,
    list_references,
    roots_of,
)
from imageshards.transforms.inputs.sources import identify

SAME = {"num_shards": "3", "splits": "train=0.7,test=0.3", "name": "x", "max_reject_fraction": 0.1}


def comparable(out: Path) -> dict[str, bytes]:
    """Every file of a data set, without the inputs' URIs, and without the state of a build."""
    found = contents(out)
    build = json.loads(found["metadata/build.json"])
    rejected = [json.loads(line) for line in found["metadata/rejects.jsonl"].splitlines()]
    places = [*build["options"].pop("input"), *(line.pop("uri") for line in rejected)]
    for line in rejected:
        line.pop("range", None)  # of a member of an archive
    found["metadata/build.json"] = json.dumps(build).encode()
    options = yaml.safe_load(found["metadata/build.yaml"])
    del options["input"]
    found["metadata/build.yaml"] = json.dumps(options).encode()
    found["metadata/rejects.jsonl"] = json.dumps(rejected).encode()
    report = re.sub(rb'"command":"(?:[^"\\]|\\.)*"', b"", found["metadata/report.html"])
    for place in sorted(places, key=len, reverse=True):
        report = report.replace(json.dumps(place)[1:-1].encode(), b"")
    # Rejects that are files have a picture; those in archives have none.
    found["metadata/report.html"] = re.sub(
        rb'("kind":"reject"[^{}]*?),"image":"[^"]*"(,"small":true)?', rb"\1", report
    )
    states = [path for path in found if path.startswith("metadata/shards/")]
    for path in states:
        if path.endswith(".digests"):
            continue
        del found[path]  # stamps of files and of objects
    return found


@pytest.fixture
def places(photos: Path, tmp_path: Path) -> Path:
    """A folder of images with a duplicate, a leak and a reject."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "class00/bad.jpg").write_bytes(b"no image")
    shutil.copy(folder / "class01/0000.jpg", folder / "class02/other.jpg")
    (folder / "class03/Größe 1.jpg").write_bytes(image_bytes(7000))
    return folder


@pytest.mark.parametrize("dedupe", ["none", pytest.param("pixels", marks=pytest.mark.slow)])
def test_a_folder_elsewhere_or_packed_gives_equal_bytes(
    build: Build, places: Path, tmp_path: Path, dedupe: str
):
    moved = shutil.copytree(places, tmp_path / "somewhere é" / "deep" / "photos")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(places, arcname=".")
    with tarfile.open(tmp_path / "photos.tgz", "w:gz") as tar:
        for path in sorted(places.rglob("*.jpg"), reverse=True):
            tar.add(path, arcname=path.relative_to(places))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(places.rglob("*.jpg")):
            archive.write(path, path.relative_to(places))
    listed = shutil.copytree(places, tmp_path / "listed")
    manifest = listed / "list.txt"
    lines = [str(path.relative_to(listed)) for path in sorted(listed.rglob("*.jpg"))]
    manifest.write_text("\n".join(lines))
    build(places, output=tmp_path / "out", **SAME, dedupe=dedupe)
    expected = comparable(tmp_path / "out")
    assert f"{tmp_path}".encode() not in b"".join(expected.values())
    pattern = f"{moved}/*/*.jpg"
    for number, source in enumerate(
        (moved, pattern, manifest, *(tmp_path / f"photos.{kind}" for kind in ("tar", "tgz", "zip")))
    ):
        build(source, output=tmp_path / str(number), **SAME, dedupe=dedupe)
        assert comparable(tmp_path / str(number)) == expected, source


def test_a_bucket_gives_the_bytes_of_the_folder(build: Build, places: Path, tmp_path: Path):
    build(places, output=tmp_path / "local", **SAME)
    with gcs_server.running() as server:
        server.put_folder(places, "some/photos")
        done = imageshards(
            "build", "--input=gs://bucket/some/photos", f"--output={tmp_path / 'remote'}",
            *(f"--{name}={value}" for name, value in SAME.items()), **server.environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert comparable(tmp_path / "remote") == comparable(tmp_path / "local")


def test_no_record_contains_the_folder_of_the_inputs(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="1")
    assert sorted(names(tmp_path / "out")) == sorted(
        str(path.relative_to(photos)) for path in photos.rglob("*.jpg")
    )


def test_a_reject_has_its_name_and_its_uri(build: Build, places: Path, tmp_path: Path):
    build(places, **SAME)
    (line,) = rejects(tmp_path / "out")
    assert (line["name"], line["uri"]) == ("class00/bad.jpg", f"{places}/class00/bad.jpg")


NAMED = {
    "{photos}": "class00/0000.jpg",
    "{photos}/class00": "0000.jpg",
    "{photos}/class*/0000.jpg": "class00/0000.jpg",
    "{photos}/class00/00*.jpg": "0000.jpg",
    "{photos}/class00/0000.jpg": "0000.jpg",
    "{tmp}/a.tar": "class00/0000.jpg",
    "{tmp}/a*.tar": "a.tar/class00/0000.jpg",
    "{tmp}/old/train-00000-of-00001.tfrecord": "train-00000-of-00001.tfrecord/0",
    "{tmp}/ol*/train-*": "old/train-00000-of-00001.tfrecord/0",
    "{tmp}/near.txt": "sub/0000.jpg",
    "{tmp}/far.txt": "{photos}/class00/0000.jpg",
}
"""Input -> a name of its images, as docs/guide/inputs.md has them."""


@pytest.mark.parametrize("text", NAMED)
def test_the_name_is_the_path_below_the_input(
    build: Build, photos: Path, tmp_path: Path, text: str
):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(photos, arcname=".")
    build(photos / "class00", output=tmp_path / "old", num_shards="1")
    (tmp_path / "sub").mkdir()
    shutil.copy(photos / "class00/0000.jpg", tmp_path / "sub")
    (tmp_path / "near.txt").write_text("sub/0000.jpg\n")
    (tmp_path / "far.txt").write_text(f"{photos}/class00/0000.jpg\n")
    place = {"photos": str(photos), "tmp": str(tmp_path)}
    build(text.format(**place), num_shards="1")
    assert NAMED[text].format(**place) in names(tmp_path / "out")


def test_inputs_that_contain_each_other_list_an_image_once(
    build: Build, photos: Path, tmp_path: Path
):
    (tmp_path / "list.txt").write_text(f"{photos}/class01/0001.jpg\n{photos}/class02/0002.jpg\n")
    inputs = [photos / "class00", f"{photos}/*/000?.jpg", photos / "class01/0001.jpg", photos,
              tmp_path / "list.txt"]  # fmt: skip
    build(photos, output=tmp_path / "whole", num_shards="2", name="x")
    summary = build(*inputs, num_shards="2", name="x")
    assert (summary.records, summary.duplicates) == (120, 20 + 60 + 1 + 2)
    for path in (tmp_path / "whole").glob("train-*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_two_images_with_one_name_are_an_error_that_says_what_to_do(
    build: Build, photos: Path, tmp_path: Path
):
    inputs = [photos / "class00", photos / "class01"]
    with pytest.raises(JobError) as caught:
        build(*inputs, num_shards="1")
    message = str(caught.value)
    assert "\n" not in message
    assert f"set --base_uri {photos}, which contains both" in message
    assert f"{photos}/class00/" in message
    assert f"{photos}/class01/" in message
    assert not (tmp_path / "out").exists()
    build(*inputs, num_shards="1", base_uri=str(photos))
    assert len(set(names(tmp_path / "out"))) == 40


def test_base_uri_names_what_is_below_it_and_nothing_else(
    build: Build, photos: Path, tmp_path: Path
):
    write_images(tmp_path / "a/more", 1, 1)
    build(photos, tmp_path / "a/more", num_shards="1", base_uri=f"{tmp_path}/a/")
    found = names(tmp_path / "out")
    assert {"more/class00/0000.jpg", "class00/0000.jpg"} < set(found)


def names_among(source: Path | str, *others: Path | str) -> list[str]:
    """The names of an input's images in a build of several inputs."""
    inputs = [identify(str(one)) for one in (source, *others)]
    roots = roots_of(inputs)
    listed = [found.refs for found in list_references(WorkUnit(inputs[0]), ListingOptions())]
    return [name for refs in listed for name in refs.with_roots(roots.lengths(refs)).names]


def test_images_of_the_web_are_named_by_their_urls_whatever_else_is_an_input(photos: Path):
    urls = ["https://e.org/a/1.jpg", "https://e.org/b/1.jpg"]
    for url in urls:
        assert names_among(url) == names_among(url, *urls) == names_among(url, photos) == [url]


def test_a_manifest_beside_other_inputs_renames_none_of_their_images(photos: Path, tmp_path: Path):
    shutil.copytree(photos, tmp_path / "photos")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(photos, arcname=".")
    manifest = tmp_path / "more.csv"
    manifest.write_text("uri\nhttps://e.org/a/1.jpg\n")
    for source in ("photos", "photos/*/*.jpg", "photos/class00/0000.jpg", "photos.tar"):
        alone = names_among(tmp_path / source)
        assert names_among(tmp_path / source, manifest) == alone, source


def test_an_image_in_a_manifest_has_the_name_that_it_has_in_another_input(
    photos: Path, tmp_path: Path
):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos/list.txt").write_text("class00/0000.jpg\n")
    for folder in ("", "elsewhere/"):
        (tmp_path / folder).mkdir(exist_ok=True)
        manifest = tmp_path / f"{folder}list.txt"
        manifest.write_text(f"{tmp_path}/photos/class00/0000.jpg\n")
        for source in ("photos", "photos/class00", "photos/class00/0000.jpg", "photos/list.txt"):
            (name,) = names_among(manifest, tmp_path / source)
            assert name in names_among(tmp_path / source, manifest), source


def test_labels_are_folders_also_of_an_input(build: Build, photos: Path, tmp_path: Path):
    build(photos / "class04", num_shards="1")
    assert build_json(tmp_path / "out")["classes"] == ["class04"]


def test_splits_by_folder_do_not_depend_on_base_uri(build: Build, photos: Path, tmp_path: Path):
    for split in ("train", "test"):
        shutil.copytree(photos / "class00", tmp_path / "in" / split / "class00")
    summary = build(tmp_path / "in", num_shards="1", splits="folder", base_uri=str(tmp_path))
    assert set(summary.splits) == {"train", "test"}


def test_a_renamed_input_with_the_same_images_is_another_build(
    build: Build, photos: Path, tmp_path: Path
):
    build(photos / "class00", num_shards="1")
    with pytest.raises(JobError, match="holds a build with other inputs"):
        build(f"{photos}/class00/../*0/*.jpg", num_shards="1")


def test_the_version_of_the_format_is_recorded(build: Build, photos: Path, tmp_path: Path):
    build(photos, num_shards="1")
    assert build_json(tmp_path / "out")["format"] == FORMAT_VERSION == 3


@pytest.mark.parametrize(
    ("text", "output", "refused"),
    [
        ("photos", "photos", True),
        ("photos", "photos/class00/out", True),
        ("photos", "link/out", True),
        ("photos", "photos-2", False),
        ("photos/class00", "photos", False),
        ("photos/*", "photos/class00/out", True),
        ("photos/*/*", "photos/out", True),
        ("photos/*/*.tfrecord", "photos/out", True),
        ("photos/*/*.jpg", "photos/out", False),
        ("photos/**/*", "photos/a/b/out", True),
        ("photos/**/*.jpg", "photos/a/b/out", False),
        ("photos/*", "photos", True),
        ("photos/*.jpg", "photos", False),
        ("photos/*.jpg", "photos/a.jpg/out", True),
        ("photos/*.jpg", "photos/out", False),
        ("photos/class*/*.jpg", "photos/out", False),
        ("photos/*/*.jpg", "photos/class00/a/out", False),
    ],
)
def test_an_output_inside_an_input_is_refused(
    build: Build, photos: Path, tmp_path: Path, text: str, output: str, refused: bool
):
    folder = shutil.copytree(photos, tmp_path / "photos")
    shutil.copy(folder / "class00/0000.jpg", folder / "top.jpg")
    (tmp_path / "link").symlink_to(folder)
    before = contents(tmp_path)
    options = {"num_shards": "1", "base_uri": str(tmp_path), "output": tmp_path / output}
    if not refused:
        assert build(tmp_path / text, **options).records
        return
    with pytest.raises(UsageError, match=r"^--output .* is inside --input .*: specify an output"):
        build(tmp_path / text, **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("target", ["other/out", "other"])
def test_a_link_in_an_input_that_leads_to_the_output_is_refused(
    command: Command, photos: Path, tmp_path: Path, target: str
):
    folder = shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "other/out").mkdir(parents=True)
    (folder / "class00/link").symlink_to(tmp_path / target)
    output = tmp_path / "other/out"
    code, _, error = command("build", "--input", folder, "--output", output)
    assert (code, error.count("\n")) == (1, 1)
    assert f"{folder}/class00/link: this link leads to {tmp_path / target}/" in error
    assert not contents(tmp_path / "other")


def test_an_output_inside_a_remote_input_is_refused(command: Command):
    for text in ("gs://b/photos", "gs://b/photos/", "gs://b/**/*", "gs://b/p*/*/*.tfrecord"):
        code, _, error = command("build", "--input", text, "--output", "gs://b/photos/out")
        assert (code, error.count("\n")) == (2, 1)
        assert "--output gs://b/photos/out is inside --input" in error
