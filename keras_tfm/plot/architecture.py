"""Models and blocks as diagrams, drawn from the layers that they have."""

from collections.abc import Mapping
from typing import Any

from keras_tfm.plot.diagrams import GAP, Column, arrow, sheet, trim, write
from keras_tfm.plot.figures import INK, Figure

WIDTH = 2.02  # of a box, in inches
MARGIN = 0.34  # beside a column, for a frame
ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU"}
POSITIONS = {
    "SinusoidalPositions": "sinusoidal positions",
    "LearnedPositions": "learned positions",
    "RotaryPositions": "rotary positions",
    "AlibiPositions": "ALiBi",
    "T5Positions": "T5 positions",
    "ShawPositions": "relative positions",
}


def architecture(model: Any) -> Figure:
    """Draws a model: embeddings, blocks and output, with their sizes.

    Data run upwards. A frame is a block, which is repeated as often as is
    written above it. Every number is read from the layers of the model.
    Dropout is left out.

    Args:
        model: `models.Transformer`, `models.CausalLM` or `models.Encoder`.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: another model.

    Source: Vaswani et al. 2017, figure 1. https://arxiv.org/abs/1706.03762

    Example:
        ```python
        from keras_tfm import models, plot

        model = models.Transformer(8_000, embedding_dim=64, num_heads=4)
        plot.architecture(model)
        ```
    """
    if hasattr(model, "encoder_blocks"):
        return _draw_both(model)
    if not hasattr(model, "blocks") or not hasattr(model, "embedding"):
        raise ValueError(
            "`model` must be a `Transformer`, `CausalLM` or `Encoder` of "
            f"`keras_tfm.models`; got {type(model).__name__}. Pass the encoder of a "
            "classifier or of a masked language model alone."
        )
    letter = "S" if model.blocks[0].bidirectional else "T"
    ax = sheet(WIDTH + 2 * MARGIN + 1.0)
    column = Column(ax, MARGIN + 0.5 + WIDTH / 2, 0.1, WIDTH)
    _draw_inputs(column, model, model.embedding, "token ids", letter)
    title = f"{len(model.blocks)} × block"
    _draw_stack(column, model.blocks, model.norm, 1, title)
    _draw_output(column, model, model.embedding.embedding_dim)
    return trim(ax, column.y + 0.1).figure


def blocks(named_blocks: Mapping[str, Any]) -> Figure:
    """Draws blocks side by side, such as one of post-norm and one of pre-norm.

    Args:
        named_blocks: dict from a title to a `layers.TransformerEncoder` or
            `layers.TransformerDecoder` that was built.

    Returns:
        Matplotlib `Figure`.

    Raises:
        ValueError: there is no block, or one was not built.

    Example:
        ```python
        import numpy as np

        from keras_tfm import layers, plot

        post, pre = (
            layers.TransformerEncoder(64, 2, normalize_first=first)
            for first in (False, True)
        )
        for block in (post, pre):
            block(np.ones((1, 3, 16)))
        plot.blocks({"post-norm": post, "pre-norm": pre})
        ```
    """
    built = {name: block.built for name, block in named_blocks.items()}
    if not built or not all(built.values()):
        raise ValueError(
            f"`named_blocks` must be blocks that were built; got {built}. Call each "
            "block once, or its model."
        )
    pitch, tops = WIDTH + 2 * MARGIN, []
    ax = sheet(len(built) * pitch)
    for number, (name, block) in enumerate(named_blocks.items()):
        column = Column(ax, number * pitch + pitch / 2, 0.3, WIDTH)
        write(ax, (column.x, 0.15), "x")
        _draw_stack(column, [block], None, 1, name)
        column.line("", 0.3)
        column.text("to the next block")
        tops.append(column.y)
    return trim(ax, max(tops) + 0.1).figure


def _draw_both(model):
    """Draws an encoder and a decoder, and the line between them."""
    pitch = WIDTH + 2 * MARGIN
    ax = sheet(2 * pitch)
    encoder = Column(ax, pitch / 2 - 0.05, 0.1, WIDTH)
    decoder = Column(ax, 1.5 * pitch + 0.05, 0.1, WIDTH)
    _draw_inputs(encoder, model, model.source_embedding, "source ids", "S")
    _draw_inputs(decoder, model, model.target_embedding, "target ids", "T")
    decoder.y = encoder.y = max(encoder.y, decoder.y)
    stack, title = model.encoder_blocks, f"{len(model.encoder_blocks)} × encoder"
    _draw_stack(encoder, stack, model.encoder_norm, -1, title)
    stack, title = model.decoder_blocks, f"{len(model.decoder_blocks)} × decoder"
    cross = _draw_stack(decoder, stack, model.decoder_norm, 1, title)
    dim = model.target_embedding.embedding_dim
    # From the top of the encoder, between the columns, to cross-attention.
    encoder.line(f"(B, S, {dim:,})", 0.3, head=False)
    between, edge = pitch, decoder.x - WIDTH / 2
    points = [(encoder.x, encoder.y), (between, encoder.y), (between, cross)]
    arrow(ax, [*points, (edge, cross)], INK)
    _draw_output(decoder, model, dim)
    return trim(ax, max(encoder.y, decoder.y) + 0.1).figure


