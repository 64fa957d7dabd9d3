"""Hooks of MkDocs: pages from elsewhere in the repository, links, formulas.

`make docs` builds the site. README files, the cards of the presets and the
notebooks stay where a reader of the repository expects them, and become pages
here. A link to a file that is no page leads to the repository.
"""

import base64
import html as html_text
import pathlib
import posixpath
import re

import latex2mathml.converter
import nbconvert
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
CARDS = sorted(ROOT.glob("keras_tfm/presets/*/README.md"))
# Pages by their file in the repository.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "README.md": "overview.md",
    "SECURITY.md": "security.md",
    "keras_tfm/recipes/README.md": "recipes.md",
    "notebooks/README.md": "tutorials/index.md",
}
PAGES |= {f"notebooks/{path.name}": f"tutorials/{path.stem}.md" for path in NOTEBOOKS}
PAGES |= {
    path.relative_to(ROOT).as_posix(): f"cards/{path.parent.name}.md" for path in CARDS
}
FILES = {page: file for file, page in PAGES.items()}
# It is an image from another host; the site shows a button of its own.
BADGE = "[![Open in Colab][badge]][colab]"
BUTTON = "[Open in Colab][colab]{ .md-button }\n\n"
LINK = re.compile(r'(\]\(|src="|href="|^\[[^\]]+\]: )([^)\s"]+)', re.M)
# MkDocs changes no links in HTML, so that such a picture becomes Markdown.
PICTURE = re.compile(r'<img src="([^"]+)" width="(\d+)" alt="([^"]*)">')
# A long command would be a narrow column of many lines; a flag breaks nowhere.
COMMAND = re.compile(r"<td>(?=<code>[^<]{60})(?=<code>[^<]* --)")
FIGURE = re.compile(r"!\[[^\]]*\]\(([\w./-]+\.png)\)(?!\{)")
WIDE = "{ .wide }"
FLAG = re.compile(r"<td>(?=<code>--[\w-]+</code>)")
FENCE = re.compile(r"(^```.*?^```)", re.M | re.S)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are files outside `docs`."""
    for name, page in PAGES.items():
        path = ROOT / name
        if path.suffix == ".ipynb":
            text, images = _read_notebook(path)
            for image, data in images.items():
                uri = posixpath.join(posixpath.dirname(page), path.stem, image)
                files.append(File.generated(config, uri, content=data))
        else:
            text = path.read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def _read_notebook(path):
    """A notebook with its outputs as Markdown, and its images by name."""
    notebook, animations = nbformat.read(path, as_version=4), {}
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/gif" in data:  # nbconvert would show its name in Python
                image = f"output_{number}.gif"
                animations[image] = base64.b64decode(data["image/gif"])
                output["data"] = {"text/markdown": f"![gif]({image})"}
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(notebook)
    images = resources["outputs"] | animations
    for image, data in images.items():
        link = f"]({path.stem}/{image}){WIDE if is_wide(data) else ''}"
        text = text.replace(f"]({image})", link)
    text = text.replace(BADGE, BUTTON)
    return text.replace("%matplotlib inline\n", ""), images


def is_wide(image: bytes) -> bool:
    """Returns whether a PNG has over 1,000 pixels: it scrolls on a phone."""
    return image[:4] == b"\x89PNG" and int.from_bytes(image[16:20]) > 1000


def _mark_wide(match):
    file = ROOT / "docs" / match[1]
    is_file = "/" not in match[1] and file.is_file()
    return match[0] + (WIDE if is_file and is_wide(file.read_bytes()) else "")


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Changes links between files into links between pages."""
    uri = page.file.src_uri
    name = FILES.get(uri, f"docs/{uri}")

    def replace(match):
        return match[1] + site_link(match[2], name, uri, config.repo_url)

    parts = FENCE.split(markdown)
    for index, part in enumerate(parts[::2]):
        part = PICTURE.sub(r'![\3](\1){ width="\2" }', part)
        parts[2 * index] = FIGURE.sub(_mark_wide, LINK.sub(replace, part))
    return "".join(parts)


def site_link(link: str, name: str, page: str, repository: str) -> str:
    """Returns where a link of a file leads in the site.

    Args:
        link: str, as in the file.
        name: str, the file in the repository.
        page: str, its page in the site.
        repository: str, the address of the repository.
    """
    path, hash_sign, anchor = link.partition("#")
    if ":" in path or not path or path.startswith("/"):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    folder = posixpath.dirname(page) or "."
    if target in PAGES:
        path = posixpath.relpath(PAGES[target], folder)
    elif target.startswith("docs/") and (ROOT / target).is_file():
        path = posixpath.relpath(target.removeprefix("docs/"), folder)
    elif (ROOT / target).exists():
        path = f"{repository}/blob/main/{target}"
    return path + hash_sign + anchor


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes formulas of LaTeX into MathML, which browsers draw themselves."""
    html = COMMAND.sub('<td class="command">', html)
    html = FLAG.sub('<td class="flag">', html)
    return FORMULA.sub(_to_mathml, html)


def _to_mathml(match):
    display = "block" if match[1] == "div" else "inline"
    latex = html_text.unescape(match[2])
    return latex2mathml.converter.convert(latex, display=display)
