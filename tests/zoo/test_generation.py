"""Ids of others and ours, and what their files say of decoding."""

import json
import math

import numpy as np
import pytest

from keras_tfm.zoo.config_file import Config
from keras_tfm.zoo.huggingface import generation
from keras_tfm.zoo.token_permutation import NEVER_LOGIT, TokenPermutation

pytestmark = pytest.mark.backend("torch")


def read(folder, config, permutation):
    file = folder / "config.json"
    return generation.read_options(folder, Config(config, file), permutation)


TABLE = np.arange(12.0).reshape(6, 2)


def test_special_tokens_come_first_and_the_others_in_their_order():
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=2, end_id=0)
    assert ids.order.tolist() == [5, 1, 2, 0, 3, 4]
    assert [ids.to_ours(i) for i in range(6)] == [3, 1, 2, 4, 5, 0]
    np.testing.assert_array_equal(ids.rows(TABLE), TABLE[[5, 1, 2, 0, 3, 4]])
    np.testing.assert_array_equal(ids.bias(TABLE[:, 0]), TABLE[[5, 1, 2, 0, 3, 4], 0])
    assert ids.never_generated == [] and ids.size == 6


@pytest.mark.parametrize("start", [5, 0])
def test_a_start_that_is_padding_or_the_end_is_a_token_of_its_own(start):
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=start, end_id=0)
    assert ids.order.tolist() == [5, 1, start, 0, 2, 3, 4]
    assert (ids.to_ours(5), ids.to_ours(0)) == (0, 3)
    assert ids.bias().tolist() == [0, 0, NEVER_LOGIT, 0, 0, 0, 0]


def test_what_is_not_there_has_zeros_and_is_never_said():
    ids = TokenPermutation(6, pad_id=None, unknown_id=None, start_id=None, end_id=2)
    assert ids.order.tolist() == [-1, -1, -1, 2, 0, 1, 3, 4, 5]
    rows = ids.rows(TABLE)
    assert not rows[:3].any()
    np.testing.assert_array_equal(rows[3:], TABLE[[2, 0, 1, 3, 4, 5]])
    assert ids.bias(np.ones(6)).tolist() == [NEVER_LOGIT] * 3 + [1] * 6
    assert TABLE[5].tolist() == [10, 11]  # what is given stays


def test_what_is_never_said_is_so_in_half_precision():
    ids = TokenPermutation(6, 4, 1, 4, 0)
    found = ids.bias(np.ones(6, "float16"))
    assert found.dtype == "float32" and np.isfinite(found).all()
    assert found[2] < -9e3 and (found[[0, 1, 3]] == 1).all()


def test_a_table_of_another_size_is_refused():
    ids = TokenPermutation(5, None, 1, 2, 0)  # 6 here, as many as there are rows
    with pytest.raises(ValueError, match="6 rows, and 5 tokens"):
        ids.rows(TABLE)


@pytest.mark.parametrize("given", [(6, 1, 2, 0), (1, 1, 2, 0), (5, 1, 1, 0)])
def test_ids_outside_and_two_of_one_are_refused(given):
    with pytest.raises(ValueError, match="three of the vocabulary"):
        TokenPermutation(6, *given)


def settings(folder, **given):
    (folder / "generation_config.json").write_text(json.dumps(given))
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=5, end_id=0)
    return read(folder, {"eos_token_id": 0, "num_beams": 9}, ids)


