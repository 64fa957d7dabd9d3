"""Translation models of others, held against transformers itself."""

import json
import random
import time

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.decode import Options
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import CausalLM, Transformer
from keras_tfm.pipelines import Translator
from keras_tfm.runtime import Decoder
from keras_tfm.zoo import weight_loader
from tests.layers.formulas import numpy

V, S, T = 50, 9, 7
SIZES = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
}
MARIAN = {
    **SIZES,
    "pad_token_id": V - 1,
    "eos_token_id": 0,
    "decoder_start_token_id": V - 1,
    "forced_eos_token_id": None,
    "activation_function": "swish",
    "scale_embedding": True,
}
T5 = {
    "vocab_size": V,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
}
FAMILIES = {
    "Marian": ("MarianConfig", "MarianMTModel", MARIAN),
    "Marian, two tables": (
        "MarianConfig",
        "MarianMTModel",
        {**MARIAN, "share_encoder_decoder_embeddings": False},
    ),
    "Pegasus": (
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        {**SIZES, "unk_token_id": 3, "scale_embedding": True},
    ),
    "M2M100": ("M2M100Config", "M2M100ForConditionalGeneration", SIZES),
    "mBART": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        {**SIZES, "scale_embedding": True, "decoder_start_token_id": 2},
    ),
    "BART": ("BartConfig", "BartForConditionalGeneration", SIZES),
    "T5": ("T5Config", "T5ForConditionalGeneration", T5),
    "T5 1.1": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mT5": (
        "MT5Config",
        "MT5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}


def write(folder, family, **settings):
    """Writes a model of random weights as transformers does."""
    import torch
    import transformers

    config, model, given = FAMILIES[family]
    config = getattr(transformers, config)(**{**given, **settings})
    model = getattr(transformers, model)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name or config.model_type in ("bart", "mbart"):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias, generator=generator)
    model.save_pretrained(folder)
    return model


def start_of(config):
    begins_with_padding = config.model_type in ("marian", "pegasus", "t5", "mt5")
    return config.pad_token_id if begins_with_padding else config.eos_token_id


def draw(config):
    """Source and target of theirs, padded, the target with what starts it."""
    rng = np.random.default_rng(0)
    source = rng.integers(4, V - 1, (3, S))
    target = rng.integers(4, V - 1, (3, T))
    source[:, -1], source[1, 5], source[1, 6:] = (
        config.eos_token_id,
        config.eos_token_id,
        config.pad_token_id,
    )
    target[:, 0] = start_of(config)
    return source, target


def order(config):
    """Their token of each id here: padding, unknown, start, end, the others."""
    unknown = {"marian": 1, "t5": 2, "mt5": 2}.get(config.model_type, 3)
    first = [config.pad_token_id, unknown, start_of(config), config.eos_token_id]
    return np.array([*first, *(i for i in range(V) if i not in first)])


def ours(ids, config):
    """The same ids here."""
    numbers = {theirs: i for i, theirs in enumerate(order(config)) if i != 2}
    found = np.vectorize(numbers.get)(ids).astype("int32")
    if ids.shape[1] == T:
        found[:, 0] = 2
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family, tmp_path):
    check_logits(tmp_path, write(tmp_path, family))


SAID = [
    *(
        (family, {"tie_word_embeddings": False})  # three tables then, or two
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


@pytest.mark.backend("torch")
@pytest.mark.parametrize(("family", "said"), SAID)
def test_what_a_configuration_says_is_heard(family, said, tmp_path):
    check_logits(tmp_path, write(tmp_path, family, **said))


def check_logits(folder, theirs):
    import torch

    config = theirs.config
    source, target = draw(config)
    imported = zoo.from_hugging_face(folder)
    assert isinstance(imported.model, Transformer)
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()
    found = numpy(
        imported.model(
            {
                "source_ids": ours(source, config),
                "target_ids": ours(target, config),
            }
        )
    )
    for side in imported.permutations:
        assert side.tolist() == order(config).tolist()
    assert (found[..., 2] < -9e3).all()  # the start is never said
    found[..., 2] = wanted[..., start_of(config)]
    np.testing.assert_allclose(found, wanted[:, :, order(config)], atol=1e-4)
    assert np.abs(wanted).max() > 0.1


SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 3},
    "beam, stops": {"num_beams": 3, "early_stopping": True},
    "beam, to the limit": {"num_beams": 3, "early_stopping": "never"},
    "beam, bare scores": {"num_beams": 3, "length_penalty": 0.0},
    "beam, long": {"num_beams": 3, "length_penalty": 2.0, "min_length": 6},
}


