"""`python -m imageshards.launch.training.train_jax DATASET --model_dir DIR`: train a ResNet in JAX.

On all devices that JAX has. The loop is in `loop_jax.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from imageshards.launch.training.training import Options, Result, command

_PACKAGES = "'imageshards[jax]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""

    def load() -> Callable[[Options], Result | None]:
        from imageshards.launch.training.loop_jax import train

        return train

    modules = ("jax", "optax", "tensorflow", "tensorboard")
    return command(
        "train_jax",
        dict.fromkeys(modules, _PACKAGES),
        load,
        arguments,
        "Trains a ResNet in JAX on a data set that imageshards built, each batch divided among all "
        "devices. The same command goes on with a training that was interrupted, at the very "
        "record.",
    )


if __name__ == "__main__":
    sys.exit(main())
