"""Measures the source of keras_tfm: sizes, comments, annotations, names.

Run      python -m tools.measure [PACKAGE ...]   or   make measure
Prints   for each package its code lines (docstrings, comments and blank lines
         not counted), comments per code line and annotated public signatures;
         then every violation of the limits below; then the files that one
         translation visits. The exit status is 1 if a limit is violated.
"""

import ast
import collections
import dataclasses
import io
import pathlib
import sys
import tokenize
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY = ROOT / "keras_tfm"

# Limits, and what they count.
LIBRARY_CODE = 13_000  # code lines of keras_tfm without its recipes
FILE_LINES = 500
FUNCTION_CODE = 60  # code lines
PARAMETERS = 12  # of a constructor, `self` not counted
METHODS = 15  # of a class
COMMENT_RATE = 0.08  # comments per code line
COMMENTED_PACKAGES = ("layers", "models", "decode")
VISITED_FILES = 14  # of keras_tfm, by one call of a warm translator

# Code that may exceed a limit: "path:name" of a function or class, or "path" of
# a file, and the reason. A dataclass of options has no `__init__` to count.
BLOCK = "a block: each option is an equation of its paper"
WHOLE_MODEL = "a whole model: the options of its blocks and of its embeddings"
EXCEPTIONS = {
    "keras_tfm/layers/transformer_block.py:TransformerBlock.__init__": BLOCK,
    "keras_tfm/models/transformer.py:Transformer.__init__": WHOLE_MODEL,
    "keras_tfm/text/batches.py:Batches.__init__": "13: sizes, order and tokens",
}

# Words that say nothing of what a variable holds: no variable, argument,
# attribute, function or class is named by one of them alone.
WORDS = """
after again another asked been before begun being both called can come
coming did does doing done each every few found given gone got had has
heard held here how its joined just kept known listed made marked meant
mine more most named none now once one only other others ours own put
said same seen settled shown some such taken that theirs them then there
these they this those told too very wanted was were what when where
which while who whom why will written yours
"""
STOP_WORDS = frozenset(WORDS.split())
# "path:name", or a name for every file, and what it means there.
NAMES_ALLOWED: dict[str, str] = {
    "keras_tfm/pipelines/segmentation.py:where": "the function of NumPy",
}

TRANSLATION = 'Translator.from_preset("en-de")("Where is the station?")'


@dataclasses.dataclass(frozen=True)
class Function:
    """One function of a file, with what the limits need.

    Args:
        name: str. Dotted name within the file, as `Class.method`.
        line: int. Line of its `def`.
        code: int. Code lines, those of nested functions included.
        parameters: int. Parameters without `self` and `cls`.
        public: bool. Whether users call it: neither its name nor that of its
            class begins with `_`, except `__init__` and `__call__`, and it is
            not nested in a function.
        annotated: bool. Whether each parameter and the result are annotated.
    """

    name: str
    line: int
    code: int
    parameters: int
    public: bool
    annotated: bool


@dataclasses.dataclass(frozen=True)
class Source:
    """One measured file.

    Args:
        path: str. Relative to the root of the repository, with `/`.
        lines: int. All lines.
        code: int. Lines that are neither blank, comment nor docstring.
        comments: int. Comments, those behind code included.
        functions: list of `Function`.
        classes: dict. Dotted name of each class to `(line, methods)`.
        names: list of `(line, name)` of everything that the file binds.
    """

    path: str
    lines: int
    code: int
    comments: int
    functions: list[Function]
    classes: dict[str, tuple[int, int]]
    names: list[tuple[int, str]]


def docstring_lines(tree: ast.Module) -> set[int]:
    """Returns the numbers of all lines that belong to a string statement."""
    lines = set()
    for node in ast.walk(tree):
        is_constant = isinstance(node, ast.Expr) and isinstance(
            node.value, ast.Constant
        )
        if is_constant and isinstance(node.value.value, str):
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines that hold code."""
    lines = set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.strip().startswith("#"):
            lines.add(number)
    return lines - docstring_lines(tree)


def count_comments(text: str) -> int:
    """Returns the number of comments in a file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Returns the parameters of a function without `self` and `cls`."""
    arguments = node.args
    parameters = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    return [p for p in parameters if p.arg not in {"self", "cls"}]


def is_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns whether a signature annotates each parameter and the result."""
    has_result = node.returns is not None or node.name == "__init__"
    return has_result and all(p.annotation for p in parameters_of(node))


