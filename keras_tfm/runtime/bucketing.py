"""How many tokens a search takes, gives, and makes room for."""

import numpy as np
from keras import ops

from keras_tfm.decode.inputs import LENGTHS, rounded_up

# A search makes room for so many tokens, and for more only when they come: a
# step costs what it has room for.
ROOMS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
FEW = (32, 64, 128, 256, 512, 1024, 2048, 4096)
MARKS = 4  # tokens: of languages, starts and ends, beside those of a text


class Lengths:
    """How many tokens a search takes, gives, and makes room for.

    Args:
        length_rule: pair of ints, `Options.length_rule`.
        longest: int or None: tokens that the model has positions for.
        continues: bool. What a row says stands after its source, as after the
            prompt of a language model, and has what positions are left.
        few_buckets: bool. Round up further, see `Decoder`.

    Raises:
        ValueError: a length out of its range, or past the positions.
    """

    def __init__(
        self,
        length_rule,
        longest=None,
        continues=False,
        few_buckets=False,
    ):
        self.continues = continues
        few = [size + MARKS for size in FEW], FEW
        self._widths, self._rooms = few if few_buckets else (LENGTHS, ROOMS)
        self.multiple, self.constant = map(int, length_rule)
        self.longest = longest
        if longest and not self.multiple and self.constant > longest:
            raise ValueError(
                "A hypothesis cannot be longer than the table of learned positions. "
                f"Received: max_decoding_length={self.constant}; "
                f"sequence_length={longest}."
            )

    def limit(self, source_length):
        """Gives the tokens that a translation may have, and room for them.

        Args:
            source_length: int, or int tensor, in tokens.

        Returns:
            int, or int tensor of that shape.
        """
        limit = self.multiple * source_length + self.constant
        if self.longest is None:
            return limit
        if isinstance(limit, int):
            return min(limit, self.longest)
        return ops.minimum(limit, self.longest)

    def limit_of_row(self, source_length):
        """Gives the tokens that a row may have.

        Args:
            source_length: int, or int tensor, in tokens, without padding.

        Returns:
            int, or int tensor of that shape; what `limit` gives, or less.
        """
        limit = self.limit(source_length)
        if self.longest is None or not self.continues:
            return limit
        left = self.longest + 1 - source_length  # its last is read by a step
        return min(limit, left) if isinstance(left, int) else ops.minimum(limit, left)

    def limits(self, source_ids):
        """Gives the tokens that each row may have.

        Args:
            source_ids: integers `(B, S)`, NumPy, padded with 0.

        Returns:
            List of B ints, 0 where there is no source.
        """
        counts = np.count_nonzero(source_ids, axis=1).tolist()
        return [self.limit_of_row(count) if count else 0 for count in counts]

    def room_above(self, index):
        """Gives the tokens to make room for.

        Args:
            index: int, the tokens that there is room for so far.

        Returns:
            int, more than that.
        """
        room = next((room for room in self._rooms if room > index), 2 * index)
        most = [] if self.multiple else [self.constant]
        return min([room, *most, *([self.longest] if self.longest else [])])

    def width(self, source_length):
        """Gives the source tokens that a program is compiled for.

        Args:
            source_length: int, in tokens.

        Returns:
            int, no less than that.
        """
        width = rounded_up(source_length, self._widths)
        return max(source_length, min(width, self.longest or width))

    def read(self, source_length):
        """Gives the source tokens that are read of a batch, of its width.

        Args:
            source_length: int, in tokens.

        Returns:
            int >= 1, no less than that, and above it by an eighth or 3 at most.
        """
        length = max(1, source_length)
        step = max(4, (1 << (length - 1).bit_length()) // 8)
        return min(-(-length // step) * step, self.width(length))

    def padded(self, source_ids):
        """Pads sources to such a width.

        Args:
            source_ids: integers `(B, S)`, NumPy.

        Returns:
            integers `(B, width)`.
        """
        length = source_ids.shape[1]
        return np.pad(source_ids, ((0, 0), (0, self.width(length) - length)))
