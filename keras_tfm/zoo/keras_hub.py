"""Encoders of KerasHub, which the package keras-nlp brings."""

import operator

from keras_tfm.layers import gelu_tanh
from keras_tfm.models import Encoder
from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo.imported import Imported

FAMILIES = ("BertBackbone", "DistilBertBackbone", "RobertaBackbone")
# Paths inside a block: ours, then theirs.
BLOCK = {
    "self_attention.query_dense": "_self_attention_layer.query_dense",
    "self_attention.key_dense": "_self_attention_layer.key_dense",
    "self_attention.value_dense": "_self_attention_layer.value_dense",
    "self_attention.output_dense": "_self_attention_layer.output_dense",
    "self_attention_norm": "_self_attention_layer_norm",
    "feed_forward.inner_dense": "_feedforward_intermediate_dense",
    "feed_forward.output_dense": "_feedforward_output_dense",
    "feed_forward_norm": "_feedforward_layer_norm",
}


def from_keras_hub(preset, **settings) -> Imported:
    """Loads the encoder of a preset: BERT, DistilBERT or RoBERTa.

    Args:
        preset: str. A preset of KerasHub, such as `"bert_tiny_en_uncased"`,
            which is fetched once; or a folder that its `save_to_preset` wrote.
        **settings: of the `Encoder`, such as `dropout`, over the preset's.

    Returns:
        `Imported`, without classes; the vocabulary is None where the preset
        has no tokenizer.

    Raises:
        ImportError: `keras-nlp` or `tokenizers` is not installed.
        ValueError: there is no such preset, or it is of another kind.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "Presets of KerasHub are read by the package keras-nlp, which cannot be "
            f"imported here ({error}). Install `keras-tfm[tensorflow]`."
        ) from error
    backbone = keras_hub.models.Backbone.from_preset(preset)
    kind = type(backbone).__name__
    if kind not in FAMILIES:
        raise ValueError(
            f"Presets that are read are of {FAMILIES}. Received: {preset!r}, a {kind}."
        )
    encoder = Encoder(**{**_settings(backbone), **settings})
    for variable, value in _pairs(encoder, backbone):
        variable.assign(value)
    try:
        tokenizer = keras_hub.models.Tokenizer.from_preset(preset)
    except (FileNotFoundError, ValueError):
        return Imported(encoder, None, None)
    return Imported(encoder, _vocabulary(tokenizer), None)


def _settings(backbone):
    kind = type(backbone).__name__
    bert, roberta = kind == "BertBackbone", kind == "RobertaBackbone"
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "num_layers": backbone.num_layers,
        "embedding_dim": backbone.hidden_dim,
        "intermediate_dim": backbone.intermediate_dim,
        "num_heads": backbone.num_heads,
        "num_segments": backbone.num_segments if bert else 0,
        "pad_id": 1 if roberta else 0,
        "positions": "learned",
        "sequence_length": backbone.max_sequence_length,
        "normalize_embedding": True,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
        # Theirs of BERT is not that of transformers.
        "activation": gelu_tanh if bert else "gelu",
        "epsilon": 1e-5 if roberta else 1e-12,
    }


def _pairs(encoder, backbone):
    """Pairs our variables with theirs, which have the same shapes."""
    embedding = encoder.embedding
    if encoder.segment_embedding is not None:
        positions = backbone.position_embedding
        table = backbone.segment_embedding.embeddings
        yield encoder.segment_embedding.embeddings, table
    else:
        both = getattr(backbone, "embeddings", None)
        both = both or backbone.get_layer("token_and_position_embedding")
        positions = both.position_embedding
    yield embedding.token_embedding.embeddings, backbone.token_embedding.embeddings
    yield embedding.position_layer.embeddings, positions.position_embeddings
    layers = [(encoder.embedding_norm, backbone.embeddings_layer_norm)]
    for number, block in enumerate(encoder.blocks):
        theirs = backbone.get_layer(f"transformer_layer_{number}")
        layers += [
            (operator.attrgetter(a)(block), operator.attrgetter(b)(theirs))
            for a, b in BLOCK.items()
        ]
    for ours, theirs in layers:
        yield from zip(ours.weights, theirs.weights, strict=True)


def _vocabulary(tokenizer):
    """Makes a vocabulary of the same pieces, ids and marks."""
    import tokenizers as library

    if hasattr(tokenizer, "merges"):
        pieces = {piece: int(index) for piece, index in tokenizer.vocabulary.items()}
        merges = [tuple(merge.split(" ")) for merge in tokenizer.merges]
        made = library.Tokenizer(library.models.BPE(pieces, merges, unk_token="<unk>"))
        made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = library.decoders.ByteLevel()
        made.post_processor = library.processors.RobertaProcessing(
            ("</s>", pieces["</s>"]), ("<s>", pieces["<s>"])
        )
        return TokenizersVocabulary(made.to_str())
    pieces = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
    made = library.Tokenizer(library.models.WordPiece(pieces, unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(
        lowercase=tokenizer.lowercase, strip_accents=tokenizer.strip_accents
    )
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.decoder = library.decoders.WordPiece()
    made.post_processor = library.processors.BertProcessing(
        ("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"])
    )
    return TokenizersVocabulary(made.to_str())
