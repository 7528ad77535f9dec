"""Data sets and arguments that verify, reshard and fingerprint refuse, on every runner alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers import shards, write_images

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run


@dataclass(frozen=True)
class Case:
    """Arguments of a command, and what its errors contain; `{0}` is a folder of the case."""

    arguments: tuple[str, ...]
    code: int
    message: str


CASES: dict[str, Case] = {
    "verify-truncated": Case(("verify", "{0}/truncated"), 1, "breaks off; the records after it"),
    "verify-missing": Case(("verify", "{0}/missing"), 1, "train-00001-of-00002.tfrecord: missing"),
    "verify-foreign": Case(("verify", "{0}/foreign"), 1, "its size or CRC32C is not the one"),
    "verify-empty": Case(("verify", "{0}/empty"), 2, "not a data set (no dataset_info.json)"),
    "verify-scheme": Case(("verify", "foo://bucket/x"), 2, "foo://"),
    "reshard-truncated": Case(
        ("reshard", "{0}/truncated", "{0}/new", "--num_shards=3"), 1, "-00001-of-00002"
    ),
    "reshard-missing": Case(
        ("reshard", "{0}/missing", "{0}/new", "--num_shards=3"), 1, "-00001-of-00002"
    ),
    "reshard-foreign": Case(
        ("reshard", "{0}/foreign", "{0}/new", "--num_shards=3"), 1, "-00001-of-00002"
    ),
    "reshard-empty": Case(
        ("reshard", "{0}/empty", "{0}/new", "--num_shards=3"), 2, "not a data set"
    ),
    "reshard-inside": Case(
        ("reshard", "{0}/sound", "{0}/sound/new", "--num_shards=3"), 2, "is inside of the data set"
    ),
    "reshard-unwritable": Case(
        ("reshard", "{0}/sound", "/proc/imageshards/new", "--num_shards=3"), 2, "/proc"
    ),
    "reshard-of-a-file": Case(
        ("reshard", "{0}/sound", "{0}/list.txt", "--num_shards=3"), 2, "list.txt"
    ),
    "reshard-scheme": Case(("reshard", "{0}/sound", "foo://b/new", "--num_shards=3"), 2, "foo://"),
    "reshard-files-truncated": Case(
        ("reshard", "{0}/truncated/train-*", "{0}/files", "--file_format=array_record"), 1,
        "train-00001-of-00002.tfrecord: record at byte",
    ),
    "fingerprint-scheme": Case(
        ("fingerprint", "--input=foo://bucket/x", "--output={0}/v1"), 2, "no filesystem"
    ),
    "fingerprint-missing": Case(
        ("fingerprint", "--input={0}/nothing", "--output={0}/v1"), 2, "nothing"
    ),
    "fingerprint-empty": Case(
        ("fingerprint", "--input={0}/empty", "--output={0}/v1"), 2, "no image found"
    ),
}  # fmt: skip


def make(folder: Path) -> None:
    """Writes the data sets of all cases."""
    for name, classes in (("sound", 1), ("other", 2)):
        write_images(folder / f"in-{name}", classes, 6)
        options = BuildOptions.of(
            input=(str(folder / f"in-{name}"),), output=str(folder / name), num_shards="2"
        )
        run(options, ["--runner=FnApiRunner"], show_progress=False)
    for name in ("truncated", "missing", "foreign"):
        shutil.copytree(folder / "sound", folder / name)
    truncated, missing, foreign = (
        shards(folder / name)[1] for name in ("truncated", "missing", "foreign")
    )
    truncated.write_bytes(truncated.read_bytes()[:-7])
    missing.unlink()
    foreign.write_bytes(shards(folder / "other")[1].read_bytes())
    (folder / "empty").mkdir()
    (folder / "list.txt").write_text("")


Outcome = tuple[int, str, str]


def outcome(command: Callable[..., Outcome], case: Case, folder: Path, *options: str) -> Outcome:
    """Runs a case, and checks that it ends with lines that name the problem."""
    arguments = [argument.format(folder) for argument in case.arguments]
    code, out, err = command(*arguments, *options)
    assert code == case.code, (out, err)
    assert case.message in err
    assert all(line.startswith(("imageshards: ", str(folder))) for line in err.splitlines()), err
    assert arguments[0] == "verify" or err.count("\n") == 1, err
    return code, out, err
