"""The notebook runs, from its first cell to its last, but for those that need the cloud."""

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


def of_the_cloud(cell: nbformat.NotebookNode) -> bool:
    return "cloud" in cell.metadata.get("tags", [])


def test_it_is_stored_without_outputs(notebook: nbformat.NotebookNode):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(of_the_cloud(cell) for cell in cells)
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_it_runs_up_to_the_cloud(notebook: nbformat.NotebookNode, tmp_path: Path):
    notebook.cells = [cell for cell in notebook.cells if not of_the_cloud(cell)]
    manager = AsyncKernelManager()
    # This Python, whatever kernels are installed.
    manager.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(
        notebook, km=manager, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "1,797 images" in said
    assert "(64, 8, 8, 3)" in said
    # After two epochs: far from good, and far from chance.
    assert "test accuracy " in said
    pictures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
