"""A fingerprint shows whether inputs have changed since the last build."""

import json
import os
import tarfile
from pathlib import Path

import pytest
from conftest import Command
from helpers import image_bytes, write_images

from imageshards.launch.cli import main
from imageshards.pipeline.operations.fingerprint import fingerprint
from imageshards.transforms.elements import BuildError


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 2, 3)
    return tmp_path / "images"


def digest(*inputs: object, **options: object) -> str:
    return fingerprint(list(map(str, inputs)), **options).digest  # type: ignore[arg-type]


def test_a_fingerprint_counts_files_and_bytes(images: Path):
    (images / "notes.txt~").write_text("no image")
    found = fingerprint([str(images)])
    assert found.files == 6
    assert found.bytes == sum(path.stat().st_size for path in images.rglob("*.jpg"))
    assert found.inputs == (str(images),)


@pytest.mark.parametrize("kind", ["folder", "glob", "tar", "manifest"])
def test_a_fingerprint_changes_only_with_what_is_listed(images: Path, kind: str):
    place: str | Path = images
    if kind == "glob":
        place = f"{images}/*/*.jpg"
    elif kind == "tar":
        place = images.with_name("a.tar")
        with tarfile.open(place, "w") as archive:
            archive.add(images, "x")
    elif kind == "manifest":
        place = images.with_name("a.csv")
        place.write_text("uri\nimages/class00/0000.jpg\n")
    before = digest(place)
    assert digest(place) == before
    (images / ".hidden.jpg").write_bytes(b"")
    (images / "notes.md").write_text("no image")
    if kind == "manifest":
        os.utime(place, (1, 1))  # rewritten without a change
    assert digest(place) == before
    assert digest(place, settings="of another build") != before
    if kind == "tar":
        with tarfile.open(place, "a") as archive:
            archive.add(images, "y")
    elif kind == "manifest":
        Path(place).write_text("uri\nimages/class00/0001.jpg\n")
    else:
        (images / "class00/new.jpg").write_bytes(image_bytes(1))
    assert digest(place) != before


def test_a_changed_or_missing_image_changes_the_fingerprint(images: Path):
    before = digest(images)
    image = images / "class00/0000.jpg"
    stamp = image.stat().st_mtime_ns
    os.utime(image, ns=(stamp, stamp + 1))
    changed = digest(images)
    image.unlink()
    assert len({before, changed, digest(images)}) == 3


def test_a_patterns_fingerprint_contains_exactly_the_files_that_are_read(images: Path):
    (images / "notes.tar").touch()
    (images / "class00/.hidden").mkdir()
    write_images(images / "class00/.hidden", 1, 1)
    with tarfile.open(images / "class01/a.tar", "w") as archive:
        archive.add(images / "class00/0000.jpg", "x.jpg")
    assert fingerprint([f"{images}/class*"]).files == 7  # the archive in a matched folder
    assert fingerprint([f"{images}/*"]).files == 6  # a pattern of every name reads no archives
    before = digest(f"{images}/class*")
    with tarfile.open(images / "class01/a.tar", "a") as archive:
        archive.add(images / "class00/0001.jpg", "y.jpg")
    assert digest(f"{images}/class*") != before


def test_inputs_count_by_what_they_hold(images: Path):
    split = [images / "class00", images / "class01"]
    whole = digest(*split)
    assert whole == digest(*reversed(split)) == digest(*split, split[0])  # named twice
    assert whole == digest(*split, images / "not/there", skip_missing=True)


def test_a_fingerprint_changes_with_the_names_of_the_images(images: Path):
    split = [images / "class00", images / "class01"]
    assert digest(*split) != digest(images)
    assert digest(images) == digest(f"{images}/*/*.jpg")


def test_missing_inputs_are_skipped_only_on_request(images: Path, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "_SUCCESS").touch()
    inputs = [str(empty), str(images), str(tmp_path / "gone"), f"{empty}/*.png"]
    assert fingerprint(inputs, skip_missing=True).inputs == (str(images),)
    for text in (inputs[0], *inputs[2:]):
        with pytest.raises(BuildError, match=r"no image found|no such file"):
            fingerprint([str(images), text])


def test_an_input_that_cannot_be_read_is_not_missing(tmp_path: Path):
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(BuildError, match="write it as JSONL"):
        fingerprint([str(tmp_path / "a.json")], skip_missing=True)


