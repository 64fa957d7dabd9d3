"""On PyTorch: products by a weight that is packed for the processor once.

oneDNN multiplies 32 to 128 vectors by a weight in an order of its own one and a
half to two times as fast as PyTorch does by one as it stands in float32, and
faster in bfloat16 where the processor has that. What is packed stands in memory
beside the weight.
"""

import torch

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default}
# What gives the same numbers in another shape or dtype.
TURNING = {
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
DTYPES = {torch.float32, torch.bfloat16}
SOME = 100  # numbers of a weight that are looked at
LEAST = 2**16  # elements; with less the call takes longer than it saves


class Weight:
    """A tensor that is made of another by turning alone."""

    def __init__(self, origin, turns=()):
        self.origin = origin
        self.turns = turns

    def turned(self, function, arguments, options):
        """The weight after one more turn."""
        return Weight(self.origin, (*self.turns, (function, arguments, options)))

    def value(self):
        """The tensor as it is now."""
        value = self.origin
        for function, arguments, options in self.turns:
            value = function(value, *arguments, **options)
        return value

    def key(self):
        """What two of the same have in common."""
        return id(self.origin), str(self.turns)


class Packed(torch.nn.Module):
    """Products by a weight `(I, O)` or `(1, I, O)`.

    Args:
        weight: `Weight`.
        narrow: bool. Multiply in bfloat16, whatever the weight is.
    """

    def __init__(self, weight, narrow=False):
        super().__init__()
        self.weight, self.narrow = weight, narrow
        self.version, self.packed = None, None
        self.some = None  # of its numbers, as they were when it was packed

    @staticmethod
    def fits(weight, value):
        """Whether a weight, of this value, can be packed."""
        return (
            torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
            and value.device.type == "cpu"
            and value.dtype in DTYPES
            and value.numel() >= LEAST
            and (value.ndim == 2 or value.shape[0] == 1)
            # Else it could not be seen whether it was written to.
            and not weight.origin.is_inference()
        )

    def forward(self, x, fast):
        """Multiplies float `(..., I)`, of as many axes as the weight.

        Args:
            x: the vectors.
            fast: bool. By the packed weight, packed anew if it was written to;
                else as PyTorch does.
        """
        if not fast:
            return torch.matmul(x, self.weight.value())
        version = self.weight.origin._version
        if version != self.version:
            value = self.weight.value()
            value = value.reshape(value.shape[-2:]).t()
            value = value.bfloat16() if self.narrow else value
            self.packed = torch.ops.mkldnn._reorder_linear_weight(value)
            self.some, self.version = self._some(), version
        narrow = x.bfloat16() if self.narrow else x
        product = torch.ops.mkldnn._linear_pointwise(
            narrow, self.packed, None, "none", [], ""
        )
        return product.to(x.dtype)

    def look(self):
        """Has it packed anew if some of its numbers are others.

        What a fused optimizer of PyTorch's or a write to `.data` does is in no
        version. It mostly changes all numbers; a change of few is not seen.
        """
        if self.some is not None and not torch.equal(self._some(), self.some):
            self.version = None

    def _some(self):
        origin = self.weight.origin
        whole = origin.view(-1) if origin.is_contiguous() else origin.flatten()
        return whole[:: max(1, len(whole) // SOME)].clone()
