"""A ResNet in Keras, trained on a TPU, on GPUs or on the CPU.

Each host reads its own records. A checkpoint holds the model, the optimizer and the position in the
input. The order of the records is a function of the seed, so a killed training resumes with the
next record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from imageshards.launch.training.tpu import has_tpu
from imageshards.launch.training.training import Data, Options, Result, divide, log, run_loop
from imageshards.reader.tensorflow.dataset import ImageDataset
from imageshards.transforms.elements import BuildError, UsageError


def train(options: Options) -> Result:
    """Trains for `options.epochs` epochs, from the newest checkpoint if there is one."""
    try:
        return _train(options, strategy_for(options.tpu))
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        # Unreadable records fail where the next batch is requested; other errors are the model's.
        if isinstance(error, tf.errors.InvalidArgumentError) and (
            "IteratorGetNext" not in error.message
        ):
            raise
        # TensorFlow's message is a heading, then the reason, then [[the location]].
        reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
        raise BuildError(
            f"{options.dataset}: a record cannot be read (imageshards verify shows which): {reason}"
        ) from error
    except tf.errors.ResourceExhaustedError as error:
        raise BuildError(
            f"not enough memory for --batch_size {options.batch_size}: use a smaller one"
        ) from error


def strategy_for(tpu: str, root: Path = Path("/")) -> tf.distribute.Strategy:
    """Returns the strategy for the TPU if there is one, else for all GPUs, else for the CPU.

    Args:
      tpu: the name of a TPU; `local` for that of this machine; `none`; empty for the TPU of the
        environment variable TPU_NAME or of this machine, if there is one.
      root: the root of the filesystem, in which a TPU is looked for.

    Raises:
      UsageError: TensorFlow cannot use the TPU.
    """
    if not tpu:
        tpu = os.environ.get("TPU_NAME") or ("local" if has_tpu(root) else "none")
    if tpu != "none":
        return _tpu_strategy(tpu)
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    if len(tf.config.list_logical_devices("CPU")) > 1:  # one CPU divided into several, for tests
        return tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
    return tf.distribute.get_strategy()


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        which = "of this machine" if tpu == "local" else tpu
        reason = (str(error).strip() or "no reason given").splitlines()[0].partition(". ")[0]
        raise UsageError(
            f"TensorFlow {tf.__version__} cannot use the TPU {which} ({reason}): train with "
            "imageshards.launch.training.train_jax, install imageshards[tpu] in an environment "
            "without tensorflow, or train without a TPU by --tpu none"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def resnet(shape: tuple[int, int, int], classes: int, blocks: tuple[int, ...], width: int) -> Any:
    """A residual network with pre-activation (He et al. 2016, arXiv:1603.05027).

    Args:
      shape: the height, width and channels of the images, which have values from 0 to 1.
      classes: the number of classes.
      blocks: the residual blocks of each stage; each stage but the first halves height and width.
      width: the channels of the first stage; each stage doubles them.

    Returns:
      A keras.Model: images [batch, height, width, channels] -> logits, float32 [batch, classes].
    """

    def convolve(x: Any, filters: int, kernel: int, strides: int = 1) -> Any:
        return keras.layers.Conv2D(
            filters, kernel, strides, "same", use_bias=False, kernel_initializer="he_normal"
        )(x)

    def activate(x: Any) -> Any:
        return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))

    image = keras.Input(shape)
    x = keras.layers.Rescaling(2.0, offset=-1.0)(image)
    x = convolve(x, width, 7, 2) if shape[0] >= 128 else convolve(x, width, 3)
    if shape[0] >= 128:
        x = keras.layers.MaxPooling2D(3, 2, "same")(x)
    for stage, count in enumerate(blocks):
        for block in range(count):
            strides = 2 if stage and not block else 1
            filters = width << stage
            inner = activate(x)
            straight = x if block else convolve(inner, filters, 1, strides)
            inner = activate(convolve(inner, filters, 3, strides))
            x = straight + convolve(inner, filters, 3)
    x = keras.layers.GlobalAveragePooling2D()(activate(x))
    return keras.Model(image, keras.layers.Dense(classes, dtype="float32")(x))


def shifted(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Shifts each image of a batch by up to an eighth of its size. New pixels are black."""
    size = images.shape[1]
    most = max(size // 8, 1)
    padded = tf.pad(images, [[0, 0], [most, most], [most, most], [0, 0]])
    begin = tf.random.stateless_uniform(
        [2, tf.shape(images)[0], 1], seed, 0, 2 * most + 1, tf.int32
    )
    rows, columns = tf.unstack(begin + tf.range(size))
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def _train(options: Options, strategy: tf.distribute.Strategy) -> Result:
    replicas = strategy.num_replicas_in_sync
    hosts = getattr(strategy.extended, "num_hosts", 1)
    divide(options.batch_size, replicas, "devices")
    host_batch = divide(options.batch_size, hosts, "hosts")
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    if on_tpu:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)
    data = Data(options, "bfloat16" if on_tpu else "float32")
    batches = data.train(host_batch, hosts)
    data.save_or_check_options("keras")
    trainer = _Trainer(options, data, strategy, batches, host_batch)
    if trainer.step:
        log(f"resumes at step {trainer.step:,}, record {trainer.step * host_batch:,} per host")
    devices = f"{replicas} devices" if replicas > 1 else "one device"
    weights = trainer.model.count_params()
    log(f"{devices}, {weights:,} weights, {batches.steps_per_epoch:,} steps per epoch")
    result = run_loop(trainer, options, data, batches.steps_per_epoch, trainer.step)
    trainer.model.save(options.path("model.keras"))
    return result


