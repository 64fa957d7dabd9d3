"""Published configurations of the models, as functions.

Each passes further keyword arguments to the model, so that a configuration can
be changed: `transformer_base(32_000, num_layers=2)`.
"""

from typing import Any

from keras_tfm.layers.positions import SinusoidalPositions
from keras_tfm.models.encoder import Encoder
from keras_tfm.models.transformer import Transformer

# Vaswani et al. 2017, table 3: the base model, and what each row changes of it.
TABLE_3_BASE = {
    "num_layers": 6,
    "embedding_dim": 512,
    "intermediate_dim": 2048,
    "num_heads": 8,
    "dropout": 0.1,
}
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
    "D3": {},  # label smoothing 0.0 and 0.2 are options of the loss
    "D4": {},
    "E": {"positions": "learned", "sequence_length": 512},
    "big": {
        "embedding_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.3,
    },
}
# What BERT and its descendants have in common. F is 4 D.
BERT = {
    "vocabulary_size": 30_522,
    "num_segments": 2,
    "positions": "learned",
    "sequence_length": 512,
    "normalize_embedding": True,
    "activation": "gelu",
    "attention_dropout": 0.1,
    "epsilon": 1e-12,
}
BERTS = {
    # Devlin et al. 2019, section 3. https://arxiv.org/abs/1810.04805
    "bert_base": {"num_layers": 12, "embedding_dim": 768, "num_heads": 12},
    # Turc et al. 2019, table 1. https://arxiv.org/abs/1908.08962
    "bert_tiny": {"num_layers": 2, "embedding_dim": 128, "num_heads": 2},
    # Sanh et al. 2019, section 3. https://arxiv.org/abs/1910.01108
    "distilbert_base": {
        "num_layers": 6,
        "embedding_dim": 768,
        "num_heads": 12,
        "num_segments": 0,
    },
    # Wang et al. 2020, section 4. https://arxiv.org/abs/2002.10957
    "minilm_l6": {"num_layers": 6, "embedding_dim": 384, "num_heads": 12},
    # Liu et al. 2019, section 3. https://arxiv.org/abs/1907.11692 Of its 514
    # positions the first two belong to padding and are never read: 512 here.
    "roberta_base": {
        "vocabulary_size": 50_265,
        "num_layers": 12,
        "embedding_dim": 768,
        "num_heads": 12,
        "num_segments": 0,
        "pad_id": 1,
        "epsilon": 1e-5,
    },
}


def transformer_base(vocabulary_size: int, **options: Any) -> Transformer:
    """Makes the paper's base model: 6+6 layers, D 512, F 2048, 8 heads.

    Args:
        vocabulary_size: int, V. With 37,000 and one embedding matrix the model
            has 63.1M parameters. The paper says 65M, which one matrix of
            40,700 tokens would make; three of 37,000 would make 101M.
        **options: of `Transformer`; they override the configuration.

    Returns:
        `Transformer`.

    Example:
        ```python
        from keras_tfm import models

        model = models.transformer_base(100, num_layers=1, dropout=0.0)
        print(model.config["intermediate_dim"])  # 2048
        ```

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    return transformer_table_3("base", vocabulary_size, **options)


def transformer_big(vocabulary_size: int, **options: Any) -> Transformer:
    """Makes the paper's big model: 6+6 layers, D 1024, F 4096, 16 heads.

    Args:
        vocabulary_size: int, V; 37,000 in the paper, for 213M parameters.
        **options: of `Transformer`; they override the configuration.

    Returns:
        `Transformer`.

    Example:
        ```python
        from keras_tfm import models

        model = models.transformer_big(100, num_layers=1)
        print(model.config["embedding_dim"])  # 1024
        ```

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    return transformer_table_3("big", vocabulary_size, **options)


def transformer_table_3(row: str, vocabulary_size: int, **options: Any) -> Transformer:
    """Makes the model of one row of table 3 of the paper.

    Args:
        row: str. `"base"`, `"big"`, or group and number: A1-A4 heads, B1-B2
            key dimension, C1-C7 size, D1-D4 dropout 0.0 and 0.2 and label
            smoothing 0.0 and 0.2 (an option of the loss: D3 and D4 are the base
            model), E learned positions (with `sequence_length` 512 by default,
            which the paper does not give).
        vocabulary_size: int, V.
        **options: of `Transformer`; they override the configuration.

    Returns:
        `Transformer`.

    Raises:
        ValueError: there is no such row.

    Example:
        ```python
        from keras_tfm import models

        model = models.transformer_table_3("B1", 100, num_layers=1)
        print(model.config["key_dim"])  # 16
        ```

    Source: Vaswani et al. 2017, table 3. https://arxiv.org/abs/1706.03762
    """
    if row not in TABLE_3:
        raise ValueError(f"`row` must be one of {list(TABLE_3)}; got row={row!r}.")
    config = {**TABLE_3_BASE, "tie": "all", **TABLE_3[row], **options}
    return Transformer(vocabulary_size, **config)


def transformer_tiny(vocabulary_size: int, **options: Any) -> Transformer:
    """Makes a model for small corpora: 4+4 layers, D 128, F 256, 4 heads.

    Args:
        vocabulary_size: int, V; 9,712 in the source, for 2,568,192 parameters.
        **options: of `Transformer`; they override the configuration.

    Returns:
        `Transformer`: post-norm, one embedding matrix for source, target and
        output, sinusoids in two halves, dropout 0.3.

    Example:
        ```python
        from keras_tfm import models

        model = models.transformer_tiny(9_712)
        print(model.count_params())  # 2568192
        ```

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
    return Transformer(vocabulary_size, **{**tiny, **options})


def encoder_small(vocabulary_size: int, **options: Any) -> Encoder:
    """Makes an encoder to train from scratch: 2 layers, D 128, 4 heads.

    Args:
        vocabulary_size: int, V.
        **options: of `Encoder`; they override the configuration.

    Returns:
        `Encoder`: pre-norm, sinusoids, dropout 0.2.

    Example:
        ```python
        from keras_tfm import models

        encoder = models.encoder_small(100, dropout=0.1)
        print(encoder.config["num_layers"])  # 2
        ```
    """
    small = {
        "num_layers": 2,
        "embedding_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "dropout": 0.2,
        "normalize_first": True,
    }
    return Encoder(vocabulary_size, **{**small, **options})


def bert_encoder(name: str, **options: Any) -> Encoder:
    """Makes the encoder of BERT or of one of its descendants.

    Args:
        name: str. `"bert_base"`, `"bert_tiny"`, `"distilbert_base"`,
            `"minilm_l6"` or `"roberta_base"`.
        **options: of `Encoder`; they override the configuration.

    Returns:
        `Encoder`, with the parameters of the published checkpoint except for
        the layer above its first token.

    Raises:
        ValueError: there is no such configuration.

    Example:
        ```python
        from keras_tfm import models

        encoder = models.bert_encoder("bert_tiny", vocabulary_size=100)
        print(encoder.config["num_heads"])  # 2
        ```
    """
    if name not in BERTS:
        raise ValueError(f"`name` must be one of {list(BERTS)}; got name={name!r}.")
    config = {**BERT, **BERTS[name]}
    config["intermediate_dim"] = 4 * config["embedding_dim"]
    return Encoder(**{**config, **options})
