"""The Python blocks of the guides run, and print what their comments say."""

import re

import keras
import pytest

from keras_tfm import pipelines
from tests.test_docs import ROOT, blocks, run_blocks

pytestmark = pytest.mark.backend("torch")
GUIDES = (
    "index",
    "get_started",
    "own_data",
    "classification",
    "fine_tuning",
    "zoo",
    "presets",
    "precision",
)
PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.M)
FENCED = re.compile(r"^```.*?^```", re.M | re.S)


def printed(text):
    """Lists the outputs that the comments behind `print(...)` promise."""
    code = "\n".join(code for _, _, code in blocks(text, "python"))
    return PRINTED.findall(code)


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_prints_what_it_says(name, tmp_path):
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    process = run_blocks(text, tmp_path, keras.backend.backend(), f"{name}.md")
    assert process.returncode == 0, process.stderr[-4000:]
    lines = process.stdout.splitlines()
    for expected in printed(text):
        assert expected in lines
        lines = lines[lines.index(expected) + 1 :]


def test_a_promised_output_is_found():
    text = (
        "```python\nprint(1)  # 1\nif x:\n    print(2)  # two\n```\n"
        "<!-- not run: no need -->\n```python\nprint(3)  # 3\n```\n"
    )
    assert printed(text) == ["1", "two"]


def test_options_change_translations_as_the_page_of_decoding_shows():
    text = (ROOT / "docs" / "decoding.md").read_text("utf-8")
    section = text.split("\n## Before and after\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+)` \| (.+) \| (.+) \| (.+) \|$", section, re.M)
    assert len(rows) > 12
    translator = pipelines.Translator.from_preset("en-de")
    for options, source, without, expected in rows:
        options = eval(f"dict({options})")
        result = translator.translate(source, **options)
        texts = [hypothesis.text for hypothesis in result.hypotheses]
        assert (options, texts) == (options, expected.split("<br>"))
        assert translator(source) == without


def anchor(heading):
    """Returns the anchor that GitHub and mkdocs give to a heading."""
    text = re.sub(r"[^\w\s-]", "", heading.lower())
    return re.sub(r"[-\s]+", "-", text.strip())


def broken_links(text, folder):
    """Lists the links of a page to missing files and headings."""
    faults = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", FENCED.sub("", text)):
        file, _, name = link.partition("#")
        target = text
        if file and not (folder / file).exists():
            faults.append(link)
            continue
        if file.endswith(".md"):
            target = (folder / file).read_text("utf-8")
        headings = re.findall(r"^#+ (.+)$", FENCED.sub("", target), re.M)
        if name and name not in map(anchor, headings):
            faults.append(link)
    return faults


@pytest.mark.parametrize("name", [*GUIDES, "export", "serving"])
def test_the_links_of_a_guide_lead_somewhere(name):
    folder = ROOT / "docs"
    text = (folder / f"{name}.md").read_text("utf-8")
    assert broken_links(text, folder) == []


def test_a_broken_link_is_found():
    text = "# Two words\n[a](#two-words) [b](#three) [c](no.md) [d](index.md#no)\n"
    assert broken_links(text, ROOT / "docs") == ["#three", "no.md", "index.md#no"]
