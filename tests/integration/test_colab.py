"""All cells of the notebook run, except those that require the cloud."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "launch/colab.ipynb"


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def requires_the_cloud(cell: nbformat.NotebookNode) -> bool:
    return "cloud" in cell.metadata.get("tags", [])


def test_the_notebook_is_stored_without_outputs(notebook: nbformat.NotebookNode):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(requires_the_cloud(cell) for cell in cells)
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_the_notebook_runs_without_the_cloud(notebook: nbformat.NotebookNode, tmp_path: Path):
    notebook.cells = [cell for cell in notebook.cells if not requires_the_cloud(cell)]
    manager = AsyncKernelManager()
    # Use this Python, whichever kernels are installed.
    manager.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(
        notebook, km=manager, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "1,797 images" in printed
    assert "(64, 8, 8, 3)" in printed
    assert "test accuracy " in printed
    pictures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
