"""Builds with captions: from texts beside the images, columns and TFRecord files."""

import json
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from conftest import Build, Command
from helpers import build_json, image_bytes, records, rejects, shards

from imageshards import reader
from imageshards.reader.verify import verify
from imageshards.transforms.elements import UsageError

KEY = "image/caption"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "owls").mkdir(parents=True)
    for number in range(6):
        (folder / f"owls/{number}.jpg").write_bytes(image_bytes(number))
    return folder


def captions(out: Path) -> dict[str, list[str]]:
    return {
        Path(record.first("image/filename").decode()).stem: [
            text.decode() for text in record.values[KEY]
        ]
        for record in records(out)
    }


def test_texts_beside_the_images(build: Build, photos: Path, tmp_path: Path):
    texts = {
        0: b"An owl\n\n  at night \r\n",
        1: "\ufeffEin K\u00e4uzchen".encode(),
        2: "one\u2028two".encode(),
        3: b" \n",
        4: b"caf\xe9",
    }
    for number, text in texts.items():
        (photos / f"owls/{number}.txt").write_bytes(text)
    build(
        photos, features="caption", captions="{dir}/{stem}.txt", max_reject_fraction=0.6,
        num_shards="1",
    )  # fmt: skip
    out = tmp_path / "out"
    assert captions(out) == {
        "0": ["An owl", "at night"], "1": ["Ein K\u00e4uzchen"], "2": ["one\u2028two"],
    }  # fmt: skip
    assert {Path(reject["name"]).stem: reject["error"] for reject in rejects(out)} == {
        "3": "MissingCaption", "4": "BadCaption", "5": "MissingCaption",
    }  # fmt: skip
    assert not verify(str(out)).problems
    theirs = tfds.builder_from_directory(str(out)).as_dataset("train")
    assert sorted(len(values[KEY]) for values in theirs.as_numpy_iterator()) == [1, 1, 2]
    assert "An owl" in (out / "metadata/report.html").read_text()
    build(*shards(out), output=tmp_path / "again", features="caption",
          captions=f"column:{KEY}", name_key="image/filename")  # fmt: skip
    assert captions(tmp_path / "again") == captions(out)
    element = reader.open(str(out), "train")[0]
    assert element.shape == (16, 24, 3)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_captions_of_a_column(build: Build, photos: Path, tmp_path: Path, kind: str):
    found = ["An owl, at night", ["one", "two, too"], "[sic] it is", "", None, [" ", "x"]]
    path = photos / f"list.{kind}"
    if kind == "csv":
        rows = [text if isinstance(text, str) else json.dumps(text or "") for text in found]
        quoted = [row.replace('"', '""') for row in rows]
        lines = ["uri,text", *(f'owls/{n}.jpg,"{row}"' for n, row in enumerate(quoted))]
        lines[5] = "owls/4.jpg,"
    else:
        lines = [json.dumps({"uri": f"owls/{n}.jpg", "text": text}) for n, text in enumerate(found)]
    path.write_text("\n".join(lines))
    build(path, features="caption", captions="column:text", max_reject_fraction=0.5)
    out = tmp_path / "out"
    assert captions(out) == {
        "0": ["An owl, at night"], "1": ["one", "two, too"], "2": ["[sic] it is"], "5": ["x"],
    }  # fmt: skip
    assert {Path(reject["name"]).stem for reject in rejects(out)} == {"3", "4"}


def test_the_error_names_the_option(photos: Path, command: Command):
    code, _, error = command(
        "build", "--input", photos, "--output", photos.parent / "no", "--features", "caption"
    )
    assert code != 0
    assert "has no column 'caption' (--captions sets another column, or a path" in error


def coco_captions(photos: Path) -> dict[str, list[dict[str, object]]]:
    """Captions of five of the six photographs, and of one that is not there, as of COCO."""
    images = [{"id": 10 + number, "file_name": f"{number}.jpg"} for number in range(5)]
    images.append({"id": 99, "file_name": "elsewhere.jpg"})
    found = [
        {
            "id": 2 * image["id"] + at,
            "image_id": image["id"],
            "caption": f"{at} {image['id']} \u00e9",
        }
        for image in images
        for at in range(2)
    ]
    return {"images": images, "annotations": found}


def test_captions_of_a_json_file_of_coco(build: Build, photos: Path, tmp_path: Path):
    file = tmp_path / "captions.json"
    content = coco_captions(photos)
    content["annotations"][9]["caption"] = " "  # of the image 4
    file.write_text(json.dumps(content))
    summary = build(photos, features="caption", annotations=(str(file),), max_reject_fraction=0.5)
    out = tmp_path / "out"
    assert captions(out) == {
        str(number): [f"0 {10 + number} \u00e9", f"1 {10 + number} \u00e9"] for number in range(4)
    }
    found = {Path(line["name"]).stem: (line["error"], line["reason"]) for line in rejects(out)}
    assert found == {
        "4": ("BadAnnotation", f"{file}: annotation 29 has the caption ' ', which is no text"),
        "5": ("MissingCaption", "no annotation file has a caption of it"),
    }
    assert build_json(out)["options"]["annotation_format"] == "coco_captions"
    assert build_json(out)["annotations"] == {"captions": 8, "rejected": 2}
    counts = build_json(out)["annotation_files"][str(file)]
    assert (counts["objects"], counts["unmatched_objects"]) == (10, 2)
    assert "8 captions; 2 in rejected images" in str(summary)
    assert not verify(str(out)).problems
    theirs = tfds.builder_from_directory(str(out)).as_dataset("train")
    assert [len(values[KEY]) for values in theirs.as_numpy_iterator()] == [2] * 4


def test_captions_of_annotations_require_their_schema(build: Build, photos: Path, tmp_path: Path):
    file = tmp_path / "captions.json"
    file.write_text(json.dumps(coco_captions(photos)))
    with pytest.raises(UsageError, match="with captions requires --features caption"):
        build(photos, annotations=(str(file),))
    with pytest.raises(UsageError, match=r"--annotations has the captions: omit --captions col"):
        build(photos, features="caption", captions="column:x", annotations=(str(file),))
