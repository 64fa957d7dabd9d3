"""Results of one backend from saved weights: logits, searches and 20 steps.

Run as `python -m tests.one_backend FOLDER` with KERAS_BACKEND set. FOLDER holds
`start.weights.h5` and `start.keras`; `<backend>.npz` is written beside them.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from keras_tfm import decode, runtime
from keras_tfm.models import Transformer
from keras_tfm.training import SmoothedCrossentropy
from tests.decode.conftest import draw_transformer
from tests.decode.test_shortlist import SIZE, draw_rows, draw_shortlist

STEPS, ROWS, S, T, V = 20, 8, 6, 5, 30

SEARCHES = {
    "greedy": {"return_attention": True, "jit_compile": False},
    "beam": {
        "beam_size": 3,
        "num_hypotheses": 3,
        "length_penalty_form": "gnmt",
        "coverage_penalty": 0.2,
        "patience": 2.0,
        "return_token_scores": True,
        "return_attention": True,
        "jit_compile": False,
    },
    "groups": {
        "beam_size": 4,
        "num_hypotheses": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.7,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_decoding_length": 3,
        "suppress_sequences": [[5, 6]],
        "disable_unk": True,
        "jit_compile": False,
    },
    "alternatives": {
        "num_hypotheses": 3,
        "return_alternatives": True,
        "jit_compile": False,
    },
}


def make_model():
    """Returns an untied model: embeddings get gradients from lookups only."""
    return Transformer(
        V,
        num_layers=1,
        embedding_dim=16,
        intermediate_dim=32,
        num_heads=2,
        tie=None,
        dropout=0.0,
    )


def batches(count):
    """Draws batches with padding and repeated ids."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        source = rng.integers(4, V, (ROWS, S)).astype("int32")
        target = rng.integers(4, V, (ROWS, T)).astype("int32")
        source[0, 3:] = target[1, 2:] = 0
        source[:, 0] = 7  # in every row
        first = np.full((ROWS, 1), 2, "int32")
        last = np.where(target[:, -1:] == 0, 0, 3).astype("int32")
        inputs = {"source_ids": source, "target_ids": np.hstack([first, target])}
        yield inputs, np.hstack([target, last])


def train(model):
    """Returns the loss of each of 20 steps of Adam."""
    model.compile(keras.optimizers.Adam(1e-3), SmoothedCrossentropy(0.1))
    losses = []
    for inputs, labels in batches(STEPS):
        model.reset_metrics()  # otherwise a loss is the mean of all earlier ones
        losses.append(float(model.train_on_batch(inputs, labels)))
    return losses


def search_results():
    """Maps names to the results of every kind of search in random models."""
    models = [draw_transformer(seed, vocabulary_size=SIZE) for seed in (1, 2)]
    rows, limit = draw_rows(6), {"max_decoding_length": 20}
    prefix = [[7], [8, 9], [], [10], [11, 4, 5], []]

    def search(model=models[0], **options):
        return runtime.Decoder(model, decode.Options(**limit, **options))

    actual = {
        name: search(**options)(rows, target_prefix=prefix)
        for name, options in SEARCHES.items()
    }
    beam = {"beam_size": 3, "num_hypotheses": 2, "jit_compile": False}
    phrases = [[[30, 31]], [[32], [33]], [], [], [], [[34, 35, 36]]]
    actual["phrases"] = search(**beam)(rows, constraints=phrases)
    actual["ensemble"] = search(decode.Ensemble(models), **beam)(rows)
    actual["shortlist"] = search(shortlist=draw_shortlist(), **beam)(rows)
    actual["forced"] = search(**beam).score(rows, [row[::-1] for row in rows])
    bulk_results = dict(search(**beam).bulk(draw_rows(23), batch_size=7))
    actual |= {f"row {number}": bulk_results[number] for number in (0, 11, 22)}
    return {
        f"search {name} {field}": np.asarray(values)
        for name, hypotheses in actual.items()
        for field, values in hypotheses._asdict().items()
        if values is not None
    }


def run(folder):
    """Loads the weights in both formats and saves the results."""
    model = make_model()
    model.load_weights(folder / "start.weights.h5")
    inputs, _ = next(batches(1))
    logits = keras.ops.convert_to_numpy(model(inputs))
    whole = keras.models.load_model(folder / "start.keras", compile=False)
    results = {"logits": logits, "whole": keras.ops.convert_to_numpy(whole(inputs))}
    results |= search_results()
    results["losses"] = train(model)
    for weight in model.weights:
        results[weight.path] = keras.ops.convert_to_numpy(weight)
    np.savez(folder / f"{keras.backend.backend()}.npz", **results)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))
