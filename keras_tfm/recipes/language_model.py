"""Train a decoder to go on with a text, with `model.fit`, and let it.

* Run      python -m keras_tfm.recipes.language_model --data my_texts.txt
* Needs    see the table of runs in recipes/README.md
* Follows  Radford et al. 2018, section 3.1; pre-norm as Radford et al. 2019
"""

import dataclasses
import functools
import hashlib
import pathlib
import random
import sys
import time
from typing import Literal

import keras
import numpy as np

from keras_tfm import decode, models, pipelines, plot, runtime, text, training
from keras_tfm.recipes import labelled_corpora, runs
from keras_tfm.text.files import iterate_lines

PRESETS = {
    "small": {
        "num_layers": 2,
        "embedding_dim": 128,
        "intermediate_dim": 512,
        "num_heads": 4,
    },
    "medium": {
        "num_layers": 6,
        "embedding_dim": 384,
        "intermediate_dim": 1536,
        "num_heads": 6,
    },
}
# What may be another when a run goes on.
FREE = ("out", "average", "prompt", "sampling_topp", "temperature", "max_new_tokens")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    data: str = "imdb"
    """A file of texts, one a line, plain or .gz; or imdb (built in)."""
    validation: str | None = None
    """File to choose by; None: a twentieth of the texts. So for the test."""
    test: str | None = None
    """File to score."""
    out: str | None = None
    """Folder of the run, continued if it is there. None: a name under runs/."""
    preset: Literal["small", "medium"] = "small"
    """Shape of the model."""
    positions: Literal["rotary", "learned", "sinusoidal", "alibi", "t5"] = "rotary"
    """How the model knows where a token stands."""
    vocabulary_size: int = 8_000
    """Pieces of the subword vocabulary, at most."""
    vocabulary_kind: Literal["unigram", "bpe"] = "bpe"
    """Algorithm of SentencePiece."""
    length: int = 128
    """Tokens of a row in training."""
    rows: int = 32
    """Rows of a batch."""
    epochs: int = 3
    """Passes over the training texts."""
    peak_rate: float = 2e-3
    """Learning rate after the first twentieth of the updates; it ends at 0."""
    weight_decay: float = 0.1
    """Of AdamW, on matrices."""
    dropout: float = 0.1
    """Share of channels dropped from residuals and embeddings."""
    clip_norm: float = 1.0
    """Largest global norm of the gradients."""
    average: int = 1
    """Epochs, the last ones, whose weights are averaged."""
    prompt: tuple[str, ...] = ()
    """Beginnings to go on with after training; none: those of test texts."""
    sampling_topp: float = 0.9
    """Share of the probability that the likeliest tokens drawn from have."""
    temperature: float = 0.9
    """What logits are divided by before a token is drawn."""
    max_new_tokens: int = 60
    """Tokens that a text is continued by, at most."""
    jit_compile: bool = False
    """XLA in training on TensorFlow."""
    seed: int = 0
    """Of weights, dropout, cuts, and what is held out."""


