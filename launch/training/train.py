"""`python -m imageshards.launch.training.train DATASET --model_dir DIR`: trains a ResNet in Keras.

On a TPU if there is one, else on all GPUs, else on the CPU. The loop is in `loop_keras.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from imageshards.launch.training.command import command
from imageshards.launch.training.training import Options, Result

_PACKAGES = "'imageshards[train]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""

    def load() -> Callable[[Options], Result]:
        from imageshards.launch.training.loop_keras import train

        return train

    return command(
        "train",
        {"tensorflow": _PACKAGES, "tensorboard": _PACKAGES},
        load,
        arguments,
        "Trains a ResNet in Keras on a data set that imageshards built: on a TPU if there is one, "
        "else on all GPUs, else on the CPU. The same command resumes an interrupted training at "
        "the next record.",
    )


if __name__ == "__main__":
    sys.exit(main())
