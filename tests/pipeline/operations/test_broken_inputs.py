"""What verify, reshard and fingerprint say of broken inputs, here and on a runner of Beam."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_data_sets import CASES, make, outcome
from conftest import Command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    make(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_broken_inputs_are_one_line_here_and_on_a_runner(folder: Path, command: Command, name: str):
    here = outcome(command, CASES[name], folder)
    assert outcome(command, CASES[name], folder, "--runner=FnApiRunner") == here
