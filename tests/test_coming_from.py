"""The pages for users of other programs: code, defaults and commands."""

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys

import keras
import pytest

from keras_tfm import decode, layers, models
from keras_tfm.cli.options import COMMANDS
from keras_tfm.recipes import flags, translation, translation_defaults
from tests.test_docs import ROOT, blocks, run_blocks, shell_lines

pytestmark = pytest.mark.backend("torch")

FOLDER = ROOT / "docs/coming_from"
# Each page, and what it compares with that must be importable.
PEERS = {
    "ctranslate2": ["ctranslate2"],
    "fairseq": [],
    "keras_hub": ["keras_hub"],
    "marian": [],
    "opennmt_tf": [],
    "pytorch": ["torch"],
    "transformers": ["transformers", "safetensors", "tokenizers"],
}
TOOLKITS = ("fairseq", "marian", "opennmt_tf")  # with commands that train
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
HEADER = ["there", "default there", "here", "default here"]
# What a name without a class means in the table below a heading.
OWNERS = {
    "Decoding": [decode.Options],
    "Model": [models.Transformer, layers.TransformerEncoder],
}
PACKAGES = ("decode", "layers", "models", "pipelines", "text", "training")
CODE = re.compile(r"`([^`]+)`")


def read(page):
    return (FOLDER / f"{page}.md").read_text("utf-8")


def default_of(name, heading):
    """Returns the default of a flag, of `Class.argument` or of `argument`."""
    if name.startswith("--"):
        return (
            inspect.signature(translation.Flags)
            .parameters[name[2:].replace("-", "_")]
            .default
        )
    owner, _, name = name.rpartition(".")
    owners = OWNERS.get(heading, [])
    if owner:
        modules = [importlib.import_module(f"keras_tfm.{p}") for p in PACKAGES]
        owners = [getattr(m, owner) for m in modules if hasattr(m, owner)]
    for function in owners:
        parameters = inspect.signature(function).parameters
        if name in parameters:
            return parameters[name].default
    raise LookupError(name)


def default_faults(text):
    """Lists the rows of tables whose default differs from that of the code."""
    faults, heading, is_checked = [], "", False
    for line in text.splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        if not line.startswith("|"):
            is_checked = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == HEADER:
            is_checked = True
        elif is_checked and set(line) - set("|- "):
            if not cells[2].startswith("`"):  # words: there is no such option
                continue
            names, values = CODE.findall(cells[2]), CODE.findall(cells[3])
            try:
                expected = default_of(names[0], heading)
                if not values or ast.literal_eval(values[0]) != expected:
                    faults.append(f"{names[0]}: {cells[3]}, not {expected!r}")
            except (LookupError, ValueError, SyntaxError):
                faults.append(f"{names[0]}: no such name or value, {cells[3]}")
    return faults


def commands(text):
    """Lists the words of each `keras-tfm` command, continued lines joined."""
    code = "\n".join(shell_lines(text)).replace("\\\n", " ")
    return [shlex.split(c) for c in re.findall(r"^keras-tfm .+$", code, re.M)]


def check_command(words):
    """Parses a command; a wrong flag ends the test with SystemExit."""
    _, name, *arguments = words
    if name == "train":
        assert arguments[0] == "translation"
        parsed = flags.parse(translation.Flags, "", arguments[1:])
        translation_defaults.check(parsed)
    else:
        flags.parse(COMMANDS[name], "", arguments)


def small(words):
    """Returns a training command with the smallest model, for one epoch."""
    values = {"--num-layers": "1 1", "--embedding-dim": "16", "--num-heads": "2"}
    values |= {"--intermediate-dim": "32", "--vocabulary-size": "330"}
    values |= {"--epochs": "1", "--average-last": "1"}
    for name in values:
        if name in words:
            index = words.index(name)
            words = words[:index] + words[index + 2 :]
    return words + [word for flag in values.items() for word in " ".join(flag).split()]


def write_corpus(folder):
    """Writes train, val and test files of English and German."""
    animals = {"cats": "Katzen", "dogs": "Hunde", "birds": "V\u00f6gel"}
    folder.mkdir()
    for number, name in enumerate(("train", "val", "test")):
        counts = range(3, 150) if name == "train" else range(number, number + 1)
        for code, have, side in (("en", "I have", animals), ("de", "Ich habe", None)):
            names = side or animals.values()
            lines = [
                f"{have} {count} {animal}\n" for count in counts for animal in names
            ]
            (folder / f"{name}.{code}").write_text("".join(lines), "utf-8")


def test_each_program_has_a_page():
    assert sorted([*PEERS, "index"]) == PAGES
    index = read("index")
    assert [name for name in PEERS if f"]({name}.md)" not in index] == []


@pytest.mark.parametrize("page", PEERS)
def test_python_in_a_page_runs(page, tmp_path):
    for module in PEERS[page]:
        pytest.importorskip(module)
    text = read(page)
    assert list(blocks(text, "python"))
    process = run_blocks(text, tmp_path, keras.backend.backend(), f"{page}.md")
    assert process.returncode == 0, process.stderr[-4000:]


@pytest.mark.parametrize("page", PAGES)
def test_defaults_in_a_page_are_those_of_the_code(page):
    assert default_faults(read(page)) == []


def test_a_wrong_default_is_found():
    rows = ["| " + " | ".join(HEADER) + " |", "|---|---|---|---|"]
    rows += ["| `beam` | 5 | `beam_size` | `5` |", "| `x` | 1 | `beams` | `1` |"]
    rows += ["| `eps` | 0 | `SmoothedCrossentropy.label_smoothing` | `0.0` |"]
    rows += ["| `clip` | 0 | `--clip-norm` | `25.0` |"]
    assert default_faults("\n".join(["### Decoding", *rows])) == [
        "beam_size: `5`, not 1",
        "beams: no such name or value, `1`",
    ]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_a_page_have_valid_flags(page):
    for words in commands(read(page)):
        check_command(words)


def test_a_wrong_flag_is_found(capsys):
    text = "```bash\nkeras-tfm train translation \\\n  --data x --warmup 3\n```"
    [words] = commands(text)
    with pytest.raises(SystemExit):
        check_command(words)
    assert "--warmup" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_a_page_are_short_and_links_lead_somewhere(page):
    text = read(page)
    assert [line for line in text.splitlines() if len(line) > 120] == []
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", TOOLKITS)
def test_commands_in_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus")
    for _, name, *arguments in commands(read(page)):
        arguments = small(arguments) if name == "train" else arguments
        process = subprocess.run(
            [sys.executable, "-m", "keras_tfm", name, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr[-4000:]
    scores = (tmp_path / "scores.txt").read_text("utf-8").split()
    assert len(scores) == 3 and max(map(float, scores)) < 0
