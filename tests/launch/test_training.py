"""What the two trainings share, and their command lines."""

from __future__ import annotations

import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import Build
from hypothesis import given
from hypothesis import strategies as st

from imageshards.launch.training import train, train_jax
from imageshards.launch.training.command import JAX, parse
from imageshards.launch.training.tpu import has_tpu
from imageshards.launch.training.training import Data, Options, divide, pauses
from imageshards.transforms.elements import BuildError, UsageError

COUNTS = st.integers(1, 50)
ROOT = Path(__file__).parents[2]
V5E = {"pci": "0x1ae0 0x0063"}
CPU_ONLY = {
    "nothing": {},
    "cards of a virtual machine of Google": {"pci": "0x1ae0 0x0042", "other": "0x1ae0 0x001f"},
    "a graphics card passed to a virtual machine": {"pci": "0x10de 0x20b0", "file": "vfio/12"},
    "files of other accelerators": {"file": "accel/accel0", "control": "vfio/vfio"},
}
WITH_TPU = {
    "TPU v5e": V5E,
    "TPU v3": {"pci": "0x1ae0 0x0027", "file": "accel0"},
    "the file of a TPU in a container": {"file": "accel0"},
    "a TPU newer than the table": {"pci": "0x1ae0 0x0099", "file": "vfio/0"},
}


@pytest.fixture
def dataset(photos: Path, build: Build, tmp_path: Path) -> Path:
    build(photos, splits="train=0.7,test=0.3", base_uri=str(photos), num_shards="train=3,test=1")
    return tmp_path / "out"


@given(st.integers(0, 200), st.integers(0, 200), st.lists(COUNTS, min_size=1, max_size=3))
def test_a_loop_pauses_at_multiples_and_at_the_end(step: int, last: int, every: list[int]):
    expected = [
        at for at in range(step + 1, last + 1) if at == last or not all(at % n for n in every)
    ]
    assert list(pauses(step, last, *every)) == expected


def test_a_batch_is_divided_into_equal_parts():
    assert divide(64, 4, "devices") == 16
    with pytest.raises(UsageError, match="--batch_size 64: must be a multiple of the 3 devices"):
        divide(64, 3, "devices")


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_every_test_image_counts_once_in_full_batches(dataset: Path, hosts: int):
    data = Data(Options(str(dataset), "", image_size=8), "float32")
    steps, weight = set(), 0.0
    for host in range(hosts):
        batches = list(data.test(8, hosts, host))
        steps.add(len(batches))
        assert {tuple(images.shape) for images, _, _ in batches} == {(8, 8, 8, 3)}
        weight += sum(float(sum(weights)) for _, _, weights in batches)
    assert len(steps) == 1
    assert weight == data.test_images


def test_the_image_size_is_that_of_the_first_image(dataset: Path):
    data = Data(Options(str(dataset), "", channels=1), "float32")
    assert data.shape == (16, 16, 1)
    assert data.classes == 6


def test_a_data_set_of_texts_is_refused(build: Build, tmp_path: Path):
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "lines.txt").write_text("one\ntwo\n")
    build(
        tmp_path / "a",
        tmp_path / "b",
        features="text",
        splits="train=0.5,test=0.5",
        base_uri=str(tmp_path),
    )
    with pytest.raises(UsageError, match="its records are texts"):
        Data(Options(str(tmp_path / "out"), ""), "float32")


def test_labels_that_are_not_one_class_are_refused(build: Build, photos: Path, tmp_path: Path):
    images = sorted(photos.rglob("*.jpg"))[:8]
    rows = [f"{image},{n}.5,{n % 2},{n % 3 == 0:d}" for n, image in enumerate(images)]
    (tmp_path / "list.csv").write_text("\n".join(["uri,age,wet,dark", *rows]))
    for labels, says in (
        ("column:age:float", "its labels are numbers, and this training requires one class for ea"),
        ("columns:wet,dark", "its images have several classes, and this"),
        ("none", "it has no labels, and this"),
    ):
        out = tmp_path / labels.replace(":", "_")
        build(tmp_path / "list.csv", output=out, name="x", labels=labels, num_shards="1")
        with pytest.raises(UsageError, match=says):
            Data(Options(str(out), ""), "float32")