def test_settings_of_decoding_have_their_names_here(tmp_path):
    found = settings(
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
    assert found == {
        "beam_size": 4,
        "num_hypotheses": 4,
        "length_penalty": 0.7,
        "max_decoding_length": 19,  # theirs counts what decoding starts with
        "min_decoding_length": 5,
        "no_repeat_ngram_size": 3,
        "suppress_ids": [0, 2, 4],
        "suppress_sequences": [[5, 6]],
        "target_prefix": [6],
        "score_prefix": False,  # theirs is forced at no cost
        "source_suffix": [3],
        "disable_unk": False,
    }
    beam = {"num_beams": 4}
    assert settings(tmp_path, **beam, early_stopping="never")["patience"] == float(
        "inf"
    )
    assert settings(tmp_path, **beam, early_stopping=True)["early_stopping"] is True
    assert "early_stopping" not in settings(tmp_path, **beam, early_stopping=False)
    assert settings(tmp_path, length_penalty=0.0)["length_penalty"] == 0.0
    new = settings(tmp_path, max_new_tokens=20, max_length=9, min_new_tokens=4)
    assert new["max_decoding_length"] == 20 and new["min_decoding_length"] == 4
    assert settings(tmp_path, suppress_tokens=[4])["suppress_ids"] == [0, 2, 6]
    drawn = settings(tmp_path, num_beams=1, do_sample=True, top_p=0.9)
    assert drawn["sampling_topk"] == 50 and drawn["sampling_topp"] == 0.9
    others = {"temperature": 0.7, "min_p": 0.1, "epsilon_cutoff": 0.02, "top_k": 8}
    drawn = settings(tmp_path, num_beams=1, do_sample=True, **others)
    names = ("temperature", "minp", "epsilon", "topk")
    assert [drawn[f"sampling_{name}"] for name in names] == [*others.values()]
    assert "sampling_topp" not in settings(tmp_path, num_beams=1, top_p=0.9)
    greedy = settings(tmp_path, num_beams=1)
    assert "num_hypotheses" not in greedy and greedy["target_prefix"] == []
    assert not {"max_decoding_length", "min_decoding_length"} & set(greedy)


def test_one_file_alone_says_how_to_decode(tmp_path):
    ids = TokenPermutation(6, pad_id=5, unknown_id=1, start_id=5, end_id=0)
    old = {"eos_token_id": 0, "num_beams": 9, "forced_bos_token_id": 4}
    old |= {"max_length": 20, "bad_words_ids": [[2]]}
    found = read(tmp_path, old, ids)
    assert (found["beam_size"], found["target_prefix"]) == (9, [6])
    assert (found["max_decoding_length"], found["suppress_ids"]) == (19, [0, 2, 4])
    for new in ({}, dict.fromkeys(old)):
        (tmp_path / "generation_config.json").write_text(json.dumps(new))
        found = read(tmp_path, old, ids)
        assert (found["beam_size"], found["target_prefix"]) == (1, [])
        assert "max_decoding_length" not in found and found["suppress_ids"] == [0, 2]


def test_the_end_is_no_bad_word(tmp_path):
    found = settings(tmp_path, bad_words_ids=[[0], [2], [3, 0]])
    assert found["suppress_ids"] == [0, 2, 4]
    assert found["suppress_sequences"] == [[5, 3]]
    assert settings(tmp_path, suppress_tokens=[0])["suppress_ids"] == [0, 2, 3]


def test_a_bad_word_of_many_tokens_is_refused(tmp_path):
    row = [3, 4] * 32
    found = settings(tmp_path, bad_words_ids=[row])
    assert found["suppress_sequences"] == [[5, 6] * 32]
    with pytest.raises(
        ValueError, match="up to 64 tokens. Received: one of 65 in `bad"
    ):
        settings(tmp_path, bad_words_ids=[[3], [*row, 3]])


def test_what_is_not_known_or_no_json_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not known.*encoder_no_repeat_ngram"):
        settings(tmp_path, encoder_no_repeat_ngram_size=2)
    with pytest.raises(ValueError, match=r"something else here.*repetition_penalty"):
        settings(tmp_path, repetition_penalty=1.2)
    for given in (
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
        {"num_beams": 4, "length_penalty": -1.0},
        {"num_beams": 4, "do_sample": True},
    ):
        with pytest.raises(ValueError, match=f"else here.*'{[*given][-1]}'"):
            settings(tmp_path, **given)
    for given in ({"num_beams": [4]}, {"top_k": "a"}, {"length_penalty": math.nan}):
        with pytest.raises(ValueError, match=f"{[*given][0]} is a number"):
            settings(tmp_path, **given)
    assert settings(tmp_path, num_beams=1, length_penalty=-1.0, eos_token_id=[0])
    assert settings(tmp_path, repetition_penalty=1.0, typical_p=1.0, num_beam_groups=1)
    for wrong in ([[10**9]], [5], 7):
        with pytest.raises(ValueError, match="lists of tokens that there are"):
            settings(tmp_path, bad_words_ids=wrong)
    (tmp_path / "generation_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="generation_config.json is no JSON"):
        read(tmp_path, {}, None)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match="generation_config.json is no JSON"):
        read(tmp_path, {}, None)
