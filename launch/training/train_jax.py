"""`python -m imageshards.launch.training.train_jax DATASET --model_dir DIR`: a ResNet in JAX.

It uses all devices of JAX. The loop is in `loop_jax.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from imageshards.launch.training.command import JAX, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    return command(JAX, arguments)


if __name__ == "__main__":
    sys.exit(main())
