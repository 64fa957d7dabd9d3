"""Models that `save_to_preset` of KerasHub has written."""

import os
import pathlib
from typing import Any

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.models import MaskedLM, SequenceClassifier
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.keras_hub import tokenizers
from keras_tfm.zoo.keras_hub.architectures import (
    ARCHITECTURES,
    POOLER,
    TASK,
    classifier_weights,
    masked_lm_weights,
)
from keras_tfm.zoo.keras_hub.weights_file import WeightsFolder
from keras_tfm.zoo.repositories import HUB, download
from keras_tfm.zoo.weight_loader import WeightLoader
from keras_tfm.zoo.weight_mapping import check_coverage

FILES = ["*.json", "*.weights.h5", "assets/tokenizer/*"]
KAGGLE = "kaggle://"
HEADS = {"Classifier": "classifier", "MaskedLM": "masked_lm"}  # by ends of names
MASKED_LM_EPSILON = 1e-5  # of the head's norm, whichever the encoder's is
# The pooler of BERT, the state of an optimizer, and a head that is left out.
IGNORED = (rf"{POOLER}/vars/[01]", rf"{TASK}.*", "optimizer/.*")


def from_keras_hub(
    preset: str | os.PathLike, head: str | None = None, **arguments: Any
) -> Imported:
    """Loads a preset of KerasHub, without KerasHub.

    Encoders: BERT, DistilBERT, RoBERTa and XLM-R, also with the head of their
    `TextClassifier` or `MaskedLM`. Models that generate: BART and T5 as
    `Transformer`, and GPT-2 as `CausalLM`. As in `from_hugging_face`, ids of
    models that generate are renumbered. Weights load completely or not at all.

    Args:
        preset: path of a folder that `save_to_preset` has written, on any
            backend; `"hf://owner/name"`, which huggingface-hub downloads once;
            or the name of a preset, such as `"bert_tiny_en_uncased"`, or its
            `"kaggle://"` address, which need the packages keras-nlp and
            kagglehub.
        head: `"encoder"`, `"classifier"` or `"masked_lm"`, of an encoder; None
            for the one that the preset has.
        **arguments: of the model, such as `dropout`, over the preset's.

    Returns:
        `Imported`; the vocabulary is None if the preset has no tokenizer.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ImportError: `tokenizers`, `protobuf`, or what a download needs is not
            installed.
        ValueError: the preset does not exist, is of another kind, or damaged.

    Example:
        ```python
        # requires: keras_hub
        import tempfile
        import keras_hub
        from keras_tfm import zoo

        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=20,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=8,
        )
        with tempfile.TemporaryDirectory() as folder:
            backbone.save_to_preset(folder)
            print(zoo.from_keras_hub(folder).model.embedding_dim)  # 8
        ```
    """
    folder = _locate(preset)
    config, architecture = _read_config(folder)
    task, task_head = _read_task(folder)
    head = head or task_head
    if head not in ("encoder", task_head):
        raise ValueError(
            f"`head` must be one of {sorted({'encoder', task_head})} for "
            f"{os.fspath(folder)!r}; got {head!r}. 'classifier' needs a preset of a "
            "TextClassifier, 'masked_lm' one of a MaskedLM."
        )
    tokenizer = tokenizers.read_tokenizer(folder)
    with (
        WeightsFolder(folder) as weights,
        reading(folder, "a preset of KerasHub", names=_names(folder)),
    ):
        size = config.integer("vocabulary_size")
        _check_sizes(config, weights.shapes)
        ids = tokenizer.ids if tokenizer else {}
        permutation = architecture.permutation(size, ids)
        fields = {"classes": None, "vocabulary": None}
        if permutation is not None:
            size = permutation.size
            fields |= _decoding(architecture, permutation, ids)
        if tokenizer is not None:
            fields["vocabulary"] = _vocabulary(tokenizer, permutation, config)
        with WeightLoader(folder) as loader:
            config_arguments = architecture.arguments(config, size)
            if permutation is None and tokenizer is not None:
                config_arguments["pad_id"] = fields["vocabulary"].pad_id
            model = architecture.model_class(**{**config_arguments, **arguments})
            mapping = architecture.weights(model, permutation)
            if head == "classifier":
                model = _classifier(model, architecture, task)
                mapping += classifier_weights(model, architecture)
                fields["classes"] = [f"LABEL_{i}" for i in range(model.num_classes)]
            if head == "masked_lm":
                model = MaskedLM(model, "gelu", MASKED_LM_EPSILON)
                mapping += masked_lm_weights(model)
            check_coverage(mapping, folder, weights.shapes, IGNORED)
            weights.check_floats({name for w in mapping for name in w.tensors})
            loader.load(mapping, weights.array)
    return Imported(model, **fields)


