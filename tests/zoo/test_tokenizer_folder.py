"""Ids, counts and added tokens are read from the files of a tokenizer."""

import json

import numpy as np
import pytest
import torch
import transformers

from keras_tfm import zoo
from keras_tfm.models import CausalLM, MaskedLM
from keras_tfm.pipelines import Translator
from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo.huggingface.tokenizer_folder import TokenizerFolder
from tests.layers.formulas import numpy
from tests.zoo import checkpoints
from tests.zoo.checkpoints import TEXTS, byte_level, change, write, write_gpt2

# Of files; other tests run the network on every backend.
pytestmark = pytest.mark.backend("torch")


def check_logits(folder, reference, source, target):
    """Compares logits; ids are of the checkpoint, and a target has a start."""
    imported = zoo.from_hugging_face(folder)
    maps = [
        {int(t): i for i, t in list(enumerate(order))[::-1] if i != 2}
        for order in imported.permutations
    ]
    ids = [
        np.vectorize(lambda token, side=side: side.get(token, 2))(rows)
        for side, rows in zip(maps, (source, target), strict=True)
    ]
    ids[1][:, 0] = 2
    actual = numpy(imported.model({"source_ids": ids[0], "target_ids": ids[1]}))
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)
        ).logits.numpy()
    order = imported.permutations[1]
    columns = [i for i, t in enumerate(order) if t >= 0 and i != 2]
    np.testing.assert_allclose(
        actual[..., columns], expected[..., order[columns]], atol=1e-4
    )
    assert len(columns) >= expected.shape[-1] - 1 and np.abs(expected).max() > 0.1
    return imported