def _draw_inputs(column, model, embedding, name, letter):
    """Draws ids, their embedding, and what is added to it."""
    column.text(f"{name} (B, {letter})")
    column.line()
    size, dim = embedding.token_embedding.embeddings.shape
    factor = "" if embedding.factor == 1.0 else f", times √{dim}"
    column.box("token embedding", "embedding", f"{size:,} × {dim:,}{factor}")
    segments = getattr(model, "segment_embedding", None)
    if segments is not None:
        column.line()
        size = f"{segments.input_dim} × {dim:,}"
        column.box("+ segment embedding", "embedding", size)
    positions = embedding.position_layer
    if positions is not None:
        column.line()
        column.box(*_positions(positions))
    norm = getattr(model, "embedding_norm", None) or embedding.norm
    if norm is not None:
        column.line()
        column.box(_norm_name(model), "norm")


def _draw_stack(column, stack, norm, side, title):
    """Draws one block of a stack, and the norm after it.

    Returns:
        float, the height of cross-attention, or None.
    """
    block, cross = stack[0], None
    column.line("", GAP, head=False)
    bottom = column.y - 0.04
    for label, kind, detail in _sublayers(block):
        start = column.y + 0.05
        column.line("", GAP)
        if block.normalize_first:
            column.box(_norm_name(block), "norm")
            column.line()
        center = column.box(label, kind, detail)
        cross = center if label == "cross-attention" else cross
        column.line("", 0.16)
        if block.normalize_first:
            column.bypass(start, column.sum(), 0.1, side)
        else:
            name = f"add & {_norm_name(block)}"
            column.bypass(start, column.box(name, "norm"), column.width / 2, side)
    column.y += 0.1
    column.frame(bottom, title, side)
    column.y -= 0.1
    column.line("", 0.1, head=False)
    if norm is not None:
        column.line("", 0.3)
        column.box(_norm_name(block), "norm")
    return cross


def _draw_output(column, model, dim):
    """Draws the output projection, if the model has one."""
    size = getattr(model, "target_vocabulary_size", None)
    letter = "S" if size is None else "T"
    column.line(f"(B, {letter}, {dim:,})", 0.46)
    if size is None:
        column.text("one vector per token")
        return
    tied = ", tied" if model.projection is None else ""
    column.box("output projection", "output", f"{dim:,} → {size:,}{tied}")
    column.line()
    column.text(f"logits (B, T, {size:,})")


def _sublayers(block):
    """Lists label, kind and detail of each layer with a residual."""
    rows = []
    if hasattr(block, "self_attention"):
        label = "self-attention" if block.bidirectional else "causal self-attention"
        rows.append((label, "attention", _heads(block.self_attention)))
    else:
        rows.append(("SSRU", "state", "a recurrence"))
    cross = getattr(block, "cross_attention", None)
    if cross is not None:
        rows.append(("cross-attention", "attention", _heads(cross)))
    network = block.feed_forward
    dim, inner = network.inner_dense.kernel.shape
    name = network.activation.__name__
    activation = "gated " * network.gated + ACTIVATIONS.get(name, name)
    detail = f"{dim:,} → {inner:,} → {dim:,}, {activation}"
    return [*rows, ("feed-forward", "feed-forward", detail)]


def _heads(attention):
    """Describes the heads of a layer, and positions inside it."""
    _, heads, key_dim = attention.query_dense.kernel.shape
    value_dim = attention.value_dense.kernel.shape[-1]
    sizes = f"{key_dim}" if key_dim == value_dim else f"{key_dim} and {value_dim}"
    positions = attention.positions
    name = "" if positions is None else f", {_words(positions)}"
    return f"{heads} head{'s' * (heads > 1)} of {sizes}{name}"


def _positions(layer):
    """Returns label, kind and detail of the layer of positions."""
    length = getattr(layer, "sequence_length", None)
    name = _words(layer)
    if getattr(layer, "combine", "add") == "concat":
        return f"[ ; {name}] W", "embedding", "concatenated"
    if length:
        return f"+ {name}", "embedding", f"{length:,} × {layer.weights[0].shape[-1]:,}"
    return f"+ {name}", "embedding"


def _words(layer):
    """Returns the name of a layer of positions in words."""
    name = type(layer).__name__
    return POSITIONS.get(name, name)


def _norm_name(layer):
    name = getattr(layer, "normalization", None) or layer.config["normalization"]
    return name.replace("_", " ").replace("rms", "RMS")
