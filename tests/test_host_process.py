"""Importing imageshards changes nothing in the process that imports it.

This file is also the program that the tests run in processes of their own.
"""

import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from apache_beam.runners.worker import sdk_worker
from apache_beam.transforms.environments import SubprocessSDKEnvironment
from PIL import Image, ImageFile
from test_imports import MODULES, OF_THE_TRAINING_SIDE, ROOT, at_import, imported

pytestmark = pytest.mark.slow

# The loops are programs to copy from, and the settings are for Beam's worker processes alone.
NOT_PUBLIC = OF_THE_TRAINING_SIDE - {"reader/stream.py"} | {"launch/worker_settings.py"}
PUBLIC = [path for path in MODULES if str(path.relative_to(ROOT)) not in NOT_PUBLIC]


def loggers() -> dict[str, Any]:
    """The configuration of all loggers that have one."""
    found: dict[str, Any] = {"disable": logging.root.manager.disable}
    for name, logger in {"root": logging.root, **logging.root.manager.loggerDict}.items():
        if isinstance(logger, logging.Logger):
            configured = (logger.level, logger.handlers, logger.filters, logger.disabled)
            if any(configured) or not logger.propagate:
                found[name] = (*map(str, configured), logger.propagate)
    return found


def state() -> dict[str, str]:
    """What a library must leave alone, as text that can be compared."""
    found = {
        "warnings": warnings.filters,
        "logging": loggers(),
        "blocked modules": [name for name, module in sys.modules.items() if module is None],
        "sys.meta_path": sys.meta_path,
        "sys.path": sys.path,
        "hooks": (threading.excepthook, sys.excepthook, sys.unraisablehook, sys.displayhook),
        "streams": [(stream, stream.errors) for stream in (sys.stdout, sys.stderr)],
        "threads": threading.enumerate(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "preloaded": forkserver._forkserver._preload_modules,
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks),
        "timeout": socket.getdefaulttimeout(),
        "random": random.getstate(),
        "numpy.random": [str(part) for part in np.random.get_state()],
        "numpy": (np.geterr(), np.get_printoptions()),
        "Pillow's limit": Image.MAX_IMAGE_PIXELS,
        "Pillow's tolerance": ImageFile.LOAD_TRUNCATED_IMAGES,
        "Pillow's formats": (sorted(Image.OPEN), sorted(Image.SAVE)),
        "Arrow's memory": pyarrow.default_memory_pool().backend_name,
        "Beam": (vars(sdk_worker).get("print"), SubprocessSDKEnvironment.from_command_string),
    }
    return {name: repr(value) for name, value in found.items()}


def differences(before: dict[str, str]) -> list[str]:
    after = state()
    return [
        f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]
    ]


def import_public_modules() -> list[str]:
    """Imports what ours import, then ours; returns what ours have changed."""
    for path in PUBLIC:
        for name in at_import(path) | imported(path):
            if not name.startswith("imageshards"):
                try_import(name)
    assert not any(name.startswith("imageshards") for name in sys.modules)
    before = state()
    for path in PUBLIC:
        name = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        importlib.import_module("imageshards." + name.removesuffix(".__init__"))
    return differences(before)


def try_import(name: str) -> None:
    """Imports a module, or the module that has an object of this name."""
    try:
        importlib.import_module(name)
    except ImportError:
        if "." in name:
            try_import(name.rpartition(".")[0])


def change_pillow() -> None:
    Image.MAX_IMAGE_PIXELS = None
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    Image.register_save("NONE", lambda *_: None)


