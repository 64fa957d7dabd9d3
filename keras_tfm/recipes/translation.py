"""Train a Transformer to translate with `model.fit`, and translate with it.

* Run      python -m keras_tfm.recipes.translation --data phrases --target de
* Needs    see the table of runs in recipes/README.md
* Follows  Vaswani et al. 2017; for small corpora Wu et al. 2021, section 3;
           with `--model recurrent` Bahdanau et al. 2015
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
import time
from typing import Annotated, Literal

import keras
import numpy as np
import sacrebleu
import tyro

from keras_tfm import models, pipelines, plot, text, training
from keras_tfm.recipes import corpora, runs, transfer

# What a corpus needs unless the command line says otherwise.
DEFAULTS = {
    "phrases": {
        "preset": "small",
        "vocabulary_size": 2_000,
        "vocabulary_kind": "unigram",
        "batch": 4_096,
        "epochs": 7,
        "peak_rate": 4e-3,
        "warmup": 400,
        "dropout": 0.0,
        "average": 3,
        "score_every": 5,
        "length_penalty": 1.0,
    },
    "multi30k": {
        "preset": "tiny",
        "vocabulary_size": 10_000,
        "vocabulary_kind": "bpe",
        "batch": 4_096,
        "epochs": 80,
        "peak_rate": 3.5e-3,
        "warmup": 2_000,
        "dropout": 0.3,
        "average": 10,
        "score_every": 10,
        "length_penalty": 1.0,
    },
}

# A deep encoder and a shallow decoder: as good and faster, Kasai et al. 2021,
# https://arxiv.org/abs/2006.10369
MEDIUM = {
    "num_layers": (4, 2),
    "embedding_dim": 256,
    "intermediate_dim": 1024,
    "num_heads": 4,
    "normalize_first": True,
}
PRESETS = {
    "small": functools.partial(models.transformer_tiny, num_layers=2),
    "tiny": models.transformer_tiny,
    "medium": functools.partial(models.transformer_base, **MEDIUM),
    "base": models.transformer_base,
    "big": models.transformer_big,
}
# With about as many parameters, embeddings apart.
RECURRENT = {
    "small": {"num_layers": 1, "embedding_dim": 128, "units": 136},
    "tiny": {"num_layers": 1, "embedding_dim": 128, "units": 216},
    "medium": {"num_layers": 1, "embedding_dim": 256, "units": 429},
    "base": {"num_layers": 2, "embedding_dim": 512, "units": 864},
    "big": {"num_layers": 2, "embedding_dim": 1024, "units": 1728},
}

# Of other corpora, under and from 50,000 pairs.
BY_SIZE = {
    "small": {
        "preset": "small",
        "vocabulary_size": 3_000,
        "vocabulary_kind": "unigram",
        "batch": 1_024,
        "epochs": 60,
        "peak_rate": 2e-3,
        "warmup": 1_000,
        "dropout": 0.15,
        "average": 5,
        "score_every": 5,
        "length_penalty": 1.0,
    },
    "large": {
        "preset": "medium",
        "vocabulary_size": 6_000,
        "vocabulary_kind": "unigram",
        "batch": 512,
        "num_buckets": 32,
        "epochs": 10,
        "peak_rate": 1.5e-3,
        "warmup": 1_500,
        "cooldown": 3,
        "dropout": 0.1,
        "average": 2,
        "score_every": 2,
        "length_penalty": 1.0,
    },
}
# Of any corpus, where nothing else is said.
USUAL = {"num_buckets": 8, "cooldown": 0}

# BLEU is of characters in languages that put no spaces between words.
WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")
WITHOUT_SPACES += ("cmn", "jpn", "khm", "lao", "mya", "tha", "yue", "zho")
MAX_SOURCE_LENGTH = 1_024
# In tokens, of either side of a pair that is learned from.
MAX_LENGTH = 256
MARKS = ("source_prefix", "source_suffix", "target_prefix")
# What a model comes with that a run starts from.
OWN = ("preset", "num_layers")
# What may be another when a run goes on.
FREE = ("out", "epochs", "cooldown", "average", "score_every", "beam_size")
FREE += ("length_penalty",)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a run. What is None is chosen for the corpus."""

    data: str = "phrases"
    """phrases (built in), multi30k, tatoeba, a folder (train.en, val.en, ...),
    a .tsv or .jsonl file, or two parallel files with a comma between them."""
    additional: str | None = None
    """Pairs more to train on, a .tsv or .jsonl file or two with a comma between
    them: back-translations for example, Sennrich et al. 2016, section 3. Always
    of --source and --target."""
    joined: float = 0.0
    """For each pair so many more, of two to four drawn ones in a row, as 0.1:
    where a corpus has short sentences, for long texts, Kondo et al. 2021."""
    unpunctuated: float = 0.0
    """For each pair so many more without the mark at its end, as people type;
    some of them in lower case or in capitals."""
    source: str = "en"
    """Language to translate from, such as en."""
    target: str = "de"
    """Language to translate into, such as de."""
    more_sources: tuple[str, ...] = ()
    """Languages more to translate from, by the same model: of a named corpus,
    or a folder whose train.en goes line by line with train.de and with
    train.fr. What is held out of one is not trained on with another; validation
    and test are of --source."""
    more_targets: tuple[str, ...] = ()
    """Languages more to translate into, likewise: a mark before a source, such
    as <2fr>, says which, Johnson et al. 2017."""
    form: Literal["tok", "raw"] = "tok"
    """Of Multi30k: tok (lower-cased and tokenised, as papers report) or raw."""
    held_out: int = 1_000
    """Pairs to draw where a corpus has no validation or no test part."""
    out: str | None = None
    """Folder of the run, continued if it is there. None: a name under runs/."""
    weights: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """A model to start from: the folder of another run, or a preset. Its shape
    stays, and its vocabulary unless --vocabulary-size asks for a new one, as
    for another language, Aji et al. 2020; dropout is this run's."""
    model: Literal["transformer", "recurrent"] = "transformer"
    """recurrent: what the Transformer replaced, with about as many weights."""
    preset: Literal["small", "tiny", "medium", "base", "big"] | None = None
    """Shape of the model; small is two layers of tiny, medium has four layers
    of 256 in its encoder and two in its decoder."""
    num_layers: tuple[int, int] | None = None
    """Layers of the encoder and of the decoder, if not those of the shape."""
    vocabulary_size: int | None = None
    """Pieces of the joint subword vocabulary."""
    vocabulary_kind: Literal["unigram", "bpe"] | None = None
    """Algorithm of SentencePiece."""
    batch: int | None = None
    """Target tokens in a batch, padding included."""
    num_buckets: int | None = None
    """Shapes of batches: the more the less padding, and the more programs
    where XLA compiles one for each."""
    epochs: int | None = None
    """Passes over the training pairs."""
    peak_rate: float | None = None
    """Learning rate at the end of the warm-up."""
    warmup: int | None = None
    """Updates until the peak; then the rate falls with 1 / sqrt(updates)."""
    cooldown: int | None = None
    """Epochs, the last ones, in which the rate also falls to zero in a line."""
    dropout: float | None = None
    """Share of channels dropped from residuals and embeddings."""
    label_smoothing: float = 0.1
    """Probability spread evenly over all pieces."""
    clip_norm: float = 25.0
    """Largest global norm of the gradients."""
    subword_sampling: float | None = None
    """Alpha of subword sampling in training; None: the best segmentation."""
    average: int | None = None
    """Epochs, the last ones, whose weights are averaged."""
    score_every: int | None = None
    """Epochs between scores of the validation set (greedy, BLEU and chrF)."""
    beam_size: int = 5
    """Hypotheses kept in the final search; 1 is greedy."""
    length_penalty: float | None = None
    """Exponent of the length that log-probabilities are divided by."""
    bleu_tokenize: str | None = None
    """sacrebleu's tokeniser: 13a, none (it is tokenised already), char, ..."""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """Of the training; its model is float32. mixed_bfloat16 with --batch 2048
    takes half the time on TensorFlow where the processor multiplies it."""
    jit_compile: bool = False
    """XLA in training on TensorFlow; each of the shapes compiles once."""
    seed: int = 0
    """Of weights, dropout, shuffling, and what is held out."""


