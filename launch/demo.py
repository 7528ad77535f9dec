"""`imageshards demo` builds and verifies a data set of 1,797 handwritten digits.

Source and licence of the digits: digits.txt.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from imageshards.launch.terminal import say
from imageshards.pipeline.options.parser import refuse

_FOLDER = "imageshards-demo"
_DIGITS = Path(__file__).parent / "digits.npz"
_MARK = "README.txt"
_WRITTEN = "`imageshards demo` wrote this folder."
_README = f"{_WRITTEN} Run again, it restores the folders images and digits.\n\n"
_SPLITS = "train=0.8,validation=0.1,test=0.1"
_SHARDS = "train=4,validation=1,test=1"
_EPILOGUE = """
Look at it:

  {report}
  {program} inspect {quoted}

Read a record:

  from imageshards import reader
  print(reader.open({output!r}, "train")[0])

Read it with TensorFlow (pip install tensorflow tensorflow-datasets):

  import tensorflow_datasets as tfds
  data = tfds.builder_from_directory({output!r}).as_dataset(split="train")
  print(next(iter(data.batch(32)))["image/encoded"].shape)

Then build your own: {program} build --input PHOTOS --output DATASET"""


def declare(parser: ArgumentParser) -> None:
    """Adds the arguments of the command to a parser."""
    parser.add_argument(
        "folder", nargs="?", default=_FOLDER, metavar="DIR",
        help=f"New folder for the images and the data set (default: {_FOLDER})",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="Show tracebacks")


def run(args: Namespace) -> int:
    """Writes the images to a folder, builds and verifies their data set; returns an exit code.

    Raises:
      UsageError: the folder has other files.
    """
    from imageshards.launch.cli import main  # it imports this module

    if "://" in args.folder:
        refuse(f"{args.folder}: the demo writes to a folder of this machine; name a local folder")
    folder = Path(args.folder)
    images, output = folder / "images", folder / "digits"
    _prepare(folder)
    count = write_digits(images)
    say(f"{count:,} images of handwritten digits in {images}")
    program = _program()
    verbose = ["--verbose"] if args.verbose else []
    build = [
        f"--input={images}", f"--output={output}", f"--splits={_SPLITS}", f"--num_shards={_SHARDS}",
        *(["--overwrite"] if output.exists() else []),
    ]  # fmt: skip
    for command in (["build", *build, *verbose], ["verify", str(output), *verbose]):
        say(f"\n$ {program} {shlex.join(command)}")
        if code := main(command, own_process=args.own_process):
            return code
    report = output / "metadata/report.html"
    quoted = shlex.quote(str(output))
    say(_EPILOGUE.format(program=program, output=str(output), quoted=quoted, report=report))
    return 0


def _program() -> str:
    """Returns the command as this shell finds it: by its name, or by a path."""
    path = Path(sys.executable).with_name("imageshards")
    if shutil.which("imageshards") == str(path) or not path.exists():
        return "imageshards"
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def write_digits(folder: Path) -> int:
    """Writes the digits as grayscale PNG files of 8 x 8 pixels: FOLDER/CLASS/NUMBER.png.

    Files that an earlier demo wrote are kept, so that their data set is found to be complete.

    Returns:
      The number of files.
    """
    import io

    import numpy as np
    from PIL import Image

    with np.load(_DIGITS) as digits:
        images, labels = digits["images"], digits["labels"]
    for label in range(10):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        encoded = io.BytesIO()
        Image.fromarray((pixels * (255 / 16)).astype("uint8")).save(encoded, "png")
        path = folder / str(label) / f"{number:04d}.png"
        if not path.is_file() or path.read_bytes() != encoded.getvalue():
            path.write_bytes(encoded.getvalue())
    return len(images)


def _prepare(folder: Path) -> None:
    """Creates the folder, or checks that an earlier demo wrote it.

    Raises:
      UsageError: the folder has other files, or cannot be written.
    """
    from imageshards.transforms.elements import UsageError

    mark = folder / _MARK
    try:
        is_mine = mark.is_file() and mark.read_bytes().startswith(_WRITTEN.encode())
        if folder.is_dir() and any(folder.iterdir()) and not is_mine:
            reason = "not empty, and not of an earlier demo; name a new folder"
            raise UsageError(f"{folder}: {reason}")
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(_README + _DIGITS.with_suffix(".txt").read_text())
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name another folder") from error
