"""The flags that change the configuration of a translator's Transformer."""

import dataclasses
from typing import Any, Literal

from keras_tfm.recipes import runs

# Learned positions of a model, unless a flag says otherwise: no training pair
# is longer.
SEQUENCE_LENGTH = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """What to change of --size, for a Transformer from scratch. The names are
    those of keras_tfm.models.Transformer."""

    num_layers: tuple[int, int] | None = None
    """Layers of the encoder and of the decoder."""
    embedding_dim: int | None = None
    """Dimension of the token vectors and of the output of each layer; d_model
    in the paper."""
    intermediate_dim: int | None = None
    """Dimension inside the feed-forward networks; d_ff in the paper."""
    num_heads: int | None = None
    """Attention heads of each layer."""
    key_dim: int | None = None
    """Dimension of the queries and keys of each head; d_k in the paper.
    Default: --embedding-dim divided by --num-heads."""
    value_dim: int | None = None
    """Dimension of the values of each head; d_v in the paper. Default:
    --key-dim."""
    positions: (
        Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"] | None
    ) = None
    """Positions: sinusoidal (sine and cosine alternate, as in the paper) and
    learned are added to token vectors, the others act inside self-attention.
    Default: sinusoidal, in the order of channels of --size."""
    sequence_length: int | None = None
    """Maximum tokens of a source and of a target with learned positions.
    Default: 256."""
    normalize_first: bool | None = None
    """Normalize before each layer instead of after it, as the paper does:
    True (pre-norm) or False (post-norm)."""


FIELDS = tuple(field.name for field in dataclasses.fields(Configuration))
SIZES = tuple(name for name in FIELDS if name.endswith(("_dim", "_heads", "_length")))


def changes(flags: Configuration) -> dict[str, Any]:
    """Returns the flags that are set, as arguments of `models.Transformer`."""
    values = {name: getattr(flags, name) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def complete(flags: Any) -> Any:
    """Sets the number of learned positions where no flag says it.

    Args:
        flags: `translation.Flags`.

    Returns:
        `translation.Flags`.
    """
    if flags.positions != "learned" or flags.sequence_length is not None:
        return flags
    return dataclasses.replace(flags, sequence_length=SEQUENCE_LENGTH)


def check(flags: Any) -> None:
    """Rejects flags that no Transformer can have.

    Args:
        flags: `translation.Flags`.

    Raises:
        ValueError: a size is below 1, or flags do not fit each other.
    """
    runs.check_at_least(flags, 1, SIZES)
    if flags.architecture == "recurrent" and changes(flags):
        raise ValueError(
            f"{_names(changes(flags))} must be left out with --architecture "
            "recurrent, since it configures a Transformer; got "
            f"{changes(flags)}. --size alone configures the recurrent model."
        )
    if flags.num_layers is not None and min(flags.num_layers) < 1:
        raise ValueError(
            "--num-layers must be at least 1 for encoder and decoder; got "
            f"{flags.num_layers}."
        )
    if flags.sequence_length is not None and flags.positions != "learned":
        raise ValueError(
            "--sequence-length needs --positions learned, since other positions have "
            f"no maximum; got --sequence-length {flags.sequence_length} with "
            f"--positions {flags.positions}. Leave it out."
        )


def _names(names):
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)