def is_public(parts: Iterable[str]) -> bool:
    """Returns whether users call this: `__init__` and `__call__` are public."""
    return all(p in {"__init__", "__call__"} or not p.startswith("_") for p in parts)


def definitions(
    node: ast.AST, outer: tuple[str, ...] = (), nested: bool = False
) -> Iterator[tuple[tuple[str, ...], ast.AST, bool]]:
    """Yields `(name parts, node, in a function)` of classes and functions."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function or isinstance(child, ast.ClassDef):
            parts = (*outer, child.name)
            yield parts, child, nested
            yield from definitions(child, parts, nested or is_function)
        else:
            yield from definitions(child, outer, nested)


def bound_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Returns `(line, name)` of what a file defines, assigns or takes."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.attr))
    return sorted(names)


def read_source(path: str, text: str) -> Source:
    """Measures one file from its text.

    Args:
        path: str. Path of the file, relative to the root.
        text: str. Content of the file.

    Returns:
        A `Source`.
    """
    tree = ast.parse(text, path)
    code = code_lines(text, tree)
    functions, classes = [], {}
    for parts, node, nested in definitions(tree):
        name = ".".join(parts)
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            count = sum(isinstance(child, methods) for child in node.body)
            classes[name] = (node.lineno, count)
            continue
        extent = set(range(node.lineno, node.end_lineno + 1))
        function = Function(
            name=name,
            line=node.lineno,
            code=len(extent & code),
            parameters=len(parameters_of(node)),
            public=is_public(parts) and not nested,
            annotated=is_annotated(node),
        )
        functions.append(function)
    return Source(
        path=path,
        lines=len(text.splitlines()),
        code=len(code),
        comments=count_comments(text),
        functions=functions,
        classes=classes,
        names=bound_names(tree),
    )


def read_library(root: pathlib.Path = ROOT) -> dict[str, list[Source]]:
    """Measures every file of the library.

    Args:
        root: pathlib.Path. The folder that holds `keras_tfm`.

    Returns:
        A dict of package name, `""` for modules of `keras_tfm` itself, to the
        list of its `Source`s.
    """
    packages = collections.defaultdict(list)
    for file in sorted((root / "keras_tfm").rglob("*.py")):
        parts = file.relative_to(root / "keras_tfm").parts
        package = parts[0] if len(parts) > 1 else ""
        path = file.relative_to(root).as_posix()
        packages[package].append(read_source(path, file.read_text("utf-8")))
    return dict(packages)


def stop_word_names(source: Source) -> list[str]:
    """Returns `path:line name` of each name that is a stop-word."""
    faults = []
    for line, name in source.names:
        allowed = name in NAMES_ALLOWED or f"{source.path}:{name}" in NAMES_ALLOWED
        if name.strip("_").lower() in STOP_WORDS and not allowed:
            faults.append(f"{source.path}:{line} {name}")
    return faults


def size_violations(source: Source) -> list[str]:
    """Returns a sentence for each limit of size that a file violates."""
    faults = []
    if source.lines > FILE_LINES:
        faults.append((source.path, f"{source.path}: {source.lines} lines"))
    for function in source.functions:
        key = f"{source.path}:{function.name}"
        location = f"{source.path}:{function.line} {function.name}"
        if function.code > FUNCTION_CODE:
            faults.append((key, f"{location}: {function.code} code lines"))
        is_constructor = function.name.endswith("__init__")
        if is_constructor and function.parameters > PARAMETERS:
            faults.append((key, f"{location}: {function.parameters} parameters"))
    for name, (line, methods) in source.classes.items():
        if methods > METHODS:
            location = f"{source.path}:{line} class {name}"
            faults.append((f"{source.path}:{name}", f"{location}: {methods} methods"))
    return [fault for key, fault in faults if key not in EXCEPTIONS]


def comment_rate(sources: Iterable[Source]) -> float:
    """Returns comments per code line of several files."""
    sources = list(sources)
    code = sum(source.code for source in sources)
    return sum(source.comments for source in sources) / max(code, 1)


def unannotated(source: Source) -> list[str]:
    """Returns `path:line name` of each public signature that lacks a type."""
    return [
        f"{source.path}:{function.line} {function.name}"
        for function in source.functions
        if function.public and not function.annotated
    ]


def package_violations(package: str, sources: list[Source]) -> list[str]:
    """Returns a sentence for each limit that one package violates.

    Args:
        package: str. Its name, as `"layers"`.
        sources: list of `Source`. Its files.

    Returns:
        A list of str, empty where all limits hold.
    """
    faults = []
    for source in sources:
        faults += size_violations(source)
        faults += [f"{name}: a stop-word" for name in stop_word_names(source)]
        faults += [f"{name}: not annotated" for name in unannotated(source)]
    rate = comment_rate(sources)
    if package in COMMENTED_PACKAGES and rate < COMMENT_RATE:
        faults.append(f"keras_tfm/{package}: {rate:.3f} comments per code line")
    return faults


def library_code(packages: dict[str, list[Source]]) -> int:
    """Returns the code lines of the library, those of recipes not counted."""
    return sum(
        source.code
        for package, sources in packages.items()
        for source in sources
        if package != "recipes"
    )


def visited_files() -> list[str]:
    """Translates one sentence and lists the files of keras_tfm that it visits.

    The translator is warm: it has translated the sentence twice. PyTorch
    captures the first step and checks the second, see `runtime.capture`.

    Returns:
        A sorted list of paths, relative to the folder `keras_tfm`.
    """
    from keras_tfm import pipelines

    translator = pipelines.Translator.from_preset("en-de")
    for _ in range(2):
        translator("Where is the station?")
    paths = set()

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(LIBRARY)):
            paths.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        translator("Where is the station?")
    finally:
        sys.setprofile(None)
    return sorted(pathlib.Path(path).relative_to(LIBRARY).as_posix() for path in paths)


def format_row(package: str, sources: list[Source]) -> str:
    """Returns one line of the table."""
    public = [f for source in sources for f in source.functions if f.public]
    annotated = sum(function.annotated for function in public)
    numbers = [
        len(sources),
        sum(source.lines for source in sources),
        sum(source.code for source in sources),
        f"{comment_rate(sources):.3f}",
        f"{annotated}/{len(public)}",
        sum(len(stop_word_names(source)) for source in sources),
    ]
    return f"{package:12}" + "".join(f"{number:>11}" for number in numbers)


def main(names: list[str]) -> int:
    """Prints all measures of the packages `names`, or of all.

    Args:
        names: list of str. Packages; an empty list stands for all of them and
            adds the measures of the whole library.

    Returns:
        int. 1 if a limit is violated, else 0.
    """
    packages = read_library()
    titles = ["files", "lines", "code", "comments", "annotated", "stop-words"]
    print(f"{'package':12}" + "".join(f"{title:>11}" for title in titles))
    faults = []
    for package in names or packages:
        sources = packages.get(package, [])
        print(format_row(package or "keras_tfm", sources))
        faults += package_violations(package, sources)
    if not names:
        code = library_code(packages)
        print(f"code lines without recipes: {code} of {LIBRARY_CODE}")
        if code > LIBRARY_CODE:
            faults.append(f"keras_tfm: {code} code lines, limit {LIBRARY_CODE}")
        paths = visited_files()
        print(f"{TRANSLATION} visits {len(paths)} files: {' '.join(paths)}")
        if len(paths) > VISITED_FILES:
            faults.append(f"one translation visits {len(paths)} files")
    print(*faults, f"{len(faults)} violations", sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
