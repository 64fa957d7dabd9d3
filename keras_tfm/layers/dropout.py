"""What all layers that drop have in common."""


def check_shares(**shares):
    """Refuses shares that leave nothing, or are none.

    Args:
        **shares: floats in [0, 1), by their names.

    Raises:
        ValueError: one is another number.
    """
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(
                f"`{name}` is a share from 0 to below 1. Received: {share}."
            )
