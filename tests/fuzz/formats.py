"""Every format that is read: who writes a small one, and who reads it."""

import io
import json
import os

import keras
import numpy as np
import sentencepiece

from keras_tfm import models, text, training, zoo
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.layers import T5Positions, gelu_tanh
from keras_tfm.pipelines import Classifier, Comet, Lexicon, Translator
from keras_tfm.recipes import runs
from tests.decode.conftest import draw_transformer, redraw
from tests.fuzz import text_formats
from tests.fuzz.file_format import Format
from tests.zoo import checkpoints

TEXT = "a boat"
TEXTS = text_formats.TEXTS
# Small and greedy, so that a sentence takes milliseconds.
SIZES = {"num_layers": 1, "embedding_dim": 8, "intermediate_dim": 8, "num_heads": 2}
ENCODER = {
    **SIZES,
    "positions": "learned",
    "sequence_length": 40,
    "normalize_embedding": True,
    "activation": "gelu",
    "epsilon": 1e-12,
    "num_segments": 2,
}
FAST = {"beam_size": 2, "max_decoding_length": 4, "jit_compile": False}


def _vocabulary():
    return text.Vocabulary.train(TEXTS, size=300, exact=False)


def _word_pieces():
    return text.TokenizersVocabulary.train(TEXTS, size=60)


def _transformer(size, **changes):
    changes = {"normalize_first": False, "tie": "all", **SIZES, **changes}
    return draw_transformer(vocabulary_size=size, **changes)


def _classifier_model(vocabulary, **changes):
    encoder = models.Encoder(vocabulary.size, **{**ENCODER, **changes})
    model = models.SequenceClassifier(encoder, 2, pooling="first", hidden_dim=8)
    redraw(model, 1)
    return model


def _write_translator(folder):
    vocabulary, target = _vocabulary(), text.Vocabulary.train(TEXTS[:5] * 9, size=290)
    model = _transformer(vocabulary.size, target_vocabulary_size=target.size, tie=None)
    shortlist = Shortlist(
        np.arange(vocabulary.size)[:, None] % target.size, np.arange(target.size)
    )
    words = Lexicon({"boat": ["Boot"], "house": ["Haus"]}, ["das"])
    options = {"shortlist": shortlist, "known_words": ("boat", "house"), **FAST}
    options["lexicon"] = words
    Translator(model, vocabulary, target).replace(**options).save(folder)
    description = {"task": "translation", "languages": ["en", "de"], "license": "x"}
    description["arguments"] = {"beam_size": 2, "protect": "url", "split_tokens": 20}
    (folder / "preset.json").write_text(json.dumps(description))


def _write_classifier(folder):
    vocabulary = _word_pieces()
    model = _classifier_model(vocabulary)
    Classifier(model, vocabulary, ["bad", "good"], max_length=32).save(folder)


def _translate(folder):
    """Translates with the options of the files alone."""
    return Translator.from_preset(folder, jit_compile=False)(TEXT)


def _classify(folder):
    return Classifier.from_preset(folder)(TEXT)


def _trained_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def _fit(folder, epochs):
    model, resume = _trained_model(), training.ResumeTraining(folder)
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    first = resume.restore(model)
    model.fit(x, y, epochs=epochs, initial_epoch=first, verbose=0, callbacks=[resume])


def _write_unfinished(folder):
    vocabulary = _vocabulary()
    translator = Translator(_transformer(vocabulary.size), vocabulary)
    translator.replace(**FAST).save(folder / "unfinished")
    (folder / "averages").mkdir()
    translator.model.save_weights(folder / "averages" / "epoch_0001.weights.h5")


def _write_flags(folder):
    runs.write_json(folder / "flags.json", {"epochs": 3, "size": "tiny", "seed": 1})
    runs.state_file(folder).parent.mkdir(exist_ok=True)
    runs.state_file(folder).touch()


def _read_flags(folder):
    runs.check_folder(folder, {"epochs": 3, "size": "tiny", "seed": 1}, ["epochs"])


def _quickly(folder):
    """Lets the files of transformers ask for a short and greedy search."""
    file = folder / "generation_config.json"
    content = json.loads(file.read_text()) if file.is_file() else {}
    content |= {"num_beams": 2, "max_length": 6, "early_stopping": True}
    content |= {"no_repeat_ngram_size": 2, "min_length": 2}
    file.write_text(json.dumps(content))


def _write_marian(folder):
    checkpoints.write_marian(folder)
    _quickly(folder)


