"""Models as folders that transformers loads."""

import json
import os
import pathlib
import tempfile

from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier, Transformer
from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo import bert_out, generation, marian_out, tokenizer_json

WEIGHTS = "model.safetensors"
OTHERS = ("generation_config.json", f"{WEIGHTS}.index.json")
VOCABULARIES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
VOCABULARIES += ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def to_hugging_face(
    model,
    folder,
    vocabulary=None,
    target_vocabulary=None,
    classes=None,
    search=None,
    max_length=1024,
):
    """Writes a model that `from_pretrained` of transformers loads.

    A `Transformer` becomes a Marian, or where it normalises first a Pegasus,
    which is the same but for that. Where sine and cosine alternate, as in the
    paper, its channels are put into the order of theirs, sines first, which
    changes no logit. Positions that are neither are written as a table, which
    transformers loads, but of a Marian does not write again. What the folder
    held before stays until all is written.

    An `Encoder` or what stands on it becomes a BERT, and a classifier whose
    hidden layer is a relu a DistilBERT.

    Args:
        model: `Transformer` with positions added to tokens, post-norm or
            pre-norm; or `Encoder`, `MaskedLM` or `SequenceClassifier` in
            BERT's shape: post-norm, learned positions, embedded tokens
            normalised, pooling by the first token with a hidden layer of width
            D. All with layer normalisation, scaled dot products and heads of
            width D / H.
        folder: path. Made if it is not there.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`, which is written as
            `tokenizer.json`; None for the model alone. The marks of languages
            are kept whole within a text too, but not those of a BPE, to which
            `tokenizers` knows no way but merges: put them by their ids.
        target_vocabulary: `Vocabulary` of the target where it cuts text in
            another way, over the same ids, as those of Marian do.
        classes: list of C str, the classes of a classifier; or None.
        search: dict, settings of `pipelines.Translator` for
            `generation_config.json`; or None.
        max_length: int >= 1, in tokens, that a Marian has positions for.

    Raises:
        ImportError: `safetensors` or, for a vocabulary, `tokenizers` or
            `protobuf` is not installed.
        TypeError: a model of another kind.
        ValueError: a model of another shape, and what of it; settings of a
            search that transformers has nothing for; or a vocabulary that
            does not fit the model.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "Weights for others are written by the library safetensors, which cannot "
            f"be imported here ({error}). Install `keras-tfm[zoo]`."
        ) from error
    if max_length < 1:
        raise ValueError(
            f"A model has positions for a token. Received: max_length={max_length}."
        )
    generates = isinstance(model, Transformer)
    if generates:
        config, tensors = marian_out.written(model, max_length)
        longest = config["max_position_embeddings"]
        written = generation.written(search or {}, longest)
    elif isinstance(model, (Encoder, MaskedLM, SequenceClassifier)):
        config, tensors = bert_out.written(model, classes)
    else:
        raise TypeError(
            "A Transformer, Encoder, MaskedLM or SequenceClassifier is written. "
            f"Received: {type(model).__name__}."
        )
    files = {"config.json": _text(config)}
    if generates:
        files["generation_config.json"] = _text({**marian_out.IDS, **written})
    if vocabulary is not None:
        _check_size(vocabulary, config["vocab_size"])
        files |= _vocabulary_files(
            vocabulary,
            target_vocabulary,
            (search or {}) if generates else None,
            config,
        )
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as part:
        part = pathlib.Path(part)
        for name, content in files.items():
            content = content if isinstance(content, bytes) else content.encode("utf-8")
            (part / name).write_bytes(content)
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        for name in [*files, WEIGHTS]:
            os.replace(part / name, folder / name)
    # Else what another model has left would be read with this one.
    stale = OTHERS if vocabulary is None else OTHERS + VOCABULARIES
    for name in set(stale) - set(files):
        (folder / name).unlink(missing_ok=True)


def _text(values):
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _check_size(vocabulary, rows):
    if vocabulary.size > rows:
        raise ValueError(
            "The vocabulary has more pieces than the model has rows. Received: "
            f"{vocabulary.size} pieces, {rows} rows. Give the vocabulary that the "
            "model was trained with."
        )


def _vocabulary_files(vocabulary, target_vocabulary, search, config):
    """The files of a tokenizer, by name; `search` is None of an encoder."""
    max_length = config["max_position_embeddings"]
    other = target_vocabulary or vocabulary
    if other is not vocabulary and other.model != vocabulary.model:
        return tokenizer_json.marian(vocabulary, target_vocabulary, search, max_length)
    if search is None:
        marks = ([vocabulary.start_id], [vocabulary.end_id], vocabulary.separator_ids)
    else:
        marks = [list(search.get(f"source_{n}", ())) for n in ("prefix", "suffix")]
    if isinstance(vocabulary, TokenizersVocabulary):
        whole = json.loads(vocabulary.model)
    else:
        whole = tokenizer_json.of_sentencepiece(vocabulary)
    whole = tokenizer_json.marked(whole, vocabulary.tokens, *marks)
    settings = tokenizer_json.settings(
        vocabulary, max_length, search is None, config.get("type_vocab_size", 1) > 1
    )
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False),
        "tokenizer_config.json": _text(settings),
    }
