"""A ResNet in Keras, trained on a TPU, on GPUs or on the processor.

Each host reads its own records. A checkpoint holds the model, the optimizer and the place in the
input; the order of the records is a function of the seed, so a training that was killed goes on at
the very next record.
"""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import tensorflow as tf

from imageshards.launch.training.training import Data, Options, Result, claim, share, stops, tell
from imageshards.transforms.elements import BuildError


def train(options: Options) -> Result:
    """Trains until `options.epochs` are done, from the last checkpoint on if there is one."""
    try:
        return _train(options, strategy_for(options.tpu))
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        # What the input cannot read fails where its next batch is asked for; else it is the model.
        if isinstance(error, tf.errors.InvalidArgumentError) and (
            "IteratorGetNext" not in error.message
        ):
            raise
        # TensorFlow says first that there is an error, then what it is, then [[where]].
        reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
        raise BuildError(
            f"{options.dataset}: a record cannot be read (imageshards verify tells which): {reason}"
        ) from error
    except tf.errors.ResourceExhaustedError as error:
        raise BuildError(
            f"--batch_size {options.batch_size}: memory does not suffice: take a smaller one"
        ) from error


def strategy_for(tpu: str) -> tf.distribute.Strategy:
    """Of the TPU, else of all GPUs, else of the processor."""
    if not tpu and "TPU_NAME" not in os.environ:
        # How the TPUs of a machine show: the first of older ones, the second of newer ones.
        has_tpu = os.path.exists("/dev/accel0") or bool(tf.config.list_physical_devices("TPU"))
        tpu = "local" if has_tpu else ""
    if tpu or "TPU_NAME" in os.environ:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu or None)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    if len(tf.config.list_logical_devices("CPU")) > 1:  # of one processor, to try this
        return tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
    return tf.distribute.get_strategy()


def resnet(shape: tuple[int, int, int], classes: int, blocks: tuple[int, ...], width: int) -> Any:
    """A residual network with pre-activation (He et al. 2016, arXiv:1603.05027).

    Args:
      shape: height, width and channels of the images, whose values are from 0 to 1.
      classes: how many.
      blocks: residual blocks in each stage; each stage but the first halves height and width.
      width: channels of the first stage; each next one has twice as many.

    Returns:
      A keras.Model of images [batch, height, width, channels] to logits, float32 [batch, classes].
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
    """Each image of a batch moved by up to an eighth of its size; what comes in is black."""
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
    replica_batch = share(options.batch_size, replicas, "devices")
    host_batch = share(options.batch_size, hosts, "hosts")
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    if on_tpu:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)
    data = Data(options, "bfloat16" if on_tpu else "float32")
    first = data.train(host_batch, hosts)
    epoch_steps = first.steps_per_epoch
    if first.least_records < host_batch:
        raise BuildError(f"--batch_size {options.batch_size}: there are fewer images in an epoch")
    claim(options, data, "keras")
    last = options.epochs * epoch_steps

    with strategy.scope():
        model = resnet(data.shape, data.classes, options.blocks, options.width)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, last, warmup_target=options.peak_rate, warmup_steps=min(epoch_steps, last // 2)
        )
        optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=1e-3)
        optimizer.build(model.trainable_variables)
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def one_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if options.augment == "shift":
            # A function of the step: the same after a restart.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            place = tf.cast(optimizer.iterations, tf.int32) * replicas + replica
            images = shifted(images, tf.stack([options.seed, place]))
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # Gradients of the replicas are summed: so each counts by its part of the batch.
            loss = tf.reduce_sum(crossentropy(labels, logits)) / options.batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_steps(batches: Any, steps: tf.Tensor) -> tf.Tensor:
        total = 0.0
        for _ in tf.range(steps):
            losses = strategy.run(one_step, next(batches))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return total / tf.cast(steps, tf.float32)

    def count(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        found = tf.argmax(model(images, training=False), axis=-1, output_type=labels.dtype)
        return tf.reduce_sum(tf.where(found == labels, weights, 0.0))

    @tf.function  # type: ignore[untyped-decorator]
    def count_correct(batch: Any) -> tf.Tensor:
        counts = strategy.run(count, batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, counts, axis=None)

    def read_train(host: tf.distribute.InputContext) -> tf.data.Dataset:
        return data.train(replica_batch, hosts, host.input_pipeline_id, step * host_batch)

    def read_test(host: tf.distribute.InputContext) -> tf.data.Dataset:
        return data.test(replica_batch, hosts, host.input_pipeline_id)

    test = strategy.distribute_datasets_from_function(read_test)

    def evaluate() -> Result:
        return Result(
            step, int(sum(float(count_correct(batch)) for batch in test)), data.test_images
        )

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, input=first.iterator())
    manager = tf.train.CheckpointManager(checkpoint, options.path("checkpoints"), max_to_keep=3)
    if manager.latest_checkpoint:
        # Refused if the records are not those of the checkpoint.
        checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
    step = int(tf.convert_to_tensor(optimizer.iterations.value))
    if step:
        tell(f"goes on at step {step:,}, record {step * host_batch:,} of each host")
    devices = f"{replicas} devices" if replicas > 1 else "one device"
    tell(f"{devices}, {model.count_params():,} weights, {epoch_steps:,} steps an epoch")

    batches = iter(strategy.distribute_datasets_from_function(read_train))
    result, began, first_step = None, time.monotonic(), step
    logs = tf.summary.create_file_writer(options.path("logs"))
    with logs.as_default():
        for stop in stops(step, last, epoch_steps, options.log_steps, options.checkpoint_steps):
            loss = float(train_steps(batches, tf.constant(stop - step)))
            step = stop
            tf.summary.scalar("train/loss", loss, step)
            if step % epoch_steps and step % options.checkpoint_steps:
                continue
            logs.flush()  # first, or a kill would leave a gap in what is told
            checkpoint.input = first.starting_at(step * host_batch).iterator()
            manager.save(step)
            if step % epoch_steps:
                continue
            speed = (step - first_step) * options.batch_size / (time.monotonic() - began)
            result = evaluate()
            tf.summary.scalar("test/accuracy", result.accuracy, step)
            tf.summary.scalar("train/images_per_second", speed, step)
            tell(
                f"epoch {step // epoch_steps} of {options.epochs}: loss {loss:.3f}, test accuracy "
                f"{result.accuracy:.2%}, {speed:,.0f} images/s"
            )
            began, first_step = time.monotonic(), step
    model.save(options.path("model.keras"))
    return result or evaluate()