def is_preset(folder: pathlib.Path) -> bool:
    """Returns whether a folder holds a backbone of KerasHub.

    Args:
        folder: path.
    """
    name = read_json(folder / "config.json").get("class_name")
    return isinstance(name, str) and name.endswith("Backbone")


def _names(folder):
    """The files of a preset, as errors name them."""
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def _locate(preset):
    name = os.fspath(preset)
    if pathlib.Path(name).is_dir():
        return pathlib.Path(name)
    if name.startswith(HUB):
        return download(name, FILES)
    try:
        import kagglehub
        import keras_hub
    except ImportError as error:
        raise ImportError(
            f"`preset` is not a folder, and downloading the preset {name!r} needs the "
            f"packages keras-nlp and kagglehub ({error}). Install "
            "`keras-tfm[tensorflow]`, or pass a folder."
        ) from error
    presets = keras_hub.models.Backbone.presets
    address = presets[name]["kaggle_handle"] if name in presets else name
    if not address.startswith(KAGGLE):
        raise ValueError(
            "`preset` must be a folder, a repository as 'hf://owner/name', an address "
            f"as '{KAGGLE}owner/model/keras/variant', or the name of a preset of "
            f"KerasHub; got {name!r}."
        )
    return pathlib.Path(kagglehub.model_download(address.removeprefix(KAGGLE)))


def _read_config(folder):
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"No `config.json` in {os.fspath(folder)!r}; it has "
            f"{sorted(path.name for path in folder.iterdir())[:8]}. Pass a folder "
            "that `save_to_preset` of KerasHub has written."
        )
    content = Config(read_json(file), file)
    name = content.get("class_name")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(
            f"{file}: `class_name` must be one of {sorted(ARCHITECTURES)}; got "
            f"{name!r}. Load it with KerasHub, or choose a preset of one of these."
        )
    return Config(content.typed("config", dict), file), ARCHITECTURES[name]


def _read_task(folder):
    """Returns the config of a task, and the head that it has."""
    file = folder / "task.json"
    task = Config(read_json(file), file)
    name = str(task.get("class_name", ""))
    for end, head in HEADS.items():
        if name.endswith(end):
            return Config(task.typed("config", dict), file), head
    return None, "encoder"


def _check_sizes(config, shapes):
    """Rejects what would make a model much larger than its file."""
    rows = max((s[0] for s in shapes.values() if s and 0 not in s), default=0)
    limits = {"vocabulary_size": rows, "num_layers": len(shapes)}
    for name, limit in limits.items():
        if config.integer(name) > limit:
            raise ValueError(
                f"{config.file}: `{name}` must fit the weights, which have {limit}; "
                f"got {config[name]}. Download both from one preset."
            )


def _decoding(architecture, permutation, ids):
    """Options that do what the preprocessor of KerasHub does."""
    options = {"split_tokens": 1024, "disable_unk": False}  # texts stay whole
    start, end = permutation.start_id, permutation.end_id
    affixes = {"source_prefix": [], "source_suffix": [end]}
    if architecture.package == "gpt2":
        affixes = {"source_prefix": [start], "source_suffix": []}
    if architecture.package == "bart":  # the decoder reads </s> <s> first
        first = permutation.to_ours(ids.get("<s>", 0))
        affixes |= {"source_prefix": [first], "target_prefix": [first]}
    order = permutation.order
    return {"options": options | affixes, "permutations": (order, order)}


def _vocabulary(tokenizer, permutation, config):
    if permutation is not None:
        return tokenizers.generator_vocabulary(tokenizer, permutation)
    vocabulary, size = (
        tokenizers.encoder_vocabulary(tokenizer),
        config.integer("vocabulary_size"),
    )
    if vocabulary.size > size:
        with tokenizer.reading():
            raise ValueError(
                f"it must have at most {size} tokens, `vocabulary_size` of the model; "
                f"got {vocabulary.size}"
            )
    return vocabulary


def _classifier(encoder, architecture, task):
    num_classes = task.integer("num_classes")
    name = task.get("activation", "linear")
    name = name.get("config") if isinstance(name, dict) else name
    return SequenceClassifier(
        encoder,
        num_classes,
        pooling="first",
        hidden_dim=task.integer("hidden_dim", encoder.embedding_dim),
        hidden_activation=architecture.hidden_activation,
        dropout=task.number("dropout"),
        # A single label applies or not.
        multi_label=name == "sigmoid" or num_classes == 1,
    )
