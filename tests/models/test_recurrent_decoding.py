"""RecurrentSeq2Seq in beam search, offline decoding, ensembles, translators."""

import functools

import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode.search_state import reorder_cache
from keras_tfm.models import RecurrentSeq2Seq
from keras_tfm.pipelines import Translator
from keras_tfm.text import Vocabulary
from tests.decode.languages import assert_hypotheses, log_softmax, reference_beam_search
from tests.layers.formulas import numpy, softmax
from tests.models.recurrent_formula import (
    LENGTHS,
    begin_cache,
    logits_of,
    model_of,
    network,
    run_step,
    small,
    with_drawn_weights,
)
from tests.models.small import SOURCE, TARGET, V


@functools.cache
def search_model():
    """Its hypotheses differ, and some of them end."""
    return small(seed=23)


@pytest.mark.backend("torch")
def test_beam_search_equals_the_reference_search_with_the_formula():
    model, sources = search_model(), np.pad(SOURCE, [[0, 1], [0, 4]])
    options = {"return_attention": True, "jit_compile": False}
    beam = runtime.Decoder(
        model,
        decode.Options(
            beam_size=3, num_hypotheses=3, max_decoding_length=18, **options
        ),
    )
    actual = beam(sources)

    def next_log_probs(histories):
        source = SOURCE[row, : LENGTHS[row]]
        logits = [network(model, source, [2, *ids])[0][-1] for ids in histories]
        return log_softmax(np.stack(logits), (0, 1, 2))

    for row in range(2):
        assert_hypotheses(
            actual, row, reference_beam_search(next_log_probs, 18, 3, 3), tolerance=1e-4
        )
    assert actual.lengths[2].tolist() == [0, 0, 0]
    assert len({tuple(ids) for ids in actual.ids[:2].reshape(6, -1)}) > 3
    assert actual.lengths.max() == 18  # beyond the first capacity of the cache
    size = actual.lengths[0, 0]
    _, expected = network(model, SOURCE[0], [2, *actual.ids[0, 0, : size - 1]])
    attention = actual.attention[0, 0, :size, :4]
    np.testing.assert_allclose(attention, expected, atol=1e-4)
    assert attention.std() > 0.01


@pytest.mark.backend("torch")  # the search of each backend is tested elsewhere
def test_sequences_that_join_a_running_batch_keep_their_states():
    draw = np.random.default_rng(0)
    rows = [draw.integers(4, V, n).tolist() for n in draw.integers(1, 6, 9)]
    search = runtime.Decoder(
        search_model(),
        decode.Options(beam_size=3, max_decoding_length=20, jit_compile=False),
    )
    for index, actual in search.bulk(rows, batch_size=3):
        expected = search([rows[index]])
        assert actual.lengths.tolist() == expected.lengths.tolist()
        size = min(actual.ids.shape[-1], expected.ids.shape[-1])
        assert actual.ids[..., :size].tolist() == expected.ids[..., :size].tolist()


@pytest.mark.backend("tensorflow")
def test_xla_compiles_begin_and_step():
    model = model_of("gru additive", 1)
    begin = runtime.compiled(lambda ids: model.begin(ids, 4), model)
    step = runtime.compiled(model.step, model)
    index = ops.convert_to_tensor(0, "int32")
    first = ops.convert_to_tensor(TARGET[:, :1])
    actual, _ = step(first, index, begin(ops.convert_to_tensor(SOURCE)))
    expected = logits_of(model)[:, 0]
    np.testing.assert_allclose(numpy(actual)[:, 0], expected, atol=1e-5)


@pytest.mark.backend("torch")
def test_an_ensemble_averages_recurrent_models():
    models = [model_of("gru additive"), model_of("lstm multiplicative")]
    ensemble = decode.Ensemble(models)
    cache = ensemble.extend(begin_cache(ensemble, beams=2), 8)
    cache = reorder_cache(cache, ops.zeros((2, 2), "int32"))
    actual, cache = run_step(ensemble, np.repeat(TARGET[:, :1], 2, axis=1), 0, cache)
    probabilities = [
        softmax(logits_of(model)[:, 0].astype("float64")) for model in models
    ]
    expected = np.log(np.mean(probabilities, axis=0))
    for beam in range(2):
        np.testing.assert_allclose(numpy(actual)[:, beam], expected, atol=1e-5)
    np.testing.assert_allclose(numpy(cache["attention"]).sum(-1), 1, atol=1e-5)


def test_a_translator_with_a_recurrent_model_is_saved(tmp_path):
    texts = ["a house by the sea", "the old house", "", "sea"]
    vocabulary = Vocabulary.train(texts * 20, size=273)
    settings = {**model_of("gru additive").config, "vocabulary_size": 273}
    model = with_drawn_weights(RecurrentSeq2Seq(**settings))
    options = {"beam_size": 2, "max_decoding_length": 5, "jit_compile": False}
    translator = Translator(model, vocabulary).replace(**options)
    translator.save(tmp_path / "model")
    loaded = Translator.load(tmp_path / "model")
    assert type(loaded.model) is RecurrentSeq2Seq
    pairs = zip(loaded.model.get_weights(), model.get_weights(), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    assert loaded.changes() == translator.changes()