def test_a_manifest_is_compared_and_not_its_images_as_the_help_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_images(tmp_path / "in", 1, 2)
    image = tmp_path / "in/class00/0001.jpg"
    manifest = tmp_path / "list.csv"
    manifest.write_text(f"uri\n{image}\n")
    before = fingerprint([str(manifest)])
    image.write_bytes(b"another image")
    assert fingerprint([str(manifest)]) == before
    manifest.write_text(f"uri\n{image}\n{image.with_name('0000.jpg')}\n")
    assert fingerprint([str(manifest)]) != before
    assert main(["fingerprint", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "not the images that it names" in help_text


def test_the_command_prints_state_and_digest(images: Path, tmp_path: Path, command: Command):
    options = ["--input", images, "--input", tmp_path / "gone", "--output", tmp_path / "out/1"]
    code, out, _ = command("fingerprint", *options, "--skip_missing", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["state"], found["files"], found["inputs"]) == ("new", 6, [str(images)])
    other = command("fingerprint", *options, "--skip_missing", "--json", "--seed=1")[1]
    assert json.loads(other)["digest"] != found["digest"]
    assert command("fingerprint", *options)[0] == 2
    gone = ["--input", tmp_path / "gone", "--output", tmp_path / "out/1", "--skip_missing"]
    assert "no image found" in command("fingerprint", *gone)[1]
    code, out, _ = command("fingerprint", *options, "--skip_missing")
    assert out.startswith(f"{found['digest']}  6 files, ")
    assert out.endswith(" kB: new: version 1 is to be built\n")
    assert command("build", "--input", images, "--output", tmp_path / "out/1")[0] == 0
    out = command("fingerprint", *options, "--skip_missing")[1]
    assert out.endswith(
        f" new: version 1 is built, but not published: imageshards publish {tmp_path / 'out/1'}\n"
    )
    code, _, err = command("fingerprint", *options, "--direct_num_wrokers=2")
    assert (code, err.count("\n")) == (2, 1)
    assert "--direct_num_wrokers" in err


@pytest.mark.parametrize("place", ["{}", "{}/*.txt", "{}/a.txt", "{}/**"])
def test_texts_are_fingerprinted_as_they_are_built(tmp_path: Path, command: Command, place: str):
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.txt"):
        (texts / name).write_text("one line\n")
    (texts / "c.jpg").write_bytes(image_bytes(1))
    options = ["--input", place.format(texts), "--output", tmp_path / "out/1", "--features=text"]
    options += ["--labels=none", "--json"]

    def state(*more: str) -> dict[str, object]:
        code, out, err = command("fingerprint", *options, *more)
        assert (code, err) == (0, "")
        return json.loads(out)

    files = 1 if place.endswith("a.txt") else 2
    assert (state()["state"], state()["files"]) == ("new", files)
    assert state("--skip_missing") == state()
    assert command("build", *options)[0] == 0
    built = json.loads((tmp_path / "out/1/metadata/build.json").read_text())["counts"]
    assert built["records"] == files
    before = state()["digest"]
    (texts / "a.txt").write_text("another line\n")
    assert state()["digest"] != before


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("annotations", {"yolo/data.yaml": "names: [owl]\n", "yolo/labels/1.txt": ""}),
        ("annotations", {"1.xml": "<annotation></annotation>"}),
        ("annotations", {"boxes.csv": "image_id,x1,y1,x2,y2\n"}),
        ("exclude", {"bad.txt": "1.jpg\n"}),
        ("class_names", {"names.txt": "class00\nclass01\n"}),
    ],
)
def test_a_fingerprint_changes_with_the_other_files_of_a_build(
    images: Path, tmp_path: Path, command: Command, option: str, files: dict[str, str]
):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    place = tmp_path / next(iter(files)).partition("/")[0]
    options = ["--input", images, "--output", tmp_path / "out/1", f"--{option}={place}", "--json"]
    before = json.loads(command("fingerprint", *options)[1])
    assert before["files"] == 6
    assert json.loads(command("fingerprint", *options)[1]) == before
    for name in files:
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        after = json.loads(command("fingerprint", *options)[1])
        assert after["digest"] != before["digest"]
        before = after


def test_a_folder_without_texts_is_empty(images: Path, tmp_path: Path, command: Command):
    options = ["--input", images, "--output", tmp_path / "out/1", "--features=text"]
    code, _, err = command("fingerprint", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "no text found" in err
    code, out, _ = command("fingerprint", *options, "--skip_missing")
    assert code == 0
    assert out.endswith(": empty: no text found\n")


@pytest.mark.parametrize("digest", ["HEX", "f" * 63, "F" * 64, "f" * 32, "None"])
def test_what_is_no_fingerprint_is_not_published(tmp_path: Path, command: Command, digest: str):
    code, _, err = command("publish", tmp_path, f"--fingerprint={digest}")
    assert (code, err.count("\n")) == (2, 1)
    assert "expected the 64 hexadecimal digits" in err
