"""Which tensors of a checkpoint each variable here is made of.

A family of models is described by tables from the paths of our layers to the
names of the checkpoint's, such as `{"self_attention.query_dense": "q_proj"}`.
The functions here turn them into a weight mapping: a list of `Weight`.
"""

import functools
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.models.output_projection import OutputProjection
from keras_tfm.zoo.token_permutation import TokenPermutation

# One matrix in other programs.
QUERY_KEY_VALUE = (
    "self_attention.query_dense self_attention.key_dense self_attention.value_dense"
)
MAX_GROWTH = 5  # elements of a variable for each element of its tensors


def identity(array: np.ndarray) -> np.ndarray:
    """Returns the array itself.

    Args:
        array: array.
    """
    return array


class Weight(NamedTuple):
    """One variable, the tensors it is made of, and how.

    Attributes:
        variable: Keras variable.
        tensors: list of str, names in the checkpoint; may be empty.
        convert: function from the arrays of the tensors to the value. One that
            does not fit is returned as it is, and rejected by its shape.
        invert: function from the value to the first tensor, or to the rows
            that it has of it.
    """

    variable: keras.Variable
    tensors: list[str]
    convert: Callable[..., np.ndarray] = identity
    invert: Callable[[np.ndarray], np.ndarray] = identity


WeightMapping = list[Weight]


def output_dim(layer: keras.layers.Layer) -> int:
    """Returns the number of outputs of a projection, over all heads.

    Args:
        layer: built `Dense` or `EinsumDense`.

    Example:
        ```python
        import keras
        from keras_tfm.zoo.weight_mapping import output_dim

        layer = keras.layers.EinsumDense("btd,dhk->bthk", (None, 2, 4))
        layer.build((None, None, 6))
        print(output_dim(layer))  # 8
        ```
    """
    if isinstance(layer, keras.layers.Dense):
        return layer.kernel.shape[-1]
    inputs, kernel, _ = layer.equation.replace("->", ",").split(",")
    sizes = zip(kernel, layer.kernel.shape, strict=True)
    return math.prod(size for axis, size in sizes if axis not in inputs)


def attention_names(path: str, pattern: str, names: str) -> dict[str, str]:
    """Makes the four entries of an attention layer in a table for `blocks`.

    Args:
        path: str, such as `"self_attention"`.
        pattern: str with `{}` for a name.
        names: str, those of query, key, value and output, separated by spaces.

    Example:
        ```python
        from keras_tfm.zoo.weight_mapping import attention_names

        names = attention_names("self_attention", "attn.{}_proj", "q k v out")
        print(names["self_attention.query_dense"])  # attn.q_proj
        ```
    """
    layers = ("query", "key", "value", "output")
    pairs = zip(layers, names.split(), strict=True)
    return {f"{path}.{layer}_dense": pattern.format(name) for layer, name in pairs}


def projections(
    layers: list[keras.layers.Layer],
    kernel: str,
    bias: str | None = None,
    transposed: bool = False,
) -> WeightMapping:
    """Maps one matrix to projections whose outputs it holds side by side.

    Args:
        layers: built `Dense` or `EinsumDense`, often one alone.
        kernel: str, name of the matrix `(inputs, outputs)` without heads.
        bias: str, name of the bias, if the layers have one.
        transposed: bool. The matrix is `(outputs, inputs)`, as in PyTorch.

    Returns:
        list of `Weight`, one or two for each layer.
    """
    dims = [output_dim(layer) for layer in layers]
    mapping, start, total = [], 0, sum(dims)
    for layer, dim in zip(layers, dims, strict=True):
        part = slice(start, start + dim)
        start += dim
        for variable, name, flip in (
            (layer.kernel, kernel, transposed),
            (layer.bias, bias, False),
        ):
            if variable is not None:
                # (inputs, heads, d_k), or (heads, d_k, outputs), or a bias
                convert = functools.partial(
                    _columns, part, total, tuple(variable.shape), flip
                )
                rows = functools.partial(_rows, dim)
                mapping.append(Weight(variable, [name], convert, rows))
    return mapping


def _rows(dim, array):
    """Turns a kernel (inputs, outputs) or a bias to rows of outputs."""
    return array.reshape(-1) if array.size == dim else array.reshape(-1, dim).T


