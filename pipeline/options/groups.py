"""The options of a build, each declared once; `imageshards build --help` shows them in this order.

To add an option, declare it here and use it; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from imageshards.pipeline.options.beam_arguments import is_beam_label
from imageshards.pipeline.options.declare import Group, option
from imageshards.pipeline.options.parser import refuse

AUTO = "auto"
_MAX_SIDE = 65_500
_MAX_PIXELS = 178_956_970
_MAX_BYTES = 1 << 28
_MOST_IMAGES = 10**10
_SPLIT = "[A-Za-z][A-Za-z0-9_]*"
_RULE_WITH_GROUP = r"regex:[^\n\r]*\([^\n\r]+\)[^\n\r]*"


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


def _label_rule(texts: Sequence[str]) -> str:
    return [AUTO, *(text for text in texts if not is_beam_label(text))][-1]


def _features_from(texts: Sequence[str]) -> tuple[str, ...]:
    columns = tuple(column for text in texts for column in text.split(","))
    if "none" in columns and len(columns) > 1:
        refuse("invalid --features_from: none cannot be combined with columns")
    return () if columns == ("none",) else columns


def _suffixes(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(suffix.lstrip(".").lower() for suffix in texts[-1].split(","))


@dataclass(frozen=True, kw_only=True)
class Inputs(Group):
    """Where references to images come from, and how they are read."""

    title = "inputs"

    input: tuple[str, ...] = option(
        (),
        "A folder, a glob pattern, an image, an archive (.tar .tar.gz .zip ...), TFRecord files, a "
        "text file, or a manifest (.csv .tsv .jsonl .parquet with a uri column, .txt with one URI "
        "per line); local, gs://, s3://, az:// or, in manifests, http(s)://. Repeat it for several "
        "inputs",
        brief="Folder, 'pattern', archive or manifest; repeatable",
        metavar="URI",
        required="a folder, a pattern or a manifest",
        is_uri=True,
        affects_shards=False,  # their references do
    )
    include_all: bool = option(
        False, "Read every file, not only files whose name has the suffix of an image"
    )
    image_suffix: tuple[str, ...] = option(
        (),
        "Images of WebDataset tars, by what follows the first dot of their names, such as jpg or "
        "left.jpg",
        metavar="A,B",
        default_text="any suffix of an image, if samples have one image",
        images_only=True,
        parse=_suffixes,
    )
    uri_column: str = option(
        "uri",
        "Column of manifests that has the URIs, or of Parquet files that has the images",
        metavar="NAME",
        default_text="uri or file_name, else the only column with images",
        images_only=True,
    )
    uri_template: str = option(
        "",
        "URI of an image, with columns of the manifest in braces, such as train/{id}.jpg",
        metavar="TEMPLATE",
        default_text="the column of --uri_column",
        pattern=r"[^{}]*(\{[^{}]+\}[^{}]*)*",
        expected="a URI with names of columns in braces, such as train/{id}.jpg",
        images_only=True,
    )
    base_uri: str = option(
        "",
        "Name the images below this folder by their path below it; names determine the order and "
        "the hashed splits",
        metavar="URI",
        default_text="names are relative to the --input that contains them",
    )
    image_key: str = option(
        "image/encoded",
        "Feature of TFRecord inputs that has the image",
        metavar="KEY",
        images_only=True,
    )

    label_key: str = option(
        "",
        "Feature of TFRecord inputs that has the label",
        metavar="KEY",
        default_text="image/class/text, else image/class/label",
        images_only=True,
    )
    name_key: str = option(
        "",
        "Feature of TFRecord inputs, or column of Parquet files with images, that has the name of "
        "the image, such as image/filename",
        metavar="KEY",
        default_text="FILE/NUMBER",
        images_only=True,
    )
    user_agent: str = option(
        "imageshards",
        "User-Agent of requests to web servers; include how to contact you",
        metavar="TEXT",
        pattern="[ -~]+",
        expected="printable ASCII",
        affects_shards=False,
        in_build_yaml=False,
    )
    billing_project: str = option(
        "",
        "Google Cloud project that pays for the requests, as buckets with Requester Pays require",
        metavar="PROJECT",
        default_text="the owner of each bucket pays",
        pattern=r"([a-z0-9][a-z0-9.:-]*)?",
        expected="the ID of a project",
        affects_shards=False,
        in_build_yaml=False,
    )
    web_timeout: float = option(
        60.0,
        "Seconds to wait for one image from the web, retries included",
        metavar="SECONDS",
        limits=(1, 3600),
        affects_shards=False,
    )
    web_retries: int = option(
        3, "Retries after a transient error of a web server", limits=(0, 3600), affects_shards=False
    )
    requests_per_host: int = option(
        16,
        "Concurrent requests of one machine to one web server",
        limits=(1, 3600),
        affects_shards=False,
    )
    allow_private_hosts: bool = option(
        False,
        "Read images also from web servers whose addresses are not public, such as 127.0.0.1 or "
        "10.0.0.1",
        affects_shards=False,
    )

    @property
    def template_column(self) -> str:
        """The column that the URIs of a manifest are; empty: they come from a template."""
        return "" if self.uri_template else self.uri_column


@dataclass(frozen=True, kw_only=True)
class Choice(Group):
    """Which of the listed images the data set takes."""

    title = "choice"

    exclude: tuple[str, ...] = option(
        (),
        "Leave out the images that a text file lists, one name or URI per line; local or remote, "
        ".gz too. Repeat it for several files",
        metavar="FILE",
        default_text="none",
        is_uri=True,
        affects_shards=False,  # what remains does
    )
    where: str = option(
        "",
        'Take only images whose columns meet a condition, such as "width >= 256 and split != '
        "'bad'\": comparisons, in, and, or, not and arithmetic; columns in backticks if they are "
        "no identifiers",
        metavar="EXPRESSION",
        default_text="all",
    )
    limit: int = option(
        0,
        "Take at most so many images, drawn at random with --seed; together with --per_class, the "
        "same fraction of each class",
        default_text="all",
        limits=(0, _MOST_IMAGES),
    )
    per_class: int = option(
        0,
        "Take at most so many images of each class, drawn at random with --seed",
        default_text="all",
        limits=(0, _MOST_IMAGES),
    )


@dataclass(frozen=True, kw_only=True)
class Output(Group):
    """Where the data set is written, and how it is divided into shards."""

    title = "output"

    output: str = option(
        "",
        "Folder of the data set, local or remote",
        brief="Folder of the data set, local, gs://, s3:// or az://",
        metavar="DIR",
        required="a folder for the data set",
        is_uri=True,
        affects_shards=False,
        in_build_yaml=False,
    )
    name: str = option(
        "",
        "Name of the data set in dataset_info.json",
        metavar="NAME",
        default_text="the name of the output folder",
        pattern="([a-z][a-z0-9_]*)?",
        expected="a lower-case letter, then lower-case letters, digits and _",
        affects_shards=False,
    )
    num_shards: str = option(
        AUTO,
        "Number of shards: 16 for each split, or train=1024,test=16; auto makes shards of about "
        "150 MB",
        brief="16, or train=8,test=2 (default: by size, 150 MB each)",
        metavar="N",
        form_pattern=rf"auto|[0-9]{{1,5}}|{_SPLIT}=[0-9]{{1,5}}(?:,{_SPLIT}=[0-9]{{1,5}})*",
    )
    seed: int = option(
        0,
        "Determines the order of the records and the hashed splits",
        brief="Another seed gives another order (default: 0)",
        limits=(0, (1 << 64) - 1),
    )
    overwrite: bool = option(
        False,
        "Replace the files of another build in the output folder; in a build that is resumed, read "
        "the images again that were rejected",
        brief="Replace another build in the output folder",
        affects_shards=False,
        in_build_yaml=False,
    )
    max_reject_fraction: float = option(
        0.01,
        "Fail the build if a larger fraction of the images is rejected",
        metavar="F",
        limits=(0, 1),
        affects_shards=False,
    )


@dataclass(frozen=True, kw_only=True)
class Labels(Group):
    """How the class of an image is found."""

    title = "labels"

    labels: str = option(
        AUTO,
        r"Label of an image: dirname, column, column:NAME, none, or regex:RE such as "
        r"regex:([a-z]+)\d+\.jpg; column:NAME:float for a number to predict; list:NAME for a "
        "column with any number of classes, columns:A,B for columns of 0 or 1; auto uses the label "
        "column of a manifest if there is one, else dirname",
        brief="dirname, column:NAME, regex:RE, none (default: auto)",
        metavar="RULE",
        form_pattern=rf"auto|dirname|none|(column|columns|list):.+|column|{_RULE_WITH_GROUP}",
        # Launchers such as Airflow's operators reserve --labels for the labels of the job.
        aliases=("--labels_from",),
        parse=_label_rule,
    )
    class_names: str = option(
        "",
        "Text file with the class names in label order, one per line; with --features imagenet a "
        "tab and a description may follow",
        metavar="FILE",
        default_text="the labels found, sorted",
        is_uri=True,
    )
    label_offset: int = option(
        0,
        "Number of the first label; 1 reserves label 0 for a background class, as TF-slim does",
        choices=(0, 1),
    )


@dataclass(frozen=True, kw_only=True)
class Splits(Group):
    """How images are assigned to splits."""

    title = "splits"

    splits: str = option(
        AUTO,
        "Split of an image: train=0.8,test=0.2 by a seeded hash; train=500,test=100, exactly so "
        "many drawn with --seed; column or column:NAME; folder, the top folder; auto uses the "
        "split column of a manifest if there is one, else train",
        brief="train=0.8,test=0.2; column:NAME; folder (default: auto)",
        metavar="RULE",
        form_pattern=rf"auto|folder|column|column:.+|{_SPLIT}=[0-9.]+(?:,{_SPLIT}=[0-9.]+)*",
    )
    stratify: bool = option(
        False,
        "Divide each class among the splits of --splits exactly, within one image, instead of on "
        "average; images may move to another split when the data set grows",
    )
    split_names: tuple[str, ...] = option(
        (),
        "Names of splits that a column or folder may have",
        metavar="A,B",
        default_text="train, validation, test and their usual variants",
        separator=",",
    )
    group_by: str = option(
        "uri",
        "Assign all images of a group to one split: dirname, column:NAME, or regex:RE searched in "
        "the names; uri makes each image a group",
        brief="Split by group: dirname, column:NAME or regex:RE",
        metavar="RULE",
        form_pattern=rf"uri|dirname|column:.+|{_RULE_WITH_GROUP}",
    )


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


@dataclass(frozen=True, kw_only=True)
class About(Group):
    """What people who use the data set need to know: for croissant.json and the data card."""

    title = "about the data set"

    description: str = option(
        "", "What the data set contains, in a few sentences", metavar="TEXT", affects_shards=False
    )
    license: str = option(
        "",
        "License of the data set: an SPDX identifier such as CC-BY-4.0, or a URL",
        metavar="ID|URL",
        aliases=("--licence",),
        affects_shards=False,
    )
    citation: str = option(
        "", "How to cite the data set, such as BibTeX", metavar="TEXT", affects_shards=False
    )
    creator: str = option(
        "", "Person or organization that made the data set", metavar="NAME", affects_shards=False
    )
    homepage: str = option(
        "",
        "URL of a page about the data set or about its source",
        metavar="URL",
        pattern="(https?://.+)?",
        expected="a URL that begins with http:// or https://",
        affects_shards=False,
    )
    date_published: str = option(
        "",
        "Date of publication, such as 2026-11-22",
        metavar="DATE",
        pattern=r"([0-9]{4}-[0-9]{2}-[0-9]{2})?",
        expected="a date such as 2026-11-22",
        affects_shards=False,
    )
    sha256: str = option(
        AUTO,
        "SHA-256 of each shard in build.json and croissant.json: yes, no, or auto: yes unless "
        "--check header writes the images undecoded, where it would take half as long again",
        choices=(AUTO, "yes", "no"),
        affects_shards=False,
    )


@dataclass(frozen=True, kw_only=True)
class Execution(Group):
    """How the work is distributed."""

    title = "execution"

    writer: str = option(
        "shard",
        "Unit of parallel work: shard, each shard is written by one worker; beam, images are "
        "encoded in parallel and WriteToTFRecord writes them, for costly images and few shards",
        choices=("shard", "beam"),
    )


@dataclass(frozen=True, kw_only=True)
class CommandOptions(Group):
    """How the command runs and what it prints: no part of the build itself."""

    title = "command"

    config: str = option(
        "",
        "YAML file of options, one `NAME: VALUE` per line, and a section `beam` for those of Beam; "
        "the file metadata/build.yaml of a data set builds it again. The command line replaces "
        "values of the file, and --no_NAME replaces `NAME: true`",
        brief="Read options from a YAML file",
        metavar="FILE",
        default_text="none",
        is_uri=True,
        affects_shards=False,
        in_template=False,
    )
    workers: str = option(
        AUTO,
        "Processes that write shards on this machine; auto starts one per core, if there are "
        "enough images to justify it. Only for the local runner",
        brief="Processes on this machine (default: auto)",
        metavar="N",
        pattern="auto|0*[1-9][0-9]*",
        expected="auto or a number from 1",
        affects_shards=False,
        in_template=False,
    )
    wait: bool = option(
        False,
        "Wait for the end of a job on a service such as Dataflow; otherwise the command prints the "
        "job's id and a link, and returns",
        affects_shards=False,
        in_template=False,
    )
    dry_run: bool = option(
        False,
        "List the inputs on this machine, read a sample of the images, print the images, classes, "
        "shards and rejects that the build would have, its time and cost, and write nothing",
        brief="Print what the build would do, and write nothing",
        affects_shards=False,
        in_template=False,
    )
    json: bool = option(
        False,
        "Print the result as JSON",
        brief="Print the result as JSON",
        affects_shards=False,
        in_template=False,
    )
    quiet: bool = option(
        False,
        "Print only errors and warnings: no progress and, without --json, no result",
        brief="Print only errors and warnings",
        affects_shards=False,
        in_template=False,
    )
    verbose: bool = option(
        False,
        "Show Beam's log and tracebacks",
        brief="Show Beam's log and tracebacks",
        affects_shards=False,
    )
