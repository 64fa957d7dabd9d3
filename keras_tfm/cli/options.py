"""The options of each command, as tyro reads them."""

import dataclasses
import importlib
from typing import Annotated, Literal

import tyro

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Files = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="FILE"),
]
File = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
Precision = Literal["float32", "bfloat16"]


class Command:
    """A command, whose module has a function `run` of it."""

    def run(self) -> int:
        """Does what the command does, and gives the exit status."""
        name = f"keras_tfm.cli.{type(self).__name__.lower()}"
        return importlib.import_module(name).run(self) or 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Languages(Command):
    """What names the languages of a model of many."""

    source_language: str | None = None
    """Of a model of many languages."""
    target_language: str | None = None
    """Likewise."""


@dataclasses.dataclass(frozen=True)
class Translate(Languages):
    """Translates lines: a line for a line, or JSON for JSON.

    With --output the lines done so far stand in FILE.part: started again with
    the same model, options and files, the command goes on after the last whole
    line. What comes from standard input begins anew.
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """Texts, one a line, plain or .gz; none: standard input."""
    output: str | None = None
    """File to write; else standard output."""
    form: Literal["text", "jsonl"] = "text"
    """jsonl: objects with "source", and if wanted "target_prefix",
    "constraints", a list of phrases, and "id", which is given back; answers
    have "translation", "score", "finished" and "hypotheses"."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""
    matmul_precision: Precision | None = None
    """bfloat16, on JAX and PyTorch: faster where the processor has it."""
    num_hypotheses: int | None = None
    """Of jsonl: translations of each; else one."""
    batch_size: int = 64
    """Sentences decoded at once, at most."""
    batch_tokens: int = 2048
    """Source tokens with padding, likewise."""
    window: int = 10_000
    """Lines that are read before they are translated, sorted by length."""
    progress: bool | None = None
    """Lines done, on standard error; by default where that is a terminal."""


@dataclasses.dataclass(frozen=True)
class Classify(Command):
    """Labels lines: for each a label, a tab and its probability.

    Where a text may have several, they stand with commas between them, and the
    probability is that of the likeliest. With --output it can be stopped and
    started again, as translate can.
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """Texts, one a line, of pairs with a tab between; none: standard input."""
    output: str | None = None
    """File to write; else standard output."""
    form: Literal["text", "jsonl"] = "text"
    """jsonl: objects with "text", of pairs "second" too, and if wanted "id",
    which is given back; answers have "label", "probabilities" and
    "truncated"."""
    window: int = 4_096
    """Lines that are read before they are labelled."""


@dataclasses.dataclass(frozen=True)
class Score(Languages):
    """Scores translations that are given: log-probability over the penalty.

    With --output it can be stopped and started again, as translate can.
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """Source and target, line by line; or one with a tab between; none: that
    from standard input."""
    output: str | None = None
    """File to write; else standard output."""
    form: Literal["text", "jsonl"] = "text"
    """jsonl: objects with "source" and "target", and if wanted "id", which is
    given back; answers have "score", "tokens" and "token_scores"."""
    window: int = 4_096
    """Lines that are read before they are scored."""


@dataclasses.dataclass(frozen=True)
class Evaluate(Languages):
    """Translates a test set and compares: BLEU and chrF by sacrebleu."""

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """Texts and their translations, line by line; or one with a tab between;
    none: that from standard input."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""
    matmul_precision: Precision | None = None
    """bfloat16, on JAX and PyTorch: faster where the processor has it."""
    output: str | None = None
    """File for the translations."""


@dataclasses.dataclass(frozen=True)
class Export(Languages):
    """Writes a model for other programs."""

    model: Model
    """A preset, a folder, or hf://owner/name."""
    folder: Annotated[str, tyro.conf.Positional]
    """Folder to write."""
    form: Literal["saved-model", "ctranslate2", "transformers", "keras"] = "saved-model"
    """saved-model: for TensorFlow and its server; keras: a folder of ours."""
    version: int | None = None
    """Of a saved-model: for TensorFlow Serving, in a folder of that name."""
    num_hypotheses: int | None = None
    """Of a saved-model: n of `n_best`; by default the beam's size."""
    jit_compile: bool = False
    """Of a saved-model: by XLA for 1 to 32 texts of up to 32 tokens."""
    quantization: str | None = None
    """Of ctranslate2: int8, float16 and the like."""


@dataclasses.dataclass(frozen=True)
class Serve(Languages):
    """Answers over HTTP: a page, JSON, and what TensorFlow Serving answers.

    Texts that come while the model works are translated together. Ctrl-C stops
    it when it has answered what it has taken.
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    port: int = 8501
    """Where it listens; that of TensorFlow Serving. 0: one that is free."""
    host: str = "127.0.0.1"
    """Likewise; 0.0.0.0: for other machines too."""
    name: str | None = None
    """Of the model in addresses; else that of its folder."""
    workers: int = 1
    """Processes with the model."""
    beam_size: int | None = None
    """1 is greedy; else as the model comes."""
    matmul_precision: Precision | None = None
    """bfloat16, on JAX and PyTorch: faster where the processor has it."""
    body_bytes: int = 1_000_000
    """Of a request, at most."""
    text_length: int = 20_000
    """Characters of a text, at most."""
    texts: int = 256
    """Of a request, at most."""
    seconds: float = 60.0
    """Until an answer, at most."""
    waiting: int = 256
    """Requests that wait, at most."""
    attention_tokens: int = 400
    """Of a text whose attention is asked for, at most."""
    batch_size: int = 32
    """Texts that the model gets at once; 1: each by itself."""
    warm_up: tuple[int, ...] = (32, 64, 128)
    """Tokens of texts that programs are compiled for before it answers; none:
    each when it is first needed, while requests wait."""


@dataclasses.dataclass(frozen=True)
class Average(Command):
    """Means the weights of the last epochs of a run, as a new translator."""

    run_folder: Annotated[str, tyro.conf.Positional]
    """Folder of a run of keras_tfm.recipes.translation."""
    folder: Annotated[str, tyro.conf.Positional]
    """Folder to write."""
    last: int = 5
    """Epochs."""


@dataclasses.dataclass(frozen=True)
class Inspect(Languages):
    """Tells what a model is: shape, parameters, vocabulary, settings."""

    model: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL"),
    ] = None
    """A preset, a folder, or hf://owner/name; none: lists the presets."""


@dataclasses.dataclass(frozen=True)
class Doctor(Command):
    """Reads a parallel corpus and tells what is wrong with it."""

    source: File
    """Texts, one a line, plain or .gz; or one file with a tab between."""
    target: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="FILE"),
    ] = None
    """Their translations."""
    test_source: str | None = None
    """Texts that must not be in training."""
    test_target: str | None = None
    """Their translations, likewise."""
    vocabulary: str | None = None
    """A SentencePiece model or tokenizer.json: tells how it cuts the texts."""
    max_length: int = 256
    """Of a vocabulary: tokens of a text in training, at most."""
    examples: int = 3
    """Lines that are shown of each fault."""
    strict: bool = False
    """Exit status 1 where there is a fault."""


COMMANDS = {
    "translate": Translate,
    "classify": Classify,
    "score": Score,
    "evaluate": Evaluate,
    "export": Export,
    "serve": Serve,
    "average": Average,
    "inspect": Inspect,
    "doctor": Doctor,
}
