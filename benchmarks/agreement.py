"""Compares the hypotheses of one model on every backend and in CTranslate2.

* Run      python -m benchmarks.agreement --model FOLDER --text FILE
           --reference FILE                          (see --help)
* Needs    pip install ctranslate2
* Counts   sentences whose best hypothesis equals that of the first row, token
           by token (identical); and other sentences whose scores differ by
           less than 1e-4 (near ties), where rounding decides between two
           hypotheses that are equally good

Each row runs in its own process. CTranslate2 stops a search as our option
`early_stopping` does: `--rows "jax, early stopping" "CTranslate2 float32"`.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

from benchmarks import report
from benchmarks.report import Column

NEAR_TIE = 1e-4  # of scores, which are log-probabilities


@dataclasses.dataclass(frozen=True)
class Flags(report.Flags):
    """Flags of this command."""

    model: str
    """Folder of a saved `Translator`."""
    text: str
    """File of source sentences, one per line."""
    reference: str
    """File of reference translations, one per line."""
    beam_size: int = 4
    """Beam size; 1 is greedy search."""
    tokenize: str = "none"
    """Tokenization of sacrebleu: none for tokenized text, else 13a."""
    shortlist: str = ""
    """File of a `Shortlist`, for the rows with a shortlist."""
    rows: tuple[str, ...] = ()
    """Rows to measure, by their names in the table; all if empty."""


COLUMNS = [
    Column("program"),
    Column("identical"),
    Column("near ties"),
    Column("others"),
    Column("largest score difference", format=".1e"),
    Column("BLEU", format=".2f"),
]
ROWS = {
    "tensorflow": ("tensorflow", "float32"),
    "jax": ("jax", "float32"),
    "torch": ("torch", "float32"),
    "jax, one sentence at a time": ("jax", "alone"),
    "tensorflow, shortlist": ("tensorflow", "shortlist"),
    "jax, shortlist": ("jax", "shortlist"),
    "CTranslate2 float32": ("torch", "ctranslate2"),
    "CTranslate2 int8": ("torch", "ctranslate2 int8"),
    "jax, early stopping": ("jax", "early stopping"),
    "jax, products in bfloat16": ("jax", "products"),
    "torch, products in bfloat16": ("torch", "products"),
    "tensorflow, mixed_bfloat16": ("tensorflow", "mixed_bfloat16"),
    "tensorflow, mixed_float16": ("tensorflow", "mixed_float16"),
    "jax, mixed_bfloat16": ("jax", "mixed_bfloat16"),
    "torch, mixed_bfloat16": ("torch", "mixed_bfloat16"),
    "torch, mixed_float16": ("torch", "mixed_float16"),
    "torch, bfloat16": ("torch", "bfloat16"),
}


def decode_with_keras_tfm(flags, kind):
    """Returns ids and scores of our search with one policy or option."""
    import keras

    from keras_tfm.decode import Options, Shortlist
    from keras_tfm.runtime import Decoder
    from keras_tfm.text import Vocabulary

    model = keras.models.load_model(os.path.join(flags.model, "model.keras"))
    if kind.endswith("float16"):
        weights = model.get_weights()
        keras.config.set_dtype_policy(kind)
        model = type(model).from_config({**model.get_config(), "dtype": kind})
        model.set_weights(weights)
    source_ids = encode_sources(flags, Vocabulary)
    use_shortlist = kind == "shortlist"
    shortlist = Shortlist.load(flags.shortlist) if use_shortlist else None
    decoder = Decoder(
        model,
        Options(
            beam_size=flags.beam_size,
            shortlist=shortlist,
            early_stopping=kind == "early stopping",
            matmul_precision="bfloat16" if kind == "products" else "float32",
        ),
    )
    size = {"batch_size": 1} if kind == "alone" else {}
    return {
        index: (result.ids[0, 0, : result.lengths[0, 0]].tolist(), result.scores[0, 0])
        for index, result in decoder.bulk(source_ids, **size)
    }


def decode_with_ctranslate2(flags, kind):
    """Returns ids and scores of CTranslate2 with the same weights."""
    import ctranslate2
    import keras

    from keras_tfm import zoo
    from keras_tfm.text import Vocabulary

    model = keras.models.load_model(os.path.join(flags.model, "model.keras"))
    tokens = [
        [f"p{i}" for i in range(embedding.vocabulary_size)]
        for embedding in (model.source_embedding, model.target_embedding)
    ]
    folder = tempfile.mkdtemp()
    zoo.to_ctranslate2(model, tokens[0], folder, target_vocabulary=tokens[1])
    compute_type = "int8" if kind.endswith("int8") else "float32"
    translator = ctranslate2.Translator(folder, compute_type=compute_type)
    source_ids = encode_sources(flags, Vocabulary)
    results = translator.translate_batch(
        [[f"p{i}" for i in row] for row in source_ids],
        beam_size=flags.beam_size,
        max_batch_size=64,
        return_scores=True,
        return_end_token=True,
        suppress_sequences=[["p0"], ["p1"], ["p2"]],
    )
    return {
        index: ([int(token[1:]) for token in result.hypotheses[0]], result.scores[0])
        for index, result in enumerate(results)
    }


def encode_sources(flags, vocabulary):
    """Returns the sentences as lists of ids."""
    with open(flags.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    vocabulary = vocabulary.load(os.path.join(flags.model, "source.model"))
    return [list(map(int, row)) for row in vocabulary.encode(lines)]


def worker(flags, kind):
    """Decodes in this process, and prints all hypotheses as JSON."""
    output, sys.stdout = sys.stdout, sys.stderr
    use_ctranslate2 = kind.startswith("ctranslate2")
    decode = decode_with_ctranslate2 if use_ctranslate2 else decode_with_keras_tfm
    hypotheses = sorted(decode(flags, kind).items())
    hypotheses = [(ids, float(score)) for _, (ids, score) in hypotheses]
    print(json.dumps(hypotheses), file=output)


def compare(flags):
    """Yields the rows of the table."""
    import numpy as np
    import sacrebleu

    from keras_tfm.text import Vocabulary

    vocabulary = Vocabulary.load(os.path.join(flags.model, "target.model"))
    with open(flags.reference, encoding="utf-8") as file:
        references = [line.rstrip("\n") for line in file]
    baseline = None
    for name in flags.rows or ROWS:
        backend, kind = ROWS[name]
        if kind == "shortlist" and not flags.shortlist:
            continue
        command = [sys.executable, "-m", "benchmarks.agreement", "worker"]
        job = json.dumps([dataclasses.asdict(flags), kind])
        environment = {**os.environ, "KERAS_BACKEND": backend}
        process = subprocess.run(
            [*command, job], env=environment, stdout=subprocess.PIPE, check=True
        )
        hypotheses = json.loads(process.stdout)
        baseline = baseline or hypotheses
        texts = [vocabulary.decode(np.array([ids]))[0] for ids, _ in hypotheses]
        options = {"tokenize": flags.tokenize, "force": True}
        bleu = sacrebleu.corpus_bleu(texts, [references], **options).score
        pairs = list(zip(hypotheses, baseline, strict=True))
        # Differences of scores: where the hypotheses are equal, and elsewhere.
        identical = [abs(s - t) for (a, s), (b, t) in pairs if a == b]
        different = [abs(s - t) for (a, s), (b, t) in pairs if a != b]
        near_ties = sum(difference < NEAR_TIE for difference in different)
        remaining = len(different) - near_ties
        yield name, len(identical), near_ties, remaining, max(identical), bleu


def main(flags: Flags):
    """Compares and prints the table."""
    report.report("agreement", flags, report.Table(COLUMNS, compare(flags)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        values, row_kind = json.loads(sys.argv[2])
        worker(Flags(**values), row_kind)
    else:
        main(report.parse(Flags, __doc__))
