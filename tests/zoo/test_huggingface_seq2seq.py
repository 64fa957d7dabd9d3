"""Imported models that generate have the logits and ids of transformers."""

import time

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.decode import Options
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.runtime import Decoder
from keras_tfm.zoo import weight_loader
from tests.layers.formulas import numpy
from tests.zoo.checkpoints import (
    FAMILIES,
    T,
    V,
    change,
    draw,
    library_ids,
    logits_of,
    reference_ids,
    start_of,
    until_end,
    write,
    write_gpt2,
    write_lively,
)

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family, tmp_path):
    check_logits(tmp_path, write(tmp_path, family))


CONFIG_VALUES = [
    # Two or three embedding matrices.
    *(
        (family, {"tie_word_embeddings": False})
        for family in FAMILIES
        if "T5" not in family
    ),
    ("Marian", {"scale_embedding": False, "activation_function": "gelu_new"}),
    ("BART", {"encoder_layers": 1, "decoder_layers": 3, "scale_embedding": True}),
    ("T5", {"dense_act_fn": "silu", "is_gated_act": True}),
    ("T5 1.1", {"dense_act_fn": "relu", "is_gated_act": False}),
    ("T5", {"relative_attention_max_distance": 18, "num_decoder_layers": 1}),
    ("T5 1.1", {"layer_norm_epsilon": 1e-2, "scale_decoder_outputs": True}),
]


@pytest.mark.parametrize(("family", "values"), CONFIG_VALUES)
def test_values_of_the_config_change_the_logits_as_in_transformers(
    family, values, tmp_path
):
    check_logits(tmp_path, write(tmp_path, family, **values))


def check_logits(folder, reference):
    import torch

    config = reference.config
    source, target = draw(config)
    imported = zoo.from_hugging_face(folder)
    assert isinstance(imported.model, Transformer)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
            decoder_input_ids=torch.tensor(target),
            use_cache=False,  # with a cache FSMT attends to the future
        ).logits.numpy()
    actual = numpy(
        imported.model(
            {
                "source_ids": library_ids(source, config),
                "target_ids": library_ids(target, config),
            }
        )
    )
    for side in imported.permutations:
        assert side.tolist() == reference_ids(config).tolist()
    assert (actual[..., 2] < -9e3).all()  # the start is never generated
    actual[..., 2] = expected[..., start_of(config)]
    np.testing.assert_allclose(actual, expected[:, :, reference_ids(config)], atol=1e-4)
    assert np.abs(expected).max() > 0.1


SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 3},
    "beam, stops": {"num_beams": 3, "early_stopping": True},
    "beam, to the limit": {"num_beams": 3, "early_stopping": "never"},
    "beam, bare scores": {"num_beams": 3, "length_penalty": 0.0},
    "beam, long": {"num_beams": 3, "length_penalty": 2.0, "min_length": 6},
}


