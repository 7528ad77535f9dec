"""Options of the data set as a whole: its folder, shards, labels, splits and description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imageshards.pipeline.options.beam_arguments import is_beam_label
from imageshards.pipeline.options.declare import AUTO, Group, option

_SPLIT = "[A-Za-z][A-Za-z0-9_]*"
_RULE_WITH_GROUP = r"regex:[^\n\r]*\([^\n\r]+\)[^\n\r]*"


def _label_rule(texts: Sequence[str]) -> str:
    return [AUTO, *(text for text in texts if not is_beam_label(text))][-1]


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
