"""FSMT, the models of WMT 2019: two vocabularies of BPE over Moses' words."""

import json
import random
import sys

import numpy as np
import pytest
import transformers

from keras_tfm import text, zoo
from keras_tfm.pipelines import Translator
from tests.zoo.checkpoints import TEXTS, write

# Of files; tests of all families compare the network.
pytestmark = pytest.mark.backend("torch")
WORDS = [
    "the",
    "house",
    "can't",
    "well-known",
    "3.14",
    "\u201cold\u201d",
    "Zo\u00eb",
    "&",
    "<b>",
]
WORDS += [
    "$5",
    "U.S.",
    "...",
    "\u2014",
    "a\u200bb",
    "\uff01",
    "\u4e2d",
    "der",
    "Garten",
    "!",
    "|",
]


def write_fsmt(folder):
    """Writes a model of random weights and its vocabularies."""
    merges = [("t", "h"), ("th", "e</w>"), ("h", "o"), ("ho", "u"), ("a", "r")]
    characters = sorted(set("".join([*TEXTS, *WORDS])) - {" "})
    sizes = {}
    for side, words in (("src", ("ar", "hou", "th")), ("tgt", ("the</w>", "ar"))):
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *characters, *words]
        tokens += [f"{character}</w>" for character in characters[::-1]]
        sizes[f"{side}_vocab_size"] = len(tokens)
        ids = {token: number for number, token in enumerate(tokens)}
        (folder / f"vocab-{side}.json").write_text(json.dumps(ids))
    lines = (f"{first} {second} 9" for first, second in merges)
    (folder / "merges.txt").write_text("\n".join([*lines, ""]))
    settings = {"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return write(folder, "FSMT", unk_token_id=None, **sizes)


def test_texts_have_the_ids_of_transformers(tmp_path):
    pytest.importorskip("sacremoses")
    reference = write_fsmt(tmp_path)
    tokenizer = transformers.FSMTTokenizer.from_pretrained(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    source, target = imported.permutations
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(200)]
    for sentence, ids in zip(texts, imported.vocabulary.encode(texts), strict=True):
        expected = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        assert source[ids].tolist() == expected, sentence
    size = reference.config.tgt_vocab_size
    for _ in range(200):
        ids = [rng.randrange(4, size) for _ in range(9)]
        mapped = [target.tolist().index(token_id) for token_id in ids]
        expected = tokenizer.decode(ids)
        assert imported.target_vocabulary.decode([mapped]) == [expected]
    [ids] = imported.vocabulary.encode(["an old house!"])
    assert imported.vocabulary.words(ids) == ["an", "old", "house", "!"]


def test_translations_are_those_of_transformers(tmp_path):
    import torch

    pytest.importorskip("sacremoses")
    reference = write_fsmt(tmp_path)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "embed_positions" not in name:
                parameter.mul_(9.0 if "encoder_attn" in name else 1.5)
    reference.generation_config.update(
        num_beams=2,
        max_length=12,
        no_repeat_ngram_size=2,
        bad_words_ids=[[1]],
        renormalize_logits=True,
    )
    reference.save_pretrained(tmp_path)
    tokenizer = transformers.FSMTTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = reference.generate(**batch)
    translator = Translator.from_preset(tmp_path)
    expected = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert translator(TEXTS) == expected
    assert len(set(expected)) > 1
    translator.vocabulary.save(tmp_path / "vocabulary")
    loaded = text.load_vocabulary(tmp_path / "vocabulary")
    assert loaded.encode(TEXTS) == translator.vocabulary.encode(TEXTS)


def test_without_sacremoses_the_error_says_what_to_install(tmp_path, monkeypatch):
    write_fsmt(tmp_path)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ImportError, match=r"Install `keras-tfm\[zoo,moses\]`"):
        zoo.from_hugging_face(tmp_path)


def test_a_tied_projection_is_stored_once(tmp_path):
    import torch

    pytest.importorskip("sacremoses")
    reference = write_fsmt(tmp_path)
    decoder = reference.model.decoder
    with torch.no_grad():
        decoder.output_projection.weight.copy_(decoder.embed_tokens.weight)
    reference.save_pretrained(tmp_path)
    model = zoo.from_hugging_face(tmp_path).model
    assert model.projection is None
    shape = decoder.embed_tokens.weight.shape
    assert np.prod(shape) < np.prod(model.target_embedding.embeddings.shape)


def test_a_damaged_moses_vocabulary_is_rejected():
    pytest.importorskip("sacremoses")
    with pytest.raises(ValueError, match="as the JSON of a vocabulary of Moses"):
        text.MosesVocabulary(json.dumps({"moses": {"tokens": []}}))
