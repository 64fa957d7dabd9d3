"""The decoder alone, a language model, as one functional Keras model."""

import types

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.positions import LearnedPositions
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.models import stacks


@keras.saving.register_keras_serializable(package="keras_tfm")
class CausalLM(keras.Model):
    """Gives the logits of each next token of a text.

    A plain functional `keras.Model` from `{"token_ids": (B, T)}` of integers, 0
    is padding at the end, to float `(B, T, V)`: logits at position t are of
    token t + 1. A search takes prompts where a translator takes sources, and
    continues them; as texts in training do, a prompt begins with the start
    token.

    Args:
        vocabulary_size: int >= 1, V.
        num_layers: int, N.
        embedding_dim: int, D.
        intermediate_dim: int, F.
        num_heads: int, H.
        tie: bool. One table for tokens and logits.
        positions: as of `Transformer`.
        sequence_length: int or None, in tokens. For learned positions.
        logits_bias: bool. A bias is added to the logits.
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

    Source: Liu et al. 2018, section 4.2.3, https://arxiv.org/abs/1801.10198;
    pre-norm, learned positions: Radford et al. 2019, section 2.3.
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        embedding_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        tie=True,
        positions="rotary",
        sequence_length=None,
        logits_bias=False,
        key_dim=None,
        value_dim=None,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="gelu",
        gated=False,
        normalize_first=True,
        normalization="layer_norm",
        epsilon=1e-5,
        use_bias=True,
        score="scaled_dot",
        num_key_value_heads=None,
        **kwargs,
    ):
        block = stacks.of_block(locals())
        policy = stacks.policy_of(kwargs)
        settings = {
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
            settings,
            policy,
            "embedding",
            dropout,
            logits_bias=logits_bias and tie,
        )
        blocks = stacks.blocks(
            TransformerDecoder, num_layers, block, positions, policy, "decoder"
        )
        norm = stacks.last_norm(block, policy, "decoder_norm")
        projection = None
        if not tie:
            projection = keras.layers.Dense(
                vocabulary_size, use_bias=logits_bias, dtype=policy, name="projection"
            )
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        x, mask = embedding(token_ids), padding_mask(token_ids)
        for one in blocks:
            x = one(x, padding_mask=mask)
        x = stacks.normalized(norm, x, mask)
        logits = (projection or embedding.as_logits)(x)
        super().__init__(inputs={"token_ids": token_ids}, outputs=logits, **kwargs)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.embedding, self.blocks, self.norm = embedding, blocks, norm
        self.projection = projection
        self.vocabulary_size = self.target_vocabulary_size = vocabulary_size
        # Not a dict, in which Keras would find a layer of positions and take it
        # for one of the model's.
        self.config = types.MappingProxyType({**settings, **block})

    # The optional arguments of `begin`, see `decode.Decodable`.
    begin_options = ("return_attention", "candidates")

    def begin(
        self,
        source_ids,
        max_length,
        beam_size=1,
        return_attention=False,
        candidates=None,
    ):
        """Reads the prompts once and makes room for decoding.

        Args:
            source_ids: integer `(B, S)`: prompts, padded with 0 at their ends.
            max_length: int >= 1, or scalar int tensor, in tokens. The most
                `step` will be called before `extend`.
            beam_size: int >= 1, K: hypotheses for each prompt.
            return_attention: bool. Let each step tell what it attends to.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                wants; or None for all.

        Returns:
            The cache, a dictionary. `"past"` has a slot for each token of the
            prompt but the last, once for all beams, then one for each step and
            beam. `"last"` is what the first step reads in place of a start
            token, int `(B,)`. `"beams"` follows the hypotheses: which slots
            are ancestors of each, bool `(B, K, S + max_length * K)`. If asked
            for, `"attention"` is what the last step attended to of the prompt,
            float `(B, K, S)`: the weights of the last block, mean of its
            heads, which sum to one with those of what has been said. With
            candidates, `"projection"` has their columns, as of `Transformer`.

        Raises:
            ValueError: prompts are past a table of learned positions; or
                candidates, and an untied projection in int8.
        """
        width = ops.shape(source_ids)[1]
        batch_size = ops.shape(source_ids)[0]
        real = padding_mask(source_ids)
        lengths = ops.sum(ops.cast(real, "int32"), axis=1)  # (B,)
        before = ops.maximum(lengths - 1, 0)
        last = ops.take_along_axis(source_ids, before[:, None], axis=1)[:, 0]
        # The last token is read by the first step, which gives its logits.
        read = ops.arange(width)[None, :] < before[:, None]  # (B, S)
        x, past = self.embedding(source_ids), []
        for block in self.blocks:
            x, (written, _) = block(
                x,
                padding_mask=read,
                cache=(block.empty_cache(batch_size, width), None),
                cache_index=0,
            )
            slots = width + max_length * beam_size
            past.append(block.extend_cache(written, slots))
        ancestors = ops.repeat(read[:, None], beam_size, axis=1)
        more = [[0, 0], [0, 0], [0, max_length * beam_size]]
        cache = {
            "past": past,
            "last": last,
            "before": before,
            "prompt": source_ids,
            "beams": {"ancestors": ops.pad(ancestors, more)},
        }
        if return_attention:
            cache["attention"] = ops.zeros((batch_size, beam_size, width), "float32")
        if candidates is not None:
            columns = stacks.columns(self.embedding, self.projection, candidates)
            cache["projection"] = columns
        return cache

    def extend(self, cache, max_length):
        """Makes room for more steps.

        Args:
            cache: from `begin` or `step`.
            max_length: int, or scalar int tensor, in tokens, no less than
                there is room for.

        Returns:
            The cache with that room.
        """
        ancestors = cache["beams"]["ancestors"]
        width = ops.shape(cache["prompt"])[1]
        slots = width + max_length * ancestors.shape[1]
        more = [[0, 0], [0, 0], [0, slots - ops.shape(ancestors)[2]]]
        past = zip(self.blocks, cache["past"], strict=True)
        return {
            **cache,
            "past": [block.extend_cache(one, slots) for block, one in past],
            "beams": {"ancestors": ops.pad(ancestors, more)},
        }

    def step(self, ids, index, cache):
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis; at index
                0 the last of the prompt is read instead.
            index: int or scalar int tensor, from 0: which step this is.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy they
            are float32. A row past a table of learned positions stays at its
            last, and is worth nothing.
        """
        batch_size, beam_size = ops.shape(ids)[0], ids.shape[1]
        width, before = ops.shape(cache["prompt"])[1], cache["before"]
        slot = width + index * beam_size
        own = ops.broadcast_to(
            ops.eye(beam_size, dtype="bool"), (batch_size, beam_size, beam_size)
        )
        ancestors = ops.slice_update(cache["beams"]["ancestors"], (0, 0, slot), own)
        last = ops.cast(cache["last"], ids.dtype)[:, None]
        is_first = ops.logical_and(ops.equal(index, 0), last != 0)
        ids = ops.where(is_first, last, ids)
        # The beams of a prompt stand at one position: they are embedded as
        # rows and then attend as if they were K queries of one sequence.
        here = before + index  # (B,)
        offset = ops.repeat(here, beam_size, axis=0)
        if isinstance(self.embedding.position_layer, LearnedPositions):
            last_place = self.embedding.position_layer.sequence_length - 1
            offset = ops.minimum(offset, last_place)
        x = self.embedding(ops.reshape(ids, (-1, 1)), offset=offset)
        x = ops.reshape(x, (batch_size, beam_size, x.shape[-1]))  # (B, K, D)
        steps = ops.arange(ops.shape(ancestors)[2] - width) // beam_size
        prompt = ops.broadcast_to(ops.arange(width), (batch_size, width))
        places = ops.concatenate([prompt, before[:, None] + steps[None]], axis=1)
        here = ops.broadcast_to(here[:, None], (batch_size, beam_size))
        past, final = [], len(self.blocks) - 1
        for i, (block, one) in enumerate(zip(self.blocks, cache["past"], strict=True)):
            x, *scores, (written, _) = block(
                x,
                attention_mask=ancestors,
                use_causal_mask=False,
                cache=(one, None),
                cache_index=slot,
                query_positions=here,
                key_positions=places,
                return_attention_scores="attention" in cache and i == final,
            )
            past.append(written)
        x = stacks.normalized(self.norm, x)
        cache = {**cache, "past": past, "beams": {"ancestors": ancestors}}
        if "attention" in cache:
            scores = ops.mean(ops.cast(scores[0], "float32"), axis=1)  # (B, K, slots)
            # The last of the prompt was read, and written, by the first step.
            last = ops.sum(scores[:, :, width : width + beam_size], axis=2)
            is_last = ops.equal(ops.arange(width)[None], before[:, None])[:, None]
            of_prompt = scores[:, :, :width]
            cache["attention"] = ops.where(is_last, last[:, :, None], of_prompt)
        columns = cache.get("projection")
        return stacks.step_logits(x, self.embedding, self.projection, columns), cache

    def logits_after(self, source_ids, target_ids):
        """Gives the logits of what follows prompts.

        Args:
            source_ids: integer `(B, S)`: prompts, padded with 0 at their ends.
            target_ids: integer `(B, T)`: what follows, one place later: what
                stands first is not read.

        Returns:
            float `(B, T, V)`: at position t the logits of the token that
            `target_ids` has at t + 1.
        """
        count, width = target_ids.shape[1], source_ids.shape[1]
        target_ids = ops.cast(target_ids, source_ids.dtype)
        lengths = ops.sum(ops.cast(ops.not_equal(source_ids, 0), "int32"), axis=1)
        first = ops.maximum(lengths - 1, 0)[:, None]  # the last of the prompt
        room = ops.zeros_like(target_ids[:, 1:])
        prompts = ops.concatenate([source_ids, room], axis=1)
        place = ops.arange(width + count - 1)[None]
        own = ops.take_along_axis(
            target_ids, ops.clip(place - first, 0, count - 1), axis=1
        )
        token_ids = ops.where(place > first, own, prompts)
        if isinstance(self.embedding.position_layer, LearnedPositions):
            # What fits is padding there.
            token_ids = token_ids[:, : self.embedding.position_layer.sequence_length]
        logits = self({"token_ids": token_ids})
        wanted = first + ops.arange(count)[None]  # (B, T)
        wanted = ops.minimum(wanted, ops.shape(token_ids)[1] - 1)
        return ops.take_along_axis(logits, wanted[:, :, None], axis=1)

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