def test_pixels_from_0_to_255_are_refused(build: Build, photos: Path, tmp_path: Path):
    splits = {"splits": "train=0.7,test=0.3", "base_uri": str(photos)}
    for pixel_range in ("0..1", "0..255"):
        build(
            photos, features="raw", resize="8x8", pixel_range=pixel_range, name="set",
            output=tmp_path / pixel_range, **splits,
        )  # fmt: skip
    assert Data(Options(str(tmp_path / "0..1"), ""), "float32").shape == (8, 8, 3)
    with pytest.raises(UsageError, match=r"from 0 to 255.*--pixel_range 0\.\.1"):
        Data(Options(str(tmp_path / "0..255"), ""), "float32")


def machine(root: Path, devices: dict[str, str]) -> Path:
    """Writes the files of a machine: PCI devices as `VENDOR DEVICE`, and files below /dev."""
    for name, text in devices.items():
        if " " in text:
            folder = root / "sys/bus/pci/devices" / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, content in zip(("vendor", "device"), text.split(), strict=True):
                (folder / file).write_text(f"{content}\n")
        else:
            (root / "dev" / text).parent.mkdir(parents=True, exist_ok=True)
            (root / "dev" / text).touch()
    return root


@pytest.mark.parametrize("name", [*CPU_ONLY, *WITH_TPU])
def test_a_tpu_is_found_by_its_device(tmp_path: Path, name: str):
    assert has_tpu(machine(tmp_path, {**CPU_ONLY, **WITH_TPU}[name])) == (name in WITH_TPU)


@pytest.fixture
def jax_platforms():
    """jax_platforms(value): sets JAX's option."""
    config = pytest.importorskip("jax").config
    before = config.jax_platforms
    yield partial(config.update, "jax_platforms")
    config.update("jax_platforms", before)


def test_jax_on_a_cpu_beside_a_tpu_is_refused(tmp_path: Path, jax_platforms):
    loop = pytest.importorskip("imageshards.launch.training.loop_jax", exc_type=ImportError)
    jax_platforms(None)
    options = Options("/no/data", str(tmp_path / "model"))
    with pytest.raises(UsageError, match=r"cannot use the TPU .*'jax\[tpu\]', or .*=cpu to train"):
        loop.train(options, machine(tmp_path, V5E))
    jax_platforms("cpu")
    # The training without the TPU was asked for: the next error is that of the data set.
    with pytest.raises(BuildError, match="/no/data"):
        loop.train(options, machine(tmp_path, V5E))
    assert not (tmp_path / "model").exists()


def test_keras_without_support_for_the_tpu_is_refused(tmp_path: Path):
    from imageshards.launch.training.loop_keras import strategy_for

    root = machine(tmp_path, V5E)
    with pytest.raises(UsageError, match=r"cannot use the TPU of this machine \([^{}]*--tpu none$"):
        strategy_for("", root)
    assert strategy_for("none", root).num_replicas_in_sync == 1


def bytes_of(values) -> int:
    return sum(value.size * value.dtype.itemsize for value in values)


@pytest.mark.slow
def test_the_training_of_the_notebook_fits_into_one_tpu_chip():
    """A TPU v5e has 16 GB; the estimate counts all intermediate values of one block twice."""
    jax = pytest.importorskip("jax")
    loop = pytest.importorskip("imageshards.launch.training.loop_jax", exc_type=ImportError)
    cells = json.loads((ROOT / "launch/colab.ipynb").read_text())["cells"]
    (command,) = (
        source
        for source in ("".join(cell["source"]) for cell in cells)
        if "train_jax" in source and "--image_size 224" in source
    )
    words = shlex.split(command.partition(".train_jax ")[2].replace("\\\n", " "))
    options = parse(JAX, words)
    side = options.image_size
    images = jax.ShapeDtypeStruct((options.batch_size, side, side, 3), "bfloat16")
    nnx = loop.nnx
    graph, weights = nnx.split(
        nnx.eval_shape(lambda: loop.ResNet((side, side, 3), 1000, options, "bfloat16"))
    )

    def loss(weights, images):
        return nnx.merge(graph, weights)(images).mean()

    # The leaves of the function that computes gradients are the values kept for it.
    backward = jax.eval_shape(lambda *values: jax.vjp(loss, *values)[1], weights, images)
    kept = bytes_of(jax.tree.leaves(backward))
    blocks = [
        equation.params["jaxpr"].eqns
        for equation in jax.make_jaxpr(loss)(weights, images).eqns
        if "prevent_cse" in equation.params  # jax.checkpoint
    ]
    assert len(blocks) == sum(options.blocks)
    block = max(bytes_of(out.aval for one in eqns for out in one.outvars) for eqns in blocks)
    # Weights, momenta, gradients and updates.
    needed = kept + 2 * block + 4 * bytes_of(jax.tree.leaves(weights))
    assert needed < 16e9, f"{needed / 1e9:.1f} GB"


