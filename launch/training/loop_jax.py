"""A ResNet in JAX with Flax NNX, data-parallel over all devices of one process or of many.

The weights are replicated on all devices, and each batch is divided among them; the compiler adds
the sum of the gradients. Each process reads its part of each global batch. Orbax saves the model,
the optimizer and the position in the input as one checkpoint, which any number of processes
restores. The model uses group normalization (arXiv:1803.08494), which has no running averages: the
weights are the whole model.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tensorflow as tf
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from imageshards.launch.training.tpu import has_tpu
from imageshards.launch.training.training import Data, Options, Result, divide, log, run_loop
from imageshards.reader.tensorflow.dataset import ImageDataset
from imageshards.transforms import storage
from imageshards.transforms.elements import UsageError

Tree = Any
"""The variables of a model and its optimizer: a tree of arrays."""

_GROUPS = 8
_KEPT_CHECKPOINTS = 3
_LARGE = 128


def train(options: Options, root: Path = Path("/")) -> Result | None:
    """Trains for `options.epochs` epochs, from the newest checkpoint if there is one.

    Args:
      options: the options of the command.
      root: the root of the filesystem, in which a TPU is looked for.

    Returns:
      The result in the first process, None in all others.

    Raises:
      UsageError: an option is invalid, JAX does not find the other processes, or the machine has a
        TPU but JAX uses the CPU.
    """
    if options.width % _GROUPS:
        raise UsageError(f"invalid --width {options.width}: must be a multiple of {_GROUPS}")
    if not {*"*?["}.isdisjoint(options.model_dir):
        raise UsageError(
            f"invalid --model_dir {options.model_dir!r}: Orbax does not restore checkpoints from a "
            "folder whose name contains *, ? or [: use another name"
        )
    if options.distributed:
        _join_processes()
    # TensorFlow only reads data here. It would reserve the memory of all GPUs.
    tf.config.set_visible_devices([], "GPU")
    hosts, host = jax.process_count(), jax.process_index()
    devices = jax.devices()
    _check_platform(devices[0].platform, root)
    divide(options.batch_size, len(devices), "devices")
    host_batch = divide(options.batch_size, hosts, "hosts")
    data = Data(options, "bfloat16" if devices[0].platform == "tpu" else "float32")
    batches, epoch_steps = _batches(options, data, host_batch)
    _check_options(options, data)
    if host == 0:
        data.save_options("jax")
    with _Trainer(options, data, batches, epoch_steps) as trainer:
        if host == 0:
            if trainer.step:
                records = trainer.step * options.batch_size
                log(f"resumes at step {trainer.step:,}, record {records:,}")
            count = sum(leaf.size for leaf in jax.tree.leaves(trainer.weights))
            name = f"{len(devices)} devices" if len(devices) > 1 else "one device"
            log(f"{name}, {count:,} weights, {epoch_steps:,} steps per epoch")
        result = run_loop(trainer, options, data, epoch_steps, trainer.step, first_host=host == 0)
    return result if host == 0 else None


def _join_processes() -> None:
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise UsageError(
            f"--distributed: JAX does not find the other processes ({str(error).rstrip('.')}): run "
            "the command on Cloud TPU, Slurm or Open MPI, or without --distributed"
        ) from error


def _check_options(options: Options, data: Data) -> None:
    """Checks in all processes that they run the same training.

    All of them raise an error, so that none waits for one that has ended.

    Raises:
      UsageError: model_dir holds another training, or the processes have other options.
    """
    error = None
    try:
        data.check_options("jax")
    except UsageError as found:
        error = found
    if jax.process_count() > 1:
        # Paths may differ between hosts.
        mine = {**dataclasses.asdict(options), "dataset": "", "model_dir": ""}
        digest = blake2b(repr(mine).encode(), digest_size=16).digest()
        row = np.frombuffer(digest + bytes([error is not None]), np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(row))
        if error is None and rows[:, -1].any():
            error = UsageError(
                "another process found another training in its --model_dir: use a folder that all "
                "processes share"
            )
        elif error is None and (rows != rows[0]).any():
            error = UsageError(
                "the processes have other options: run the same command on all hosts"
            )
    if error is not None:
        raise error


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


class Block(nnx.Module):  # type: ignore[misc]
    """A residual block with pre-activation (He et al. 2016, arXiv:1603.05027)."""

    def __init__(self, before: int, after: int, strides: int, rngs: nnx.Rngs, dtype: Any) -> None:
        convolution = partial(_convolution, rngs=rngs, dtype=dtype)
        self.norm1 = _norm(before, rngs, dtype)
        self.convolution1 = convolution(before, after, 3, strides)
        self.norm2 = _norm(after, rngs, dtype)
        self.convolution2 = convolution(after, after, 3)
        # The first block of a stage changes the shape, also of what bypasses it.
        self.straight = convolution(before, after, 1, strides) if strides else None

    # Only the inputs of blocks are kept for the gradients, and the rest is computed twice.
    @nnx.remat  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [batch, height / strides, width / strides, after]."""
        inner = nnx.relu(self.norm1(x))
        straight = x if self.straight is None else self.straight(inner)
        inner = nnx.relu(self.norm2(self.convolution1(inner)))
        return straight + self.convolution2(inner)


