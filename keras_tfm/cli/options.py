"""The flags of each command, as tyro reads them."""

import dataclasses
import importlib
import sys
from typing import Annotated, Literal

import tyro

from keras_tfm.recipes.flags import documented, with_flags
from keras_tfm.server.limits import Limits

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Models = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL ...]")
]
OptionalModel = Annotated[
    str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")
]
File = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
OptionalFile = Annotated[
    str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")
]
Files = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FILE ...]")
]
Folder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
Precision = Literal["float32", "bfloat16", "int8"]


class Command:
    """A command. The module of its name has a function `run` of its flags."""

    def run(self) -> int:
        """Runs the command and returns its exit status."""
        name = f"keras_tfm.cli.{type(self).__name__.lower()}"
        try:
            return importlib.import_module(name).run(self) or 0
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise ValueError(with_flags(str(error), self)) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Languages(Command):
    """The languages of a multilingual model."""

    source_language: str | None = None
    """Source language code of a multilingual model, such as eng_Latn."""
    target_language: str | None = None
    """Target language code of a multilingual model, such as deu_Latn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed(Command):
    """What runs the model, and in which precision."""

    matmul_precision: Precision | None = None
    """bfloat16 is faster on CPUs with AMX or AVX512_BF16, with JAX or PyTorch;
    int8 on CPUs with AMX, AVX512_VNNI or AVX_VNNI, with PyTorch.
    Default: float32."""
    engine: Literal["keras", "ctranslate2", "auto"] | None = None
    """Program that decodes. ctranslate2 is faster on CPUs and has fewer
    options; auto tries both for some seconds. Default: keras."""
    compute_type: str | None = None
    """Type of the weights in ctranslate2, such as int8. Default: float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(Command):
    """Where both sides are in a file of pairs."""

    source_column: str | None = None
    """Where the sources are in a file with pairs: the name of a column in its
    header, a key of JSON, a language of a .tmx, or a column's number from 0.
    Default: as the names say, or the first."""
    target_column: str | None = None
    """Where the targets are. Default: as the names say, or the second."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where workers run."""

    cluster: str | None = None
    """Ray cluster to run on: auto is that of this machine or of RAY_ADDRESS;
    local starts Ray on this machine alone; or an address such as head:6379.
    Default: this process, without Ray. Needs the extra `cluster`."""
    workers: int = 1
    """Processes that hold the models, on all machines together."""
    gpus_per_worker: float = 0.0
    """GPUs that each worker claims, with --cluster."""
    cpus_per_worker: float = 1.0
    """CPUs that each worker claims, with --cluster."""


@dataclasses.dataclass(frozen=True)
class Translate(Cluster, Speed, Languages):
    """Translate text line by line, or JSON objects.

    A line that cannot be read or translated is named on standard error, and is
    empty in the output, or an object with "error"; all others are written.

    With --output, finished lines are kept in FILE.part. The same command
    resumes after the last complete line. Standard input is never resumed.

    With --cluster, each input file becomes a file of its name in the folder
    --output: whole, or not there. The same command resumes there too.

    Example: keras-tfm translate en-de texts.txt --output texts.de
    """

    model: Model
    """A preset, a folder, or hf://owner/name; a pair such as de-fr that presets
    make by a third language; or auto-fr, which detects the source."""
    files: Files = ()
    """Text files with one text per line, plain or .gz. Default: standard
    input. With --cluster also quoted patterns, such as 'part-*.gz'."""
    output: str | None = None
    """File to write; a folder with --cluster. Default: standard output."""
    format: Literal["text", "jsonl"] = "text"
    """jsonl: each line is an object with "source", and optionally
    "target_prefix", "constraints" (a list of phrases) and "id"; each answer has
    "translation", "score", "truncated", "number_mismatch" and "hypotheses", or
    "error"."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search. Default: the model's own."""
    num_hypotheses: int | None = None
    """Translations of each text, with --format jsonl. Default: 1."""
    markup: Literal["html", "xml"] | None = None
    """Each text is HTML or XML: inline tags stay around the words that they
    held; block tags, comments, scripts, code and translate="no" stay as they
    are."""
    glossary: str | None = None
    """A .tsv or .csv file of terms and their translations, which translations
    of sentences with these terms contain. With --format jsonl an answer names
    "unmet_terms"."""
    protect: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """What a translation keeps unchanged: url, email, placeholder, code, emoji,
    tag, html, markdown, unknown, all, none, or a regular expression. May be
    repeated. Default: the model's own."""
    match_numbers: bool | None = None
    """Take a translation whose digits are those of the source; a line without
    one is named on standard error. Default: the model's own."""
    lower_capitals: bool | None = None
    """Translate text in capitals as if it were in lower case. Default: the
    model's own."""
    add_final_mark: bool | None = None
    """Translate text without a final mark as if it had one. Default: the
    model's own."""
    avoid_loops: bool | None = None
    """Decode a text again whose translation repeats itself. Default: the
    model's own."""
    alignments: str | None = None
    """File for word alignments, a line such as 0-0 1-2 for each line (Pharaoh
    format): words of text and translation as split by whitespace, from 0. With
    --format jsonl also "alignment" of each answer. Not resumed."""
    batch_size: int = 64
    """Maximum number of sentences in a batch."""
    batch_tokens: int = 2048
    """Maximum number of source tokens in a batch, padding included."""
    window: int = 10_000
    """Lines that are read, sorted by length and translated at a time."""
    progress: bool | None = None
    """Print the number of finished lines on standard error. Default: if that is
    a terminal."""


