"""Fixtures of all tests: images, builds, and the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from helpers import write_images

from imageshards.launch.cli import main
from imageshards.pipeline.config import Config
from imageshards.pipeline.run import Summary, run

LOCAL = ["--runner=FnApiRunner"]

# On a busy machine the time of an example says nothing about the code.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")


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
        config = Config(input=tuple(map(str, inputs)), **options)  # type: ignore[arg-type]
        return run(config, beam or LOCAL, show_progress=False)

    return do


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """command("build", ...) -> (exit code, stdout, stderr), in this process."""

    def do(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return do
