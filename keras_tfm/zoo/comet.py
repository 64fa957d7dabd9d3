"""Checkpoints of COMET, which estimates the quality of translations."""

import os
import pathlib

import numpy as np

from keras_tfm.file_reading import Config, reading
from keras_tfm.models import Encoder, TranslationEstimator
from keras_tfm.zoo.huggingface import bert, hub
from keras_tfm.zoo.huggingface.family import Checkpoint
from keras_tfm.zoo.huggingface.load import check_sizes, read_config
from keras_tfm.zoo.huggingface.pytorch_file import PytorchFile
from keras_tfm.zoo.huggingface.tokenizer_folder import TokenizerFolder
from keras_tfm.zoo.huggingface.vocabularies import encoder_vocabulary
from keras_tfm.zoo.huggingface.weights_folder import FLOATS
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.marian.yaml_file import read_yaml
from keras_tfm.zoo.repositories import HUB, download
from keras_tfm.zoo.weight_loader import WeightLoader
from keras_tfm.zoo.weight_mapping import (
    Weight,
    WeightMapping,
    check_coverage,
    check_dtypes,
    pytorch_layers,
)

FILES = ["hparams.yaml", "checkpoints/*.ckpt"]
# What the published code takes where a checkpoint does not say it.
DEFAULTS = {
    "class_identifier": "regression_metric",
    "encoder_model": "XLM-RoBERTa",
    "pretrained_model": "xlm-roberta-large",
    "pool": "avg",
    "layer": "mix",
    "layer_transformation": "softmax",
    "layer_norm": True,
    "activations": "Tanh",
}
POOLINGS = {"avg": "mean", "max": "max", "cls": "first"}
ACTIVATIONS = {"tanh": "tanh", "sigmoid": "sigmoid"}
# A model that was trained with softmax, though its option was sparsemax.
PATCH = "sparsemax_patch"
TRANSFORMATIONS = {"softmax": "softmax", "sparsemax": "sparsemax", PATCH: "softmax"}
# Models of the hub that are named without their owner.
OWNERS = {"xlm-roberta-base": "FacebookAI", "xlm-roberta-large": "FacebookAI"}
ENCODER = "encoder.model."
IGNORED = (  # buffers, and the layer of the encoder that COMET does not use
    rf"{ENCODER}embeddings\.position_ids",
    rf"{ENCODER}pooler\.dense\.(weight|bias)",
    r"layerwise_attention\.dropout_(mask|fill)",
)


def from_comet(
    source: str | os.PathLike, encoder: str | os.PathLike | None = None
) -> Imported:
    """Loads an Estimator model of COMET, such as `Unbabel/wmt22-comet-da`.

    Only models of the class `regression_metric` on XLM-R are read: they compare
    a translation with its source and with one reference. The checkpoint is a
    pickle, which is never run: a reader that knows nothing but tensors takes
    its place, and skips the objects of the training beside them.

    Args:
        source: path of a folder with `hparams.yaml` and one file
            `checkpoints/*.ckpt`; or a repository as `"hf://owner/name"`, which
            huggingface-hub downloads once.
        encoder: path of a folder, or repository, with the `config.json` and
            `tokenizer.json` (or `sentencepiece.bpe.model`) of the encoder; a
            checkpoint lacks them. None for the repository that it names.

    Returns:
        `Imported`, of a `TranslationEstimator` and a `TokenizersVocabulary`.

    Raises:
        FileNotFoundError: a file or repository is missing.
        ImportError: PyYAML, `tokenizers` or `huggingface-hub` is needed and not
            installed.
        ValueError: a file is damaged, holds another kind of COMET, or does not
            fit the others.

    Source: Rei et al. 2020, https://arxiv.org/abs/2009.09025; Rei et al. 2022,
    https://aclanthology.org/2022.wmt-1.52

    Example:
        ```python
        import tempfile
        from keras_tfm import zoo

        # zoo.from_comet("hf://Unbabel/wmt22-comet-da") downloads 2.3 GB.
        with tempfile.TemporaryDirectory() as folder:
            try:
                zoo.from_comet(folder)
            except FileNotFoundError as error:
                print(error)  # ... must hold one checkpoint of COMET ...
        ```
    """
    folder = _located(source, FILES, "source")
    path, hparams = _checkpoint_file(folder), _read_hparams(folder)
    with reading(path, "a checkpoint of COMET"):
        tensors = PytorchFile(path, entry="state_dict")
        names = _dense_names(tensors.shapes)
    hparams = _with_pickled(hparams, tensors.entries.get("hyper_parameters"))
    name = _encoder_name(hparams) if encoder is None else encoder
    checkpoint = _encoder_checkpoint(
        _located(name, hub.SMALL_FILES, "encoder"), name, tensors
    )
    arguments = {
        **_arguments(hparams),
        "hidden_dims": [tensors.shapes[f"{n}.weight"][0] for n in names[:-1]],
    }
    with WeightLoader(path) as loader:
        with reading(checkpoint.config.file, "the encoder of COMET"):
            encoder_model = Encoder(**bert.FAMILY.arguments(checkpoint))
            model = TranslationEstimator(encoder_model, **arguments)
        with reading(path, "a checkpoint of COMET"):
            mapping = _weights(model, checkpoint, names)
            check_coverage(mapping, path, tensors.shapes, IGNORED)
            dtypes = {n: tensors.dtypes[n] for w in mapping for n in w.tensors}
            check_dtypes(path, dtypes, FLOATS, "Save the checkpoint in floats.")
            loader.load(mapping, tensors.array)
    with checkpoint.tokenizer.reading():
        vocabulary = encoder_vocabulary(checkpoint, encoder_model)
    return Imported(model, vocabulary, None)