def _columns(part, total, shape, transposed, array):
    matrix = array.T if transposed else array
    fits = matrix.ndim and matrix.shape[-1] == total
    if not fits or matrix.size * (part.stop - part.start) != math.prod(shape) * total:
        return array  # its shape is rejected
    return matrix[..., part].reshape(shape)


def normalization(
    layer: keras.layers.Layer, scale: str, offset: str | None = None
) -> WeightMapping:
    """Maps the vectors of a normalization.

    Args:
        layer: built `LayerNormalization` or `RMSNormalization`.
        scale: str, name of gamma, `(D,)` or `(1, D)`.
        offset: str, name of beta.

    Returns:
        list of one or two `Weight`.
    """

    def _flat(array):
        return array.reshape(-1) if array.shape[:-1] in ((), (1,)) else array

    if isinstance(layer, keras.layers.RMSNormalization):
        return [Weight(layer.scale, [scale], _flat)]
    return [Weight(layer.gamma, [scale], _flat), Weight(layer.beta, [offset], _flat)]


def pytorch_layers(layers: list[keras.layers.Layer], name: str) -> WeightMapping:
    """Maps the tensors of PyTorch to projections side by side, or to a norm.

    Args:
        layers: built `Dense` or `EinsumDense`, or one normalization.
        name: str, before `.weight` and `.bias`.

    Returns:
        list of `Weight`.
    """
    names = f"{name}.weight", f"{name}.bias"
    if hasattr(layers[0], "kernel"):
        return projections(layers, *names, transposed=True)
    return normalization(layers[0], *names)


def blocks(
    layers: Iterable[keras.layers.Layer],
    names: Mapping[str, str],
    stem: str,
    map_layers: Callable[..., WeightMapping] = pytorch_layers,
) -> WeightMapping:
    """Maps a stack of blocks by a table.

    Args:
        layers: the blocks.
        names: dict from paths of our layers, separated by spaces where several
            share a matrix, to names inside a block. Paths that a block lacks,
            as those of cross-attention in an encoder, are skipped.
        stem: str before the names, with `{}` for the number of the block.
        map_layers: function of a list of layers and a name.

    Returns:
        list of `Weight`.
    """
    mapping = []
    for number, block in enumerate(layers):
        for paths, name in names.items():
            parts = [layer_at(block, path) for path in paths.split()]
            if None not in parts:
                mapping += map_layers(parts, stem.format(number) + name)
    return mapping


def layer_at(block: keras.layers.Layer, path: str) -> keras.layers.Layer | None:
    """Returns the layer at a path such as `"feed_forward.gate_dense"`, or None.

    Args:
        block: layer.
        path: str.
    """
    try:
        return operator.attrgetter(path)(block)
    except AttributeError:
        return None


def logits(
    model: keras.Model,
    permutation: TokenPermutation | None,
    kernel: str,
    bias: str | None = None,
    transposed: bool = True,
) -> WeightMapping:
    """Maps the layer that makes logits, apart from a tied embedding matrix.

    Args:
        model: `Transformer` or `CausalLM`.
        permutation: `TokenPermutation` of the target; None to export.
        kernel: str, name of the projection, if it is not tied.
        bias: str, name of its bias; or None.
        transposed: bool. The projection is `(V, D)`.

    Returns:
        list of up to two `Weight`.
    """
    mapping, projection = [], model.projection
    if projection is not None:

        def _transposed(array):  # (V, D) or (D, V) to (D, V)
            return permutation.rows(array if transposed else array.T).T

        mapping.append(Weight(projection.kernel, [kernel], _transposed, np.transpose))
    embedding = getattr(model, "target_embedding", None) or model.embedding
    variable = OutputProjection(embedding, projection).bias
    if variable is not None:
        names = [bias] if bias else []
        mapping.append(Weight(variable, names, permutation and permutation.bias))
    return mapping


def embeddings(
    model: keras.Model, names: Sequence[str], permutations: Sequence[TokenPermutation]
) -> WeightMapping:
    """Maps the embedding matrices of a `Transformer`.

    Args:
        model: `Transformer`.
        names: pair of str, source and target; the latter serves tied ones.
        permutations: pair of `TokenPermutation`.

    Returns:
        list of one or two `Weight`.
    """
    source, target = model.source_embedding, model.target_embedding
    mapping = [Weight(target.embeddings, [names[1]], permutations[1].rows)]
    if source.embeddings is not target.embeddings:
        mapping.append(Weight(source.embeddings, [names[0]], permutations[0].rows))
    return mapping


