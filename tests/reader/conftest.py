"""A data set that the tests of the reader share."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import LOCAL

from imageshards.pipeline.options.build_options import BuildOptions
from imageshards.pipeline.run import run


@pytest.fixture(scope="session")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 120 photos in 7 shards of one split; tests do not write to it."""
    folder = tmp_path_factory.mktemp("dataset") / "out"
    options = BuildOptions.of(
        input=(str(photos),), output=str(folder), num_shards="7", base_uri=str(photos)
    )
    run(options, LOCAL, show_progress=False)
    return folder
