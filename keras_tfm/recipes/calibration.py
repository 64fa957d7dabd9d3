"""The n-grams beside a trained encoder, and calibrated probabilities."""

import numpy as np
from keras import ops

from keras_tfm import models, text
from keras_tfm.layers.masks import padding_mask
from keras_tfm.recipes import ngram_model
from keras_tfm.recipes.logit_scales import balanced_weights, fit_scales
from keras_tfm.runtime.compile import compiled


def combine(
    model: models.SequenceClassifier,
    train: text.LabelBatches,
    validation: text.LabelBatches,
    whole: text.LabelBatches | None = None,
    balanced: bool = False,
) -> dict:
    """Fits the bag of n-grams, and scales all logits on the validation set.

    The scales minimize the validation loss; that of an encoder alone is an
    inverse temperature. They are multiplied into the last weights, so that the
    saved model needs no further layer. Finally the n-grams are fitted to the
    validation texts too, as scikit-learn's `GridSearchCV` does: the encoder has
    not seen them, and the scales stay.

    Args:
        model: trained; its bag of n-grams, if any, is replaced.
        train, validation: batches of the splits.
        whole: batches of the texts that both were drawn from; None to keep the
            n-grams as they are fitted to `train`.
        balanced: bool. All classes have the same total weight.

    Returns:
        dict of JSON values about the fit.
    """
    bag, fitted = model.ngram_bag, None
    if bag is not None:
        bag.trainable = True  # for whoever trains the model again
        fitted = ngram_model.fit(model, train, validation, balanced)
    labels, logits, of_bag = predict(model, validation)
    components = {"encoder": (model.output_dense, logits - of_bag)}
    if fitted is not None:
        components["n-grams"] = (bag, of_bag)
    weights = balanced_weights(labels, model.num_classes) if balanced else None
    scales = fit_scales([values for _, values in components.values()], labels, weights)
    if fitted is not None and whole is not None:
        ngram_model.refit(model, whole, fitted, balanced)
    result, combined = {}, np.zeros_like(logits)
    for (name, (layer, values)), scale in zip(components.items(), scales, strict=True):
        for weight in (layer.kernel, layer.bias):
            weight.assign(ops.cast(scale, weight.dtype) * weight)
        combined += scale * values
        accuracy = round(ngram_model.fraction_right(values, labels), 4)
        result[name] = {"scale": round(float(scale), 4), "validation": accuracy}
    if fitted is not None:
        result["n-grams"] |= {"weighting": fitted.weighting, "c": fitted.strength}
    combined_accuracy = round(ngram_model.fraction_right(combined, labels), 4)
    report = (
        f"{name} {values['validation']:.4f}, scaled by {values['scale']:.2f}"
        for name, values in result.items()
    )
    kind = "label accuracy" if model.multi_label else "accuracy"
    print(f"Validation {kind} {combined_accuracy:.4f} ({'; '.join(report)})")
    return {"logits": result | {"validation": combined_accuracy}}


def predict(
    model: models.SequenceClassifier, batches: text.LabelBatches
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes logits in the order of `batches.ordered()`.

    Returns:
        The labels; the logits, float64 `(N, C)`; and the logits of the n-grams
        among them, zeros if the model has none.
    """
    call = compiled(lambda inputs: model(inputs, training=False), model, False)
    labels, logits, of_bag = [], [], []
    for step in range(batches.steps_per_epoch):
        inputs, batch_labels = batches.ordered_batch(step)
        labels.append(batch_labels)
        logits.append(ops.convert_to_numpy(call(inputs)))
        of_bag.append(np.zeros_like(logits[-1]))
        if model.ngram_bag is not None:
            token_ids = ops.convert_to_tensor(inputs["token_ids"])
            mask = padding_mask(token_ids, model.encoder.pad_id)
            values = model.ngram_bag(token_ids, padding_mask=mask)
            of_bag[-1] = ops.convert_to_numpy(values)
    labels, logits, of_bag = map(np.concatenate, (labels, logits, of_bag))
    return labels, logits.astype("float64"), of_bag.astype("float64")