# Seeds by which random models give answers that differ, and of which some end.
LIVELY = {
    "Marian": 3,
    "Marian, two tables": 3,
    "Pegasus": 11,
    "M2M100": 19,
    "mBART": 11,
    "BART": 15,
    "T5": 5,
    "T5 1.1": 15,
    "mT5": 15,
}


def write_lively(folder, family, rows=12):
    """Writes a model whose answers differ and end; gives it and sources."""
    import torch

    theirs = write(folder, family)
    config = theirs.config
    generator = torch.Generator().manual_seed(LIVELY[family])
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name or config.model_type in ("bart", "mbart"):
                noise = torch.randn(parameter.shape, generator=generator)
                is_scale = "norm" in name and name.endswith("weight")
                crosses = "encoder_attn" in name or "EncDec" in name
                noise = (0.3 if is_scale else 1.0 if crosses else 0.5) * noise
                parameter.copy_(1 + noise if is_scale else noise)
        if hasattr(theirs, "final_logits_bias"):
            theirs.final_logits_bias.zero_()
            theirs.final_logits_bias[0, config.eos_token_id] = 4.0
        theirs.save_pretrained(folder)
    source = np.random.default_rng(1).integers(4, V - 1, (rows, S))
    source[:, -1] = source[1, 5] = config.eos_token_id
    source[1, 6:] = config.pad_token_id
    return theirs, source


