"""Every code block of the documents is run, or has a reason why it is not.

A document's blocks run in one folder, with the samples of `samples`. Shell blocks that consist of
`imageshards` commands run in this process. Python blocks share their variables.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from code_blocks import DOCUMENTS, LANGUAGES, ROOT, Block, blocks
from helpers import image_bytes

from imageshards.launch.cli import main
from imageshards.launch.commands import COMMANDS
from imageshards.launch.training.command import JAX, KERAS, Training, parse
from imageshards.pipeline.options.command_line import check_beam_arguments, options_from

SLOW = {
    "README.md", "docs/getting_started.md", "docs/guide/training.md", "docs/guide/reading.md",
    "docs/guide/output.md", "docs/guide/labels_and_splits.md", "docs/production/schedules.md",
    "docs/migration/notebook_loop.md", "docs/migration/tensorflow_datasets.md",
    "docs/design/reproducibility.md", "docs/reference/command_line.md",
}  # fmt: skip
"""Documents whose blocks import TensorFlow or JAX, or run many commands."""
_NUMBERS = re.compile(r"[\d.,]+")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs and the data set of which the documents speak."""
    folder = tmp_path_factory.mktemp("samples")
    for number in range(150):
        label = ("bird", "cat", "dog")[number % 3]
        path = folder / "photos" / label / f"{number // 3 + 1}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(number, size=(96, 72)))
    with tarfile.open(folder / "photos.tar", "w") as tar:
        tar.add(folder / "photos", "photos")
    (folder / "texts").mkdir()
    for name in ("hamlet", "macbeth", "othello", "lear"):
        (folder / f"texts/{name}.txt").write_text(f"{name}\n\nSecond line of {name}\n")
    data = [f"--input={folder / 'photos'}", f"--output={folder / 'dataset'}"]
    ratios = ["--splits=train=0.7,validation=0.1,test=0.2", "--name=dataset"]
    assert main(["build", *data, *ratios, "--num_shards=2"]) == 0
    (folder / "old").mkdir()
    for path in (folder / "dataset").glob("train-*"):
        shutil.copy(path, folder / "old")
    return folder


@pytest.fixture
def folder(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """A copy of the samples, which is the current folder.

    It has no data set if the document itself builds `dataset`.
    """
    document: Path = request.getfixturevalue("document")
    builds = any("--output dataset " in f"{b.code} " for b in blocks(document) if runs(b))
    ignored = shutil.ignore_patterns("dataset") if builds else None
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True, ignore=ignored)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(block: Block) -> bool:
    return block.language in LANGUAGES and not block.directive


def test_every_block_runs_or_has_a_reason():
    """Blocks in other languages are files, or outputs that are compared."""
    unknown = [
        f"{block} ({block.language})"
        for document in DOCUMENTS
        for block in blocks(document)
        if not runs(block) and not (block.directive == "not run" and block.argument)
        and not (block.directive == "file" and block.argument)
        and block.directive != "output"
    ]  # fmt: skip
    assert not unknown


def test_no_document_has_indented_blocks():
    """They would be code that no test finds."""
    lists = re.compile(r"(?m)^( *)([-*]|\d+\.) ")
    for document in DOCUMENTS:
        text = re.sub(r"(?ms)^( *)```.*?^ *```$", "", (ROOT / document).read_text())
        if not lists.search(text):
            assert not re.search(r"(?m)^\n {4}\S", text), document


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(d, id=str(d), marks=[pytest.mark.slow] * (str(d) in SLOW))
        for d in DOCUMENTS
        if any(map(runs, blocks(d)))
    ],
)
def test_blocks_run(document: Path, folder: Path, capfd: pytest.CaptureFixture[str]):
    variables: dict[str, object] = {"__name__": "document"}
    output = ""
    for block in blocks(document):
        if block.directive == "file":
            (folder / block.argument).write_text(block.code)
        elif block.directive == "output":
            assert masked(block.code) == masked(output), block
        elif runs(block):
            capfd.readouterr()
            try:
                run(block, variables)
            except Exception as error:
                raise AssertionError(f"{block}: {error}\n{capfd.readouterr().err}") from error
            output = capfd.readouterr().out


def run(block: Block, variables: dict[str, object]) -> None:
    if block.language == "python":
        code = "\n" * (block.line - 1) + block.code
        exec(compile(code, str(ROOT / block.document), "exec"), variables)
    elif only_our_commands(block):
        for _, *arguments in block.commands():
            assert main(arguments) == 0, arguments
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            check=True, env={**os.environ, "PATH": path}, timeout=300,
        )  # fmt: skip


def only_our_commands(block: Block) -> bool:
    """Whether a block needs no shell: it has `imageshards` commands and comments alone."""
    return all(words[0] == "imageshards" for words in block.commands()) and not re.search(
        r"[|<>;&$]", re.sub(r"'[^']*'|#.*", "", block.code)
    )


def masked(text: str) -> str:
    """A text without the numbers, paths and spaces that differ between machines."""
    lines = [" ".join(_NUMBERS.sub("0", line).split()) for line in text.splitlines()]
    return "\n".join(re.sub(r"\S*/(\S*)", r"\1", line) for line in lines if line)


def commands_not_run(*prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (block, words after the prefix) of each command that begins with a prefix."""
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.language == "bash" and block.directive == "not run":
                for words in block.commands():
                    if words[: len(prefix)] == [*prefix]:
                        yield str(block), words[len(prefix) :]


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands check their options, and do nothing else."""

    def check_build(args: Namespace) -> int:
        options_from(args)
        check_beam_arguments(args.beam_arguments)
        return 0

    for name, command in list(COMMANDS.items()):
        check = check_build if name in ("build", "fingerprint") else lambda args: 0
        monkeypatch.setitem(COMMANDS, name, command._replace(run=check))


def test_commands_that_do_not_run_have_valid_options(parsing: None):
    """A renamed option is found in them too."""
    commands = list(commands_not_run("imageshards"))
    assert len(commands) > 8
    assert not [(where, words) for where, words in commands if main(words)]
    _, words = next(found for found in commands if "--splits" in found[1])
    assert main(["--split" if word == "--splits" else word for word in words]) == 2


@pytest.mark.parametrize("training", [KERAS, JAX], ids=lambda training: training.name)
def test_trainings_that_do_not_run_have_valid_options(training: Training):
    module = f"imageshards.launch.training.{training.name}"
    commands = list(commands_not_run("python", "-m", module))
    assert commands
    for _, words in commands:
        assert parse(training, words).model_dir


def test_outputs_are_compared_without_numbers():
    assert masked("/home/you/dataset\n  1,000 images in 24 shards") == masked(
        "/tmp/x/dataset\n  150 images in 2 shards"
    )
    assert masked("0 rejects") != masked("0 records")
