"""Options of the content of a record: its features, its image and its annotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imageshards.pipeline.options.declare import AUTO, Group, option
from imageshards.pipeline.options.parser import refuse

_MAX_SIDE = 65_500
_MAX_PIXELS = 178_956_970
_MAX_BYTES = 1 << 28


# --help does not need the schemas and the containers.
def _schemas() -> Iterable[str]:
    from imageshards.transforms.records.schemas import SCHEMAS

    return SCHEMAS


def _containers() -> Iterable[str]:
    from imageshards.transforms.records.containers import CONTAINERS

    return CONTAINERS


def _annotation_formats() -> Iterable[str]:
    from imageshards.transforms.records.objects import NO_FORMAT, OBJECT_COLUMNS

    return (NO_FORMAT, *OBJECT_COLUMNS)


def _features_from(texts: Sequence[str]) -> tuple[str, ...]:
    columns = tuple(column for text in texts for column in text.split(","))
    if "none" in columns and len(columns) > 1:
        refuse("invalid --features_from: none cannot be combined with columns")
    return () if columns == ("none",) else columns


@dataclass(frozen=True, kw_only=True)
class Records(Group):
    """What a record contains, and the files that contain the records."""

    title = "records"

    features: str = option(
        "slim",
        "Schema of a record: slim or imagenet (the image file); segmentation (with a mask), "
        "caption (with texts); raw (float32), pixels (uint8) or shape (uint8 of any size) (decoded "
        "pixels); text. imageshards features NAME describes one",
        brief="slim, imagenet, segmentation, caption, ... (default: slim)",
        metavar="NAME",
        choices=_schemas,
    )
    channels: int = option(
        0,
        "Channels of decoded pixels: 1 converts to grayscale, 3 to RGB",
        metavar="1|3",
        default_text="3 for raw and pixels, for shape those of each image",
        choices=(0, 1, 3),
    )
    pixel_range: str = option("0..1", "Range of the floats of raw", choices=("0..1", "0..255"))
    text_unit: str = option(
        "line",
        "Record of a text file: each line, or each paragraph (lines between empty lines)",
        choices=("line", "paragraph"),
    )
    compression: str = option(
        "none",
        "Compression of the shards of decoded pixels and texts: gzip for tfrecord, which "
        "TensorFlow Datasets does not read, without random access; the others for array_record",
        choices=("none", "gzip", "zstd", "brotli", "snappy"),
    )
    features_from: tuple[str, ...] = option(
        (AUTO,),
        "Columns of a manifest that become features: COLUMN:TYPE or KEY=COLUMN:TYPE, separated by "
        "commas; TYPE is int, float, bytes, int_list, float_list or bytes_list; none copies no "
        "column; auto copies the other features of TFRecord inputs",
        metavar="COLUMN:TYPE",
        empty="none",
        images_only=True,
        parse=_features_from,
    )
    file_format: str = option(
        "tfrecord",
        "Format of the shards: tfrecord, or array_record, which Grain reads at random",
        metavar="NAME",
        choices=_containers,
    )
    group_size: int = option(
        1,
        "Records that array_record stores together: more take less space with --compression, and "
        "more time to read at random",
        metavar="N",
        limits=(1, 1 << 16),
    )


@dataclass(frozen=True, kw_only=True)
class Images(Group):
    """How images are validated and converted."""

    title = "images"

    check: str = option(
        "full",
        "Validation: full decodes every image; header reads only the header and the end of the "
        "file",
        brief="header is faster and does not decode (default: full)",
        choices=("full", "header"),
        images_only=True,
    )
    convert: str = option(
        "auto",
        "Re-encoding: auto converts what TensorFlow does not decode to PNG or JPEG; jpeg and png "
        "convert everything; never keeps all files unchanged",
        choices=("auto", "jpeg", "png", "never"),
        images_only=True,
    )
    exif: str = option(
        "bake",
        "EXIF orientation: bake applies it to the pixels; keep leaves it to readers, except for "
        "that of TIFF files, which is always applied",
        choices=("bake", "keep"),
        images_only=True,
    )
    multi_frame: str = option(
        "first",
        "Animations and multi-page files: first writes the first frame; all keeps animated GIFs "
        "and rejects other files; reject rejects them all",
        choices=("first", "all", "reject"),
        images_only=True,
    )
    resize: str = option(
        "",
        "Size of the images: short:256, long:512, 320x240, crop:224x224 or pad:224x224; does not "
        "enlarge images",
        brief="short:256, long:512, crop:224x224, pad:224x224, ...",
        metavar="RULE",
        default_text="the original size",
        form_pattern=r"(?:(short|long):(\d+)|(?:(crop|pad):)?(\d+)x(\d+))",
        images_only=True,
    )
    enlarge: bool = option(False, "Allow --resize to enlarge images", images_only=True)
    quality: int = option(95, "Quality of re-encoded JPEGs", limits=(1, 100), images_only=True)
    min_size: int = option(
        1,
        "Reject images whose shorter side has fewer pixels",
        limits=(1, _MAX_SIDE),
        images_only=True,
    )
    max_pixels: int = option(
        _MAX_PIXELS, "Reject images with more pixels", limits=(1, _MAX_PIXELS), images_only=True
    )
    max_bytes: int = option(_MAX_BYTES, "Reject files with more bytes", limits=(1, _MAX_BYTES))
    dedupe: str = option(
        "none",
        "Duplicates: none keeps images with identical pixels; pixels keeps one of each set of "
        "images with identical pixels and rejects the others, which decodes every image once more",
        brief="pixels keeps one of images with the same pixels",
        choices=("none", "pixels"),
        images_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class Annotations(Group):
    """Annotated objects and masks, and how they follow the pixels of their images."""

    title = "annotations"

    annotations: tuple[str, ...] = option(
        (),
        "File or folder of annotations, whose images are matched with those of the inputs by name; "
        "repeat it for several",
        brief="COCO, VOC, YOLO, ... of the images; repeatable",
        metavar="URI",
        is_uri=True,
        images_only=True,
        affects_shards=False,  # their content does
    )
    annotation_format: str = option(
        AUTO,
        "Format of --annotations; auto finds it by their content",
        choices=_annotation_formats,
        metavar="FORMAT",
        images_only=True,
    )
    masks: str = option(
        "",
        "Masks of --features segmentation: a path such as 'masks/{stem}.png', with the fields "
        "{dir}, {name}, {stem} and {suffix} of the image's name, relative to the input; or "
        "column:NAME, a manifest's column of their URIs",
        metavar="PATH|column:NAME",
        default_text="column:mask",
        images_only=True,
    )
    captions: str = option(
        "",
        "Captions of --features caption: the path of a text with one caption per line, with the "
        "fields of --masks, such as '{dir}/{stem}.txt'; or column:NAME, a manifest's column with a "
        "text or a list of texts",
        metavar="PATH|column:NAME",
        default_text="column:caption",
        images_only=True,
    )
    mask_padding: int = option(
        255,
        "Class in masks of the pixels that --resize pad:WxH adds",
        limits=(0, 255),
        images_only=True,
    )

    object_masks: bool = option(
        False, "Write the mask of each object of --annotations, as a PNG", images_only=True
    )
    annotations_on: str = option(
        "stored",
        "Pixels that masks, boxes and keypoints refer to: stored, as in the file, which is what a "
        "reader sees that ignores EXIF; upright, after the EXIF orientation is applied",
        choices=("stored", "upright"),
        images_only=True,
    )
    min_box_visible: float = option(
        0.1,
        "Drop boxes of which a smaller fraction of the area is in the written image",
        metavar="F",
        limits=(0, 1),
        images_only=True,
    )
    without_boxes: str = option(
        "keep",
        "Images of which all boxes are dropped: keep writes them without boxes",
        choices=("keep", "reject"),
        images_only=True,
    )