class ResNet(nnx.Module):  # type: ignore[misc]
    """A residual network for images of any size."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, options: Options, dtype: Any = None
    ) -> None:
        """Makes a network with random weights.

        Args:
          shape: height, width and channels of the images.
          classes: the number of classes.
          options: its `blocks`, `width` and `seed`.
          dtype: the type of the computation; weights are float32.
        """
        rngs = nnx.Rngs(options.seed)
        self.is_large = shape[0] >= _LARGE
        before = options.width
        # The stem reduces the sides of large images to a quarter.
        self.stem = _convolution(shape[2], before, 3, 2 if self.is_large else 1, rngs, dtype)
        blocks = []
        for stage, count in enumerate(options.blocks):
            for number in range(count):
                after = options.width << stage
                strides = 0 if number else (2 if stage else 1)
                blocks.append(Block(before, after, strides, rngs, dtype))
                before = after
        self.blocks = nnx.List(blocks)
        self.norm = _norm(before, rngs, dtype)
        self.dense = nnx.Linear(before, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits, float32 [batch, classes].

        Args:
          images: [batch, height, width, channels], with values from 0 to 1.
        """
        x = self.stem(2 * images - 1)
        if self.is_large:
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        x = nnx.relu(self.norm(x)).mean((1, 2)).astype(jnp.float32)
        return self.dense(x)


def _convolution(
    before: int, after: int, size: int, strides: int = 1, rngs: Any = None, dtype: Any = None
) -> nnx.Conv:
    return nnx.Conv(
        before, after, (size, size), strides=max(strides, 1), use_bias=False, dtype=dtype,
        kernel_init=nnx.initializers.he_normal(), rngs=rngs,
    )  # fmt: skip


def _norm(filters: int, rngs: nnx.Rngs, dtype: Any) -> nnx.GroupNorm:
    return nnx.GroupNorm(filters, num_groups=_GROUPS, epsilon=1e-5, dtype=dtype, rngs=rngs)


class _Batches(Protocol):
    """The methods of Grain's iterators that the training calls."""

    def __next__(self) -> Any: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


class _Loaded:
    """Batches of `reader.load`, with the methods of Grain's iterators."""

    def __init__(self, data: ImageDataset) -> None:
        self._iterator = data.iterator()

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        return self._iterator.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.restore(state)


def _batches(options: Options, data: Data, host_batch: int) -> tuple[_Batches, int]:
    """Returns endless batches of this process, and the number of steps in an epoch."""
    hosts, host = jax.process_count(), jax.process_index()
    if options.input == "grain":
        batches = data.grain(host_batch, hosts, host)
        return iter(batches), batches.steps_per_epoch
    loaded = data.train(host_batch, hosts, host)
    return _Loaded(loaded), loaded.steps_per_epoch


