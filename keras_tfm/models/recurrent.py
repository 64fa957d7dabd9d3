"""The recurrent encoder-decoder that the Transformer replaced."""

import numbers
import types

import keras
from keras import ops

from keras_tfm.layers.attention import Attention
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.models import stacks
from keras_tfm.models.seq2seq import Transformer

CELLS = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}
ATTENTIONS = ("additive", "multiplicative")


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentSeq2Seq(keras.Model):
    """Gives the logits of each next target token, by recurrent networks.

    A plain functional `keras.Model` with the inputs, outputs and methods of
    `Transformer`, and so trained, searched and served in the same way. The
    encoder reads the source in both directions. The decoder attends to it in
    one of two ways.

    * `"additive"`: the state of the step before attends, and the context goes
      into the cells. The hidden state is a maxout of the new state, the token
      and the context.
    * `"multiplicative"`: the new state attends. The hidden state is
      tanh(W [context; state]).

    The second lets the recurrence run over all target tokens before any
    attends, in one call of Keras, which trains faster. Attention of the first
    stands inside the recurrence.

    Departures. Both: the reset gate of a GRU follows its product, as in cuDNN;
    every state of the decoder begins as tanh(W h), h the last state of the
    backward encoder. `"additive"`: the hidden state is of the new state, as in
    equation 4 and not as in the appendix; in layers after the first, as in
    Wu et al., the first attends and all get the context. `"multiplicative"`:
    the encoder is bidirectional, and the hidden state is not fed back.

    Args:
        vocabulary_size: int, V of the source, and of the target too unless
            `target_vocabulary_size` is given.
        num_layers: int, or pair of ints: N of encoder and decoder.
        embedding_dim: int, D, and width of the hidden state.
        units: int, width of each state; that of the encoder's output is twice
            it.
        cell: `"gru"` or `"lstm"`.
        attention: `"additive"` or `"multiplicative"`.
        target_vocabulary_size: int or None. Needs `tie` other than "all".
        tie: `"all"`: one table for source, target and output; `"target"`: one
            for target and output; `"inputs"`: one for source and target; None:
            three, as in the papers.
        dropout: float in [0, 1), of embedded tokens, of what goes from layer
            to layer, and of the hidden state; never of what goes from step to
            step.
        **kwargs: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        ValueError: an unknown `cell`, `attention` or `tie`, a size below 1, or
            two vocabularies under one table.

    Source: Bahdanau et al. 2015, appendix A, https://arxiv.org/abs/1409.0473;
    Luong et al. 2015, sections 3.1 and 4, https://arxiv.org/abs/1508.04025;
    layers: Wu et al. 2016, section 3, https://arxiv.org/abs/1609.08144;
    dropout: Zaremba et al. 2014, https://arxiv.org/abs/1409.2329
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers=1,
        embedding_dim=620,
        units=1000,
        cell="gru",
        attention="additive",
        target_vocabulary_size=None,
        tie="all",
        dropout=0.1,
        **kwargs,
    ):
        stacks.check_tie(tie, vocabulary_size, target_vocabulary_size)
        policy = stacks.policy_of(kwargs)
        settings = {
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
        parts = _parts(settings, policy)
        inputs, hidden, logits = _network(parts)
        super().__init__(inputs=inputs, outputs=logits, **kwargs)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.source_embedding, self.target_embedding = parts["embeddings"]
        self.encoder, self.decoder = parts["encoder"], parts["decoder"]
        self.projection = parts["projection"]
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        self.config = types.MappingProxyType(settings)
        self._hidden = hidden

    # What is after the decoder is as in a Transformer.
    as_logits = Transformer.as_logits
    hidden_model = Transformer.hidden_model

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
        """Encodes the source once.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.
            max_length: int >= 1, or scalar int tensor, in tokens. Here no room
                is needed for them.
            beam_size: int >= 1, K: hypotheses for each source.
            return_attention: bool. Let each step tell what it attends to.
            candidates: int32 `(B, C)`: the only tokens whose logits each row
                wants; or None for all.

        Returns:
            The cache, a dictionary, of one size whatever the length.
            `"memory"` holds what is attended to and belongs to the source: it
            is not repeated for the beams. `"beams"` follows the hypotheses:
            their states, each `(B, K, units)`. If asked for, `"attention"` is
            what the last step attended to, float `(B, K, S)`. With candidates,
            `"projection"` has their columns, a tuple of float `(B, D, C)`.

        Raises:
            ValueError: candidates, and an untied projection in int8.
        """
        memory = self.encode(source_ids)
        states = keras.tree.map_structure(
            lambda x: ops.repeat(x[:, None], beam_size, axis=1),
            self.decoder.first_states(memory),
        )
        cache = {
            "memory": self.decoder.keys_and_values(memory),
            "memory_mask": padding_mask(source_ids),
            "beams": {"states": states},
        }
        if return_attention:
            size, length = ops.shape(source_ids)
            cache["attention"] = ops.zeros((size, beam_size, length), "float32")
        if candidates is not None:
            table = self.target_embedding
            cache["projection"] = stacks.columns(table, self.projection, candidates)
        return cache

    def extend(self, cache, max_length):
        """Makes room for more steps, for which states need none.

        Args:
            cache: from `begin` or `step`.
            max_length: int, or scalar int tensor, in tokens.

        Returns:
            The cache.
        """
        return cache

    def step(self, ids, index, cache):
        """Advances every hypothesis by one token.

        Args:
            ids: integer `(B, K)`, the last token of each hypothesis.
            index: int or scalar int tensor. States know no positions.
            cache: from `begin` or the step before, with its `"beams"` in the
                order of the hypotheses.

        Returns:
            float `(B, K, V)` logits of the next token, `(B, K, C)` where
            `begin` had candidates, and the new cache. With a mixed policy they
            are float32, as those of `Transformer.step`.
        """
        hidden, states, attention = self.decoder.step(
            self.target_embedding(ids),  # positions, which there are none of
            cache["beams"]["states"],
            cache["memory"],
            cache["memory_mask"],
        )
        cache = {**cache, "beams": {"states": states}}
        if "attention" in cache:
            cache["attention"] = ops.cast(attention, "float32")
        table, columns = self.target_embedding, cache.get("projection")
        return stacks.step_logits(hidden, table, self.projection, columns), cache

    def encode(self, source_ids):
        """Runs the encoder.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.

        Returns:
            float `(B, S, 2 * units)`.
        """
        x = self.source_embedding(source_ids)
        return self.encoder(x, padding_mask(source_ids))

    def attention_maps(self, source_ids, target_ids):
        """Gives the attention weights.

        Args:
            source_ids: integer `(B, S)`, padded with 0 at the end.
            target_ids: integer `(B, T)`, with the start token.

        Returns:
            A dictionary as of `Transformer.attention_maps`: `"cross"` is a
            list of one tensor `(B, 1, T, S)`; `"encoder"` and `"decoder"` are
            empty lists.
        """
        source_ids = ops.convert_to_tensor(source_ids)
        target_ids = ops.convert_to_tensor(target_ids)
        cache = self.begin(source_ids, target_ids.shape[1], return_attention=True)
        maps = []
        for index in range(target_ids.shape[1]):
            _, cache = self.step(target_ids[:, index : index + 1], index, cache)
            maps.append(cache["attention"])
        maps = ops.concatenate(maps, axis=1)  # (B, T, S)
        return {"encoder": [], "decoder": [], "cross": [maps[:, None]]}

    def get_config(self):
        return {
            **self.config,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": dtype_config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentEncoder(keras.layers.Layer):
    """Reads a sequence in both directions.

    The backward cells begin with the last real token, so that padding changes
    nothing and no step is masked: fused kernels take no masks.

    Args:
        units: int, width of the states of each direction.
        num_layers: int, N. Layers after the first read both directions.
        cell: `"gru"` or `"lstm"`.
        dropout: float in [0, 1), of what goes from layer to layer.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, S, D)`.
        padding_mask: bool `(B, S)`. True, then False where there is padding.

    Returns:
        float `(B, S, 2 * units)`: forward states, backward states.

    Source: Bahdanau et al. 2015, section 3.2. https://arxiv.org/abs/1409.0473
    """

    def __init__(self, units, num_layers=1, cell="gru", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        _check(units, num_layers, cell)
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.forward_layers, self.backward_layers = (
            [_recurrent(self, f"{direction}_{i}") for i in range(num_layers)]
            for direction in ("forward", "backward")
        )

    def build(self, x_shape):
        widths = [x_shape[-1]] + [2 * self.units] * (self.num_layers - 1)
        for layers in (self.forward_layers, self.backward_layers):
            for layer, width in zip(layers, widths, strict=True):
                layer.build((None, None, width))

    def call(self, x, padding_mask, training=False):
        length = ops.shape(x)[1]
        last = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True) - 1
        # Real tokens among themselves, padding among itself; twice is nothing.
        turn = ops.mod(last - ops.arange(length), length)[:, :, None]  # (B, S, 1)
        layers = zip(self.forward_layers, self.backward_layers, strict=True)
        for i, (forward, backward) in enumerate(layers):
            if i:
                x = self.dropout_layer(x, training=training)
            turned = backward(ops.take_along_axis(x, turn, axis=1))
            turned = ops.take_along_axis(turned, turn, axis=1)
            x = ops.concatenate([forward(x), turned], axis=-1)
        return x

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], 2 * self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "num_layers": self.num_layers,
            "cell": self.cell,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable(package="keras_tfm")
class RecurrentDecoder(keras.layers.Layer):
    """Turns target tokens and an encoded source into hidden states.

    Args:
        units: int, width of the states.
        num_layers: int, N.
        cell: `"gru"` or `"lstm"`.
        attention: `"additive"` or `"multiplicative"`, see `RecurrentSeq2Seq`.
        dropout: float in [0, 1), of what goes from layer to layer, and of the
            output.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: float `(B, T, D)`, the tokens before.
        memory: float `(B, S, 2 * units)`, of `RecurrentEncoder`.
        padding_mask: bool `(B, S)`, of the memory.

    Returns:
        float `(B, T, D)`.

    Source: see `RecurrentSeq2Seq`.
    """

    def __init__(
        self,
        units,
        num_layers=1,
        cell="gru",
        attention="additive",
        dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check(units, num_layers, cell)
        if attention not in ATTENTIONS:
            raise ValueError(
                f"`attention` is one of {ATTENTIONS}. Received: {attention!r}."
            )
        self.units = units
        self.num_layers = num_layers
        self.cell = cell
        self.attention = attention
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        # Luong's "general" score is a product with keys that are projected
        # once for a source, and not with queries projected at every step.
        score = "additive" if attention == "additive" else "dot"
        self.attention_layer = Attention(
            score, dtype=self.dtype_policy, name="attention"
        )
        self.key_dense = None
        if attention == "multiplicative":
            self.key_dense = keras.layers.Dense(
                units, use_bias=False, dtype=self.dtype_policy, name="key"
            )
        self.layers = [_recurrent(self, f"layer_{i}") for i in range(num_layers)]
        self.bridge = keras.layers.Dense(
            units * sum(len(layer.state_size) for layer in self.layers),
            activation="tanh",
            dtype=self.dtype_policy,
            name="bridge",
        )

    def build(self, x_shape, memory_shape):
        width, units, heard = x_shape[-1], self.units, memory_shape[-1]
        if heard != 2 * units:
            raise ValueError(
                "The memory has the states of two directions, each as wide as those "
                f"of the decoder. Received: memory of width {heard}, units={units}."
            )
        is_additive = self.attention == "additive"
        into = heard if is_additive else 0  # beside what comes from below
        for layer, below in zip(
            self.layers, [width] + [units] * (self.num_layers - 1), strict=True
        ):
            layer.build((None, None, below + into))
        key = heard
        if self.key_dense is not None:
            self.key_dense.build((None, None, heard))
            key = units
        shapes = [(None, None, size) for size in (units, heard, key)]
        self.attention_layer.build(*shapes)
        self.bridge.build((None, units))
        self.readout = keras.layers.Dense(
            2 * width if is_additive else width,
            activation=None if is_additive else "tanh",
            use_bias=is_additive,
            dtype=self.dtype_policy,
            name="readout",
        )
        read = units + heard + (width if is_additive else 0)
        self.readout.build((None, None, read))
        settle_policies(self)

    def call(self, x, memory, padding_mask, training=False):
        states = self.first_states(memory)
        memory, context = self.keys_and_values(memory), None
        if self.attention == "additive":
            h, context = self._attend_at_each_step(x, states[0], memory, padding_mask)
        else:
            h = self.layers[0](x, initial_state=states[0])
        for layer, state in zip(self.layers[1:], states[1:], strict=True):
            h = self.dropout_layer(h, training=training)
            h = layer(_beside(h, context), initial_state=state)
        if context is None:
            context = self.attention_layer(h, cache=memory, padding_mask=padding_mask)
        return self.dropout_layer(self._hidden(x, h, context), training=training)

    def step(self, x, states, memory, padding_mask):
        """Takes one step of K hypotheses of each source.

        Args:
            x: float `(B, K, D)`, the token before of each.
            states: of `first_states` or the step before, each `(B, K, units)`.
            memory: of `keys_and_values`.
            padding_mask: bool `(B, S)`, of the memory.

        Returns:
            float `(B, K, D)`, the new states, and the attention `(B, K, S)`.
        """

        def attend(h):
            return self.attention_layer(
                h,
                cache=memory,
                padding_mask=padding_mask,
                return_attention_scores=True,
            )

        context, new, h = None, [], x
        if self.attention == "additive":
            context, weights = attend(states[0][0])
        for layer, state in zip(self.layers, states, strict=True):
            new.append(_advanced(layer, _beside(h, context), state))
            h = new[-1][0]
        if context is None:
            context, weights = attend(h)
        return self._hidden(x, h, context), new, weights

    def keys_and_values(self, memory):
        """Projects what is attended to, once for all steps.

        Args:
            memory: float `(B, S, 2 * units)`.

        Returns:
            float `(B, units, S)` and `(B, S, 2 * units)`.
        """
        key = None if self.key_dense is None else self.key_dense(memory)
        return self.attention_layer.keys_and_values(memory, key)

    def first_states(self, memory):
        """Gives the states before the first token.

        Args:
            memory: float `(B, S, 2 * units)`.

        Returns:
            A list with a list of states `(B, units)` for each layer: h, and c
            of an LSTM.
        """
        first = self.bridge(memory[:, 0, self.units :])  # backward, at its end
        count = len(self.layers[0].state_size)
        states = ops.split(first, count * self.num_layers, axis=-1)
        return [states[i : i + count] for i in range(0, len(states), count)]

    def _attend_at_each_step(self, x, state, memory, padding_mask):
        """Runs the first layer; gives `(B, T, units)` and its contexts."""

        def step(x, state):
            state = [part[:, None] for part in state]
            context = self.attention_layer(
                state[0], cache=memory, padding_mask=padding_mask
            )
            x = ops.concatenate([x[:, None], context], axis=-1)
            state = [part[:, 0] for part in _advanced(self.layers[0], x, state)]
            return ops.concatenate([state[0], context[:, 0]], axis=-1), state

        sizes, output = [self.units] * len(state), 3 * self.units
        loop = keras.layers.RNN(
            _Loop(step, sizes, output, self.compute_dtype),
            return_sequences=True,
            dtype=self.dtype_policy,
        )
        both = loop(x, initial_state=list(state))
        return both[..., : self.units], both[..., self.units :]

    def _hidden(self, x, h, context):
        if self.attention == "multiplicative":
            return self.readout(ops.concatenate([context, h], axis=-1))
        both = self.readout(ops.concatenate([h, x, context], axis=-1))
        return ops.maximum(*ops.split(both, 2, axis=-1))

    def compute_output_shape(self, x_shape, memory_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "units": self.units,
            "num_layers": self.num_layers,
            "cell": self.cell,
            "attention": self.attention,
            "dropout": self.dropout,
        }


class _Loop:
    """What `keras.layers.RNN` wants of a cell, from a function.

    The function may look at tensors that are the same at every step, for which
    a cell of Keras has no place.
    """

    def __init__(self, function, state_size, output_size, compute_dtype):
        self.function = function
        self.state_size = state_size
        self.output_size = output_size
        self.compute_dtype = compute_dtype

    def __call__(self, inputs, states):
        return self.function(inputs, states)

    call = __call__


def _recurrent(layer, name):
    """A recurrent layer of Keras, as a layer's settings have it."""
    # TensorFlow's cuDNN kernels cannot be part of XLA's program of a search.
    fused = False if keras.backend.backend() == "tensorflow" else "auto"
    return CELLS[layer.cell](
        layer.units,
        return_sequences=True,
        use_cudnn=fused,
        dtype=layer.dtype_policy,
        name=name,
    )


def _advanced(layer, x, state):
    """The states `(B, K, units)` of a layer after one step by `(B, K, D)`."""
    flat = [ops.reshape(part, (-1, part.shape[-1])) for part in (x, *state)]
    _, new = layer.cell(flat[0], flat[1:])
    return [ops.reshape(part, (-1, x.shape[1], layer.units)) for part in new]


def _beside(h, context):
    return h if context is None else ops.concatenate([h, context], axis=-1)


def _check(units, num_layers, cell):
    if cell not in CELLS:
        raise ValueError(f"`cell` is one of {list(CELLS)}. Received: {cell!r}.")
    if units < 1 or num_layers < 1:
        raise ValueError(
            "A recurrent network has a layer at least, of a unit at least. "
            f"Received: num_layers={num_layers}, units={units}."
        )


def _parts(settings, policy):
    """Makes the layers of the network."""
    depths = settings["num_layers"]
    depths = (depths, depths) if isinstance(depths, numbers.Integral) else depths
    common = {"dropout": settings["dropout"], "dtype": policy}

    def embedding(size, name, **others):
        return TokenAndPositionEmbedding(
            size,
            settings["embedding_dim"],
            positions=None,
            scale=False,
            name=name,
            **common,
            **others,
        )

    embeddings, projection = stacks.tied(settings, embedding, policy)
    common |= {"units": settings["units"], "cell": settings["cell"]}
    return {
        "embeddings": embeddings,
        "encoder": RecurrentEncoder(num_layers=depths[0], name="encoder", **common),
        "decoder": RecurrentDecoder(
            num_layers=depths[1],
            attention=settings["attention"],
            name="decoder",
            **common,
        ),
        "projection": projection,
    }


def _network(parts):
    """Joins the layers: inputs, the decoder's output, logits."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    source_embedding, target_embedding = parts["embeddings"]
    mask = padding_mask(source_ids)
    memory = parts["encoder"](source_embedding(source_ids), mask)
    hidden = parts["decoder"](target_embedding(target_ids), memory, mask)
    project = parts["projection"] or target_embedding.as_logits
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return inputs, hidden, project(hidden)
