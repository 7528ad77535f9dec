"""The command lines of the trainings."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imageshards.launch.training.training import MAX_IMAGE_SIZE, Options, Result
from imageshards.pipeline.options.parser import Parser
from imageshards.transforms import extras
from imageshards.transforms.elements import BuildError, UsageError


@dataclass(frozen=True)
class Training:
    """A training that is a command.

    Attributes:
      name: the name of the command.
      loop: the module with the loop.
      extra: the extra of imageshards that installs what it needs.
      description: the text of --help.
    """

    name: str
    loop: str
    extra: str
    description: str


KERAS = Training(
    "train",
    "loop_keras",
    "train",
    "Trains a ResNet in Keras on a data set that imageshards built: on a TPU if there is one, else "
    "on all GPUs, else on the CPU. The same command resumes an interrupted training at the next "
    "record.",
)
JAX = Training(
    "train_jax",
    "loop_jax",
    "jax",
    "Trains a ResNet in JAX on a data set that imageshards built. Each batch is divided among all "
    "devices. The same command resumes an interrupted training at the next record.",
)


def command(training: Training, arguments: Sequence[str] | None) -> int:
    """Runs the command line of a training; returns the exit code.

    Args:
      training: the training.
      arguments: the arguments of the command; None for those of this process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)

    def complain(message: str, code: int) -> int:
        print(f"{training.name}: {message}", file=sys.stderr)
        return code

    try:
        options = parse(training, arguments)
        extras.require(training.extra)
        # Hides TensorFlow's messages about CPU features and drivers.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        loop = importlib.import_module(f"imageshards.launch.training.{training.loop}")
        result: Result | None = loop.train(options)
    except (UsageError, BuildError) as error:
        return complain(str(error), 2)
    except KeyboardInterrupt:
        return complain("interrupted; run the same command to resume from the last checkpoint", 130)
    except Exception as error:
        if "--verbose" in arguments:
            raise
        first = (str(error).strip() or "no message").splitlines()[0]
        return complain(f"{type(error).__name__}: {first} (--verbose shows the traceback)", 1)
    if result:  # only the first process has a result
        print(
            f"test accuracy {result.accuracy:.2%} ({result.correct:,} of {result.images:,} images) "
            f"after {result.step:,} steps; {options.model_dir}",
            flush=True,
        )
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be an integer of at least 1"
        )
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


_OPTIONS: tuple[tuple[str, Callable[[str], object], str | None, str], ...] = (
    ("epochs", _count, "N", "number of passes over the data"),
    ("batch_size", _count, "N", "images in a step, on all devices together"),
    ("train_split", str, "SPLIT", "such as train, train[:90%%] or train+validation"),
    ("test_split", str, "SPLIT", "the split on which the accuracy is measured"),
    (
        "image_size", _count, "PIXELS",
        "height and width of the images (default: the smaller side of the first image, at most "
        f"{MAX_IMAGE_SIZE})",
    ),
    ("channels", int, None, "1 for grayscale, 3 for RGB"),
    (
        "augment", str, None,
        "augmentation of the images to train on. shift: shift by up to an eighth of the size; "
        "crop: random crops and mirroring, usual for photographs",
    ),
    (
        "blocks", _counts, "N,N,...",
        "residual blocks in each stage of the ResNet; 3,4,6,3 is ResNet-34",
    ),
    ("width", _count, "N", "channels of the first stage; each stage doubles them"),
    (
        "learning_rate", float, "X",
        "highest learning rate for a batch of 256; it is proportional to the batch size",
    ),
    ("seed", int, "N", "seed of the order, the augmentation and the initial weights"),
    ("log_steps", _count, "N", "steps between two entries of the logs"),
    (
        "checkpoint_steps", _count, "N",
        "steps between two checkpoints; one is also written after each epoch",
    ),
)  # fmt: skip
_CHOICES: dict[str, Sequence[object]] = {"channels": (1, 3), "augment": ("shift", "crop", "none")}


def parse(training: Training, arguments: Sequence[str]) -> Options:
    """Returns the options of a command line.

    Raises:
      UsageError: an argument is missing or invalid.
    """
    parser = Parser(
        prog=f"python -m imageshards.launch.training.{training.name}",
        description=training.description,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="DATASET", help="the folder of a data set")
    parser.add_argument(
        "--model_dir", required=True, metavar="DIR",
        help="folder of checkpoints, TensorBoard logs and the model; a training in it is resumed",
    )  # fmt: skip
    for option, kind, metavar, text in _OPTIONS:
        default = getattr(Options, option)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        parser.add_argument(
            f"--{option}", type=kind, default=default, metavar=metavar,
            choices=_CHOICES.get(option), help=text + (f" (default {shown})" if default else ""),
        )  # fmt: skip
    if training is KERAS:
        parser.add_argument(
            "--tpu", default="", metavar="NAME",
            help="name of a TPU; local, that of this machine; none, no TPU (default: the TPU of "
            "TPU_NAME or of this machine, if there is one)",
        )  # fmt: skip
    else:
        parser.add_argument(
            "--input", choices=("grain", "load"), default=Options.input,
            help="what reads the records to train on. grain: reader.grain, which shuffles all "
            "records, and resumes on any number of processes that divides the batch; load: "
            "reader.load, which decodes with TensorFlow and reads compressed files too "
            f"(default {Options.input})",
        )  # fmt: skip
        parser.add_argument(
            "--distributed", action="store_true",
            help="join the processes that run this command on other hosts, as "
            "jax.distributed.initialize() finds them",
        )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show tracebacks")
    values = vars(parser.parse_args(arguments))
    del values["verbose"]
    return Options(**values)