CHANGES: list[tuple[set[str], Callable[[], object]]] = [
    ({"warnings"}, lambda: warnings.filterwarnings("ignore", module="PIL")),
    ({"logging"}, lambda: logging.getLogger("PIL").setLevel(logging.CRITICAL)),
    ({"logging"}, lambda: logging.basicConfig(level=logging.INFO)),
    ({"logging"}, lambda: logging.disable()),
    ({"blocked modules"}, lambda: sys.modules.update(pymongo=None)),  # type: ignore[call-overload]
    ({"sys.meta_path"}, lambda: sys.meta_path.append(None)),  # type: ignore[arg-type]
    ({"sys.path"}, lambda: sys.path.append("/nowhere")),
    ({"hooks"}, lambda: setattr(threading, "excepthook", print)),
    ({"streams"}, lambda: sys.stdout.reconfigure(errors="ignore")),  # type: ignore[union-attr]
    ({"start method"}, lambda: multiprocessing.set_start_method("spawn", force=True)),
    ({"preloaded"}, lambda: multiprocessing.set_forkserver_preload(["json"])),
    ({"signals"}, lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
    ({"environment"}, lambda: os.environ.update(TF_CPP_MIN_LOG_LEVEL="2")),
    ({"folder"}, lambda: os.chdir("/")),
    ({"gc"}, gc.disable),
    ({"timeout"}, lambda: socket.setdefaulttimeout(5)),
    ({"random"}, lambda: random.seed(7)),
    ({"numpy.random"}, lambda: np.random.seed(7)),
    ({"Pillow's limit", "Pillow's tolerance", "Pillow's formats"}, change_pillow),
    ({"Arrow's memory"}, lambda: pyarrow.set_memory_pool(pyarrow.system_memory_pool())),
    ({"Beam"}, lambda: setattr(sdk_worker, "print", print)),
    ({"gc"}, gc.freeze),  # last: frozen objects that are freed later change the count
]


def make_changes() -> list[str]:
    """Makes each change; returns which of them the comparison did not find."""
    importlib.import_module("imageshards.pipeline.run")
    missed = []
    for expected, change in CHANGES:
        before = state()
        change()
        found = {difference.partition(":")[0] for difference in differences(before)}
        if found != expected:
            missed.append(f"{sorted(expected)}: found {sorted(found)}")
    return missed


def settings_of_a_worker(_: int) -> list[str]:
    """Returns what is wrong with the settings of a worker process."""
    allocator = pyarrow.default_memory_pool().backend_name
    level = logging.getLogger("PIL").level
    return [] if (allocator, level) == ("system", logging.CRITICAL) else [f"{allocator}, {level}"]


def run_workers() -> list[str]:
    """Runs a pipeline in worker processes, as the command does; returns what is wrong with them."""
    from imageshards.launch import logs

    logs.set_up(verbose=False)
    folder = Path(tempfile.mkdtemp())
    arguments = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing"]
    with beam.Pipeline(argv=[*arguments, "--direct_num_workers=2"]) as pipeline:
        found = pipeline | beam.Create([0]) | beam.Map(settings_of_a_worker) | beam.Map(str)
        _ = found | beam.io.WriteToText(str(folder / "found"), num_shards=1)
    return [path.read_text() for path in folder.iterdir() if path.read_text() != "[]\n"]


def build_in_a_host() -> list[str]:
    """Runs the command in a process that does other things too; returns what it has changed."""
    from helpers import write_images

    from imageshards.launch.cli import main

    importlib.import_module("imageshards.pipeline.run")
    folder = Path(tempfile.mkdtemp())
    write_images(folder / "in", 2, 5)
    before = state()
    assert main(["build", f"--input={folder / 'in'}", f"--output={folder / 'out'}"]) == 0
    kept = ("hooks", "Beam", "Arrow", "Pillow", "gc", "blocked", "sys.", "environment")
    return [difference for difference in differences(before) if difference.startswith(kept)]


def run_alone(task: Callable[[], list[str]]) -> list[str]:
    """Runs a task in a process of its own; returns what it found."""
    done = subprocess.run(
        [sys.executable, __file__, task.__name__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_importing_public_modules_changes_nothing():
    assert run_alone(import_public_modules) == []


def test_a_command_that_a_host_runs_changes_nothing():
    assert run_alone(build_in_a_host) == []


def test_the_comparison_finds_every_change():
    assert run_alone(make_changes) == []


def test_local_workers_have_the_settings_of_workers():
    assert run_alone(run_workers) == []


def test_remote_workers_import_their_settings_by_an_option():
    from imageshards.launch.load import WORKER_SETTINGS

    options = PipelineOptions([WORKER_SETTINGS]).view_as(SetupOptions)
    (module,) = options.beam_plugins
    code = f"import {module}; from test_host_process import *; print(settings_of_a_worker(0))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
