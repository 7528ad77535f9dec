"""The table of contenders: the commands that are compared.

Arguments of a command may contain {python} (the interpreter of its environment), {peers} (the
folder of the peers' scripts), {imageshards} (its command), {images} and {output} (folders),
{shards} (their number) and {server} (an HTTP URL of {images}).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reader = Literal["tfrecord", "tar", "mds"]


@dataclass(frozen=True)
class Contender:
    """A command that writes shards of images.

    Attributes:
      name: in --only, in the JSON and in the picture.
      title: in the table.
      argv: the command.
      environment: key of `environments.REQUIREMENTS` whose interpreter runs it; "" for none.
      checks: what it validates in an image before it writes it.
      shuffle: how it shuffles; whether the output is shuffled is measured.
      reader: the format of its output, see `read_back.py`.
      memory_factor: bytes of memory that it needs per byte of images. It is skipped if the machine
        has less. 0: unknown or small.
      served: whether it reads the images from a local HTTP server.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    environment: str
    checks: str
    shuffle: str
    reader: Reader = "tfrecord"
    memory_factor: float = 0.0
    served: bool = False

    @property
    def ours(self) -> bool:
        """Whether this is imageshards."""
        return self.argv[0] == "{imageshards}"


def _peer(script: str, *arguments: str) -> tuple[str, ...]:
    return ("{python}", "{peers}/" + script, "{images}", "{output}", "{shards}", *arguments)


def _imageshards(check: str, suffix: str = "", title: str = "", *arguments: str) -> Contender:
    beam = "--writer=beam" in arguments
    return Contender(
        name=f"imageshards{'-beam' * beam}-{check}{suffix}",
        title=f"imageshards{' --writer=beam' * beam} --check={check}{title}",
        argv=(
            "{imageshards}", "build", "--input={images}", "--output={output}/dataset",
            "--base_uri={images}", "--num_shards={shards}", f"--check={check}", "--json",
            *arguments,
        ),
        environment="",
        checks=check,
        shuffle="keyed hash",
        memory_factor=8.0 if beam else 0.0,
    )  # fmt: skip


_TWO = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")

PLAIN, PLAIN_FULL = "plain-header", "plain-full"
TFDS, WEBDATASET, MDS = "tfds", "webdataset", "mds"
TEXTBOOK, TAR = "beam-textbook", "tar"
HEADER, FULL = "imageshards-header", "imageshards-full"

CONTENDERS: tuple[Contender, ...] = (
    Contender(
        PLAIN, "plain loop, Pillow header", _peer("plain_loop.py"),
        "peers", "header", "list",
    ),
    Contender(
        PLAIN_FULL, "plain loop, Pillow decode", _peer("plain_loop.py", "--decode"),
        "peers", "full", "list",
    ),
    Contender(
        TFDS, "tensorflow_datasets builder", _peer("tfds_builder.py"),
        "peers", "no", "hash buckets",
    ),
    Contender(
        WEBDATASET, "webdataset ShardWriter", _peer("webdataset_writer.py"),
        "peers", "no", "list", reader="tar",
    ),
    Contender(
        MDS, "MosaicML MDSWriter", _peer("mds_writer.py"),
        "streaming", "no", "list", reader="mds",
    ),
    Contender(
        "img2dataset", "img2dataset, local server", _peer("img2dataset_download.py", "{server}"),
        "img2dataset", "no", "list", reader="tar", served=True,
    ),
    Contender(
        TEXTBOOK, "textbook Beam graph", _peer("beam_textbook.py"),
        "peers", "header", "random key", memory_factor=8.0,
    ),
    Contender(
        TAR, "tar (lower bound)",
        ("tar", "--sort=name", "-cf", "{output}/images.tar", "-C", "{images}", "."),
        "", "no", "none", reader="tar",
    ),
    *(
        contender
        for check in ("header", "full")
        for contender in (
            _imageshards(check),
            _imageshards(check, "-1", ", one process", "--workers=1"),
            _imageshards(check, "", "", "--writer=beam"),
            _imageshards(check, "-2", ", 2 processes", "--writer=beam", *_TWO),
        )
    ),
)  # fmt: skip

GROWTH: tuple[str, ...] = (PLAIN, HEADER)
"""Names of the contenders that run on growing numbers of images."""
