"""Models as presets of KerasHub."""

import json
import os
import pathlib
import tempfile
from typing import Any

import keras
import numpy as np

from keras_tfm.file_reading import Config
from keras_tfm.models import CausalLM, Encoder, SequenceClassifier, Transformer
from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo.keras_hub import architectures, tokenizer_files
from keras_tfm.zoo.keras_hub.architectures import TASK, TOKENS, Architecture
from keras_tfm.zoo.keras_hub.weights_file import INDEX, MODEL, TASK_FILE
from keras_tfm.zoo.token_permutation import NEVER_LOGIT
from keras_tfm.zoo.weight_mapping import export, to_array

CONFIG, TASK_CONFIG, METADATA = "config.json", "task.json", "metadata.json"
PREPROCESSOR = "preprocessor.json"
# Files of another model that would be read together with this one.
STALE = (INDEX, TASK_FILE, TASK_CONFIG, PREPROCESSOR, *tokenizer_files.NAMES)
# Sizes that a comparison of two configurations leaves out.
TINY = {
    **dict.fromkeys(("vocabulary_size", "sequence_length"), 8),
    **dict.fromkeys(("embedding_dim", "key_dim", "value_dim"), 2),
    **dict.fromkeys(("num_layers", "num_heads", "intermediate_dim"), 1),
}
FREE = {*TINY, "target_vocabulary_size", "num_key_value_heads", "pad_id", "logits_bias"}
FREE |= {"dropout", "attention_dropout", "activation_dropout"}
LEARNING_RATE = 5e-5  # of tasks in KerasHub, until they are compiled again
DTYPE = {"module": "keras", "class_name": "DTypePolicy", "registered_name": None}


def to_keras_hub(
    model: keras.Model,
    folder: str | os.PathLike,
    vocabulary: Vocabulary | TokenizersVocabulary | None = None,
) -> None:
    """Writes a preset that `from_preset` of KerasHub loads.

    A `Transformer` becomes a BART or, with RMS normalization, a T5; a
    `CausalLM` a GPT-2. An `Encoder` with segments becomes a BERT, whose pooled
    output is 0; one without becomes a DistilBERT or, by its epsilon of 1e-5, a
    RoBERTa or, with a unigram vocabulary, an XLM-R. A `SequenceClassifier`
    becomes the `TextClassifier` of its encoder. Tokens that are never
    generated, such as a start token that is a copy of another, are left out,
    and the tokens after them move up. What the folder held before stays until
    all is written.

    Args:
        model: `Transformer`, `CausalLM`, `Encoder` or `SequenceClassifier` in
            the form that KerasHub has, such as what `from_keras_hub` returns.
        folder: path. Created if missing.
        vocabulary: the vocabulary of the model: `TokenizersVocabulary` of
            WordPiece, bytes or, for an XLM-R, unigram tokens; `Vocabulary` for
            a T5. None for the model alone.

    Raises:
        ImportError: `protobuf` is not installed.
        TypeError: the model is of another kind.
        ValueError: KerasHub has no such model or vocabulary.

    Example:
        ```python
        import pathlib
        import tempfile
        from keras_tfm import models, zoo

        encoder = models.Encoder(
            20,
            num_layers=1,
            embedding_dim=8,
            intermediate_dim=8,
            num_heads=2,
            positions="learned",
            sequence_length=16,
            normalize_embedding=True,
            activation="gelu",
            epsilon=1e-12,
        )
        with tempfile.TemporaryDirectory() as folder:
            zoo.to_keras_hub(encoder, folder)
            print(sorted(path.name for path in pathlib.Path(folder).iterdir()))
        ```
    """
    architecture = _architecture(model, vocabulary)
    encoder = getattr(model, "encoder", model)
    rows = _generated_rows(encoder)
    config = _config(encoder, architecture, len(rows))
    _check_model(encoder, architecture, config)
    files, assets = {}, {}
    if vocabulary is not None:
        if vocabulary.size > encoder.vocabulary_size:
            raise ValueError(
                f"`vocabulary` must have at most {encoder.vocabulary_size} tokens, as "
                f"the model; got {vocabulary.size}. Pass the vocabulary that the model "
                "was trained with."
            )
        tokenizer, assets = tokenizer_files.files(vocabulary, architecture, rows)
        name = f"{architecture.title}Tokenizer"
        files[tokenizer_files.CONFIG] = _object(
            architecture, "tokenizer", name, tokenizer, "int32"
        )
    backbone = _object(
        architecture, "backbone", f"{architecture.title}Backbone", config
    )
    files[CONFIG] = backbone
    files[METADATA] = {
        "keras_version": keras.version(),
        "parameter_count": encoder.count_params(),
    }
    mapping = architecture.weights(encoder, None)
    if isinstance(model, SequenceClassifier):
        _check_classifier(model, architecture)
        mapping += architectures.classifier_weights(model, architecture)
        tokenizer = files.get(tokenizer_files.CONFIG)
        files |= _task(model, architecture, backbone, tokenizer)
    tensors = export(mapping)
    for name, axis in ((TOKENS, 0), (TOKENS[:-1] + "1", 1)):
        if name in tensors and not isinstance(encoder, Encoder):
            tensors[name] = np.take(tensors[name], rows, axis)
    if architecture is architectures.BERT and encoder is model:
        size = encoder.embedding_dim  # an Encoder has no pooler
        tensors[f"{architectures.POOLER}/vars/0"] = np.zeros((size, size), "float32")
        tensors[f"{architectures.POOLER}/vars/1"] = np.zeros(size, "float32")
    files = {name: json.dumps(content, indent=4) for name, content in files.items()}
    _write(pathlib.Path(folder), files | assets, tensors)


