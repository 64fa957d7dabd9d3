"""Imported models that generate translate texts as transformers does."""

import json
import random

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.models import CausalLM, Transformer
from keras_tfm.pipelines import Translator
from tests.layers.formulas import numpy
from tests.zoo.checkpoints import (
    MANY,
    TEXTS,
    byte_level,
    change,
    write,
    write_gpt2,
    write_many,
    write_marian,
)


@pytest.mark.backend("torch")
def test_a_model_with_target_tags_needs_only_the_target_language(tmp_path):
    write_marian(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    tag = imported.languages["de"]
    translator = Translator.from_preset(tmp_path, target_language="de")
    assert list(translator.config.source_prefix) == [tag]
    assert list(translator.config.source_suffix) == [3]
    with pytest.raises(ValueError, match=r"requires .*target.*target_language=None"):
        Translator.from_preset(tmp_path)


@pytest.mark.backend("torch")
def test_two_tokens_with_the_same_id_are_rejected(tmp_path):
    write_marian(tmp_path)
    file = tmp_path / "vocab.json"
    ids = json.loads(file.read_text(encoding="utf-8"))
    first, second = [*ids][8:10]
    file.write_text(json.dumps(ids | {second: ids[first]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab\.json must give each token an id"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.backend("torch")
def test_mbart_needs_a_start_token(tmp_path):
    write_many(tmp_path, "mBART")
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / name).read_text())
        content["bad_words_ids"] = None
        start = content.pop("decoder_start_token_id", None)
        (tmp_path / name).write_text(json.dumps(content))
    assert start is not None
    with pytest.raises(ValueError, match="must have `decoder_start_token_id`"):
        zoo.from_hugging_face(tmp_path)
    content["decoder_start_token_id"] = start
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert zoo.from_hugging_face(tmp_path).languages["de_DE"] == 2


@pytest.mark.slow
@pytest.mark.backend("torch")
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("first", [("</s>", "<unk>"), ("</s>", "a", "b", "<unk>")])
def test_marian_translates_as_transformers_does(first, tmp_path):
    import torch
    import transformers

    reference = write_marian(tmp_path, first)
    reference.generation_config.update(
        num_beams=2,
        max_length=20,
        no_repeat_ngram_size=2,
        bad_words_ids=[[reference.config.pad_token_id]],
        renormalize_logits=True,
    )
    reference.generation_config.save_pretrained(tmp_path)
    tokenizer = transformers.MarianTokenizer(
        *(str(tmp_path / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    texts = [*TEXTS, "Zebra!", ""]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = reference.generate(**batch)
    expected = tokenizer.batch_decode(
        ids, skip_special_tokens=True, use_source_tokenizer=False
    )
    imported = zoo.from_hugging_face(tmp_path)
    translator = Translator(
        imported.model, imported.vocabulary, imported.target_vocabulary
    ).replace(**imported.options)
    actual = translator(texts)
    assert actual[:-1] == [text.replace("<unk>", "\u2047") for text in expected[:-1]]
    assert actual[-1] == ""  # an empty text is not decoded
    assert len(set(actual)) > 3
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved")(texts) == actual


@pytest.mark.backend("torch")  # of files; other tests run the network on every backend
@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("alone", [False, True])
def test_multilingual_models_translate_as_transformers_does(kind, alone, tmp_path):
    import torch

    reference, tokenizer = write_many(tmp_path, kind)
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
        ids = reference.generate(**batch)
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True)
    # The tag of M2M100 stays in the text.
    expected = [text.removeprefix("__de__") for text in expected]
    translator = Translator.from_preset(tmp_path, *languages)
    imported = zoo.from_hugging_face(tmp_path)
    assert (imported.languages is None) == (not languages)
    segments = [text.segments for text in translator.encode(TEXTS)]
    rows = [segment.ids for [segment] in segments]
    pad = reference.config.pad_token_id
    row_of = {
        int(number): i
        for i, number in enumerate(all_reference_ids(reference.config))
        if i != 2 or kind == "mBART"
    }
    for row, reference_row in zip(rows, batch["input_ids"].tolist(), strict=True):
        assert row == [row_of[i] for i in reference_row if i != pad]
    assert translator(TEXTS) == [text.replace("<unk>", "\u2047") for text in expected]
    if kind != "mBART":  # its random weights translate every text alike
        assert len(set(expected)) > 1


def all_reference_ids(config):
    """As `reference_ids`, for a vocabulary of any size."""
    unknown = 2 if config.model_type == "t5" else 3
    start = config.decoder_start_token_id
    first = [config.pad_token_id, unknown, start, config.eos_token_id]
    rest = [i for i in range(config.vocab_size) if i not in first]
    return [*first, *rest]


@pytest.mark.backend("torch")
def test_languages_must_be_known_and_complete(tmp_path):
    write_many(tmp_path, "NLLB")
    with pytest.raises(ValueError, match=r"requires .*source.*target_language=None"):
        Translator.from_preset(tmp_path)
    with pytest.raises(ValueError, match=r"202 languages.*\['eng'\].*ace_Arab"):
        Translator.from_preset(tmp_path, "eng", "deu_Latn")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["legacy_behaviour"] = True
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    imported = zoo.from_hugging_face(tmp_path)
    english, german = (imported.languages[name] for name in ("eng_Latn", "deu_Latn"))
    settings = imported.options_for("eng_Latn", "deu_Latn")
    assert settings["source_prefix"] == [] and settings["target_prefix"] == [german]
    assert settings["source_suffix"] == [3, english]
    with pytest.raises(ValueError, match="has none: leave them out"):
        imported._replace(languages=None).options_for("en", "de")
    begins = imported._replace(languages={"en_XX": 7, "ro_RO": 2, "de_DE": 9})
    with pytest.raises(ValueError, match="must be 'ro_RO'.*got 'de_DE'"):
        begins.options_for("en_XX", "de_DE")
    assert begins.options_for("en_XX", "ro_RO")["target_prefix"] == []


@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["NLLB", "mBART"])
def test_a_multilingual_tokenizer_needs_its_language_tags(kind, tmp_path):
    write_many(tmp_path, kind)
    name = {"NLLB": "NllbTokenizer", "mBART": "MBart50Tokenizer"}[kind]
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    config = json.dumps({"tokenizer_class": name})
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ValueError, match=f"a {name} needs language tags"):
        zoo.from_hugging_face(tmp_path)


ODD = [None, -1, 0, 1, 2**31, 1e300, float("nan"), "x", [], [1], {}, {"a": 1}, True]


ODD += [0.5, [[1]], ["x"], 10**25]


def put_odd_value(node, rng, depth=0):
    """Replaces a random value of parsed JSON with an odd one, or deletes it."""
    key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
    inner = node[key]
    if isinstance(inner, dict | list) and inner and depth < 3 and rng.random() < 0.7:
        put_odd_value(inner, rng, depth + 1)
    elif isinstance(node, dict) and rng.random() < 0.15:
        del node[key]
    else:
        node[key] = rng.choice(ODD)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["OPUS-MT", "BART", "DistilBert", "CT2", *MANY])
def test_a_folder_of_odd_json_is_read_or_rejected(kind, tmp_path):
    load = zoo.from_hugging_face
    if kind == "OPUS-MT":
        write_marian(tmp_path)
    elif kind == "DistilBert":
        from tests.zoo import test_huggingface_encoders as encoders

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
    rng, rejections = random.Random(0), 0
    for _ in range(25):
        file = rng.choice(files)
        content = file.read_text()
        values = json.loads(content)
        put_odd_value(values, rng)
        file.write_text(json.dumps(values))
        try:
            load(tmp_path)
        except (ValueError, FileNotFoundError) as error:
            rejections += 1
            assert len(str(error)) > 30
        file.write_text(content)
    assert 0 < rejections < 25


@pytest.mark.backend("torch")
def test_a_vocabulary_of_another_model_is_rejected(tmp_path):
    write_many(tmp_path, "T5")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "eos_token_id": 3}))
    with pytest.raises(ValueError, match="got {'eos_token_id': 1}"):
        zoo.from_hugging_face(tmp_path)
    change(tmp_path, "generation_config.json", eos_token_id=3)
    with pytest.raises(ValueError, match="vocabulary must fit the model"):
        zoo.from_hugging_face(tmp_path)


