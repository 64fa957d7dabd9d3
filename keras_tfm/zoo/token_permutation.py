"""Which token of a checkpoint has which id here."""

import numpy as np

# Logit of a token that is never generated. float16 holds it, and smoothed
# labels, which give each of V tokens 1 / V, add no more than 1e4 / V to a loss.
NEVER_LOGIT = -1e4


class TokenPermutation:
    """Renumbers a vocabulary: padding, unknown, start and end become 0 to 3.

    The other tokens follow in their order. Where decoding starts with padding,
    the unknown or the end token, the start becomes a token of its own with the
    same embedding. Where one token is the end and also unknown or padding, it
    is the end alone, and the others are absent. The separate start, and each
    token that is absent, gets a logit bias by which it is never generated.

    Args:
        vocabulary_size: int, V of the checkpoint.
        pad_id: int in the checkpoint, as those that follow; or None.
        unknown_id: int or None.
        start_id: int, the first token that the decoder reads; None where it
            reads zeros.
        end_id: int; None where no token ends a sequence.

    Attributes:
        size: int, V here.
        order: int array `(size,)`, the id in the checkpoint of each id here;
            -1 where it has none.
        start_id, end_id: int, here.
        unknown_id: int or None, in the checkpoint.
        never_generated: list of int, ids here.

    Raises:
        ValueError: an id is outside the vocabulary.

    Example:
        ```python
        from keras_tfm.zoo.token_permutation import TokenPermutation

        permutation = TokenPermutation(
            6, pad_id=5, unknown_id=1, start_id=2, end_id=0
        )
        print(permutation.order)  # [5 1 2 0 3 4]
        print(permutation.to_ours(0))  # 3
        ```
    """

    start_id, end_id = 2, 3

    def __init__(
        self,
        vocabulary_size: int,
        pad_id: int | None,
        unknown_id: int | None,
        start_id: int | None,
        end_id: int | None,
    ):
        present = [i for i in (pad_id, unknown_id, start_id, end_id) if i is not None]
        if not all(isinstance(i, int) for i in (vocabulary_size, *present)) or not all(
            0 <= i < vocabulary_size for i in present
        ):
            raise ValueError(
                "`pad_id`, `unknown_id`, `start_id` and `end_id` must be tokens of the "
                f"vocabulary; got pad_id={pad_id}, unknown_id={unknown_id}, end_id="
                f"{end_id}, start_id={start_id}, vocab_size={vocabulary_size}."
            )
        if pad_id in (unknown_id, end_id):
            pad_id = None
        if unknown_id == end_id:
            unknown_id = None
        special = [pad_id, unknown_id, start_id, end_id]
        rest = [i for i in range(vocabulary_size) if i not in present]
        self.order = np.array([-1 if i is None else i for i in special] + rest)
        self.size, self.unknown_id = len(self.order), unknown_id
        self.never_generated = [i for i in range(4) if self.order[i] < 0]
        if start_id is not None and start_id in (pad_id, unknown_id, end_id):
            self.never_generated.append(2)
        # Of two ids here for one token, the start is the second choice.
        self._to_ours = {int(self.order[2]): 2}
        self._to_ours |= {int(t): i for i, t in enumerate(self.order) if i != 2}
        self._checkpoint_size = vocabulary_size

    def to_ours(self, checkpoint_id: int) -> int:
        """Returns the id here of a token of the checkpoint.

        Args:
            checkpoint_id: int.

        Raises:
            ValueError: there is no such token.
        """
        if checkpoint_id not in self._to_ours:
            raise ValueError(
                f"a token id must be from 0 to {self._checkpoint_size - 1}, those of "
                f"the vocabulary; got {checkpoint_id!r:.40}"
            )
        return self._to_ours[checkpoint_id]

    def rows(self, matrix: np.ndarray) -> np.ndarray:
        """Reorders the rows of an embedding matrix; absent tokens get zeros.

        Args:
            matrix: array `(V, ...)`.

        Raises:
            ValueError: the matrix has another number of rows.
        """
        if len(matrix) != self._checkpoint_size:
            raise ValueError(
                "The embedding matrix must have a row for each token of the "
                f"vocabulary; got {len(matrix)} rows, and {self._checkpoint_size} "
                "tokens."
            )
        reordered = matrix[self.order]
        reordered[self.order < 0] = 0
        return reordered

    def bias(self, values: np.ndarray | None = None) -> np.ndarray:
        """Reorders the bias of the logits.

        Args:
            values: array `(1, V)` or `(V,)`; None for zeros.

        Returns:
            float32 array `(size,)`, `NEVER_LOGIT` at `never_generated`.
        """
        if values is None:
            values = np.zeros(self._checkpoint_size, "float32")
        bias = self.rows(values.reshape(-1)).astype("float32")
        bias[self.never_generated] = NEVER_LOGIT
        return bias
