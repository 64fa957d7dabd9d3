"""Train a Transformer to translate with `model.fit`, and translate with it.

* Run      keras-tfm train translation --data phrases --target de
* Needs    two CPU cores and 2 GiB; minutes: table of runs, recipes/README.md
* Expect   BLEU 98.1 on phrases, 40.2 on Multi30k; the same table has each run's
           command, machine, date and commit
* Follows  Vaswani et al. 2017; for small corpora Wu et al. 2021, section 3;
           with `--architecture recurrent` Bahdanau et al. 2015
"""

import dataclasses
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import keras
import tyro

from keras_tfm import models, pipelines, text, training
from keras_tfm.pipelines import saving
from keras_tfm.pipelines.texts import AnyVocabulary
from keras_tfm.recipes import (
    configuration,
    corpora,
    devices,
    fine_tuning,
    length_limits,
    multilingual,
    runs,
    tokenization,
    training_cost,
    translation_defaults,
    translation_figures,
    translation_scores,
    vocabularies,
)
from keras_tfm.recipes.configuration import Configuration
from keras_tfm.recipes.devices import Devices
from keras_tfm.recipes.flags import JitCompile, jit_argument
from keras_tfm.recipes.mixture import Mixture
from keras_tfm.recipes.tokenization import Tokenization
from keras_tfm.recipes.translation_defaults import AnyModel
from keras_tfm.training import processes