class _Trainer:
    """The Trainer of `run_loop`: the model and its data."""

    def __init__(
        self,
        options: Options,
        data: Data,
        strategy: tf.distribute.Strategy,
        batches: ImageDataset,
        host_batch: int,
    ) -> None:
        self._options, self._strategy = options, strategy
        self._batches, self._host_batch = batches, host_batch
        epoch_steps = batches.steps_per_epoch
        last = options.epochs * epoch_steps
        with strategy.scope():
            self.model = resnet(data.shape, data.classes, options.blocks, options.width)
            rate = keras.optimizers.schedules.CosineDecay(
                0.0, last, warmup_target=options.peak_rate, warmup_steps=min(epoch_steps, last // 2)
            )
            self._optimizer = keras.optimizers.SGD(
                rate, momentum=0.9, nesterov=True, weight_decay=1e-3
            )
            self._optimizer.build(self.model.trainable_variables)
            self._loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=None
            )
        self._checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self._optimizer, input=batches.iterator()
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, options.path("checkpoints"), max_to_keep=3
        )
        if saved := self._manager.latest_checkpoint:
            # This raises an error if the records are not those of the checkpoint.
            self._checkpoint.restore(saved).assert_existing_objects_matched()
        self.step = int(tf.convert_to_tensor(self._optimizer.iterations.value))
        self._train_batches, self._test_batches = self._read(data)

    def _read(self, data: Data) -> tuple[Any, Any]:
        """Returns an iterator over batches to train on, and the batches to test on."""
        hosts = getattr(self._strategy.extended, "num_hosts", 1)
        replica_batch = self._options.batch_size // self._strategy.num_replicas_in_sync
        start = self.step * self._host_batch

        def train(host: tf.distribute.InputContext) -> tf.data.Dataset:
            return data.train(replica_batch, hosts, host.input_pipeline_id, start)

        def test(host: tf.distribute.InputContext) -> tf.data.Dataset:
            return data.test(replica_batch, hosts, host.input_pipeline_id)

        distribute = self._strategy.distribute_datasets_from_function
        return iter(distribute(train)), distribute(test)

    def run(self, steps: int) -> float:
        return float(self._train_steps(self._train_batches, tf.constant(steps)))

    def count_correct(self) -> int:
        return int(sum(float(self._count_batch(batch)) for batch in self._test_batches))

    def save(self, step: int) -> None:
        self._checkpoint.input = self._batches.starting_at(step * self._host_batch).iterator()
        self._manager.save(step)

    @tf.function  # type: ignore[untyped-decorator]
    def _train_steps(self, batches: Any, steps: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for _ in tf.range(steps):
            losses = self._strategy.run(self._one_step, next(batches))
            total += self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total / tf.cast(steps, tf.float32)

    def _one_step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.model.trainable_variables
        if self._options.augment == "shift":
            # The step is part of the seed: shifts are the same after a restart.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            replicas = self._strategy.num_replicas_in_sync
            number = tf.cast(self._optimizer.iterations, tf.int32) * replicas + replica
            images = shifted(images, tf.stack([self._options.seed, number]))
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            # The gradients of the replicas are summed, so each loss is divided by the whole batch.
            loss = tf.reduce_sum(self._loss(labels, logits)) / self._options.batch_size
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def _count_batch(self, batch: Any) -> tf.Tensor:
        counts = self._strategy.run(self._count, batch)
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)

    def _count(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits = self.model(images, training=False)
        predicted = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        return tf.reduce_sum(tf.where(predicted == labels, weights, 0.0))
