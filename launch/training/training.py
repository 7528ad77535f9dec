"""What the trainings in Keras and in JAX share: options, data, and where the loop pauses.

`train.py` and `train_jax.py` are the commands; `loop_keras.py` and `loop_jax.py` are what there is
to read, and to copy from.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from imageshards import reader
from imageshards.pipeline.options.parser import Parser
from imageshards.reader.dataset import open_dataset
from imageshards.reader.files import find
from imageshards.reader.splits import share_of
from imageshards.transforms.elements import BuildError, UsageError

if TYPE_CHECKING:
    from imageshards.reader.stream import ImageDataset

_LARGEST = 224


@dataclass(frozen=True)
class Options:
    """Of a training; the command's options of the same names."""

    dataset: str
    model_dir: str
    epochs: int = 20
    batch_size: int = 64
    train_split: str = "train"
    test_split: str = "test"
    image_size: int = 0
    channels: int = 3
    augment: Literal["shift", "crop", "none"] = "shift"
    blocks: tuple[int, ...] = (1, 1, 1)
    width: int = 32
    learning_rate: float = 0.1
    seed: int = 0
    log_steps: int = 20
    checkpoint_steps: int = 500
    tpu: str = ""
    distributed: bool = False

    @property
    def peak_rate(self) -> float:
        """The highest learning rate, in proportion to the batch."""
        return self.learning_rate * self.batch_size / 256

    def path(self, name: str) -> str:
        """Of a file in model_dir."""
        return f"{self.model_dir.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Result:
    """What a training reached.

    Attributes:
      step: training steps since the beginning.
      correct: images of the test split whose class was found.
      images: all images of the test split.
    """

    step: int
    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""
        return self.correct / self.images


