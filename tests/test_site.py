"""The documentation site: it builds, is complete, and fits every screen."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
import zlib

import pytest

from tests.server import browser
from tests.test_docs import PACKAGES, ROOT, public_objects
from tools import flags

pytestmark = pytest.mark.backend("torch")  # text, which no backend changes
PAGE_WIDTH = "document.documentElement.scrollWidth"
WIDTHS = (1280, 390)  # pixels: a computer and a phone


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-8000:]
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The text of each page by its path."""
    files = sorted(site.rglob("*.html"))
    return {file.relative_to(site).as_posix(): file.read_text() for file in files}


def test_every_public_name_has_an_entry(site):
    inventory = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(inventory.split(b"zlib.\n", 1)[1]).decode().splitlines()
    names = {line.split()[0] for line in lines}
    missing = []
    for package in PACKAGES:
        objects = public_objects(importlib.import_module(f"keras_tfm.{package}"))
        for name, value in objects.items():
            # A function may have the name of its module.
            full_name = f"{value.__module__}.{name.rsplit('.', 1)[1]}"
            missing += [] if {name, full_name} & names else [name]
    assert missing == []


def test_pages_load_nothing_from_another_host(pages):
    host = r"(?:https?:)?//"
    patterns = (
        rf'<(?:script|img|iframe)[^>]* src="{host}',
        rf"url\({host}",
        rf'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="{host}',
    )
    pattern = "|".join(patterns)
    assert [name for name, text in pages.items() if re.search(pattern, text)] == []


def test_every_picture_of_a_page_is_there(pages, site):
    missing = []
    for name, text in pages.items():
        for link in re.findall(r'<img[^>]* src="(?!https?:)([^"]+)"', text):
            path = site / link.lstrip("/")
            if not link.startswith("/"):
                path = (site / name).parent / link
            missing += [] if path.is_file() else [(name, link)]
    assert missing == []
    animation = pages["tutorials/1_embedding_and_positions/index.html"]
    assert ".gif" in animation


def test_the_page_of_flags_is_current():
    page = flags.PAGE.read_text("utf-8")
    assert page == flags.page()
    assert "| `--from` |" in page and "| `--strict`, `--no-strict` | `False` |" in page


def test_formulas_are_drawn_by_the_browser(pages):
    text = pages["tutorials/2_attention/index.html"]
    assert text.count("<math ") > 20
    assert not [name for name, text in pages.items() if 'class="arithmatex"' in text]


def test_notebooks_are_shown_with_their_outputs(pages, site):
    notebooks = [path.stem for path in ROOT.glob("notebooks/*.ipynb")]
    assert len(notebooks) == 7
    for name in notebooks:
        text = pages[f"tutorials/{name}/index.html"]
        assert re.search(r'src="[^"]*output_[\w.]+"', text), name
        assert "colab.research.google.com/github/keras-tfm" in text


@pytest.mark.skipif(not browser.chromium(), reason="no Chromium is installed")
def test_no_page_is_wider_than_the_screen(site, pages):
    async def measure():
        wide = []
        async with browser.open_page("about:blank") as page:
            await page.call("Page.enable")
            for width in WIDTHS:
                size = {"width": width, "height": 900, "deviceScaleFactor": 1}
                await page.call(
                    "Emulation.setDeviceMetricsOverride", **size, mobile=width < 600
                )
                for name in pages:
                    await page.call("Page.navigate", url=(site / name).as_uri())
                    await page.until(
                        f"location.pathname.endsWith({name!r}) && "
                        "document.readyState === 'complete'"
                    )
                    page_width = await page.value(
                        "document.documentElement.scrollWidth"
                    )
                    if page_width > width:
                        wide.append((name, width, page_width))
        return wide

    assert asyncio.run(measure()) == []


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../README.md#install", "../overview.md#install"),
        ("../Makefile", "https://x.org/blob/main/Makefile"),
        ("../keras_tfm/layers", "https://x.org/blob/main/keras_tfm/layers"),
        ("../CONTRIBUTING.md", "../contributing/index.md"),
        ("decoding.md#speed", "../decoding.md#speed"),
        ("../notebooks/2_attention.ipynb", "../tutorials/2_attention.md"),
        ("missing.md", "missing.md"),
        ("#speed", "#speed"),
        ("https://keras.io", "https://keras.io"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(link, expected):
    from tools.pages import site_link

    name = "docs/architecture.md"
    assert site_link(link, name, "deep/architecture.md", "https://x.org") == expected


def test_call_arguments_become_a_list():
    from tools.docstring_sections import rewrite

    docstring = (
        "Does.\n\nCall arguments:\n    x: float `(B,)`,\n        finite.\n"
        "    y, z: int.\n\nReturns:\n    float.\n\nSource: a."
    )
    assert rewrite(docstring) == (
        "Does.\n\n**Call arguments:**\n\n* **`x`** \u2013 float `(B,)`,\n    finite.\n"
        "* **`y, z`** \u2013 int.\n\n**Returns:**\n\nfloat.\n\nSource: a."
    )