# Other tests show that decoding steps equal a call of the model, and that a
# search gives the same result on every backend.
@pytest.mark.parametrize(
    ("family", "name", "forced"),
    [(family, name, 7) for family in FAMILIES for name in ("greedy", "beam")]
    + [
        (family, name, None)
        for family in ("Marian, untied", "Pegasus", "T5 1.1")
        for name in SEARCHES
    ],
)
def test_decoder_gives_the_ids_of_generate(family, name, forced, tmp_path):
    import torch

    search_options = SEARCHES[name]
    reference, source = write_lively(tmp_path, family)
    config = reference.config
    reference.generation_config.update(
        max_length=14,
        bad_words_ids=[[config.pad_token_id], [config.eos_token_id]],
        renormalize_logits=True,  # suppressed tokens have probability 0 here
        forced_eos_token_id=None,
        forced_bos_token_id=forced,
        decoder_start_token_id=start_of(config),
        **search_options,
    )
    reference.generation_config.save_pretrained(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    settings = dict(imported.options)
    prefix = settings.pop("target_prefix")
    assert settings.pop("source_suffix") == [3]
    settings.pop("source_prefix", None)
    settings.pop("split_tokens", None)
    search = Decoder(imported.model, Options(**settings))
    assert search.options.beam_size == search_options["num_beams"]
    actual = search(library_ids(source, config), [prefix] * len(source)).ids[:, 0]
    with torch.no_grad():
        expected = reference.generate(
            torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
        ).numpy()[:, 1:]
    actual, expected = until_end(actual), until_end(library_ids(expected, config))
    assert actual == expected
    assert {row[-1] == 3 for row in expected} >= {True}
    assert len(set(map(tuple, expected))) > 1
    assert prefix == ([] if forced is None else [expected[0][0]])


T5_VALUES = {
    "layer_norm_epsilon": 0.1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "num_decoder_layers": 3,
}


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("T5", T5_VALUES),
        ("T5", {"feed_forward_proj": "gelu"}),
        ("T5", {"feed_forward_proj": "gated-gelu"}),
        ("T5", {"feed_forward_proj": "gated-silu"}),
        ("BART", {"activation_function": "silu", "scale_embedding": True}),
        ("BART", {"activation_function": "relu", "encoder_layers": 1}),
        ("Pegasus", {"activation_function": "gelu_new", "decoder_layers": 1}),
        ("Pegasus", {"scale_embedding": False}),
        ("M2M100", {"activation_function": "gelu", "scale_embedding": False}),
        ("Marian", {"scale_embedding": False, "decoder_ffn_dim": 24}),
    ],
)
def test_other_configs_give_the_same_logits(family, values, tmp_path):
    import torch

    reference = write(tmp_path, family, **values)
    config = reference.config
    source, target = draw(config)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()[:, :, reference_ids(config)]
    actual = logits_of(tmp_path, config)
    assert (actual[..., 2] < -9e3).all()
    columns = np.arange(expected.shape[-1]) != 2
    np.testing.assert_allclose(actual[..., columns], expected[..., columns], atol=1e-4)


def test_the_default_scale_of_embeddings_depends_on_the_family(tmp_path):
    for family, expected in (("M2M100", True), ("BART", False)):
        write(tmp_path, family)
        change(tmp_path, scale_embedding=None)
        model = zoo.from_hugging_face(tmp_path).model
        assert model.config["scale_embedding"] is expected


def test_the_first_configs_of_t5_are_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, "T5").config
    expected = logits_of(tmp_path, config)
    weights = load_file(tmp_path / "model.safetensors")
    # The first checkpoints have an unused matrix and a shorter config.
    weights[
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    ] = np.ones((32, 3), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    absent = (
        "feed_forward_proj",
        "is_gated_act",
        "dense_act_fn",
        "tie_word_embeddings",
    )
    absent += ("scale_decoder_outputs", "relative_attention_max_distance")
    architectures = {"architectures": ["T5WithLMHeadModel"]}
    change(tmp_path, **dict.fromkeys(absent), **architectures)
    np.testing.assert_array_equal(logits_of(tmp_path, config), expected)


def test_a_gated_gelu_is_the_approximation_by_tanh(tmp_path):
    config = write(tmp_path, "T5 1.1").config
    expected = logits_of(tmp_path, config)
    change(tmp_path, dense_act_fn=None, is_gated_act=None)  # as it was published
    np.testing.assert_array_equal(logits_of(tmp_path, config), expected)


def test_the_error_names_a_missing_untied_projection(tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "T5 1.1")
    weights = load_file(tmp_path / "model.safetensors")
    # transformers 5 ties it whatever its configuration says.
    weights.pop("lm_head.weight", None)
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"1 missing, \['lm_head.weight'\]"):
        zoo.from_hugging_face(tmp_path)


TIED_NAMES = {
    "BART": ["model.shared", "model.encoder.embed_tokens", "lm_head"],
    "Marian": ["model.shared", "model.decoder.embed_tokens", "lm_head"],
    "Marian, untied": ["model.decoder.embed_tokens", "lm_head"],
    "T5": ["shared", "decoder.embed_tokens", "lm_head"],
    "T5 1.1": ["shared", "encoder.embed_tokens"],
}


