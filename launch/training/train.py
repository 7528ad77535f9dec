"""`python -m imageshards.launch.training.train DATASET --model_dir DIR`: trains a ResNet in Keras.

It uses a TPU if there is one, else all GPUs, else the CPU. The loop is in `loop_keras.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imageshards.launch.training.command import KERAS, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    return command(KERAS, arguments)


if __name__ == "__main__":
    sys.exit(main())