def main(settings: Settings) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    check(settings)
    parts, notes = load(settings)
    print(f"{settings.data}", *notes, sep="\n")
    if settings.out is None:
        label = pathlib.Path(settings.data).resolve().name.split(".")[0]
        settings = dataclasses.replace(settings, out=f"runs/{label}-language-model")
    out = pathlib.Path(settings.out)
    runs.check_folder(out, described(settings, parts), FREE)
    keras.utils.set_random_seed(settings.seed)
    vocabulary = get_vocabulary(settings, parts["train"], out)
    rows = {
        name: text.TokenRows(
            texts, vocabulary, settings.length, settings.rows, settings.seed
        )
        for name, texts in parts.items()
    }
    print(*(f"{name}: {one.report}" for name, one in rows.items()), sep="\n")
    rows["train"].batch(0)  # refuses too little text
    model = make_model(settings, vocabulary, rows["train"].steps_per_epoch)
    samples = Samples(settings, model, vocabulary, parts["test"])
    out.mkdir(parents=True, exist_ok=True)  # from here on the input is good
    vocabulary.save(out / "vocabulary.model")
    runs.write_json(out / "settings.json", described(settings, parts))
    history, averaged = train(settings, model, rows, out)
    result = {
        f"{name}_{key}": value
        for name in ("validation", "test")
        for key, value in evaluate(model, rows[name], parts[name]).items()
    }
    for name in ("validation", "test"):
        print(
            f"{name}: perplexity {result[f'{name}_perplexity']:.2f} a token, "
            f"{result[f'{name}_word_perplexity']:.2f} a word, "
            f"{result[f'{name}_bits_per_character']:.4f} bits a character"
        )
    save(settings, model, vocabulary, out / "model")
    result |= {
        "parameters": model.count_params(),
        "train_tokens": rows["train"].num_tokens,
        "test_tokens": rows["test"].num_tokens,
        "epochs_averaged": averaged,
        "training_minutes": round(sum(history["seconds"]) / 60, 2),
        "peak_memory_gib": runs.peak_memory(),
        "settings": dataclasses.asdict(settings),
        "versions": runs.versions(),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    samples.write(out / "samples.txt")
    print(f"\nEverything is in {out}")
    return result


def check(settings: Settings):
    """Refuses settings that no text makes good."""
    for name in ("epochs", "average", "length", "rows", "max_new_tokens"):
        value = getattr(settings, name)
        if value < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be 1 or more. Received: {value}.")
    runs.check_ranges(settings)
    if any(not prompt.strip() for prompt in settings.prompt):
        raise ValueError(
            f"A prompt has words to go on from. Received: {settings.prompt!r}."
        )


def load(settings):
    """Loads the texts of each part.

    Returns dict of lists of str, and a list of notes.
    """
    named = {"validation": settings.validation, "test": settings.test}
    if settings.data == "imdb":
        if any(named.values()):
            raise ValueError(
                "imdb has parts of its own. Received: --validation "
                f"{settings.validation}, --test {settings.test}. Leave them out."
            )
        corpus = labelled_corpora.load("imdb", seed=settings.seed)
        parts = {
            name: getattr(corpus, name).texts
            for name in ("train", "validation", "test")
        }
        return parts, [corpus.origin, *corpus.notes]
    for path in (settings.data, *named.values()):
        if path is not None and not pathlib.Path(path).is_file():
            raise ValueError(
                f"Data are imdb, or a file of texts. Received: {path!r}; there is no "
                "such file. Check the name."
            )
    texts = lines(settings.data)
    parts = {name: lines(path) for name, path in named.items() if path is not None}
    distinct = list(dict.fromkeys(texts))
    random.Random(settings.seed).shuffle(distinct)
    drawn = [name for name in named if name not in parts]
    count = max(1, len(distinct) // 20)
    if len(distinct) <= count * len(drawn):
        raise ValueError(
            f"{settings.data}: texts to train on and to hold out are wanted. Received: "
            f"{len(distinct)} different ones. Put a text on each line."
        )
    for place, name in enumerate(drawn):
        parts[name] = distinct[place * count : (place + 1) * count]
    held = {line for part in parts.values() for line in part}
    parts["train"] = [line for line in texts if line not in held]
    notes = [f"{name}: {len(some):,} texts" for name, some in sorted(parts.items())]
    return parts, notes


def lines(path):
    """Reads the lines of a file that are not blank."""
    return [line for line in iterate_lines(path) if line.strip()]


def described(settings: Settings, parts) -> dict:
    """Gives what has to be the same when a run goes on."""
    digest = hashlib.sha256()
    for name in ("train", "validation"):
        for line in parts[name]:
            digest.update(line.encode() + b"\n")
    return dataclasses.asdict(settings) | {
        "prompt": list(settings.prompt),
        "backend": keras.config.backend(),
        "text_sha256": digest.hexdigest(),
    }


def get_vocabulary(settings, texts, out):
    """Loads the run's vocabulary, or trains one on the training texts."""
    if runs.has_begun(out):
        return text.Vocabulary.load(out / "vocabulary.model")
    return text.Vocabulary.train(
        texts,
        size=settings.vocabulary_size,
        model_type=settings.vocabulary_kind,
        exact=False,
    )


def make_model(settings, vocabulary, steps):
    """Makes the model, compiled."""
    learned = settings.positions == "learned"
    model = models.CausalLM(
        vocabulary.size,
        **PRESETS[settings.preset],
        positions=settings.positions,
        sequence_length=4 * settings.length if learned else None,
        dropout=settings.dropout,
    )
    updates = settings.epochs * steps
    optimizer = runs.falling_adamw(
        model,
        settings.peak_rate,
        updates,
        rise=updates // 20,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )
    model.compile(
        optimizer,
        training.SmoothedCrossentropy(0.0),
        weighted_metrics=[training.Perplexity()],
        jit_compile=settings.jit_compile or keras.config.backend() == "jax",
    )
    return model


def train(settings, model, rows, out):
    """Fits the model from where the run stands; gives its history."""
    average = training.CheckpointAverage(out / "averages", last=settings.average)
    restart = training.ResumeTraining(out / "restart")
    first_epoch, steps = restart.restore(model), rows["train"].steps_per_epoch
    if first_epoch < settings.epochs:
        model.fit(
            rows["train"].dataset(first_step=first_epoch * steps),
            validation_data=rows["validation"].ordered(),
            steps_per_epoch=steps,
            initial_epoch=first_epoch,
            epochs=settings.epochs,
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,
            callbacks=[
                runs.Seconds(),
                average,
                keras.callbacks.TensorBoard(out / "tensorboard"),
                restart,
            ],
        )
    return restart.history, len(average.apply(model))


def evaluate(model, rows, texts) -> dict:
    """Gives the perplexity of a token; and what no vocabulary changes."""
    perplexity = model.evaluate(rows.ordered(), return_dict=True, verbose=0)
    perplexity = perplexity["perplexity"]
    nats = np.log(perplexity) * rows.num_labels
    characters = sum(map(len, texts))
    return {
        "perplexity": round(float(perplexity), 3),
        "word_perplexity": round(float(np.exp(nats / rows.num_words)), 3),
        "bits_per_character": round(float(nats / np.log(2) / characters), 4),
    }


def save(settings, model, vocabulary, folder):
    """Writes what goes on with a text, greedily, for any backend."""
    pipelines.Translator(
        model,
        vocabulary,
        options=decode.Options(
            beam_size=1, max_decoding_length=settings.max_new_tokens
        ),
        source_prefix=[vocabulary.start_id],
    ).save(folder)


class Samples:
    """Beginnings that the model goes on with, greedily and by drawing.

    What cannot be searched is refused here, before anything is trained.
    """

    def __init__(self, settings, model, vocabulary, texts):
        prompts = list(settings.prompt)
        if not prompts:
            drawn = random.Random(settings.seed).sample(list(texts), min(3, len(texts)))
            prompts = [" ".join(one.split()[:6]) for one in drawn]
        self.rows = [[vocabulary.start_id, *ids] for ids in vocabulary.encode(prompts)]
        search = functools.partial(
            runtime.Decoder, model, max_decoding_length=settings.max_new_tokens
        )
        drawing = {
            "sampling_topk": 0,
            "sampling_topp": settings.sampling_topp,
            "sampling_temperature": settings.temperature,
        }
        self.searches = {"greedy": search(), "drawn": search(**drawing)}
        self.vocabulary, self.seed = vocabulary, settings.seed
        longest = model.config["sequence_length"]
        most = max(map(len, self.rows), default=0)
        if longest is not None and most >= longest:
            raise ValueError(
                "A prompt leaves positions for what follows. Received: one of "
                f"{most} tokens; the model has {longest}. Shorten it, or raise "
                "--length."
            )

    def write(self, file):
        """Prints and writes what the model says."""
        found = {
            name: search(self.rows, seed=self.seed)
            for name, search in self.searches.items()
        }
        said = []
        for number, row in enumerate(self.rows):
            for name, one in found.items():
                whole = [*row, *one.ids[number, 0]]
                said.append(f"{name}: {self.vocabulary.decode([whole])[0]}")
        print("", *said, sep="\n")
        file.write_text("\n".join(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    runs.start(main, Settings, __doc__)
