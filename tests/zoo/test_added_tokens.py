"""Text beside added tokens is tokenized as transformers tokenizes it."""

import json
import random

import pytest
import transformers
from tokenizers import AddedToken

from keras_tfm import zoo
from tests.zoo import checkpoints
from tests.zoo.checkpoints import MANY, TEXTS, write

pytestmark = [
    pytest.mark.backend("torch"),  # of files; other tests run the network
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]
ADDED = {
    "<term>": {},
    "{": {"lstrip": True},
    "}": {"rstrip": True},
    "[X]": {"single_word": True},
    "foo": {"lstrip": True, "rstrip": True},
    "Gar": {"normalized": False},
    "@@": {"single_word": True, "normalized": False, "rstrip": True},
    "</t>": {"special": True},
}
PARTS = [*ADDED, *ADDED, *" \u2581\u00a0\u3000\t,x", "  ", " ", "the", "house", "a"]
PARTS += ["zebra", "old man", "\u00e9", "Foo", "\ufb01"]
SLOW = ("M2M100", "Marian")  # tokenizers of transformers that run in Python


def random_texts(count):
    rng = random.Random(0)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 9))) for _ in range(count)]


def write_folder(folder, kind):
    """Writes a model and a tokenizer with added tokens; returns the latter."""
    if kind == "Marian":
        checkpoints.write_marian(folder)
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    elif kind == "Pegasus":
        checkpoints.write_many(folder, "T5")
        tokenizer = transformers.PegasusTokenizer.from_pretrained(folder)
    else:
        _, tokenizer = checkpoints.write_many(folder, kind)
    config = json.loads((folder / "config.json").read_text())
    for token, flags in ADDED.items():
        # In Python a single word ends at a space alone.
        flags = {} if kind in SLOW and "single_word" in flags else flags
        tokenizer.add_tokens([AddedToken(token, **flags)])
    for file in folder.glob("*.model"):
        if kind != "M2M100":
            file.unlink()
    tokenizer.save_pretrained(folder)
    ids = {"vocab_size": max(config["vocab_size"], len(tokenizer)) + 2}
    if kind == "Marian":
        pad = tokenizer.pad_token_id
        ids |= {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    elif kind not in ("T5", "Pegasus"):
        ids |= {"decoder_start_token_id": 2}
    family = MANY[kind][0] if kind in MANY else kind
    write(folder, family, unk_token_id=None, **ids)
    return type(tokenizer).from_pretrained(folder)


@pytest.mark.parametrize("kind", [*MANY, "Marian", "Pegasus"])
def test_random_texts_have_the_ids_of_transformers(kind, tmp_path):
    tokenizer = write_folder(tmp_path, kind)
    imported = zoo.from_hugging_face(tmp_path)
    vocabulary, order = imported.vocabulary, imported.permutations[0]
    assert vocabulary.size == imported.model.vocabulary_size
    counts = dict.fromkeys(map(tokenizer.convert_tokens_to_ids, ADDED), 0)
    texts = [*random_texts(300), *TEXTS]
    decoded = {"skip_special_tokens": True}
    if kind == "Marian":
        decoded["use_source_tokenizer"] = True
    for text, ids in zip(texts, vocabulary.encode(texts), strict=True):
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert order[ids].tolist() == expected, text
        for token_id in counts:
            counts[token_id] += expected.count(token_id)
        if "</t>" not in text:  # transformers does not write it back
            reference = tokenizer.decode(expected, **decoded)
            assert vocabulary.decode([ids])[0].strip() == reference.strip()
    assert min(counts.values()) > 5


@pytest.mark.parametrize("kind", ["T5", "mBART", "M2M100"])
def test_names_of_special_tokens_are_text_beside_added_tokens(kind, tmp_path):
    tokenizer = write_folder(tmp_path, kind)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    names = [vocabulary.tokens([number])[0] for number in range(vocabulary.size)]
    special = {*tokenizer.all_special_tokens, *names[:4], *names[-2:]} - {"</t>"}
    special |= {"<extra_id_3>", "en_XX", "__de__"} & {*names}
    for name in special - {"<unk>"}:
        for text in (name, f"the {name}{{ house", f"a{name}b"):
            [ids] = vocabulary.encode([text])
            assert name not in vocabulary.tokens(ids)
    [ids] = vocabulary.encode(["the </t>house"])
    assert vocabulary.decode([ids])[0].count("</t>") == 1


def test_a_sentencepiece_file_and_added_tokens_json_are_enough(tmp_path):
    checkpoints.write_many(tmp_path, "T5")
    size = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    added = json.dumps({"<term>": size, "{": size + 1})
    (tmp_path / "added_tokens.json").write_text(added)
    write(tmp_path, "T5", vocab_size=size + 2)
    imported = zoo.from_hugging_face(tmp_path)
    [ids] = imported.vocabulary.encode(["the {house<term> "])
    assert imported.permutations[0][ids].tolist().count(size) == 1
    assert imported.vocabulary.decode([ids]) == ["the{ house<term>"]
