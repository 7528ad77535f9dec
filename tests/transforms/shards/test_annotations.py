"""Annotations of a record are mapped, or the image is rejected with advice."""

from typing import Any

import pytest

from imageshards.transforms.images.geometry import Geometry
from imageshards.transforms.records.columns import FeatureColumn
from imageshards.transforms.records.objects import FACTS
from imageshards.transforms.records.schemas import BOX_SIDES, COLUMN, OBJECT
from imageshards.transforms.shards.annotations import AnnotationError, Annotations

SAME = Geometry((200, 100), (200, 100), (200, 100))
HALF = Geometry((200, 100), (100, 50), (100, 50))
CROPPED = Geometry((200, 100), (100, 50), (50, 50))
TURNED = Geometry((200, 100), (100, 200), (100, 200), from_stored=6)

BOXES = [(0.3, 0.1, 0.5, 0.3), (0.0, 0.0, 0.1, 0.1), (0.2, 0.5, 0.3, 1.0)]
"""xmin, ymin, xmax, ymax. `CROPPED` keeps x from 0.25 to 0.75: the first box, half of the last."""


def values_of(boxes: Any = BOXES, **others: Any) -> dict[str, Any]:
    sides = {key: [box[at] for box in boxes] for at, key in enumerate(BOX_SIDES)}
    return sides | {OBJECT + key.replace("__", "/"): value for key, value in others.items()}


def follow(
    values: dict[str, Any], geometry: Geometry, **options: Any
) -> tuple[dict[str, Any], dict[str, int]]:
    """The values and the counts afterwards; keys have no prefix."""
    types = {float: "float", int: "int", bytes: "bytes"}
    columns = tuple(
        FeatureColumn(key, key, types[type(value[0] if value else 0.0)] + "_list")  # type: ignore[arg-type]
        if isinstance(value, list)
        else FeatureColumn(key, key, types[type(value)])  # type: ignore[arg-type]
        for key, value in values.items()
    )
    annotations = Annotations(columns, **options)
    assert annotations.are_needed
    changed = {COLUMN + key: value for key, value in values.items()}
    counts = annotations.follow(changed, geometry)
    return {key.removeprefix(COLUMN): value for key, value in changed.items()}, counts


def error_of(values: dict[str, Any], geometry: Geometry, **options: Any) -> str:
    with pytest.raises(AnnotationError) as caught:
        follow(values, geometry, **options)
    assert "\n" not in str(caught.value)
    return f"{caught.value.kind}: {caught.value}"


@pytest.mark.parametrize("geometry", [SAME, HALF])
def test_boxes_of_pixels_that_only_scale_are_the_same_objects(geometry: Geometry):
    before = values_of(is_crowd=[0, 1, 0])
    after, counts = follow(before, geometry)
    assert all(after[key] is value for key, value in before.items())
    assert counts == {"boxes": 3}


def test_dropped_boxes_take_their_values_along():
    after, counts = follow(
        values_of(class__label=[1, 2, 3], class__text=[b"a", b"b", b"c"], weight=[]), CROPPED
    )
    assert counts == {"boxes": 2, "clipped": 1, "dropped": 1}
    assert after[OBJECT + "class/label"] == [1, 3]
    assert after[OBJECT + "class/text"] == [b"a", b"c"]
    assert after[OBJECT + "weight"] == []
    boxes = zip(*(after[key] for key in BOX_SIDES), strict=True)
    assert list(boxes) == [
        pytest.approx((0.1, 0.1, 0.5, 0.3)), pytest.approx((0.0, 0.5, 0.1, 1.0))
    ]  # fmt: skip


@pytest.mark.parametrize(("min_visible", "written"), [(0, 2), (0.5, 2), (0.51, 1), (1, 1)])
def test_min_visible_is_a_fraction_of_the_area(min_visible: float, written: int):
    assert follow(values_of(), CROPPED, min_visible=min_visible)[1]["boxes"] == written


def test_boxes_that_exceed_the_image_are_clipped_also_in_padding():
    padded = Geometry((200, 100), (200, 100), (200, 200))
    boxes = [(0.5, -0.25, 0.75, 0.75), (0.2, 0.3, 0.4, 1.0000001), (0.1, 1.2, 0.2, 1.4)]
    for geometry, ymin, ymax in ((SAME, [0, 0.3], [0.75, 1]), (padded, [0.25, 0.4], [0.625, 0.75])):
        after, counts = follow(values_of(boxes), geometry)
        assert after[BOX_SIDES[1]] == pytest.approx(ymin)
        assert after[BOX_SIDES[3]] == pytest.approx(ymax)
        assert max(after[BOX_SIDES[3]]) <= 1
        # The second box exceeds the image by the rounding of float32 only.
        assert counts == {"boxes": 2, "clipped": 1, "dropped": 1}


