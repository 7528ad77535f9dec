"""imageshards: shuffled, evenly sharded record files of images, for training.

The command `imageshards build` makes a data set. In Python:

- `imageshards.reader` reads one: `imageshards.reader.load("dataset", "train", batch_size=128)`.
- The PTransforms of the build work in other pipelines too. `ReadReferences` lists images, and
  `WriteDataset` writes a data set of these references. Its steps are `ShuffleReferences` and
  `WriteShards`. `BuildSpec(BuildOptions.of(...))` has the arguments of all of them.

Importing this package takes about a millisecond. Beam, TensorFlow and Pillow are imported when an
attribute that needs them is used first.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers recognize the name; importing typing takes 8 ms
if TYPE_CHECKING:
    from typing import Any

    from imageshards import reader
    from imageshards.pipeline.assembly import BuildSpec
    from imageshards.pipeline.graph import WriteDataset
    from imageshards.pipeline.options.build_options import BuildOptions
    from imageshards.transforms.elements import BuildError, UsageError
    from imageshards.transforms.read import ReadReferences
    from imageshards.transforms.shuffle import ShuffleReferences
    from imageshards.transforms.write_shards import WriteShards

    __version__: str

_HOME = {
    "BuildError": "imageshards.transforms.elements",
    "BuildOptions": "imageshards.pipeline.options.build_options",
    "BuildSpec": "imageshards.pipeline.assembly",
    "ReadReferences": "imageshards.transforms.read",
    "ShuffleReferences": "imageshards.transforms.shuffle",
    "UsageError": "imageshards.transforms.elements",
    "WriteDataset": "imageshards.pipeline.graph",
    "WriteShards": "imageshards.transforms.write_shards",
}

__all__ = [
    "BuildError",
    "BuildOptions",
    "BuildSpec",
    "ReadReferences",
    "ShuffleReferences",
    "UsageError",
    "WriteDataset",
    "WriteShards",
    "reader",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("imageshards")
    if name == "reader":
        return import_module("imageshards.reader")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'imageshards' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