# That the steps of a model are its call, and a search one on every backend, is
# shown elsewhere.
@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("family", "name", "forced"),
    [(family, name, 7) for family in FAMILIES for name in ("greedy", "beam")]
    + [
        (family, name, None)
        for family in ("Marian, two tables", "Pegasus", "T5 1.1")
        for name in SEARCHES
    ],
)
def test_a_search_gives_what_generate_gives(family, name, forced, tmp_path):
    import torch

    given = SEARCHES[name]
    theirs, source = write_lively(tmp_path, family)
    config = theirs.config
    theirs.generation_config.update(
        max_length=14,
        bad_words_ids=[[config.pad_token_id], [config.eos_token_id]],
        renormalize_logits=True,  # what is forbidden has no share here
        forced_eos_token_id=None,
        forced_bos_token_id=forced,
        decoder_start_token_id=start_of(config),
        **given,
    )
    theirs.generation_config.save_pretrained(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    settings = dict(imported.options)
    prefix = settings.pop("target_prefix")
    assert settings.pop("source_suffix") == [3]
    settings.pop("source_prefix", None)
    settings.pop("split_tokens", None)
    search = Decoder(imported.model, Options(**settings))
    assert search.width == given["num_beams"]
    found = search(ours(source, config), [prefix] * len(source)).ids[:, 0]
    with torch.no_grad():
        wanted = theirs.generate(
            torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
        ).numpy()[:, 1:]
    found, wanted = until_end(found), until_end(ours(wanted, config))
    assert found == wanted
    assert {row[-1] == 3 for row in wanted} >= {True}
    assert len(set(map(tuple, wanted))) > 1
    assert prefix == ([] if forced is None else [wanted[0][0]])


def until_end(rows):
    rows = [list(row) for row in rows]
    rows = [row[: row.index(3) + 1] if 3 in row else row for row in rows]
    return [[int(i) for i in row if i] for row in rows]


def change(folder, name="config.json", **values):
    """Gives a configuration other values; None takes one out."""
    config = json.loads((folder / name).read_text()) | values
    config = {name: value for name, value in config.items() if value is not None}
    (folder / name).write_text(json.dumps(config))


def logits_of(folder, config):
    source, target = draw(config)
    model = zoo.from_hugging_face(folder).model
    ids = {"source_ids": ours(source, config), "target_ids": ours(target, config)}
    return numpy(model(ids))


T5_OTHERS = {
    "layer_norm_epsilon": 0.1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "num_decoder_layers": 3,
}


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("family", "others"),
    [
        ("T5", T5_OTHERS),
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
def test_other_settings_give_the_same_logits(family, others, tmp_path):
    import torch

    theirs = write(tmp_path, family, **others)
    config = theirs.config
    source, target = draw(config)
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(source != config.pad_token_id).long(),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()[:, :, order(config)]
    found = logits_of(tmp_path, config)
    assert (found[..., 2] < -9e3).all()
    kept = np.arange(wanted.shape[-1]) != 2
    np.testing.assert_allclose(found[..., kept], wanted[..., kept], atol=1e-4)


@pytest.mark.backend("torch")
def test_the_scale_of_tokens_is_that_of_its_kind_where_nothing_is_said(tmp_path):
    for family, wanted in (("M2M100", True), ("BART", False)):
        write(tmp_path, family)
        change(tmp_path, scale_embedding=None)
        model = zoo.from_hugging_face(tmp_path).model
        assert model.config["scale_embedding"] is wanted


@pytest.mark.backend("torch")
def test_the_configuration_of_the_first_t5_is_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, "T5").config
    wanted = logits_of(tmp_path, config)
    weights = load_file(tmp_path / "model.safetensors")
    # Theirs have a table that nothing reads, and say less.
    weights[
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    ] = np.ones((32, 3), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    left = ("feed_forward_proj", "is_gated_act", "dense_act_fn", "tie_word_embeddings")
    left += ("scale_decoder_outputs", "relative_attention_max_distance")
    named = {"architectures": ["T5WithLMHeadModel"]}
    change(tmp_path, **dict.fromkeys(left), **named)
    np.testing.assert_array_equal(logits_of(tmp_path, config), wanted)


@pytest.mark.backend("torch")
def test_the_gelu_of_a_gate_is_the_one_by_tanh(tmp_path):
    config = write(tmp_path, "T5 1.1").config
    wanted = logits_of(tmp_path, config)
    change(tmp_path, dense_act_fn=None, is_gated_act=None)  # as it was published
    np.testing.assert_array_equal(logits_of(tmp_path, config), wanted)


@pytest.mark.backend("torch")
def test_a_projection_that_is_not_tied_is_missed(tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "T5 1.1")
    weights = load_file(tmp_path / "model.safetensors")
    # transformers 5 ties it whatever its configuration says.
    weights.pop("lm_head.weight", None)
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"1 missing, \['lm_head.weight'\]"):
        zoo.from_hugging_face(tmp_path)


TABLES = {
    "BART": ["model.shared", "model.encoder.embed_tokens", "lm_head"],
    "Marian": ["model.shared", "model.decoder.embed_tokens", "lm_head"],
    "Marian, two tables": ["model.decoder.embed_tokens", "lm_head"],
    "T5": ["shared", "decoder.embed_tokens", "lm_head"],
    "T5 1.1": ["shared", "encoder.embed_tokens"],
}


@pytest.mark.backend("torch")
@pytest.mark.parametrize("family", TABLES)
def test_a_table_that_is_shared_stands_under_any_of_its_names(family, tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, family).config
    wanted = logits_of(tmp_path, config)
    weights = load_file(tmp_path / "model.safetensors")
    names = [f"{name}.weight" for name in TABLES[family]]
    [table] = [weights.pop(name) for name in names if name in weights]
    for name in names:
        save_file({**weights, name: table}, tmp_path / "model.safetensors")
        np.testing.assert_array_equal(logits_of(tmp_path, config), wanted)
    save_file(
        {**weights, **{name: table.copy() for name in names}},
        tmp_path / "model.safetensors",
    )
    np.testing.assert_array_equal(logits_of(tmp_path, config), wanted)
    other = table.copy()
    other[-1, -1] += 1
    for name in names[1:]:
        both = {**weights, names[0]: table, name: other}
        save_file(both, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=f"one table.*'{name}', which differ"):
            zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
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
def test_a_weight_that_means_nothing_is_named(family, name, tmp_path):
    from safetensors.numpy import load_file, save_file

    write_gpt2(tmp_path) if family == "GPT-2" else write(tmp_path, family)
    weights = load_file(tmp_path / "model.safetensors")
    weights[name] = np.ones((3, 3), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"1 unknown, .'{name}'"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
def test_waves_of_one_side_alone_are_a_table(tmp_path):
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
        table = getattr(model, f"{side}_embedding").position_layer.embeddings
        np.testing.assert_array_equal(numpy(table.value), weights[name])
    assert logits_of(tmp_path, config).shape == (3, T, V + 1)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("shape", [(40, 15), (40, 14), (40,)])
def test_waves_have_a_cosine_for_each_sine(shape, tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "Pegasus")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = np.zeros(shape, "float32")
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, d_model=15)
    with pytest.raises(ValueError, match="D / 2 sines.*Received: .*, d_model=15. Choo"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
def test_a_model_saved_without_its_head_is_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    config = write(tmp_path, "BART").config
    weights = load_file(tmp_path / "model.safetensors")
    weights["final_logits_bias"] = np.zeros_like(weights["final_logits_bias"])
    save_file(weights, tmp_path / "model.safetensors")
    wanted = logits_of(tmp_path, config)
    bare = {name.removeprefix("model."): array for name, array in weights.items()}
    del bare["final_logits_bias"]
    save_file(bare, tmp_path / "model.safetensors")
    change(tmp_path, architectures=["BartModel"])
    np.testing.assert_array_equal(logits_of(tmp_path, config), wanted)


@pytest.mark.backend("torch")
def test_the_start_is_that_of_the_generation(tmp_path):
    write(tmp_path, "mBART")
    change(tmp_path, "generation_config.json", decoder_start_token_id=7)
    model = zoo.from_hugging_face(tmp_path).model
    change(tmp_path, "generation_config.json", decoder_start_token_id=None)
    change(tmp_path, decoder_start_token_id=7)
    other = zoo.from_hugging_face(tmp_path).model
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(numpy(one.value), numpy(two.value))


@pytest.mark.parametrize(
    ("family", "change_of"),
    [
        ("Marian", {"vocab_size": 10**10}),
        ("Marian", {"decoder_layers": 10**7}),
        ("BART", {"max_position_embeddings": 10**9}),
        ("T5", {"d_ff": 10**9}),
        ("M2M100", {"d_model": 2**30}),
    ],
)
def test_a_configuration_that_wants_more_than_there_is_costs_nothing(
    family, change_of, tmp_path
):
    write(tmp_path, family)
    change(tmp_path, **change_of)
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"do not fit|does not fit"):
        zoo.from_hugging_face(tmp_path)
    assert time.monotonic() - begun < 20  # 10**9 numbers would take their time
    assert not weight_loader.global_state.get_global_attribute(weight_loader.WAITING)
    keras.layers.Dense(2).build((None, 2))  # nothing waits that would be made


@pytest.mark.backend("torch")
def test_a_table_of_no_width_gives_no_rows(tmp_path):
    from safetensors.numpy import load_file, save_file

    write(tmp_path, "Marian")
    weights = load_file(tmp_path / "model.safetensors")
    weights["more"] = np.zeros((10**7, 0), "float32")
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, vocab_size=10**7)
    with pytest.raises(ValueError, match=f"vocab_size=10000000, and {V} there"):
        zoo.from_hugging_face(tmp_path)