@dataclasses.dataclass(frozen=True)
class Classify(Command):
    """Classify text line by line: label, tab, probability.

    Several labels of one text are separated by commas; the probability is that
    of the likeliest. Lines without an answer, and --output, are as with
    translate.

    Example: keras-tfm classify sentiment-en reviews.txt
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """Text files with one text per line, or two texts separated by a tab, plain
    or .gz. Default: standard input."""
    output: str | None = None
    """File to write. Default: standard output."""
    format: Literal["text", "jsonl"] = "text"
    """jsonl: each line is an object with "text", "second" for pairs of texts,
    and optionally "id"; each answer has "label", "probabilities" and
    "truncated", or "error"."""
    window: int = 4_096
    """Lines that are read and classified at a time."""


@dataclasses.dataclass(frozen=True)
class Score(Languages, Columns):
    """Score existing translations: log-probability over length penalty.

    Rows without an answer, and --output, are as with translate.

    Example: keras-tfm score en-de texts.en texts.de
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    files: Files = ()
    """A file of sources and a parallel file of translations, or one with both
    sides: .tsv, .csv, .jsonl or .tmx; plain or .gz. Default: standard input,
    with tabs."""
    output: str | None = None
    """File to write. Default: standard output."""
    format: Literal["text", "jsonl"] = "text"
    """jsonl: each line is an object with "source", "target" and optionally
    "id"; each answer has "score", "tokens" and "token_scores", or "error"."""
    window: int = 4_096
    """Lines that are read and scored at a time."""


@dataclasses.dataclass(frozen=True)
class Evaluate(Speed, Languages, Columns):
    """Translate a test set and print BLEU, chrF, TER (sacrebleu) and COMET.

    Example: keras-tfm evaluate en-de test.en test.de
    """

    model: Model
    """A preset, a folder, or hf://owner/name; de-fr and auto-fr as with
    translate."""
    files: Files = ()
    """A file of sources and a parallel file of references, or one with both
    sides: .tsv, .csv, .jsonl or .tmx; plain or .gz. Default: standard input,
    with tabs."""
    max_bad_rate: float = 0.05
    """Fraction of rows that may be unreadable. They are counted, listed by line
    and left out."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search. Default: the model's own."""
    test: str | None = None
    """Public test set of sacrebleu in place of FILE, such as wmt19; it is
    downloaded once."""
    language_pair: str | None = None
    """Languages of --test, such as en-de. Default: those of the preset."""
    tokenize: str = "13a"
    """Tokenization of sacrebleu for BLEU, such as 13a, zh or flores200."""
    ter: bool = False
    """Print TER too (Snover et al. 2006), which takes longer."""
    comet: str | None = None
    """Print COMET too (Rei et al. 2020), by a checkpoint: a folder with
    hparams.yaml and checkpoints/model.ckpt, or a repository such as
    hf://Unbabel/wmt22-comet-da (2.3 GB), which is downloaded once."""
    comet_encoder: str | None = None
    """Folder or repository with config.json and tokenizer.json of COMET's
    encoder. Default: the repository that the checkpoint names."""
    compare: str | None = None
    """File with the translations of another system, one per line: tests by
    paired bootstrap whether the scores differ (Koehn 2004)."""
    output: str | None = None
    """File for the translations."""


