"""A ResNet in JAX, data-parallel over all devices of one process or of many.

The weights are replicated on all devices, and each batch is divided among them; the compiler adds
the sum of the gradients. Each process reads its own records. The model uses group normalization
(arXiv:1803.08494), which has no running averages: the weights are the whole model.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from imageshards.launch.training.tpu import has_tpu
from imageshards.launch.training.training import Data, Options, Result, divide, log, run_loop
from imageshards.reader.tensorflow.dataset import ImageDataset
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError

Tree = Any
"""Nested dicts and lists of arrays."""

_GROUPS = 8
_KEPT_CHECKPOINTS = 3


def train(options: Options, root: Path = Path("/")) -> Result | None:
    """Trains for `options.epochs` epochs, from the newest checkpoint if there is one.

    Args:
      options: the options of the command.
      root: the root of the filesystem, in which a TPU is looked for.

    Returns:
      The result in the first process, None in all others.

    Raises:
      UsageError: the machine has a TPU, but JAX uses the CPU.
    """
    if options.width % _GROUPS:
        raise UsageError(f"invalid --width {options.width}: must be a multiple of {_GROUPS}")
    if options.distributed:
        jax.distributed.initialize()
    # TensorFlow only reads data here. It would reserve the memory of all GPUs.
    tf.config.set_visible_devices([], "GPU")
    hosts, host = jax.process_count(), jax.process_index()
    devices = jax.devices()
    _check_platform(devices[0].platform, root)
    divide(options.batch_size, len(devices), "devices")
    host_batch = divide(options.batch_size, hosts, "hosts")
    data = Data(options, "bfloat16" if devices[0].platform == "tpu" else "float32")
    batches = data.train(host_batch, hosts, host)
    if host == 0:
        data.save_or_check_options("jax")
    trainer = _Trainer(options, data, batches, host_batch)
    if host == 0:
        if trainer.step:
            log(f"resumes at step {trainer.step:,}, record {trainer.step * host_batch:,} per host")
        count = sum(leaf.size for leaf in jax.tree.leaves(trainer.state["weights"]))
        name = f"{len(devices)} devices" if len(devices) > 1 else "one device"
        log(f"{name}, {count:,} weights, {batches.steps_per_epoch:,} steps per epoch")
    result = run_loop(
        trainer, options, data, batches.steps_per_epoch, trainer.step, first_host=host == 0
    )
    return result if host == 0 else None


def _check_platform(platform: str, root: Path) -> None:
    # JAX uses the CPU, with a warning at most, if it cannot use the TPU.
    if platform != "cpu" or jax.config.jax_platforms == "cpu" or not has_tpu(root):
        return
    if importlib.util.find_spec("libtpu"):
        advice = "end the process that uses it"
    else:
        advice = "pip install 'jax[tpu]'"
    raise UsageError(
        f"JAX cannot use the TPU of this machine: {advice}, or set JAX_PLATFORMS=cpu to train on "
        "the CPU"
    )


class _Trainer:
    """The Trainer of `run_loop`: the model and its data."""

    def __init__(
        self, options: Options, data: Data, batches: ImageDataset, host_batch: int
    ) -> None:
        self._options = options
        mesh = Mesh(np.array(jax.devices()), ("batch",))
        self._divided = NamedSharding(mesh, PartitionSpec("batch"))
        optimizer = _optimizer(options, batches.steps_per_epoch)
        key = jax.random.key(options.seed)
        weights = resnet_weights(key, data.shape[2], data.classes, options.blocks, options.width)
        state = {"weights": weights, "optimizer": optimizer.init(weights), "step": np.int32(0)}
        hosts, host = jax.process_count(), jax.process_index()
        saved = last_checkpoint(options)
        if saved:
            state, position = load_checkpoint(saved, state)
            # This raises an error if the records are not those of the checkpoint.
            data.train(host_batch, hosts, 0).iterator().restore(position)
            batches = batches.starting_at(int(state["step"]) * host_batch)
        self.step = int(state["step"])
        self.state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
        self._batches = batches.iterator()
        self._test = data.test(host_batch, hosts, host)
        self._one_step = _one_step(options, optimizer, key)

    def run(self, steps: int) -> float:
        losses = []
        for _ in range(steps):
            self.state, loss = self._one_step(self.state, *self._on_devices(next(self._batches)))
            losses.append(loss)
        return float(jnp.stack(losses).mean())

    def count_correct(self) -> int:
        weights = self.state["weights"]
        counts = [_count_correct(weights, *self._on_devices(batch)) for batch in self._test]
        return int(sum(map(float, counts)))

    def save(self, step: int) -> None:
        if jax.process_index() == 0:
            save_checkpoint(self._options, step, self.state, self._batches.state())

    def _on_devices(self, batch: Any) -> list[jax.Array]:
        """Puts the part of the batch that this process has read on its devices."""
        return [
            jax.make_array_from_process_local_data(self._divided, part.numpy()) for part in batch
        ]


def _optimizer(options: Options, epoch_steps: int) -> optax.GradientTransformation:
    last = options.epochs * epoch_steps
    rate = optax.warmup_cosine_decay_schedule(
        0.0, options.peak_rate, min(epoch_steps, last // 2), last
    )
    return optax.chain(
        optax.add_decayed_weights(5e-4), optax.sgd(rate, momentum=0.9, nesterov=True)
    )


def _one_step(
    options: Options, optimizer: optax.GradientTransformation, key: jax.Array
) -> Callable[[Tree, jax.Array, jax.Array], tuple[Tree, jax.Array]]:
    """Returns the compiled training step: (state, images, labels) -> (state, loss)."""

    @partial(jax.jit, donate_argnums=0)
    def one_step(state: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, jax.Array]:
        if options.augment == "shift":
            # The step is part of the key: shifts are the same after a restart.
            images = shifted(images, jax.random.fold_in(key, state["step"]))

        def loss_of(weights: Tree) -> jax.Array:
            logits = resnet(weights, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["weights"])
        updates, moments = optimizer.update(gradients, state["optimizer"], state["weights"])
        weights = optax.apply_updates(state["weights"], updates)
        return {"weights": weights, "optimizer": moments, "step": state["step"] + 1}, loss

    return one_step  # type: ignore[no-any-return]


@jax.jit  # type: ignore[untyped-decorator]
def _count_correct(
    weights: Tree, images: jax.Array, labels: jax.Array, counts: jax.Array
) -> jax.Array:
    predicted = jnp.argmax(resnet(weights, images), axis=-1)
    return jnp.sum(jnp.where(predicted == labels, counts, 0.0))


def resnet_weights(
    key: jax.Array, channels: int, classes: int, blocks: tuple[int, ...], width: int
) -> Tree:
    """Returns the initial weights of `resnet`.

    Args:
      key: the key of the random numbers.
      channels: the channels of the images.
      classes: the number of classes.
      blocks: the residual blocks of each stage; each stage but the first halves height and width.
      width: the channels of the first stage, a multiple of 8; each stage doubles them.
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
      weights: weights as `resnet_weights` returns them.
      images: [batch, height, width, channels], with values from 0 to 1.

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

    # Only the inputs of blocks are kept for the gradients, and the rest is computed twice.
    @partial(jax.checkpoint, static_argnums=2)
    def residual(x: jax.Array, block: Tree, strides: int) -> jax.Array:
        inner = activate(x, block["norms"][0])
        straight = convolve(inner, block["straight"], strides) if "straight" in block else x
        inner = activate(convolve(inner, block["kernels"][0], strides), block["norms"][1])
        return straight + convolve(inner, block["kernels"][1])

    x = 2 * images - 1
    # The stem reduces the sides of large images to a quarter.
    large = images.shape[1] >= 128
    x = convolve(x, weights["stem"], 2 if large else 1)
    if large:
        window, by_two = (1, 3, 3, 1), (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, by_two, "SAME")
    for stage, blocks in enumerate(weights["stages"]):
        for place, block in enumerate(blocks):
            x = residual(x, block, 2 if stage and not place else 1)
    x = activate(x, weights["norm"]).mean((1, 2)).astype(jnp.float32)
    return x @ weights["dense"]["kernel"] + weights["dense"]["offset"]