TEXTS = [
    "the small garden behind the old house",
    "a house and a boat",
    "an old man in a small boat",
    "der kleine Garten hinter dem alten Haus",
    "ein alter Mann in einem kleinen Boot",
]


def write_marian(folder, first=("</s>", "<unk>"), **settings):
    """A model with two SentencePiece files and one table, as of OPUS-MT."""
    import io

    import sentencepiece
    import torch

    pieces = list(first)
    for side, texts in (("source", TEXTS[:3]), ("target", TEXTS[3:])):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 4),
            model_writer=model,
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for i in range(3, processor.get_piece_size()):
            pieces.append(processor.id_to_piece(i))
    pieces = [*dict.fromkeys(pieces), ">>de<<", "<pad>"]
    table = {piece: i for i, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(table))
    size = len(table)
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    model = write(folder, "Marian", vocab_size=size, **ids, **settings)
    with torch.no_grad():
        model.final_logits_bias.zero_()
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.mul_(3.0)  # so that it says different things
    model.save_pretrained(folder)
    return model


@pytest.mark.backend("torch")
def test_a_mark_of_the_target_alone_is_named_alone(tmp_path):
    write_marian(tmp_path)
    found = zoo.from_hugging_face(tmp_path)
    mark = found.languages["de"]
    translator = Translator.from_preset(tmp_path, target_language="de")
    assert translator.settings["source_prefix"] == [mark]
    assert translator.settings["source_suffix"] == [3]
    with pytest.raises(ValueError, match=r"which: the target. .*target_language=None"):
        Translator.from_preset(tmp_path)


