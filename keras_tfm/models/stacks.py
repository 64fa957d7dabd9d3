"""What the models have in common: embeddings, stacks of blocks, settings."""

import keras
from keras import ops

from keras_tfm.layers.blocks import BLOCK_OPTIONS
from keras_tfm.layers.checks import check_rates
from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.position_factory import (
    is_relative,
    positions_of_blocks,
    relative_positions,
)
from keras_tfm.layers.positions import LearnedPositions

TIES = ("all", "target", "inputs", None)


def of_block(given):
    """Takes the settings of a block from what a model is given.

    Args:
        given: dict, the arguments of the model by name.

    Returns:
        dict.

    Raises:
        ValueError: a dropout is no share.
    """
    shares = ("dropout", "attention_dropout", "activation_dropout")
    check_rates(**{name: given[name] for name in shares})
    return {name: given[name] for name in BLOCK_OPTIONS}


def check_tie(tie, vocabulary_size, target_vocabulary_size):
    """Refuses a way of tying that there is not.

    Args:
        tie: str or None.
        vocabulary_size: int, V of the source.
        target_vocabulary_size: int or None.

    Raises:
        ValueError: an unknown `tie`, or two vocabularies under one table.
    """
    if tie not in TIES:
        raise ValueError(f"`tie` is one of {TIES}. Received: {tie!r}.")
    two = target_vocabulary_size not in (None, vocabulary_size)
    if tie in ("all", "inputs") and two:
        raise ValueError(
            "One table cannot serve two vocabularies. "
            f"Received: vocabulary_size={vocabulary_size}, "
            f"target_vocabulary_size={target_vocabulary_size}, tie={tie!r}. "
            "Train a joint vocabulary, or pass tie='target' or tie=None."
        )


def tied(settings, make_embedding, policy, logits_bias=False):
    """Makes the tables of source and target, and what gives the logits.

    Args:
        settings: dict with `tie`, `vocabulary_size`, `target_vocabulary_size`.
        make_embedding: `(size, name, logits_bias=False)`, giving a
            `TokenAndPositionEmbedding`.
        policy: dtype policy.
        logits_bias: bool. What projects adds a bias.

    Returns:
        A pair of embeddings, which are one where they have all weights in
        common; and a `keras.layers.Dense`, or None where the target's table
        projects.
    """
    tie, size = settings["tie"], settings["vocabulary_size"]
    target_size = settings["target_vocabulary_size"] or size
    one, projects = tie in ("all", "inputs"), tie in ("all", "target")
    bias = {"logits_bias": logits_bias and projects}
    embeddings = (make_embedding(target_size, "embedding", **bias),) * 2
    if not one or _has_more_than_a_table(embeddings[0]):
        embeddings = (
            make_embedding(size, "source_embedding"),
            make_embedding(target_size, "target_embedding", **bias),
        )
        if one:
            embeddings[1].tie_embeddings(embeddings[0])
    projection = None
    if not projects:
        projection = keras.layers.Dense(
            target_size, use_bias=logits_bias, dtype=policy, name="projection"
        )
    return embeddings, projection


def _has_more_than_a_table(embedding):
    positions = embedding.position_layer
    learned = isinstance(positions, LearnedPositions)
    learned = learned or getattr(positions, "combine", "add") != "add"
    return learned or embedding.norm is not None


def embedding(size, settings, policy, name, dropout=0.0, **others):
    """Makes a table of tokens, with the positions that are added to them.

    Args:
        size: int, V.
        settings: dict with `embedding_dim`, `positions` and `sequence_length`.
        policy: dtype policy.
        name: str.
        dropout: float in [0, 1).
        **others: further settings of `TokenAndPositionEmbedding`.

    Returns:
        `TokenAndPositionEmbedding`. A layer of positions is made anew from the
        settings of the one given.

    Raises:
        ValueError: the layer of positions that is given has weights.
    """
    positions = settings["positions"]
    if is_relative(positions):
        positions = None
    if isinstance(positions, keras.layers.Layer):  # one of its own for each
        if positions.weights:
            raise ValueError(
                "Every embedding makes a layer of positions of its own, from the "
                "settings of the one it is given. Received: "
                f"positions={positions!r}, which has weights. Give a new layer, "
                "and set the weights in the model."
            )
        positions = type(positions).from_config(
            {**positions.get_config(), "dtype": policy}
        )
    return TokenAndPositionEmbedding(
        size,
        settings["embedding_dim"],
        sequence_length=settings["sequence_length"],
        positions=positions,
        dropout=dropout,
        dtype=policy,
        name=name,
        **others,
    )