@pytest.mark.slow("tensorflow", "jax")
def test_gpt2_continues_a_text_as_transformers_does(tmp_path):
    import torch

    tokenizer = byte_level(tmp_path, ["<|endoftext|>"])
    reference = write_gpt2(tmp_path, vocab_size=tokenizer.get_vocab_size())
    imported = zoo.from_hugging_face(tmp_path)
    assert isinstance(imported.model, CausalLM)
    reference_rows = [tokenizer.encode(text).ids for text in TEXTS]
    ids = imported.vocabulary.encode(TEXTS)
    # The reference has no padding, unknown or separate start token.
    assert ids == [[i + 3 for i in row] for row in reference_rows]
    batch = np.array([row[:6] for row in reference_rows])
    with torch.no_grad():
        expected = reference(torch.tensor(batch)).logits.numpy()
    logits = numpy(imported.model({"token_ids": (batch + 3).astype("int32")}))
    np.testing.assert_allclose(logits[..., 3:], expected, atol=1e-4)
    assert (logits[..., :3] < -9e3).all()
    if keras.config.backend() != "torch":
        return  # a search gives the same result on every backend
    texts = []
    for row in reference_rows:
        with torch.no_grad():
            generated = reference.generate(
                torch.tensor([row]),
                attention_mask=torch.ones(1, len(row)),
                max_new_tokens=9,
                pad_token_id=0,
            )
        texts.append(tokenizer.decode(generated[0, len(row) :].tolist()))
    search = {**imported.options, "max_decoding_length": 9}
    assert search["source_suffix"] == [] and search["beam_size"] == 1
    translator = Translator(imported.model, imported.vocabulary).replace(**search)
    assert translator(TEXTS) == texts
    assert len(set(texts)) > 2
    translator.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved")(TEXTS) == texts