@pytest.mark.backend("torch")
def test_a_start_that_nobody_names_is_asked_for(tmp_path):
    write_many(tmp_path, "mBART")
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / name).read_text())
        content["bad_words_ids"] = None
        start = content.pop("decoder_start_token_id", None)
        (tmp_path / name).write_text(json.dumps(content))
    assert start is not None
    with pytest.raises(ValueError, match="no decoder_start_token_id"):
        zoo.from_hugging_face(tmp_path)
    content["decoder_start_token_id"] = start
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert zoo.from_hugging_face(tmp_path).languages["de_DE"] == 2


@pytest.mark.backend("torch")
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("first", [("</s>", "<unk>"), ("</s>", "a", "b", "<unk>")])
def test_marian_translates_text_as_transformers_does(first, tmp_path):
    import torch
    import transformers

    theirs = write_marian(tmp_path, first)
    theirs.generation_config.update(
        num_beams=2,
        max_length=20,
        no_repeat_ngram_size=2,
        bad_words_ids=[[theirs.config.pad_token_id]],
        renormalize_logits=True,
    )
    theirs.generation_config.save_pretrained(tmp_path)
    tokenizer = transformers.MarianTokenizer(
        *(str(tmp_path / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    texts = [*TEXTS, "Zebra!", ""]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = theirs.generate(**batch)
    wanted = tokenizer.batch_decode(
        ids, skip_special_tokens=True, use_source_tokenizer=False
    )
    imported = zoo.from_hugging_face(tmp_path)
    translator = Translator(
        imported.model,
        imported.vocabulary,
        imported.target_vocabulary,
        **imported.options,
    )
    found = translator(texts)
    assert found[:-1] == [text.replace("<unk>", "\u2047") for text in wanted[:-1]]
    assert found[-1] == ""  # where there is no text nothing is said
    assert len(set(found)) > 3
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved")(texts) == found


M2M_CODES = 100 + 8  # marks, and rows that stand for nothing
MANY = {
    # family, tokenizer, kind of pieces, rows after the pieces, languages
    "M2M100": ("M2M100", "M2M100Tokenizer", "bpe", M2M_CODES, ("en", "de")),
    "NLLB": ("M2M100", "NllbTokenizer", "bpe", 204, ("eng_Latn", "deu_Latn")),
    "mBART 50": ("mBART", "MBart50Tokenizer", "unigram", 53, ("en_XX", "de_DE")),
    "mBART": ("mBART", "MBartTokenizer", "unigram", 26, ("en_XX", "de_DE")),
    "T5": ("T5", "T5Tokenizer", "unigram", 100, None),
}


def write_many(folder, kind):
    """A model with one SentencePiece file and marks of languages."""
    import sentencepiece
    import torch
    import transformers

    family, tokenizer, pieces, rows, languages = MANY[kind]
    name = "spiece.model" if family == "T5" else "sentencepiece.bpe.model"
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_prefix=str(folder / "spm"),
        model_type=pieces,
        vocab_size=60,
        hard_vocab_limit=pieces == "bpe",
        minloglevel=2,
        **(special if family == "T5" else {}),
    )
    (folder / "spm.model").rename(folder / name)
    own = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
    size = own.get_piece_size() + rows + (family != "T5")
    if kind == "M2M100":
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        names += [own.id_to_piece(i) for i in range(3, own.get_piece_size())]
        table = {piece: i for i, piece in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(table))
    settings = {"tokenizer_class": tokenizer}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = getattr(transformers, tokenizer).from_pretrained(folder)
    if kind == "NLLB":  # from this file it makes none itself
        module = transformers.models.nllb.tokenization_nllb
        theirs.add_special_tokens(
            {"extra_special_tokens": module.FAIRSEQ_LANGUAGE_CODES}
        )
        theirs.save_pretrained(folder)
    if languages:
        theirs.src_lang, target = (
            languages[0],
            theirs.convert_tokens_to_ids(
                f"__{languages[1]}__" if kind == "M2M100" else languages[1]
            ),
        )
        table = getattr(theirs, "lang_token_to_id", None) or theirs.get_vocab()
        first = own.get_piece_size() + 1
        marks = {number: name for name, number in table.items() if number >= first}
        codes = [marks[number] for number in sorted(marks) if marks[number] != "<mask>"]
        if kind != "NLLB":  # which has tokenizer.json
            listed = {"additional_special_tokens": codes}
            (folder / "special_tokens_map.json").write_text(json.dumps(listed))
    ids = {"vocab_size": size}
    if kind == "mBART":
        ids["decoder_start_token_id"] = target
    elif languages:
        ids["decoder_start_token_id"] = 2
    model = write(folder, family, **ids)
    with torch.no_grad():
        for one, parameter in model.named_parameters():
            if "embed_positions" not in one:
                parameter.mul_(4.0 if kind == "mBART" else 2.0)
    start = ids.get("decoder_start_token_id", model.config.pad_token_id)
    bad = [[model.config.pad_token_id]]
    bad += [[i] for i in range(first, size)] if languages else []
    model.generation_config.update(
        num_beams=1,
        max_length=16,
        min_length=6,
        no_repeat_ngram_size=2,
        bad_words_ids=bad,
        renormalize_logits=True,
        forced_eos_token_id=None,
        decoder_start_token_id=start,
    )
    model.save_pretrained(folder)
    if languages and kind != "mBART":
        model.generation_config.forced_bos_token_id = target
    return model, theirs


@pytest.mark.backend("torch")  # of files; the network is on all
@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("alone", [False, True])
def test_many_languages_are_translated_as_transformers_does(kind, alone, tmp_path):
    import torch

    theirs, tokenizer = write_many(tmp_path, kind)
    if alone:  # as transformers 5 saves it
        tokenizer.save_pretrained(tmp_path)
        for file in tmp_path.glob("*.model"):
            if kind == "M2M100":
                pytest.skip("its tokenizer is that of SentencePiece itself")
            file.unlink()
        (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
        assert (tmp_path / "tokenizer.json").is_file()
    languages = MANY[kind][-1] or ()
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        ids = theirs.generate(**batch)
    wanted = tokenizer.batch_decode(ids, skip_special_tokens=True)
    wanted = [text.removeprefix("__de__") for text in wanted]  # M2M100's stays
    translator = Translator.from_preset(tmp_path, *languages)
    imported = zoo.from_hugging_face(tmp_path)
    assert (imported.languages is None) == (not languages)
    rows, _ = translator.rows_of(TEXTS)
    pad = theirs.config.pad_token_id
    row_of = {
        int(number): i
        for i, number in enumerate(order_of(theirs.config))
        if i != 2 or kind == "mBART"
    }
    for row, given in zip(rows, batch["input_ids"].tolist(), strict=True):
        assert row == [row_of[i] for i in given if i != pad]
    assert translator(TEXTS) == [one.replace("<unk>", "\u2047") for one in wanted]
    if kind != "mBART":  # whose random weights say the same of any text
        assert len(set(wanted)) > 1


def order_of(config):
    """As `order`, of any size."""
    unknown = 2 if config.model_type == "t5" else 3
    start = config.decoder_start_token_id
    first = [config.pad_token_id, unknown, start, config.eos_token_id]
    rest = [i for i in range(config.vocab_size) if i not in first]
    return [*first, *rest]


@pytest.mark.backend("torch")
def test_languages_are_named_both_and_known(tmp_path):
    write_many(tmp_path, "NLLB")
    with pytest.raises(ValueError, match=r"told which: source and.*language=None"):
        Translator.from_preset(tmp_path)
    with pytest.raises(ValueError, match=r"202 languages.*\['eng'\].*ace_Arab"):
        Translator.from_preset(tmp_path, "eng", "deu_Latn")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["legacy_behaviour"] = True
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = zoo.from_hugging_face(tmp_path)
    english, german = (found.languages[name] for name in ("eng_Latn", "deu_Latn"))
    settings = found.options_for("eng_Latn", "deu_Latn")
    assert settings["source_prefix"] == [] and settings["target_prefix"] == [german]
    assert settings["source_suffix"] == [3, english]
    with pytest.raises(ValueError, match="has none: leave them out"):
        found._replace(languages=None).options_for("en", "de")
    begins = found._replace(languages={"en_XX": 7, "ro_RO": 2, "de_DE": 9})
    with pytest.raises(ValueError, match="'de_DE'; it is 'ro_RO'"):
        begins.options_for("en_XX", "de_DE")
    assert begins.options_for("en_XX", "ro_RO")["target_prefix"] == []


@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["NLLB", "mBART"])
def test_a_tokenizer_of_many_languages_has_their_marks(kind, tmp_path):
    write_many(tmp_path, kind)
    name = {"NLLB": "NllbTokenizer", "mBART": "MBart50Tokenizer"}[kind]
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    config = json.dumps({"tokenizer_class": name})
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ValueError, match=f"a {name} puts marks of languages"):
        zoo.from_hugging_face(tmp_path)


ODD = [None, -1, 0, 1, 2**31, 1e300, float("nan"), "x", [], [1], {}, {"a": 1}, True]
ODD += [0.5, [[1]], ["x"], 10**25]


def with_something_else(node, rng, depth=0):
    """Puts an odd value somewhere into what JSON holds, or takes one out."""
    key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
    inner = node[key]
    if isinstance(inner, dict | list) and inner and depth < 3 and rng.random() < 0.7:
        with_something_else(inner, rng, depth + 1)
    elif isinstance(node, dict) and rng.random() < 0.15:
        del node[key]
    else:
        node[key] = rng.choice(ODD)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["OPUS-MT", "BART", "DistilBert", "CT2", *MANY])
