"""Train an encoder to label texts with `model.fit`, and label texts with it.

* Run      python -m keras_tfm.recipes.classification --data imdb
* Needs    see the table of runs in recipes/README.md
* Follows  Vaswani et al. 2017 for the encoder; Yang et al. 2016, section 2.2,
           for its pooling
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import sys
import time
from typing import Annotated, Literal

import keras
import numpy as np
import tyro
from sklearn import metrics

from keras_tfm import models, pipelines, plot, text, training, zoo
from keras_tfm.recipes import label_scores, labelled_corpora, runs
from keras_tfm.text.pair_packing import count_special_tokens

# What a corpus needs unless the command line says otherwise.
DEFAULTS = {
    "imdb": {
        "vocabulary_size": 16_000,
        "max_length": 400,
        "batch": 8_192,
        "epochs": 8,
        "peak_rate": 2e-3,
    },
    "sst2": {
        "vocabulary_size": 8_000,
        "max_length": 64,
        "batch": 2_048,
        "epochs": 3,
        "peak_rate": 1e-3,
        "preset": "small",
        "pooling": "mean",
        "dropout": 0.1,
        "weight_decay": 0.1,
    },
    "trec": {
        "vocabulary_size": 4_000,
        "max_length": 64,
        "batch": 1_024,
        "epochs": 12,
        "peak_rate": 2e-3,
        "pooling": "mean",
        "weight_decay": 2.0,
    },
    "ag_news": {
        "vocabulary_size": 16_000,
        "max_length": 128,
        "batch": 4_096,
        "epochs": 6,
        "peak_rate": 2e-3,
        "pooling": "mean",
    },
}
OWN = {
    "vocabulary_size": 8_000,
    "max_length": 256,
    "batch": 4_096,
    "epochs": 10,
    "peak_rate": 1e-3,
}
# Of a file of one's own, where batch, epochs and patience are not given: steps
# of an epoch and texts of a batch, about; updates of a run, and until it ends
# without a better score, at least. Few texts got 4 updates and learned nothing.
EPOCH_STEPS, BATCH_TEXTS = 20, 8
LEAST_UPDATES, LEAST_PATIENCE = 300, 100
# Of weights that were trained elsewhere.
IMPORTED = {
    "batch": 2_048,
    "epochs": 3,
    "peak_rate": 1e-4,
    "dropout": 0.1,
    "word_dropout": 0.0,
    "average": 1,
    "patience": 2,
    "weight_decay": 0.01,
}
IMPORTED_LENGTH = 256
SHARED = {
    "preset": "tiny",
    "pooling": "attention",
    "dropout": 0.3,
    "word_dropout": 0.1,
    "average": 3,
    "patience": 3,
    "weight_decay": 0.5,
}
# What may be another when a run goes on.
FREE = ("out", "average")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a run. What is None is chosen for the corpus."""

    data: str = "imdb"
    """imdb (built in), sst2, trec, ag_news, or a .tsv, .csv or .jsonl file."""
    validation: str | None = None
    """File to choose by; None: a tenth of the training rows."""
    test: str | None = None
    """File to score; None: a tenth of the training rows."""
    text: str | None = None
    """Column of the texts in files, or several with commas: names, or numbers
    from 0 where a file has no header; None: text."""
    label: str | None = None
    """Column of the labels in files; None: label."""
    text_pair: str | None = None
    """Column of second texts, where pairs of texts are labelled."""
    label_separator: str | None = None
    """What stands between labels where a text may have several."""
    out: str | None = None
    """Folder of the run, continued if it is there. None: a name under runs/."""
    weights: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """A BERT, DistilBERT, MiniLM or RoBERTa to start from: a folder of
    transformers' `save_pretrained`, the name of a repository (owner/name), or a
    preset of KerasHub (a name or a folder)."""
    lora_rank: int | None = None
    """With --from: train low-rank updates of queries and values alone."""
    frozen_layers: int = 0
    """With --from: the first so many blocks, and what is below, stay."""
    preset: Literal["small", "tiny"] | None = None
    """Shape of the encoder; tiny is one layer of half the width."""
    pooling: Literal["attention", "mean", "max", "first"] | None = None
    """How the vectors of the tokens become one."""
    vocabulary_size: int | None = None
    """Pieces of the subword vocabulary, at most."""
    vocabulary_kind: Literal["unigram", "bpe", "wordpiece"] = "unigram"
    """Algorithm of SentencePiece, or BERT's."""
    max_length: int | None = None
    """Tokens of a text; what is over is cut off, and counted."""
    batch: int | None = None
    """Tokens in a batch, padding included."""
    epochs: int | None = None
    """Passes over the training texts, at most."""
    warm_up_epochs: int = 0
    """Passes in which the encoder first learns to guess hidden tokens."""
    patience: int | None = None
    """Epochs without a better validation score after which training ends."""
    peak_rate: float | None = None
    """Learning rate after the first tenth of the updates; it ends at 0."""
    weight_decay: float | None = None
    """Of AdamW, on matrices."""
    dropout: float | None = None
    """Share of channels dropped from residuals, embeddings, pooled vectors."""
    attention_dropout: float | None = None
    """Share of attention weights dropped; None: none, or what imported weights
    were trained with. 0 takes the fused path, half as slow on long texts."""
    word_dropout: float | None = None
    """Share of tokens replaced by the unknown one in training."""
    subword_sampling: float | None = None
    """Alpha of subword sampling in training; None: the best segmentation."""
    class_weight: Literal["balanced"] | None = None
    """balanced: all classes together weigh the same."""
    clip_norm: float = 1.0
    """Largest global norm of the gradients."""
    average: int | None = None
    """Epochs, the last ones, whose mean weights are tried; 1 for none."""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """Of the network. mixed_bfloat16 is twice as fast on PyTorch where the
    processor multiplies it."""
    jit_compile: bool = False
    """XLA in training on TensorFlow; each of the eight shapes compiles once."""
    seed: int = 0
    """Of weights, dropout, shuffling, and what is held out."""