def _architecture(model, vocabulary):
    if isinstance(model, Transformer):
        is_t5 = model.config["normalization"] == "rms_norm"
        return architectures.T5 if is_t5 else architectures.BART
    if isinstance(model, CausalLM):
        return architectures.GPT2
    if not isinstance(model, Encoder | SequenceClassifier):
        raise TypeError(
            "`model` must be a Transformer, CausalLM, Encoder or SequenceClassifier; "
            f"got {type(model).__name__}. Of a MaskedLM, pass its `encoder`."
        )
    config = getattr(model, "encoder", model).config
    if config["num_segments"]:
        return architectures.BERT
    if config["epsilon"] == architectures.DISTIL_BERT.fixed["epsilon"]:
        return architectures.DISTIL_BERT
    is_unigram = tokenizer_files.type_of(vocabulary) == "Unigram"
    return architectures.XLM_ROBERTA if is_unigram else architectures.ROBERTA


def _generated_rows(model):
    """Returns the ids that the preset has, in their order."""
    rows = np.arange(model.vocabulary_size)
    if isinstance(model, Encoder):
        return rows
    embedding = getattr(model, "target_embedding", None) or model.embedding
    bias = OutputProjection(embedding, model.projection).bias
    if bias is None:
        return rows
    bias = to_array(bias)
    rows = rows[bias > NEVER_LOGIT / 2]
    if np.abs(bias[rows]).max(initial=0) > 0:
        raise ValueError(
            "`model` must have a bias of 0 on its logits, since KerasHub has none; got "
            f"up to {np.abs(bias[rows]).max():.3g}. Train a model with "
            "logits_bias=False, or export another format."
        )
    return rows


def _config(model, architecture, size):
    config = model.config
    layers = config["num_layers"]
    if isinstance(layers, tuple | list):
        if layers[0] != layers[1]:
            raise ValueError(
                "`model` must have as many layers in its decoder as in its encoder "
                f"for KerasHub; got num_layers={tuple(layers)}."
            )
        layers = layers[0]
    values = {key: config[name] for name, key in architectures.SIZES.items()}
    values |= {"num_layers": layers, "vocabulary_size": size}
    values["dropout"] = config["dropout"]
    if architecture is architectures.T5:
        return values | {
            "activation": _activation(config["activation"]),
            "key_value_dim": config["key_dim"],
            "use_gated_activation": config["gated"],
            "layer_norm_epsilon": config["epsilon"],
            "tie_embedding_weights": config["tie"] == "all",
        }
    if architecture is architectures.BERT:
        values["num_segments"] = config["num_segments"]
    return values | {"max_sequence_length": config["sequence_length"]}


def _activation(function):
    names = {
        keras.activations.get(value): name
        for name, value in architectures.ACTIVATIONS.items()
    }
    name = names.get(keras.activations.get(function))
    if name is None:
        raise ValueError(
            f"`activation` must be one of {sorted(architectures.ACTIVATIONS)} for a T5 "
            f"of KerasHub; got {function!r}."
        )
    if ">" not in name:
        return name
    function = {"class_name": "function", "config": name, "registered_name": "function"}
    return {"module": "builtins", **function}


