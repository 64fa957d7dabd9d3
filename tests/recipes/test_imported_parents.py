"""Models of other programs are fine-tuned as their own program does it."""

import dataclasses
import json
import pathlib
import types

import keras
import numpy as np
import pytest

from keras_tfm import models, pipelines, text
from keras_tfm.recipes import fine_tuning, tokenization, translation
from tests.recipes.animals import flags_for, write_tsv
from tests.zoo.checkpoints import MANY, TEXTS, write_many, write_marian

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends
OF_PARENT = {"size": None, "num_layers": None, "vocabulary_size": None}
STEPS, RATE = 20, 1e-3


def write_parent(folder, kind):
    """Writes a model of random weights; returns it, a tokenizer, its codes."""
    if kind != "Marian":
        reference, tokenizer = write_many(folder, kind)
        codes = MANY[kind][-1]
        return reference, tokenizer, codes
    import transformers

    reference = write_marian(folder)
    tokenizer = transformers.MarianTokenizer(
        *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))
    )
    return reference, tokenizer, (None, "de")


def without_dropout(folder, reference):
    """Sets every rate of dropout to 0, in the folder and in the network."""
    import torch

    file = folder / "config.json"
    config = json.loads(file.read_text())
    rates = [name for name in config if "dropout" in name or "layerdrop" in name]
    file.write_text(json.dumps(config | dict.fromkeys(rates, 0.0)))
    for module in reference.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    reference.train()


def flags_of(folder, codes, data, out, **changes):
    source, target = codes or (None, None)
    return flags_for(
        data,
        out,
        init_from=str(folder),
        from_source_language=source,
        from_target_language=target,
        dropout=0.0,
        label_smoothing=0.0,
        cooldown_epochs=0,
        **OF_PARENT | changes,
    )


def reference_losses(reference, tokenizer, sources, targets, codes):
    """Trains with transformers, and returns the loss of each step."""
    import torch

    if codes and codes[0] is not None:
        tokenizer.src_lang, tokenizer.tgt_lang = codes
    elif codes:
        sources = [f">>{codes[1]}<< {source}" for source in sources]
    batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    labels = batch.pop("labels")
    labels[labels == tokenizer.pad_token_id] = -100
    if type(tokenizer).__name__ == "MBartTokenizer":
        # It would learn to write the tag of the language after the end too.
        rows = range(len(labels))
        ends = (labels != -100).sum(axis=1) - 1
        labels[rows, ends] = -100
        tag = tokenizer.convert_tokens_to_ids(codes[1])
        first = torch.full_like(labels[:, :1], tag)
        shifted = labels.clamp(min=0)[:, :-1]
        batch["decoder_input_ids"] = torch.cat([first, shifted], axis=1)
    optimizer = torch.optim.SGD(reference.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = reference(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(folder, codes, sources, targets):
    """Trains with the network and the batches of the recipe."""
    flags = flags_of(folder, codes, "unused", "unused", num_buckets=1)
    parent = fine_tuning.load_parent(flags)
    tokens = tokenization.make(flags, None, pathlib.Path("unused"), parent)
    model = translation.make_model(flags, tokens.source, parent)
    if getattr(model.target_embedding, "logits_bias", False):
        model.target_embedding.bias.trainable = False  # transformers has it fixed
    network = translation.compile_network(
        dataclasses.replace(flags, learning_rate=1.0), model, steps_per_epoch=1
    )
    network.compile(keras.optimizers.SGD(RATE), network.loss)
    pairs = text.Pairs(sources, targets)
    corpus = types.SimpleNamespace(train=pairs, validation=pairs)
    batches, _ = translation.make_batches(flags, corpus, tokens, parent)
    assert batches.steps_per_epoch == 1
    inputs, labels = batches.batch(0)
    losses = []
    for _ in range(STEPS):
        network.reset_metrics()
        losses.append(float(network.train_on_batch(inputs, labels)))
    return losses


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("kind", ["Marian", "NLLB", "mBART", "mBART 50", "T5"])
def test_losses_of_training_are_those_of_transformers(kind, tmp_path):
    reference, tokenizer, codes = write_parent(tmp_path, kind)
    without_dropout(tmp_path, reference)
    sources, targets = TEXTS[:2], TEXTS[3:5]
    actual = our_losses(tmp_path, codes, sources, targets)
    expected = reference_losses(reference, tokenizer, sources, targets, codes)
    if kind == "T5":
        # Its last normalization holds the scale of the logits here, which
        # changes the steps of an optimizer.
        assert actual[0] == pytest.approx(expected[0], abs=1e-5)
        assert actual[-1] < actual[0] - 0.01
        return
    assert expected[-1] < expected[0] - 0.1
    # NLLB starts with the end token; here the start has a row of its own.
    tolerance = {"rtol": 1e-4} if kind == "NLLB" else {"atol": 1e-4, "rtol": 0}
    np.testing.assert_allclose(actual, expected, **tolerance)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(
    "kind", ["Marian", pytest.param("NLLB", marks=pytest.mark.slow)]
)
def test_a_run_fine_tunes_a_model_of_another_program(kind, tmp_path, capsys):
    folder = tmp_path / "parent"
    folder.mkdir()
    _, _, codes = write_parent(folder, kind)
    data, out = write_tsv(tmp_path / "animals.tsv"), tmp_path / "run"
    data.write_text("".join(data.read_text("utf-8").splitlines(True)[:40]), "utf-8")
    options = {"epochs": 1, "average_last": 1, "held_out": 4, "beam_size": 1}
    flags = flags_of(folder, codes, data, out, **options)
    result = translation.main(flags)
    assert result["epochs_averaged"] == 1
    translator = pipelines.Translator.load(out / "model")
    parent = pipelines.Translator.from_preset(folder, *codes)
    for name in ("source_prefix", "source_suffix", "target_prefix"):
        assert getattr(translator.config, name) == getattr(parent.config, name)
    assert (
        translator.decoder.options.suppress_ids == parent.decoder.options.suppress_ids
    )
    lines = (out / "translations.tsv").read_text("utf-8").splitlines()[1:]
    sources, _, translations = zip(*(line.split("\t") for line in lines), strict=True)
    actual = [" ".join(line.split()) for line in translator(list(sources))]
    assert actual == list(translations)
    capsys.readouterr()
    translation.main(dataclasses.replace(flags, epochs=2))
    assert "Resuming the run" in capsys.readouterr().out


def test_a_parent_that_cannot_be_trained_is_rejected(tmp_path):
    vocabulary = text.Vocabulary.train(TEXTS * 9, size=290, exact=False)
    sizes = {"num_layers": 1, "embedding_dim": 8, "num_heads": 2}
    language_model = models.CausalLM(vocabulary.size, **sizes)
    pipelines.Translator(language_model, vocabulary).save(tmp_path / "decoder")
    untied = models.Transformer(vocabulary.size, tie=None, **sizes)
    pipelines.Translator(untied, vocabulary).save(tmp_path / "untied")

    def load(name, **changes):
        flags = flags_of(tmp_path / name, None, "unused", "unused", **changes)
        return tokenization.make(flags, None, tmp_path, fine_tuning.load_parent(flags))

    with pytest.raises(ValueError, match="an encoder and a decoder.*CausalLM"):
        load("decoder")
    with pytest.raises(ValueError, match="--vocabulary-size needs .* tied embeddings"):
        load("untied", vocabulary_size=300)
    with pytest.raises(ValueError, match="--additional-targets needs"):
        load("untied", additional_targets=("fr",))
    assert load("untied").target.size == vocabulary.size