def test_a_folder_of_odd_json_is_read_or_refused(kind, tmp_path):
    load = zoo.from_hugging_face
    if kind == "OPUS-MT":
        write_marian(tmp_path)
    elif kind == "DistilBert":
        from tests.zoo import test_hugging_face as encoders

        encoders.write(tmp_path, kind, "ForSequenceClassification")
    elif kind == "CT2":
        pytest.importorskip("ctranslate2")
        model = Transformer(9, 1, 8, 12, 2)
        names = ["<pad>", "<unk>", "<s>", "</s>", *"abcde"]
        zoo.to_ctranslate2(model, names, tmp_path)
        load = zoo.from_ctranslate2
    elif kind in MANY:
        write_many(tmp_path, kind)
    else:
        write(tmp_path, kind)
    files = sorted(tmp_path.glob("*.json"))
    load(tmp_path)
    rng, refused = random.Random(0), 0
    for _ in range(25):
        file = rng.choice(files)
        content = file.read_text()
        whole = json.loads(content)
        with_something_else(whole, rng)
        file.write_text(json.dumps(whole))
        try:
            load(tmp_path)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert len(str(error)) > 30
        file.write_text(content)
    assert 0 < refused < 25


@pytest.mark.backend("torch")
def test_pieces_of_another_model_are_refused(tmp_path):
    write_many(tmp_path, "T5")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "eos_token_id": 3}))
    with pytest.raises(ValueError, match="Received: {'eos_token_id': 1}"):
        zoo.from_hugging_face(tmp_path)
    change(tmp_path, "generation_config.json", eos_token_id=3)
    with pytest.raises(ValueError, match="vocabulary does not fit the model"):
        zoo.from_hugging_face(tmp_path)


