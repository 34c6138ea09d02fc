"""Execute notebooks with nbclient and save them with their outputs: `make notebooks`, or name some files.

The hash of the code cells goes into the metadata, so that a test can tell an edited cell with an old output.
"""

import hashlib
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm.auto import tqdm

HERE = Path(__file__).parent


def source_sha256(notebook: nbformat.NotebookNode) -> str:
    """Digest of all code cells, in order."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\x00".join(sources).encode()).hexdigest()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what differs from run to run and means nothing; keep tags."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.NotebookNode({"tags": tags} if tags else {})
    notebook.metadata = nbformat.NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
        wholecurve={"source_sha256": source_sha256(notebook)},
    )


def render(path: Path) -> None:
    """Run one notebook in its folder and write it back."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    tidy(notebook)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for file in tqdm([Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")), unit="notebook"):
        render(file)