def main(settings: Settings) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    check(settings)
    corpus = load_corpus(settings)
    if corpus.train.multi_label and len(corpus.train.classes) < 2:
        raise ValueError(
            "Texts are told apart by two labels or more. Received: "
            f"{corpus.train.classes}. Write yes and no, without --label-separator."
        )
    check_separator(settings, corpus.train)
    parts = (corpus.train, corpus.validation, corpus.test)
    print(f"{corpus.name}, {corpus.origin}", *corpus.notes, sep="\n")
    print(*(part.report for part in parts), sep="\n")
    asked, settings = settings, complete(settings)
    out = pathlib.Path(settings.out)
    keras.utils.set_random_seed(settings.seed)
    encoder, vocabulary = get_encoder(settings, corpus, out)
    settings = fit_length(settings, encoder, asked.max_length)
    settings = for_few(asked, settings, corpus, vocabulary)
    runs.check_folder(out, described(settings, corpus), FREE)
    out.mkdir(parents=True, exist_ok=True)
    runs.write_json(out / "settings.json", described(settings, corpus))
    batches = [
        text.LabelBatches(
            part,
            vocabulary,
            batch_tokens=settings.batch,
            max_length=settings.max_length,
            seed=settings.seed,
            subword_sampling=settings.subword_sampling,
            word_dropout=settings.word_dropout,
            segments=encoder.config["num_segments"] > 0,
            class_weight=settings.class_weight if part is corpus.train else None,
        )
        for part in parts[:2]
    ]
    print(batches[0].report)
    if keras.config.backend() == "jax":
        print("The first epoch compiles a program for each shape: seconds each.")
    warn_of_few(settings.epochs * batches[0].steps_per_epoch)
    check_test(vocabulary, corpus.test)
    several = corpus.train.multi_label
    baseline = label_scores.tf_idf_scores(corpus)
    print(baseline_line(baseline, several))
    minutes = warm_up(settings, encoder, corpus, vocabulary, out)
    freeze(settings, encoder)
    # The same draws whether the warm-up was in this start or in one before.
    keras.utils.set_random_seed(settings.seed + 1)
    model = make_model(settings, corpus.train, encoder, batches[0].steps_per_epoch)
    if settings.lora_rank or settings.frozen_layers:
        trained = sum(math.prod(w.shape) for w in model.trainable_weights)
        print(f"Trained are {trained:,} of {model.count_params():,} parameters.")
    history, weights, validation = train(settings, model, *batches, out, several)
    classifier = pipelines.Classifier(
        model,
        vocabulary,
        corpus.train.classes,
        paired=corpus.train.paired,
        max_length=settings.max_length,
        batch_tokens=max(settings.batch, settings.max_length),
    )
    classifier.save(out / "model")
    result, found = evaluate(settings, classifier, corpus, out)
    result |= {
        "tf_idf": baseline
        and {
            name: round(100 * value, 2) if name != "c" else value
            for name, value in baseline.items()
        },
        "validation": validation,
        "parameters": model.count_params(),
        "texts": len(corpus.train),
        "weights_kept": weights,
        "warm_up_minutes": minutes,
        "training_minutes": round(sum(history["seconds"]) / 60, 2),
        "peak_memory_gib": runs.peak_memory(),
        "settings": dataclasses.asdict(settings),
        "versions": runs.versions("scikit-learn"),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    draw(classifier, corpus, history, found, out)
    show_words(settings, classifier, corpus.test, found)
    print(f"\nEverything is in {out}")
    return result


def load_corpus(settings: Settings) -> labelled_corpora.LabelledCorpus:
    """Reads the texts that a run is of."""
    return labelled_corpora.load(
        settings.data,
        settings.validation,
        settings.test,
        settings.seed,
        text=columns(settings.text),
        label=settings.label and columns(settings.label)[0],
        text_pair=columns(settings.text_pair),
        label_separator=settings.label_separator,
    )


def check(settings: Settings):
    """Refuses settings that no corpus makes good."""
    counts = ("epochs", "average", "patience", "batch", "max_length", "lora_rank")
    least = dict.fromkeys(counts, 1) | {"frozen_layers": 0, "warm_up_epochs": 0}
    for name, minimum in least.items():
        value = getattr(settings, name)
        if value is not None and value < minimum:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be {minimum} or more. Received: {value}.")
    runs.check_ranges(settings)
    if settings.subword_sampling and settings.vocabulary_kind == "wordpiece":
        raise ValueError(
            "Texts are cut in other ways by SentencePiece alone. Received: "
            f"--subword-sampling {settings.subword_sampling}, --vocabulary-kind "
            "wordpiece. Leave out one or the other."
        )
    if settings.weights is None and (settings.lora_rank or settings.frozen_layers):
        raise ValueError(
            "What is frozen was trained before. Received: --lora-rank "
            f"{settings.lora_rank}, --frozen-layers {settings.frozen_layers}, and no "
            "--from. Name weights to start from."
        )
    if settings.warm_up_epochs and (settings.lora_rank or settings.frozen_layers):
        raise ValueError(
            "A warm-up trains all weights. Received: --warm-up-epochs "
            f"{settings.warm_up_epochs}, --lora-rank {settings.lora_rank}, "
            f"--frozen-layers {settings.frozen_layers}. Leave out one or the other."
        )
    own = {n: getattr(settings, n) for n in ("preset", "vocabulary_size")}
    own = {name: value for name, value in own.items() if value is not None}
    if settings.weights is not None and own:
        raise ValueError(
            "What is named by --from has a shape and a vocabulary of its own. "
            f"Received: {own} beside it. Leave them out."
        )


def check_separator(settings: Settings, train):
    """Refuses a separator that stands in no label, where each text has one."""
    if settings.label_separator is None or not train.multi_label:
        return
    if all(len(labels) == 1 for labels in train.labels):
        raise ValueError(
            "Labels of a text stand with the separator between them. Received: "
            f"--label-separator {settings.label_separator!r}, and {len(train):,} "
            f"texts of one label each, such as {train.classes[:3]}. "
            "Name the separator that the file has, or leave it out."
        )


def columns(names: str | None) -> list[str | int] | None:
    """Reads columns as the command line names them."""
    if names is None:
        return None
    names = [name.strip() for name in names.split(",")]
    return [int(name) if name.isdecimal() else name for name in names]


def complete(settings: Settings) -> Settings:
    """Fills what is None with what suits the corpus."""
    chosen = {**SHARED, **DEFAULTS.get(settings.data, OWN)}
    label = pathlib.Path(settings.data).resolve().name.split(".")[0]
    chosen["out"] = f"runs/{label}"
    if settings.weights is not None:
        chosen |= IMPORTED
        chosen["max_length"] = min(chosen["max_length"], IMPORTED_LENGTH)
        chosen["out"] += f"-{pathlib.Path(settings.weights).name}"
    unset = {k: v for k, v in chosen.items() if getattr(settings, k) is None}
    return dataclasses.replace(settings, **unset)


def for_few(asked, settings, corpus, vocabulary) -> Settings:
    """Chooses, for a file of one's own, with what few texts are learned too.

    An epoch has about `EPOCH_STEPS` steps, or fewer where a batch would have
    under `BATCH_TEXTS` texts; epochs are as many as make `LEAST_UPDATES`. What
    was asked for stays.
    """
    if settings.data in DEFAULTS:
        return settings
    lengths = [
        count_tokens(part, vocabulary, settings.max_length)
        for part in (corpus.train, corpus.validation)
    ]
    tokens, longest = int(lengths[0].sum()), int(np.concatenate(lengths).max())
    batch, chosen = settings.batch, {}
    if asked.batch is None:
        few = BATCH_TEXTS * tokens // len(corpus.train)
        batch = min(batch, max(tokens // EPOCH_STEPS, few, longest, 1))
        chosen["batch"] = batch
    steps = max(math.ceil(tokens / batch), 1)
    for name, updates in (("epochs", LEAST_UPDATES), ("patience", LEAST_PATIENCE)):
        if getattr(asked, name) is None:
            least = math.ceil(updates / steps)
            chosen[name] = max(getattr(settings, name), least)
    return dataclasses.replace(settings, **chosen)


def count_tokens(part, vocabulary, most: int) -> np.ndarray:
    """Counts the tokens of each text, or pair, up to `most`."""
    sides = list(zip(*part.texts, strict=True)) if part.paired else [part.texts]
    counts = [[len(ids) for ids in vocabulary.encode(list(side))] for side in sides]
    marks = count_special_tokens(vocabulary, len(sides))
    return np.minimum(np.sum(counts, axis=0) + marks, most)


def warn_of_few(updates: int):
    """Says that a run will hardly learn."""
    if updates < LEAST_PATIENCE:
        print(
            f"Warning: {updates:,} updates in all; a model learns little in under "
            f"{LEAST_PATIENCE}. Raise --epochs, or lower --batch."
        )


def baseline_line(baseline: dict | None, several: bool) -> str:
    """Says what TF-IDF reached, or that there was no word to count."""
    if baseline is None:
        return "no TF-IDF line: the training texts have no word."
    first = label_scores.first_of(several)
    return (
        f"TF-IDF and logistic regression: {first.replace('_', ' ')} "
        f"{baseline[first]:.2%}, macro F1 {baseline['macro_f1']:.2%}"
    )


def described(settings: Settings, corpus) -> dict:
    """Gives what has to be the same when a run goes on."""
    digest = hashlib.sha256()
    for part in (corpus.train, corpus.validation):
        for row in part:
            digest.update(repr(row).encode() + b"\n")
    return dataclasses.asdict(settings) | {
        "backend": keras.config.backend(),
        "text_sha256": digest.hexdigest(),
    }


def get_encoder(settings, corpus, out):
    """Makes or imports the encoder, and its vocabulary."""
    given = {"dropout": settings.dropout, "dtype": settings.precision}
    if settings.attention_dropout is not None:
        given["attention_dropout"] = settings.attention_dropout
    if settings.weights is None:
        vocabulary = get_vocabulary(settings, corpus, out)
        shape = {**given, "num_segments": 2 * corpus.train.paired}
        if settings.preset == "tiny":
            shape |= {"num_layers": 1, "embedding_dim": 64, "intermediate_dim": 128}
        encoder = models.encoder_small(
            vocabulary.size, pad_id=vocabulary.pad_id, **shape
        )
        return encoder, vocabulary
    folder = pathlib.Path(settings.weights)
    # A preset of KerasHub says what it is made of in a file of its own.
    if (folder / "metadata.json").is_file() or (
        len(folder.parts) == 1 and not folder.is_dir()
    ):
        imported = zoo.from_keras_hub(settings.weights, **given)
    else:
        imported = zoo.from_hugging_face(settings.weights, head="encoder", **given)
    encoder, vocabulary = imported.model, imported.vocabulary
    if vocabulary is None:
        raise ValueError(
            f"Texts are cut as they were in training. Received: {settings.weights!r}, "
            "which has no tokenizer, or no `tokenizer.json`. Write it there with "
            "`save_pretrained` of the tokenizer."
        )
    if settings.frozen_layers > len(encoder.blocks):
        raise ValueError(
            f"The encoder has {len(encoder.blocks)} blocks. Received: --frozen-layers "
            f"{settings.frozen_layers}."
        )
    return encoder, vocabulary


def fit_length(settings, encoder, asked: int | None) -> Settings:
    """Lowers a length that nobody asked for to the positions that there are."""
    places = encoder.config["sequence_length"]
    if places is None or settings.max_length <= places:
        return settings
    if asked is None:
        return dataclasses.replace(settings, max_length=places)
    raise ValueError(
        f"{settings.weights!r} has learned {places} positions. Received: "
        f"--max-length {asked}. Lower it, or leave it out."
    )


def freeze(settings, encoder):
    """Leaves what is to be trained of imported weights."""
    if settings.lora_rank:
        encoder.enable_lora(settings.lora_rank)
    if settings.frozen_layers:
        below = [encoder.embedding, encoder.segment_embedding, encoder.embedding_norm]
        for layer in (*below, *encoder.blocks[: settings.frozen_layers]):
            if layer is not None:
                layer.trainable = False


def get_vocabulary(settings, corpus, out):
    """Loads the run's vocabulary, or trains one on the training texts."""
    file = out / "vocabulary.model"
    if runs.has_begun(out):
        return text.load_vocabulary(file)
    texts = corpus.train.texts
    if corpus.train.paired:
        texts = [side for pair in texts for side in pair]
    if settings.vocabulary_kind == "wordpiece":
        vocabulary = text.TokenizersVocabulary.train(texts, settings.vocabulary_size)
    else:
        vocabulary = text.Vocabulary.train(
            texts,
            size=settings.vocabulary_size,
            model_type=settings.vocabulary_kind,
            normalization="nmt_nfkc_cf",
            exact=False,
        )
    out.mkdir(parents=True, exist_ok=True)  # from here on the input is good
    vocabulary.save(file)
    return vocabulary


def check_test(vocabulary, test):
    """Refuses, before training, what could not be labelled after it."""
    sides = list(zip(*test.texts, strict=True)) if test.paired else [test.texts]
    for side in sides:
        for number, ids in enumerate(vocabulary.encode(list(side))):
            if not len(ids):
                raise ValueError(
                    "Nothing of a test text is left in this vocabulary. Received: "
                    f"{test.texts[number]!r}. Leave it out."
                )


def warm_up(settings, encoder, corpus, vocabulary, out) -> float:
    """Lets the encoder guess hidden tokens of the training texts.

    It is done once; a second start of the same settings takes its weights.
    Returns its minutes.
    """
    if not settings.warm_up_epochs:
        return 0.0
    weights, file = out / "warm_up.weights.h5", out / "warm_up.json"
    now = described(settings, corpus)
    if file.is_file():  # written last
        before = json.loads(file.read_text(encoding="utf-8"))
        if runs.has_begun(out):  # that state is restored
            return before["minutes"]
        if before["described"] == now:
            encoder.load_weights(weights)
            return before["minutes"]
    batches = text.MaskedBatches(
        text.LabelBatches(
            corpus.train,
            vocabulary,
            batch_tokens=settings.batch,
            max_length=settings.max_length,
            seed=settings.seed,
            segments=encoder.config["num_segments"] > 0,
        )
    )
    model = models.MaskedLM(encoder)
    updates = settings.warm_up_epochs * batches.steps_per_epoch
    model.compile(
        runs.falling_adamw(
            model,
            settings.peak_rate,
            updates,
            rise=updates // 10,
            weight_decay=0.01,
            clip_norm=settings.clip_norm,
        ),
        training.SmoothedCrossentropy(0.0),
        weighted_metrics=[training.TokenAccuracy(), training.Perplexity()],
        jit_compile=settings.jit_compile or keras.config.backend() == "jax",
    )
    print("Guessing hidden tokens:")
    start = time.perf_counter()
    history = model.fit(
        batches.dataset(),
        steps_per_epoch=batches.steps_per_epoch,
        epochs=settings.warm_up_epochs,
        shuffle=False,
        verbose=1 if sys.stdout.isatty() else 2,
    ).history
    minutes = round((time.perf_counter() - start) / 60, 4)
    encoder.save_weights(weights)
    runs.write_json(file, {"minutes": minutes, "history": history, "described": now})
    return minutes


def make_model(settings, train, encoder, steps):
    """Makes the model, compiled."""
    model = models.SequenceClassifier(
        encoder,
        len(train.classes),
        pooling=settings.pooling,
        dropout=settings.dropout,
        multi_label=train.multi_label,
    )
    updates = settings.epochs * steps
    optimizer = runs.falling_adamw(
        model,
        settings.peak_rate,
        updates,
        rise=updates // 10,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )
    loss, accuracy = losses(train.multi_label)
    model.compile(
        optimizer,
        loss,
        weighted_metrics=[accuracy],
        jit_compile=settings.jit_compile or keras.config.backend() == "jax",
    )
    return model


def losses(multi_label):
    """Gives the loss and the accuracy for one label a text, or for several.

    The latter is of each label by itself, and says so by its name.
    """
    if multi_label:
        return (
            keras.losses.BinaryCrossentropy(from_logits=True),
            keras.metrics.BinaryAccuracy(name="label_accuracy", threshold=0.0),
        )
    return (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
    )


def train(settings, model, batches, validation, out, several=False):
    """Fits the model from where the run stands.

    Returns the curves; which weights the model has: those of the epoch that was
    best on the validation part, or the mean of the last ones if that is better
    there; and what both had there. Where a text may have several labels it is
    the loss that tells: that no label holds is nearly always right.
    """
    name, best_of = ("loss", min) if several else ("accuracy", max)
    stopping = keras.callbacks.EarlyStopping(
        f"val_{name}",
        mode=best_of.__name__,
        patience=settings.patience,
        restore_best_weights=True,
    )
    average = training.CheckpointAverage(out / "averages", last=settings.average)
    restart = training.ResumeTraining(out / "restart", callbacks=[stopping])
    first_epoch, steps = restart.restore(model), batches.steps_per_epoch
    if not restart.stopped:
        model.fit(
            batches.dataset(first_step=first_epoch * steps),
            validation_data=validation.ordered(),
            steps_per_epoch=steps,
            initial_epoch=first_epoch,
            epochs=settings.epochs,
            shuffle=False,
            verbose=1 if sys.stdout.isatty() else 2,
            callbacks=[
                runs.Seconds(),
                average,
                stopping,
                keras.callbacks.TensorBoard(out / "tensorboard"),
                restart,
            ],
        )
    history = restart.history
    best = model.get_weights()
    curve = history[f"val_{name}"]
    scores = {f"epoch {1 + curve.index(best_of(curve))}": best_of(curve)}
    count = len(average.apply(model))
    found = model.evaluate(validation.ordered(), return_dict=True, verbose=0)
    scores[f"mean of the last {count} epochs"] = found[name]
    for weights, score in scores.items():
        print(f"Validation {name} {score:.4f}, {weights}")
    one, mean = scores.values()
    alone = one != mean and best_of(one, mean) == one
    if alone:
        model.set_weights(best)
    kept = {weights: round(float(score), 4) for weights, score in scores.items()}
    return history, [*scores][not alone], {name: kept}


def evaluate(settings, classifier, corpus, out) -> tuple:
    """Labels the test part and scores it.

    Returns the scores, and the labels that were found, as
    `label_scores.decided` gives them.
    """
    start = time.perf_counter()
    predictions = classifier(corpus.test.texts)
    seconds = time.perf_counter() - start
    truncated = sum(prediction.truncated for prediction in predictions)
    probabilities = np.array(
        [list(prediction.probabilities.values()) for prediction in predictions],
        "float32",
    )
    several = corpus.train.multi_label
    wanted = corpus.test.encoded_labels()
    found = label_scores.decided(probabilities, several, classifier.threshold)
    scores = label_scores.scores(wanted, probabilities, several, classifier.threshold)
    print(f"\nTest, {len(corpus.test):,} texts:")
    held = label_scores.held(wanted)
    print(
        metrics.classification_report(
            wanted,
            found,
            labels=held,
            target_names=[classifier.classes[i] for i in held],
            digits=3,
            zero_division=0,
        )
    )
    if len(held) > 1 and len(np.unique(found, axis=0)) == 1:
        print(
            "Every text got the same label: nothing was learned. Train longer, or "
            "with another --peak-rate."
        )
    error = training.expected_calibration_error(probabilities, wanted)
    first = label_scores.first_of(several)
    low, high = label_scores.interval(scores[first], len(wanted))
    print(
        f"{first.replace('_', ' ').capitalize()} {scores[first]:.2%} ({low:.2%} to "
        f"{high:.2%}, 95%), "
        + (f"label accuracy {scores['label_accuracy']:.2%}, " if several else "")
        + f"macro F1 {scores['macro_f1']:.2%}, expected calibration error {error:.2%}"
    )
    between = settings.label_separator or ", "
    names = _named(found, classifier.classes, between)
    write_predictions(
        out / "predictions.tsv", corpus.test, names, probabilities, between
    )
    result = {
        **{name: round(100 * value, 2) for name, value in scores.items()},
        f"{first}_interval_95": [round(100 * low, 2), round(100 * high, 2)],
        "calibration_error": round(100 * error, 2),
        "test_texts": len(corpus.test),
        "test_truncated": truncated,
        "labelling_seconds": round(seconds, 1),
    }
    return result, found


def draw(classifier, corpus, history, found, out):
    """Draws the curves of the run and what was taken for what."""
    plot.training_curves(history).savefig(out / "curves.png", dpi=150)
    if not corpus.train.multi_label:
        classes = classifier.classes
        counts = metrics.confusion_matrix(
            corpus.test.encoded_labels(), found, labels=range(len(classes))
        )
        figure = plot.confusion_matrix(counts, classes)
        figure.savefig(out / "confusion.png", dpi=150)


def _named(found, classes, between=", "):
    """Names the labels of each text, those of one text in a line."""
    if found.ndim == 1:
        return [_label(classes[index]) for index in found]
    return [_label([classes[i] for i in np.flatnonzero(row)], between) for row in found]


def _label(label, between=", "):
    label = label if isinstance(label, str) else between.join(label)
    return " ".join(label.split())


def _one_line(one):
    return " ".join((one if isinstance(one, str) else " | ".join(one)).split())


def write_predictions(file, test, names, probabilities, between):
    """Writes a line for each test text: label, prediction, probability."""
    lines = ["label\tpredicted\tprobability\ttext"]
    rows = zip(test, names, probabilities.max(-1), strict=True)
    for (one, label), name, probability in rows:
        fields = (_label(label, between), name, f"{probability:.4f}", _one_line(one))
        lines.append("\t".join(fields))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def show_words(settings, classifier, test, found):
    """Prints the words that weigh most in the pooled vectors of some texts."""
    if settings.pooling != "attention":
        print(f"No words are shown: pooling by {settings.pooling} weighs none.")
        return
    names = _named(found, classifier.classes)
    print("\nThe words that weigh most:")
    drawn = np.random.default_rng(settings.seed).permutation(len(test))[:6]
    for row in drawn:
        weights = {}
        for word, weight in classifier.word_weights(test.texts[row]):
            weights[word] = weights.get(word, 0.0) + weight
        most = sorted(weights.items(), key=lambda item: -item[1])[:8]
        print(f"  {names[row]} (right: {_label(test.labels[row])}): ", end="")
        print(", ".join(f"{word} {weight:.0%}" for word, weight in most))


if __name__ == "__main__":
    runs.start(main, Settings, __doc__)