def shifted(images: jax.Array, key: jax.Array) -> jax.Array:
    """Shifts each image of a batch by up to an eighth of its size. New pixels are black."""
    most = max(images.shape[1] // 8, 1)
    padded = jnp.pad(images, [(0, 0), (most, most), (most, most), (0, 0)])
    begin = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)

    def cut(image: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (at[0], at[1], 0), images.shape[1:])

    return jax.vmap(cut)(padded, begin)


def save_checkpoint(options: Options, step: int, state: Tree, position: dict[str, Any]) -> None:
    """Writes the state of the training and the position in the input to one file, atomically."""
    arrays: dict[str, Any] = {"input": np.array(json.dumps(position))}
    for number, leaf in enumerate(jax.tree.leaves(state)):
        arrays[f"leaf{number}"] = np.asarray(leaf)
    content = io.BytesIO()
    np.savez(content, **arrays)
    path = options.path(f"checkpoints/step-{step:010d}.npz")
    tf.io.gfile.makedirs(options.path("checkpoints"))
    with tf.io.gfile.GFile(path + ".tmp", "wb") as file:
        file.write(content.getvalue())
    tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
    for old in _checkpoints(options)[:-_KEPT_CHECKPOINTS]:
        tf.io.gfile.remove(old)


def last_checkpoint(options: Options) -> str | None:
    """Returns the path of the newest checkpoint, or None."""
    return next(reversed(_checkpoints(options)), None)


def load_checkpoint(path: str, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Returns the state, with the structure of `like`, and the position in the input."""
    with tf.io.gfile.GFile(path, "rb") as file:
        arrays = np.load(io.BytesIO(file.read()))
    structure = jax.tree.structure(like)
    leaves = [arrays[f"leaf{number}"] for number in range(structure.num_leaves)]
    return jax.tree.unflatten(structure, leaves), json.loads(str(arrays["input"]))


def _checkpoints(options: Options) -> list[str]:
    # A glob pattern would fail on folders whose names contain its special characters.
    folder = options.path("checkpoints")
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    kept = sorted(name for name in names if name.startswith("step-") and name.endswith(".npz"))
    return [storage.join(folder, name) for name in kept]
