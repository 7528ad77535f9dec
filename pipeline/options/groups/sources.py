"""Options of the inputs, and of which of their images a data set takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imageshards.pipeline.options.declare import Group, option

_MOST_IMAGES = 10**10


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
