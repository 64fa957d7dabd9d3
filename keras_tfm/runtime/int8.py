"""Multiplies by weights of 8 bits, with exact sums of integers (PyTorch).

Each output channel of a weight has a scale, and so has each vector: the product
of a vector does not depend on the other vectors of its batch. A processor with
AVX512_VNNI, AVX_VNNI or AMX multiplies 8 bits two to four times as fast as
float32.

Private API, tested with torch 2.13: `torch.ops.onednn.qlinear_prepack` and
`qlinear_pointwise`. `is_supported` returns False where they are missing.
"""

import functools

import torch

INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")
LARGEST = 127  # of a signed integer of 8 bits
ZERO = 128  # vectors are unsigned, as the instructions take them
TINY = 1e-30  # scale of a vector of zeros


@functools.cache
def is_supported() -> bool:
    """Returns whether this processor multiplies 8 bits exactly and fast.

    Example:
        ```python
        from keras_tfm.runtime import int8

        print(int8.is_supported())
        ```
    """
    try:
        capabilities = torch.cpu.get_capabilities()
        if not any(capabilities.get(name) for name in INSTRUCTIONS):
            return False
        # Older instructions saturate at sums of 16 bits.
        weight = torch.ones(8, 64) * torch.tensor([1.0, -1.0] * 4)[:, None]
        product = Int8Weight(weight).multiply(torch.ones(3, 64))
        return torch.equal(product, weight.sum(1).expand(3, 8))
    except (AttributeError, RuntimeError):
        return False


class Int8Weight:
    """A weight in 8 bits, prepacked by oneDNN.

    Args:
        weight: tensor float32 `(O, I)`.

    Example:
        ```python
        import torch
        from keras_tfm.runtime import int8

        if int8.is_supported():
            weight, x = torch.eye(64), torch.rand(2, 64)
            product = int8.Int8Weight(weight).multiply(x)
            assert torch.allclose(product, x, atol=0.01)
        ```
    """

    def __init__(self, weight: torch.Tensor):
        scales = weight.abs().amax(1).clamp_min(TINY) / LARGEST
        integers = torch.round(weight / scales[:, None]).to(torch.int8)
        self.scales = scales
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack(integers.contiguous(), None)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies vectors by the transposed weight.

        Args:
            x: tensor float32 `(..., I)`.

        Returns:
            Tensor float32 `(..., O)`.
        """
        # The infinity norm of PyTorch takes 15 times as long.
        peak = x.abs().amax(-1, keepdim=True).clamp_min(TINY)
        # PyTorch converts to signed integers three to five times as fast as to
        # unsigned ones. Inverting their first bit then adds 128.
        signed = (x * (LARGEST / peak)).round_().to(torch.int8)
        integers = signed.view(torch.uint8).bitwise_xor_(ZERO)
        product = torch.ops.onednn.qlinear_pointwise(
            *(integers, 1.0, ZERO, self.packed, self.scales, self.zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return product.mul_(peak / LARGEST)  # another tensor of logits costs time
