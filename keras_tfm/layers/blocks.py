"""Encoder and decoder blocks: attention, feed-forward, residuals, norms."""

from typing import Any

import keras

from keras_tfm.layers.checks import boolean_mask, call_arguments
from keras_tfm.layers.keras_internals import implicit_mask
from keras_tfm.layers.transformer_block import TransformerBlock, as_tuple, symbol_like
from keras_tfm.layers.weights import nth_seed
from keras_tfm.types import Cache, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerEncoder(TransformerBlock):
    """One encoder block: self-attention, then a feed-forward network.

    The constructor has the block options, see `TransformerBlock`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`, True where x is real. None: the implicit
            Keras mask of x, if it has one and no `attention_mask` is given.
        attention_mask: bool `(B, S, S)` or `(B, H, S, S)`.
        return_attention_scores: bool.

    Returns:
        float `(B, S, D)`; with `return_attention_scores` a pair of it and the
        weights `(B, H, S, S)`.

    Raises:
        ValueError: as `MultiHeadAttention`, or an unknown normalization.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762;
    pre-norm: Xiong et al. 2020, https://arxiv.org/abs/2002.04745

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        block = layers.TransformerEncoder(intermediate_dim=16, num_heads=2)
        real = np.array([[True, True, False]])
        print(block(np.ones((1, 3, 8)), padding_mask=real).shape)  # (1, 3, 8)
        ```
    """

    def build(self, x_shape: Shape) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        padding_mask: Tensor = None,
        attention_mask: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
        real_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if padding_mask is None and attention_mask is None:
            padding_mask = real_mask
        x, weights = self._residual(
            self.self_attention,
            self.self_attention_norm,
            x,
            real_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        feed_forward = self.feed_forward, self.feed_forward_norm
        x, _ = self._residual(*feed_forward, x, real_mask, training=training)
        return (x, *weights) if return_attention_scores else x

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        x, *masks, return_scores, _ = call_arguments(self, args, kwargs).values()
        return self.self_attention.compute_output_spec(
            x, None, None, *masks, return_attention_scores=return_scores
        )


@keras.saving.register_keras_serializable(package="keras_tfm")
class TransformerDecoder(TransformerBlock):
    """One decoder block: causal self-attention, cross-attention, feed-forward.

    Called without an encoder sequence it has no cross-attention and is a block
    of a language model; the first call decides. The constructor has the block
    options, see `TransformerBlock`; `positions="t5"` is unidirectional here.

    Call arguments:
        x: float `(B, T, D)`.
        encoder_sequence: float `(B, S, D')`, or None.
        padding_mask: bool `(B, T)`, True where x is real; with a cache
            `(B, L)`, of its slots. None: the implicit Keras mask of x, if it
            has one and no cache or `attention_mask` is given.
        attention_mask: bool `(B, T, T)` or `(B, H, T, T)`; with a cache the
            last axis is L.
        encoder_padding_mask: bool `(B, S)`. None: the implicit Keras mask of
            the encoder sequence, if it has one and no `encoder_attention_mask`
            is given.
        encoder_attention_mask: bool `(B, T, S)` or `(B, H, T, S)`, of
            cross-attention.
        use_causal_mask: bool. No position attends to a later one.
        cache: pair of pairs of keys and values: of this block's past (from
            `empty_cache`) and of the encoder sequence (from
            `cross_attention.keys_and_values`), the second None in a language
            model. `encoder_sequence` is then not needed.
        cache_index: int or scalar int tensor: the slot of `x[:, 0]`.
        query_positions: int `(T,)` or `(B, T)`, in tokens, for `positions`.
            None: from 0, or from `cache_index`, on.
        key_positions: int `(T,)` or `(B, T)`, with a cache of all its slots.
            None: from 0 on.
        return_attention_scores: bool.

    Returns:
        float `(B, T, D)`; or a tuple of it, the weights of self-attention
        `(B, H, T, T)` and, if the block has it, of cross-attention
        `(B, H, T, S)` with `return_attention_scores`, and the new cache if one
        was passed.

    Raises:
        ValueError: as `MultiHeadAttention`; an encoder sequence for a block
            built without one, or none for a block built with one; a cache
            without `cache_index`.

    Source: Vaswani et al. 2017, section 3.1. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        block = layers.TransformerDecoder(intermediate_dim=16, num_heads=2)
        target, memory = np.ones((1, 3, 8)), np.ones((1, 5, 8))
        print(block(target, memory).shape)  # (1, 3, 8)

        # One position at a time; keys and values of the memory computed once.
        past = block.empty_cache(batch_size=1, length=3)
        cache = (past, block.cross_attention.keys_and_values(memory))
        for t in range(3):
            x = target[:, t : t + 1]
            output, cache = block(x, cache=cache, cache_index=t)
        ```
    """

    bidirectional = False

    def build(self, x_shape: Shape, encoder_sequence_shape: Shape = None) -> None:
        self.self_attention.build(x_shape)
        self.self_attention_norm.build(x_shape)
        self._build_cross_attention(x_shape, encoder_sequence_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Tensor,
        encoder_sequence: Tensor = None,
        padding_mask: Tensor = None,
        attention_mask: Tensor = None,
        encoder_padding_mask: Tensor = None,
        encoder_attention_mask: Tensor = None,
        use_causal_mask: bool = True,
        cache: tuple[Cache, Cache | None] | None = None,
        cache_index: Tensor = None,
        query_positions: Tensor = None,
        key_positions: Tensor = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        past, memory = (None, None) if cache is None else cache
        self._check_inputs(encoder_sequence, cache, cache_index)
        padding_mask = boolean_mask("padding_mask", padding_mask, (2,))
        real_mask = implicit_mask(x) if padding_mask is None else padding_mask
        if cache is not None:
            real_mask = None  # The padding mask is of the slots, not of x.
        elif padding_mask is None and attention_mask is None:
            padding_mask = real_mask
        options = {"return_attention_scores": return_attention_scores}
        options["training"] = training
        x, extras = self._residual(
            self.self_attention,
            self.self_attention_norm,
            x,
            real_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            cache=past,
            cache_index=cache_index,
            query_positions=query_positions,
            key_positions=key_positions,
            **options,
        )
        # Self-attention returns the weights, if asked for, and then its cache.
        new_past = extras.pop() if cache is not None else None
        masks = encoder_padding_mask, encoder_attention_mask
        encoder = (encoder_sequence, *masks, memory)
        x, cross_weights = self._attend_and_feed(x, real_mask, encoder, options)
        results = (x, *extras, *cross_weights)
        if cache is not None:
            results += ((new_past, memory),)
        return x if len(results) == 1 else results

    def empty_cache(self, batch_size: Tensor, length: Tensor) -> Cache:
        """Creates a cache for the keys and values of this block's past.

        Args:
            batch_size: int, or scalar int tensor: B.
            length: int: L, in slots.

        Returns:
            zeros `(B, G, d_k, L)` and `(B, G, L, d_v)` in the compute dtype.
        """
        return self.self_attention.empty_cache(batch_size, length)

    def extend_cache(self, cache: Cache, length: Tensor) -> Cache:
        """Appends slots to a cache of this block's past.

        Args:
            cache: pair from `empty_cache`.
            length: int: slots of the result, no less than there are.

        Returns:
            The same with that many slots.
        """
        return self.self_attention.extend_cache(cache, length)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        call = call_arguments(self, args, kwargs)
        x, encoder_sequence = call["x"], call["encoder_sequence"]
        self._check_inputs(encoder_sequence, call["cache"], call.get("cache_index", 0))
        past, memory = call["cache"] or (None, None)
        results, new_past = self._sequence_spec(past, call)
        if self.cross_attention is not None:
            spec = self.cross_attention.compute_output_spec(
                x,
                encoder_sequence,
                padding_mask=call["encoder_padding_mask"],
                attention_mask=call["encoder_attention_mask"],
                cache=memory,
                return_attention_scores=call["return_attention_scores"],
            )
            results += as_tuple(spec)[1:]
        if past is not None:
            memory = memory and tuple(map(symbol_like, memory))
            results.append((new_past, memory))
        return results[0] if len(results) == 1 else tuple(results)

    def _build_cross_attention(self, x_shape, encoder_sequence_shape):
        # Created here, since only a call tells whether there is an encoder.
        self.cross_attention = None
        if encoder_sequence_shape is not None:
            self.cross_attention = self._attention(
                "cross_attention", nth_seed(self.seed, 3)
            )
            self.cross_attention.build(x_shape, encoder_sequence_shape)
            self.cross_attention_norm = self._norm("cross_attention_norm")
            self.cross_attention_norm.build(x_shape)

    def _attend_and_feed(self, x, real_mask, encoder, options):
        """Applies cross-attention, if the block has it, and feed-forward.

        Args:
            x: float `(B, T, D)`.
            real_mask: bool `(B, T)` or None, True where x is real.
            encoder: the encoder sequence, its padding mask, its attention
                mask, and its keys and values; each may be None.
            options: dict of `return_attention_scores` and `training`.

        Returns:
            float `(B, T, D)`, and a list of the weights `(B, H, T, S)`, empty
            if they are not returned.
        """
        weights = []
        if self.cross_attention is not None:
            sequence, padding_mask, attention_mask, memory = encoder
            if padding_mask is None and attention_mask is None:
                padding_mask = implicit_mask(sequence)
            x, weights = self._residual(
                self.cross_attention,
                self.cross_attention_norm,
                x,
                real_mask,
                value=sequence,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                cache=memory,
                **options,
            )
        training = options["training"]
        feed_forward = self.feed_forward, self.feed_forward_norm
        x, _ = self._residual(*feed_forward, x, real_mask, training=training)
        return x, weights

    def _sequence_spec(self, past, call):
        """Lists x and the weights of self-attention; and its new cache."""
        names = ("padding_mask", "attention_mask", "cache_index")
        names += ("return_attention_scores",)
        spec = self.self_attention.compute_output_spec(
            call["x"], cache=past, **{name: call[name] for name in names}
        )
        results = list(as_tuple(spec))
        return results, None if past is None else results.pop()

    def _check_inputs(self, encoder_sequence, cache, cache_index):
        if cache is not None and cache_index is None:
            raise ValueError(
                "`cache_index` must be set with a cache; got cache_index=None. Pass "
                "the slot of `x[:, 0]`."
            )
        # With a cache the encoder's keys and values stand for its sequence.
        memory = None if cache is None else cache[1]
        has_encoder = encoder_sequence is not None or memory is not None
        if has_encoder != (self.cross_attention is not None):
            build, call = ("without", "with") if has_encoder else ("with", "without")
            raise ValueError(
                "`encoder_sequence` must be passed always or never; this block was "
                f"built {build} one and is called {call} one. Use two blocks."
            )
