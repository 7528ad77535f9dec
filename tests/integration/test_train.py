"""Trainings on the digits of the demo, as whole processes: accuracy and resuming."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import LOCAL

from imageshards.launch.demo import write_digits
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run

FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
LOOPS = {"train": {}, "train_jax": FOUR_DEVICES}
TO_THE_GOAL = ["--epochs", 10, "--learning_rate", 0.4, "--channels", 1]
SMALL = ["--blocks", "1,1", "--width", 8, "--channels", 1]
TWO_PROCESSORS = """
import sys
import tensorflow as tf
from imageshards.launch.training.train import main
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
sys.exit(main())
"""


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Shares what JAX has compiled between the trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("jax")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder / "images")
    config = BuildOptions.of(
        input=(str(folder / "images"),), output=str(folder / "out"), num_shards="train=4,test=2",
        splits="train=0.8,test=0.2", base_uri=str(folder / "images"),
    )  # fmt: skip
    run(config, LOCAL, show_progress=False)
    return folder / "out"


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out, errors


def command(loop: str, *arguments: object) -> tuple[str, str]:
    return end(start("-m", f"imageshards.launch.training.{loop}", *arguments, **LOOPS[loop]))


def accuracy(out: str) -> float:
    # JAX's library for processes on many hosts prints lines of its own.
    match = re.fullmatch(r"test accuracy ([\d.]+)% \(\d+ of 347 images\).*", out.splitlines()[-1])
    assert match, out
    return float(match[1]) / 100


def losses(model_dir: Path) -> list[tuple[int, float]]:
    """Returns (step, loss) of all entries in the logs, in the order in which they were written."""
    import tensorflow as tf

    return [
        (event.step, float(tf.make_ndarray(value.tensor)))
        for path in sorted((model_dir / "logs").iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "train/loss"
    ]


@pytest.mark.parametrize("loop", LOOPS)
def test_training_on_the_digits_reaches_97_percent(digits: Path, tmp_path: Path, loop: str):
    out, errors = command(loop, digits, "--model_dir", tmp_path / "model", *TO_THE_GOAL)
    assert accuracy(out) >= 0.97
    assert ("4 devices" if loop == "train_jax" else "one device") in errors
    assert errors.count(" of 10: loss ") == 10
    # The training is complete: the same command prints the same result.
    assert command(loop, digits, "--model_dir", tmp_path / "model", *TO_THE_GOAL)[0] == out


@pytest.mark.parametrize("loop", LOOPS)
def test_a_killed_training_resumes_at_the_next_record(digits: Path, tmp_path: Path, loop: str):
    options = [
        digits, *SMALL, "--epochs", 2, "--batch_size", 16, "--log_steps", 1,
        "--checkpoint_steps", 10, "--learning_rate", 0.4,
    ]  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    out, _ = command(loop, "--model_dir", whole, *options)
    process = start(
        "-m", f"imageshards.launch.training.{loop}", "--model_dir", cut, *options, **LOOPS[loop]
    )
    deadline = time.monotonic() + 300
    # The first checkpoint is complete when the second one appears.
    second = "ckpt-20.index" if loop == "train" else "20"
    while not (cut / "checkpoints" / second).exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again, errors = command(loop, "--model_dir", cut, *options)
    match = re.search(r"resumes at step (\d+), record (\d+)", errors)
    assert match, errors
    step, record = int(match[1]), int(match[2])
    assert record == 16 * step
    expected = dict(losses(whole))
    last = max(expected)
    epoch_steps = last // 2
    assert sorted(expected) == list(range(1, last + 1))
    assert step % epoch_steps, "killed at the end of an epoch, which tests nothing"
    # Each step has the loss that it has without a kill: model, rate, records and shifts are the
    # same. Losses of neighbouring steps, of other records, differ by far more.
    seen = losses(cut)
    assert sorted({at for at, _ in seen}) == list(range(1, last + 1))
    assert seen[-(last - step)][0] == step + 1
    for at, loss in seen:
        assert loss == pytest.approx(expected[at], rel=1e-3), at
    values = np.array([expected[at] for at in range(1, last + 1)])
    assert np.median(np.abs(np.diff(values)) / values[1:]) > 0.01
    assert accuracy(again) == pytest.approx(accuracy(out), abs=0.01)


def test_batches_are_divided_among_replicas(digits: Path, tmp_path: Path):
    arguments = [digits, "--model_dir", tmp_path / "model", "--epochs", 5, "--learning_rate", 0.4]
    out, errors = end(start("-c", TWO_PROCESSORS, *arguments, "--channels", 1))
    assert "2 devices" in errors
    assert accuracy(out) >= 0.9


AS_ONE_OF_SEVERAL = """
import sys
import jax
from imageshards.launch.training.train_jax import main
address, hosts, host = sys.argv[1:4]
join = jax.distributed.initialize
jax.distributed.initialize = lambda: join(address, int(hosts), int(host))
sys.exit(main(sys.argv[4:]))
"""


def start_hosts(
    hosts: int, devices: int, *arguments: object, each: Sequence[Sequence[object]] = ()
) -> list[subprocess.Popen[str]]:
    """Starts a training on several processes, each with some devices.

    Args:
      hosts: the number of processes.
      devices: the number of devices of a process.
      arguments: arguments of all processes.
      each: further arguments of each process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={devices}"
    return [
        start(
            "-c", AS_ONE_OF_SEVERAL, address, hosts, host, *arguments,
            *(each[host] if each else ()), "--distributed", XLA_FLAGS=flags,
        )
        for host in range(hosts)
    ]  # fmt: skip