@pytest.mark.parametrize("family", TIED_NAMES)
def test_a_tied_embedding_is_found_under_each_of_its_names(family, tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, family).config
    expected = logits_of(tmp_path, config)
    weights = load_file(tmp_path / "model.safetensors")
    names = [f"{name}.weight" for name in TIED_NAMES[family]]
    [matrix] = [weights.pop(name) for name in names if name in weights]
    for name in names:
        save_file({**weights, name: matrix}, tmp_path / "model.safetensors")
        np.testing.assert_array_equal(logits_of(tmp_path, config), expected)
    save_file(
        {**weights, **{name: matrix.copy() for name in names}},
        tmp_path / "model.safetensors",
    )
    np.testing.assert_array_equal(logits_of(tmp_path, config), expected)
    changed = matrix.copy()
    changed[-1, -1] += 1
    for name in names[1:]:
        tensors = {**weights, names[0]: matrix, name: changed}
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"'{name}' must be equal"):
            zoo.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Marian", "adapter.lm_head.weight"),
        ("M2M100", "model.encoder.layers.9.embed_positions.weight"),
        ("T5", "x.embed_tokens.weight"),
        (
            "T5",
            "decoder.block.0.layer.2.EncDecAttention.relative_attention_bias.weight",
        ),
        ("mBART", "model.encoder.shared.weight"),
        ("GPT-2", "transformer.adapter.attn.bias"),
    ],
)
def test_the_error_names_an_unknown_weight(family, name, tmp_path):
    from safetensors.numpy import load_file, save_file

    write_gpt2(tmp_path) if family == "GPT-2" else write(tmp_path, family)
    weights = load_file(tmp_path / "model.safetensors")
    weights[name] = np.ones((3, 3), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"1 unknown, .'{name}'"):
        zoo.from_hugging_face(tmp_path)


def test_positions_that_are_not_sinusoidal_are_learned(tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, "Marian").config
    weights = load_file(tmp_path / "model.safetensors")
    waves = numpy(SinusoidalPositions("halves").signal(40, 0, 16))
    names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    weights |= {names[0]: waves, names[1]: waves + np.eye(40, 16, dtype="float32")}
    save_file(weights, tmp_path / "model.safetensors")
    model = zoo.from_hugging_face(tmp_path).model
    assert model.config["positions"] == "learned"
    for side, name in zip(("source", "target"), names, strict=True):
        matrix = getattr(model, f"{side}_embedding").position_layer.embeddings
        np.testing.assert_array_equal(numpy(matrix.value), weights[name])
    assert logits_of(tmp_path, config).shape == (3, T, V + 1)


@pytest.mark.parametrize("shape", [(40, 15), (40, 14), (39,)])
def test_a_position_matrix_of_another_shape_is_rejected(shape, tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "Pegasus")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = np.zeros(shape, "float32")
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, d_model=15)
    with pytest.raises(ValueError, match="cannot be read as a model of transformers"):
        zoo.from_hugging_face(tmp_path)


def test_a_model_saved_without_its_head_is_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, "BART").config
    weights = load_file(tmp_path / "model.safetensors")
    weights["final_logits_bias"] = np.zeros_like(weights["final_logits_bias"])
    save_file(weights, tmp_path / "model.safetensors")
    expected = logits_of(tmp_path, config)
    bare = {name.removeprefix("model."): array for name, array in weights.items()}
    del bare["final_logits_bias"]
    save_file(bare, tmp_path / "model.safetensors")
    change(tmp_path, architectures=["BartModel"])
    np.testing.assert_array_equal(logits_of(tmp_path, config), expected)