def main(settings: Settings) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    check(settings)
    corpus = load_corpus(settings)
    print(f"{corpus.name}, {corpus.origin}", *corpus.notes, sep="\n")
    settings = complete(settings, len(corpus.train))
    out = pathlib.Path(settings.out)
    runs.check_folder(out, described(settings, corpus), FREE)
    keras.utils.set_random_seed(settings.seed)
    start = None if settings.weights is None else get_start(settings)
    vocabulary = get_vocabulary(settings, corpus, out, start)
    check_lengths(settings, corpus, vocabulary, positions(start))
    runs.write_json(out / "settings.json", described(settings, corpus))
    lengths = limits(start)
    batches = text.Batches(
        corpus.train,
        vocabulary,
        batch_tokens=settings.batch,
        num_buckets=settings.num_buckets,
        seed=settings.seed,
        subword_sampling=settings.subword_sampling,
        **lengths,
    )
    validation = text.Batches(
        marked(settings, corpus.validation, settings.target),
        vocabulary,
        batch_tokens=settings.batch,
        shuffle=False,
        **lengths,
    )
    print(batches.report)
    model = make_model(settings, vocabulary, start)
    network = compile_network(settings, model, batches.steps_per_epoch)
    history, averaged = train(
        settings, model, network, vocabulary, corpus, (batches, validation), out
    )
    model = copied(model, dtype="float32")
    translator = pipelines.Translator(
        model,
        vocabulary,
        beam_size=settings.beam_size,
        length_penalty=settings.length_penalty,
        split_tokens=usual_length(corpus, vocabulary),
        max_source_length=MAX_SOURCE_LENGTH,
        source_prefix=mark_ids(settings, vocabulary),
    )
    translator.save(out / "model")
    result = evaluate(settings, translator, corpus, out)
    result |= {
        "parameters": model.count_params(),
        "pairs": len(corpus.train),
        "epochs_averaged": averaged,
        "training_minutes": round(sum(history["seconds"]) / 60, 2),
        "peak_memory_gib": runs.peak_memory(),
        "settings": dataclasses.asdict(settings),
        "versions": runs.versions("sacrebleu", "Babel"),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    draw(translator, corpus, history, out)
    print(f"\nEverything is in {out}")
    return result


def load_corpus(settings: Settings) -> corpora.Corpus:
    """Reads the pairs that a run is of."""
    first = (settings.source, settings.target)
    languages = [first]
    languages += [(more, settings.target) for more in settings.more_sources]
    languages += [(settings.source, more) for more in settings.more_targets]
    each = [
        corpora.load(
            settings.data,
            source,
            target,
            settings.form,
            held_out=settings.held_out,
            seed=settings.seed,
            additional=settings.additional if (source, target) == first else None,
        )
        for source, target in languages
    ]
    if len(each) > 1:
        each = corpora.apart(each)
    rows, longer, bare = [], [], []
    for corpus in each:
        rows += marked(settings, corpus.train, corpus.target)
        if settings.joined:
            longer += marked(settings, joined(corpus, settings), corpus.target)
        if settings.unpunctuated:
            bare += unpunctuated(corpus, settings, each)
    notes = [note for corpus in each for note in corpus.notes]
    if longer:
        notes.append(f"{len(longer):,} pairs are two to four joined.")
    if bare:
        notes.append(f"{len(bare):,} pairs are without the mark at their end.")
    train = text.Pairs(*map(list, zip(*rows, *longer, *bare, strict=True)))
    return dataclasses.replace(each[0], train=train, notes=notes)


def marked(settings, pairs, language) -> text.Pairs:
    """Puts the mark of a target before sources, if the model has marks."""
    if not settings.more_targets:
        return pairs
    mark = text.language_tag(language)
    return text.Pairs([f"{mark} {source}" for source in pairs.source], pairs.target)


def joined(corpus, settings) -> text.Pairs:
    """Makes longer pairs of one language's."""
    sides = (corpus.source, corpus.target)
    between = tuple("" if spaceless(side) else " " for side in sides)
    count = max(1, round(settings.joined * len(corpus.train)))
    return corpora.join(corpus.train, count, settings.seed, between)


def unpunctuated(corpus, settings, each) -> list[tuple[str, str]]:
    """Makes pairs without marks of one language's, none of those held out."""
    count = max(1, round(settings.unpunctuated * len(corpus.train)))
    made = corpora.unpunctuate(corpus.train, count, settings.seed)
    held_out = {
        side
        for one in each
        for pairs in (one.validation, one.test)
        for pair in pairs
        for side in pair
    }
    kept = [pair for pair in made if held_out.isdisjoint(pair)]
    if not kept:
        return []
    pairs = text.Pairs(*map(list, zip(*kept, strict=True)))
    return list(marked(settings, pairs, corpus.target))


def spaceless(language: str) -> bool:
    """Tells whether a language puts no spaces between words."""
    return language.replace("-", "_").split("_")[0].lower() in WITHOUT_SPACES


def check(settings: Settings):
    """Refuses settings that no corpus makes good."""
    if settings.preset not in (None, *PRESETS):
        raise ValueError(
            f"--preset is one of {sorted(PRESETS)}. Received: {settings.preset!r}."
        )
    if settings.model not in ("transformer", "recurrent"):
        raise ValueError(
            f"--model is transformer or recurrent. Received: {settings.model!r}."
        )
    names = ("epochs", "average", "score_every", "beam_size", "batch", "num_buckets")
    names += ("held_out", "warmup")
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be 1 or more. Received: {value}.")
    if settings.num_layers is not None and (
        min(settings.num_layers) < 1 or settings.model == "recurrent"
    ):
        raise ValueError(
            "--num-layers are those of a Transformer's encoder and decoder, 1 or more "
            f"of each. Received: {settings.num_layers}, --model {settings.model}."
        )
    if settings.more_sources or settings.more_targets:
        check_more_languages(settings)
    runs.check_ranges(settings)
    if settings.cooldown is not None and settings.cooldown < 0:
        raise ValueError(f"--cooldown is 0 or more. Received: {settings.cooldown}.")
    for name, most in (("joined", 10), ("unpunctuated", 1)):
        value = getattr(settings, name)
        if not 0 <= value <= most:
            raise ValueError(f"--{name} is from 0 to {most}. Received: {value}.")
    if settings.weights is not None:
        given = {name: getattr(settings, name) for name in OWN}
        given = {name: value for name, value in given.items() if value is not None}
        if settings.model != "transformer":
            given["model"] = settings.model
        if given:
            raise ValueError(
                "With --from the shape of the model is that of the folder. "
                f"Received besides: {given}. Leave them out."
            )
        if settings.vocabulary_kind and settings.vocabulary_size is None:
            raise ValueError(
                "With --from a new vocabulary is asked for by its size. Received: "
                f"--vocabulary-kind {settings.vocabulary_kind} and no "
                "--vocabulary-size. Give both, or leave both out."
            )
    value = settings.length_penalty
    if value is not None and not value >= 0:
        raise ValueError(f"--length-penalty must be 0 or more. Received: {value}.")


def check_more_languages(settings):
    """Refuses languages that the data cannot have."""
    sources, targets = settings.more_sources, settings.more_targets
    if sources and targets:
        raise ValueError(
            "More sources go into one target, or one source into more targets. "
            f"Received: --more-sources {' '.join(sources)} --more-targets "
            f"{' '.join(targets)}. Train two models."
        )
    if settings.data not in corpora.NAMES and not pathlib.Path(settings.data).is_dir():
        raise ValueError(
            "More languages are of a corpus by name or of a folder, where files have "
            f"their languages in their names. Received: --data {settings.data!r}."
        )
    languages = (settings.source, settings.target, *sources, *targets)
    if len(set(languages)) < len(languages):
        raise ValueError(
            f"Each language is named once. Received: {', '.join(languages)}."
        )
    for language in targets:
        text.language_tag(language)


def complete(settings: Settings, pairs: int) -> Settings:
    """Fills what is None with what suits the corpus."""
    size = "small" if pairs < 50_000 else "large"
    chosen = USUAL | DEFAULTS.get(settings.data, BY_SIZE[size])
    if compiles(settings):
        chosen["num_buckets"] = USUAL["num_buckets"]
    if settings.epochs is not None:
        chosen["cooldown"] = min(chosen["cooldown"], settings.epochs // 3)
    tokenized = settings.data == "multi30k" and settings.form == "tok"
    chosen["bleu_tokenize"] = "none" if tokenized else "13a"
    if spaceless(settings.target):
        chosen["bleu_tokenize"] = "char"
    label = pathlib.Path(settings.data.split(",")[0]).resolve().name.split(".")[0]
    sources = "+".join([settings.source, *settings.more_sources])
    targets = "+".join([settings.target, *settings.more_targets])
    chosen["out"] = f"runs/{label}-{sources}-{targets}"
    if settings.model == "recurrent":
        chosen["out"] += "-recurrent"
    if settings.weights is not None:
        own = OWN
        if settings.vocabulary_size is None:
            own += ("vocabulary_size", "vocabulary_kind")
        chosen = {k: v for k, v in chosen.items() if k not in own}
    unset = {k: v for k, v in chosen.items() if getattr(settings, k) is None}
    settings = dataclasses.replace(settings, **unset)
    if settings.cooldown > settings.epochs:
        raise ValueError(
            "The cooldown takes some of the epochs. Received: --cooldown "
            f"{settings.cooldown}, --epochs {settings.epochs}."
        )
    return settings


def compiles(settings: Settings) -> bool:
    """Tells whether each shape of a batch is a program of its own."""
    return settings.jit_compile or keras.config.backend() == "jax"


def described(settings: Settings, corpus) -> dict:
    """Gives what has to be the same when a run goes on."""
    digest = hashlib.sha256()
    for part in (corpus.train, corpus.validation):
        for sentence in (*part.source, *part.target):
            digest.update(sentence.encode() + b"\n")
    described = dataclasses.asdict(settings) | {
        "backend": keras.config.backend(),
        "text_sha256": digest.hexdigest(),
    }
    return json.loads(json.dumps(described))  # as it is read: no tuples


def positions(start) -> int | None:
    """Tells how many positions a start has learned; None for any number."""
    return None if start is None else start.search.max_positions


def limits(start) -> dict:
    """Lengths of `text.Batches` that a start has positions for."""
    longest = min(MAX_LENGTH, positions(start) or MAX_LENGTH)
    return {"max_source_length": longest, "max_target_length": longest}


def check_lengths(settings, corpus, vocabulary, places=None):
    """Refuses, before any training, what could not be translated after it."""
    most = min(MAX_SOURCE_LENGTH, places or MAX_SOURCE_LENGTH)
    for name, part in (("validation", corpus.validation), ("test", corpus.test)):
        rows = vocabulary.encode(marked(settings, part, settings.target).source)
        longest = max(range(len(rows)), key=lambda i: len(rows[i]))
        if len(rows[longest]) > most:
            raise ValueError(
                f"Sources of at most {most:,} tokens are translated. "
                f"Received: {len(rows[longest]):,} in pair {longest + 1} of the {name} "
                f"part, {part.source[longest][:60]!r}... Split it, or leave it out."
            )


def get_vocabulary(settings, corpus, out, start=None) -> text.Vocabulary:
    """Loads the run's vocabulary, or trains one on the training pairs."""
    file = out / "vocabulary.model"
    if runs.has_begun(out):
        return text.Vocabulary.load(file)
    tokenized = settings.data == "multi30k" and settings.form == "tok"
    if start and settings.vocabulary_size is None:
        vocabulary = start.vocabulary
        check_marks(settings, vocabulary)
    else:
        vocabulary = text.Vocabulary.train(
            corpus.train.source + corpus.train.target,
            size=settings.vocabulary_size,
            model_type=settings.vocabulary_kind,
            normalization="identity" if tokenized else "nmt_nfkc",
            split_digits=settings.data == "phrases",
            languages=targets(settings),
        )
    out.mkdir(parents=True, exist_ok=True)  # from here on the input is good
    vocabulary.save(file)
    return vocabulary


def targets(settings) -> tuple:
    """Languages whose marks stand before sources."""
    more = settings.more_targets
    return (settings.target, *more) if more else ()


def mark_ids(settings, vocabulary) -> list[int]:
    """What stands before a source that goes into --target."""
    return vocabulary.languages[settings.target] if settings.more_targets else []


def check_marks(settings, vocabulary):
    """Refuses a start whose model has not all the marks."""
    known = vocabulary.languages
    if known and not settings.more_targets:
        raise ValueError(
            "A model with marks of its targets goes on with several. Received: "
            f"{settings.weights!r}, which has those of {', '.join(known)}, and no "
            "--more-targets. Name them."
        )
    missing = [name for name in targets(settings) if name not in known]
    if missing:
        raise ValueError(
            "With --more-targets the model to start from has a mark of each. "
            f"Received: {settings.weights!r}, which has those of {sorted(known)} and "
            f"not of {missing}. Train one with --more-targets from nothing."
        )


def get_start(settings) -> pipelines.Translator:
    """Loads what a run starts from."""
    translator = pipelines.Translator.from_preset(settings.weights)
    model = translator.model
    if (
        not isinstance(translator.vocabulary, text.Vocabulary)
        or translator.target_vocabulary.model != translator.vocabulary.model
        or getattr(model, "projection", None) is not None
    ):
        raise ValueError(
            "A run starts from a model with one SentencePiece vocabulary, whose "
            "embedding is also its projection, as those of this recipe. Received: "
            f"{settings.weights!r}, which has others."
        )
    own = [translator.settings[name] for name in MARKS]
    if any(own[1:]) or own[0] not in ([], *translator.vocabulary.languages.values()):
        raise ValueError(
            "A run gives its model texts with no mark but that of a target, as those "
            f"of this recipe have. Received: {settings.weights!r}, of a model that is "
            f"given {dict(zip(MARKS, own, strict=True))} with each. Train from nothing."
        )
    return translator


def copied(model, **changes) -> keras.Model:
    """Makes another model of the same weights, and of another configuration."""
    fresh = type(model).from_config(model.get_config() | changes)
    fresh.set_weights(model.get_weights())
    return fresh


def make_model(settings, vocabulary, start=None) -> keras.Model:
    """Makes a model with new weights, or with those that a run starts from."""
    options = {"dropout": settings.dropout, "dtype": settings.precision}
    if start and vocabulary.model == start.vocabulary.model:
        return copied(start.model, **options)
    if start:
        model, shared = transfer.with_vocabulary(
            start.model, start.vocabulary, vocabulary, **options
        )
        print(f"{shared:.0%} of the vocabulary's pieces are of {settings.weights}.")
        return model
    if settings.model == "recurrent":
        shape = RECURRENT[settings.preset]
        return models.RecurrentSeq2Seq(vocabulary.size, **options, **shape)
    if settings.num_layers is not None:
        options["num_layers"] = settings.num_layers
    return PRESETS[settings.preset](vocabulary.size, **options)


def compile_network(settings, model, steps) -> keras.Model:
    """Compiles what of a model is trained: all but the logits.

    The loss takes the decoder's output and the table of the tied embedding,
    so that the logits of a batch never exist as a whole.
    """
    network = model.hidden_model()
    network.compile(
        optimizer=keras.optimizers.Adam(
            training.InverseSquareRoot(
                settings.peak_rate,
                settings.warmup,
                initial_learning_rate=1e-7,
                total_steps=settings.epochs * steps,
                cooldown_steps=settings.cooldown * steps,
            ),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-8,
            global_clipnorm=settings.clip_norm,
        ),
        loss=training.ProjectedCrossentropy(
            model.target_embedding, settings.label_smoothing, chunk_tokens=512
        ),
        jit_compile=compiles(settings),
    )
    return network


def usual_length(corpus, vocabulary):
    """How many tokens 95 of 100 sources of training have at most.

    A text of more is cut after its sentences: of what is longer than all that
    it was trained on a model leaves out what comes later.
    """
    rows = vocabulary.encode(corpus.train.source[:: 1 + len(corpus.train) // 50_000])
    return max(1, int(np.percentile([len(row) for row in rows], 95)))


def train(settings, model, network, vocabulary, corpus, parts, out):
    """Fits the network from where the run stands; gives its history."""
    scored = model
    if settings.precision != "float32":  # in which a search is slower
        scored = copied(model, dtype="float32")
    translator = pipelines.Translator(
        scored,
        vocabulary,
        beam_size=1,
        batch_size=128,
        source_prefix=mark_ids(settings, vocabulary),
    )

    def translate(sentences):
        if scored is not model:
            scored.set_weights(model.get_weights())
        return translator(sentences)

    bleu = training.Bleu(
        corpus.validation.source,
        corpus.validation.target,
        translate,
        every=settings.score_every,
        tokenize=settings.bleu_tokenize,
    )
    average = training.CheckpointAverage(out / "averages", last=settings.average)
    restart = training.ResumeTraining(out / "restart", callbacks=[bleu])
    first_epoch = restart.restore(network)
    if first_epoch > settings.epochs:
        raise ValueError(
            f"{out} holds a run of {first_epoch} epochs already. Received: --epochs "
            f"{settings.epochs}. Ask for as many or more, or name another folder."
        )
    batches, validation = parts
    steps = batches.steps_per_epoch
    if first_epoch < settings.epochs:
        network.fit(
            batches.dataset(first_step=first_epoch * steps),
            validation_data=validation.dataset(repeat=False),
            steps_per_epoch=steps,
            initial_epoch=first_epoch,
            epochs=settings.epochs,
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,
            callbacks=[
                bleu,
                runs.Seconds(),
                average,
                keras.callbacks.TensorBoard(out / "tensorboard"),
                restart,
            ],
        )
    averaged = len(average.apply(network))
    print(f"\nWeights averaged over the last {averaged} epochs")
    return restart.history, averaged


def evaluate(settings, translator, corpus, out) -> dict:
    """Translates the test set, scores it, and shows some of it."""
    start = time.perf_counter()
    translations = translator(corpus.test.source, progress=True)
    seconds = time.perf_counter() - start
    rows = zip(corpus.test.source, corpus.test.target, translations, strict=True)
    lines = ["source\treference\ttranslation"]
    # Of a JSONL a sentence may have tabs and line ends.
    lines += ["\t".join(" ".join(side.split()) for side in row) for row in rows]
    (out / "translations.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    references = [corpus.test.target]
    bleu = sacrebleu.BLEU(tokenize=settings.bleu_tokenize, force=True)
    chrf = Chrf()
    score = bleu.corpus_score(translations, references, n_bootstrap=1000)
    chrf_score = chrf.corpus_score(translations, references, n_bootstrap=1000)
    print("\nUnseen sentences:")
    shown = np.random.default_rng(settings.seed).permutation(len(translations))[:8]
    for i in shown:
        print(f"  source       {corpus.test.source[i]}")
        print(f"  translation  {translations[i]}")
        print(f"  reference    {corpus.test.target[i]}\n")
    print(f"BLEU {score.score:.2f} ± {score._ci:.2f} (95%, bootstrap)  {score}")
    print(f"     {bleu.get_signature()}")
    print(f"chrF {chrf_score.score:.2f} ± {chrf_score._ci:.2f}")
    print(f"reference length {score.ref_len}, translation length {score.sys_len}")
    if translator.cut:
        print(f"{translator.cut} translations were cut at their limit of tokens")
    return {
        "bleu": round(float(score.score), 2),
        "bleu_half_width_95": round(float(score._ci), 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(float(chrf_score.score), 2),
        "chrf_half_width_95": round(float(chrf_score._ci), 2),
        "chrf_signature": str(chrf.get_signature()),
        "exact_percent": round(
            100 * float(np.mean(np.equal(translations, corpus.test.target))), 2
        ),
        "reference_length": score.ref_len,
        "translation_length": score.sys_len,
        "translations_cut": translator.cut,
        "test_pairs": len(corpus.test),
        "translating_seconds": round(seconds, 1),
    }


class Chrf(sacrebleu.CHRF):
    """chrF whose bootstrap also takes samples without any match.

    Of those sacrebleu's score is a float of Python, of others one of NumPy;
    its mean of both is a TypeError.
    """

    def _compute_f_score(self, statistics):
        return float(super()._compute_f_score(statistics))


def draw(translator, corpus, history, out):
    """Draws the curves of the run and the cross-attention of a sentence."""
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    lengths = [len(sentence.split()) for sentence in corpus.test.source]
    chosen = corpus.test.source[int(np.argmin(np.abs(np.array(lengths) - 9)))]
    vocabulary = translator.vocabulary
    source = [*translator.source_marks[0], *vocabulary.encode([chosen])[0]]
    most = translator.search.max_positions
    target = vocabulary.encode([translator(chosen)])[0][: most and most - 1]
    maps = translator.model.attention_maps(
        np.array([source], "int32"),
        np.array([[vocabulary.start_id, *target]], "int32"),
    )
    # The row of a token is the query that gave it: that of the token before.
    weights = keras.ops.convert_to_numpy(maps["cross"][-1])[0]
    figure = plot.attention_map(
        weights,
        vocabulary.tokens(source),
        [*vocabulary.tokens(target), "(end)"],
        title="Cross-attention, last layer, mean of the heads",
    )
    figure.savefig(out / "attention.png", dpi=150)


if __name__ == "__main__":
    runs.start(main, Settings, __doc__)