class _Trainer:
    """The Trainer of `run_loop`: the model, its data and its checkpoints."""

    def __init__(self, options: Options, data: Data, batches: _Batches, epoch_steps: int) -> None:
        mesh = Mesh(np.array(jax.devices()), ("batch",))
        self._divided = NamedSharding(mesh, PartitionSpec("batch"))
        replicated = NamedSharding(mesh, PartitionSpec())
        hosts = jax.process_count()
        self._batches = batches
        self._test = data.test(options.batch_size // hosts, hosts, jax.process_index())

        def new() -> tuple[ResNet, nnx.Optimizer]:
            model = ResNet(data.shape, data.classes, options, data.dtype)
            return model, nnx.Optimizer(model, _optimizer(options, epoch_steps), wrt=nnx.Param)

        self._graph, abstract = nnx.split(nnx.eval_shape(new))
        self._checkpoints = _Checkpoints(options)
        self.step = self._checkpoints.last
        if self.step:
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
                abstract,
            )
            self.state, position = self._checkpoints.restore(self.step, like)
            self._batches.set_state(position)
        else:
            self.state = jax.jit(lambda: nnx.state(new()), out_shardings=replicated)()
        self._one_step = _one_step(options, self._graph)
        self._count = _count_correct(self._graph)

    def __enter__(self) -> _Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self._checkpoints.close()

    @property
    def weights(self) -> Tree:
        """The weights of the model."""
        model, _ = nnx.merge(self._graph, self.state)
        return nnx.state(model, nnx.Param)

    def run(self, steps: int) -> float:
        losses = []
        for _ in range(steps):
            self.state, loss = self._one_step(self.state, *self._on_devices(next(self._batches)))
            losses.append(loss)
        return float(jnp.stack(losses).mean())

    def count_correct(self) -> int:
        counts = [self._count(self.state, *self._on_devices(batch)) for batch in self._test]
        return int(sum(map(float, counts)))

    def save(self, step: int) -> None:
        self._checkpoints.save(step, self.state, self._batches.get_state())

    def _on_devices(self, batch: Any) -> list[jax.Array]:
        """Puts the part of the batch that this process has read on its devices."""
        return [
            jax.make_array_from_process_local_data(self._divided, np.asarray(part))
            for part in batch
        ]


class _Checkpoints:
    """The model, the optimizer and the position in the input, by step."""

    def __init__(self, options: Options) -> None:
        folder = options.path("checkpoints")
        if storage.is_local(folder):
            folder = os.path.abspath(folder)  # as Orbax requires
        self._manager = ocp.CheckpointManager(
            folder, options=ocp.CheckpointManagerOptions(max_to_keep=_KEPT_CHECKPOINTS)
        )

    @property
    def last(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return self._manager.latest_step() or 0

    def save(self, step: int, state: Tree, position: dict[str, Any]) -> None:
        """Starts to write a checkpoint. The position is the same in all processes."""
        parts = ocp.args.Composite(
            state=ocp.args.StandardSave(nnx.to_pure_dict(state)),
            input=ocp.args.JsonSave(position),
        )
        self._manager.save(step, args=parts)

    def restore(self, step: int, like: Tree) -> tuple[Tree, dict[str, Any]]:
        """Returns the state, with the structure and shardings of `like`, and the position."""
        parts = ocp.args.Composite(
            state=ocp.args.StandardRestore(nnx.to_pure_dict(like)), input=ocp.args.JsonRestore()
        )
        found = self._manager.restore(step, args=parts)
        nnx.replace_by_pure_dict(like, found.state)
        return like, dict(found.input)

    def close(self) -> None:
        """Waits until all checkpoints are written."""
        self._manager.close()


def _optimizer(options: Options, epoch_steps: int) -> optax.GradientTransformation:
    last = options.epochs * epoch_steps
    rate = optax.warmup_cosine_decay_schedule(
        0.0, options.peak_rate, min(epoch_steps, last // 2), last
    )
    return optax.chain(
        optax.add_decayed_weights(5e-4), optax.sgd(rate, momentum=0.9, nesterov=True)
    )


def _one_step(
    options: Options, graph: Any
) -> Callable[[Tree, jax.Array, jax.Array], tuple[Tree, jax.Array]]:
    """Returns the compiled training step: (state, images, labels) -> (state, loss)."""

    @partial(jax.jit, donate_argnums=0)
    def one_step(state: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        if options.augment == "shift":
            # The step is part of the key: shifts are the same after a restart.
            key = jax.random.fold_in(jax.random.key(options.seed), optimizer.step[...])
            images = shifted(images, key)

        def loss_of(model: ResNet) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
            return losses.mean()

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    return one_step  # type: ignore[no-any-return]


def _count_correct(graph: Any) -> Callable[..., jax.Array]:
    """Returns the compiled test: (state, images, labels, weights) -> correct images."""

    @jax.jit  # type: ignore[untyped-decorator]
    def count(state: Tree, images: jax.Array, labels: jax.Array, counts: jax.Array) -> jax.Array:
        model, _ = nnx.merge(graph, state)
        predicted = jnp.argmax(model(images), axis=-1)
        return jnp.sum(jnp.where(predicted == labels, counts, 0.0))

    return count  # type: ignore[no-any-return]


def shifted(images: jax.Array, key: jax.Array) -> jax.Array:
    """Shifts each image of a batch by up to an eighth of its size. New pixels are black."""
    most = max(images.shape[1] // 8, 1)
    padded = jnp.pad(images, [(0, 0), (most, most), (most, most), (0, 0)])
    begin = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)

    def cut(image: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (at[0], at[1], 0), images.shape[1:])

    return jax.vmap(cut)(padded, begin)
