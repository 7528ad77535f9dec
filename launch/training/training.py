"""The options, the data and the loop of the trainings in Keras and in JAX.

`train.py` and `train_jax.py` are the commands. `loop_keras.py` and `loop_jax.py` are the examples
to read and to copy from.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from imageshards import reader
from imageshards.reader.dataset import open_dataset
from imageshards.reader.files import find
from imageshards.transforms import storage
from imageshards.transforms.elements import BuildError, UsageError

if TYPE_CHECKING:
    from imageshards.reader.grain.batches import Batches
    from imageshards.reader.tensorflow.dataset import ImageDataset

MAX_IMAGE_SIZE = 224


@dataclass(frozen=True)
class Options:
    """The options of a training, named like those of the command."""

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
    input: Literal["grain", "load"] = "grain"

    @property
    def peak_rate(self) -> float:
        """The highest learning rate, which is proportional to the batch size."""
        return self.learning_rate * self.batch_size / 256

    def path(self, name: str) -> str:
        """Returns the path of a file in model_dir."""
        return storage.join(self.model_dir, name)


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
      step: the number of training steps.
      correct: the number of images of the test split that were classified correctly.
      images: the number of images of the test split.
    """

    step: int
    correct: int
    images: int

    @property
    def accuracy(self) -> float:
        """The test accuracy, from 0 to 1."""
        return self.correct / self.images


_MAY_CHANGE = {"dataset", "model_dir", "epochs", "learning_rate", "log_steps", "checkpoint_steps",
               "tpu", "distributed", "test_split"}  # fmt: skip
"""Options that may differ between runs of one training."""