def blocks(kind, count, settings, positions, policy, name):
    """Makes a stack of blocks.

    Args:
        kind: `TransformerEncoder` or `TransformerDecoder`.
        count: int, N.
        settings: dict, of a block.
        positions: what a model is given as `positions`; those inside attention
            count here.
        policy: dtype policy.
        name: str, before the number of each.

    Returns:
        List of blocks.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"A stack has 1 block or more. Received: {name}, {count}.")
    inside = relative_positions(positions) if is_relative(positions) else None
    return [
        kind(**settings, positions=each, dtype=policy, name=f"{name}_{i}")
        for i, each in enumerate(
            positions_of_blocks(inside, count, kind.bidirectional, policy)
        )
    ]


def last_norm(settings, policy, name):
    """Makes the normalisation at the end of a pre-norm stack.

    Args:
        settings: dict, of a block.
        policy: dtype policy.
        name: str.

    Returns:
        A layer, or None for a post-norm stack.
    """
    if not settings["normalize_first"]:
        return None
    kind, epsilon = settings["normalization"], settings["epsilon"]
    return normalization_layer(kind, epsilon, dtype=policy, name=name)


def normalized(norm, x, mask=None):
    """Applies the normalisation at the end of a stack, if there is one.

    Args:
        norm: of `last_norm`.
        x: float `(B, S, D)`.
        mask: bool `(B, S)`, True where x is real: statistics of a batch are
            taken there.

    Returns:
        float `(B, S, D)`.
    """
    if norm is None:
        return x
    if isinstance(norm, keras.layers.BatchNormalization):
        return norm(x, mask=mask)
    return norm(x)


def step_logits(hidden, table, projection, columns=None):
    """Projects what a decoding step gives to logits.

    With a mixed policy they are float32: near 20 a bfloat16 is a multiple of
    1/8, too rough to tell likely tokens apart.

    Args:
        hidden: float `(..., D)`.
        table: `TokenAndPositionEmbedding`.
        projection: `keras.layers.Dense`, or None for the table.
        columns: of `columns`; or None for all.

    Returns:
        float `(..., V)`, or `(B, K, C)`.
    """
    if columns is not None:
        kernel, *bias = columns
        logits = ops.matmul(ops.cast(hidden, kernel.dtype), kernel)
        return logits + bias[0] if bias else logits
    if not projects_precisely(table, projection):
        return table.as_logits(hidden) if projection is None else projection(hidden)
    hidden = ops.cast(hidden, "float32")
    if projection is None:
        rows = ops.convert_to_tensor(table.embeddings)
        logits = ops.matmul(hidden, ops.transpose(rows))
    else:
        logits = ops.matmul(hidden, projection.kernel)
    bias = logits_bias(table, projection)
    return logits if bias is None else logits + bias


def columns(table, projection, candidates):
    """Gives what the logits of some tokens are projected with.

    Args:
        table: `TokenAndPositionEmbedding`.
        projection: `keras.layers.Dense`, or None for the table.
        candidates: int32 `(B, C)`.

    Returns:
        Tuple of float `(B, D, C)`; and, where there is a bias, `(B, 1, C)`.

    Raises:
        ValueError: the projection is quantised.
    """
    precise = projects_precisely(table, projection)
    if projection is None:
        if precise:
            rows = ops.take(ops.convert_to_tensor(table.embeddings), candidates, axis=0)
        else:
            rows = table.token_embedding(candidates)
        kernel = ops.transpose(rows, (0, 2, 1))
    elif projection.quantization_mode is not None:
        raise ValueError(
            "The columns of a quantised projection are not taken apart. Received: "
            f"candidates, and a projection in {projection.quantization_mode}. "
            "Search without a shortlist, or tie the projection."
        )
    else:
        dtype = "float32" if precise else projection.compute_dtype
        taken = ops.take(ops.cast(projection.kernel, dtype), candidates, axis=1)
        kernel = ops.transpose(taken, (1, 0, 2))  # from (D, B, C)
    bias = logits_bias(table, projection)
    if bias is None:
        return (kernel,)
    bias = ops.take(ops.cast(bias, kernel.dtype), candidates, axis=0)
    return kernel, bias[:, None]


def logits_bias(table, projection):
    """Gives the variable that is added to the logits.

    Args:
        table: `TokenAndPositionEmbedding`.
        projection: `keras.layers.Dense`, or None for the table.

    Returns:
        Variable `(V,)`, or None.
    """
    if projection is not None:
        return projection.bias
    return table.bias if table.logits_bias else None


def projects_precisely(table, projection):
    """Tells whether logits are float32 though the rest is in half precision.

    Args:
        table: `TokenAndPositionEmbedding`.
        projection: `keras.layers.Dense`, or None for the table.

    Returns:
        bool.
    """
    layer = table.token_embedding if projection is None else projection
    mixed = layer.compute_dtype != layer.variable_dtype == "float32"
    return mixed and layer.quantization_mode is None


def inputs_of(model):
    """Makes new inputs of the names, shapes and dtypes that a model has.

    Args:
        model: functional Keras model of a dict.

    Returns:
        dict of `keras.KerasTensor` by name.
    """
    return {
        tensor.name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)
        for tensor in model.inputs
    }


def policy_of(kwargs, default=None):
    """Takes the dtype policy out of the keyword arguments of a model.

    Args:
        kwargs: dict, what a model was given beside its own settings. `"dtype"`
            is taken out of it: a policy, its name or config.
        default: a policy, its name or config; None for Keras' own.

    Returns:
        `keras.DTypePolicy`.

    Raises:
        TypeError: there are others than `name`, `dtype` and `trainable`, which
            Keras would take in silence.
    """
    unknown = sorted(set(kwargs) - {"name", "dtype", "trainable"})
    if unknown:
        raise TypeError(
            "Besides its own settings a model takes name, dtype and trainable. "
            f"Received: {', '.join(unknown)}."
        )
    dtype = kwargs.pop("dtype", None) or default or keras.config.dtype_policy()
    return keras.dtype_policies.get(dtype)


def plain(settings):
    """Gives settings as a config has them.

    Args:
        settings: dict; `positions` may be a layer, `activation` a function.

    Returns:
        dict of plain values.
    """
    config, positions = dict(settings), settings["positions"]
    if isinstance(positions, keras.layers.Layer):
        config["positions"] = keras.saving.serialize_keras_object(positions)
    if callable(settings["activation"]):
        config["activation"] = keras.activations.serialize(settings["activation"])
    return config


def from_plain(config, custom_objects=None):
    """Gives the arguments of a model from its config.

    Args:
        config: dict, with what `plain` gives.
        custom_objects: dict or None, classes by name.

    Returns:
        dict.
    """
    config = dict(config)
    if isinstance(config["positions"], dict):
        config["positions"] = keras.saving.deserialize_keras_object(
            config["positions"], custom_objects=custom_objects
        )
    return config
