"""Options of decoding are read from the files of transformers."""

import json
import math

import pytest

from keras_tfm.file_reading import Config
from keras_tfm.zoo.huggingface import generation
from keras_tfm.zoo.token_permutation import TokenPermutation

pytestmark = pytest.mark.backend("torch")


def read(folder, config, permutation):
    file = folder / "config.json"
    return generation.read_options(folder, Config(config, file), permutation)


def options_of(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=5, end_id=0)
    return read(folder, {"eos_token_id": 0, "num_beams": 9}, ids)


def test_generation_config_becomes_decode_options(tmp_path):
    actual = options_of(
        tmp_path,
        num_beams=4,
        length_penalty=0.7,
        max_length=20,
        min_length=6,
        no_repeat_ngram_size=3,
        bad_words_ids=[[5], [2], [3, 4]],
        forced_bos_token_id=4,
        early_stopping=None,
    )
    assert actual == {
        "beam_size": 4,
        "late_stopping": True,
        "length_penalty": 0.7,
        "max_decoding_length": 19,  # the reference counts the start token
        "min_decoding_length": 5,
        "no_repeat_ngram_size": 3,
        "suppress_ids": [0, 2, 4],
        "suppress_sequences": [[5, 6]],
        "target_prefix": [6],
        "score_prefix": False,  # the reference does not score forced tokens
        "source_suffix": [3],
        "disable_unk": False,
    }
    beam = {"num_beams": 4}
    assert options_of(tmp_path, **beam, early_stopping="never")["patience"] == float(
        "inf"
    )
    assert options_of(tmp_path, **beam, early_stopping=True)["early_stopping"] is True
    assert options_of(tmp_path, **beam, early_stopping=False)["late_stopping"] is True
    assert options_of(tmp_path, length_penalty=0.0)["length_penalty"] == 0.0
    new = options_of(tmp_path, max_new_tokens=20, max_length=9, min_new_tokens=4)
    assert new["max_decoding_length"] == 20 and new["min_decoding_length"] == 4
    assert options_of(tmp_path, suppress_tokens=[4])["suppress_ids"] == [0, 2, 6]
    sampling = options_of(tmp_path, num_beams=1, do_sample=True, top_p=0.9)
    assert sampling["sampling_topk"] == 50 and sampling["sampling_topp"] == 0.9
    values = {"temperature": 0.7, "min_p": 0.1, "epsilon_cutoff": 0.02, "top_k": 8}
    sampling = options_of(tmp_path, num_beams=1, do_sample=True, **values)
    names = ("temperature", "minp", "epsilon", "topk")
    assert [sampling[f"sampling_{name}"] for name in names] == [*values.values()]
    assert "sampling_topp" not in options_of(tmp_path, num_beams=1, top_p=0.9)
    greedy = options_of(tmp_path, num_beams=1)
    assert "late_stopping" not in greedy and greedy["target_prefix"] == []
    assert not {"max_decoding_length", "min_decoding_length"} & set(greedy)


def test_generation_config_replaces_config_json(tmp_path):
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=5, end_id=0)
    old = {"eos_token_id": 0, "num_beams": 9, "forced_bos_token_id": 4}
    old |= {"max_length": 20, "bad_words_ids": [[2]]}
    actual = read(tmp_path, old, ids)
    assert (actual["beam_size"], actual["target_prefix"]) == (9, [6])
    assert (actual["max_decoding_length"], actual["suppress_ids"]) == (19, [0, 2, 4])
    for new in ({}, dict.fromkeys(old)):
        (tmp_path / "generation_config.json").write_text(json.dumps(new))
        actual = read(tmp_path, old, ids)
        assert (actual["beam_size"], actual["target_prefix"]) == (1, [])
        assert "max_decoding_length" not in actual and actual["suppress_ids"] == [0, 2]


def test_the_end_token_is_never_suppressed_as_a_bad_word(tmp_path):
    actual = options_of(tmp_path, bad_words_ids=[[0], [2], [3, 0]])
    assert actual["suppress_ids"] == [0, 2, 4]
    assert actual["suppress_sequences"] == [[5, 3]]
    assert options_of(tmp_path, suppress_tokens=[0])["suppress_ids"] == [0, 2, 3]


def test_a_long_bad_word_is_rejected(tmp_path):
    row = [3, 4] * 32
    actual = options_of(tmp_path, bad_words_ids=[row])
    assert actual["suppress_sequences"] == [[5, 6] * 32]
    with pytest.raises(
        ValueError, match="`bad_words_ids` must be of at most 64 tokens; got 65"
    ):
        options_of(tmp_path, bad_words_ids=[[3], [*row, 3]])


def test_unsupported_options_and_damaged_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="not supported.*encoder_no_repeat_ngram"):
        options_of(tmp_path, encoder_no_repeat_ngram_size=2)
    with pytest.raises(ValueError, match=r"something else here.*repetition_penalty"):
        options_of(tmp_path, repetition_penalty=1.2)
    for values in (
        {"eos_token_id": 3},
        {"eos_token_id": [0, 3]},
        {"stop_strings": ["."]},
        {"max_time": 2.0},
        {"top_h": 0.5},
        {"watermarking_config": {"bias": 2.5}},
        {"constraints": [[4]]},
        {"guidance_scale": 2.0},
        {"force_words_ids": [[4]]},
        {"num_beams": 0},
        {"num_beams": 3_000_000},  # would take 576 MB at the first sentence
        {"num_beams": 4, "length_penalty": -1.0},
        {"num_beams": 4, "do_sample": True},
    ):
        with pytest.raises(ValueError, match=f"else here.*'{[*values][-1]}'"):
            options_of(tmp_path, **values)
    for values in ({"num_beams": [4]}, {"top_k": "a"}, {"length_penalty": math.nan}):
        with pytest.raises(ValueError, match=f"`{[*values][0]}` must be a number"):
            options_of(tmp_path, **values)
    assert options_of(tmp_path, num_beams=1, length_penalty=-1.0, eos_token_id=[0])
    assert options_of(
        tmp_path, repetition_penalty=1.0, typical_p=1.0, num_beam_groups=1
    )
    for bad_words in ([[10**9]], [5], 7):
        with pytest.raises(ValueError, match="cannot be read"):
            options_of(tmp_path, bad_words_ids=bad_words)
    (tmp_path / "generation_config.json").write_text("[" * 100_000)
    with pytest.raises(
        ValueError, match="generation_config.json cannot be read as JSON"
    ):
        read(tmp_path, {}, None)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(
        ValueError, match="generation_config.json cannot be read as JSON"
    ):
        read(tmp_path, {}, None)
