"""Encoders of KerasHub, which the package keras-nlp installs."""

import operator
import os
from typing import Any

from keras_tfm.layers import gelu_tanh
from keras_tfm.models import Encoder
from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.weight_mapping import attention_names

# Our layers inside a block, and theirs.
BLOCK = {
    **attention_names(
        "self_attention", "_self_attention_layer.{}_dense", "query key value output"
    ),
    "self_attention_norm": "_self_attention_layer_norm",
    "feed_forward.inner_dense": "_feedforward_intermediate_dense",
    "feed_forward.output_dense": "_feedforward_output_dense",
    "feed_forward_norm": "_feedforward_layer_norm",
}
# Arguments of `Encoder` by backbone. BERT's activation differs from that of
# transformers.
BACKBONES = {
    "BertBackbone": {"activation": gelu_tanh, "epsilon": 1e-12},
    "DistilBertBackbone": {"activation": "gelu", "epsilon": 1e-12},
    "RobertaBackbone": {"activation": "gelu", "epsilon": 1e-5, "pad_id": 1},
}


def from_keras_hub(preset: str | os.PathLike, **arguments: Any) -> Imported:
    """Loads the encoder of a preset: BERT, DistilBERT or RoBERTa.

    Args:
        preset: str. A preset of KerasHub, such as `"bert_tiny_en_uncased"`,
            which is downloaded once; or a folder of `save_to_preset`.
        **arguments: of the `Encoder`, such as `dropout`, over the preset's.

    Returns:
        `Imported`, without classes; the vocabulary is None if the preset has no
        tokenizer.

    Raises:
        ImportError: `keras-nlp` or `tokenizers` is not installed.
        ValueError: the preset does not exist, or is of another kind.

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
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "Reading presets of KerasHub needs the package keras-nlp, which cannot be "
            f"imported ({error}). Install `keras-tfm[tensorflow]`."
        ) from error
    backbone = keras_hub.models.Backbone.from_preset(preset)
    name = type(backbone).__name__
    if name not in BACKBONES:
        raise ValueError(
            f"`preset` must have a backbone among {sorted(BACKBONES)}; got {preset!r}, "
            f"whose backbone is {name}. Choose a preset of one of these."
        )
    encoder = Encoder(**{**_arguments(backbone), **BACKBONES[name], **arguments})
    for variable, value in _pairs(encoder, backbone):
        variable.assign(value)
    try:
        tokenizer = keras_hub.models.Tokenizer.from_preset(preset)
    except (FileNotFoundError, ValueError):
        return Imported(encoder, None, None)
    return Imported(encoder, _vocabulary(tokenizer), None)


def _arguments(backbone):
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "num_layers": backbone.num_layers,
        "embedding_dim": backbone.hidden_dim,
        "intermediate_dim": backbone.intermediate_dim,
        "num_heads": backbone.num_heads,
        "num_segments": getattr(backbone, "num_segments", 0),
        "positions": "learned",
        "sequence_length": backbone.max_sequence_length,
        "normalize_embedding": True,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
    }


def _pairs(encoder, backbone):
    """Pairs our variables with theirs, which have the same shapes."""
    embedding, segments = encoder.embedding, encoder.segment_embedding
    if segments is not None:
        positions = backbone.position_embedding
        yield segments.embeddings, backbone.segment_embedding.embeddings
    else:
        layer = getattr(backbone, "embeddings", None)
        layer = layer or backbone.get_layer("token_and_position_embedding")
        positions = layer.position_embedding
    yield embedding.token_embedding.embeddings, backbone.token_embedding.embeddings
    yield embedding.position_layer.embeddings, positions.position_embeddings
    layers = [(encoder.embedding_norm, backbone.embeddings_layer_norm)]
    for number, block in enumerate(encoder.blocks):
        source = backbone.get_layer(f"transformer_layer_{number}")
        for path, name in BLOCK.items():
            pair = operator.attrgetter(path)(block), operator.attrgetter(name)(source)
            layers.append(pair)
    for layer, source in layers:
        yield from zip(layer.weights, source.weights, strict=True)


def _vocabulary(tokenizer):
    """Makes a vocabulary of the same subwords, ids and special tokens."""
    import tokenizers as library

    if hasattr(tokenizer, "merges"):
        vocab = {token: int(number) for token, number in tokenizer.vocabulary.items()}
        merges = [tuple(merge.split(" ")) for merge in tokenizer.merges]
        rebuilt = library.Tokenizer(
            library.models.BPE(vocab, merges, unk_token="<unk>")
        )
        rebuilt.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        rebuilt.decoder = library.decoders.ByteLevel()
        ends = ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"])
        rebuilt.post_processor = library.processors.RobertaProcessing(*ends)
        return TokenizersVocabulary(rebuilt.to_str())
    vocab = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    rebuilt = library.Tokenizer(library.models.WordPiece(vocab, unk_token="[UNK]"))
    rebuilt.normalizer = library.normalizers.BertNormalizer(
        lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents
    )
    rebuilt.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    rebuilt.decoder = library.decoders.WordPiece()
    ends = ("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])
    rebuilt.post_processor = library.processors.BertProcessing(*ends)
    return TokenizersVocabulary(rebuilt.to_str())
