"""The decoder alone, a language model, as one functional Keras model."""

from typing import Unpack

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.positions import LearnedPositions
from keras_tfm.models import beam_cache, configured_model, stacks
from keras_tfm.models.generative_model import GenerativeModel
from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class CausalLM(GenerativeModel):
    """Computes the logits of each next token of a text.

    A plain functional `keras.Model` from `{"token_ids": (B, T)}` of integers,
    padded with 0 at the end, to float `(B, T, V)`: the logits at position t
    predict token t + 1. Decoding takes prompts where a translation model takes
    sources, and continues them; like the texts in training, a prompt begins
    with the start token.

    Args:
        vocabulary_size: int >= 1, V.
        num_layers: int, N.
        embedding_dim: int, D.
        intermediate_dim: int, F, dimension inside the feed-forward networks.
        num_heads: int, H.
        dropout: float in [0, 1), of residuals and of embedded tokens.
        tie: bool. One embedding matrix for tokens and logits.
        positions: as in `Transformer`.
        sequence_length: int or None, in tokens. For learned positions.
        logits_bias: bool. A bias is added to the logits.
        **options: options of the blocks and of a Keras model, as in
            `Transformer`; here `activation` is `"gelu"` and `normalize_first`
            True by default.

    Attributes:
        config: mapping of all arguments by name.
        begin_options, supports_row_steps, max_positions: what decoding may use,
            see `decode.Decodable`.

    Raises:
        ValueError: sizes that do not fit each other.
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        model = models.CausalLM(100, embedding_dim=16, num_heads=2)
        logits = model({"token_ids": np.array([[2, 8, 6, 3]])})
        print(logits.shape)  # (1, 4, 100)
        ```

    Source: Liu et al. 2018, section 4.2.3, https://arxiv.org/abs/1801.10198;
    pre-norm, learned positions: Radford et al. 2019, section 2.3.
    """

    begin_options = frozenset({"return_attention", "candidates"})
    supports_row_steps = False

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        embedding_dim: int = 512,
        intermediate_dim: int = 2048,
        num_heads: int = 8,
        dropout: float = 0.1,
        tie: bool = True,
        positions: str | keras.layers.Layer | None = "rotary",
        sequence_length: int | None = None,
        logits_bias: bool = False,
        **options: Unpack[configured_model.ModelOptions],
    ):
        block, policy, keras_options = configured_model.split_options(
            options,
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation="gelu",
            normalize_first=True,
        )
        config = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "embedding_dim": embedding_dim,
            "tie": tie,
            "positions": positions,
            "sequence_length": sequence_length,
            "logits_bias": logits_bias,
        }
        embedding = stacks.embedding(
            vocabulary_size,
            "embedding",
            config,
            policy,
            dropout=dropout,
            logits_bias=logits_bias and tie,
        )
        stack = stacks.Stack(
            TransformerDecoder, num_layers, block, positions, policy, "decoder"
        )
        projection = None
        if not tie:
            projection = keras.layers.Dense(
                vocabulary_size, use_bias=logits_bias, dtype=policy, name="projection"
            )
        output = OutputProjection(embedding, projection)
        inputs, config = stacks.id_inputs("token_ids"), config | block
        token_ids = inputs["token_ids"]
        x = stack(embedding(token_ids), padding_mask=padding_mask(token_ids))
        super().__init__(inputs, output(x), config, policy, keras_options)
        self.embedding, self.projection = embedding, projection
        self.blocks, self.norm = stack.blocks, stack.norm
        self.vocabulary_size = self.target_vocabulary_size = vocabulary_size
        self._stack, self._output = stack, output

    @property
    def max_positions(self) -> int | None:
        """The most tokens of prompt and continuation, or None for no limit."""
        return stacks.max_positions(self.embedding)

    def begin(
        self,
        source_ids: Tensor,
        max_length: Tensor,
        beam_size: int = 1,
        return_attention: bool = False,
        candidates: Tensor = None,
    ) -> dict:
        """Reads the prompts once and makes the cache for decoding.

        Args:
            source_ids: integer `(B, S)`: prompts, padded with 0 at their ends.
            max_length: int >= 1, or scalar int tensor: how many times `step`
                can be called before `extend`.
            beam_size: int >= 1, K: hypotheses for each prompt.
            return_attention: bool. Each step stores its attention weights.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                needs; or None for all.

        Returns:
            The cache, a dictionary. `"past"` has a slot for each token of the
            prompt except the last, once for all beams, then one for each step
            and beam, see `models.beam_cache`. `"last_prompt_ids"` `(B,)` is
            what the first step reads in place of a start token. `"beams"`
            follows the hypotheses: the mask of their ancestors, bool
            `(B, K, S + max_length * K)`. If asked for, `"attention"` has the
            weights of the last step to the prompt, float `(B, K, S)`: of the
            last block, averaged over its heads; they sum to 1 with those to the
            generated tokens. With candidates, `"projection"` has their columns.

        Raises:
            ValueError: prompts exceed learned positions; or there are
                candidates and an untied projection in int8.
        """
        batch_size, length = ops.shape(source_ids)
        lengths = ops.sum(ops.cast(padding_mask(source_ids), "int32"), axis=1)  # (B,)
        # The last token is read by the first step, which computes its logits.
        num_read = ops.maximum(lengths - 1, 0)  # (B,)
        is_read = ops.arange(length)[None, :] < num_read[:, None]  # (B, S)
        last = ops.take_along_axis(source_ids, num_read[:, None], axis=1)[:, 0]  # (B,)
        num_slots = length + max_length * beam_size
        x, pasts = self.embedding(source_ids), []
        for block in self.blocks:
            x, (past, _) = block(
                x,
                padding_mask=is_read,
                cache=(block.empty_cache(batch_size, length), None),
                cache_index=0,
            )
            # The prompt is read once, in S slots for all beams.
            pasts.append(block.extend_cache(past, num_slots))
        ancestors = ops.repeat(is_read[:, None], beam_size, axis=1)  # (B, K, S)
        # (B, K, S) to (B, K, S + max_length * K)
        padding = [[0, 0], [0, 0], [0, max_length * beam_size]]
        cache = {
            "past": pasts,
            "last_prompt_ids": last,
            "num_read": num_read,
            "prompt_ids": source_ids,
            "beams": {"ancestors": ops.pad(ancestors, padding)},
        }
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
        """
        beam_size = cache["beams"]["ancestors"].shape[1]
        num_slots = ops.shape(cache["prompt_ids"])[1] + max_length * beam_size
        return beam_cache.extend_slots(cache, self.blocks, num_slots)

    def step(self, ids: Tensor, index: Tensor, cache: dict) -> tuple[Tensor, dict]:
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis; at index
                0 the last token of the prompt is read instead.
            index: int or scalar int tensor, from 0: the number of this step.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy the
            logits are float32. A row beyond learned positions stays at the last
            position; its logits mean nothing.
        """
        beam_size, length = ids.shape[1], ops.shape(cache["prompt_ids"])[1]
        slot = length + index * beam_size  # after the S slots of the prompt
        ancestors = beam_cache.mark_step(cache["beams"]["ancestors"], slot)
        last = ops.cast(cache["last_prompt_ids"], ids.dtype)[:, None]
        # An empty prompt has no last token: it starts with `ids`.
        is_first = ops.logical_and(ops.equal(index, 0), last != 0)
        ids = ops.where(is_first, last, ids)  # (B, K)
        positions = cache["num_read"] + index  # (B,)
        offset = positions
        if isinstance(self.embedding.position_layer, LearnedPositions):
            # Rows that are finished run beyond the positions with the others.
            offset = ops.minimum(offset, self.max_positions - 1)
        x = beam_cache.embed_step(self.embedding, ids, offset)  # (B, K, D)
        x, pasts, attention = self._stack.step(
            x,
            [(past, None) for past in cache["past"]],
            return_attention="attention" in cache,
            attention_mask=ancestors,
            use_causal_mask=False,  # slots of other beams may come earlier
            cache_index=slot,
            query_positions=ops.broadcast_to(positions[:, None], ops.shape(ids)),
            key_positions=self._key_positions(cache, beam_size),
        )
        cache = {**cache, "past": pasts, "beams": {"ancestors": ancestors}}
        if attention is not None:
            cache["attention"] = _prompt_attention(attention, cache["num_read"], length)
        return self._output.step_logits(x, cache.get("projection")), cache

    def logits_after(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Computes the logits of continuations of prompts.

        Args:
            source_ids: integer `(B, S)`: prompts, padded with 0 at their ends.
            target_ids: integer `(B, T)`: a start token, which is not read, then
                the continuation.

        Returns:
            float `(B, T, V)`: at position t the logits of the token that
            `target_ids` has at t + 1.
        """
        count, length = target_ids.shape[1], source_ids.shape[1]
        target_ids = ops.cast(target_ids, source_ids.dtype)
        lengths = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=1)
        last = ops.maximum(lengths - 1, 0)[:, None]  # (B, 1): end of the prompt
        # The continuation follows each prompt directly, without padding.
        padding = ops.zeros_like(target_ids[:, 1:])
        prompts = ops.concatenate([source_ids, padding], axis=1)  # (B, S + T - 1)
        position = ops.arange(length + count - 1)[None]
        continuations = ops.take_along_axis(
            target_ids, ops.clip(position - last, 0, count - 1), axis=1
        )
        token_ids = ops.where(position > last, continuations, prompts)
        if isinstance(self.embedding.position_layer, LearnedPositions):
            # Only padding stands beyond them, or the row would be too long.
            token_ids = token_ids[:, : self.max_positions]
        logits = self({"token_ids": token_ids})  # (B, S + T - 1, V)
        indices = last + ops.arange(count)[None]  # (B, T)
        # Indices of padding may exceed the row; their logits are not used.
        indices = ops.minimum(indices, ops.shape(token_ids)[1] - 1)
        return ops.take_along_axis(logits, indices[:, :, None], axis=1)  # (B, T, V)

    def _key_positions(self, cache, beam_size):
        """Positions of the slots `(B, L)`: of the prompt, then of the steps."""
        batch_size, length = ops.shape(cache["prompt_ids"])
        num_slots = ops.shape(cache["beams"]["ancestors"])[2]
        steps = ops.arange(num_slots - length) // beam_size  # (L - S,)
        prompt = ops.broadcast_to(ops.arange(length), (batch_size, length))  # (B, S)
        # A row continues at the end of its prompt, not of the longest one.
        generated = cache["num_read"][:, None] + steps[None]  # (B, L - S)
        return ops.concatenate([prompt, generated], axis=1)  # (B, L)


def _prompt_attention(attention, num_read, length):
    """Selects the attention to the prompt: `(B, K, L)` to `(B, K, S)`."""
    beam_size = attention.shape[1]
    # The last token of the prompt is in the slots of the first step.
    last = ops.sum(attention[:, :, length : length + beam_size], axis=2)  # (B, K)
    is_last = ops.equal(ops.arange(length)[None], num_read[:, None])[:, None]
    return ops.where(is_last, last[:, :, None], attention[:, :, :length])