@dataclasses.dataclass(frozen=True)
class Export(Languages):
    """Write a model for another program.

    Example: keras-tfm export en-de exported --format saved-model
    """

    model: Model
    """A preset, a folder, or hf://owner/name."""
    folder: Folder
    """Folder to write."""
    format: Literal["saved-model", "ctranslate2", "transformers", "keras"] = (
        "saved-model"
    )
    """saved-model: for TensorFlow and TensorFlow Serving; ctranslate2 and
    transformers: for those libraries; keras: a folder of this library."""
    version: int | None = None
    """Version folder for TensorFlow Serving, with --format saved-model."""
    num_hypotheses: int | None = None
    """Hypotheses of the signature n_best, with --format saved-model. Default:
    the beam size."""
    jit_compile: bool = False
    """Compile with XLA for 1 to 32 texts of up to 32 tokens, with --format
    saved-model."""
    quantization: str | None = None
    """Type of the weights, such as int8 or float16, with --format
    ctranslate2."""


@dataclasses.dataclass(frozen=True)
class Serve(Cluster, Speed, Languages):
    """Serve models over HTTP: web page, JSON API, TensorFlow Serving API.

    Concurrent requests are decoded together (continuous batching). Ctrl-C stops
    the server after it has answered the requests that it has accepted.

    Example: keras-tfm serve en-de --port 8501
    """

    models: Models
    """Presets, folders, or hf://owner/name; de-fr and auto-fr as with
    translate. The endpoints of several begin with their names, such as
    /en-de/translate."""
    port: int = 8501
    """Port, by default that of TensorFlow Serving; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 accepts requests from other machines. With
    --cluster, of the HTTP proxies on every node."""
    name: str | None = None
    """Name of a single model in URLs. Default: the name of its folder."""
    write_config: str | None = None
    """File to write for `serve deploy`, instead of serving."""
    beam_size: int | None = None
    """Beam size; 1 is greedy search. Default: the model's own."""
    max_body_bytes: int = Limits.max_body_bytes
    """Maximum request body, in bytes."""
    max_characters: int = Limits.max_characters
    """Maximum length of a text, in characters."""
    max_tokens: int | None = None
    """Maximum length of a text to translate, in tokens, which the time grows
    with. Default: 5,000."""
    max_texts: int = Limits.max_texts
    """Maximum number of texts in a request."""
    timeout: float = Limits.timeout
    """Maximum time until the request body is complete, and again until the
    answer, in seconds."""
    header_timeout: float = Limits.header_timeout
    """Maximum time until the headers of a request are complete, in seconds."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in `Host` headers to answer, beside localhost, 127.0.0.1 and [::1];
    others are rejected. Default: any, if --host is not a loopback address."""
    api_key_file: str | None = None
    """File with a key that POST requests and /metrics must present. Default:
    the environment variable KERAS_TFM_API_KEY, or no key."""
    max_waiting: int = Limits.max_waiting
    """Maximum number of requests that wait, for each worker. A request of many
    texts counts once for each quarter of a batch."""
    max_attention_tokens: int = Limits.max_attention_tokens
    """Maximum length of a text whose attention is requested, in tokens."""
    batch_size: int = Limits.batch_size
    """Maximum number of texts that are decoded at once; 1 disables batching."""
    warm_up: tuple[int, ...] = (32, 64, 128)
    """Source lengths, in tokens, to compile for. Empty: when a text comes."""
    compile_first: bool = False
    """Compile before requests are accepted, not in the background."""

    def run(self) -> int:
        """Says what is loaded, since Keras takes seconds, and serves."""
        if self.write_config is None:
            title = ", ".join(self.models)
            print(f"Loading {title} ...", file=sys.stderr, flush=True)
        return super().run()


@dataclasses.dataclass(frozen=True)
class Average(Command):
    """Average the weights of the last epochs of a run.

    Example: keras-tfm average runs/en-de averaged --last 5
    """

    run_folder: Folder
    """Run folder of `keras-tfm train translation`."""
    folder: Folder
    """Folder to write the translator to."""
    last: int = 5
    """Number of epochs."""