def test_the_tpu_extra_does_not_install_two_packages_of_tensorflow():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", text)[0] for text in project["optional-dependencies"]["tpu"]]
    assert [name for name in names if name.startswith("tensorflow")] == ["tensorflow-tpu"]


DETECTED = "Graph execution error:\n\nDetected at node X defined at (most recent call last):\n"


def test_only_errors_of_the_input_are_reported_as_unreadable_records(
    monkeypatch: pytest.MonkeyPatch,
):
    import tensorflow as tf

    from imageshards.launch.training import loop_keras

    error = tf.errors.InvalidArgumentError
    input_error = error(
        None, None, f"{DETECTED}Unknown image file format.\n\t [[{{{{node decode_image}}}}]]\n"
        "\t [[while/body/_1/while/IteratorGetNext]] [Op:__inference_train_steps_2767]",
    )  # fmt: skip
    model_error = error(None, None, f"{DETECTED}Incompatible shapes\n\t [[{{{{node mul}}}}]]")
    for raised, expected, message in (
        (input_error, BuildError, "/set: a record .*: Unknown image file format\\.$"),
        (model_error, error, "Incompatible shapes"),
    ):

        def fail(*_: object, raised: Exception = raised) -> None:
            raise raised

        monkeypatch.setattr(loop_keras, "_train", fail)
        with pytest.raises(expected, match=message):
            loop_keras.train(Options("/set", ""))


def test_checkpoints_hold_the_model_and_the_position(tmp_path: Path):
    loop = pytest.importorskip("imageshards.launch.training.loop_jax", exc_type=ImportError)
    nnx = loop.nnx
    with pytest.raises(UsageError, match=r"contains \*, \? or \["):
        loop.train(Options("", str(tmp_path / "a[1]*?")))
    options = Options("", str(tmp_path / "model"))

    def state(seed: int):
        return nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(seed)))

    checkpoints = loop._Checkpoints(options)
    assert checkpoints.last == 0
    checkpoints.save(7, state(1), {"step": 7})
    checkpoints.close()
    checkpoints = loop._Checkpoints(options)
    assert checkpoints.last == 7
    restored, position = checkpoints.restore(7, state(2))
    assert position == {"step": 7}
    assert np.array_equal(restored["kernel"][...], state(1)["kernel"][...])
    checkpoints.close()


def complaint(main, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize("module", [train, train_jax])
def test_a_training_that_cannot_start_is_an_error_of_one_line(
    module, dataset: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    def said(*arguments: object) -> str:
        return complaint(module.main, capsys, *arguments)

    model = ["--model_dir", tmp_path / "model"]
    assert "--model_dir" in said(dataset)
    assert "--epochs: invalid value 'x': must be an integer" in said(
        dataset, *model, "--epochs", "x"
    )
    assert str(tmp_path / "none") in said(tmp_path / "none", *model)
    assert "there is no 'validation'" in said(dataset, *model, "--test_split", "validation")
    assert "fewer images in an epoch" in said(dataset, *model, "--batch_size", 4096)
    # A training that cannot start writes nothing, and leaves another training's files alone.
    assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/training.json").write_text('{"batch_size": 32}')
    assert "holds a training with batch_size 32, " in said(dataset, *model)
    assert "name the folder of a data set" in said(f"{dataset}/train-*", *model)
    name = module.__name__.rpartition(".")[2]
    package = "imageshards[jax]" if name == "train_jax" else "imageshards[train]"
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert (
        said(dataset, *model) == f"{name}: tensorflow is not installed: pip install '{package}'\n"
    )
