"""Models as folders that transformers loads."""

import json
import os
import pathlib
import tempfile
import warnings
from typing import Any

import keras

from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier, Transformer
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo.huggingface import (
    bert_export,
    generation,
    marian_export,
    tokenizer_files,
)
from keras_tfm.zoo.imported import missing_steps

WEIGHTS = "model.safetensors"
# Files of another model that would be read together with this one.
STALE = (generation.FILE, f"{WEIGHTS}.index.json")
STALE_VOCABULARIES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
STALE_VOCABULARIES += ("tokenizer.json", "tokenizer_config.json")
STALE_VOCABULARIES += ("special_tokens_map.json",)


def to_hugging_face(
    model: keras.Model,
    folder: str | os.PathLike,
    vocabulary: Vocabulary | TokenizersVocabulary | None = None,
    target_vocabulary: Vocabulary | None = None,
    classes: list[str] | None = None,
    options: dict[str, Any] | None = None,
    max_length: int = 1024,
) -> None:
    """Writes a model that `from_pretrained` of transformers loads.

    A `Transformer` becomes a Marian, or a Pegasus if it normalizes first. Where
    sine and cosine alternate, the channels are reordered to sines first, which
    changes no logit. Other positions are written as a learned matrix, which
    transformers loads but, for a Marian, does not save again. An `Encoder` or a
    model on top of it becomes a BERT; a classifier whose hidden layer is a
    relu, a DistilBERT. What the folder held before stays until all is written.

    Args:
        model: `Transformer` with positions added to tokens; or `Encoder`,
            `MaskedLM` or `SequenceClassifier` in BERT's form: post-norm,
            learned positions, normalized embeddings, pooling by the first token
            with a hidden layer of D units. All with layer normalization, scaled
            dot products and heads of dimension D / H.
        folder: path. Created if missing.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`, written as
            `tokenizer.json`; None for the model alone. Language tags within a
            text stay whole, except those of a BPE, which `tokenizers` can only
            merge: pass their ids instead.
        target_vocabulary: `Vocabulary` of the target if it segments text
            differently, with the same ids, as Marian's do.
        classes: list of C str, names of a classifier's classes; or None.
        options: dict of fields of `decode.Options` and arguments of a
            `Translator`, for `generation_config.json`; or None. A UserWarning
            names those of text steps, which transformers lacks.
        max_length: int >= 1, in tokens, the number of sinusoidal positions.

    Raises:
        ImportError: `safetensors` or, for a vocabulary, `tokenizers` or
            `protobuf` is not installed.
        TypeError: the model is of another kind.
        ValueError: the model or an option has no counterpart in transformers,
            or the vocabulary does not fit the model.

    Example:
        ```python
        import pathlib
        import tempfile
        from keras_tfm import models, zoo

        model = models.Transformer(
            20, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=2
        )
        with tempfile.TemporaryDirectory() as folder:
            zoo.to_hugging_face(model, folder, options={"beam_size": 4})
            print(sorted(path.name for path in pathlib.Path(folder).iterdir()))
        ```
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "Writing weights for transformers needs the library safetensors, which "
            f"cannot be imported ({error}). Install `keras-tfm[zoo]`."
        ) from error
    if max_length < 1:
        raise ValueError(f"`max_length` must be at least 1; got {max_length}.")
    options, files = dict(options or {}), {}
    if message := missing_steps(options):
        warnings.warn(message, stacklevel=2)
    if isinstance(model, Transformer):
        config, tensors = marian_export.convert(model, max_length)
        exported = generation.exported_options(
            options, config["max_position_embeddings"]
        )
        files[generation.FILE] = _to_text({**marian_export.IDS, **exported})
    elif isinstance(model, (Encoder, MaskedLM, SequenceClassifier)):
        config, tensors = bert_export.convert(model, classes)
    else:
        raise TypeError(
            "`model` must be a Transformer, Encoder, MaskedLM or SequenceClassifier; "
            f"got {type(model).__name__}."
        )
    files["config.json"] = _to_text(config)
    if vocabulary is not None:
        if vocabulary.size > config["vocab_size"]:
            raise ValueError(
                f"`vocabulary` must have at most {config['vocab_size']} tokens, as the "
                f"model; got {vocabulary.size}. Pass the vocabulary that the model was "
                "trained with."
            )
        files |= tokenizer_files.files(vocabulary, target_vocabulary, options, config)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = pathlib.Path(scratch)
        for name, content in files.items():
            content = content if isinstance(content, bytes) else content.encode("utf-8")
            (scratch / name).write_bytes(content)
        save_file(tensors, scratch / WEIGHTS, metadata={"format": "pt"})
        for name in [*files, WEIGHTS]:
            os.replace(scratch / name, folder / name)
    stale = STALE if vocabulary is None else STALE + STALE_VOCABULARIES
    for name in set(stale) - set(files):
        (folder / name).unlink(missing_ok=True)


def _to_text(values):
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
