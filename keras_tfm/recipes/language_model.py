"""Train a decoder to continue texts with `model.fit`, and sample from it.

* Run      keras-tfm train language-model --data my_texts.txt
* Needs    two CPU cores; minutes and memory: table of runs, recipes/README.md
* Expect   perplexity and bits per character: the same table, with command,
           machine, date and commit
* Follows  Radford et al. 2018, section 3.1; pre-norm as Radford et al. 2019
"""

import dataclasses
import pathlib
import random
import shutil
import sys
import time
from typing import Literal

import keras
import numpy as np

from keras_tfm import decode, models, pipelines, plot, runtime, text, training
from keras_tfm.pipelines import saving
from keras_tfm.recipes import (
    devices,
    labeled_corpora,
    runs,
    training_cost,
    vocabularies,
)
from keras_tfm.recipes.devices import Devices
from keras_tfm.recipes.flags import JitCompile, jit_argument
from keras_tfm.text.files import numbered_lines
from keras_tfm.text.reading import ReadingReport
from keras_tfm.training import processes

SIZES = {
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
# Flags that may change when a run is resumed.
RESUMABLE = ("out", "average_last", "prompt", "sampling_topp", "temperature")
RESUMABLE += ("max_new_tokens", "max_bad_rate", "save_every", *devices.RESUMABLE)
COUNTS = ("epochs", "average_last", "length", "batch_size", "max_new_tokens")
COUNTS += ("save_every",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What to train on."""

    data: str = "imdb"
    """A file with one text per line, plain or .gz; or imdb (built in)."""
    validation: str | None = None
    """File to validate on. Default: a twentieth of the texts."""
    test: str | None = None
    """File to score. Default: a twentieth of the texts."""
    max_bad_rate: float = 0.05
    """Fraction of lines of a file that may be unreadable. They are counted,
    listed and skipped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to train."""

    size: Literal["small", "medium"] = "small"
    """Configuration of the model."""
    positions: Literal["rotary", "learned", "sinusoidal", "alibi", "t5"] = "rotary"
    """Position encoding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary(vocabularies.Characters):
    """How text becomes tokens."""

    vocabulary_size: int = 8_000
    """Maximum number of subword tokens."""
    subword_model: Literal["unigram", "bpe"] = "bpe"
    """Subword algorithm of SentencePiece."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimization:
    """How to train."""

    length: int = 128
    """Tokens of a training sequence."""
    batch_size: int = 32
    """Sequences in a batch."""
    epochs: int = 3
    """Passes over the training texts."""
    learning_rate: float = 2e-3
    """Peak learning rate, after a twentieth of the updates; it decays to 0."""
    weight_decay: float = 0.1
    """Weight decay of AdamW, on matrices."""
    dropout: float = 0.1
    """Dropout rate of residual connections and embeddings."""
    clip_norm: float = 1.0
    """Maximum global norm of the gradients."""
    average_last: int = 1
    """Last epochs whose weights are averaged."""
    jit_compile: JitCompile = "auto"
    """Compile the training step with XLA. auto is the choice of Keras: on with
    TensorFlow and JAX, off with PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to sample after training."""

    prompt: tuple[str, ...] = ()
    """Texts to continue. Default: the beginnings of three test texts."""
    sampling_topp: float = 0.9
    """Sample from the likeliest tokens with this total probability."""
    temperature: float = 0.9
    """Divisor of the logits before a token is sampled."""
    max_new_tokens: int = 60
    """Maximum tokens of a continuation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Where to save, and the seed."""

    out: str | None = None
    """Run folder. A run is resumed if the folder holds one, after its last
    saved state. Default: a name under runs/."""
    save_every: int = 1_000
    """Updates after which the state of a longer epoch is saved."""
    seed: int = 0
    """Seed of weights, dropout, sampling and held-out texts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(Data, Model, Vocabulary, Optimization, Devices, Decoding, Run):
    """The flags of a run."""


def main(flags: Flags) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    check(flags)
    devices.use(flags)
    texts, notes = load_texts(flags)
    print(flags.data, *notes, sep="\n")
    if flags.out is None:
        corpus = pathlib.Path(flags.data).resolve().name.split(".")[0]
        flags = dataclasses.replace(flags, out=f"runs/{corpus}-language-model")
    out = pathlib.Path(flags.out)
    identity = runs.identity(flags, texts["train"], texts["validation"])
    with runs.run_folder(out):
        runs.check_folder(out, identity, RESUMABLE)
        return train(flags, texts, out, identity)


def train(
    flags: Flags, texts: dict[str, list[str]], out: pathlib.Path, identity: dict
) -> dict:
    """Trains in the locked run folder, scores, and writes the results."""
    keras.utils.set_random_seed(flags.seed)
    vocabulary = make_vocabulary(flags, texts["train"], out)
    rows = {
        split: text.TokenRows(
            lines, vocabulary, flags.length, flags.batch_size, flags.seed
        )
        for split, lines in texts.items()
    }
    print(*(f"{split}: {data.report}" for split, data in rows.items()), sep="\n")
    rows["train"].batch(0)  # raises if there is too little text
    model = make_model(flags, vocabulary, rows["train"].steps_per_epoch)
    Sampler(flags, model, vocabulary, texts["test"])  # rejects wrong prompts
    runs.write_json(out / "flags.json", identity)
    local = devices.local_model(model)
    if processes.is_first_process():
        with training.local_devices():
            make_translator(flags, local, vocabulary).save(out / saving.UNFINISHED)
    history, averaged = fit(flags, model, rows, out)
    result = {}
    for split in ("validation", "test"):
        scores = evaluate(model, rows[split], texts[split])
        result |= {f"{split}_{name}": value for name, value in scores.items()}
        print(
            f"{split}: perplexity {scores['perplexity']:.2f} per token, "
            f"{scores['word_perplexity']:.2f} per word, "
            f"{scores['bits_per_character']:.4f} bits per character"
        )
    local = devices.local_model(model)
    if not processes.is_first_process():
        processes.wait_for_all("results")
        return {}
    with training.local_devices():
        make_translator(flags, local, vocabulary).save(out / "model")
        shutil.rmtree(out / saving.UNFINISHED)
        sampler = Sampler(flags, local, vocabulary, texts["test"])
        sampler.write(out / "samples.txt")
    epochs = len(history["seconds"])
    result |= training_cost.of_rows(model, rows["train"], flags.batch_size, epochs)
    result |= {
        "parameters": model.count_params(),
        "train_tokens": rows["train"].num_tokens,
        "test_tokens": rows["test"].num_tokens,
        "epochs_averaged": averaged,
        "training_minutes": round(sum(history["seconds"]) / 60, 2),
        "peak_memory_gib": runs.peak_memory(),
        "flags": dataclasses.asdict(flags),
        "versions": runs.versions(),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    print(f"\nEverything is in {out}")
    processes.wait_for_all("results")
    return result


def check(flags: Flags) -> None:
    """Rejects flags that are wrong for every text."""
    runs.check_at_least(flags, 1, COUNTS)
    runs.check_ranges(flags)
    if any(not prompt.strip() for prompt in flags.prompt):
        raise ValueError(f"--prompt must not be blank; got {flags.prompt!r}.")


def load_texts(flags: Flags) -> tuple[dict[str, list[str]], list[str]]:
    """Loads the texts of each split.

    Returns:
        dict of lists of str, and a list of notes to print.
    """
    files = {"validation": flags.validation, "test": flags.test}
    if flags.data == "imdb":
        if any(files.values()):
            raise ValueError(
                "--validation and --test must be left out for imdb, which has splits "
                f"of its own; got {flags.validation} and {flags.test}."
            )
        corpus = labeled_corpora.load("imdb", seed=flags.seed)
        splits = ("train", "validation", "test")
        texts = {split: getattr(corpus, split).texts for split in splits}
        return texts, [corpus.origin, *corpus.notes]
    for path in (flags.data, *files.values()):
        if path is not None and not pathlib.Path(path).is_file():
            raise ValueError(
                f"--data must be imdb or a text file; got {path!r}, which is not a "
                "file. Check the name."
            )
    lines = read_lines(flags.data, flags.max_bad_rate)
    texts = {
        split: read_lines(path, flags.max_bad_rate)
        for split, path in files.items()
        if path is not None
    }
    distinct = list(dict.fromkeys(lines))
    random.Random(flags.seed).shuffle(distinct)
    drawn = [split for split in files if split not in texts]
    count = max(1, len(distinct) // 20)
    if len(distinct) <= count * len(drawn):
        raise ValueError(
            f"--data {flags.data} must hold texts to train on and to hold out; got "
            f"{len(distinct)} different ones. Put one text on each line."
        )
    for number, split in enumerate(drawn):
        texts[split] = distinct[number * count : (number + 1) * count]
    held_out = {line for split in texts.values() for line in split}
    train = [line for line in lines if line not in held_out]
    notes = []
    if drawn:
        notes.append(f"Drawn by seed {flags.seed}: {', '.join(drawn)}, {count:,} each.")
    if len(train) < len(lines):
        dropped = len(lines) - len(train)
        notes.append(f"{dropped:,} held-out texts were removed from training.")
    if not train:
        raise ValueError(
            f"--data {flags.data} must hold texts that are not in --validation and "
            "--test; none is left to train on."
        )
    return {"train": train, **texts}, notes


def read_lines(path: str, max_bad_rate: float) -> list[str]:
    """Reads the lines of a file that are not blank."""
    report = ReadingReport(path, max_bad_rate)
    lines = [line for _, line in report.readable(numbered_lines(path)) if line.strip()]
    report.log()
    return lines


def make_vocabulary(
    flags: Flags, texts: list[str], out: pathlib.Path
) -> text.Vocabulary:
    """Loads the vocabulary of a resumed run, or trains one on the texts."""

    def train():
        return text.Vocabulary.train(
            texts,
            size=flags.vocabulary_size,
            model_type=flags.subword_model,
            exact=False,
            **vocabularies.options(flags, texts),
        )

    return vocabularies.train_once(out, train, text.Vocabulary.load)


def make_model(
    flags: Flags, vocabulary: text.Vocabulary, steps_per_epoch: int
) -> models.CausalLM:
    """Makes the model and compiles it."""
    learned = flags.positions == "learned"
    model = models.CausalLM(
        vocabulary.size,
        **SIZES[flags.size],
        positions=flags.positions,
        sequence_length=4 * flags.length if learned else None,
        dropout=flags.dropout,
    )
    updates = flags.epochs * steps_per_epoch
    model.compile(
        runs.make_adamw(
            model,
            flags.learning_rate,
            updates,
            warmup_steps=updates // 20,
            weight_decay=flags.weight_decay,
            clip_norm=flags.clip_norm,
        ),
        training.SmoothedCrossentropy(0.0),
        weighted_metrics=[training.Perplexity()],
        jit_compile=jit_argument(flags.jit_compile),
    )
    return model


def fit(
    flags: Flags,
    model: models.CausalLM,
    rows: dict[str, text.TokenRows],
    out: pathlib.Path,
) -> tuple[dict[str, list], int]:
    """Fits the model from where the run stands, and averages weights.

    Returns:
        The history, and the number of averaged epochs.
    """
    callbacks, average, resume = runs.make_callbacks(flags, out)
    history = resume.fit(
        model,
        rows["train"],
        flags.epochs,
        callbacks,
        validation_data=rows["validation"].ordered(),
        verbose=1 if sys.stdout.isatty() else 2,
    )
    return history, len(average.apply(model))


def evaluate(
    model: models.CausalLM, rows: text.TokenRows, texts: list[str]
) -> dict[str, float]:
    """Computes perplexity per token, and scores that no vocabulary changes."""
    perplexity = model.evaluate(rows.ordered(), return_dict=True, verbose=0)
    perplexity = perplexity["perplexity"]
    nats = np.log(perplexity) * rows.num_labels
    characters = sum(map(len, texts))
    return {
        "perplexity": round(float(perplexity), 3),
        "word_perplexity": round(float(np.exp(nats / rows.num_words)), 3),
        "bits_per_character": round(float(nats / np.log(2) / characters), 4),
    }


def make_translator(
    flags: Flags, model: models.CausalLM, vocabulary: text.Vocabulary
) -> pipelines.Translator:
    """Makes a pipeline that continues a text greedily."""
    return pipelines.Translator(
        model,
        vocabulary,
        options=decode.Options(max_decoding_length=flags.max_new_tokens),
        source_prefix=[vocabulary.start_id],
    )


class Sampler:
    """Continues prompts, greedily and by sampling.

    It rejects prompts and options that the model cannot decode.

    Args:
        flags: `Flags`.
        model: `models.CausalLM`.
        vocabulary: `text.Vocabulary`.
        texts: list of str, whose beginnings are the default prompts.
    """

    def __init__(
        self,
        flags: Flags,
        model: models.CausalLM,
        vocabulary: text.Vocabulary,
        texts: list[str],
    ):
        prompts = list(flags.prompt)
        if not prompts:
            sample = random.Random(flags.seed).sample(list(texts), min(3, len(texts)))
            prompts = [" ".join(line.split()[:6]) for line in sample]
        self.rows = [[vocabulary.start_id, *ids] for ids in vocabulary.encode(prompts)]
        greedy = decode.Options(max_decoding_length=flags.max_new_tokens)
        sampled = greedy.replace(
            sampling_topk=0,
            sampling_topp=flags.sampling_topp,
            sampling_temperature=flags.temperature,
        )
        self.decoders = {
            "greedy": runtime.Decoder(model, greedy),
            "sampled": runtime.Decoder(model, sampled),
        }
        self.vocabulary, self.seed = vocabulary, flags.seed
        positions = model.config["sequence_length"]
        longest = max(map(len, self.rows), default=0)
        if positions is not None and longest >= positions:
            raise ValueError(
                f"--prompt must have fewer than {positions} tokens, the positions of "
                f"the model; got {longest}. Shorten it, or increase --length."
            )

    def write(self, file: pathlib.Path) -> None:
        """Prints and writes the continued prompts."""
        results = {
            name: decoder(self.rows, seed=self.seed)
            for name, decoder in self.decoders.items()
        }
        lines = []
        for number, row in enumerate(self.rows):
            for name, hypotheses in results.items():
                ids = [*row, *hypotheses.ids[number, 0]]
                lines.append(f"{name}: {self.vocabulary.decode([ids])[0]}")
        print("", *lines, sep="\n")
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    runs.start(main, Flags, __doc__)
