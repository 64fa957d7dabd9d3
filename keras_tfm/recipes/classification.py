"""Train an encoder to classify texts with `model.fit`, and classify with it.

* Run      keras-tfm train classification --data imdb
* Needs    two CPU cores and 2 GiB; minutes: table of runs, recipes/README.md
* Expect   accuracy beside a TF-IDF baseline: the same table has each run's
           command, machine, date and commit
* Follows  Vaswani et al. 2017 for the encoder; Yang et al. 2016, section 2.2,
           for its attention pooling
"""

import dataclasses
import math
import pathlib
import shutil
import sys
import time
from typing import Annotated, Literal

import keras
import tyro

from keras_tfm import models, pipelines, text, training
from keras_tfm.pipelines import saving
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import (
    calibration,
    classification_defaults,
    classification_scores,
    devices,
    labeled_corpora,
    masked_pretraining,
    pretrained_encoder,
    runs,
    training_cost,
    user_files,
    vocabularies,
)
from keras_tfm.recipes.devices import Devices
from keras_tfm.recipes.flags import JitCompile, compiles_buckets, jit_argument
from keras_tfm.training import processes

# Flags that may change when a run is resumed.
RESUMABLE = ("out", "average_last", "save_every", *devices.RESUMABLE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What to train on."""

    data: str = "imdb"
    """imdb (built in), sst2, trec, ag_news, or a .tsv, .csv or .jsonl file."""
    validation: str | None = None
    """File to choose weights by. Default: a tenth of the training examples."""
    test: str | None = None
    """File to score. Default: a tenth of the training examples."""
    text: str | None = None
    """Column of the texts, or several separated by commas: names, or indices
    from 0 in files without a header. Default: text."""
    label: str | None = None
    """Column of the labels. Default: label."""
    text_pair: str | None = None
    """Column of the second texts, for pairs of texts."""
    label_separator: str | None = None
    """Separator of labels in files where a text may have several."""
    max_bad_rate: float | None = None
    """Fraction of rows of a file that may be unreadable. They are counted,
    listed by line and skipped. Default: 0.05."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to train. Flags without a default are chosen for the corpus."""

    init_from: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Fine-tune this BERT, DistilBERT, MiniLM or RoBERTa: a folder that
    transformers has saved, a repository (owner/name), or a KerasHub preset."""
    lora_rank: int | None = None
    """With --from: train low-rank updates (LoRA) of queries and values only."""
    frozen_layers: int = 0
    """With --from: freeze the embeddings and this many first blocks."""
    size: Literal["small", "tiny"] | None = None
    """Configuration of the encoder; tiny has one layer of half the
    dimension."""
    pooling: Literal["attention", "mean", "max", "first"] | None = None
    """How token vectors become one vector."""
    max_length: int | None = None
    """Maximum tokens of a text; longer texts are truncated and counted."""
    max_ngram: int | None = None
    """Length of the longest n-gram, in tokens, of a linear model whose logits
    are added to the encoder's. It is fitted after the encoder. 0 for none."""
    ngram_buckets: int | None = None
    """Rows of the matrix of the n-grams at most, 3 to 1,048,576. Several
    n-grams may share a row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary(vocabularies.Characters):
    """How text becomes tokens, without --from."""

    vocabulary_size: int | None = None
    """Maximum number of subword tokens."""
    subword_model: Literal["unigram", "bpe", "wordpiece"] = "unigram"
    """Subword algorithm: two of SentencePiece, or BERT's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimization:
    """How to train. Flags without a default are chosen for the corpus."""

    batch_tokens: int | None = None
    """Batch size in tokens, padding included."""
    epochs: int | None = None
    """Maximum passes over the training texts."""
    pretraining_epochs: int = 0
    """Passes in which the encoder first predicts masked tokens of the texts."""
    patience: int | None = None
    """Epochs without a better validation score before training stops."""
    learning_rate: float | None = None
    """Peak learning rate, after a tenth of the updates; it decays to 0."""
    weight_decay: float | None = None
    """Weight decay of AdamW, on matrices."""
    dropout: float | None = None
    """Dropout rate of residual connections, embeddings and pooled vectors."""
    attention_dropout: float | None = None
    """Dropout rate of attention weights. 0 allows fused attention, which takes
    half the time on long texts."""
    word_dropout: float | None = None
    """Rate of training tokens that are replaced by the unknown token."""
    subword_sampling: float | None = None
    """Alpha of subword sampling (Kudo 2018). Default: best segmentation."""
    class_weight: Literal["balanced"] | None = None
    """balanced: all classes have the same total weight."""
    clip_norm: float = 1.0
    """Maximum global norm of the gradients."""
    average_last: int | None = None
    """Last epochs whose averaged weights are tried; 1 for none."""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """Precision of training. mixed_bfloat16 is twice as fast on CPUs with AMX
    or AVX512_BF16, with PyTorch."""
    jit_compile: JitCompile = "auto"
    """Compile the training step with XLA, once per bucket. auto is the choice
    of Keras: on with TensorFlow and JAX, off with PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Where to save, and the seed."""

    out: str | None = None
    """Run folder, resumed if it holds a run. Default: a name under runs/."""
    save_every: int = 1_000
    """Updates after which the state of a longer epoch is saved."""
    seed: int = 0
    """Seed of weights, dropout, shuffling and held-out examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(Data, Model, Vocabulary, Optimization, Devices, Run):
    """The flags of a run; None stands for a default that fits the corpus."""


def main(flags: Flags) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    classification_defaults.check(flags)
    devices.use(flags)
    corpus = load_corpus(flags)
    classification_defaults.check_labels(flags, corpus.train)
    datasets = (corpus.train, corpus.validation, corpus.test)
    print(f"{corpus.name}, {corpus.origin}", *corpus.notes, sep="\n")
    print(*(dataset.report for dataset in datasets), sep="\n")
    requested, flags = flags, classification_defaults.complete(flags)
    out = pathlib.Path(flags.out)
    keras.utils.set_random_seed(flags.seed)
    with runs.run_folder(out):
        return train(requested, flags, corpus, out)


def train(
    requested: Flags,
    flags: Flags,
    corpus: labeled_corpora.LabeledCorpus,
    out: pathlib.Path,
) -> dict:
    """Trains in the locked run folder, scores, and writes the results."""
    encoder, vocabulary = make_encoder(flags, corpus, out)
    flags = classification_defaults.fit_positions(flags, encoder, requested.max_length)
    flags = classification_defaults.fit_small_corpus(
        requested, flags, corpus, vocabulary
    )
    identity = runs.identity(flags, corpus.train, corpus.validation)
    runs.check_folder(out, identity, RESUMABLE)
    runs.write_json(out / "flags.json", identity)
    batches, validation = (
        make_batches(flags, dataset, encoder, vocabulary, dataset is corpus.train)
        for dataset in (corpus.train, corpus.validation)
    )
    print(batches.report)
    if compiles_buckets(flags.jit_compile):
        print("The first epoch compiles a function for each bucket: seconds each.")
    classification_defaults.warn_of_few_updates(flags.epochs * batches.steps_per_epoch)
    classification_defaults.check_test_texts(vocabulary, corpus.test)
    multi_label = corpus.train.multi_label
    baseline = classification_scores.tf_idf_scores(corpus)
    print(classification_scores.baseline_report(baseline, multi_label))
    minutes = masked_pretraining.pretrain(flags, encoder, corpus, vocabulary, out)
    pretrained_encoder.freeze(encoder, flags.lora_rank, flags.frozen_layers)
    # The same random numbers whether this start or an earlier one pretrained.
    keras.utils.set_random_seed(flags.seed + 1)
    model = make_model(flags, corpus.train, encoder, batches)
    # Weights of an epoch make a classifier of it while the run continues.
    classifier = make_classifier(flags, model, vocabulary, corpus.train)
    if processes.is_first_process():
        with training.local_devices():
            classifier.save(out / saving.UNFINISHED)
    history, weights, validation_scores = fit(
        flags, model, batches, validation, out, multi_label
    )
    classifier = make_classifier(flags, model, vocabulary, corpus.train)
    result = {
        "tf_idf": baseline and classification_scores.percentages(baseline),
        "validation": validation_scores,
        "parameters": model.count_params(),
        "texts": len(corpus.train),
        "chosen_weights": weights,
        "pretraining_minutes": minutes,
        "training_minutes": round(sum(history["seconds"]) / 60, 2),
    }
    if not (flags.lora_rank or flags.frozen_layers):  # else most is not trained
        epochs = len(history["seconds"])
        result |= training_cost.of_texts(model, batches, epochs)
    if processes.is_first_process():
        with training.local_devices():
            result = finish(
                flags, classifier, corpus, (batches, validation), history, out, result
            )
    processes.wait_for_all("results")
    return result


def finish(
    flags: Flags,
    classifier: pipelines.Classifier,
    corpus: labeled_corpora.LabeledCorpus,
    batches: tuple[text.LabelBatches, text.LabelBatches],
    history: dict[str, list],
    out: pathlib.Path,
    result: dict,
) -> dict:
    """Fits the n-grams and scales the logits, then scores the test texts and
    writes the model and the results."""
    whole = None
    if corpus.whole is not None and classifier.model.ngram_bag is not None:
        model, vocabulary = classifier.model, classifier.vocabulary
        whole = make_batches(flags, corpus.whole, model.encoder, vocabulary)
    result |= calibration.combine(
        classifier.model, *batches, whole, balanced=flags.class_weight == "balanced"
    )
    classifier.save(out / "model")
    for folder in (saving.UNFINISHED, runs.PRETRAINING):
        shutil.rmtree(out / folder, ignore_errors=True)
    scores, predicted = classification_scores.evaluate(flags, classifier, corpus, out)
    result = scores | result
    result |= {
        "peak_memory_gib": runs.peak_memory(),
        "flags": dataclasses.asdict(flags),
        "versions": runs.versions("scikit-learn"),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    classification_scores.draw(classifier, corpus, history, predicted, out)
    classification_scores.print_attended_words(
        flags, classifier, corpus.test, predicted
    )
    print(f"\nEverything is in {out}")
    return result


def load_corpus(flags: Flags) -> labeled_corpora.LabeledCorpus:
    """Reads the texts and labels of a run."""
    return labeled_corpora.load(
        flags.data,
        flags.validation,
        flags.test,
        flags.seed,
        text=parse_columns(flags.text),
        label=flags.label and parse_columns(flags.label)[0],
        text_pair=parse_columns(flags.text_pair),
        label_separator=flags.label_separator,
        max_bad_rate=flags.max_bad_rate,
    )


def parse_columns(names: str | None) -> list[str | int] | None:
    """Parses column names or indices that are separated by commas."""
    if names is None:
        return None
    columns = (user_files.parse_column(name.strip()) for name in names.split(","))
    return [column for column in columns if column is not None]


def make_encoder(
    flags: Flags, corpus: labeled_corpora.LabeledCorpus, out: pathlib.Path
) -> tuple[models.Encoder, AnyVocabulary]:
    """Makes an encoder and its vocabulary, or loads pretrained ones."""
    config = {"dropout": flags.dropout, "dtype": flags.precision}
    if flags.attention_dropout is not None:
        config["attention_dropout"] = flags.attention_dropout
    if flags.init_from is not None:
        return pretrained_encoder.load(flags.init_from, flags.frozen_layers, **config)
    vocabulary = make_vocabulary(flags, corpus, out)
    config["num_segments"] = 2 * corpus.train.paired
    if flags.size == "tiny":
        config |= {"num_layers": 1, "embedding_dim": 64, "intermediate_dim": 128}
    encoder = models.encoder_small(vocabulary.size, pad_id=vocabulary.pad_id, **config)
    return encoder, vocabulary


def make_vocabulary(
    flags: Flags, corpus: labeled_corpora.LabeledCorpus, out: pathlib.Path
) -> AnyVocabulary:
    """Loads the vocabulary of a resumed run, or trains one on the texts."""
    texts = corpus.train.texts
    if corpus.train.paired:
        texts = [side for pair in texts for side in pair]

    def train():
        if flags.subword_model == "wordpiece":
            return text.TokenizersVocabulary.train(texts, flags.vocabulary_size)
        return text.Vocabulary.train(
            texts,
            size=flags.vocabulary_size,
            model_type=flags.subword_model,
            exact=False,
            **vocabularies.options(flags, (), "nmt_nfkc_cf"),
        )

    return vocabularies.train_once(out, train, text.load_vocabulary)


def make_batches(
    flags: Flags,
    dataset: text.LabeledDataset,
    encoder: models.Encoder,
    vocabulary: AnyVocabulary,
    weigh_classes: bool = False,
) -> text.LabelBatches:
    """Makes the batches of a dataset."""
    return text.LabelBatches(
        dataset,
        vocabulary,
        batch_tokens=flags.batch_tokens,
        max_length=flags.max_length,
        seed=flags.seed,
        subword_sampling=flags.subword_sampling,
        word_dropout=flags.word_dropout,
        segments=encoder.config["num_segments"] > 0,
        class_weight=flags.class_weight if weigh_classes else None,
    )


def make_model(
    flags: Flags,
    train: text.LabeledDataset,
    encoder: models.Encoder,
    batches: text.LabelBatches,
) -> models.SequenceClassifier:
    """Makes the model and compiles it."""
    model = models.SequenceClassifier(
        encoder,
        len(train.classes),
        pooling=flags.pooling,
        dropout=flags.dropout,
        multi_label=train.multi_label,
        max_ngram=flags.max_ngram,
        ngram_buckets=flags.ngram_buckets or classification_defaults.NGRAM_BUCKETS,
    )
    if model.ngram_bag is not None:  # fitted when the encoder is trained
        model.ngram_bag.trainable = False
    updates = flags.epochs * batches.steps_per_epoch
    optimizer = runs.make_adamw(
        model,
        flags.learning_rate,
        updates,
        warmup_steps=updates // 10,
        weight_decay=flags.weight_decay,
        clip_norm=flags.clip_norm,
    )
    loss, accuracy = make_loss(train.multi_label)
    model.compile(
        optimizer,
        loss,
        weighted_metrics=[accuracy],
        jit_compile=jit_argument(flags.jit_compile),
    )
    if flags.lora_rank or flags.frozen_layers:
        trainable = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        print(f"{trainable:,} of {model.count_params():,} parameters are trained.")
    return model


def make_loss(multi_label: bool) -> tuple[keras.losses.Loss, keras.metrics.Metric]:
    """Makes the loss, and the accuracy of texts or, by its name, of labels."""
    if multi_label:
        return (
            keras.losses.BinaryCrossentropy(from_logits=True),
            keras.metrics.BinaryAccuracy(name="label_accuracy", threshold=0.0),
        )
    return (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
    )


def fit(
    flags: Flags,
    model: keras.Model,
    batches: text.LabelBatches,
    validation: text.LabelBatches,
    out: pathlib.Path,
    multi_label: bool = False,
) -> tuple[dict[str, list], str, dict[str, dict[str, float]]]:
    """Fits the model from where the run stands, and chooses its weights.

    The choice is between the epoch with the best validation score and the
    average of the last epochs. The score is the accuracy; with several labels
    it is the loss, since label accuracy is high for a model that predicts none.

    Returns:
        The history, the name of the chosen weights, and both scores.
    """
    name, best = ("loss", min) if multi_label else ("accuracy", max)
    stopping = keras.callbacks.EarlyStopping(
        f"val_{name}",
        mode=best.__name__,
        patience=flags.patience,
        restore_best_weights=True,
    )
    callbacks, average, resume = runs.make_callbacks(flags, out, last=[stopping])
    history = resume.fit(
        model,
        batches,
        flags.epochs,
        callbacks,
        validation_data=validation.ordered(),
        verbose=1 if sys.stdout.isatty() else 2,
    )
    curve = history[f"val_{name}"]
    best_weights, best_score = model.get_weights(), best(curve)
    count = len(average.apply(model))
    evaluation = model.evaluate(validation.ordered(), return_dict=True, verbose=0)
    scores = {
        f"epoch {1 + curve.index(best_score)}": best_score,
        f"average of the last {count} epochs": evaluation[name],
    }
    for weights, score in scores.items():
        print(f"Validation {name} {score:.4f}, {weights}")
    single, averaged = scores.values()
    chosen = list(scores)[1]
    if single != averaged and best(single, averaged) == single:
        model.set_weights(best_weights)
        chosen = list(scores)[0]
    rounded = {weights: round(float(score), 4) for weights, score in scores.items()}
    return history, chosen, {name: rounded}


def make_classifier(
    flags: Flags,
    model: models.SequenceClassifier,
    vocabulary: AnyVocabulary,
    train: text.LabeledDataset,
) -> pipelines.Classifier:
    """Makes the classifier that the run saves, of this process alone."""
    return pipelines.Classifier(
        devices.local_model(
            model,
            lambda copy: pretrained_encoder.freeze(
                copy.encoder, flags.lora_rank, flags.frozen_layers
            ),
        ),
        vocabulary,
        train.classes,
        paired=train.paired,
        max_length=flags.max_length,
        batch_tokens=max(flags.batch_tokens, flags.max_length),
    )


if __name__ == "__main__":
    runs.start(main, Flags, __doc__)