def test_a_training_killed_on_4_processes_resumes_on_2(digits: Path, tmp_path: Path):
    options = [
        digits, *SMALL, "--epochs", 2, "--batch_size", 16, "--log_steps", 1,
        "--checkpoint_steps", 10, "--learning_rate", 0.4,
    ]  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    out, _ = command("train_jax", "--model_dir", whole, *options)
    hosts = start_hosts(4, 1, "--model_dir", cut, *options)
    deadline = time.monotonic() + 600
    while not (cut / "checkpoints/20").exists():
        assert all(host.poll() is None for host in hosts)
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for host in hosts:
        host.send_signal(signal.SIGKILL)
    for host in hosts:
        host.communicate()
    first, second = start_hosts(2, 2, "--model_dir", cut, *options)
    again, errors = end(first)
    assert "accuracy" not in end(second)[0]
    match = re.search(r"resumes at step (\d+)", errors)
    assert match, errors
    expected = dict(losses(whole))
    seen = losses(cut)
    assert {at for at, _ in seen} == expected.keys()
    assert seen[-1][0] - int(match[1]) == sum(at > int(match[1]) for at in expected)
    # The sum of the gradients of 4 devices is computed in another order within a process.
    for at, loss in seen:
        assert loss == pytest.approx(expected[at], rel=1e-3), at
    assert accuracy(again) == pytest.approx(accuracy(out), abs=0.01)


def test_processes_that_cannot_train_together_end_with_an_error_of_one_line(
    digits: Path, tmp_path: Path
):
    options = [digits, "--model_dir", tmp_path / "model", *SMALL, "--batch_size", 16]
    alone = start("-m", "imageshards.launch.training.train_jax", *options, "--distributed")
    differ = start_hosts(2, 1, *options, each=[["--epochs", 2], ["--epochs", 3]])
    for process, says in (
        (alone, "--distributed: JAX does not find the other processes (coordinator_address should"),
        *((host, "the processes have other options: run the same command") for host in differ),
    ):
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 2, errors
        assert errors.startswith(f"train_jax: {says}")
        assert errors.count("\n") == 1, errors
    assert not (tmp_path / "model").exists()