IDS = {
    "MADLAD-400": {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0},
    "CodeT5": {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
    "padding is the end": {"pad_token_id": 1, "decoder_start_token_id": 1},
    "padding is unknown": {"pad_token_id": 2, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize("name", IDS)
def test_special_ids_of_the_config_are_taken_as_they_come(name, tmp_path):
    unknown = {"MADLAD-400": 0, "CodeT5": 3}.get(name, 2)
    reference = write(tmp_path, "T5 1.1", unk_token_id=unknown, **IDS[name])
    rng, config = np.random.default_rng(0), reference.config
    source, target = rng.integers(4, 50, (2, 2, 6))
    source[:, -1], target[:, 0] = config.eos_token_id, config.decoder_start_token_id
    check_logits(tmp_path, reference, source, target)
    change(tmp_path, unk_token_id=None)  # no file names it: there is none
    assert zoo.from_hugging_face(tmp_path).permutations[0][1] == -1


def write_madlad(folder):
    """Writes a T5 whose ids are unknown, padding, end, then tags."""
    import sentencepiece

    special = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_prefix=str(folder / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        user_defined_symbols=["<2de>", "<2pt_BR>"],
        minloglevel=2,
        **special,
    )
    settings = {"tokenizer_class": "T5Tokenizer", "pad_token": "<s>", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "spiece.model")
    )
    ids = {"vocab_size": processor.get_piece_size(), "unk_token_id": None}
    return write(folder, "T5 1.1", **ids, **IDS["MADLAD-400"])


def test_madlad_has_target_languages_and_ids_of_its_own(tmp_path):
    write_madlad(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    assert imported.permutations[0][:4].tolist() == [1, 0, 0, 2]
    assert sorted(imported.languages) == ["de", "pt_BR"]
    translator = Translator.from_preset(tmp_path, target_language="de")
    [segment] = translator.encode(["the house"])[0].segments
    names = imported.vocabulary.tokens(segment.ids)
    assert (names[0], names[-1]) == ("<2de>", "</s>") and "<unk>" not in names
    assert imported.vocabulary.decode([segment.ids[1:]]) == ["the house"]


def write_codet5(folder, old=False):
    tokenizer = byte_level(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"])
    if old:
        content = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
        merges = [" ".join(merge) for merge in content["model"]["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    size = tokenizer.get_vocab_size()
    return write(folder, "T5", vocab_size=size, unk_token_id=None, **IDS["CodeT5"])


def test_codet5_has_a_byte_level_vocabulary(tmp_path):
    reference = write_codet5(tmp_path, old=True)
    tokenizer = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    translator = Translator.from_preset(tmp_path)
    imported = zoo.from_hugging_face(tmp_path)
    order = imported.permutations[0]
    assert order[:4].tolist() == [0, 3, 0, 2]
    for text in TEXTS:
        [segment] = translator.encode([text])[0].segments
        assert order[segment.ids].tolist() == tokenizer(text)["input_ids"]
    source = np.array([tokenizer(TEXTS[0])["input_ids"]])
    check_logits(tmp_path, reference, source, np.array([[0, 7, 8, 9]]))


def test_two_vocabularies_of_marian_may_differ_in_size(tmp_path):
    checkpoints.write_marian(tmp_path)
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    size = len(vocab)
    target_vocab = {t: i for t, i in vocab.items() if i < size - 3}
    target_vocab["<pad>"] = size - 3
    (tmp_path / "target_vocab.json").write_text(json.dumps(target_vocab))
    reference = write(
        tmp_path,
        "Marian",
        vocab_size=size,
        decoder_vocab_size=size - 2,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        pad_token_id=size - 3,
        decoder_start_token_id=size - 3,
        unk_token_id=None,
    )
    renamed = {t: i for t, i in vocab.items() if i < size - 3} | {"<pad>": size - 3}
    renamed |= {"x": size - 2, "y": size - 1}
    (tmp_path / "vocab.json").write_text(json.dumps(renamed))
    imported = check_logits(
        tmp_path, reference, np.array([[5, 6, 7, 0]]), np.array([[size - 3, 8, 9]])
    )
    assert imported.vocabulary.size == imported.model.vocabulary_size == size + 1
    assert imported.target_vocabulary.size == size - 1
    assert imported.model.target_vocabulary_size == size - 1


def test_tokens_that_a_user_added_to_an_encoder_are_cut(tmp_path):
    vocabulary = TokenizersVocabulary.train(["a fine film", "a dull film"] * 9, 60)
    content = json.loads(vocabulary.model)
    special = content["added_tokens"][0] | {"content": "[E1]", "id": vocabulary.size}
    content["added_tokens"].append(special)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = transformers.BertConfig(
        vocab_size=vocabulary.size + 1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    read = zoo.from_hugging_face(tmp_path).vocabulary
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json")
    )
    [ids] = read.encode(["a [E1] film"])
    assert ids == tokenizer("a [E1] film", add_special_tokens=False)["input_ids"]
    assert vocabulary.size in ids and read.decode([ids]) == ["a [E1] film"]
    [ids] = read.encode(["a [SEP] film"])
    assert not {*ids} & {*read.special_ids}


BERT_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.mark.parametrize("lower", [True, False])
def test_vocab_txt_is_read_as_transformers_reads_it(lower, tmp_path):
    texts = ["The cat sat on the mat!", "Cafés, 中文 & mats", "an unheard x"]
    trained = TokenizersVocabulary.train(texts[:2], 80, lower_case=lower)
    tokens = trained.tokens(range(trained.size))
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, ""]))
    settings = json.dumps({"do_lower_case": lower})
    (tmp_path / "tokenizer_config.json").write_text(settings)
    config = transformers.BertConfig(vocab_size=trained.size, **BERT_SIZES)
    transformers.BertModel(config).save_pretrained(tmp_path)
    change(tmp_path, model_type=None)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in texts:
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode([text]) == [expected]
    assert (vocabulary.start_id, vocabulary.end_id) == (2, 3)


def test_vocab_json_and_merges_are_read_as_transformers_reads_them(tmp_path):
    tokenizer = byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.model.save(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        type_vocab_size=1,
        max_position_embeddings=40,
        **BERT_SIZES,
    )
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    reference = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "Zoë?"]:
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode([text]) == [expected]
    assert vocabulary.separator_ids == (2, 2)
    assert (vocabulary.start_id, vocabulary.end_id, vocabulary.pad_id) == (0, 2, 1)


@pytest.mark.parametrize("source", ["architectures", "tensors", "name"])
def test_an_architecture_without_model_type_is_inferred(source, tmp_path):
    folder = tmp_path / "gpt2-tiny"
    folder.mkdir()
    if source == "name":
        write_gpt2(folder)
        change(folder, model_type=None, architectures=None)
        assert isinstance(zoo.from_hugging_face(folder).model, CausalLM)
        return
    transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2)
    ).save_pretrained(folder)
    change(folder, model_type=None)
    if source == "tensors":
        change(folder, architectures=None)
    assert isinstance(zoo.from_hugging_face(folder, "masked_lm").model, MaskedLM)


def test_an_end_outside_the_vocabulary_is_the_tokenizers_or_none(tmp_path):
    tokenizer = byte_level(tmp_path, ["<|endoftext|>"])
    size, ids = tokenizer.get_vocab_size(), {"bos_token_id": 0, "eos_token_id": 50256}
    reference = write_gpt2(tmp_path, vocab_size=size, **ids)
    imported = zoo.from_hugging_face(tmp_path)
    assert imported.permutations[0][:4].tolist() == [-1, -1, 0, -1]
    translator = Translator.from_preset(tmp_path, max_decoding_length=5)
    row = tokenizer.encode(TEXTS[0]).ids
    with torch.no_grad():
        generated = reference.generate(
            torch.tensor([row]), max_new_tokens=5, do_sample=False, pad_token_id=0
        )
    assert translator(TEXTS[0]) == tokenizer.decode(generated[0, len(row) :].tolist())
    settings = json.dumps({"eos_token": "<|endoftext|>"})
    (tmp_path / "tokenizer_config.json").write_text(settings)
    assert zoo.from_hugging_face(tmp_path).permutations[0][3] == 0


