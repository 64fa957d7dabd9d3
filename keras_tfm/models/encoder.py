"""The encoder alone, as one functional Keras model."""

import types

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerEncoder
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.models import stacks


@keras.saving.register_keras_serializable(package="keras_tfm")
class Encoder(keras.Model):
    """Gives a vector for each token of a text, or of a pair of texts.

    A plain functional `keras.Model` from `{"token_ids": (B, S)}` of integers,
    and `"segment_ids"` `(B, S)` where there are segments, to float `(B, S, D)`.
    With the defaults it is the encoder of the Transformer; with learned
    positions, segments and `normalize_embedding` it is BERT's.

    Args:
        vocabulary_size: int >= 1, V.
        num_layers: int, N.
        embedding_dim: int, D.
        intermediate_dim: int, F.
        num_heads: int, H.
        num_segments: int >= 0. Rows of a table of segments, whose vectors are
            added to those of the tokens; 0 for none.
        pad_id: int >= 0. The id that is padding.
        positions: as of `Transformer`.
        sequence_length: int or None, in tokens. For learned positions.
        normalize_embedding: bool. A normalisation of embedded tokens, before
            their dropout.
        key_dim: int or None, d_k. None: D / H.
        value_dim: int or None, d_v. None: `key_dim`.
        dropout: float in [0, 1), of residuals and of embedded tokens.
        attention_dropout: float in [0, 1), of the attention weights.
        activation_dropout: float in [0, 1), inside the feed-forward networks.
        activation: Keras activation of the feed-forward networks.
        gated: bool. Gated linear units in the feed-forward networks.
        normalize_first: bool. Pre-norm blocks, and a normalisation at the end.
        normalization: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`.
        epsilon: float > 0, of the normalisations.
        use_bias: bool. Projections inside the blocks add a bias.
        score: `"scaled_dot"` or another of `layers.AttentionScore`.
        num_key_value_heads: int or None, G, see `layers.MultiHeadAttention`.
        **kwargs: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        ValueError: sizes that do not fit each other.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762;
    segments: Devlin et al. 2019, section 3, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        embedding_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        num_segments=0,
        pad_id=0,
        positions="sinusoidal",
        sequence_length=None,
        normalize_embedding=False,
        key_dim=None,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        gated=False,
        normalize_first=False,
        normalization="layer_norm",
        epsilon=1e-5,
        use_bias=True,
        score="scaled_dot",
        num_key_value_heads=None,
        **kwargs,
    ):
        block = stacks.of_block(locals())
        policy = stacks.policy_of(kwargs)
        if num_segments < 0 or not 0 <= pad_id < vocabulary_size:
            raise ValueError(
                "There are 0 or more segments, and padding is an id of the vocabulary. "
                f"Received: num_segments={num_segments}, pad_id={pad_id}, "
                f"vocabulary_size={vocabulary_size}."
            )
        settings = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "embedding_dim": embedding_dim,
            "num_segments": num_segments,
            "pad_id": pad_id,
            "positions": positions,
            "sequence_length": sequence_length,
            "normalize_embedding": normalize_embedding,
        }
        embedding = stacks.embedding(vocabulary_size, settings, policy, "embedding")
        segment_embedding = embedding_norm = None
        if num_segments:
            segment_embedding = keras.layers.Embedding(
                num_segments, embedding_dim, dtype=policy, name="segment_embedding"
            )
        if normalize_embedding:
            embedding_norm = normalization_layer(
                normalization, epsilon, dtype=policy, name="embedding_norm"
            )
        dropout_layer = keras.layers.Dropout(dropout, dtype=policy, name="dropout")
        blocks = stacks.blocks(
            TransformerEncoder, num_layers, block, positions, policy, "encoder"
        )
        norm = stacks.last_norm(block, policy, "encoder_norm")

        def embed(token_ids, segment_ids=None):
            x = embedding(token_ids)
            if segment_embedding is not None:
                x = x + segment_embedding(segment_ids)
            mask = ops.not_equal(token_ids, pad_id)
            return dropout_layer(stacks.normalized(embedding_norm, x, mask))

        inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
        if num_segments:
            segments = keras.Input((None,), dtype="int32", name="segment_ids")
            inputs["segment_ids"] = segments
        x = embed(**inputs)
        mask = ops.not_equal(inputs["token_ids"], pad_id)
        for one in blocks:
            x = one(x, padding_mask=mask)
        outputs = stacks.normalized(norm, x, mask)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.embedding, self.segment_embedding = embedding, segment_embedding
        self.embedding_norm, self.dropout_layer = embedding_norm, dropout_layer
        self.blocks, self.norm = blocks, norm
        self.vocabulary_size, self.pad_id = vocabulary_size, pad_id
        self.embedding_dim = embedding_dim
        # Not a dict, in which Keras would find a layer of positions and take it
        # for one of the model's.
        self.config = types.MappingProxyType({**settings, **block})
        self._embed = embed

    def hidden_states(self, inputs):
        """Gives the vectors before and after every block.

        Args:
            inputs: dict of integers `(B, S)`, as of the model.

        Returns:
            List of N + 1 tensors, float `(B, S, D)`: embedded tokens, then each
            block's output, without the normalisation at the end.
        """
        return self._walk(inputs)[0]

    def attention_maps(self, inputs):
        """Gives the attention weights of every layer.

        Args:
            inputs: dict of integers `(B, S)`, as of the model.

        Returns:
            List of N tensors, float `(B, H, S, S)`.
        """
        return self._walk(inputs)[1]

    def _walk(self, inputs):
        states, maps = [self._embed(**inputs)], []
        mask = ops.not_equal(inputs["token_ids"], self.pad_id)
        for block in self.blocks:
            x, scores = block(
                states[-1], padding_mask=mask, return_attention_scores=True
            )
            states.append(x)
            maps.append(scores)
        return states, maps

    def enable_lora(self, rank):
        """Freezes the model but for low-rank updates of queries and values.

        Args:
            rank: int >= 1, of the updates: Keras gives each head a first
            factor of that rank, and all heads one second factor.

        Source: Hu et al. 2021, section 4.2. https://arxiv.org/abs/2106.09685
        """
        for weight in self.weights:
            weight.trainable = False
        for block in self.blocks:
            block.self_attention.query_dense.enable_lora(rank)
            block.self_attention.value_dense.enable_lora(rank)

    def get_config(self):
        return {
            **stacks.plain(self.config),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": dtype_config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**stacks.from_plain(config, custom_objects))