# Flags that may change when a run is resumed.
RESUMABLE = ("out", "epochs", "cooldown_epochs", "average_last", "evaluate_every")
RESUMABLE += ("beam_size", "length_penalty", "max_bad_rate", "save_every")
RESUMABLE += devices.RESUMABLE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What to train on."""

    data: str = "phrases"
    """phrases (built in), multi30k, tatoeba, a folder (train.en, val.en, ...),
    a .tsv, .csv, .jsonl or .tmx file, or two parallel files separated by a
    comma; plain or .gz. Or folders of `keras-tfm encode`, separated by commas,
    for more text than fits into memory."""
    data_weights: tuple[float, ...] = ()
    """How often an epoch has each pair of each encoded folder of --data, such
    as 1 0.1. Default: once."""
    source: str = "en"
    """Source language, such as en."""
    target: str = "de"
    """Target language, such as de."""
    source_column: str | None = None
    """Where the sources are in a file of --data: the name of a column in its
    header, a key of JSON, a language of a .tmx, or a column's number from 0.
    Default: the column that names --source, or 0."""
    target_column: str | None = None
    """Where the targets are. Default: the column that names --target, or 1."""
    max_bad_rate: float = 0.05
    """Fraction of rows of a file that may be unreadable. They are counted,
    listed by line and skipped."""
    additional_data: str | None = None
    """More training pairs from --source to --target, such as back-translations:
    a file, or two separated by a comma, as with --data. Sennrich et al. 2016,
    section 3."""
    additional_sources: tuple[str, ...] = ()
    """More source languages of the same model. The corpus must be a named one,
    or a folder whose train.en is parallel with train.de and with train.fr.
    Validation and test sets are those of --source."""
    additional_targets: tuple[str, ...] = ()
    """More target languages of the same model. A tag before each source, such
    as <2fr>, names the target language. Johnson et al. 2017."""
    sampling_temperature: float = 1.0
    """Pairs of small languages are repeated, so that a language of n pairs has
    n^(1/T) of the epoch's pairs, up to a constant. Arivazhagan et al. 2019,
    https://arxiv.org/abs/1907.05019"""
    multi30k_format: Literal["tokenized", "raw"] = "tokenized"
    """Text of Multi30k: tokenized and lower-cased, as papers report, or raw."""
    held_out: int = 1_000
    """Pairs to draw where a corpus has no validation or no test set."""
    source_end: bool = False
    """End each source with the end token, as Marian and fairseq do. A model of
    --from that was trained so keeps it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to train. Flags without a default are chosen for the corpus."""

    init_from: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Fine-tune this model: a run folder, a preset, a folder of transformers,
    Marian or CTranslate2, or hf://owner/name. Its architecture stays, and its
    vocabulary unless --vocabulary-size asks for a new one (Aji et al. 2020);
    dropout is that of this run."""
    from_source_language: str | None = None
    """Source language code of a multilingual --from, such as eng_Latn."""
    from_target_language: str | None = None
    """Target language code of a multilingual --from, such as deu_Latn."""
    architecture: Literal["transformer", "recurrent"] = "transformer"
    """recurrent: the GRU network with attention that the Transformer replaced,
    with about as many parameters."""
    size: Literal["small", "tiny", "medium", "base", "big"] | None = None
    """Configuration of the model: small is tiny with two layers; medium has
    four encoder layers and two decoder layers of dimension 256."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary(vocabularies.Characters):
    """How text becomes tokens. Flags without a default are chosen for the
    corpus."""

    vocabulary_size: int | None = None
    """Subword tokens of the joint vocabulary."""
    subword_model: Literal["unigram", "bpe"] | None = None
    """Subword algorithm of SentencePiece."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimization:
    """How to train. Flags without a default are chosen for the corpus."""

    batch_tokens: int | None = None
    """Batch size in target tokens, padding included."""
    accumulate: int = 1
    """Batches whose gradients are added before an update. Each target token
    counts the same, whatever its batch."""
    num_buckets: int | None = None
    """Buckets of lengths. More buckets mean less padding, and more compiled
    functions with XLA."""
    epochs: int | None = None
    """Passes over the training pairs."""
    learning_rate: float | None = None
    """Peak learning rate, at the end of the warm-up."""
    warmup_steps: int | None = None
    """Updates of linear warm-up; then the learning rate decays with
    1/sqrt(t)."""
    cooldown_epochs: int | None = None
    """Last epochs, in which the learning rate also falls linearly to zero."""
    dropout: float | None = None
    """Dropout rate of residual connections and embeddings."""
    label_smoothing: float = 0.1
    """Probability that is spread evenly over all tokens of the vocabulary."""
    clip_norm: float = 25.0
    """Maximum global norm of the gradients."""
    subword_sampling: float | None = None
    """Alpha of subword sampling (Kudo 2018); default: best segmentation."""
    average_last: int | None = None
    """Last epochs whose weights are averaged."""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    """Precision of training; the saved model is float32. mixed_bfloat16 takes
    half the time on CPUs with AMX or AVX512_BF16, with TensorFlow."""
    jit_compile: JitCompile = "auto"
    """Compile the training step with XLA, once per bucket. auto is the choice
    of Keras: on with TensorFlow and JAX, off with PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """How to translate and to score."""

    evaluate_every: int | None = None
    """Epochs between scores of the validation set (greedy search, BLEU,
    chrF)."""
    beam_size: int = 5
    """Beams of the final search on the test set; 1 is greedy search."""
    length_penalty: float | None = None
    """Exponent of the length that divides a hypothesis' log-probability."""
    bleu_tokenize: str | None = None
    """Tokenizer of sacrebleu: 13a, none (already tokenized), char, ..."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Where to save, and the seed."""

    out: str | None = None
    """Run folder. A run is resumed if the folder holds one, after its last
    saved state. Default: a name under runs/."""
    save_every: int = 1_000
    """Updates after which the state of a longer epoch is saved."""
    seed: int = 0
    """Seed of weights, dropout, shuffling and held-out pairs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(
    Data,
    Mixture,
    Model,
    Configuration,
    Vocabulary,
    Optimization,
    Devices,
    Decoding,
    Run,
):
    """The flags of a run; None stands for a default that fits the corpus."""

    @property
    def tokenized(self) -> bool:
        """Whether the corpus is tokenized already."""
        return self.data == "multi30k" and self.multi30k_format == "tokenized"


def main(flags: Flags) -> dict:
    """Runs all steps and returns what it writes to `result.json`."""
    translation_defaults.check(flags)
    devices.use(flags)
    corpus = multilingual.load_corpus(flags)
    print(f"{corpus.name}, {corpus.origin}", *corpus.notes, sep="\n")
    flags = translation_defaults.complete(flags, len(corpus.train))
    out = pathlib.Path(flags.out)
    identity = runs.identity(flags, corpus.train, corpus.validation)
    with runs.run_folder(out):
        runs.check_folder(out, identity, RESUMABLE)
        return train(flags, corpus, out, identity)


def train(
    flags: Flags, corpus: corpora.Corpus, out: pathlib.Path, identity: dict
) -> dict:
    """Trains in the locked run folder, scores, and writes the results.

    Of several processes the first one writes.
    """
    keras.utils.set_random_seed(flags.seed)
    parent = fine_tuning.load_parent(flags)
    tokens = tokenization.make(flags, corpus, out, parent)
    length_limits.check_sources(flags, corpus, tokens, parent)

    batches, validation = make_batches(flags, corpus, tokens, parent)
    print(batches.report)
    model = make_model(flags, tokens.source, parent)
    runs.write_json(out / "flags.json", identity)
    tokens_per_batch = batches.target_tokens_per_batch if flags.accumulate > 1 else None
    network = compile_network(flags, model, batches.steps_per_epoch, tokens_per_batch)
    translation_defaults.warn_of_few_updates(flags, batches.steps_per_epoch)
    trainer = Trainer(flags, model, network, tokens, corpus, out)
    steps = fine_tuning.text_steps(flags, corpus, parent)  # reads every pair
    # Weights of an epoch make a translator of it while the run continues.
    with training.local_devices():
        translator = make_translator(flags, copy_model(model), corpus, tokens, steps)
        if processes.is_first_process():
            translator.save(out / saving.UNFINISHED)
    averaged = trainer.fit(batches, validation)

    with training.local_devices():
        translator = make_translator(flags, copy_model(model), corpus, tokens, steps)
        if processes.is_first_process():
            translator.save(out / "model")
            shutil.rmtree(out / saving.UNFINISHED)
        result = translation_scores.evaluate(flags, translator, corpus, out)
        result |= translation_scores.perplexity(translator, corpus.validation)
        if processes.is_first_process():
            translation_figures.draw(translator, corpus, trainer.history, out)
    epochs = len(trainer.history["seconds"])
    result |= training_cost.of_pairs(model, batches, epochs)
    result |= {
        "parameters": model.count_params(),
        "pairs": len(corpus.train),
        "epochs_averaged": averaged,
        "training_minutes": round(sum(trainer.history["seconds"]) / 60, 2),
        "peak_memory_gib": runs.peak_memory(),
        "flags": dataclasses.asdict(flags),
        "versions": runs.versions("sacrebleu", "Babel"),
        "finished": time.strftime("%Y-%m-%d"),
    }
    runs.write_json(out / "result.json", result)
    print(f"\nEverything is in {out}")
    processes.wait_for_all("results")
    return result


def make_batches(
    flags: Flags,
    corpus: corpora.Corpus,
    tokens: Tokenization,
    parent: pipelines.Translator | None = None,
) -> tuple[text.Batches, text.Batches]:
    """Makes the batches of training and of validation."""
    longest = length_limits.longest_side(flags, parent)
    options = {
        "vocabulary": tokens.source,
        "target_vocabulary": tokens.target,
        "special_tokens": tokens.special_tokens,
        "batch_tokens": flags.batch_tokens,
        "max_source_length": longest,
        "max_target_length": longest,
        # So that a run is the same on 1, 2, 4 and 8 devices.
        "batch_size_multiple": 8 if flags.batch_tokens >= 8 * longest else 1,
    }
    train = text.Batches(
        corpus.train,
        num_buckets=flags.num_buckets,
        seed=flags.seed,
        subword_sampling=flags.subword_sampling,
        **options,
    )
    pairs = multilingual.tag(flags, corpus.validation, flags.target)
    return train, text.Batches(pairs, shuffle=False, **options)


def make_model(
    flags: Flags,
    vocabulary: AnyVocabulary,
    parent: pipelines.Translator | None = None,
) -> AnyModel:
    """Makes a model from scratch, or one to fine-tune."""
    config = {"dropout": flags.dropout, "dtype": flags.precision}
    if parent:
        return fine_tuning.initialize(parent, vocabulary, **config)
    if flags.architecture == "recurrent":
        sizes = translation_defaults.RECURRENT_SIZES[flags.size]
        return models.RecurrentSeq2Seq(vocabulary.size, **config, **sizes)
    config |= configuration.changes(flags)
    return translation_defaults.SIZES[flags.size](vocabulary.size, **config)


def compile_network(
    flags: Flags,
    model: AnyModel,
    steps_per_epoch: int,
    tokens_per_batch: float | None = None,
) -> keras.Model:
    """Compiles the trained part of a model: all layers up to the logits.

    The loss takes the decoder's output and the tied embedding matrix, so that
    the logits `(B, T, V)` of a batch are never in memory as a whole. A model
    with a projection of its own is trained with its logits.
    """
    loss: keras.losses.Loss
    options = {
        "label_smoothing": flags.label_smoothing,
        "tokens_per_batch": tokens_per_batch,
    }
    if model.projection is None:
        network = model.hidden_model()
        loss = training.ProjectedCrossentropy(
            model.target_embedding, chunk_tokens=512, **options
        )
    else:
        network, loss = model, training.SmoothedCrossentropy(**options)
    network.compile(
        optimizer=keras.optimizers.Adam(
            training.InverseSquareRoot(
                flags.learning_rate,
                # Keras counts batches here, and not updates.
                flags.warmup_steps * flags.accumulate,
                initial_learning_rate=1e-7,
                total_steps=flags.epochs * steps_per_epoch,
                cooldown_steps=flags.cooldown_epochs * steps_per_epoch,
            ),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-8,
            global_clipnorm=flags.clip_norm,
            gradient_accumulation_steps=flags.accumulate if tokens_per_batch else None,
        ),
        loss=loss,
        jit_compile=jit_argument(flags.jit_compile),
    )
    return network


def copy_model(model: AnyModel) -> AnyModel:
    """Makes a float32 model with the same weights, of this process alone."""
    with training.local_devices():
        copy = type(model).from_config(model.get_config() | {"dtype": "float32"})
    copy.set_weights(processes.get_weights(model))
    return copy


class Trainer:
    """Fits the network of a run from where it stands.

    Args:
        flags: `Flags`.
        model: the model that `network` trains.
        network: compiled Keras model.
        tokens: `Tokenization`.
        corpus: `corpora.Corpus`.
        out: path of the run folder.
    """

    def __init__(
        self,
        flags: Flags,
        model: AnyModel,
        network: keras.Model,
        tokens: Tokenization,
        corpus: corpora.Corpus,
        out: pathlib.Path,
    ):
        self.flags, self.model, self.network, self.out = flags, model, network, out
        # A search in mixed precision is slower, and each of several processes
        # searches alone: these decode with a float32 copy.
        is_copied = flags.precision != "float32" or processes.num_processes() > 1
        self.decoded = copy_model(model) if is_copied else model
        self.translator = tokens.translator(
            self.decoded,
            {"beam_size": 1},
            batch_size=128,
            max_source_length=length_limits.longest_source(model),
        )
        self.bleu = training.Bleu(
            corpus.validation.source,
            corpus.validation.target,
            self.translate,
            every_epochs=flags.evaluate_every,
            tokenize=flags.bleu_tokenize,
        )
        self.callbacks, self.average, self.resume = runs.make_callbacks(
            flags, out, first=[self.bleu]
        )

    def translate(self, sentences: list[str]) -> list[str]:
        """Translates with the present weights."""
        if self.decoded is not self.model:
            self.decoded.set_weights(processes.get_weights(self.model))
        with training.local_devices():
            return list(self.translator(sentences))

    @property
    def history(self) -> dict[str, list]:
        """Losses and scores of all epochs, those before a resume included."""
        return self.resume.history

    def fit(self, batches: text.Batches, validation: text.Batches) -> int:
        """Trains, averages weights, and returns the number of averaged
        epochs."""
        self.resume.fit(
            self.network,
            batches,
            self.flags.epochs,
            self.callbacks,
            validation_data=validation.dataset(),
            verbose=1 if sys.stdout.isatty() else 2,
        )
        averaged = len(self.average.apply(self.network))
        if averaged > 1:
            print(f"\nWeights averaged over the last {averaged} epochs")
        return averaged


def make_translator(
    flags: Flags,
    model: AnyModel,
    corpus: corpora.Corpus,
    tokens: Tokenization,
    steps: Mapping[str, Any] | None = None,
) -> pipelines.Translator:
    """Makes the translator that the run saves; see `fine_tuning.text_steps`."""
    return tokens.translator(
        model,
        {"beam_size": flags.beam_size, "length_penalty": flags.length_penalty},
        split_tokens=tokenization.usual_length(corpus, tokens.source),
        max_source_length=length_limits.longest_source(model),
        **(steps or {}),
    )


if __name__ == "__main__":
    runs.start(main, Flags, __doc__)
