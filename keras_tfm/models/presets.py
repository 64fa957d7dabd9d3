"""Published shapes of the models, as functions.

Each takes the size of the vocabulary and passes whatever else is given to the
model, so that a preset is a starting point and not a cage.
"""

from keras_tfm.layers.positions import SinusoidalPositions
from keras_tfm.models.encoder import Encoder
from keras_tfm.models.seq2seq import Transformer

# Vaswani et al. 2017, table 3: what each row changes of the base model.
TABLE_3 = {
    "base": {},
    "A1": {"num_heads": 1, "key_dim": 512, "value_dim": 512},
    "A2": {"num_heads": 4, "key_dim": 128, "value_dim": 128},
    "A3": {"num_heads": 16, "key_dim": 32, "value_dim": 32},
    "A4": {"num_heads": 32, "key_dim": 16, "value_dim": 16},
    "B1": {"key_dim": 16, "value_dim": 64},
    "B2": {"key_dim": 32, "value_dim": 64},
    "C1": {"num_layers": 2},
    "C2": {"num_layers": 4},
    "C3": {"num_layers": 8},
    "C4": {"embedding_dim": 256, "key_dim": 32, "value_dim": 32},
    "C5": {"embedding_dim": 1024, "key_dim": 128, "value_dim": 128},
    "C6": {"intermediate_dim": 1024},
    "C7": {"intermediate_dim": 4096},
    "D1": {"dropout": 0.0},
    "D2": {"dropout": 0.2},
    "D3": {},
    "D4": {},
    "E": {"positions": "learned", "sequence_length": 512},
    "big": {
        "embedding_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.3,
    },
}


def transformer_base(vocabulary_size, **settings):
    """Makes the paper's base model: 6+6 layers, D 512, F 2048, 8 heads.

    Args:
        vocabulary_size: int, V; 37,000 in the paper, for 65M parameters.
        **settings: of `Transformer`, over those of the preset.

    Returns:
        `Transformer`.

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    return transformer_table_3("base", vocabulary_size, **settings)


def transformer_big(vocabulary_size, **settings):
    """Makes the paper's big model: 6+6 layers, D 1024, F 4096, 16 heads.

    Args:
        vocabulary_size: int, V; 37,000 in the paper, for 213M parameters.
        **settings: of `Transformer`, over those of the preset.

    Returns:
        `Transformer`.

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    return transformer_table_3("big", vocabulary_size, **settings)


def transformer_table_3(row, vocabulary_size, **settings):
    """Makes the model of one row of table 3 of the paper.

    Args:
        row: str. `"base"`, `"big"`, or a group and the number of the row in
            it: A1-A4 heads, B1-B2 key width, C1-C7 size, D1-D4 dropout 0.0
            and 0.2 and label smoothing 0.0 and 0.2 (which is a setting of the
            loss: D3 and D4 are the base model), E learned positions (for
            which `sequence_length` is 512 unless given; the paper is silent).
        vocabulary_size: int, V.
        **settings: of `Transformer`, over those of the row.

    Returns:
        `Transformer`.

    Raises:
        ValueError: there is no such row.

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    if row not in TABLE_3:
        raise ValueError(f"Table 3 has the rows {list(TABLE_3)}. Received: {row!r}.")
    base = {
        "num_layers": 6,
        "embedding_dim": 512,
        "intermediate_dim": 2048,
        "num_heads": 8,
        "dropout": 0.1,
        "tie": "all",
    }
    return Transformer(vocabulary_size, **{**base, **TABLE_3[row], **settings})


def transformer_tiny(vocabulary_size, **settings):
    """Makes the model for small corpora: 4+4 layers, D 128, F 256, 4 heads.

    Args:
        vocabulary_size: int, V; 9,712 in the source, for 2,568,192 parameters.
        **settings: of `Transformer`, over those of the preset.

    Returns:
        `Transformer`: post-norm, one table for source, target and output,
        sinusoids in two halves, dropout 0.3.

    Source: Wu et al. 2021, "Good for Misconceived Reasons", section 3.
    https://arxiv.org/abs/2105.14462
    """
    tiny = {
        "num_layers": 4,
        "embedding_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "dropout": 0.3,
        "tie": "all",
        "positions": SinusoidalPositions("halves"),
    }
    return Transformer(vocabulary_size, **{**tiny, **settings})


def _bert(vocabulary_size, num_layers, embedding_dim, settings, **others):
    """BERT's shape: F is 4 D, each head has 64 channels."""
    bert = {
        "intermediate_dim": 4 * embedding_dim,
        "num_heads": embedding_dim // 64,
        "num_segments": 2,
        "positions": "learned",
        "sequence_length": 512,
        "normalize_embedding": True,
        "activation": "gelu",
        "attention_dropout": 0.1,
        "epsilon": 1e-12,
    }
    sizes = {"num_layers": num_layers, "embedding_dim": embedding_dim}
    return Encoder(vocabulary_size, **{**sizes, **bert, **others, **settings})


def bert_base(vocabulary_size=30_522, **settings):
    """Makes the encoder of BERT base: 12 layers, D 768, 12 heads.

    Args:
        vocabulary_size: int, V. With the default 108,891,648 parameters; the
            110M that are published have a layer upon the first token too.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`.

    Source: Devlin et al. 2019, section 3. https://arxiv.org/abs/1810.04805
    """
    return _bert(vocabulary_size, 12, 768, settings)


def bert_tiny(vocabulary_size=30_522, **settings):
    """Makes the smallest of the compact BERTs: 2 layers, D 128, 2 heads.

    Args:
        vocabulary_size: int, V.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`.

    Source: Turc et al. 2019, table 1. https://arxiv.org/abs/1908.08962
    """
    return _bert(vocabulary_size, 2, 128, settings)


def minilm_l6(vocabulary_size=30_522, **settings):
    """Makes the encoder of MiniLM-L6-H384: 6 layers, D 384, 12 heads of 32.

    Args:
        vocabulary_size: int, V.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`.

    Source: Wang et al. 2020, section 4. https://arxiv.org/abs/2002.10957
    """
    return _bert(vocabulary_size, 6, 384, settings, num_heads=12)


def distilbert_base(vocabulary_size=30_522, **settings):
    """Makes the encoder of DistilBERT: BERT base with 6 layers, no segments.

    Args:
        vocabulary_size: int, V. With the default 66,362,880 parameters.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`.

    Source: Sanh et al. 2019, section 3. https://arxiv.org/abs/1910.01108
    """
    return _bert(vocabulary_size, 6, 768, settings, num_segments=0)


def roberta_base(vocabulary_size=50_265, **settings):
    """Makes the encoder of RoBERTa base: BERT base, padding is id 1.

    Its table of positions has 514 rows, of which the first two are padding's
    and never read: here it has 512.

    Args:
        vocabulary_size: int, V.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`.

    Source: Liu et al. 2019, section 3. https://arxiv.org/abs/1907.11692
    """
    roberta = {"num_segments": 0, "pad_id": 1, "epsilon": 1e-5}
    return _bert(vocabulary_size, 12, 768, settings, **roberta)


def encoder_small(vocabulary_size, **settings):
    """Makes an encoder to train from nothing: 2 layers, D 128, 4 heads.

    Args:
        vocabulary_size: int, V.
        **settings: of `Encoder`, over those of the preset.

    Returns:
        `Encoder`: pre-norm, sinusoids, dropout 0.2.
    """
    small = {
        "num_layers": 2,
        "embedding_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "dropout": 0.2,
        "normalize_first": True,
    }
    return Encoder(vocabulary_size, **{**small, **settings})
