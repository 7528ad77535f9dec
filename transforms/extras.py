"""The optional packages of imageshards, by the extras that install them. Standard library only.

An extra is missed by the function that needs it: `require` names it in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from imageshards.transforms.elements import UsageError

EXTRAS = {
    "array_record": ("array_record",),
    "coco": ("pycocotools",),
    "dataflow": ("google.api_core", "google.cloud.dataflow", "google.cloud.storage"),
    "grain": ("grain",),
    "s3": ("botocore",),
    "azure": ("azure.storage.blob", "azure.identity"),
    "heic": ("pillow_heif",),
    "train": ("tensorflow", "tensorboard"),
    "jax": ("jax", "flax", "optax", "orbax.checkpoint", "grain", "tensorflow", "tensorboard"),
}
"""Extra -> modules of its packages. The extra `tpu` has those of `train`, from other packages."""


def is_installed(module: str) -> bool:
    """Returns whether a module could be imported, without importing it.

    >>> is_installed("json"), is_installed("no_such_package.module")
    (True, False)
    """
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its parent is not installed, or it is disabled
        return False


def missing(extra: str, modules: Sequence[str] = ()) -> str:
    """Returns the first module (of these, or of all of an extra) that is not installed, or ""."""
    return next((name for name in modules or EXTRAS[extra] if not is_installed(name)), "")


def installation(extra: str) -> str:
    """Returns the command that installs an extra.

    >>> installation("heic")
    "pip install 'imageshards[heic]'"
    """
    return f"pip install 'imageshards[{extra}]'"


def require(extra: str, what: str = "", modules: Sequence[str] = ()) -> None:
    """Checks that the packages of an extra are installed.

    Args:
      extra: the name of the extra.
      what: what needs it, such as an option with its value; empty: known from the context.
      modules: the modules that are needed; empty: all of the extra.

    Raises:
      UsageError: one of them is not.
    """
    if module := missing(extra, modules):
        where = f"{what}: " if what else ""
        raise UsageError(f"{where}{module} is not installed: {installation(extra)}")