def test_lines_and_points_are_boxes():
    after, counts = follow(values_of([(0.5, 0.2, 0.5, 0.8), (0.1, 0.1, 0.1, 0.1)]), CROPPED)
    assert after[BOX_SIDES[0]] == [0.5]
    assert counts == {"boxes": 1, "dropped": 1}


@pytest.mark.parametrize("geometry", [SAME, CROPPED, TURNED])
@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((20.0, 0.1, 120.0, 0.3), "xmin of box 1 is 20: write fractions .* divided by 200 x 100"),
        ((0.3, 0.1, float("nan"), 0.3), "bbox/xmax of box 1 is nan: write a number"),
        ((float("-inf"), 0.1, 0.3, 0.3), "bbox/xmin of box 1 is -inf: write a number"),
        ((0.3, 0.5, 0.5, 0.2), "box 1 has ymin 0.5, which is more than its ymax 0.2"),
    ],
)
def test_impossible_boxes_are_rejected(geometry: Geometry, box: Any, reason: str):
    with pytest.raises(AnnotationError, match=reason) as caught:
        follow(values_of([BOXES[0], box]), geometry)
    assert caught.value.kind == "BadBox"


def test_each_box_needs_every_side():
    values = values_of() | {BOX_SIDES[1]: [0.1]}
    assert "BadBox: 3 values of image/object/bbox/xmin, but 1 of" in error_of(values, SAME)


def test_an_image_that_loses_all_boxes_is_kept_or_rejected():
    assert follow(values_of(BOXES[1:2]), CROPPED)[1] == {"dropped": 1}
    error = error_of(values_of(BOXES[1:2]), CROPPED, without_boxes="reject")
    assert error.startswith("NoBoxes: none of its 1 box has 0.1 of its area in the written image")
    # It had none: it loses nothing.
    assert follow(values_of([], is_crowd=[]), CROPPED, without_boxes="reject")[1] == {}


@pytest.mark.parametrize("key", ["mask", "segmentation", "bbox/cx", "densepose/x"])
def test_shapes_that_are_not_mapped_must_not_move(key: str):
    values = values_of() | {OBJECT + key: [b"a", b"b", b"c"]}
    assert follow(values, SAME)[0][OBJECT + key] == [b"a", b"b", b"c"]
    for geometry, how, advice in (
        (HALF, "scaled", "omit --resize"),
        (CROPPED, "cropped or padded", "omit --resize"),
        (TURNED, "rotated", "set --exif keep"),
    ):
        error = error_of(values, geometry)
        assert error == (
            f"Unmappable: {OBJECT}{key} cannot be mapped to the written image, which is {how}: "
            f"omit it from --features_from, or {advice}"
        )
    assert follow(values | {OBJECT + key: []}, CROPPED)[1]["boxes"] == 2


def test_boxes_in_the_form_of_tensorflow_datasets_must_not_move():
    values = {"objects/bbox": [0.1, 0.1, 0.4, 0.4]}
    assert follow(values, SAME) == (values, {})
    assert "objects/bbox cannot be mapped" in error_of(values, CROPPED)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("xmin", 0.3, f"write {BOX_SIDES[0]}=xmin:float_list"),
        ("face/Y_max", [3, 4], f"write {BOX_SIDES[3]}=face/Y_max:float_list"),
        ("top", b"12", f"write {BOX_SIDES[1]}=top:float_list"),
        ("nose_x", 40, f"write {OBJECT}keypoint/x=nose_x:float_list"),
        ("image/landmark/y", [0.1], f"write {OBJECT}keypoint/y=image/landmark/y:float_list"),
        ("box.x2", 0.3, f"as in {BOX_SIDES[0]}=box.x2:float_list"),
        ("landmark", [0.1, 0.2], ""),
        ("depth", b"P5", ""),
        ("label_map", b"P5", ""),
    ],
)
def test_positions_under_other_keys_must_not_move(key: str, value: Any, advice: str):
    assert follow({key: value}, SAME) == ({key: value}, {})
    error = error_of({key: value}, CROPPED)
    assert error.startswith(f"Unmappable: {key} cannot be mapped to the written image")
    assert f"{advice}, or omit it" in error if advice else ": omit it" in error


def test_an_image_without_a_mask_may_move():
    values = {"segmentation_mask": b""}
    assert follow(values, CROPPED) == (values, {})
    assert "segmentation_mask cannot be mapped" in error_of({"segmentation_mask": b"x"}, CROPPED)


