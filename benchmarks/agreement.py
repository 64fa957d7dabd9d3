"""Whether one trained model says the same on every backend and in CTranslate2.

* Run      python -m benchmarks.agreement --model FOLDER --text FILE
           --reference FILE                          (see --help)
* Needs    pip install ctranslate2
* Counts   sentences whose best hypothesis is the same, token by token, as on
           the first row; and of the others those whose scores differ by less
           than 1e-4: there two hypotheses are as good, and rounding decides

Each row is a process of its own. CTranslate2 stops as ours does with
`early_stopping`: `--rows "jax, early stopping" "CTranslate2 float32"`.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

import tyro

NEAR = 1e-4


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared."""

    model: str
    """Folder of a `Translator`."""
    text: str
    """File of source sentences, one a line."""
    reference: str
    """File of their translations."""
    beam_size: int = 4
    """1 is greedy."""
    tokenize: str = "none"
    """How sacrebleu cuts texts: none where they are cut, else 13a."""
    shortlist: str = ""
    """File of a `Shortlist`, for rows with one."""
    rows: tuple[str, ...] = ()
    """Which rows, by the names in the table; all if none is named."""


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


def ours(settings, kind):
    """Ids and scores of our search; kind is a policy, or another word."""
    import keras

    from keras_tfm.decode import Options, Shortlist
    from keras_tfm.runtime import Decoder
    from keras_tfm.text import Vocabulary

    model = keras.models.load_model(os.path.join(settings.model, "model.keras"))
    if kind.endswith("float16"):
        weights = model.get_weights()
        keras.config.set_dtype_policy(kind)
        model = type(model).from_config({**model.get_config(), "dtype": kind})
        model.set_weights(weights)
    rows = encoded(settings, Vocabulary)
    listed = Shortlist.load(settings.shortlist) if kind == "shortlist" else None
    search = Decoder(
        model,
        Options(
            beam_size=settings.beam_size,
            shortlist=listed,
            early_stopping=kind == "early stopping",
            matmul_precision="bfloat16" if kind == "products" else "float32",
        ),
    )
    size = {"batch_size": 1} if kind == "alone" else {}
    return {
        number: (found.ids[0, 0, : found.lengths[0, 0]].tolist(), found.scores[0, 0])
        for number, found in search.bulk(rows, **size)
    }


def ctranslate2(settings, kind):
    """Ids and scores of CTranslate2 with the same weights."""
    import ctranslate2 as library
    import keras

    from keras_tfm import zoo
    from keras_tfm.text import Vocabulary

    model = keras.models.load_model(os.path.join(settings.model, "model.keras"))
    pieces = [
        [f"p{i}" for i in range(embedding.vocabulary_size)]
        for embedding in (model.source_embedding, model.target_embedding)
    ]
    folder = tempfile.mkdtemp()
    zoo.to_ctranslate2(model, pieces[0], folder, target_vocabulary=pieces[1])
    of_type = "int8" if kind.endswith("int8") else "float32"
    translator = library.Translator(folder, compute_type=of_type)
    rows = encoded(settings, Vocabulary)
    results = translator.translate_batch(
        [[f"p{i}" for i in row] for row in rows],
        beam_size=settings.beam_size,
        max_batch_size=64,
        return_scores=True,
        return_end_token=True,
        suppress_sequences=[["p0"], ["p1"], ["p2"]],
    )
    return {
        number: ([int(token[1:]) for token in one.hypotheses[0]], one.scores[0])
        for number, one in enumerate(results)
    }


def encoded(settings, vocabulary):
    """The sentences as lists of ids."""
    with open(settings.text, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    vocabulary = vocabulary.load(os.path.join(settings.model, "source.model"))
    return [list(map(int, row)) for row in vocabulary.encode(lines)]


def worker(settings, kind):
    """Decodes in this process, and prints what it found."""
    answers, sys.stdout = sys.stdout, sys.stderr
    decode = ctranslate2 if kind.startswith("ctranslate2") else ours
    found = decode(settings, kind)
    found = [(ids, float(score)) for _, (ids, score) in sorted(found.items())]
    print(json.dumps(found), file=answers)


def main(settings: Settings):
    """Compares and prints the table."""
    import numpy as np
    import sacrebleu

    from keras_tfm.text import Vocabulary

    vocabulary = Vocabulary.load(os.path.join(settings.model, "target.model"))
    with open(settings.reference, encoding="utf-8") as file:
        references = [line.rstrip("\n") for line in file]
    first = None
    print(
        "| program | the same | near ties | others | largest score difference | BLEU |"
    )
    print("|---|---|---|---|---|---|")
    for name in settings.rows or ROWS:
        backend, kind = ROWS[name]
        if kind == "shortlist" and not settings.shortlist:
            continue
        command = [sys.executable, "-m", "benchmarks.agreement", "worker"]
        job = json.dumps([dataclasses.asdict(settings), kind])
        environment = {**os.environ, "KERAS_BACKEND": backend}
        done = subprocess.run(
            [*command, job], env=environment, stdout=subprocess.PIPE, check=True
        )
        found = json.loads(done.stdout)
        first = first or found
        ids = [np.array([ids]) for ids, _ in found]
        texts = [vocabulary.decode(one)[0] for one in ids]
        options = {"tokenize": settings.tokenize, "force": True}
        bleu = sacrebleu.corpus_bleu(texts, [references], **options).score
        pairs = list(zip(found, first, strict=True))
        same = [abs(s - t) for (a, s), (b, t) in pairs if a == b]
        other = [abs(s - t) for (a, s), (b, t) in pairs if a != b]
        near = sum(difference < NEAR for difference in other)
        print(
            f"| {name} | {len(same)} | {near} | {len(other) - near} | "
            f"{max(same):.1e} | {bleu:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        given, chosen = json.loads(sys.argv[2])
        worker(Settings(**given), chosen)
    else:
        main(tyro.cli(Settings, description=__doc__))
