"""`python -m imageshards.launch.training.train_jax DATASET --model_dir DIR`: a ResNet in JAX.

It uses all devices of JAX. The loop is in `loop_jax.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from imageshards.launch.training.command import command
from imageshards.launch.training.training import Options, Result

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
        "Trains a ResNet in JAX on a data set that imageshards built. Each batch is divided among "
        "all devices. The same command resumes an interrupted training at the next record.",
    )


if __name__ == "__main__":
    sys.exit(main())
