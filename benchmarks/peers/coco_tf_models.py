"""TensorFlow's conversion of COCO: python coco_tf_models.py FLAGS of create_coco_tf_record.

It runs the program of tf-models-official unchanged. Importing the package `official.vision` would
import its trainings, which require many more packages; the program uses none of them.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

from absl import app

_PROGRAM = "official.vision.data.create_coco_tf_record"


def main() -> None:
    """Runs the program."""
    spec = importlib.util.find_spec("official")
    assert spec
    assert spec.submodule_search_locations
    package = types.ModuleType("official.vision")
    package.__path__ = [str(Path(spec.submodule_search_locations[0]) / "vision")]
    sys.modules[package.__name__] = package
    program = importlib.import_module(_PROGRAM)
    app.run(program.main)


if __name__ == "__main__":
    main()
