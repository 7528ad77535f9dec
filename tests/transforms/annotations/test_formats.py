"""Formats of annotation files: what is recognized, what boxes shapes have, what is malformed."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import gcs_server
import numpy as np
import pytest

from imageshards.transforms import storage
from imageshards.transforms.annotations.formats import check_distinct, identify
from imageshards.transforms.annotations.objects import AnnotationError, to_fractions
from imageshards.transforms.annotations.source import Annotated, Category
from imageshards.transforms.elements import BuildError, UsageError
from imageshards.transforms.records.objects import FACTS
from imageshards.transforms.records.schemas import BOX_SIDES, COLUMN


def read(place: Path, name: str = "auto") -> dict[str, Annotated]:
    """Name of an image -> its annotations."""
    source = identify(str(place), name)
    found = [item for files in source.parts() for item in source.read(files)]
    return {item.name: item for item in found if isinstance(item, Annotated)}


def boxes(found: Annotated) -> list[tuple[float, ...]]:
    return list(zip(*(found.values[side] for side in BOX_SIDES), strict=True))


def problem(place: Path) -> str:
    (found,) = read(place).values()
    return found.problem.removeprefix(f"{place}")


CVAT = """<annotations><version>1.1</version><image id="0" name="a/1.jpg" width="40" height="40">
<box label="owl" occluded="1" xtl="10" ytl="10" xbr="30" ybr="20" rotation="90.0"/>
<polygon label="owl" points="1,2;5,2;3,9"/><ellipse label="owl" cx="10" cy="10" rx="4" ry="2"/>
<mask label="owl" rle="1" left="3" top="4" width="5" height="6"/><tag label="night"/></image>
<image id="1" name="2.jpg" width="4" height="4"><polyline label="owl" points="1,2;5,2"/></image>
</annotations>"""


def test_shapes_of_cvat_have_the_boxes_around_them(tmp_path: Path):
    path = tmp_path / "annotations.xml"
    path.write_text(CVAT)
    found = read(path)
    assert boxes(found["a/1.jpg"]) == [
        pytest.approx((15, 5, 25, 25)), (1, 2, 5, 9), (6, 8, 14, 12), (3, 4, 8, 10),
    ]  # fmt: skip
    assert found["a/1.jpg"].values["image/object/occluded"] == [1, 0, 0, 0]
    assert found["2.jpg"].problem == f"{path}: a shape is a polyline, around which there is no box"
    path.write_text(CVAT.replace("2.jpg", "a/1.jpg").replace("polyline", "polygon"))
    assert problem(path) == ": several images have this name"
    path.write_text(CVAT.replace("1,2;5,2;3,9", ""))
    assert read(path)["a/1.jpg"].problem == f"{path}: its point is '', which is no number"


def test_shapes_of_labelme_have_the_boxes_around_them(tmp_path: Path):
    shapes = [
        {"label": "owl", "shape_type": "polygon", "points": [[1, 2], [5, 2], [3, 9]]},
        {"label": "owl", "shape_type": "circle", "points": [[10, 10], [13, 14]]},
    ]
    root = {"shapes": shapes, "imagePath": "..\\images\\1.jpg", "imageWidth": 40, "imageHeight": 30}
    path = tmp_path / "labels/1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(root))
    found = read(tmp_path)
    assert boxes(found["images/1.jpg"]) == [(1, 2, 5, 9), (5, 5, 15, 15)]
    assert found["images/1.jpg"].size == (40, 30)
    path.write_text(json.dumps(root | {"shapes": [{"shape_type": "point", "points": [[1, 2]]}]}))
    assert problem(path) == ": a shape is a point, around which there is no box"
    assert read(tmp_path).keys() == {"images/1.jpg"}
    path.write_text('{"shapes": [3]}')
    assert problem(path) == ": it has no JSON object with shapes"


def test_files_of_yolo_are_those_of_labels(tmp_path: Path):
    (tmp_path / "data.yaml").write_text("names: {0: owl, 5: cat}\n")
    (tmp_path / "train.txt").write_text("images/train/1.jpg\n")
    for name, text in (
        ("labels/train/1", "5 0.5 0.5 0.5 0.5\n0 0.1 0.2 0.5 0.2 0.3 0.9\n"), ("labels/2", ""),
        ("labels/3", "1 0.5 0.5 0.5 0.5\n"), ("labels/4", "0 0.5 half\n"), ("labels/5", "0 1\n"),
    ):  # fmt: skip
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = read(tmp_path)
    assert boxes(found["images/train/1"]) == [(0.25, 0.25, 0.75, 0.75), (0.1, 0.2, 0.5, 0.9)]
    assert found["images/train/1"].values["image/object/class/text"] == [b"cat", b"owl"]
    assert found["images/2"].objects == 0
    problems = [item.problem.rpartition(".txt: ")[2] for item in found.values() if item.problem]
    assert found.keys() == {"images/train/1", *(f"images/{number}" for number in range(2, 6))}
    assert problems == [
        "line 1 has the class 1, which has no name",
        "its line 1 is 'half', which is no number",
        "line 1 is '0 1': neither a box nor a polygon",
    ]
    assert read(tmp_path / "data.yaml").keys() == found.keys()


def test_remote_files_are_read_with_a_request_each_and_several_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
):
    with gcs_server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.put("owls/data.yaml", b"names: [owl]\n")
        for number in range(40):
            server.put(f"owls/labels/{number}.txt", b"0 0.5 0.5 0.5 0.5\n")
        source = identify("gs://bucket/owls", "auto")
        (files,) = source.parts()
        before = server.requests.total()
        server.delay = 0.05
        found = [item for item in source.read(files) if isinstance(item, Annotated)]
        assert [item.name for item in found] == sorted(f"images/{n}" for n in range(40))
        assert (
            server.requests.total() - before <= 40 + 2
        )  # data.yaml: whether it exists, and its content
        assert server.most_at_a_time > 4
        storage.close()


def test_keypoints_of_yolo_are_no_polygon(tmp_path: Path):
    (tmp_path / "data.yaml").write_text("names: [owl]\nkpt_shape: [2, 3]\n")
    (tmp_path / "1.txt").write_text("0 0.5 0.5 0.5 0.5 0.9 0.9 2 0.8 0.8 1\n")
    assert boxes(read(tmp_path)["1"]) == [(0.25, 0.25, 0.75, 0.75)]
    (tmp_path / "data.yaml").write_text("names: obj.names\n")
    with pytest.raises(BuildError, match=r"data\.yaml: it has no list `names`"):
        read(tmp_path)


def write_yolo(folder: Path, lines: Iterable[Iterable[float]]) -> None:
    """Writes an object per file, of the class 0."""
    (folder / "labels").mkdir(parents=True)
    (folder / "data.yaml").write_text("names: [owl]\n")
    for number, line in enumerate(lines):
        text = " ".join(f"{value:.6g}" for value in line)
        (folder / f"labels/{number:02}.txt").write_text(f"0 {text}\n")


def poses(values: int, points: int, number: int = 20) -> list[list[float]]:
    """Boxes with keypoints in them, some of which are not labelled."""
    rng = np.random.default_rng(values)
    lines = []
    for _ in range(number):
        width, height = rng.uniform(0.05, 0.5, 2)
        x, y = rng.uniform(width / 2, 1 - width / 2), rng.uniform(height / 2, 1 - height / 2)
        line = [x, y, width, height]
        for _ in range(points):
            seen = int(rng.choice([0, 1, 2, 2]))
            point = (rng.uniform(-0.5, 0.5, 2) * (width, height) + (x, y)) * (seen > 0)
            line += [*point, seen][:values]
        lines.append(line)
    return lines


@pytest.mark.parametrize(("values", "points"), [(3, 17), (3, 1), (2, 17), (2, 4), (2, 1)])
def test_keypoints_without_their_shape_are_not_taken_for_polygons(
    tmp_path: Path, values: int, points: int
):
    write_yolo(tmp_path, poses(values, points))
    with pytest.raises(
        UsageError, match=rf"write 'kpt_shape: \[{points}, {values}\]' into data"
    ) as e:
        identify(str(tmp_path), "auto")
    assert "\n" not in str(e.value)
    assert identify(str(tmp_path), "yolo").name == "yolo"
    (tmp_path / "data.yaml").write_text(f"names: [owl]\nkpt_shape: [{points}, {values}]\n")
    assert identify(str(tmp_path), "auto").name == "yolo_keypoints"
    (tmp_path / "data.yaml").write_text("names: [owl]\nkpt_shape: 17\n")
    with pytest.raises(BuildError, match=r"its kpt_shape is 17, not \[keypoints, 2 or 3\]"):
        identify(str(tmp_path), "auto")


def quads(angle: float, width: float, height: float) -> list[list[float]]:
    """Rectangles all over the image, rotated by up to an angle."""
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(20):
        turn, size = rng.uniform(-angle, angle), np.multiply(rng.uniform(0.5, 1), (width, height))
        corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * size / 2
        rotation = [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]
        lines.append((corners @ rotation + rng.uniform(0.3, 0.7, 2)).ravel().tolist())
    return lines


def test_polygons_are_not_taken_for_keypoints(tmp_path: Path):
    circle = [0.5 + 0.1 * side for turn in range(12) for side in (np.cos(turn), np.sin(turn))]
    for number, lines in enumerate([
        quads(0.1, 0.1, 0.03), quads(3, 0.2, 0.2), quads(0.2, 0.5, 0.5), quads(1, 0.02, 0.02),
        [circle], [circle[: 6 + 2 * n] for n in range(8)], [[0.1, 0.2, 0.5, 0.2, 0.3, 0.9]],
    ]):  # fmt: skip
        write_yolo(tmp_path / str(number), lines)
        assert not any(item.problem for item in read(tmp_path / str(number)).values())


def test_lines_of_yolo_that_are_no_polygons_are_problems(tmp_path: Path):
    lines = poses(3, 4, 40)
    write_yolo(tmp_path, lines)
    found = read(tmp_path, "yolo")
    sure = [f"images/{number:02}" for number, line in enumerate(lines) if 2 in line]
    assert len(sure) > 10
    assert {name for name, item in found.items() if item.problem} == {*sure}
    assert "keypoints require their kpt_shape in data.yaml" in found[sure[0]].problem
    write_yolo(tmp_path / "other", [quads(1, 0.1, 0.1)[0], quads(1, 0.1, 0.1)[1][:7]])
    path = tmp_path / "other/labels/00.txt"
    path.write_text(path.read_text() + "0 0.1 0.1 0.2 0.1 0.3 0.4 0.2\n")
    found = read(tmp_path / "other")
    assert found["images/00"].problem == (
        f"{path}: line 2 has an odd number of coordinates, line 1 does not"
    )
    assert not found["images/01"].problem  # the last number is a confidence


def test_an_object_of_voc_without_a_box_is_a_problem(tmp_path: Path):
    path = tmp_path / "1.xml"
    path.write_text("<annotation verified='yes'><object><name>owl</name></object></annotation>")
    assert problem(path) == ": an object has no bndbox"
    assert read(path).keys() == {"1"}
    path.write_text("<annotation><filename>a.png</filename><object></object></annotation>")
    assert read(path).keys() == {"a.png"}
    path.write_text("<annotation><object>")
    assert problem(path).startswith(": not XML: ")


@pytest.mark.parametrize(
    ("text", "size", "box"),
    [
        ("filename,width,height,class,xmin,ymin,xmax,ymax\n1.jpg,40,30,owl,1,2,5,9", (40, 30),
         (1, 2, 5, 9)),
        ("path,x,y,width,height\n1.jpg,1,2,4,7", (0, 0), (1, 2, 5, 9)),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\n1.jpg,/m/015p6,0.1,0.5,0.2,0.9", None,
         (0.1, 0.2, 0.5, 0.9)),
        ('image_id,width,height,bbox\n1.jpg,40,30,"[1, 2, 4, 7]"', (40, 30), (1, 2, 5, 9)),
    ],
)  # fmt: skip
def test_names_of_columns_say_what_boxes_are(
    tmp_path: Path, text: str, size: tuple[int, int] | None, box: tuple[float, ...]
):
    path = tmp_path / "boxes.csv"
    path.write_text(text)
    (found,) = read(path).values()
    assert (found.name, found.size, boxes(found)) == ("1.jpg", size, [box])


def test_a_row_without_a_box_needs_no_class_and_a_row_with_one_does(tmp_path: Path):
    path = tmp_path / "boxes.csv"
    path.write_text("image,class,x1,y1,x2,y2\n1.jpg,,,,,\n2.jpg,owl,1,2,30,40\n3.jpg,,1,2,30,40\n")
    source = identify(str(path), "auto")
    found = list(source.read([str(path)]))
    assert [item.name for item in found if isinstance(item, Category)] == ["owl"]
    images = [item for item in found if isinstance(item, Annotated)]
    assert [item.objects for item in images] == [0, 1, 1]
    assert [bool(item.problem) for item in images] == [False, False, True]
    assert images[2].problem == f"{path}: a row from line 4: a box has no class"
    for row in ("1.jpg,owl", "1.jpg,owl,1,2,30,40,5"):  # such as a comma without quotes
        path.write_text(f"image,class,x1,y1,x2,y2\n{row}\n")
        assert problem(path).endswith("it has not as many values as the header")
    path.write_text(",image,x1,y1,x2,y2\n0,1.jpg,1,2,30,40,\n")
    assert boxes(read(path)["1.jpg"]) == [(1, 2, 30, 40)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"annotations": [{"bbox": [NaN, 1, 2, 3]}]}', "is not JSON: .*, near '.*NaN, 1, 2"),
        ('{"annotations": [{"image_id": 1', "is not JSON: parse error: premature EOF"),
    ],
)
def test_json_that_does_not_parse_is_shown_near_the_fault(tmp_path: Path, text: str, message: str):
    path = tmp_path / "instances.json"
    path.write_text(text)
    with pytest.raises(BuildError, match=message):
        read(path)


def test_captions_of_coco_are_not_taken_for_objects(tmp_path: Path):
    path = tmp_path / "captions.json"
    root = {
        "images": [{"id": 1, "file_name": "1.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "An owl."}],
    }
    path.write_text(json.dumps(root))
    (found,) = read(path, "coco").values()
    assert "annotation 1 has a caption and no bbox: set --annotation_format" in found.problem


def test_fractions_are_an_error_in_a_format_that_has_pixels():
    sides = [[0.1, 0.3], [0.2, 0.2], [0.4, 0.9], [0.5, 1.0]]
    values = {COLUMN + key: side for key, side in zip(BOX_SIDES, sides, strict=True)}
    with pytest.raises(AnnotationError, match="so they are fractions of the image") as raised:
        to_fractions(values | {FACTS: [2, 0, 0]}, (40, 20))
    assert raised.value.kind == "BadAnnotation"
    to_fractions(values | {FACTS: [2]}, (40, 20))  # of a format that has fractions


def test_rows_without_a_box_have_no_class(tmp_path: Path):
    """Kaggle has such rows for images without objects."""
    path = tmp_path / "boxes.csv"
    path.write_text("image_id,x1,y1,x2,y2,class\n1,,,,,No finding\n2,1,2,5,9,owl\n3,,,,,\n")
    source = identify(str(path), "auto")
    found = list(source.read((str(path),)))
    assert [item.objects for item in found if isinstance(item, Annotated)] == [0, 1, 0]
    assert [item.name for item in found if isinstance(item, Category)] == ["owl"]


@pytest.mark.parametrize("content", [b"\xff,1,2,5,9\n", b'"' + b"a" * 200_000 + b'",1,2,5,9\n'])
def test_a_table_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "boxes.csv"
    path.write_bytes(b"image_id,x1,y1,x2,y2\n" + content)
    with pytest.raises(BuildError, match=r"boxes.csv is not a CSV file in UTF-8: "):
        read(path)


def test_what_is_no_annotation_is_an_error_of_one_line(tmp_path: Path):
    (tmp_path / "list.csv").write_text("uri,label\n1.jpg,owl\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"--annotations .*folder: not annotations of coco, "):
        identify(str(tmp_path / "folder"), "auto")
    with pytest.raises(UsageError, match=r"such as image_id, .* in its header 'uri,label'$"):
        identify(str(tmp_path / "list.csv"), "auto")
    for header, message in (
        ("image_id,x1,y1,x2,y2,x1", "2 columns have the name 'x1': rename all but one of them$"),
        ("annotation_id,id,image,label", "is a CSV file of Label Studio, .* export its project as"),
    ):
        (tmp_path / "boxes.csv").write_text(header)
        with pytest.raises(UsageError, match=message):
            identify(str(tmp_path / "boxes.csv"), "auto")
    with pytest.raises(UsageError, match=r"list.csv is not a JSON file of COCO$"):
        identify(str(tmp_path / "list.csv"), "coco")


def instances(boxes: list[list[float]], **more: object) -> dict[str, list[dict[str, object]]]:
    """A file of COCO with one image of 100 x 80 pixels for each box."""
    numbers = range(len(boxes))
    return {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 100, "height": 80} for n in numbers],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": box, **more}
            for n, box in enumerate(boxes)
        ],
        "categories": [{"id": 1, "name": "owl"}],
    }


def test_ids_are_equal_as_texts_and_numbers(tmp_path: Path):
    path = tmp_path / "instances.json"
    root = instances([[1, 2, 3, 4], [5, 6, 7, 8]])
    root["annotations"][0] |= {"image_id": "0", "category_id": "1"}
    root["annotations"][1] |= {"image_id": 1.0, "area": None}
    path.write_text(json.dumps(root))
    found = read(path)
    assert [boxes(found[name]) for name in ("0.jpg", "1.jpg")] == [[(1, 2, 4, 6)], [(5, 6, 12, 14)]]
    assert not any(item.problem for item in found.values())
    root["images"][1]["file_name"] = "0.jpg"
    path.write_text(json.dumps(root))
    assert problem(path) == ": 0 and 1 are images with the same file_name: name each by its path"
    root["images"][1] |= {"id": "0", "file_name": "1.jpg"}
    path.write_text(json.dumps(root))
    with pytest.raises(BuildError, match=r"images 0.jpg and 1.jpg have the same id 0: give each"):
        read(path)


@pytest.mark.parametrize(
    ("found", "more", "message"),
    [
        ([[30, 20, 90, 70], [60, 40, 70, 79], [1, 1, 30, 30]], {}, "2 of 3 boxes leave their"),
        ([[10, 10, 40, 30]], {"area": 600}, "1 of 1 box have areas of other boxes"),
    ],
)
def test_corners_are_not_taken_for_sizes(
    tmp_path: Path, found: list[list[float]], more: dict[str, object], message: str
):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances(found, **more)))
    with pytest.raises(BuildError, match=f"{message}.* fit if they are .x1, y1, x2, y2.") as raised:
        read(path)
    assert "\n" not in str(raised.value)
    table = tmp_path / "boxes.csv"
    rows = [f'{n}.jpg,100,80,"{box}",owl\n' for n, box in enumerate(found)]
    table.write_text("image,width,height,bbox,class\n" + "".join(rows))
    if not more:
        with pytest.raises(BuildError, match=message):
            read(table)


@pytest.mark.parametrize(
    ("found", "more"),
    [
        ([[30, 20, 40, 50], [60, 40, 39, 39.5]], {}),
        ([[90, 70, 95, 75], [2, 3, 110, 79]], {}),  # as corners they leave the image, too
        ([[10, 10, 40, 30]], {"area": 700}),  # a segmentation
        ([[0, 0, 100, 80]], {"area": 8000}),
        ([[30, 20, 90, 70], [60, 40, 9, 9]], {}),  # the second one has no such corners
    ],
)
def test_boxes_that_are_cut_off_are_not_taken_for_corners(
    tmp_path: Path, found: list[list[float]], more: dict[str, object]
):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances(found, **more)))
    assert len(read(path)) == len(found)


def test_suffixes_may_be_in_capitals_and_files_compressed(tmp_path: Path):
    root = json.dumps(instances([[1, 2, 3, 4]])).encode()
    text = b"image,x1,y1,x2,y2,class\n0.jpg,1,2,4,6,owl\n"
    files = {
        "a.JSON": root, "a.json.gz": gzip.compress(root), "a.JSON.GZ": gzip.compress(root),
        "a.CSV": text, "a.csv.gz": gzip.compress(text), "a.tsv": text.replace(b",", b"\t"),
        "a.cvat.xml.gz": gzip.compress(CVAT.encode()),
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        found = read(path)
        assert "xml" in name or boxes(found["0.jpg"]) == [(1, 2, 4, 6)]
    path.write_bytes(files["a.cvat.xml.gz"][:-20])
    with pytest.raises(BuildError, match="is not a complete gzip file: Compressed file ended"):
        read(path, "cvat")
    for name, content in (
        ("yolo/data.yaml", "names: [owl]\n"), ("yolo/1.TXT", "0 0.5 0.5 0.5 0.5\n"),
        ("voc/1.XML", "<annotation></annotation>"), ("labelme/1.JSON", '{"shapes": []}'),
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    assert all(len(read(tmp_path / name)) == 1 for name in ("yolo", "voc", "labelme"))


def test_files_in_capitals_are_below_the_path_of_data_yaml(tmp_path: Path):
    (tmp_path / "set/labels").mkdir(parents=True)
    (tmp_path / "set/labels/1.TXT").write_text("0 0.5 0.5 0.5 0.5\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/data.yaml").write_text("path: ../set\nnames: [owl]\n")
    assert read(tmp_path / "data").keys() == {"images/1"}


def test_other_files_with_the_suffix_do_not_hide_the_format(tmp_path: Path):
    for name, other, text in (
        ("1.json", "0.json", '{"shapes": []}'), ("1.xml", "0.xml", "<annotation></annotation>"),
    ):  # fmt: skip
        folder = tmp_path / name.rpartition(".")[2]
        folder.mkdir()
        (folder / name).write_text(text)
        (folder / other).write_text('{"version": 1}' if "json" in name else "<settings/>")
        assert read(folder).keys() >= {"1"}


def test_a_folder_is_not_read_twice(tmp_path: Path):
    write_yolo(tmp_path / "a", [[0.5, 0.5, 0.5, 0.5]])
    write_yolo(tmp_path / "a/b", [[0.5, 0.5, 0.5, 0.5]])
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "1.json").write_text(json.dumps(instances([[1, 2, 3, 4]])))
    (tmp_path / "2.json").write_text(json.dumps(instances([[1, 2, 3, 4]])))
    same = ["a", "a/", "./a", "a//", "link", "a/data.yaml", "a/b"]
    for other in same:
        sources = [identify(f"{tmp_path}/{text}", "yolo") for text in (other, "a")]
        with pytest.raises(UsageError, match=r"omit one of them$"):
            check_distinct(sources)
    check_distinct([identify(f"{tmp_path}/{text}", "coco") for text in ("1.json", "2.json")])


def test_a_remote_folder_is_not_read_twice(monkeypatch: pytest.MonkeyPatch):
    with gcs_server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for folder in ("owls", "cats"):
            server.put(f"{folder}/1.xml", b"<annotation></annotation>")
        for other in ("owls/", "owls//", "owls/1.xml"):
            sources = [identify(f"gs://bucket/{text}", "voc") for text in ("owls", other)]
            with pytest.raises(UsageError, match=r"omit one of them$"):
                check_distinct(sources)
        check_distinct([identify(f"gs://bucket/{text}", "voc") for text in ("owls", "cats")])
        storage.close()


def test_files_are_read_in_parts_by_memory_and_not_by_objects(tmp_path: Path):
    """A part of an image's objects is emitted when those that are held take 16 MiB."""
    root = instances([[1, 2, 3, 4]])
    polygon = [float(number) for number in range(20_000)]
    root["annotations"] = [
        {"id": n, "image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4], "segmentation": [polygon]}
        for n in range(300)
    ]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(root))
    for masks in (False, True):
        source = identify(str(path), "auto", masks)
        found = [item for item in source.read(()) if isinstance(item, Annotated)]
        assert sum(item.objects for item in found) == 300
        assert max(item.num_bytes for item in found) < 18 << 20
        assert len(found) == (4 if masks else 1)
