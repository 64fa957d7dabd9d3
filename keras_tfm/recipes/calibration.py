"""The n-grams beside a trained encoder, and calibrated probabilities."""

from collections.abc import Sequence

import numpy as np
from keras import ops
from scipy import optimize, special

from keras_tfm import models, text
from keras_tfm.layers.masks import padding_mask
from keras_tfm.recipes import ngram_model

# A pull of the weights towards 1, as strong as that of one text: a validation
# set that is classified without a fault would make them infinite.
PRIOR = 1.0


def combine(
    model: models.SequenceClassifier,
    train: text.LabelBatches,
    validation: text.LabelBatches,
) -> dict:
    """Fits the bag of n-grams, and scales all logits on the validation set.

    The scales minimize the validation loss; with an encoder alone its scale is
    an inverse temperature. They are multiplied into the last weights, so that
    the model has no further part.

    Args:
        model: trained; its bag of n-grams, if any, is replaced.
        train, validation: batches of the splits.

    Returns:
        dict of JSON values about the fit.

    Source: temperature: Guo et al. 2017, section 4.2.
    https://arxiv.org/abs/1706.04599
    """
    bag, fitted = model.ngram_bag, {}
    if bag is not None:
        bag.trainable = True  # for whoever trains the model again
        fitted = ngram_model.fit(model, train, validation)
    labels, logits, of_bag = predict(model, validation)
    parts = {"encoder": (model.output_dense, logits - of_bag)}
    if fitted:
        parts["n-grams"] = (bag, of_bag)
    scales = fit_scales([values for _, values in parts.values()], labels)
    for (layer, values), scale in zip(parts.values(), scales, strict=True):
        for weight in (layer.kernel, layer.bias):
            weight.assign(ops.cast(scale, weight.dtype) * weight)
        logits = logits + (scale - 1) * values
    scores = {
        name: round(ngram_model.fraction_right(values, labels), 4)
        for name, (_, values) in parts.items()
    }
    scores["both"] = round(ngram_model.fraction_right(logits, labels), 4)
    result = {
        name: {"scale": round(float(scale), 4), "validation": scores[name]}
        for name, scale in zip(parts, scales, strict=True)
    }
    if fitted:
        result["n-grams"] |= {name: fitted[name] for name in ("weighting", "c")}
        print(f"Validation accuracy of each part of the logits: {scores}")
    print(f"Scales of the logits, fitted on the validation set: {scales.round(2)}")
    return {"logits": result}


def predict(
    model: models.SequenceClassifier, batches: text.LabelBatches
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes logits in the order of `batches.ordered()`.

    Returns:
        The labels, the logits, float64 `(N, C)`, and the part of the bag of
        n-grams in them, 0 without one.
    """
    labels, logits, of_bag = [], [], []
    for step in range(batches.steps_per_epoch):
        inputs, batch_labels = batches.ordered_batch(step)
        inputs = {name: ops.convert_to_tensor(ids) for name, ids in inputs.items()}
        labels.append(batch_labels)
        logits.append(ops.convert_to_numpy(model(inputs, training=False)))
        of_bag.append(np.zeros_like(logits[-1]))
        if model.ngram_bag is not None:
            mask = padding_mask(inputs["token_ids"], model.encoder.pad_id)
            values = model.ngram_bag(inputs["token_ids"], padding_mask=mask)
            of_bag[-1] = ops.convert_to_numpy(values)
    labels, logits, of_bag = map(np.concatenate, (labels, logits, of_bag))
    return labels, logits.astype("float64"), of_bag.astype("float64")


def fit_scales(logits: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Finds the scales of logits whose weighted sum has the least loss.

    Args:
        logits: M arrays `(N, C)`.
        labels: int `(N,)`, or 0 and 1 `(N, C)`.

    Returns:
        float `(M,)`, above 0.
    """
    stacked = np.stack(logits)  # (M, N, C)

    def loss(log_scales):
        total = np.tensordot(np.exp(log_scales), stacked, 1)  # (N, C)
        penalty = PRIOR * np.sum(log_scales**2)
        if labels.ndim == 2:
            return np.sum(np.logaddexp(0, total) - labels * total) + penalty
        right = np.take_along_axis(total, labels[:, None], axis=1)[:, 0]
        return np.sum(special.logsumexp(total, axis=1) - right) + penalty

    return np.exp(optimize.minimize(loss, np.zeros(len(logits))).x)