def _check_model(model, architecture, values):
    """Compares a model with what `from_keras_hub` would make of the preset."""
    config, is_learned = model.config, architecture is not architectures.T5
    if is_learned and not isinstance(config["sequence_length"], int):
        raise ValueError(
            f"`model` must have learned positions to become a {architecture.title} of "
            f"KerasHub; got positions={config['positions']!r}."
        )
    arguments = architecture.arguments(Config(values, CONFIG), values["num_layers"])
    tiny = {name: TINY[name] for name in TINY if name in arguments}
    twin = architecture.model_class(**{**arguments, **tiny})
    config_here, config_there = model.get_config(), twin.get_config()
    names = set(twin.config) - FREE
    wrong = {
        n: config_here[n]
        for n in names
        if _plain(config_here[n]) != _plain(config_there[n])
    }
    heads, dim = config["num_heads"], config["embedding_dim"]
    head_dim = config["key_dim"] if not is_learned else None
    allowed = {
        "num_key_value_heads": (None, heads),
        "key_dim": (None, dim // heads, head_dim),
        "value_dim": (None, config["key_dim"] or dim // heads),
    }
    expected = {name: config_there[name] for name in wrong}
    for name, choices in allowed.items():
        if config[name] not in choices:
            wrong[name], expected[name] = config[name], choices[-1]
    if wrong:
        raise ValueError(
            f"`model` must have {expected} to become a {architecture.title} of "
            f"KerasHub; got {wrong}. Train a model with these values, or export "
            "another format."
        )


def _plain(value):
    """Removes the name and dtype from the config of a position layer."""
    if isinstance(value, dict) and isinstance(value.get("config"), dict):
        config = {
            k: v for k, v in value["config"].items() if k not in ("name", "dtype")
        }
        return {"class_name": value["class_name"], "config": config}
    return value


def _check_classifier(model, architecture):
    config = model.config
    expected = {"pooling": "first", "max_ngram": 0}
    expected["hidden_activation"] = architecture.hidden_activation
    if architecture is architectures.BERT:
        expected["hidden_dim"] = model.encoder.embedding_dim
    wrong = {name: config[name] for name in expected if config[name] != expected[name]}
    if wrong or model.hidden_dense is None:
        raise ValueError(
            f"`model` must have {expected} and a `hidden_dim` to become a "
            f"{architecture.title}TextClassifier of KerasHub; got {wrong}, hidden_dim="
            f"{config['hidden_dim']}."
        )


def _task(model, architecture, backbone, tokenizer):
    """Makes the config of a classifier and of its preprocessor."""
    title, files, preprocessor = architecture.title, {}, None
    if tokenizer is not None:
        name = f"{title}TextClassifierPreprocessor"
        length = model.encoder.config["sequence_length"]
        options = {
            "tokenizer": tokenizer,
            "sequence_length": min(length, 512),
            "truncate": "round_robin",
        }
        kind = "text_classifier_preprocessor"
        preprocessor = _object(architecture, kind, name, options)
        files[PREPROCESSOR] = preprocessor
    config = {
        "backbone": backbone,
        "preprocessor": preprocessor,
        "num_classes": model.num_classes,
        "activation": "sigmoid" if model.multi_label else "linear",
        "dropout": model.config["dropout"],
    }
    if architecture is not architectures.BERT:
        config["hidden_dim"] = model.config["hidden_dim"]
    name = f"{title}TextClassifier"
    return files | {TASK_CONFIG: _object(architecture, "text_classifier", name, config)}


def _object(
    architecture: Architecture,
    module: str,
    name: str,
    config: dict[str, Any],
    dtype: str = "float32",
) -> dict[str, Any]:
    """Makes what Keras deserializes."""
    package = architecture.package
    return {
        "module": f"keras_hub.src.models.{package}.{package}_{module}",
        "class_name": name,
        "config": {"dtype": {**DTYPE, "config": {"name": dtype}}, **config},
        "registered_name": f"keras_hub>{name}",
    }


def _write(folder, files, tensors):
    """Writes all files, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = pathlib.Path(scratch)
        for name, content in files.items():
            content = content if isinstance(content, bytes) else content.encode("utf-8")
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        names = [*files, MODEL]
        model = {n: t for n, t in tensors.items() if not n.startswith(TASK)}
        _write_weights(scratch / MODEL, model)
        task = {n.removeprefix(TASK): t for n, t in tensors.items() if n not in model}
        if task:
            # KerasHub compiles a task, and reads the state of its optimizer.
            task["optimizer/vars/0"] = np.zeros((), "int32")
            task["optimizer/vars/1"] = np.array(LEARNING_RATE, "float32")
            _write_weights(scratch / TASK_FILE, task)
            names.append(TASK_FILE)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / name, folder / name)
    for name in set(STALE) - set(names):
        (folder / name).unlink(missing_ok=True)


def _write_weights(path, tensors):
    import h5py

    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            file[name] = tensor
