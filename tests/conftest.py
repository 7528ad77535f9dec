"""Fixtures of all tests: images, builds, and the command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from helpers import write_images

from imageshards.launch.cli import main
from imageshards.pipeline.job.summary import Summary
from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run

LOCAL = ["--runner=FnApiRunner"]

# On a busy machine the time of an example says nothing about the code.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

# Without credentials, the client of S3 searches for a server of its machine.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
# So does the client of Azure.
os.environ["AZURE_TOKEN_CREDENTIALS"] = "AzureCliCredential"


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 120 images in 6 class folders; tests do not write to it."""
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder, 6, 20)
    return folder


Build = Callable[..., Summary]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(*inputs, **options) -> Summary; the default output is tmp_path/out."""

    def do(*inputs: Path | str, beam: list[str] | None = None, **options: object) -> Summary:
        options.setdefault("output", str(tmp_path / "out"))
        options["output"] = str(options["output"])
        built = BuildOptions.of(input=tuple(map(str, inputs)), **options)
        return run(built, beam or LOCAL, show_progress=False)

    return do


@pytest.fixture(scope="session")
def built_photos(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of the photos, with 5 and 2 shards; tests do not write to it."""
    output = tmp_path_factory.mktemp("built") / "out"
    options = BuildOptions.of(
        input=(str(photos),), output=str(output), num_shards="train=5,test=2",
        splits="train=0.8,test=0.2", base_uri=str(photos),
    )  # fmt: skip
    run(options, LOCAL, show_progress=False)
    return output


@pytest.fixture
def dataset(built_photos: Path, tmp_path: Path) -> Path:
    """A copy of `built_photos`, to which the test may write."""
    return Path(shutil.copytree(built_photos, tmp_path / "out"))


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """command("build", ...) -> (exit code, stdout, stderr), in this process."""

    def do(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return do
