"""The recurrent encoder-decoder that the Transformer replaced."""

from typing import Unpack

import keras
from keras import ops

from keras_tfm.layers.masks import padding_mask
from keras_tfm.models import beam_cache, configured_model, stacks
from keras_tfm.models.generative_model import GenerativeModel
from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.models.recurrent import RecurrentDecoder, RecurrentEncoder
from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentSeq2Seq(GenerativeModel):
    """Computes the logits of each next target token with recurrent networks.

    A plain functional `keras.Model` with the inputs, outputs and methods of
    `Transformer`, which is trained, decoded and served in the same way. The
    encoder reads the source in both directions. The decoder attends to it in
    one of two ways.

    * `"additive"`: the state of the previous step attends, and the context goes
      into the cells. The hidden state is a maxout of the new state, the token
      and the context.
    * `"multiplicative"`: the new state attends. The hidden state is
      tanh(W [context; state]).

    The second runs the recurrence over all target tokens before any attends, in
    one call of Keras, which trains faster. The first attends inside the
    recurrence.

    Departures. Both: the reset gate of a GRU follows its product, as in cuDNN;
    every state of the decoder begins as tanh(W h), h the last state of the
    backward encoder. `"additive"`: the hidden state is of the new state, as in
    equation 4 and not as in the appendix; as in Wu et al., the first layer
    attends and all layers get the context. `"multiplicative"`: the encoder is
    bidirectional, and the hidden state is not fed back.

    Args:
        vocabulary_size: int, V of the source, and of the target too unless
            `target_vocabulary_size` is given.
        num_layers: int, or pair of ints: N of encoder and decoder.
        embedding_dim: int, D, also the dimension of the hidden state.
        units: int, dimension of each state; the encoder's output has twice as
            many channels.
        cell: `"gru"` or `"lstm"`.
        attention: `"additive"` or `"multiplicative"`.
        target_vocabulary_size: int or None. Needs `tie` "target" or None.
        tie: `"all"`: one embedding matrix for source, target and output;
            `"target"`: one for target and output; `"inputs"`: one for source
            and target; None: three, as in the papers.
        dropout: float in [0, 1), of embedded tokens, between layers, and of
            the hidden state; never between steps.
        **options: `name`, `dtype`, `trainable` of a Keras model.

    Attributes:
        config: mapping of all arguments by name.
        begin_options, supports_row_steps, max_positions: what decoding may use,
            see `decode.Decodable`.

    Raises:
        ValueError: an unknown `cell`, `attention` or `tie`, a size below 1, or
            one embedding matrix for two vocabularies.
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.RecurrentSeq2Seq(100, embedding_dim=16, units=8)
        batch = {
            "source_ids": np.array([[5, 9, 4, 3]]),
            "target_ids": np.array([[2, 8, 6]]),
        }
        print(model(batch).shape)  # (1, 3, 100)
        ```

    Source: Bahdanau et al. 2015, appendix A, https://arxiv.org/abs/1409.0473;
    Luong et al. 2015, sections 3.1 and 4, https://arxiv.org/abs/1508.04025;
    layers: Wu et al. 2016, section 3, https://arxiv.org/abs/1609.08144;
    dropout: Zaremba et al. 2014, https://arxiv.org/abs/1409.2329
    """

    begin_options = frozenset({"return_attention", "candidates"})
    supports_row_steps = False
    max_positions = None

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int | tuple[int, int] = 1,
        embedding_dim: int = 620,
        units: int = 1000,
        cell: str = "gru",
        attention: str = "additive",
        target_vocabulary_size: int | None = None,
        tie: str | None = "all",
        dropout: float = 0.1,
        **options: Unpack[configured_model.KerasOptions],
    ):
        stacks.check_tie(tie, vocabulary_size, target_vocabulary_size)
        policy, keras_options = configured_model.take_policy(options)
        config = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "embedding_dim": embedding_dim,
            "units": units,
            "cell": cell,
            "attention": attention,
            "target_vocabulary_size": target_vocabulary_size,
            "tie": tie,
            "dropout": dropout,
        }
        embeddings, projection = stacks.tied_embeddings(
            {**config, "positions": None, "sequence_length": None},
            policy,
            dropout=dropout,
            scale=False,
        )
        encoder_depth, decoder_depth = stacks.depths(num_layers)
        layer_options = {"dropout": dropout, "dtype": policy}
        encoder = RecurrentEncoder(
            units, encoder_depth, cell, name="encoder", **layer_options
        )
        decoder = RecurrentDecoder(
            units, decoder_depth, cell, attention, name="decoder", **layer_options
        )
        output = OutputProjection(embeddings[1], projection)
        inputs = stacks.id_inputs("source_ids", "target_ids")
        mask = padding_mask(inputs["source_ids"])
        memory = encoder(embeddings[0](inputs["source_ids"]), mask)  # (B, S, 2 units)
        hidden = decoder(embeddings[1](inputs["target_ids"]), memory, mask)  # (B, T, D)
        super().__init__(inputs, output(hidden), config, policy, keras_options)
        self.source_embedding, self.target_embedding = embeddings
        self.encoder, self.decoder = encoder, decoder
        self.projection = projection
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        self._output, self._hidden = output, hidden

    def hidden_model(self) -> keras.Model:
        """Makes the same network without its output projection.

        Returns:
            `keras.Model`, as in `Transformer.hidden_model`.
        """
        return configured_model.hidden_model(self, self._hidden)

    def as_logits(self, hidden: Tensor) -> Tensor:
        """Projects the decoder's output to the target vocabulary.

        Args:
            hidden: float `(..., D)`.

        Returns:
            float `(..., V)`.
        """
        return self._output(hidden)

    def encode(self, source_ids: Tensor) -> Tensor:
        """Runs the encoder.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.

        Returns:
            float `(B, S, 2 * units)`.
        """
        x = self.source_embedding(source_ids)
        return self.encoder(x, padding_mask(source_ids))

    def begin(
        self,
        source_ids: Tensor,
        max_length: Tensor,
        beam_size: int = 1,
        return_attention: bool = False,
        candidates: Tensor = None,
    ) -> dict:
        """Encodes the source once and makes the cache for decoding.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.
            max_length: int >= 1, or scalar int tensor, in tokens. Not used:
                the cache has one size at every length.
            beam_size: int >= 1, K: hypotheses for each source.
            return_attention: bool. Each step stores its attention weights.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                needs; or None for all.

        Returns:
            The cache, a dictionary. `"memory"` has keys and values of the
            source: it is not repeated for the beams. `"beams"` follows the
            hypotheses: their states, each `(B, K, units)`. If asked for,
            `"attention"` has the weights of the last step, float `(B, K, S)`.
            With candidates, `"projection"` has their columns.

        Raises:
            ValueError: there are candidates and an untied projection in int8.
        """
        memory = self.encode(source_ids)  # (B, S, 2 * units)
        states = keras.tree.map_structure(
            lambda state: ops.repeat(state[:, None], beam_size, axis=1),
            self.decoder.initial_states(memory),  # (B, units) to (B, K, units)
        )
        cache = {
            "memory": self.decoder.keys_and_values(memory),
            "memory_mask": padding_mask(source_ids),
            "beams": {"states": states},
        }
        return beam_cache.add_optional_entries(
            cache, source_ids, beam_size, return_attention, candidates, self._output
        )

    def extend(self, cache: dict, max_length: Tensor) -> dict:
        """Returns the cache unchanged: states have one size at every length.

        Args:
            cache: from `begin` or `step`.
            max_length: int, or scalar int tensor, in tokens.

        Returns:
            The cache.
        """
        return cache

    def step(self, ids: Tensor, index: Tensor, cache: dict) -> tuple[Tensor, dict]:
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis.
            index: int or scalar int tensor. Not used: there are no positions.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy the
            logits are float32.
        """
        hidden, states, attention = self.decoder.step(
            self.target_embedding(ids),  # (B, K, D)
            cache["beams"]["states"],
            cache["memory"],
            cache["memory_mask"],
        )
        cache = {**cache, "beams": {"states": states}}
        if "attention" in cache:
            cache["attention"] = ops.cast(attention, "float32")
        return self._output.step_logits(hidden, cache.get("projection")), cache

    def attention_maps(self, source_ids: Tensor, target_ids: Tensor) -> dict:
        """Computes the attention weights.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.
            target_ids: integer `(B, T)`, with the start token.

        Returns:
            A dictionary as in `Transformer.attention_maps`: `"cross"` is a
            list of one tensor `(B, 1, T, S)`; `"encoder"` and `"decoder"` are
            empty lists.
        """
        source_ids = ops.convert_to_tensor(source_ids)
        target_ids = ops.convert_to_tensor(target_ids)
        cache = self.begin(source_ids, target_ids.shape[1], return_attention=True)
        maps = []
        for index in range(target_ids.shape[1]):
            _, cache = self.step(target_ids[:, index : index + 1], index, cache)
            maps.append(cache["attention"])  # (B, 1, S)
        cross = ops.concatenate(maps, axis=1)  # (B, T, S)
        return {"encoder": [], "decoder": [], "cross": [cross[:, None]]}
