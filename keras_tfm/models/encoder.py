"""The encoder alone, as one functional Keras model."""

import functools
from typing import Unpack

import keras

from keras_tfm.layers.blocks import TransformerEncoder
from keras_tfm.layers.masks import padding_mask
from keras_tfm.models import configured_model, stacks
from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class Encoder(configured_model.ConfiguredModel):
    """Computes a vector for each token of a text, or of a pair of texts.

    A plain functional `keras.Model` from `{"token_ids": (B, S)}` of integers,
    and `"segment_ids"` `(B, S)` where there are segments, to float `(B, S, D)`.
    With the defaults it is the encoder of the Transformer; with learned
    positions, segments and `normalize_embedding` it is BERT's.

    Args:
        vocabulary_size: int >= 1, V.
        num_layers: int, N.
        embedding_dim: int, D.
        intermediate_dim: int, F, dimension inside the feed-forward networks.
        num_heads: int, H.
        dropout: float in [0, 1), of residuals and of embedded tokens.
        num_segments: int >= 0. Number of segment embeddings, which are added to
            embedded tokens; 0 for none.
        pad_id: int >= 0. The id that is padding.
        positions: as in `Transformer`.
        sequence_length: int or None, in tokens. For learned positions.
        normalize_embedding: bool. Embedded tokens are normalized before their
            dropout.
        **options: options of the blocks and of a Keras model, as in
            `Transformer`.

    Attributes:
        config: mapping of all arguments by name.

    Raises:
        ValueError: sizes that do not fit each other.
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.Encoder(100, num_layers=2, embedding_dim=16, num_heads=2)
        vectors = model({"token_ids": np.array([[2, 8, 6, 3]])})
        print(vectors.shape)  # (1, 4, 16)
        ```

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762;
    segments: Devlin et al. 2019, section 3, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        embedding_dim: int = 512,
        intermediate_dim: int = 2048,
        num_heads: int = 8,
        dropout: float = 0.1,
        num_segments: int = 0,
        pad_id: int = 0,
        positions: str | keras.layers.Layer | None = "sinusoidal",
        sequence_length: int | None = None,
        normalize_embedding: bool = False,
        **options: Unpack[configured_model.ModelOptions],
    ):
        if num_segments < 0 or not 0 <= pad_id < vocabulary_size:
            raise ValueError(
                "`num_segments` must be at least 0 and `pad_id` below "
                f"`vocabulary_size`; got num_segments={num_segments}, pad_id={pad_id}, "
                f"vocabulary_size={vocabulary_size}."
            )
        block, policy, keras_options = configured_model.split_options(
            options,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
        )
        config = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "embedding_dim": embedding_dim,
            "num_segments": num_segments,
            "pad_id": pad_id,
            "positions": positions,
            "sequence_length": sequence_length,
            "normalize_embedding": normalize_embedding,
        }
        embedding = stacks.embedding(vocabulary_size, "embedding", config, policy)
        segment_embedding = embedding_norm = None
        if num_segments:
            segment_embedding = keras.layers.Embedding(
                num_segments, embedding_dim, dtype=policy, name="segment_embedding"
            )
        if normalize_embedding:
            embedding_norm = stacks.make_norm(block, policy, "embedding_norm")
        dropout_layer = keras.layers.Dropout(dropout, dtype=policy, name="dropout")
        stack = stacks.Stack(
            TransformerEncoder, num_layers, block, positions, policy, "encoder"
        )
        layers = (embedding, segment_embedding, embedding_norm, dropout_layer, stack)
        encode = functools.partial(_encode, layers, pad_id)
        inputs = stacks.id_inputs("token_ids", *["segment_ids"][: min(num_segments, 1)])
        # A config has one level: options of the blocks stand beside the others.
        config |= block
        super().__init__(inputs, encode(**inputs), config, policy, keras_options)
        self.embedding, self.segment_embedding = embedding, segment_embedding
        self.embedding_norm, self.dropout_layer = embedding_norm, dropout_layer
        self.blocks, self.norm = stack.blocks, stack.norm
        self.vocabulary_size, self.pad_id = vocabulary_size, pad_id
        self.embedding_dim = embedding_dim
        self._encode = encode

    @property
    def max_positions(self) -> int | None:
        """The most tokens, or None for no limit."""
        return stacks.max_positions(self.embedding)

    def attention_maps(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Computes the attention weights of every layer.

        Args:
            inputs: dict of integers `(B, S)`, the inputs of the model.

        Returns:
            List of N tensors, float `(B, H, S, S)`.
        """
        maps = []
        self._encode(**inputs, maps=maps)
        return [scores for (scores,) in maps]

    def enable_lora(self, rank: int) -> None:
        """Freezes the model except for low-rank updates of queries and values.

        Args:
            rank: int >= 1, of the updates: Keras makes a first factor of that
                rank for each head, and one second factor for all heads.

        Source: Hu et al. 2021, section 4.2. https://arxiv.org/abs/2106.09685
        """
        attentions = [block.self_attention for block in self.blocks]
        stacks.enable_lora(self, attentions, rank)


def _encode(layers, pad_id, token_ids, segment_ids=None, maps=None):
    """Encodes tokens and segments, `(B, S)` to `(B, S, D)`."""
    embedding, segment_embedding, norm, dropout, stack = layers
    x, mask = embedding(token_ids), padding_mask(token_ids, pad_id)  # (B, S, D)
    if segment_embedding is not None:
        x = x + segment_embedding(segment_ids)
    # As in BERT: the sum is normalized, then dropped from.
    x = dropout(stacks.normalize(norm, x, mask))
    return stack(x, padding_mask=mask, maps=maps)
