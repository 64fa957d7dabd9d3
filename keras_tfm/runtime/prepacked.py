"""Multiplies by weights that are packed for the processor once (PyTorch).

oneDNN multiplies 32 to 128 vectors by a prepacked float32 weight 1.5 to 2 times
as fast as PyTorch multiplies by the weight as it is, and faster in bfloat16
where the processor supports that. A prepacked copy takes as much memory as the
weight.

Private API, tested with torch 2.13: `torch.ops.mkldnn._reorder_linear_weight`
and `_linear_pointwise`, and `Tensor._version`. Where the operations are missing
or the processor does not support them, see `supports_dtype`, products use
`torch.matmul`, which gives the same ids more slowly.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from keras_tfm.runtime.int8 import Int8Weight

MATRIX_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}
# The result holds the same numbers in another shape or dtype.
VIEW_OPERATIONS = {
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.t.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.expand.default,
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten._to_copy.default,
}
NUM_SAMPLES = 100  # elements of a weight that `check_weight` compares
MIN_ELEMENTS = 2**16  # smaller weights: the call costs more than it saves


@functools.cache
def supports_dtype(dtype: torch.dtype) -> bool:
    """Returns whether weights of a dtype can be prepacked here.

    Args:
        dtype: `torch.float32` or `torch.bfloat16`.

    Example:
        ```python
        import torch
        from keras_tfm.runtime import prepacked

        assert not prepacked.supports_dtype(torch.float64)
        ```
    """
    mkldnn = torch.backends.mkldnn
    if dtype not in (torch.float32, torch.bfloat16) or not mkldnn.is_available():
        return False
    weight = torch.eye(4, dtype=dtype)
    try:
        return torch.equal(multiply(weight, reorder(weight)), weight)
    except AttributeError as error:
        warnings.warn(
            f"This version of PyTorch has no prepacked weights ({error}). Decoding "
            "multiplies by the weights as they are, which is slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    except RuntimeError:  # the processor has no instructions for this dtype
        return False


def reorder(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight `(O, I)` in the memory layout of oneDNN."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies `x (..., I)` by a reordered weight `(O, I)`."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


class DerivedWeight:
    """A tensor that was made from a weight by view operations alone.

    Args:
        origin: tensor, the weight.
        operations: triples of operation, arguments and keyword arguments.
    """

    def __init__(self, origin: torch.Tensor, operations: Sequence[tuple] = ()):
        self.origin = origin
        self.operations = operations

    def derived(self, operation: Callable, arguments: Any, options: dict) -> Any:
        """Returns the weight after one more operation."""
        operations = (*self.operations, (operation, arguments, options))
        return DerivedWeight(self.origin, operations)

    def value(self) -> torch.Tensor:
        """Returns the tensor, computed from the present weight."""
        value = self.origin
        for operation, arguments, options in self.operations:
            value = operation(value, *arguments, **options)
        return value

    def key(self) -> tuple:
        """Returns a key that is equal for equal matrices."""
        value, origin = self.value(), self.origin
        if value.untyped_storage().data_ptr() == origin.untyped_storage().data_ptr():
            shape, strides = value.shape[-2:], value.stride()[-2:]
            return id(origin), value.storage_offset(), shape, strides
        return id(origin), str(self.operations)


class PrepackedProduct(torch.nn.Module):
    """Multiplies vectors by a weight `(I, O)` or `(1, I, O)`.

    Args:
        weight: `DerivedWeight`.
        precision: str, as `Options.matmul_precision`. With `"float32"` the
            dtype of the weight stays.
    """

    def __init__(self, weight: DerivedWeight, precision: str = "float32"):
        super().__init__()
        self.weight, self.precision = weight, precision
        self.version: int | None = None
        self.product: Callable | None = None  # of vectors by the packed weight
        self.samples = None  # elements of the weight when it was packed

    @staticmethod
    def supports(
        weight: DerivedWeight, value: torch.Tensor, precision: str = "float32"
    ) -> bool:
        """Returns whether a weight can be prepacked.

        Args:
            weight: `DerivedWeight`.
            value: tensor, its value.
            precision: str, as in `PrepackedProduct`: without support by the
                processor, products are still computed in bfloat16.
        """
        return (
            torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
            and value.device.type == "cpu"
            and value.dtype in (torch.float32, torch.bfloat16)
            and value.numel() >= MIN_ELEMENTS
            and (value.ndim == 2 or value.shape[0] == 1)
            # An inference tensor has no version that would show a write.
            and not weight.origin.is_inference()
            and (precision == "bfloat16" or supports_dtype(value.dtype))
        )

    def forward(self, x: torch.Tensor, use_packed: bool) -> torch.Tensor:
        """Multiplies float `(..., I)`, of as many axes as the weight.

        Args:
            x: the vectors.
            use_packed: bool. Use the packed weight, packed anew if it was
                written to; else multiply as PyTorch does.
        """
        if not use_packed:
            # The weight may have been captured with an axis of 1 before it.
            value = self.weight.value()
            shape = (1,) * (x.ndim - 2) + value.shape[-2:]
            return torch.matmul(x, value.reshape(shape))
        version = self.weight.origin._version
        if version != self.version:
            self._pack()
            self.version = version
        return self.product(x).to(x.dtype)

    def check_weight(self) -> None:
        """Has the weight packed again if some of its elements have changed.

        A fused optimizer and a write to `.data` leave PyTorch's version as it
        is. They usually change all elements; a change of few is not noticed.
        """
        if self.samples is not None and not torch.equal(self._sample(), self.samples):
            self.version = None

    def _pack(self):
        value = self.weight.value()
        value = value.reshape(value.shape[-2:]).t()  # (O, I)
        if self.precision == "int8" and value.dtype == torch.float32:
            self.product = Int8Weight(value).multiply
        else:
            dtype = torch.bfloat16 if self.precision == "bfloat16" else value.dtype
            self.product = _float_product(value.to(dtype))
        self.samples = self._sample()

    def _sample(self):
        origin = self.weight.origin
        flat = origin.view(-1) if origin.is_contiguous() else origin.flatten()
        return flat[:: max(1, len(flat) // NUM_SAMPLES)].clone()


def _float_product(weight):
    """Returns a function that multiplies by a weight `(O, I)` in its dtype."""
    dtype = weight.dtype
    if supports_dtype(dtype):
        packed = reorder(weight)
        return lambda x: multiply(x.to(dtype), packed)
    packed = weight.contiguous()
    return lambda x: torch.matmul(x.to(dtype), packed.t())