class Data:
    """The splits to train on and to test on.

    Attributes:
      classes: the number of classes.
      image_size: the height and width of the images, in pixels.
      dtype: the type of the images.
      test_images: the number of images in the test split, on all hosts together.
    """

    def __init__(self, options: Options, dtype: Literal["float32", "bfloat16"]) -> None:
        self._options, self.dtype = options, dtype
        dataset = open_dataset(options.dataset)
        if dataset.schema.holds == "text":
            raise UsageError(
                f"{options.dataset}: its records are texts: train on a data set of images"
            )
        self.classes = len(dataset.classes)
        schema, what = dataset.schema, ""
        if schema.value_key:
            what = "its labels are numbers"
        elif (label := schema.feature_with(schema.class_key)) and label.tfds == "ClassLabels":
            what = "its images have several classes"
        elif not schema.class_key:
            what = "it has no labels"
        if what:
            raise UsageError(
                f"{options.dataset}: {what}, and this training requires one class for each image: "
                "build it with such --labels, or train a model of your own on reader.load or "
                "reader.grain"
            )
        if self.classes < 2:
            raise UsageError(
                f"{options.dataset}: the number of classes is {self.classes}: train on a data set "
                "with at least 2"
            )
        if dataset.build["options"].get("pixel_range") == "0..255":
            raise UsageError(
                f"{options.dataset}: its pixels are floats from 0 to 255, and training requires "
                "0 to 1: build it with --pixel_range 0..1"
            )
        # Raises an error before the training if there is no such split.
        source = find(options.dataset)
        self._train_spans = source.spans(options.train_split)
        self.test_images = sum(span.records for span in source.spans(options.test_split))
        self.image_size = options.image_size or self._size_of_first_image()

    def _size_of_first_image(self) -> int:
        options = self._options
        one = reader.load(options.dataset, options.train_split, shuffle=False, dtype=self.dtype)
        return min(*map(int, next(iter(one))[0].shape[:2]), MAX_IMAGE_SIZE)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The height, width and channels of the images."""
        return (self.image_size, self.image_size, self._options.channels)

    def train(
        self, batch_size: int, num_hosts: int = 1, host: int = 0, start: int = 0
    ) -> ImageDataset:
        """Returns endless batches of this host: (images, labels).

        Args:
          batch_size: the number of images in a batch.
          num_hosts: the number of hosts that share the records.
          host: the index of this host.
          start: the number of records to skip.

        Raises:
          BuildError: an epoch has fewer records than a global batch.
        """
        self._check_epoch(batch_size * num_hosts)
        return self._load(
            self._options.train_split,
            batch_size=batch_size,
            augment=self._options.augment == "crop",
            seed=self._options.seed,
            num_hosts=num_hosts,
            host=host,
            start=start,
        )

    def _check_epoch(self, batch_size: int) -> None:
        if sum(span.records for span in self._train_spans) < batch_size:
            raise BuildError(
                f"--batch_size {self._options.batch_size}: there are fewer images in an epoch: use "
                "a smaller one"
            )

    def grain(self, batch_size: int, num_hosts: int = 1, host: int = 0) -> Batches:
        """Returns endless batches of this host, by Grain: (images, labels); see `train`."""
        self._check_epoch(batch_size * num_hosts)
        return reader.grain(
            self._options.dataset,
            self._options.train_split,
            batch_size=batch_size,
            image_size=self.image_size,
            channels=self._options.channels,
            dtype=self.dtype,
            augment=self._options.augment == "crop",
            seed=self._options.seed,
            num_hosts=num_hosts,
            host=host,
        )

    def test(self, batch_size: int, num_hosts: int = 1, host: int = 0) -> Any:
        """Returns batches of this host: (images, labels, weights).

        All hosts have the same number of batches. All batches are complete, since their shapes are
        static: the last ones are padded with images of weight 0.
        """
        import tensorflow as tf

        from imageshards.reader.tensorflow.recipe import without_auto_sharding

        # In batches, a host reads consecutive records: from a bucket, in few requests.
        data = self._load(
            self._options.test_split,
            batch_size=batch_size,
            crop_fraction=0.875 if self._options.augment == "crop" else 1.0,
            shuffle=False,
            repeat=False,
            num_hosts=num_hosts,
            host=host,
        ).unbatch()
        image, label = data.element_spec
        blank = (tf.zeros(self.shape, image.dtype), tf.zeros([], label.dtype), 0.0)
        weighted = data.map(lambda image, label: (image, label, 1.0))
        padding = tf.data.Dataset.from_tensors(blank).repeat()
        batches = weighted.concatenate(padding).batch(batch_size, drop_remainder=True)
        steps = -(-self.test_images // (batch_size * num_hosts))
        return without_auto_sharding(batches.take(steps))

    def save_or_check_options(self, loop: str) -> None:
        """Writes the options to model_dir, or checks that the training there has the same options.

        Args:
          loop: the name of the loop, since its checkpoints cannot be used by the other loop.

        Raises:
          UsageError: model_dir holds another training.
        """
        self.check_options(loop)
        self.save_options(loop)

    def check_options(self, loop: str) -> None:
        """Checks that the training in model_dir, if there is one, has the same options.

        Raises:
          UsageError: model_dir holds another training.
        """
        import tensorflow as tf

        mine, path = self._saved(loop), self._options.path("training.json")
        if not tf.io.gfile.exists(path):
            return
        with tf.io.gfile.GFile(path) as file:
            theirs = json.loads(file.read())
        other = [f"{key} {theirs.get(key)!r}" for key in mine if theirs.get(key) != mine[key]]
        if other:
            raise UsageError(
                f"{self._options.model_dir}: holds a training with {', '.join(other)}: use the "
                "same options or another --model_dir"
            )

    def save_options(self, loop: str) -> None:
        """Writes the options to model_dir, if it holds no training."""
        import tensorflow as tf

        path = self._options.path("training.json")
        if not tf.io.gfile.exists(path):
            tf.io.gfile.makedirs(self._options.model_dir)
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(json.dumps(self._saved(loop), indent=2) + "\n")

    def _saved(self, loop: str) -> dict[str, Any]:
        """Returns the options that stay the same during a training."""
        options = self._options
        mine = {k: v for k, v in dataclasses.asdict(options).items() if k not in _MAY_CHANGE}
        if loop != "jax":
            del mine["input"]
        return {**mine, "image_size": self.image_size, "blocks": list(options.blocks), "loop": loop}

    def _load(self, split: str, **options: Any) -> ImageDataset:
        return reader.load(
            self._options.dataset,
            split,
            image_size=self.image_size,
            channels=self._options.channels,
            dtype=self.dtype,
            **options,
        )


def pauses(step: int, last: int, *intervals: int) -> Iterator[int]:
    """Yields the steps after `step` at which a loop pauses: multiples of intervals, and `last`."""
    while step < last:
        step = min(last, *(step - step % n + n for n in intervals))
        yield step


def divide(batch_size: int, parts: int, what: str) -> int:
    """Returns the part of a batch for each of the `parts` devices or hosts.

    Raises:
      UsageError: the batch size is not a multiple of `parts`.
    """
    if batch_size % parts:
        raise UsageError(
            f"invalid --batch_size {batch_size}: must be a multiple of the {parts} {what}"
        )
    return batch_size // parts


class Trainer(Protocol):
    """The model that `run_loop` trains."""

    def run(self, steps: int) -> float:
        """Trains for a number of steps; returns the mean loss."""

    def count_correct(self) -> int:
        """Returns how many images of the test split are classified correctly."""

    def save(self, step: int) -> None:
        """Writes a checkpoint."""


def run_loop(
    trainer: Trainer,
    options: Options,
    data: Data,
    epoch_steps: int,
    step: int,
    first_host: bool = True,
) -> Result:
    """Trains for `options.epochs` epochs, writes logs and checkpoints, and tests after each epoch.

    Args:
      trainer: the model.
      options: the options of the command.
      data: the data set.
      epoch_steps: the number of steps in an epoch.
      step: the number of steps before this run.
      first_host: whether this process writes the logs, as the first of several hosts does.
    """
    import tensorflow as tf

    if first_host:
        logs = tf.summary.create_file_writer(options.path("logs"))
    else:
        logs = tf.summary.create_noop_writer()
    last = options.epochs * epoch_steps
    result, began, first_step = None, time.monotonic(), step
    with logs.as_default():
        for pause in pauses(step, last, epoch_steps, options.log_steps, options.checkpoint_steps):
            loss, step = trainer.run(pause - step), pause
            tf.summary.scalar("train/loss", loss, step)
            if step % epoch_steps and step % options.checkpoint_steps:
                continue
            logs.flush()  # before the checkpoint: a kill between the two leaves no gap in the logs
            trainer.save(step)
            if step % epoch_steps:
                continue
            speed = (step - first_step) * options.batch_size / (time.monotonic() - began)
            result = Result(step, trainer.count_correct(), data.test_images)
            tf.summary.scalar("test/accuracy", result.accuracy, step)
            tf.summary.scalar("train/images_per_second", speed, step)
            if first_host:
                log(
                    f"epoch {step // epoch_steps} of {options.epochs}: loss {loss:.3f}, test "
                    f"accuracy {result.accuracy:.2%}, {speed:,.0f} images/s"
                )
            began, first_step = time.monotonic(), step
    return result or Result(step, trainer.count_correct(), data.test_images)


def log(line: str) -> None:
    """Prints a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