def _write_pickle(folder, is_zip):
    import torch
    from safetensors.torch import load_file

    _write_marian(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(
        tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip
    )


def _write_m2m100(folder):
    model, _ = checkpoints.write_many(folder, "M2M100")
    model.generation_config.save_pretrained(folder)
    _quickly(folder)


def _translate_to_german(folder):
    return Translator.from_preset(folder, "en", "de", jit_compile=False)(TEXT)


def _translate_with_tag(folder):
    options = {"target_language": "de", "jit_compile": False}
    return Translator.from_preset(folder, **options)(TEXT)


def _write_t5(folder):
    vocabulary = _vocabulary()
    zoo.to_hugging_face(_transformer(vocabulary.size), folder, vocabulary)
    _quickly(folder)


def _write_bert(folder):
    vocabulary = _word_pieces()
    zoo.to_hugging_face(_classifier_model(vocabulary), folder, vocabulary)


def _write_older_bert(folder):
    _write_bert(folder)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n")
    (folder / "tokenizer.json").unlink()


def _write_gpt2(folder):
    tokenizer = checkpoints.byte_level(folder, ["<|endoftext|>"])
    size = tokenizer.get_vocab_size()
    checkpoints.write_gpt2(folder, vocab_size=size)
    tokenizer.model.save(str(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "generation_config.json").write_text('{"max_new_tokens": 4}')


def _write_fsmt(folder):
    from tests.zoo.test_fsmt import write_fsmt

    write_fsmt(folder)
    _quickly(folder)


def _write_moses(folder):
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "ca", "t</w>", "!</w>"]
    content = {"language": "en", "tokens": tokens, "merges": [["c", "a"]]}
    content = json.dumps({"moses": {**content, "lower_case": False}})
    (folder / "moses.model").write_text(content)


def _read_moses(folder):
    vocabulary = text.load_vocabulary(folder / "moses.model")
    return vocabulary.decode(vocabulary.encode(["cat!"]))


def _write_marian_files(folder, write):
    from tests.zoo import test_marian

    test_marian.write_model(folder, _marian_vocabulary(folder), write=write)
    test_marian.write_shortlist(folder)
    [model] = [*folder.glob("*.npz"), *folder.glob("*.intgemm.bin")]
    (folder / "decoder.yml").write_text(
        f"models: [{model.name}]\nvocabs: [vocab.spm, vocab.spm]\n"
        "shortlist: [lex.bin, false]\nbeam-size: 2\nnormalize: 0.6\n"
        "max-length-factor: 1\nword-penalty: 0\n"
    )


def _marian_vocabulary(folder):
    from tests.zoo.test_marian import SIZE

    words = "abcdefghijklmnopqrst"
    lines = [f"{a}{b}{c}" for a in words for b in words for c in "xyz"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=SIZE,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    file = folder / "vocab.spm"
    file.write_bytes(model.getvalue())
    return file


def _write_npz(folder):
    from tests.zoo.test_marian import write_npz

    _write_marian_files(folder, write_npz)


def _write_token_lists(folder):
    """Writes models whose vocabularies are lists: YAML, text and JSON."""
    from tests.zoo.test_marian import SIZE

    tokens = ["</s>", "<unk>", *(f"'{i}\u2581a" for i in range(2, SIZE))]
    ids = {token: number for number, token in enumerate(tokens)}
    contents = {
        "vocab.yml": "".join(f'"{token}": {ids[token]}\n' for token in tokens),
        "vocab.txt": "\n".join(tokens) + "\n",
        "vocab.json": json.dumps(ids),
    }
    _write_npz(folder)
    for name, content in contents.items():
        (folder / name).mkdir()
        for file in ("model.npz", "lex.bin"):
            os.link(folder / file, folder / name / file)
        config = (folder / "decoder.yml").read_text().replace("vocab.spm", name)
        (folder / name / "decoder.yml").write_text(config)
        (folder / name / name).write_text(content, encoding="utf-8")


def _read_token_lists(folder):
    return [zoo.from_marian(folder / name) for name in TOKEN_LISTS]


def _write_shards(folder):
    model = checkpoints.write(folder, "Marian")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="16KB")


def _write_comet(folder):
    from tests.zoo import comet_checkpoints

    encoder = comet_checkpoints.write_encoder(folder / "encoder")
    comet_checkpoints.write_checkpoint(folder, comet_checkpoints.draw(encoder)[1])


def _estimate(folder):
    comet = Comet.load(folder, folder / "encoder")
    return comet.score([TEXT], [TEXT], [TEXT])


def _write_bin(folder):
    from tests.zoo.test_marian import write_bin

    _write_marian_files(folder, write_bin)


def _write_ctranslate2(folder):
    vocabulary = _vocabulary()
    zoo.to_ctranslate2(_transformer(vocabulary.size), vocabulary, folder)
    description = {"task": "translation", "languages": ["en", "de"]}
    description["arguments"] = FAST
    (folder / "preset.json").write_text(json.dumps(description))


def _write_hub_bert(folder):
    vocabulary = _word_pieces()
    model = _classifier_model(vocabulary, activation=gelu_tanh)
    zoo.to_keras_hub(model, folder, vocabulary)


def _write_hub_t5(folder):
    vocabulary = _vocabulary()
    model = models.Transformer(
        vocabulary.size,
        **SIZES,
        positions=T5Positions(),
        activation=gelu_tanh,
        gated=True,
        normalize_first=True,
        normalization="rms_norm",
        use_bias=False,
        score="dot",
        scale_embedding=False,
        logits_bias=True,
        tie="all",
    )
    redraw(model, 1)
    embedding = model.target_embedding
    embedding.bias.assign(np.zeros(embedding.bias.shape))
    zoo.to_keras_hub(model, folder, vocabulary)


def _translate_briefly(folder):
    options = {"max_decoding_length": 4, "beam_size": 2, "jit_compile": False}
    return Translator.from_preset(folder, **options)(TEXT)


TOKEN_LISTS = ("vocab.yml", "vocab.txt", "vocab.json")
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")
OWN_FILES = ("translator.json", "model.keras", "source.model", "shortlist.npz")
HUB_FILES = ("config.json", "tokenizer.json", "model.weights.h5")
FORMATS = {
    "translator": Format(
        _write_translator,
        _translate,
        (*OWN_FILES, "known_words.txt", "lexicon.tsv", "preset.json"),
    ),
    "classifier": Format(
        _write_classifier,
        _classify,
        ("classifier.json", "model.keras", "vocabulary.model"),
        "tokenizers",
    ),
    "unfinished run": Format(
        _write_unfinished, _translate, ("averages/epoch_0001.weights.h5",)
    ),
    "training state": Format(
        lambda folder: _fit(folder, 1),
        lambda folder: _fit(folder, 2),
        ("training_state.npz",),
    ),
    "run folder": Format(_write_flags, _read_flags, ("flags.json",)),
    "Moses": Format(_write_moses, _read_moses, ("moses.model",), "sacremoses"),
    "Hugging Face Marian": Format(
        _write_marian,
        _translate_with_tag,
        (*CONFIGS[:2], "vocab.json", "source.spm", "model.safetensors"),
        "transformers",
    ),
    "PyTorch": Format(
        lambda folder: _write_pickle(folder, True),
        _translate_with_tag,
        ("pytorch_model.bin",),
        "transformers",
    ),
    "PyTorch before 1.6": Format(
        lambda folder: _write_pickle(folder, False),
        _translate_with_tag,
        ("pytorch_model.bin",),
        "transformers",
    ),
    "M2M100": Format(
        _write_m2m100,
        _translate_to_german,
        ("vocab.json", "sentencepiece.bpe.model", "special_tokens_map.json"),
        "transformers",
    ),
    "tokenizer.json": Format(
        _write_t5,
        _translate,
        ("tokenizer.json", "tokenizer_config.json"),
        "tokenizers",
    ),
    "BERT": Format(
        _write_bert, _classify, ("config.json", "tokenizer.json"), "tokenizers"
    ),
    "BERT before tokenizer.json": Format(
        _write_older_bert, _classify, ("vocab.txt",), "tokenizers"
    ),
    "GPT-2": Format(
        _write_gpt2,
        _translate,
        ("config.json", "vocab.json", "merges.txt"),
        "transformers",
    ),
    "FSMT": Format(
        _write_fsmt, _translate, ("vocab-src.json", "merges.txt"), "sacremoses"
    ),
    "Marian npz": Format(
        _write_npz,
        _translate,
        ("model.npz", "decoder.yml", "vocab.spm", "lex.bin"),
        "yaml",
    ),
    "Marian bin": Format(_write_bin, _translate, ("model.intgemm.bin",), "yaml"),
    "Marian token lists": Format(
        _write_token_lists,
        _read_token_lists,
        tuple(f"{name}/{name}" for name in TOKEN_LISTS),
        "yaml",
    ),
    "Hugging Face shards": Format(
        _write_shards,
        zoo.from_hugging_face,
        ("model.safetensors.index.json", "model-00002-of-00003.safetensors"),
        "transformers",
    ),
    "COMET": Format(
        _write_comet,
        _estimate,
        (
            *("hparams.yaml", "checkpoints/model.ckpt"),
            *("encoder/config.json", "encoder/tokenizer.json"),
        ),
        "transformers",
    ),
    "CTranslate2": Format(
        _write_ctranslate2,
        _translate,
        ("model.bin", "config.json", "shared_vocabulary.json", "sentencepiece.model"),
        "ctranslate2",
    ),
    "KerasHub T5": Format(
        _write_hub_t5,
        _translate_briefly,
        (*HUB_FILES, "assets/tokenizer/vocabulary.spm"),
        "google.protobuf",
    ),
    "KerasHub BERT": Format(
        _write_hub_bert,
        _classify,
        ("task.json", "tokenizer.json", "assets/tokenizer/vocabulary.txt"),
        "tokenizers",
    ),
    **text_formats.FORMATS,
}
