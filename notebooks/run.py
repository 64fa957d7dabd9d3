"""Executes notebooks and writes each one as `.ipynb` beside its `.py`.

python -m notebooks.run                              all
python -m notebooks.run 1_embedding_and_positions    one, or several

Edit the `.py` file, which has the percent format of jupytext. Two runs of a
notebook on one machine give the same file, except for measured times. PyTorch
is the fastest backend here, since it compiles nothing; KERAS_BACKEND names
another one.
"""

import base64
import hashlib
import io
import os
import pathlib
import sys
import tempfile
import time

import jupytext
import nbclient
import nbformat
from PIL import Image

FOLDER = pathlib.Path(__file__).parent
METADATA = {
    # With these, Jupyter and jupytext keep both files in sync.
    "jupytext": {"formats": "ipynb,py:percent", "notebook_metadata_filter": "-all"},
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def paths() -> list[pathlib.Path]:
    """Lists the `.py` of every notebook, in order."""
    return sorted(FOLDER.glob("[0-9]*_*.py"))


def read(path: pathlib.Path) -> nbformat.NotebookNode:
    """Reads a `.py` as a notebook without outputs.

    The id of a cell is a hash of its source, so that ids do not change when
    another cell is inserted.
    """
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    names = set()
    for cell in notebook.cells:
        cell.metadata = {}
        name = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        while name in names:
            name = hashlib.sha256(name.encode()).hexdigest()[:8]
        names.add(name)
        cell.id = name
    return notebook


def execute(notebook: nbformat.NotebookNode, folder: str) -> None:
    """Executes a notebook in place, from top to bottom, in a fresh kernel.

    Args:
        notebook: from `read`.
        folder: working folder of the kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    python_path = [str(FOLDER.parent)]
    if os.environ.get("PYTHONPATH"):
        python_path.append(os.environ["PYTHONPATH"])
    nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        # Log errors only, and keep logs of C++ libraries out of the outputs.
        extra_arguments=["--log-level=40", "--IPKernelApp.capture_fd_output=False"],
        resources={"metadata": {"path": folder}},
    ).execute(
        env={
            "KERAS_BACKEND": "torch",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(python_path),
        }
    )
    # Remove the version of Python, which the kernel has added.
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = reduce_colors(data["image/png"])


def reduce_colors(picture: str) -> str:
    """Reduces a picture to 256 colors, in a third of the bytes.

    Args:
        picture: PNG in base64.

    Returns:
        The same picture, PNG in base64.
    """
    file = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        colors = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colors.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")


def main(names: list[str]) -> None:
    """Executes and writes the notebooks with these names, or all of them.

    Raises:
        SystemExit: no notebook has one of the names.
    """
    stems = {path.stem: path for path in paths()}
    unknown = sorted(set(names) - set(stems))
    if unknown:
        sys.exit(f"No notebook of this name: {unknown}. There are {list(stems)}.")
    for name in names or stems:
        start, path = time.perf_counter(), stems[name]
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        file = path.with_suffix(".ipynb")
        file.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        seconds, size = time.perf_counter() - start, file.stat().st_size
        print(f"{file.name}: {seconds:.0f} seconds, {size / 1000:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