class Data:
    """The two splits that a training reads.

    Attributes:
      classes: how many.
      image_size: height and width of the images, in pixels.
    """

    def __init__(self, options: Options, dtype: Literal["float32", "bfloat16"]) -> None:
        self._options, self._dtype = options, dtype
        dataset = open_dataset(options.dataset)
        if dataset.schema.holds == "text":
            raise UsageError(f"{options.dataset}: holds texts: these trainings take images")
        self.classes = len(dataset.classes)
        if self.classes < 2:
            raise UsageError(
                f"{options.dataset}: {self.classes} classes: train on a folder that imageshards "
                "build made from images with labels"
            )
        if dataset.build["options"].get("pixel_range") == "0..255":
            raise UsageError(
                f"{options.dataset}: its pixels are floats from 0 to 255, and these trainings take "
                "0 to 1: build it with --pixel_range 0..1"
            )
        self._source = find(options.dataset)
        self._source.spans(options.test_split)
        self.image_size = options.image_size or self._size_of_the_first()

    def _size_of_the_first(self) -> int:
        options = self._options
        one = reader.load(options.dataset, options.train_split, shuffle=False, dtype=self._dtype)
        return min(*map(int, next(iter(one))[0].shape[:2]), _LARGEST)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        return (self.image_size, self.image_size, self._options.channels)

    def train(
        self, batch_size: int, num_hosts: int = 1, host: int = 0, start: int = 0
    ) -> ImageDataset:
        """Endless batches of this host, (images, labels), behind the first `start` records."""
        return reader.load(
            self._options.dataset,
            self._options.train_split,
            batch_size=batch_size,
            augment=self._options.augment == "crop",
            seed=self._options.seed,
            num_hosts=num_hosts,
            host=host,
            start=start,
            **self._format,
        )

    def test(self, batch_size: int, num_hosts: int = 1, host: int = 0) -> Any:
        """Batches of this host, (images, labels, weights), as many as on all other hosts.

        Batches are full, since shapes are static: the last ones with images of weight 0.
        """
        import tensorflow as tf

        data = reader.load(
            self._options.dataset,
            self._options.test_split,
            crop_fraction=0.875 if self._options.augment == "crop" else 1.0,
            shuffle=False,
            repeat=False,
            num_hosts=num_hosts,
            host=host,
            **self._format,
        )
        blank = (
            tf.zeros(self.shape, data.element_spec[0].dtype),
            tf.zeros([], data.element_spec[1].dtype),
            0.0,
        )
        weighted = data.map(lambda image, label: (image, label, 1.0))
        padding = tf.data.Dataset.from_tensors(blank).repeat()
        batches = weighted.concatenate(padding).batch(batch_size, drop_remainder=True)
        # Hosts have their shares already.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return batches.take(self._test_steps(batch_size, num_hosts)).with_options(options)

    def _test_steps(self, batch_size: int, num_hosts: int) -> int:
        spans = self._source.spans(self._options.test_split)
        shares = [share_of(spans, num_hosts, host) for host in range(num_hosts)]
        most = max(sum(span.records for span in share) for share in shares)
        return -(-most // batch_size)

    @cached_property
    def test_images(self) -> int:
        """Of all hosts together."""
        return sum(span.records for span in self._source.spans(self._options.test_split))

    @property
    def _format(self) -> dict[str, Any]:
        return {
            "image_size": self.image_size,
            "channels": self._options.channels,
            "dtype": self._dtype,
        }


def stops(step: int, last: int, *every: int) -> Iterator[int]:
    """Steps behind `step` at which a loop pauses: multiples of each of `every`, and the last."""
    while step < last:
        step = min(last, *(step - step % n + n for n in every))
        yield step


def share(batch_size: int, parts: int, what: str) -> int:
    """The part of a batch that each gets.

    Raises:
      UsageError: it does not divide.
    """
    if batch_size % parts:
        raise UsageError(f"--batch_size {batch_size}: take a multiple of the {parts} {what}")
    return batch_size // parts


# What one may change from run to run of a training: how long, how fast, where, what is told.
_FREE = {"dataset", "model_dir", "epochs", "learning_rate", "log_steps", "checkpoint_steps", "tpu",
         "distributed", "test_split"}  # fmt: skip


def claim(options: Options, data: Data, loop: str) -> None:
    """Writes into model_dir what the training is, or makes sure that it is this one.

    Raises:
      UsageError: it is another.
    """
    import tensorflow as tf

    mine = {k: v for k, v in dataclasses.asdict(options).items() if k not in _FREE}
    mine |= {"image_size": data.image_size, "blocks": list(options.blocks), "loop": loop}
    path = options.path("training.json")
    if not tf.io.gfile.exists(path):
        tf.io.gfile.makedirs(options.model_dir)
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(json.dumps(mine, indent=2) + "\n")
        return
    with tf.io.gfile.GFile(path) as file:
        theirs = json.loads(file.read())
    other = [f"{key} {theirs.get(key)!r}" for key in mine if theirs.get(key) != mine[key]]
    if other:
        raise UsageError(
            f"{options.model_dir}: holds a training with {', '.join(other)}: take the same, or "
            "another --model_dir"
        )


def tell(line: str) -> None:
    """Says how it goes, on stderr."""
    print(line, file=sys.stderr, flush=True)


def command(
    name: str,
    needs: Mapping[str, str],
    load: Callable[[], Callable[[Options], Result | None]],
    arguments: Sequence[str] | None,
    description: str,
) -> int:
    """Runs the command line of a training; returns the exit code.

    Args:
      name: of the command.
      needs: modules that must be installed -> what is to be installed.
      load: imports the loop.
      arguments: of the command line; None: those of this process.
      description: for --help.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parse(name, arguments, description)
        for module, package in needs.items():
            if importlib.util.find_spec(module) is None:
                raise UsageError(f"{module} is not installed: pip install {package}")
        # TensorFlow's remarks on processors and drivers are for its makers.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        result = load()(options)
    except (UsageError, BuildError) as error:
        return _complain(name, str(error), 2)
    except KeyboardInterrupt:
        return _complain(name, "interrupted; the same command goes on from the checkpoint", 130)
    except Exception as error:
        if "--verbose" in arguments:
            raise
        first = (str(error).strip() or "no message").splitlines()[0]
        return _complain(name, f"{type(error).__name__}: {first} (--verbose shows where)", 1)
    if result:  # of several processes, the first one tells
        print(
            f"test accuracy {result.accuracy:.2%} ({result.correct:,} of {result.images:,} images) "
            f"after {result.step:,} steps; {options.model_dir}",
            flush=True,
        )
    return 0


def _complain(name: str, message: str, code: int) -> int:
    print(f"{name}: {message}", file=sys.stderr)
    return code


def _parse(name: str, arguments: Sequence[str], description: str) -> Options:
    parser = Parser(
        prog=f"python -m imageshards.launch.{name}", description=description, allow_abbrev=False
    )
    parser.add_argument("dataset", metavar="DATASET", help="the folder of a data set")
    parser.add_argument(
        "--model_dir", required=True, metavar="DIR",
        help="for checkpoints, TensorBoard's logs and the model; a training that is there goes on",
    )  # fmt: skip

    def add(option: str, what: str, kind: Callable[[str], object] = _count, **more: Any) -> None:
        default = getattr(Options, option)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        what += f" (default {shown})" if default else ""
        parser.add_argument(f"--{option}", type=kind, default=default, help=what, **more)

    add("epochs", "times through the data", metavar="N")
    add("batch_size", "images in a step, of all devices together", metavar="N")
    add("train_split", "such as train, train[:90%%], train+validation", str, metavar="SPLIT")
    add("test_split", "what the accuracy is measured on", str, metavar="SPLIT")
    add(
        "image_size", f"height and width (default: of the first image, {_LARGEST} at most)",
        metavar="PIXELS",
    )  # fmt: skip
    add("channels", "1: grey, 3: colours", int, choices=(1, 3))
    add(
        "augment", "of the training: shift each image by up to an eighth of its size; or cut a "
        "random part and mirror every other one, which is usual for photographs", str,
        choices=("shift", "crop", "none"),
    )  # fmt: skip
    add(
        "blocks", "of the ResNet in each of its stages; 3,4,6,3 is ResNet-34", _counts,
        metavar="N,N,...",
    )  # fmt: skip
    add("width", "channels of the first stage, which each next one doubles", metavar="N")
    add(
        "learning_rate", "the highest, for a batch of 256; of other batches in proportion", float,
        metavar="X",
    )  # fmt: skip
    add("seed", "of the order, the augmentation and the first weights", int, metavar="N")
    add("log_steps", "steps from one entry in the logs to the next", metavar="N")
    add(
        "checkpoint_steps", "steps from one checkpoint to the next; each epoch ends with one too",
        metavar="N",
    )  # fmt: skip
    if name == "train":
        add("tpu", "name of a TPU, or local; without it, one in this machine is found", str)
    else:
        parser.add_argument(
            "--distributed", action="store_true",
            help="join the processes that run this command on the other hosts, as "
            "jax.distributed.initialize() finds them",
        )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show tracebacks")
    values = vars(parser.parse_args(arguments))
    del values["verbose"]
    return Options(**values)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: take a whole number from 1 on")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))
