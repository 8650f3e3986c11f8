"""The committed notebooks: executed, clean, small; and they still run, with their own asserts, in the quick profile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
MOST_BYTES = 400_000
MOST_LINES = 12
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
NotebookClient(nbformat.read(sys.argv[1], as_version=4), timeout=200).execute()
"""


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def notebook(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_committed_form(notebook: Path) -> None:
    """Executed in order, no error, no widget state, no absolute path, cells of at most 12 lines, a question first."""
    raw = notebook.read_text(encoding="utf-8")
    cells = json.loads(raw)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
    assert all(len("".join(cell["source"]).splitlines()) <= MOST_LINES for cell in code)
    assert "".join(cells[0]["source"]).splitlines()[0].endswith("?")
    assert "application/vnd.jupyter.widget-state+json" not in raw
    assert not re.search(r"/(home|root|work|Users|tmp)/", raw)
    assert len(raw.encode()) <= MOST_BYTES


def test_every_figure_is_guarded(notebook: Path) -> None:
    """After each figure comes a cell with an assert."""
    code = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    shown = [i for i, cell in enumerate(code) if any("image/png" in o.get("data", {}) for o in cell["outputs"])]
    for index in shown:
        following = "".join(code[index + 1]["source"]) if index + 1 < len(code) else ""
        assert "assert" in following or "widget" in json.dumps(code[index]["outputs"]), f"figure of cell {index}"


def test_executes(notebook: Path, tmp_path: Path) -> None:
    """In a process of its own: pytest's warning filters do not go with the client's event loop."""
    environment = os.environ | {"MTPLAB_PROFILE": "quick", "WANDB_MODE": "offline"}
    command = [sys.executable, "-c", EXECUTE, str(notebook)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
