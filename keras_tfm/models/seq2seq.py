"""The encoder-decoder Transformer, as one functional Keras model."""

import functools
import numbers
import types

import keras
from keras import ops

from keras_tfm.layers.blocks import TransformerDecoder, TransformerEncoder
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.position_factory import is_relative
from keras_tfm.layers.positions import LearnedPositions
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.layers.recurrence import SSRUDecoder
from keras_tfm.models import stacks


@keras.saving.register_keras_serializable(package="keras_tfm")
class Transformer(keras.Model):
    """Gives the logits of each next target token, from source and target ids.

    A plain functional `keras.Model`: `compile`, `fit`, `save`, `export`. Its
    inputs are `{"source_ids": (B, S), "target_ids": (B, T)}` of integers, 0 is
    padding; `target_ids` begin with the start token, and logits at position t
    are of token t + 1. A search drives it through `begin` and `step`.

    Args:
        vocabulary_size: int, V of the source, and of the target too unless
            `target_vocabulary_size` is given.
        num_layers: int, or pair of ints: N of encoder and decoder.
        embedding_dim: int, D.
        intermediate_dim: int, F.
        num_heads: int, H.
        target_vocabulary_size: int or None. Needs `tie` other than "all".
        key_dim: int or None, d_k. None: D / H.
        value_dim: int or None, d_v. None: `key_dim`.
        tie: `"all"`: one table for source, target and output, as in the
            paper; `"target"`: one for target and output; `"inputs"`: one for
            source and target; None: three. Where positions are learned, or
            embedded tokens normalised, source and target have those apart.
        positions: `"sinusoidal"`, `"learned"`, or a layer of positions, added
            to embedded tokens; or `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a
            layer of `RelativePositions`, inside self-attention; or None.
        sequence_length: int or None, in tokens. For learned positions.
        scale_embedding: bool or None. Embedded tokens are multiplied by
            sqrt(D); None: where positions are fixed.
        normalize_embedding: bool. A normalisation of embedded tokens, before
            their dropout.
        logits_bias: bool. A bias is added to the logits.
        dropout: float in [0, 1), of residuals and of embedded tokens.
        attention_dropout: float in [0, 1), of the attention weights.
        activation_dropout: float in [0, 1), inside the feed-forward networks.
        activation: Keras activation of the feed-forward networks.
        gated: bool. Gated linear units in the feed-forward networks.
        normalize_first: bool. Pre-norm blocks, and a normalisation at the end
            of each stack; else post-norm, as in the paper.
        normalization: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`.
        epsilon: float > 0, of the normalisations.
        use_bias: bool. Projections inside the blocks add a bias.
        score: `"scaled_dot"` or another of `layers.AttentionScore`.
        num_key_value_heads: int or None, G, see `layers.MultiHeadAttention`.
        decoder_recurrence: None, or `"ssru"`: the decoder hears its past by
            `layers.SSRU` and not by self-attention, so that a step costs as
            much at every length.
        **kwargs: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        ValueError: sizes that do not fit each other, an unknown `tie` or
            recurrence, two vocabularies under one table, or a recurrence and
            positions inside self-attention.

    Source: Vaswani et al. 2017. https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers=6,
        embedding_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        target_vocabulary_size=None,
        key_dim=None,
        value_dim=None,
        tie="all",
        positions="sinusoidal",
        sequence_length=None,
        scale_embedding=None,
        normalize_embedding=False,
        logits_bias=False,
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
        decoder_recurrence=None,
        **kwargs,
    ):
        _check_recurrence(decoder_recurrence, positions)
        stacks.check_tie(tie, vocabulary_size, target_vocabulary_size)
        block = stacks.of_block(locals())
        policy = stacks.policy_of(kwargs)
        settings = {
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
        parts = _parts(settings, block, policy)
        inputs, hidden, logits = _network(parts)
        super().__init__(inputs=inputs, outputs=logits, **kwargs)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.source_embedding, self.target_embedding = parts["embeddings"]
        self.encoder_blocks, self.decoder_blocks = parts["blocks"]
        self.encoder_norm, self.decoder_norm = parts["norms"]
        self.projection = parts["projection"]
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        # Not a dict, in which Keras would find a layer of positions and take it
        # for one of the model's.
        self.config = types.MappingProxyType({**settings, **block})
        self._hidden = hidden

    def hidden_model(self):
        """Gives the same network without its last projection.

        It shares every layer with this model. `ProjectedCrossentropy` trains
        it without ever holding `(B, T, V)` logits, where those are tied to
        the target embedding; a projection of its own (`tie` None or
        "inputs") is not reached from here, and stays as it is.

        Returns:
            `keras.Model` from the same inputs to float `(B, T, D)`.
        """
        inputs = {tensor.name: tensor for tensor in self.inputs}
        model = keras.Model(inputs, self._hidden, name=f"{self.name}_hidden")
        model.dtype_policy = self.dtype_policy  # As above, for `compile`.
        return model

    # The optional arguments of `begin`, see `decode.Decodable`.
    begin_options = ("return_attention", "candidates", "read_length")

    def begin(
        self,
        source_ids,
        max_length,
        beam_size=1,
        return_attention=False,
        candidates=None,
        read_length=None,
    ):
        """Encodes the source once and makes room for decoding.

        Args:
            source_ids: integer `(B, S)`.
            max_length: int >= 1, or scalar int tensor, in tokens. The most
                `step` will be called before `extend`.
            beam_size: int >= 1, K: hypotheses for each source.
            return_attention: bool. Let each step tell what it attends to.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                wants; or None for all.
            read_length: int or None: the tokens of each row that are read;
                those that follow, up to S, are padding in all rows. None: S.

        Returns:
            The cache, a dictionary. `"memory"` holds keys and values of
            cross-attention and belongs to the source: it is not repeated for
            the beams. `"past"` has a slot for each step and beam, and what is
            written stays where it is. `"beams"` follows the hypotheses: which
            slots are ancestors of each, bool `(B, K, max_length * K)`; or the
            states of a recurrence, each `(B, K, D)`, and no past. If
            asked for, `"attention"` is what the last step attended to, float
            `(B, K, S)`: the weights of the last block, mean of its heads. With
            candidates, `"projection"` has their columns, a tuple of float
            `(B, D, C)`, and `(B, 1, C)` where there is a bias.

        Raises:
            ValueError: `max_length` or S past a table of learned positions; or
                candidates, and an untied projection in int8.
        """
        positions = self.target_embedding.position_layer
        if isinstance(positions, LearnedPositions) and isinstance(max_length, int):
            positions.check_length(max_length)
        mask = padding_mask(source_ids)
        batch_size, slots = ops.shape(source_ids)[0], max_length * beam_size
        blocks = self.decoder_blocks
        cache = {"memory": self._memory(source_ids, read_length), "memory_mask": mask}
        if self.config["decoder_recurrence"]:
            states = [b.empty_cache(batch_size, beam_size) for b in blocks]
            cache["beams"] = {"states": states}
        else:
            cache["past"] = [b.empty_cache(batch_size, slots) for b in blocks]
            ancestors = ops.zeros((batch_size, beam_size, slots), "bool")
            cache["beams"] = {"ancestors": ancestors}
        if return_attention:
            shape = (batch_size, beam_size, ops.shape(source_ids)[1])
            cache["attention"] = ops.zeros(shape, "float32")
        if candidates is not None:
            table = self.target_embedding
            cache["projection"] = stacks.columns(table, self.projection, candidates)
        return cache

    @property
    def supports_row_steps(self):
        """bool. `step` takes an index for each row, see there."""
        return not is_relative(self.config["positions"])

    def extend(self, cache, max_length):
        """Makes room for more steps.

        Args:
            cache: from `begin` or `step`.
            max_length: int, or scalar int tensor, in tokens, no less than
                there is room for.

        Returns:
            The cache with that room.

        Raises:
            ValueError: `max_length` past a table of learned positions.
        """
        positions = self.target_embedding.position_layer
        if isinstance(positions, LearnedPositions) and isinstance(max_length, int):
            positions.check_length(max_length)
        if self.config["decoder_recurrence"]:
            return cache  # States need no room.
        ancestors = cache["beams"]["ancestors"]
        slots = max_length * ancestors.shape[1]
        more = [[0, 0], [0, 0], [0, slots - ops.shape(ancestors)[2]]]
        past = zip(self.decoder_blocks, cache["past"], strict=True)
        return {
            **cache,
            "past": [block.extend_cache(one, slots) for block, one in past],
            "beams": {"ancestors": ops.pad(ancestors, more)},
        }

    def step(self, ids, index, cache):
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis.
            index: int or scalar int tensor, from 0: which step this is. Or
                int `(B,)`, which step of each row: then the cache has
                `"slot"`, scalar int32, where all of them are written, and
                after the last slot comes the first again; a row keeps so many
                steps as there is room for. Not with relative positions.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy they
            are float32: near 20 a bfloat16 is a multiple of 1/8, too rough to
            tell likely tokens apart. In PyTorch's inference mode the cache
            given is written over.
        """
        batch_size, beam_size = ops.shape(ids)[0], ids.shape[1]
        # The beams of a source stand at one position: they are embedded as
        # rows and then attend as if they were K queries of one sequence.
        offset = ops.repeat(index, beam_size) if _each(index) else index
        x = self.target_embedding(ops.reshape(ids, (-1, 1)), offset=offset)
        x = ops.reshape(x, (batch_size, beam_size, x.shape[-1]))  # (B, K, D)
        if self.config["decoder_recurrence"]:
            pasts, places = cache["beams"]["states"], {}
        else:
            ancestors, places = self._places(cache, index, batch_size, beam_size)
            pasts = cache["past"]
        written, last = [], len(self.decoder_blocks) - 1
        for i, block in enumerate(self.decoder_blocks):
            x, *scores, (past, _) = block(
                x,
                encoder_padding_mask=cache["memory_mask"],
                cache=(pasts[i], cache["memory"][i]),
                **places,
                return_attention_scores="attention" in cache and i == last,
            )
            written.append(past)
        x = stacks.normalized(self.decoder_norm, x)
        if self.config["decoder_recurrence"]:
            cache = {**cache, "beams": {"states": written}}
        else:
            cache = {**cache, "past": written, "beams": {"ancestors": ancestors}}
            if "slot" in cache:
                room = ops.shape(ancestors)[-1] // beam_size
                cache["slot"] = (cache["slot"] + 1) % room
        if "attention" in cache:
            attention = ops.cast(scores[-1], "float32")  # (B, H, K, S)
            cache["attention"] = ops.mean(attention, axis=1)
        table, columns = self.target_embedding, cache.get("projection")
        return stacks.step_logits(x, table, self.projection, columns), cache

    def encode(self, source_ids):
        """Runs the encoder.

        Args:
            source_ids: integer `(B, S)`.

        Returns:
            float `(B, S, D)`.
        """
        return self._encode(source_ids)[0]

    def attention_maps(self, source_ids, target_ids):
        """Gives the attention weights of every layer.

        Args:
            source_ids: integer `(B, S)`.
            target_ids: integer `(B, T)`, with the start token.

        Returns:
            A dictionary of lists with one tensor a layer: `"encoder"`
            `(B, H, S, S)`, `"decoder"` `(B, H, T, T)`, without any where a
            recurrence stands, and `"cross"` `(B, H, T, S)`.
        """
        memory, encoder = self._encode(source_ids, return_attention_scores=True)
        x = self.target_embedding(target_ids)
        decoder, cross = [], []
        for block in self.decoder_blocks:
            x, *self_scores, cross_scores = block(
                x,
                memory,
                padding_mask=padding_mask(target_ids),
                encoder_padding_mask=padding_mask(source_ids),
                return_attention_scores=True,
            )
            decoder += self_scores
            cross.append(cross_scores)
        return {"encoder": encoder, "decoder": decoder, "cross": cross}

    def as_logits(self, hidden):
        """Projects the decoder's output to the target vocabulary.

        Args:
            hidden: float `(..., D)`.

        Returns:
            float `(..., V)`.
        """
        if self.projection is not None:
            return self.projection(hidden)
        return self.target_embedding.as_logits(hidden)

    def enable_lora(self, rank):
        """Freezes the model but for low-rank updates of queries and values.

        Args:
            rank: int >= 1, of the updates.

        Source: Hu et al. 2021, section 4.2. https://arxiv.org/abs/2106.09685
        """
        attentions = [b.self_attention for b in self.encoder_blocks]
        for block in self.decoder_blocks:
            attentions.append(block.cross_attention)
            if not self.config["decoder_recurrence"]:
                attentions.append(block.self_attention)
        for weight in self.weights:
            weight.trainable = False
        for attention in attentions:
            attention.query_dense.enable_lora(rank)
            attention.value_dense.enable_lora(rank)

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

    def _memory(self, source_ids, read_length):
        """Keys and values of cross-attention, of S slots."""
        read = source_ids if read_length is None else source_ids[:, :read_length]
        memory = self.encode(read)
        attentions = [block.cross_attention for block in self.decoder_blocks]
        pairs = [attention.keys_and_values(memory) for attention in attentions]
        if read_length is None:
            return pairs
        pairs, length = zip(attentions, pairs, strict=True), ops.shape(source_ids)[1]
        return [attention.extend_cache(pair, length) for attention, pair in pairs]

    def _places(self, cache, index, batch_size, beam_size):
        """Which slots each hypothesis attends to, and what blocks are told."""
        slot = cache.get("slot", index) * beam_size
        own = ops.broadcast_to(
            ops.eye(beam_size, dtype="bool"), (batch_size, beam_size, beam_size)
        )
        ancestors = ops.slice_update(cache["beams"]["ancestors"], (0, 0, slot), own)
        places = {
            "attention_mask": ancestors,
            "use_causal_mask": False,
            "cache_index": slot,
        }
        if is_relative(self.config["positions"]):
            slots = ops.arange(ops.shape(ancestors)[-1])
            places["query_positions"] = ops.broadcast_to(index, (beam_size,))
            places["key_positions"] = slots // beam_size
        return ancestors, places

    def _encode(self, source_ids, return_attention_scores=False):
        x, maps = self.source_embedding(source_ids), []
        for block in self.encoder_blocks:
            x = block(
                x,
                padding_mask=padding_mask(source_ids),
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                x, scores = x
                maps.append(scores)
        x = stacks.normalized(self.encoder_norm, x, padding_mask(source_ids))
        return x, maps


def _each(index):
    """Whether each row has an index of its own."""
    return not isinstance(index, int) and len(index.shape) > 0


def _check_recurrence(recurrence, positions):
    if recurrence not in (None, "ssru"):
        raise ValueError(
            f"`decoder_recurrence` is None or 'ssru'. Received: {recurrence!r}."
        )
    if recurrence and is_relative(positions):
        raise ValueError(
            "A recurrence in the decoder has no self-attention for positions to stand "
            f"in. Received: positions={positions!r}, decoder_recurrence="
            f"{recurrence!r}. Pass positions that are added to tokens."
        )


def _parts(settings, block, policy):
    """Makes the layers of the network."""
    depths = settings["num_layers"]
    encoder_depth, decoder_depth = (
        (depths, depths) if isinstance(depths, numbers.Integral) else depths
    )

    def embedding(size, name, **others):
        kind = block["normalization"] if settings["normalize_embedding"] else None
        return stacks.embedding(
            size,
            settings,
            policy,
            name,
            block["dropout"],
            scale=settings["scale_embedding"],
            normalization=kind,
            epsilon=block["epsilon"],
            **others,
        )

    embeddings, projection = stacks.tied(
        settings, embedding, policy, settings["logits_bias"]
    )
    stack = functools.partial(
        stacks.blocks, settings=block, positions=settings["positions"], policy=policy
    )
    decoder = SSRUDecoder if settings["decoder_recurrence"] else TransformerDecoder
    return {
        "embeddings": embeddings,
        "blocks": (
            stack(TransformerEncoder, encoder_depth, name="encoder"),
            stack(decoder, decoder_depth, name="decoder"),
        ),
        "norms": tuple(
            stacks.last_norm(block, policy, f"{name}_norm")
            for name in ("encoder", "decoder")
        ),
        "projection": projection,
    }


def _network(parts):
    """Joins the layers: inputs, the decoder's output, logits."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    source_embedding, target_embedding = parts["embeddings"]
    encoder_blocks, decoder_blocks = parts["blocks"]
    encoder_norm, decoder_norm = parts["norms"]

    source_mask = padding_mask(source_ids)
    memory = source_embedding(source_ids)
    for block in encoder_blocks:
        memory = block(memory, padding_mask=source_mask)
    memory = stacks.normalized(encoder_norm, memory, source_mask)

    target_mask = padding_mask(target_ids)
    hidden = target_embedding(target_ids)
    for block in decoder_blocks:
        hidden = block(
            hidden,
            memory,
            padding_mask=target_mask,
            encoder_padding_mask=source_mask,
        )
    hidden = stacks.normalized(decoder_norm, hidden, target_mask)
    project = parts["projection"] or target_embedding.as_logits
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return inputs, hidden, project(hidden)