def test_the_start_token_of_generation_config_is_used(tmp_path):
    write(tmp_path, "mBART")
    change(tmp_path, "generation_config.json", decoder_start_token_id=7)
    model = zoo.from_hugging_face(tmp_path).model
    change(tmp_path, "generation_config.json", decoder_start_token_id=None)
    change(tmp_path, decoder_start_token_id=7)
    expected = zoo.from_hugging_face(tmp_path).model
    for actual_weight, expected_weight in zip(
        model.weights, expected.weights, strict=True
    ):
        np.testing.assert_array_equal(
            numpy(actual_weight.value), numpy(expected_weight.value)
        )


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("Marian", {"vocab_size": 10**10}),
        ("Marian", {"decoder_layers": 10**7}),
        ("BART", {"max_position_embeddings": 10**9}),
        ("T5", {"d_ff": 10**9}),
        ("M2M100", {"d_model": 2**30}),
    ],
)
def test_a_config_larger_than_its_weights_is_rejected_at_once(family, values, tmp_path):
    write(tmp_path, family)
    change(tmp_path, **values)
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"must fit|does not fit"):
        zoo.from_hugging_face(tmp_path)
    assert time.monotonic() - start < 20  # initializing 10**9 numbers takes longer
    assert not weight_loader.global_state.get_global_attribute(weight_loader.WAITING)
    keras.layers.Dense(2).build((None, 2))  # initialization is not deferred any more


def test_an_empty_matrix_justifies_no_vocabulary_size(tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "Marian")
    weights = load_file(tmp_path / "model.safetensors")
    weights["more"] = np.zeros((10**7, 0), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, vocab_size=10**7)
    with pytest.raises(ValueError, match=f"`vocab_size` must fit .* {V}; got 10000000"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"n_inner": 20, "layer_norm_epsilon": 0.1, "activation_function": "relu"},
        {"tie_word_embeddings": False},
        {"bos_token_id": 7, "eos_token_id": 3},
    ],
    ids=["sizes", "untied", "two ends"],
)
def test_other_configs_of_gpt2_give_the_same_logits(values, tmp_path):
    import torch

    reference = write_gpt2(tmp_path, **values)
    imported = zoo.from_hugging_face(tmp_path)
    first = [reference.config.bos_token_id, reference.config.eos_token_id]
    rest = [i for i in range(V) if i not in first]
    reference_of = np.array([0, 0, *first, *rest])  # of the library's ids from 2 on
    # A start token that is also the end token is never generated.
    library_rows = np.arange(4 - len(set(first)), len(reference_of))
    ids = np.random.default_rng(0).choice(library_rows, (3, 9))
    with torch.no_grad():
        expected = reference(torch.tensor(reference_of[ids])).logits.numpy()
    logits = numpy(imported.model({"token_ids": ids.astype("int32")}))
    expected = expected[..., reference_of[library_rows]]
    np.testing.assert_allclose(logits[..., library_rows], expected, atol=1e-4)


def test_options_of_gpt2_that_count_the_prompt_are_not_used(tmp_path):
    write_gpt2(tmp_path)
    change(tmp_path, "generation_config.json", max_length=9, min_length=4)
    search = zoo.from_hugging_face(tmp_path).options  # the reference counts the prompt
    assert not {"max_decoding_length", "min_decoding_length"} & set(search)
    new = {"max_new_tokens": 5, "min_new_tokens": 3}
    change(tmp_path, "generation_config.json", **new)
    search = zoo.from_hugging_face(tmp_path).options
    assert (search["max_decoding_length"], search["min_decoding_length"]) == (5, 3)
    change(tmp_path, "generation_config.json", no_repeat_ngram_size=2)
    with pytest.raises(ValueError, match="something else here.*no_repeat_ngram"):
        zoo.from_hugging_face(tmp_path)
    change(tmp_path, "generation_config.json", no_repeat_ngram_size=None)
    change(tmp_path, scale_attn_weights=False)
    with pytest.raises(ValueError, match="got {'scale_attn_weights': False}"):
        zoo.from_hugging_face(tmp_path)
