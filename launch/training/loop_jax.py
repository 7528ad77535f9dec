"""A ResNet in JAX, data-parallel over all devices, of one process or of many.

Weights are on every device, a batch is divided among them; the compiler adds what sums gradients.
Each process reads its own records. Normalization is by groups of channels (arXiv:1803.08494), which
keeps no averages of batches: the weights are all there is to the model.
"""

from __future__ import annotations

import io
import json
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from imageshards.launch.training.training import Data, Options, Result, claim, share, stops, tell
from imageshards.transforms.elements import BuildError, UsageError

Tree = Any
"""Nested dicts and lists of arrays."""

_GROUPS = 8
_KEPT = 3


def train(options: Options) -> Result | None:
    """Trains until `options.epochs` are done, from the last checkpoint on if there is one.

    Returns:
      What it reached; None in all processes but the first.
    """
    if options.width % _GROUPS:
        raise UsageError(f"--width {options.width}: take a multiple of {_GROUPS}")
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
    mine = data.train(host_batch, hosts, host)
    epoch_steps = mine.steps_per_epoch
    if mine.least_records < host_batch:
        raise BuildError(f"--batch_size {options.batch_size}: there are fewer images in an epoch")
    if host == 0:
        claim(options, data, "jax")
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

    @jax.jit  # type: ignore[untyped-decorator]
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
    if host == 0:
        if step:
            tell(f"goes on at step {step:,}, record {step * host_batch:,} of each host")
        count = sum(leaf.size for leaf in jax.tree.leaves(weights))
        what = f"{len(devices)} devices" if len(devices) > 1 else "one device"
        tell(f"{what}, {count:,} weights, {epoch_steps:,} steps an epoch")
        logs = tf.summary.create_file_writer(options.path("logs"))
    else:
        logs = tf.summary.create_noop_writer()

    batches = mine.iterator()
    result, began, first_step = None, time.monotonic(), step
    with logs.as_default():
        for stop in stops(step, last, epoch_steps, options.log_steps, options.checkpoint_steps):
            losses = []
            for _ in range(stop - step):
                training, loss = one_step(training, *on_devices(next(batches)))
                losses.append(loss)
            step, mean = stop, float(jnp.stack(losses).mean())
            tf.summary.scalar("train/loss", mean, step)
            if step % epoch_steps and step % options.checkpoint_steps:
                continue
            logs.flush()  # first, or a kill would leave a gap in what is told
            if host == 0:
                save_checkpoint(options, step, training, batches.state())
            if step % epoch_steps:
                continue
            speed = (step - first_step) * options.batch_size / (time.monotonic() - began)
            result = evaluate()
            tf.summary.scalar("test/accuracy", result.accuracy, step)
            tf.summary.scalar("train/images_per_second", speed, step)
            if host == 0:
                tell(
                    f"epoch {step // epoch_steps} of {options.epochs}: loss {mean:.3f}, test "
                    f"accuracy {result.accuracy:.2%}, {speed:,.0f} images/s"
                )
            began, first_step = time.monotonic(), step
    result = result or evaluate()
    return result if host == 0 else None


def resnet_weights(
    key: jax.Array, channels: int, classes: int, blocks: tuple[int, ...], width: int
) -> Tree:
    """The first weights of `resnet`.

    Args:
      key: of the random numbers.
      channels: of the images.
      classes: how many.
      blocks: residual blocks in each stage; each stage but the first halves height and width.
      width: channels of the first stage, a multiple of 8; each next one has twice as many.
    """
    keys = iter(jax.random.split(key, 3 * sum(blocks) + 2))

    def kernel(size: int, fan_in: int, fan_out: int) -> jax.Array:
        deviation = np.sqrt(2 / (size * size * fan_in))
        return deviation * jax.random.normal(next(keys), (size, size, fan_in, fan_out))

    def norm(filters: int) -> Tree:
        return {"scale": jnp.ones(filters), "offset": jnp.zeros(filters)}

    stem, before = kernel(3, channels, width), width
    stages: list[list[Tree]] = []
    for stage, count in enumerate(blocks):
        stages.append([])
        for _ in range(count):
            filters = width << stage
            block = {
                "norms": [norm(before), norm(filters)],
                "kernels": [kernel(3, before, filters), kernel(3, filters, filters)],
            }
            if not stages[-1]:
                block["straight"] = kernel(1, before, filters)
            stages[-1].append(block)
            before = filters
    return {
        "stem": stem,
        "stages": stages,
        "norm": norm(before),
        "dense": {
            "kernel": jax.random.normal(next(keys), (before, classes)) / np.sqrt(before),
            "offset": jnp.zeros(classes),
        },
    }