def _located(source, patterns, argument):
    """Returns the folder of a model, downloaded where it is a repository."""
    name = os.fspath(source)
    if pathlib.Path(name).is_dir() and not name.startswith(HUB):
        return pathlib.Path(name)
    return download(name, patterns, argument)


def _checkpoint_file(folder):
    files = sorted((folder / "checkpoints").glob("*.ckpt"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} must hold one checkpoint of COMET, such as "
            f"'checkpoints/model.ckpt'; got {[file.name for file in files]}."
        )
    return files[0]


def _read_hparams(folder):
    """Reads the options of a model, and checks its kind."""
    file = folder / "hparams.yaml"
    if not file.is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} must hold 'hparams.yaml' of COMET; it has "
            f"{sorted(path.name for path in folder.iterdir())[:8]}."
        )
    hparams = Config({**DEFAULTS, **read_yaml(file.read_bytes(), file)}, file)
    _check_kind(hparams)
    return hparams


def _check_kind(hparams):
    for name in ("class_identifier", "encoder_model", "layer"):
        if hparams[name] != DEFAULTS[name]:
            raise ValueError(
                f"{hparams.file}: `{name}` must be {DEFAULTS[name]!r}, the kind of "
                f"COMET that is read; got {hparams[name]!r:.60}. Use a model such as "
                "wmt22-comet-da."
            )


def _with_pickled(hparams, pickled):
    """Returns the options of the checkpoint over those of the file."""
    if not isinstance(pickled, dict):
        return hparams
    # The file alone names the class; and where it says so, the published code
    # took the softmax in training, whatever the checkpoint says.
    names = {"class_identifier"}
    if hparams["layer_transformation"] == PATCH:
        names.add("layer_transformation")
    pickled = {name: value for name, value in pickled.items() if name not in names}
    hparams = Config({**hparams, **pickled}, hparams.file)
    _check_kind(hparams)
    return hparams


def _encoder_name(hparams):
    name = hparams.string("pretrained_model")
    name = f"{OWNERS[name]}/{name}" if name in OWNERS else name
    if name.removeprefix(HUB).count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(
            "`encoder` must be a folder or repository with `config.json` and "
            f"`tokenizer.json`, since the checkpoint names none; it has {name!r:.80}."
        )
    return HUB + name.removeprefix(HUB)


def _encoder_checkpoint(folder, name, tensors):
    """Reads the config and the tokenizer of the encoder."""
    config, _, kind = read_config(folder, name, tensors.shapes)
    if kind != "xlm-roberta":
        raise ValueError(
            f"{config.file}: `model_type` must be 'xlm-roberta', the encoder of the "
            f"checkpoint; got {kind!r}. Pass another `encoder`."
        )
    check_sizes(config, tensors.shapes)
    tokenizer = TokenizerFolder(folder, kind)
    if not tokenizer.content:
        raise FileNotFoundError(
            "`encoder` must have a `tokenizer.json` or `sentencepiece.bpe.model`; got "
            f"{os.fspath(folder)!r}, which has none. Save its tokenizer with "
            "transformers."
        )
    return Checkpoint(folder, config, tensors, "encoder", None, tokenizer)


def _arguments(hparams):
    """Returns the arguments of a `TranslationEstimator` that an option sets."""
    normalize_layers = hparams["layer_norm"]
    if not isinstance(normalize_layers, bool):
        raise ValueError(
            f"{hparams.file}: `layer_norm` must be true or false; got "
            f"{normalize_layers!r:.60}."
        )
    arguments = {
        "activation": _choice(hparams, "activations", ACTIVATIONS),
        "transformation": _choice(hparams, "layer_transformation", TRANSFORMATIONS),
        "pooling": _choice(hparams, "pool", POOLINGS),
        "normalize_layers": normalize_layers,
        "dropout": hparams.number("dropout", 0.1),
    }
    if "final_activation" in hparams:
        final_activation = _choice(hparams, "final_activation", ACTIVATIONS)
        arguments["final_activation"] = final_activation
    return arguments


def _choice(hparams, name, choices):
    """Reads an option that is one of a few names, in any case."""
    value = hparams.string(name)
    if value.lower() not in choices:
        raise ValueError(
            f"{hparams.file}: `{name}` must be one of {sorted(choices)}; got "
            f"{value!r:.60}."
        )
    return choices[value.lower()]


def _dense_names(shapes):
    """Names the projections of the estimator; activations stand between."""
    names, index = [], 0
    while f"estimator.ff.{index}.weight" in shapes:
        names.append(f"estimator.ff.{index}")
        index += 3
    if not names:
        raise ValueError("'state_dict' must have 'estimator.ff.0.weight'")
    return names


def _weights(
    model: TranslationEstimator, checkpoint: Checkpoint, names: list[str]
) -> WeightMapping:
    """Maps the weights of encoder, mixture and estimator."""
    mixture, spare = model.mixture, bert.spare_rows(checkpoint.config)
    count = mixture.layer_weights.shape[0]
    scalars = [f"layerwise_attention.scalar_parameters.{i}" for i in range(count)]
    dense_layers = [*model.hidden_layers, model.output_dense]
    mapping = [
        *bert.encoder_weights(model.encoder, "roberta", ENCODER, spare),
        Weight(mixture.layer_weights, scalars, lambda *x: np.concatenate(x)),
        Weight(mixture.scale, ["layerwise_attention.gamma"], lambda x: x.reshape(())),
    ]
    for layer, name in zip(dense_layers, names, strict=True):
        mapping += pytorch_layers([layer], name)
    return mapping