@pytest.mark.backend("torch")
def test_bart_translates_with_its_byte_level_vocabulary(tmp_path):
    import torch

    tokenizer = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    reference = write(tmp_path, "BART", vocab_size=tokenizer.get_vocab_size() + 1)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(2.0)
    reference.generation_config.update(
        num_beams=1,
        max_length=14,
        min_length=6,
        no_repeat_ngram_size=2,
        bad_words_ids=[[1], [tokenizer.get_vocab_size()]],
        renormalize_logits=True,
        forced_eos_token_id=None,
        forced_bos_token_id=0,
        decoder_start_token_id=2,
    )
    reference.save_pretrained(tmp_path)
    texts = []
    for text in TEXTS:
        ids = [0, *tokenizer.encode(text).ids, 2]
        with torch.no_grad():
            generated = reference.generate(torch.tensor([ids]))
        texts.append(tokenizer.decode(generated[0].tolist()))
    imported = zoo.from_hugging_face(tmp_path)
    assert imported.options["source_prefix"] == imported.options["target_prefix"] == [4]
    translator = Translator.from_preset(tmp_path)
    assert translator(TEXTS) == texts
    assert len(set(texts)) > 1


@pytest.mark.backend("torch")
def test_a_mask_token_without_a_row_is_dropped(tmp_path):
    tokenizer = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "BART", vocab_size=tokenizer.get_vocab_size() - 1)
    imported = zoo.from_hugging_face(tmp_path)
    assert imported.vocabulary.size == imported.model.vocabulary_size
    # The start is a row that the checkpoint lacks; in text it is plain text.
    [ids] = imported.vocabulary.encode(["see <2> note"])
    assert 2 not in ids and imported.vocabulary.decode([[*ids, 3, 0]]) == [
        "see <2> note"
    ]


@pytest.mark.backend("torch")
def test_a_byte_level_vocabulary_of_another_model_is_rejected(tmp_path):
    tokenizer = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    write(tmp_path, "BART", vocab_size=tokenizer.get_vocab_size() - 1)
    with pytest.raises(ValueError, match="below vocab_size=.* got 1 larger ids"):
        zoo.from_hugging_face(tmp_path)
