"""`generate`, `from_preset` and `save_to_preset` of the models."""

import keras
import numpy as np
import pytest

from keras_tfm import decode, models, runtime

IDS = [[5, 9, 4], [7, 6, 8, 3]]
SIZES = {"embedding_dim": 16, "num_heads": 2, "intermediate_dim": 16}


def transformer(**options):
    keras.utils.set_random_seed(3)
    return models.Transformer(20, num_layers=1, **SIZES, **options)


def test_generate_returns_what_a_decoder_does():
    model, options = transformer(), {"beam_size": 3, "max_decoding_length": 6}
    ids = model.generate(IDS, **options)
    decoder = runtime.Decoder(model, decode.Options(**options))
    np.testing.assert_array_equal(ids, decoder(IDS).ids[:, 0])
    padded = np.array([[5, 9, 4, 0], [7, 6, 8, 3]])
    np.testing.assert_array_equal(model.generate(padded, **options), ids)
    several = model.generate(IDS, num_hypotheses=3, **options)
    assert several.shape[:2] == (2, 3)
    np.testing.assert_array_equal(several[:, 0, : ids.shape[1]], ids)


def test_generate_uses_the_present_weights_and_compiles_once():
    model, options = transformer(), {"max_decoding_length": 4}
    original = model.generate(IDS, **options)
    decoder = model._decoder_of_generate
    model.set_weights([0 * weight for weight in model.get_weights()])
    changed = model.generate(IDS, **options)
    assert model._decoder_of_generate is decoder
    assert original.shape != changed.shape or (original != changed).any()
    model.generate(IDS, max_decoding_length=3)
    assert model._decoder_of_generate is not decoder


def test_a_language_model_continues_prompts():
    keras.utils.set_random_seed(3)
    model = models.CausalLM(20, num_layers=1, **SIZES)
    options = {"max_decoding_length": 5, "sampling_topk": 0}
    ids = model.generate(IDS, seed=1, **options)
    assert ids.dtype == "int32" and len(ids) == 2 and ids.shape[1] <= 5
    np.testing.assert_array_equal(ids, model.generate(IDS, seed=1, **options))


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_beams", "beam_size"),
        ("temperature", "sampling_temperature"),
        ("max_length", "max_decoding_length"),
        ("eos_token_id", "end_id"),
        ("do_sample", "sampling_topk"),
    ],
)
def test_the_name_of_a_peer_is_answered_with_the_option(name, expected):
    message = f"`{name}` is not a decoding option. Did you mean '{expected}'"
    with pytest.raises(TypeError, match=message):
        transformer().generate(IDS, **{name: 1})
    with pytest.raises(TypeError, match=message):
        decode.Options(**{name: 1})


@pytest.mark.backend("torch")
@pytest.mark.parametrize("source", ["a house", ["a house"]])
def test_generate_asks_for_ids_where_it_gets_text(source):
    with pytest.raises(TypeError, match="`source_ids` must be token ids; got text: "):
        transformer().generate(source)


@pytest.mark.backend("torch")
def test_a_model_is_read_from_the_preset_that_it_wrote(tmp_path):
    model = transformer(dropout=0.2)
    model.compile("adam", "mse")  # the optimizer is not written
    model.generate(IDS, max_decoding_length=2)
    model.save_to_preset(tmp_path / "a" / "b")
    loaded = models.Transformer.from_preset(tmp_path / "a" / "b")
    assert loaded.config == model.config and not loaded.compiled
    for actual, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ValueError, match="of a CausalLM; got .*, which is a Transf"):
        models.CausalLM.from_preset(tmp_path / "a" / "b")
    with pytest.raises(ValueError, match="Did you mean 'en-de'"):
        models.Transformer.from_preset("en-dee")
    with pytest.raises(FileNotFoundError, match="does not hold a model"):
        models.Transformer.from_preset(tmp_path)


@pytest.mark.backend("torch")
def test_a_shipped_preset_is_a_model():
    model = models.SequenceClassifier.from_preset("sentiment-en")
    assert isinstance(model, models.SequenceClassifier)
