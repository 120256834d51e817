"""Runs the notebooks of `docs/notebooks` and keeps their outputs, without those of stderr. Run it
after the wording of an output has changed; it needs the extra `docs`.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parent / "notebooks"
SECONDS = 900
"""That a cell may take."""


def kept(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell without stderr. Parts of stdout between which stderr stood are one
    again.
    """
    found: list[NotebookNode] = []
    for output in outputs:
        name = output.get("name")
        if name == "stderr":
            continue
        if name == "stdout" and found and found[-1].get("name") == "stdout":
            found[-1]["text"] += output["text"]
        else:
            found.append(output)
    return found


def run(path: Path) -> None:
    """Runs a notebook in an empty folder, and writes its outputs into it."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = kept(cell.outputs)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or map(str, sorted(NOTEBOOKS.glob("*.ipynb"))):
        run(Path(name))
        print(name)