def resnet(weights: Tree, images: jax.Array) -> jax.Array:
    """A residual network with pre-activation (He et al. 2016, arXiv:1603.05027).

    Args:
      weights: of `resnet_weights`.
      images: [batch, height, width, channels], from 0 to 1.

    Returns:
      Logits, float32 [batch, classes].
    """

    def convolve(x: jax.Array, kernel: jax.Array, strides: int = 1) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            kernel.astype(x.dtype),
            (strides, strides),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def activate(x: jax.Array, norm: Tree) -> jax.Array:
        grouped = x.astype(jnp.float32).reshape(*x.shape[:3], _GROUPS, -1)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = grouped.var((1, 2, 4), keepdims=True)
        normal = ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return jax.nn.relu(normal * norm["scale"] + norm["offset"]).astype(x.dtype)

    x = 2 * images - 1
    # Of large images the stem makes a quarter of the sides.
    large = images.shape[1] >= 128
    x = convolve(x, weights["stem"], 2 if large else 1)
    if large:
        window, by_two = (1, 3, 3, 1), (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, by_two, "SAME")
    for stage, blocks in enumerate(weights["stages"]):
        for place, block in enumerate(blocks):
            strides = 2 if stage and not place else 1
            inner = activate(x, block["norms"][0])
            straight = x if place else convolve(inner, block["straight"], strides)
            inner = activate(convolve(inner, block["kernels"][0], strides), block["norms"][1])
            x = straight + convolve(inner, block["kernels"][1])
    x = activate(x, weights["norm"]).mean((1, 2)).astype(jnp.float32)
    return x @ weights["dense"]["kernel"] + weights["dense"]["offset"]


def shifted(images: jax.Array, key: jax.Array) -> jax.Array:
    """Each image of a batch moved by up to an eighth of its size; what comes in is black."""
    most = max(images.shape[1] // 8, 1)
    padded = jnp.pad(images, [(0, 0), (most, most), (most, most), (0, 0)])
    begin = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)

    def cut(image: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (at[0], at[1], 0), images.shape[1:])

    return jax.vmap(cut)(padded, begin)


def save_checkpoint(options: Options, step: int, training: Tree, state: dict[str, Any]) -> None:
    """Writes model, optimizer and place in the input into one file, which appears whole."""
    arrays: dict[str, Any] = {"input": np.array(json.dumps(state))}
    for place, leaf in enumerate(jax.tree.leaves(training)):
        arrays[f"leaf{place}"] = np.asarray(leaf)
    content = io.BytesIO()
    np.savez(content, **arrays)
    path = options.path(f"checkpoints/step-{step:010d}.npz")
    tf.io.gfile.makedirs(options.path("checkpoints"))
    with tf.io.gfile.GFile(path + ".tmp", "wb") as file:
        file.write(content.getvalue())
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
    for old in _checkpoints(options)[:-_KEPT]:
        tf.io.gfile.remove(old)


def last_checkpoint(options: Options) -> str | None:
    """The newest file of `save_checkpoint`, or None."""
    return next(reversed(_checkpoints(options)), None)


def load_checkpoint(path: str, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """What `save_checkpoint` was given: the tree, of the structure of `like`, and the state."""
    with tf.io.gfile.GFile(path, "rb") as file:
        arrays = np.load(io.BytesIO(file.read()))
    structure = jax.tree.structure(like)
    leaves = [arrays[f"leaf{place}"] for place in range(structure.num_leaves)]
    return jax.tree.unflatten(structure, leaves), json.loads(str(arrays["input"]))


def _checkpoints(options: Options) -> list[str]:
    # Not by a pattern: a folder's name may have the letters of one.
    folder = options.path("checkpoints")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    kept = sorted(name for name in names if name.startswith("step-") and name.endswith(".npz"))
    return [f"{folder}/{name}" for name in kept]
