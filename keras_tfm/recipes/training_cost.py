"""What a run has cost: tokens seen, and floating-point operations."""

from keras_tfm import models, text


def of_pairs(
    model: models.Transformer | models.RecurrentSeq2Seq,
    batches: text.Batches,
    epochs: int,
) -> dict[str, int]:
    """Counts and prints the cost of training on pairs.

    Args:
        model: the trained model.
        batches: `text.Batches` of training.
        epochs: int, those that were trained.

    Returns:
        dict of JSON values: tokens of both sides, padding not counted (of the
        best segmentation, where subwords are sampled), and operations, see
        `models.training_flops`.
    """
    source_positions, flops = _of_buckets(model, batches, epochs)
    steps = epochs * batches.steps_per_epoch
    counts = {
        "source_tokens_seen": round(source_positions * (1 - batches.padding["source"])),
        "target_tokens_seen": round(steps * batches.target_tokens_per_batch),
    }
    return _printed(counts, flops)


def of_rows(
    model: models.CausalLM, rows: text.TokenRows, batch_size: int, epochs: int
) -> dict[str, int]:
    """Counts and prints the cost of training on running text.

    Args:
        model: the trained model.
        rows: `text.TokenRows` of training.
        batch_size: int.
        epochs: int, those that were trained.

    Returns:
        As `of_pairs`, with `"tokens_seen"`.
    """
    steps, length = epochs * rows.steps_per_epoch, rows.lengths(0)[0]
    flops = steps * models.training_flops(model, batch_size, length)
    return _printed({"tokens_seen": steps * batch_size * length}, flops)


def of_texts(
    model: models.SequenceClassifier, batches: text.LabelBatches, epochs: int
) -> dict[str, int]:
    """Counts and prints the cost of training a classifier on texts.

    Args:
        model: the trained model, all of whose weights were trained.
        batches: `text.LabelBatches` of training.
        epochs: int, those that were trained.

    Returns:
        As `of_rows`.
    """
    positions, flops = _of_buckets(model, batches, epochs)
    tokens = round(positions * (1 - batches.padding))
    return _printed({"tokens_seen": tokens}, flops)


def _of_buckets(model, batches, epochs):
    """Returns the positions of the first column, and the operations."""
    positions = flops = 0
    for bucket in batches.buckets:
        size, count = bucket.batch_size, epochs * bucket.num_batches
        positions += count * size * bucket.lengths[0]
        flops += count * models.training_flops(model, size, *bucket.lengths)
    return positions, flops


def _printed(counts, flops):
    tokens = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()
    )
    print(f"Training cost: {flops:.1e} FLOPs; {tokens}")
    return counts | {"training_flops": flops}