def test_pegasus_numbers_its_subwords_from_its_offset(tmp_path):
    checkpoints.write_many(tmp_path, "T5")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"offset": 5}))
    tokens = TokenizerFolder(tmp_path, "pegasus").tokens
    first = ["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>", "<unk_3>", "<unk_4>"]
    assert [tokens[i] for i in range(8)] == [*first, "<unk>"]


def test_a_text_that_spells_a_special_token_is_text(tmp_path):
    byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>"])
    size = len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"])
    write(tmp_path, "BART", vocab_size=size)
    translator = Translator.from_preset(tmp_path, max_decoding_length=4)
    texts = ["a dog", "the tag <pad> is odd", "</s>", "a cat </s> <s><unk>"]
    assert len(list(translator.bulk(texts))) == 4
    for text in texts:
        [ids] = translator.vocabulary.encode([text])
        assert not {0, 1, 2, 3} & {*ids}
        assert translator.vocabulary.decode([ids]) == [text]


def test_the_unigram_vocabulary_of_xlm_r_is_that_of_transformers(tmp_path):
    import tokenizers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    subwords = [
        "\u2581",
        *"abcdefghiklmnoprstuvw",
        "\u2581the",
        "\u2581house",
        *"</>",
    ]
    scores = [(token, 0.0) for token in special[:4]]
    scores += [(token, -2.0 - len(scores) - i) for i, token in enumerate(subwords)]
    reference = transformers.XLMRobertaTokenizer(vocab=[*scores, ("<mask>", 0.0)])
    reference.save_pretrained(tmp_path)
    assert isinstance(reference._tokenizer.model, tokenizers.models.Unigram)
    config = transformers.XLMRobertaConfig(
        vocab_size=len(reference), type_vocab_size=1, **BERT_SIZES
    )
    transformers.XLMRobertaModel(config).save_pretrained(tmp_path)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    for text in ["the house", "a boat in the garden", "the Zebra"]:
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode([text]) == [expected]
    [ids] = vocabulary.encode(["the <s> </s> <pad> <mask>"])
    assert not {*ids} & {*vocabulary.special_ids, vocabulary.mask_id}
    assert vocabulary.separator_ids == (2, 2) and vocabulary.pad_id == 1


@pytest.mark.parametrize("name", ["XLMRoberta", "Camembert"])
def test_a_sentencepiece_model_alone_has_the_ids_of_fairseq(name, tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_prefix=str(tmp_path / "sentencepiece.bpe"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    reference = getattr(transformers, f"{name}Tokenizer").from_pretrained(tmp_path)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(reference), type_vocab_size=1, **BERT_SIZES
    )
    getattr(transformers, f"{name}Model")(config).save_pretrained(tmp_path)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    for token, number in reference.get_vocab().items():
        assert vocabulary.tokens([number]) == [token]
    for text in [*TEXTS, "  the  Zebra\u00a0caf\u00e9 ", ""]:
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode([text]) == [expected]
    ids = [reference.bos_token_id, reference.eos_token_id, reference.pad_token_id]
    assert [vocabulary.start_id, vocabulary.end_id, vocabulary.pad_id] == ids
    assert vocabulary.mask_id == reference.mask_token_id == len(reference) - 1
    assert vocabulary.separator_ids == (reference.eos_token_id,) * 2
    [ids] = vocabulary.encode(["the <s> </s> <pad> <mask>"])
    assert not {*ids} & {*vocabulary.special_ids, vocabulary.mask_id}
    assert vocabulary.words(vocabulary.encode(["the house"])[0]) == ["the", "house"]


def test_added_tokens_beside_older_files_are_cut_out_of_text(tmp_path):
    trained = TokenizersVocabulary.train(["a fine film", "a dull film"] * 9, 60)
    tokens = trained.tokens(range(trained.size))
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens, ""]))
    added = json.dumps({"[E1]": trained.size, "[E2]": trained.size + 1})
    (tmp_path / "added_tokens.json").write_text(added)
    size = trained.size + 2
    config = transformers.BertConfig(vocab_size=size, **BERT_SIZES)
    transformers.BertModel(config).save_pretrained(tmp_path)
    vocabulary = zoo.from_hugging_face(tmp_path).vocabulary
    reference = transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in ["a[e1] film [E2]", "[E1][E2]x"]:
        expected = reference(text, add_special_tokens=False)["input_ids"]
        assert vocabulary.encode([text]) == [expected]
        assert {trained.size, trained.size + 1} <= {*expected}
