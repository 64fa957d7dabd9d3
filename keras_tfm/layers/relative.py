"""Positions that attention itself looks at: how far a key is from a query.

They stand inside `MultiHeadAttention`, which calls their `turn`, `bias` and
`heard`; a kind implements those that it needs. Positions are given as numbers,
so that they are right for a cache too, whose slots may lie in any order; and
as `(B, T)` where the rows of a batch stand elsewhere, as after prompts of
different lengths.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.initialization import fresh

KINDS = ("rotary", "alibi", "t5", "shaw")


class RelativePositions(keras.layers.Layer):
    """What attention asks about positions; base of the kinds.

    Args:
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        What `bias` gives.
    """

    has_bias = False  # on the scores: attention is then not fused

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def build_for(self, queries_shape, value_dim):
        """Makes the weights, if they are not there.

        Args:
            queries_shape: `(B, T, H, d_k)`.
            value_dim: int, d_v.
        """
        if not self.built:
            self.build(queries_shape)

    def call(self, queries, query_positions, key_positions):
        return self.bias(queries, query_positions, key_positions)

    def compute_output_shape(
        self, queries_shape, query_positions_shape, key_positions_shape
    ):
        batch_size, length, heads, _ = queries_shape
        return (batch_size, heads, length, key_positions_shape[-1])

    def turn(self, x, positions):
        """Changes queries, or keys, by where they stand.

        Args:
            x: float `(B, T, H, d_k)`.
            positions: int `(T,)` or `(B, T)`.

        Returns:
            The same shape.
        """
        return x

    def bias(self, queries, query_positions, key_positions):
        """Gives what is added to the scores.

        Args:
            queries: float `(B, T, H, d_k)`, scaled as for the scores.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(B, H, T, S)`, or with a first axis of 1; or None.
        """
        return

    def heard(self, weights, query_positions, key_positions):
        """Gives what is added to the weighted values.

        Args:
            weights: float `(B, H, T, S)`.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float `(B, H, T, d_v)`, or None.
        """
        return

    def get_config(self):
        return super().get_config()


@keras.saving.register_keras_serializable(package="keras_tfm")
class RotaryPositions(RelativePositions):
    """Turns pairs of channels by an angle that grows with the position.

    The product of a query and a key then hangs on how far they are apart and
    not on where they stand. Channels 2i and 2i + 1 turn by
    `position * max_period^(-2i / d)`, as in the paper (`"interleaved"`);
    GPT-NeoX and LLaMA pair channel i with i + d/2 (`"halves"`).

    Args:
        style: `"interleaved"` (the paper's) or `"halves"`.
        max_period: float > 1, in tokens.
        rotary_dim: even int or None: d, the first channels of each head, which
            turn; the others stay. None: all.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, H, d_k)`, queries or keys.
        positions: int `(T,)` or `(B, T)`, in tokens, or None for 0 to T - 1.

    Returns:
        float `(B, T, H, d_k)`.

    Raises:
        ValueError: an unknown style, a period of 1 or less, or a number of
            channels that is odd or more than there are.

    Source: Su et al. 2021, section 3.2. https://arxiv.org/abs/2104.09864
    """

    def __init__(
        self, style="interleaved", max_period=10_000.0, rotary_dim=None, **kwargs
    ):
        super().__init__(**kwargs)
        if style not in ("interleaved", "halves"):
            raise ValueError(
                "Channels that turn together are 'interleaved' (the paper's layout) or "
                f"in 'halves' (GPT-NeoX's). Received: style={style!r}."
            )
        if max_period <= 1:
            raise ValueError(
                f"`max_period` must be above 1. Received: max_period={max_period}."
            )
        self.style = style
        self.max_period = max_period
        self.rotary_dim = rotary_dim

    def build(self, queries_shape):
        width = queries_shape[-1]
        turning = width if self.rotary_dim is None else self.rotary_dim
        if turning % 2 or not 0 < turning <= width:
            raise ValueError(
                "Channels turn in pairs, so their number must be even and no more than "
                f"a head has. Received: rotary_dim={self.rotary_dim}, d_k={width}. "
                "Choose another `key_dim` or `rotary_dim`."
            )
        self._turning = turning

    def call(self, x, positions=None):
        if positions is None:
            positions = ops.arange(ops.shape(x)[1])
        return self.turn(x, positions)

    def compute_output_shape(self, x_shape, positions_shape=None):
        return tuple(x_shape)

    def turn(self, x, positions):
        """Turns queries, or keys, by where they stand.

        Args:
            x: float `(B, T, H, d_k)`.
            positions: int `(T,)` or `(B, T)`.

        Returns:
            The same shape and dtype; computed in float32, as half precision
            cannot tell position 2049 from 2048.
        """
        pairs = self._turning // 2
        speed = self.max_period ** (-np.arange(pairs, dtype="float64") / pairs)
        speed = ops.convert_to_tensor(speed, dtype="float32")
        angle = ops.cast(positions, "float32")[..., None, None] * speed
        cos, sin = ops.cos(angle), ops.sin(angle)  # (T, 1, d/2), or (B, T, 1, d/2)
        turning = ops.cast(x[..., : self._turning], "float32")
        if self.style == "halves":
            first, second = turning[..., :pairs], turning[..., pairs:]
        else:
            shape = (*ops.shape(x)[:3], pairs, 2)
            turning = ops.reshape(turning, shape)
            first, second = turning[..., 0], turning[..., 1]
        turned = [first * cos - second * sin, second * cos + first * sin]
        if self.style == "halves":
            turned = ops.concatenate(turned, axis=-1)
        else:
            turned = ops.stack(turned, axis=-1)
            turned = ops.reshape(turned, (*ops.shape(x)[:3], self._turning))
        turned = ops.cast(turned, x.dtype)
        if self._turning == x.shape[-1]:
            return turned
        return ops.concatenate([turned, x[..., self._turning :]], axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "style": self.style,
            "max_period": self.max_period,
            "rotary_dim": self.rotary_dim,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class AlibiPositions(RelativePositions):
    """Takes a fixed share of the distance from each score.

    Of H heads, a power of two, head h from 1 has the slope `2^(-8h / H)`; for
    other numbers those of the next lower power come first, then every other
    one of the next higher. Keys after the query, which the paper has none of,
    are as far as those before it.

    Args:
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(1, H, T, S)`.

    Source: Press et al. 2022, section 3. https://arxiv.org/abs/2108.12409
    """

    has_bias = True

    def build(self, queries_shape):
        heads = queries_shape[2]
        lower = 2 ** int(math.log2(heads))

        def slopes(count):
            return [2 ** (-8 * (h + 1) / count) for h in range(count)]

        self._slopes = slopes(lower) + slopes(2 * lower)[::2][: heads - lower]

    def compute_output_shape(
        self, queries_shape, query_positions_shape, key_positions_shape
    ):
        length, heads = queries_shape[1:3]
        shapes = (query_positions_shape, key_positions_shape)
        rows = [shape[0] for shape in shapes if len(shape) == 2]
        return (*(rows[:1] or [1]), heads, length, key_positions_shape[-1])

    def bias(self, queries, query_positions, key_positions):
        """Gives minus the slope times the distance.

        Args:
            queries: not looked at.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(1, H, T, S)`.
        """
        distance = ops.abs(_distances(query_positions, key_positions))
        slopes = ops.convert_to_tensor(self._slopes, dtype="float32")
        return -slopes[:, None, None] * ops.cast(distance, "float32")[:, None]


@keras.saving.register_keras_serializable(package="keras_tfm")
class T5Positions(RelativePositions):
    """Adds to each score a learned number for the bucket of its distance.

    Half of the buckets are one distance each, the other half grow
    logarithmically up to `max_distance`; what is farther shares the last. Each
    head has its own numbers. T5 shares them among all layers of a stack, as
    `Transformer(positions="t5")` does. Blocks that are given one layer share
    it too, but Keras loads a functional model of them from its weights alone.

    Args:
        num_buckets: int >= 2, if bidirectional even and >= 4.
        max_distance: int, in tokens, more than the buckets of one distance.
        bidirectional: bool. Keys after the query have half of the buckets; else
            they share that of distance 0, as a causal mask hides them. A model
            chooses this itself: True in its encoder, False in its decoder.
        initializer: Keras initializer of the numbers.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(1, H, T, S)`.

    Raises:
        ValueError: buckets and distance that do not fit each other.

    Source: Raffel et al. 2020, section 2.1. https://arxiv.org/abs/1910.10683
    """

    has_bias = True

    def __init__(
        self,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        initializer="random_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        one_way = num_buckets // 2 if bidirectional else num_buckets
        odd = bidirectional and num_buckets % 2
        if one_way < 2 or odd or max_distance <= one_way // 2:
            raise ValueError(
                "There are two buckets or more in each direction, and they reach "
                f"farther than one token each. Received: num_buckets={num_buckets}, "
                f"max_distance={max_distance}, bidirectional={bidirectional}."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)

    def build(self, queries_shape):
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, queries_shape[2]),
            initializer=fresh(self.initializer),
            autocast=False,  # scores are float32 whatever is calculated in
        )

    compute_output_shape = AlibiPositions.compute_output_shape

    def bias(self, queries, query_positions, key_positions):
        """Looks the numbers up.

        Args:
            queries: not looked at.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(1, H, T, S)`.
        """
        distance = _distances(query_positions, key_positions)
        after = ops.maximum(distance, 0)
        before = ops.maximum(-distance, 0)
        buckets = ops.convert_to_tensor(self._buckets(), dtype="int32")
        far = self.max_distance
        bucket = ops.take(buckets, ops.minimum(before, far), axis=0)
        if self.bidirectional:
            later = ops.take(buckets, ops.minimum(after, far), axis=0)
            later = later + self.num_buckets // 2
            bucket = ops.where(distance > 0, later, bucket)
        bias = ops.take(ops.convert_to_tensor(self.table), bucket, axis=0)
        return ops.transpose(ops.cast(bias, "float32"), (0, 3, 1, 2))

    def _buckets(self):
        """The bucket of each distance, in float32 as T5 counts them."""
        count = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        exact = count // 2
        distance = np.arange(self.max_distance + 1)
        share = np.log(np.maximum(distance, 1).astype("float32") / np.float32(exact))
        share = share / np.float32(math.log(self.max_distance / exact))
        large = exact + (share * np.float32(count - exact)).astype("int32")
        return np.where(distance < exact, distance, np.minimum(large, count - 1))

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class ShawPositions(RelativePositions):
    """Adds a learned vector of the distance to each key and to each value.

    Distances are clipped to `max_distance` in both directions. The heads of a
    layer share the vectors, as in tensor2tensor; each layer has its own.

    Args:
        max_distance: int >= 1, in tokens: the paper's k.
        initializer: Keras initializer of the vectors.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        queries: float `(B, T, H, d_k)`, scaled as for the scores.
        query_positions: int `(T,)` or `(B, T)`, in tokens.
        key_positions: int `(S,)` or `(B, S)`, in tokens.

    Returns:
        float32 `(B, H, T, S)`: product of each query and the vector of each
        key's distance.

    Raises:
        ValueError: `max_distance` below 1.

    Source: Shaw et al. 2018, section 3. https://arxiv.org/abs/1803.02155
    """

    has_bias = True

    def __init__(self, max_distance=16, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        if max_distance < 1:
            raise ValueError(
                "`max_distance` must be 1 or more. Received: "
                f"max_distance={max_distance}."
            )
        self.max_distance = max_distance
        self.initializer = keras.initializers.get(initializer)
        self._value_dim = None

    def build_for(self, queries_shape, value_dim):
        """Makes the weights, if they are not there.

        Args:
            queries_shape: `(B, T, H, d_k)`.
            value_dim: int, d_v.
        """
        self._value_dim = value_dim
        super().build_for(queries_shape, value_dim)

    def build(self, queries_shape):
        count = 2 * self.max_distance + 1
        widths = {"keys": queries_shape[-1]}
        widths["values"] = self._value_dim or queries_shape[-1]
        self.key_table, self.value_table = (
            self.add_weight(
                name=name,
                shape=(count, width),
                initializer=fresh(self.initializer),
            )
            for name, width in widths.items()
        )

    def bias(self, queries, query_positions, key_positions):
        """Gives the product of each query and the vector of each distance.

        Args:
            queries: float `(B, T, H, d_k)`, scaled as for the scores.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float32 `(B, H, T, S)`.
        """
        vectors = self._vectors(self.key_table, query_positions, key_positions)
        vectors = ops.cast(vectors, queries.dtype)
        if vectors.shape[0] == 1:
            scores = ops.einsum("bthd,tsd->bhts", queries, vectors[0])
        else:
            scores = ops.einsum("bthd,btsd->bhts", queries, vectors)
        return ops.cast(scores, "float32")

    def heard(self, weights, query_positions, key_positions):
        """Gives the weighted vectors of the values' distances.

        Args:
            weights: float `(B, H, T, S)`.
            query_positions: int `(T,)` or `(B, T)`.
            key_positions: int `(S,)` or `(B, S)`.

        Returns:
            float `(B, H, T, d_v)`.
        """
        vectors = self._vectors(self.value_table, query_positions, key_positions)
        vectors = ops.cast(vectors, weights.dtype)
        if vectors.shape[0] == 1:
            return ops.einsum("bhts,tsd->bhtd", weights, vectors[0])
        return ops.einsum("bhts,btsd->bhtd", weights, vectors)

    def _vectors(self, table, query_positions, key_positions):
        """float `(1, T, S, d)`, or `(B, T, S, d)`."""
        distance = _distances(query_positions, key_positions)
        place = ops.clip(distance, -self.max_distance, self.max_distance)
        return ops.take(ops.convert_to_tensor(table), place + self.max_distance, axis=0)

    def get_config(self):
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def relative_positions(kind, bidirectional=True, **kwargs):
    """Makes a layer of relative positions from its name.

    Args:
        kind: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`; or a layer, or the config
            of one, or None.
        bidirectional: bool. Of T5's, where they are named.
        **kwargs: of the layer that a name stands for.

    Returns:
        `RelativePositions`, or None.

    Raises:
        ValueError: something else.
    """
    if isinstance(kind, dict):
        kind = keras.saving.deserialize_keras_object(kind)
    if kind is None or isinstance(kind, RelativePositions):
        return kind
    classes = (RotaryPositions, AlibiPositions, T5Positions, ShawPositions)
    if kind not in KINDS:
        raise ValueError(
            f"Positions inside attention are one of {KINDS}, a layer of "
            f"`RelativePositions`, or None. Received: {kind!r}."
        )
    if kind == "t5":
        kwargs["bidirectional"] = bidirectional
    return dict(zip(KINDS, classes, strict=True))[kind](**kwargs)


def positions_config(positions):
    """Serialises a layer of positions for the config of the one around it.

    Args:
        positions: `RelativePositions`, or None.

    Returns:
        dict, or None. Without what it was built for, of which the layer around
        it knows more than Keras.
    """
    if positions is None:
        return None
    config = keras.saving.serialize_keras_object(positions)
    config.pop("build_config", None)
    return config


def is_relative(kind):
    """Tells positions inside attention from those added to tokens.

    Args:
        kind: str, layer or None.

    Returns:
        bool.
    """
    return isinstance(kind, RelativePositions) or kind in KINDS


def of_blocks(positions, count, bidirectional, dtype=None):
    """Gives each block of a stack its layer of positions.

    Each is made anew from the settings of the one given; `T5Positions` are
    shared by the stack, as in T5.

    Args:
        positions: `RelativePositions`, or None.
        count: int, blocks.
        bidirectional: bool. Keys after the query are attended to.
        dtype: dtype policy of the layers.

    Returns:
        List of layers, or of None.

    Raises:
        ValueError: the layer has weights, which none of the new ones would.
    """
    if positions is None:
        return [None] * count
    if positions.weights:
        raise ValueError(
            "Every block makes a layer of positions of its own, from the settings of "
            f"the one it is given. Received: positions={positions!r}, which has "
            "weights. Give a new layer, and set the weights in the model."
        )
    config = {**positions.get_config(), "dtype": dtype}
    if isinstance(positions, T5Positions):
        config["bidirectional"] = bidirectional
        return [type(positions).from_config(config)] * count
    return [type(positions).from_config(config) for _ in range(count)]


def _distances(query_positions, key_positions):
    """int32 `(1, T, S)` or `(B, T, S)`: how far keys are after queries."""

    def by_rows(positions):
        positions = ops.cast(positions, "int32")
        return positions if len(positions.shape) == 2 else positions[None]

    query_positions, key_positions = by_rows(query_positions), by_rows(key_positions)
    return key_positions[:, None, :] - query_positions[:, :, None]
