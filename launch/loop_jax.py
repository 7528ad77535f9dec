"""A ResNet in JAX, data-parallel over all devices, of one process or of many.

Weights are on every device, a batch is divided among them; the compiler adds what sums gradients.
Each process reads its own records. Normalization is by groups of channels (arXiv:1803.08494), which
keeps no averages of batches: the weights are all there is to the model.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from imageshards.launch.training import Data, Options, Result, claim, share, stops, tell
from imageshards.reader.stream import ImageDataset
from imageshards.transforms.elements import BuildError

Tree = Any
"""Nested dicts and lists of arrays."""

_GROUPS = 8
_KEPT = 3


def train(options: Options) -> Result | None:
    """Trains until `options.epochs` are done, from the last checkpoint on if there is one.

    Returns:
      What it reached; None in all processes but the first.
    """
    if options.distributed:
        jax.distributed.initialize()
    # TensorFlow only reads here, and would take the memory of all GPUs.
    tf.config.set_visible_devices([], "GPU")
    hosts, host = jax.process_count(), jax.process_index()
    devices = jax.devices()
    share(options.batch_size, len(devices), "devices")
    host_batch = share(options.batch_size, hosts, "hosts")
    mesh = Mesh(np.array(devices), ("batch",))
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    data = Data(options, "bfloat16" if devices[0].platform == "tpu" else "float32")
    if host == 0:
        claim(options, data, "jax")
    mine = data.train(host_batch, hosts, host)
    epoch_steps = mine.steps_per_epoch
    if not epoch_steps:
        raise BuildError(f"--batch_size {options.batch_size}: there are fewer images in an epoch")
    last = options.epochs * epoch_steps
    optimizer = optax.chain(
        optax.add_decayed_weights(5e-4),
        optax.sgd(
            optax.warmup_cosine_decay_schedule(
                0.0, options.peak_rate, min(epoch_steps, last // 2), last
            ),
            momentum=0.9,
            nesterov=True,
        ),
    )
    key = jax.random.key(options.seed)
    weights = resnet_weights(key, data.shape[2], data.classes, options.blocks, options.width)
    training = {"weights": weights, "optimizer": optimizer.init(weights), "step": np.int32(0)}

    @partial(jax.jit, donate_argnums=0)
    def one_step(training: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, jax.Array]:
        if options.augment == "shift":
            # A function of the step: the same after a restart.
            images = shifted(images, jax.random.fold_in(key, training["step"]))

        def loss_of(weights: Tree) -> jax.Array:
            logits = resnet(weights, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(training["weights"])
        updates, state = optimizer.update(gradients, training["optimizer"], training["weights"])
        weights = optax.apply_updates(training["weights"], updates)
        return {"weights": weights, "optimizer": state, "step": training["step"] + 1}, loss

    @jax.jit
    def count_correct(
        weights: Tree, images: jax.Array, labels: jax.Array, counts: jax.Array
    ) -> jax.Array:
        found = jnp.argmax(resnet(weights, images), axis=-1)
        return jnp.sum(jnp.where(found == labels, counts, 0.0))

    def on_devices(batch: Any) -> list[jax.Array]:
        # What this process has read is its part of the batch.
        return [jax.make_array_from_process_local_data(divided, part.numpy()) for part in batch]

    test = data.test(host_batch, hosts, host)

    def evaluate() -> Result:
        counts = [count_correct(training["weights"], *on_devices(batch)) for batch in test]
        return Result(step, int(sum(map(float, counts))), data.test_images)

    saved = last_checkpoint(options)
    if saved:
        training, state = load_checkpoint(saved, training)
        # Refused if the records are not those of the checkpoint.
        data.train(host_batch, hosts, 0).iterator().restore(state)
        mine = mine.starting_at(int(training["step"]) * host_batch)
    training = jax.device_put(training, everywhere)
    step = int(training["step"])
    result = None
    with tf.summary.create_file_writer(options.path("logs")).as_default() if host == 0 else tf.summary.record_if(False):
        pass
    return result