def byte_level(folder, marks):
    """Writes a byte-level tokenizer of few pieces; gives their number."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(marks),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.save(str(folder / "tokenizer.json"))
    return made


def write_gpt2(folder, **settings):
    """Writes a small GPT-2 of random weights as transformers does."""
    import torch
    import transformers

    sizes = {"n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**{"vocab_size": V, **sizes, **ends, **settings})
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    model.save_pretrained(folder)
    return model


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    "others",
    [
        {"n_inner": 20, "layer_norm_epsilon": 0.1, "activation_function": "relu"},
        {"tie_word_embeddings": False},
        {"bos_token_id": 7, "eos_token_id": 3},
    ],
    ids=["sizes", "untied", "two ends"],
)
def test_other_settings_of_gpt2_give_the_same_logits(others, tmp_path):
    import torch

    theirs = write_gpt2(tmp_path, **others)
    found = zoo.from_hugging_face(tmp_path)
    first = [theirs.config.bos_token_id, theirs.config.eos_token_id]
    rest = [i for i in range(V) if i not in first]
    theirs_of = np.array([0, 0, *first, *rest])  # of ours from 2 on
    # Where the start is the end too, it is never said.
    ours_of = np.arange(4 - len(set(first)), len(theirs_of))
    ids = np.random.default_rng(0).choice(ours_of, (3, 9))
    with torch.no_grad():
        wanted = theirs(torch.tensor(theirs_of[ids])).logits.numpy()
    logits = numpy(found.model({"token_ids": ids.astype("int32")}))
    wanted = wanted[..., theirs_of[ours_of]]
    np.testing.assert_allclose(logits[..., ours_of], wanted, atol=1e-4)


@pytest.mark.backend("torch")
def test_what_gpt2_is_asked_otherwise_is_refused_or_left(tmp_path):
    write_gpt2(tmp_path)
    change(tmp_path, "generation_config.json", max_length=9, min_length=4)
    search = zoo.from_hugging_face(tmp_path).options  # theirs count the prompt
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
    with pytest.raises(ValueError, match="Received: {'scale_attn_weights': False}"):
        zoo.from_hugging_face(tmp_path)


def test_a_language_model_of_others_goes_on_as_theirs_does(tmp_path):
    import torch

    made = byte_level(tmp_path, ["<|endoftext|>"])
    theirs = write_gpt2(tmp_path, vocab_size=made.get_vocab_size())
    found = zoo.from_hugging_face(tmp_path)
    assert isinstance(found.model, CausalLM)
    given = [made.encode(text).ids for text in TEXTS]
    ids = found.vocabulary.encode(TEXTS)
    # Theirs has no padding, no unknown token and no start apart.
    assert ids == [[i + 3 for i in row] for row in given]
    batch = np.array([row[:6] for row in given])
    with torch.no_grad():
        wanted = theirs(torch.tensor(batch)).logits.numpy()
    logits = numpy(found.model({"token_ids": (batch + 3).astype("int32")}))
    np.testing.assert_allclose(logits[..., 3:], wanted, atol=1e-4)
    assert (logits[..., :3] < -9e3).all()
    if keras.config.backend() != "torch":
        return  # a search is one on every backend
    texts = []
    for row in given:
        with torch.no_grad():
            said = theirs.generate(
                torch.tensor([row]),
                attention_mask=torch.ones(1, len(row)),
                max_new_tokens=9,
                pad_token_id=0,
            )
        texts.append(made.decode(said[0, len(row) :].tolist()))
    search = {**found.options, "max_decoding_length": 9}
    assert search["source_suffix"] == [] and search["beam_size"] == 1
    translator = Translator(found.model, found.vocabulary, **search)
    assert translator(TEXTS) == texts
    assert len(set(texts)) > 2
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved")(TEXTS) == texts


@pytest.mark.backend("torch")
def test_bart_comes_with_its_bytes(tmp_path):
    import torch

    made = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    theirs = write(tmp_path, "BART", vocab_size=made.get_vocab_size() + 1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(2.0)
    theirs.generation_config.update(
        num_beams=1,
        max_length=14,
        min_length=6,
        no_repeat_ngram_size=2,
        bad_words_ids=[[1], [made.get_vocab_size()]],
        renormalize_logits=True,
        forced_eos_token_id=None,
        forced_bos_token_id=0,
        decoder_start_token_id=2,
    )
    theirs.save_pretrained(tmp_path)
    texts = []
    for text in TEXTS:
        ids = [0, *made.encode(text).ids, 2]
        with torch.no_grad():
            said = theirs.generate(torch.tensor([ids]))
        texts.append(made.decode(said[0].tolist()))
    found = zoo.from_hugging_face(tmp_path)
    assert found.options["source_prefix"] == found.options["target_prefix"] == [4]
    translator = Translator.from_preset(tmp_path)
    assert translator(TEXTS) == texts
    assert len(set(texts)) > 1


@pytest.mark.backend("torch")
def test_a_mask_without_a_row_is_left_and_marks_are_no_text(tmp_path):
    made = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    made.add_special_tokens(["<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "BART", vocab_size=made.get_vocab_size() - 1)
    found = zoo.from_hugging_face(tmp_path)
    assert found.vocabulary.size == found.model.vocabulary_size
    # The start is a row that theirs has not; in text it is what stands there.
    [ids] = found.vocabulary.encode(["see <2> note"])
    assert 2 not in ids and found.vocabulary.decode([[*ids, 3, 0]]) == ["see <2> note"]


@pytest.mark.backend("torch")
def test_byte_level_pieces_of_another_model_are_refused(tmp_path):
    made = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    write(tmp_path, "BART", vocab_size=made.get_vocab_size() - 1)
    with pytest.raises(ValueError, match="vocabulary does not fit the model"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("tensorflow")
def test_a_vocabulary_of_bytes_is_not_exported(tmp_path):
    class Bytes:
        size, start_id, end_id = 4, 2, 3

        def tokens(self, ids):
            return [f"<0x{i:02X}>" for i in ids]

    model = Transformer(
        4, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=2
    )
    with pytest.raises(TypeError, match="cuts text by SentencePiece.*Bytes"):
        Translator(model, Bytes()).export(tmp_path)