def stacks_of(model: keras.Model) -> list[tuple]:
    """Returns side, embedding, blocks and last normalization of both stacks.

    Args:
        model: `Transformer`.

    Returns:
        list of two tuples, of `"encoder"` and `"decoder"`.
    """
    source, target = model.source_embedding, model.target_embedding
    return [
        ("encoder", source, model.encoder_blocks, model.encoder_norm),
        ("decoder", target, model.decoder_blocks, model.decoder_norm),
    ]


def to_array(tensor: Any) -> np.ndarray:
    """Copies a variable or tensor into a contiguous float32 array.

    Args:
        tensor: of any float dtype.

    Raises:
        ValueError: the tensor is of integers, as those of a quantized layer.
    """
    if "float" not in str(tensor.dtype):
        raise ValueError(
            f"`model` must have float weights; got one quantized to {tensor.dtype}. "
            "Export the model that it was quantized from."
        )
    values = ops.cast(ops.convert_to_tensor(tensor), "float32")
    return np.ascontiguousarray(ops.convert_to_numpy(values))


def export(mapping: WeightMapping) -> dict[str, np.ndarray]:
    """Inverts a weight mapping with matrices of `(outputs, inputs)`.

    Args:
        mapping: list of `Weight`.

    Returns:
        dict from names to contiguous float32 arrays.

    Raises:
        ValueError: a variable is of integers.
    """
    parts = {}
    for weight in mapping:
        array = weight.invert(to_array(weight.variable))
        for name in weight.tensors[:1]:
            parts.setdefault(name, []).append(array)
    return {n: np.ascontiguousarray(np.concatenate(a)) for n, a in parts.items()}


def check_coverage(
    mapping: WeightMapping,
    file: str | os.PathLike,
    shapes: Mapping[str, tuple[int, ...]],
    ignored: Iterable[str] = (),
    advice: str = "",
) -> None:
    """Checks that no tensor is missing or left over, and none is far too small.

    Args:
        mapping: list of `Weight`.
        file: path, named in errors.
        shapes: dict from the names of all tensors.
        ignored: regular expressions of whole names that may be left over.
        advice: str, appended to an error.

    Raises:
        ValueError: the names do not match, or a variable would be much larger
            than its tensors.
    """
    expected = {name for weight in mapping for name in weight.tensors}
    missing = sorted(expected - set(shapes))
    unknown = sorted(
        name
        for name in set(shapes) - expected
        if not any(re.fullmatch(pattern, name) for pattern in ignored)
    )
    if missing or unknown:
        raise ValueError(
            f"{file}: weights and configuration must be of one model; got "
            f"{len(missing)} missing, {missing[:8]}; {len(unknown)} unknown, "
            f"{unknown[:8]}. Download both again{advice}."
        )
    for weight in mapping:
        size = sum(math.prod(shapes[name]) for name in weight.tensors)
        # A permutation may add a few rows; nothing larger is allocated.
        if weight.tensors and math.prod(weight.variable.shape) > MAX_GROWTH * max(
            size, 1
        ):
            raise misfit(file, weight, shapes[weight.tensors[0]])


def check_dtypes(
    folder: Any, dtypes: dict[str, str], floats: Sequence[str], advice: str
) -> None:
    """Rejects weights of integers and of 8-bit floats.

    Args:
        folder: path, for the error.
        dtypes: dict from names of weights to the names of their dtypes.
        floats: names of the dtypes that are read.
        advice: str, a sentence that says what to do.

    Raises:
        ValueError: a weight has another dtype.
    """
    unsupported = {n: dtype for n, dtype in dtypes.items() if dtype not in floats}
    if unsupported:
        raise ValueError(
            f"{folder}: weights must be of {', '.join(floats)}; got "
            f"{dict(sorted(unsupported.items())[:4])}. {advice}"
        )


def misfit(
    file: str | os.PathLike, weight: Weight, shape: tuple[int, ...]
) -> ValueError:
    """Makes the error of a tensor with an unexpected shape.

    Args:
        file: path.
        weight: `Weight`.
        shape: tuple of int, of the tensor.
    """
    return ValueError(
        f"{file}: {weight.tensors[0]!r} does not fit the configuration; expected "
        f"shape {tuple(weight.variable.shape)} for {weight.variable.path}, got "
        f"{tuple(shape)}."
    )
