"""The encoder-decoder Transformer, as one functional Keras model."""

from typing import Unpack

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.checks import check_choice
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.position_factory import is_relative
from keras_tfm.layers.positions import LearnedPositions
from keras_tfm.layers.recurrence import SSRUDecoder
from keras_tfm.models import beam_cache, configured_model, stacks
from keras_tfm.models.generative_model import GenerativeModel
from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class Transformer(GenerativeModel):
    """Computes the logits of each next target token from source and target ids.

    A plain functional `keras.Model`: `compile`, `fit`, `save`, `export`. Its
    inputs are `{"source_ids": (B, S), "target_ids": (B, T)}` of integers,
    padded with 0; `target_ids` begin with the start token, and the logits at
    position t predict token t + 1. A decoder drives it through `begin` and
    `step`.

    Args:
        vocabulary_size: int, V of the source, and of the target too unless
            `target_vocabulary_size` is given.
        num_layers: int, or pair of ints: N of encoder and decoder.
        embedding_dim: int, D.
        intermediate_dim: int, F, dimension inside the feed-forward networks.
        num_heads: int, H.
        dropout: float in [0, 1), of residuals and of embedded tokens.
        target_vocabulary_size: int or None. Needs `tie` "target" or None.
        tie: `"all"`: one embedding matrix for source, target and output, as in
            the paper; `"target"`: one for target and output; `"inputs"`: one
            for source and target; None: three. Learned positions and
            `normalize_embedding` are never tied.
        positions: `"sinusoidal"`, `"learned"`, or a position layer, added to
            embedded tokens; or `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a
            layer of `RelativePositions`, inside self-attention; or None.
        sequence_length: int or None, in tokens. For learned positions.
        scale_embedding: bool or None. Embedded tokens are multiplied by
            sqrt(D); None: where positions are fixed.
        normalize_embedding: bool. Embedded tokens are normalized before their
            dropout.
        logits_bias: bool. A bias is added to the logits.
        decoder_recurrence: None, or `"ssru"`: the decoder has `layers.SSRU` in
            place of self-attention, so that a step costs the same at every
            length.
        **options: options of the blocks, see `layers.TransformerEncoder`:
            `key_dim`, `value_dim`, `attention_dropout`, `activation_dropout`,
            `activation`, `gated`, `normalize_first`, `normalization`,
            `epsilon`, `use_bias`, `score`, `num_key_value_heads`; and `name`,
            `dtype`, `trainable` of a Keras model.

    Attributes:
        config: mapping of all arguments by name.
        begin_options, supports_row_steps, max_positions: what decoding may use,
            see `decode.Decodable`.

    Raises:
        ValueError: sizes that do not fit each other, an unknown `tie` or
            `decoder_recurrence`, one embedding matrix for two vocabularies, or
            a recurrence with positions inside self-attention.
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.Transformer(100, embedding_dim=16, num_heads=2)
        batch = {
            "source_ids": np.array([[5, 9, 4, 3]]),
            "target_ids": np.array([[2, 8, 6]]),
        }
        print(model(batch).shape)  # (1, 3, 100)
        ```

    Source: Vaswani et al. 2017. https://arxiv.org/abs/1706.03762
    """

    begin_options = frozenset({"return_attention", "candidates", "read_length"})

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int | tuple[int, int] = 6,
        embedding_dim: int = 512,
        intermediate_dim: int = 2048,
        num_heads: int = 8,
        dropout: float = 0.1,
        target_vocabulary_size: int | None = None,
        tie: str | None = "all",
        positions: str | keras.layers.Layer | None = "sinusoidal",
        sequence_length: int | None = None,
        scale_embedding: bool | None = None,
        normalize_embedding: bool = False,
        logits_bias: bool = False,
        decoder_recurrence: str | None = None,
        **options: Unpack[configured_model.ModelOptions],
    ):
        _check_recurrence(decoder_recurrence, positions)
        stacks.check_tie(tie, vocabulary_size, target_vocabulary_size)
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
            "target_vocabulary_size": target_vocabulary_size,
            "tie": tie,
            "positions": positions,
            "sequence_length": sequence_length,
            "scale_embedding": scale_embedding,
            "normalize_embedding": normalize_embedding,
            "logits_bias": logits_bias,
            "decoder_recurrence": decoder_recurrence,
        }
        layers = _make_layers(config, block, policy)
        embeddings, projection, encoder, decoder = layers
        output = OutputProjection(embeddings[1], projection)
        inputs = stacks.id_inputs("source_ids", "target_ids")
        memory = _encode(encoder, embeddings[0], inputs["source_ids"])  # (B, S, D)
        hidden = _decode(decoder, embeddings[1], memory, **inputs)  # (B, T, D)
        # A config has one level: options of the blocks stand beside the others.
        config |= block
        super().__init__(inputs, output(hidden), config, policy, keras_options)
        self.source_embedding, self.target_embedding = embeddings
        self.encoder_blocks, self.encoder_norm = encoder.blocks, encoder.norm
        self.decoder_blocks, self.decoder_norm = decoder.blocks, decoder.norm
        self.projection = projection
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        self._encoder, self._decoder = encoder, decoder
        self._output, self._hidden = output, hidden

    @property
    def supports_row_steps(self) -> bool:
        """Whether `step` takes an index for each row."""
        return not is_relative(self.config["positions"])

    @property
    def max_positions(self) -> int | None:
        """The most target tokens, or None for no limit."""
        return stacks.max_positions(self.target_embedding)

    def hidden_model(self) -> keras.Model:
        """Makes the same network without its output projection.

        It shares every layer with this model. `ProjectedCrossentropy` trains
        it without ever computing `(B, T, V)` logits, where those are tied to
        the target embedding; an untied projection (`tie` None or "inputs") is
        no part of it and is not trained.

        Returns:
            `keras.Model` from the same inputs to float `(B, T, D)`.
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
            source_ids: integer `(B, S)`.

        Returns:
            float `(B, S, D)`.
        """
        return _encode(self._encoder, self.source_embedding, source_ids)

    def begin(
        self,
        source_ids: Tensor,
        max_length: Tensor,
        beam_size: int = 1,
        return_attention: bool = False,
        candidates: Tensor = None,
        read_length: int | None = None,
    ) -> dict:
        """Encodes the source once and makes the cache for decoding.

        Args:
            source_ids: integer `(B, S)`.
            max_length: int >= 1, or scalar int tensor: how many times `step`
                can be called before `extend`.
            beam_size: int >= 1, K: hypotheses for each source.
            return_attention: bool. Each step stores its attention weights.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                needs; or None for all.
            read_length: int or None: length to encode; the tokens that follow,
                up to S, are padding in all rows. None: S.

        Returns:
            The cache, a dictionary. `"memory"` holds keys and values of
            cross-attention and belongs to the source: it is not repeated for
            the beams. `"past"` has a slot for each step and beam, see
            `models.beam_cache`. `"beams"` follows the hypotheses: the mask of
            their ancestors, bool `(B, K, max_length * K)`; or the states of a
            recurrence, each `(B, K, D)`, and no past. If asked for,
            `"attention"` has the weights of the last step, float `(B, K, S)`:
            of the last block, averaged over its heads. With candidates,
            `"projection"` has their columns.

        Raises:
            ValueError: `max_length` or S exceeds learned positions; or there
                are candidates and an untied projection in int8.
        """
        self._check_positions(max_length)
        batch_size, num_slots = ops.shape(source_ids)[0], max_length * beam_size
        cache = {
            "memory": self._memory(source_ids, read_length),
            "memory_mask": padding_mask(source_ids),
        }
        blocks = self.decoder_blocks
        if self.config["decoder_recurrence"]:
            # (B, K, D) of each block: a recurrence needs no slots.
            states = [block.empty_cache(batch_size, beam_size) for block in blocks]
            cache["beams"] = {"states": states}
        else:
            cache["past"] = [
                block.empty_cache(batch_size, num_slots) for block in blocks
            ]
            # Nothing is written, so no slot is an ancestor.
            ancestors = ops.zeros((batch_size, beam_size, num_slots), "bool")
            cache["beams"] = {"ancestors": ancestors}
        return beam_cache.add_optional_entries(
            cache, source_ids, beam_size, return_attention, candidates, self._output
        )

    def extend(self, cache: dict, max_length: Tensor) -> dict:
        """Adds capacity for more steps to a cache.

        Args:
            cache: from `begin` or `step`.
            max_length: int, or scalar int tensor, in tokens, no less than the
                capacity of the cache.

        Returns:
            The new cache.

        Raises:
            ValueError: `max_length` exceeds learned positions.
        """
        self._check_positions(max_length)
        if self.config["decoder_recurrence"]:
            return cache  # the states have one size at every length
        num_slots = max_length * cache["beams"]["ancestors"].shape[1]
        return beam_cache.extend_slots(cache, self.decoder_blocks, num_slots)

    def step(self, ids: Tensor, index: Tensor, cache: dict) -> tuple[Tensor, dict]:
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis.
            index: int or scalar int tensor, from 0: the number of this step.
                Or int `(B,)`, the step of each row, if `supports_row_steps`:
                then the cache has `"ring_step"`, scalar int32, the step at
                which all rows write; it wraps around at the capacity.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy the
            logits are float32. In PyTorch's inference mode the tensors of
            `cache` are overwritten.
        """
        recurrent = self.config["decoder_recurrence"]
        beam_size = ids.shape[1]
        x = beam_cache.embed_step(self.target_embedding, ids, index)  # (B, K, D)
        if recurrent:
            pasts, options = cache["beams"]["states"], {}  # (B, K, D) each
        else:
            # Keys (B, G, d_k, L) and values (B, G, L, d_v) of each block.
            pasts, options = cache["past"], self._slots(cache, index)
        x, new_pasts, attention = self._decoder.step(
            x,
            list(zip(pasts, cache["memory"], strict=True)),
            return_attention="attention" in cache,
            encoder_padding_mask=cache["memory_mask"],
            **options,
        )
        if recurrent:
            cache = {**cache, "beams": {"states": new_pasts}}
        else:
            ancestors = options["attention_mask"]
            cache = {**cache, "past": new_pasts, "beams": {"ancestors": ancestors}}
            # Rows at different steps write to one slot, which wraps around.
            if "ring_step" in cache:
                capacity = ops.shape(ancestors)[-1] // beam_size
                cache["ring_step"] = (cache["ring_step"] + 1) % capacity
        if attention is not None:
            cache["attention"] = attention  # (B, K, S)
        return self._output.step_logits(x, cache.get("projection")), cache

    def attention_maps(self, source_ids: Tensor, target_ids: Tensor) -> dict:
        """Computes the attention weights of every layer.

        Args:
            source_ids: integer `(B, S)`.
            target_ids: integer `(B, T)`, with the start token.

        Returns:
            A dictionary of lists with one tensor a layer: `"encoder"`
            `(B, H, S, S)`, `"decoder"` `(B, H, T, T)`, empty where the decoder
            is recurrent, and `"cross"` `(B, H, T, S)`.
        """
        # The stacks append the scores of each block.
        encoder, decoder = [], []
        embedding = self.source_embedding
        memory = _encode(self._encoder, embedding, source_ids, maps=encoder)
        embedding = self.target_embedding
        _decode(self._decoder, embedding, memory, source_ids, target_ids, maps=decoder)
        return {
            "encoder": [scores for (scores,) in encoder],
            "decoder": [self_scores[0] for *self_scores, _ in decoder if self_scores],
            "cross": [cross_scores for *_, cross_scores in decoder],
        }

    def enable_lora(self, rank: int) -> None:
        """Freezes the model except for low-rank updates of queries and values.

        Args:
            rank: int >= 1, of the updates.

        Source: Hu et al. 2021, section 4.2. https://arxiv.org/abs/2106.09685
        """
        attentions = [block.self_attention for block in self.encoder_blocks]
        for block in self.decoder_blocks:
            attentions.append(block.cross_attention)
            if not self.config["decoder_recurrence"]:  # SSRU has no attention
                attentions.append(block.self_attention)
        stacks.enable_lora(self, attentions, rank)

    def _check_positions(self, max_length: Tensor) -> None:
        # The value of a tensor is unknown while a function is traced.
        positions = self.target_embedding.position_layer
        if isinstance(positions, LearnedPositions) and isinstance(max_length, int):
            positions.check_length(max_length)

    def _memory(self, source_ids, read_length):
        """Keys and values of cross-attention, for S source tokens."""
        memory = self.encode(
            source_ids if read_length is None else source_ids[:, :read_length]
        )
        attentions = [block.cross_attention for block in self.decoder_blocks]
        pairs = [attention.keys_and_values(memory) for attention in attentions]
        if read_length is None:
            return pairs
        # Padding gets no keys: compute S' tokens, store them in S slots.
        length = ops.shape(source_ids)[1]
        return [
            attention.extend_cache(pair, length)
            for attention, pair in zip(attentions, pairs, strict=True)
        ]

    def _slots(self, cache, index):
        """Arguments of the blocks: where to write, and which slots to read."""
        ancestors = cache["beams"]["ancestors"]
        beam_size, num_slots = ancestors.shape[1], ops.shape(ancestors)[-1]
        # The step has K slots, from this one on.
        slot = cache.get("ring_step", index) * beam_size
        options = {
            "attention_mask": beam_cache.mark_step(ancestors, slot),
            "use_causal_mask": False,  # slots of other beams may come earlier
            "cache_index": slot,
        }
        if is_relative(self.config["positions"]):
            # All beams of a row are at the step of the row, (K,) and (L,).
            options["query_positions"] = ops.broadcast_to(index, (beam_size,))
            options["key_positions"] = ops.arange(num_slots) // beam_size
        return options


def _check_recurrence(recurrence, positions):
    if recurrence is not None:
        check_choice("decoder_recurrence", recurrence, ["ssru"])
    if recurrence and is_relative(positions):
        raise ValueError(
            "`positions` must be added to tokens where the decoder is recurrent and "
            f"has no self-attention; got positions={positions!r}, "
            f"decoder_recurrence={recurrence!r}."
        )


def _make_layers(config, block, policy):
    """Makes the embeddings, the untied projection, and the two stacks."""
    normalization = block["normalization"] if config["normalize_embedding"] else None
    embeddings, projection = stacks.tied_embeddings(
        config,
        policy,
        config["logits_bias"],
        dropout=block["dropout"],
        scale=config["scale_embedding"],
        normalization=normalization,
        epsilon=block["epsilon"],
    )
    encoder_depth, decoder_depth = stacks.depths(config["num_layers"])
    decoder_class = SSRUDecoder if config["decoder_recurrence"] else TransformerDecoder
    options = (block, config["positions"], policy)
    encoder = stacks.Stack(TransformerEncoder, encoder_depth, *options, "encoder")
    decoder = stacks.Stack(decoder_class, decoder_depth, *options, "decoder")
    return embeddings, projection, encoder, decoder


def _encode(encoder, embedding, source_ids, maps=None):
    """Encodes `(B, S)` to `(B, S, D)`."""
    mask = padding_mask(source_ids)
    return encoder(embedding(source_ids), padding_mask=mask, maps=maps)


def _decode(decoder, embedding, memory, source_ids, target_ids, maps=None):
    """Decodes `(B, T)`, which attend to the memory, to `(B, T, D)`."""
    return decoder(
        embedding(target_ids),
        memory,
        padding_mask=padding_mask(target_ids),
        encoder_padding_mask=padding_mask(source_ids),
        maps=maps,
    )