def test_boxes_with_missing_sides_may_only_scale():
    values = {BOX_SIDES[0]: [0.1], BOX_SIDES[2]: [0.3]}
    assert follow(values, HALF) == (values, {})
    assert "rotated: add image/object/bbox/ymin, or omit it" in error_of(values, TURNED)


@pytest.mark.parametrize("value", [[1, 2], 7])
def test_values_that_are_not_one_per_box_do_not_allow_drops(value: Any):
    values = values_of(weight=value)
    assert follow(values, TURNED)[1] == {"boxes": 3}
    assert "for 3 boxes, of which 1 cannot be written" in error_of(values, CROPPED)


def test_areas_in_pixels_scale_unless_their_box_is_clipped():
    assert follow(values_of(area=[400.0, 8.0, 4.0]), HALF)[0][OBJECT + "area"] == [100, 2, 1]
    inside = values_of(BOXES[:2], area=[400.0, 8.0])
    assert follow(inside, CROPPED)[0][OBJECT + "area"] == [100]
    assert follow(inside, TURNED)[0][OBJECT + "area"] == [400, 8]
    assert "area cannot be mapped" in error_of(values_of(area=[400.0, 8.0, 4.0]), CROPPED)


def keypoints(**others: Any) -> dict[str, Any]:
    """Two keypoints for each box: the second of the first box is not visible."""
    return values_of(
        keypoint__x=[0.3, 0.0, 0.0, 0.1, 0.2, 0.3], keypoint__y=[0.3, 0.0, 0.0, 0.1, 0.9, 0.8],
        keypoint__visibility=[2, 0, 1, 2, 2, 1], keypoint__num=[1, 2, 2],
        keypoint__text=[b"nose", b"ear"] * 3, **others,
    )  # fmt: skip


def test_keypoints_are_mapped_and_dropped_with_their_boxes():
    same, _ = follow(keypoints(), HALF)
    assert same == keypoints()
    turned, _ = follow(keypoints(), TURNED)
    assert turned[OBJECT + "keypoint/x"] == pytest.approx([0.7, 0, 1, 0.9, 0.1, 0.2])
    assert turned[OBJECT + "keypoint/y"] == pytest.approx([0.3, 0, 0, 0.1, 0.2, 0.3])
    cropped, counts = follow(keypoints(), CROPPED)
    assert counts == {"boxes": 2, "clipped": 1, "dropped": 1, "keypoints_dropped": 1}
    assert cropped[OBJECT + "keypoint/x"] == pytest.approx([0.1, 0, 0, 0.1])
    assert cropped[OBJECT + "keypoint/y"] == pytest.approx([0.3, 0, 0, 0.8])
    assert cropped[OBJECT + "keypoint/visibility"] == [2, 0, 0, 1]
    assert cropped[OBJECT + "keypoint/num"] == [1, 1]
    assert cropped[OBJECT + "keypoint/text"] == [b"nose", b"ear"] * 2


def test_keypoints_that_cannot_be_mapped_are_rejected():
    unknown = {k: v for k, v in keypoints().items() if not k.endswith("visibility")}
    assert "add image/object/keypoint/visibility, or" in error_of(unknown, TURNED)
    uneven = keypoints() | {OBJECT + "keypoint/y": [0.3]}
    assert "BadBox: 6, 1, 6 values of" in error_of(uneven, TURNED)
    pixels = keypoints() | {OBJECT + "keypoint/x": [60, 0, 0, 20, 40, 60]}
    assert "BadBox: keypoint 0 is at 60, 0.3: write fractions" in error_of(pixels, TURNED)


def test_other_columns_need_no_annotations():
    for key, kind in (("weight", "float"), ("image/object/count", "int"), ("tags", "bytes_list"),
                      ("mask", "int"), ("image/object/bbox/label", "int_list"), ("width", "int"),
                      ("landmark_id", "bytes"), ("depth", "float"), ("turn_left", "bytes"),
                      ("map", "bytes"), ("index", "int"), ("proxy", "int_list")):  # fmt: skip
        assert not Annotations((FeatureColumn(key, key, kind),)).are_needed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((20.0, 0.1, 120.0, 0.3), "xmin is 20 times the width of 200 pixels: check the unit"),
        ((0.1, 0.1, 0.3, 40), "ymax is 40 times the height of 100 pixels: check the unit"),
        ((0.3, 0.5, 0.5, 0.2), "more than its ymax 0.2: correct the annotation file"),
    ],
)
def test_wrong_boxes_of_annotation_files_name_no_columns(box: Any, reason: str):
    values = values_of([BOXES[0], box], class__text=[b"a", b"b"])
    values[FACTS.removeprefix(COLUMN)] = [2, 0, 0]
    with pytest.raises(AnnotationError, match=reason):
        follow(values, TURNED)