@dataclasses.dataclass(frozen=True)
class Inspect(Languages):
    """Print the configuration of a model, or list the presets.

    Example: keras-tfm inspect en-de
    """

    model: OptionalModel = None
    """A preset, a folder, or hf://owner/name; de-fr and auto-fr as with
    translate. Default: list the presets."""


@dataclasses.dataclass(frozen=True)
class Doctor(Columns):
    """Check a parallel corpus: count what is wrong with it, and clean it.

    Rows that cannot be read are counted and listed by line. In a folder, each
    corpus is checked: .tsv, .csv, .jsonl, .tmx and .txt files, and parallel
    files whose extensions name languages; train also for texts of val and test.

    Example: keras-tfm doctor train.en train.de --output clean.tsv
    """

    source: File
    """Source texts, one per line; or pairs in a .tsv, .csv, .jsonl or .tmx;
    plain or .gz; or a folder."""
    target: OptionalFile = None
    """Their translations."""
    output: str | None = None
    """File to write the pairs without a fault to: .tsv or .tsv.gz. Of a folder:
    a folder with a .tsv for each corpus."""
    normalization: str = "nmt_nfkc"
    """Normalization of SentencePiece whose changes are counted: nmt_nfkc, nfkc,
    these with _cf for lower case, or identity."""
    test_source: str | None = None
    """File of source texts that must not be in the corpus."""
    test_target: str | None = None
    """File of target texts that must not be in the corpus."""
    vocabulary: str | None = None
    """A SentencePiece model or tokenizer.json, to report how it tokenizes."""
    max_length: int = 256
    """Maximum training length in tokens, with --vocabulary."""
    examples: int = 3
    """Lines to print for each fault."""
    strict: bool = False
    """Exit with status 1 if there is a fault."""


@dataclasses.dataclass(frozen=True)
class Encode(Command):
    """Tokenize a corpus into a folder, for corpora larger than memory.

    `keras-tfm train translation --data FOLDER` reads the folder; any number of
    processes may at the same time. The same command resumes where it was
    stopped. Pairs that share a side with a validation or test pair are dropped.

    Example: keras-tfm encode train.en.gz train.de.gz --vocabulary v.model --out
    corpus
    """

    source: File
    """Source texts, one per line; or pairs in a .tsv, .csv, .jsonl or .tmx;
    plain or .gz."""
    target: OptionalFile = None
    """Their translations."""
    _: dataclasses.KW_ONLY
    out: str
    """Folder to write."""
    vocabulary: str | None = None
    """A SentencePiece model or tokenizer.json, of both sides if
    --target-vocabulary is not given."""
    target_vocabulary: str | None = None
    """That of the targets."""
    vocabulary_size: int | None = None
    """Learn a vocabulary of so many subword tokens from the corpus, in place of
    --vocabulary."""
    vocabulary_texts: int = 2_000_000
    """Texts to learn it from, drawn at random."""
    source_language: str | None = None
    """Source language, such as en: what a header or a key names, and what
    `keras-tfm train translation --source` must be."""
    target_language: str | None = None
    """Target language, such as de."""
    source_column: str | None = None
    """Where the sources are in a file with pairs, as with doctor."""
    target_column: str | None = None
    """Where the targets are."""
    validation: str | None = None
    """Validation pairs: a file, or two separated by a comma. Default: drawn
    from the corpus."""
    test: str | None = None
    """Test pairs: a file, or two separated by a comma. Default: drawn from the
    corpus."""
    held_out: int = 1_000
    """Pairs to draw for each set."""
    max_bad_rate: float = 0.05
    """Fraction of rows that may be unreadable. They are counted and skipped."""
    seed: int = 0
    """Seed of the drawn pairs."""


@dataclasses.dataclass(frozen=True)
class Train(Command):
    """Train a model: translation, classification or language-model.

    `keras-tfm train translation --help` prints the flags of a recipe. They
    follow `--` on a Ray cluster: `keras-tfm train translation --cluster auto
    --workers 16 --gpus-per-worker 1 -- --out FOLDER`.

    Example: keras-tfm train translation --data phrases --target de
    """

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """translation, classification or language-model."""


COMMANDS = {
    command.__name__.lower(): documented(command)
    for command in (
        Train,
        Translate,
        Classify,
        Score,
        Evaluate,
        Export,
        Serve,
        Average,
        Inspect,
        Doctor,
        Encode,
    )
}
