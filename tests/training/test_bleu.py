"""Bleu adds the scores of sacrebleu to the logs of Keras."""

import sys

import keras
import numpy as np
import pytest
import sacrebleu

from keras_tfm.training import Bleu

SOURCE = ["ein Haus", "zwei Hunde laufen", "der Mann liest ein Buch"]
REFERENCES = ["A house.", "Two dogs are running.", "The man is reading a book."]
HYPOTHESES = ["A house.", "two dogs run .", "The man is reading the book."]


def small_model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit(callbacks, epochs, **options):
    x = np.ones((4, 1), "float32")
    options = {"verbose": 0, **options}
    return small_model().fit(x, x, epochs=epochs, callbacks=callbacks, **options)


def test_scores_and_signature_are_those_of_sacrebleu():
    bleu = Bleu(SOURCE, REFERENCES, lambda texts: HYPOTHESES)
    history = fit([bleu], 1).history
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert history["val_bleu"] == [pytest.approx(expected)]
    assert 10 < expected < 90
    expected = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert history["val_chrf"] == [pytest.approx(expected)]
    start = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    assert bleu.signature == start + sacrebleu.__version__
    assert bleu.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert bleu.translations == HYPOTHESES


def test_tokenizer_case_and_prefix_are_options():
    bleu = Bleu(SOURCE, REFERENCES, lambda t: HYPOTHESES, tokenize="none",
                lowercase=True, prefix="test_")  # fmt: skip
    history = fit([bleu], 1).history
    expected = sacrebleu.corpus_bleu(
        HYPOTHESES, [REFERENCES], tokenize="none", lowercase=True
    ).score
    assert history["test_bleu"] == [pytest.approx(expected)]
    assert "case:lc|eff:no|tok:none" in bleu.signature


class PartlyCorrect:
    """Returns a number of references at each call; records its input."""

    def __init__(self, *counts):
        self.counts = list(counts)
        self.calls = []

    def __call__(self, texts):
        self.calls.append(texts)
        count = self.counts.pop(0)
        return REFERENCES[:count] + ["no"] * (3 - count)


def test_every_epochs_repeats_scores_between_and_scores_the_last_epoch():
    translate = PartlyCorrect(1, 2, 3)
    bleu = Bleu(SOURCE, REFERENCES, translate, every_epochs=3)
    history = fit([bleu], 7).history
    assert translate.calls == [SOURCE] * 3
    scores = history["val_chrf"]  # of epochs 3 to 7
    assert scores[:4] == [scores[0]] * 3 + [scores[3]]
    assert scores[0] < scores[3] < scores[4]


def test_later_callbacks_and_the_progress_bar_have_the_scores(tmp_path, capsys):
    translate = PartlyCorrect(1, 2, 1, 0, 3)
    bleu = Bleu(SOURCE, REFERENCES, translate)
    stopping = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=2)
    path = tmp_path / "{epoch}-{val_chrf:.0f}.weights.h5"
    best = keras.callbacks.ModelCheckpoint(
        path, "val_bleu", mode="max", save_best_only=True, save_weights_only=True
    )
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = fit([bleu, stopping, best, log], 5, verbose=2)
    assert history.epoch == [0, 1, 2, 3]  # the best is epoch 1
    assert stopping.best == max(history.history["val_bleu"])
    saved = sorted(p.name for p in tmp_path.glob("*.h5"))
    first, second = (f"{score:.0f}" for score in history.history["val_chrf"][:2])
    assert saved == [f"1-{first}.weights.h5", f"2-{second}.weights.h5"]
    assert (tmp_path / "log.csv").read_text().startswith("epoch,loss,val_bleu,val_chrf")
    assert f"val_bleu: {history.history['val_bleu'][0]:.4f}" in capsys.readouterr().out


def test_translate_uses_the_weights_of_the_epoch():
    """On JAX the model does not have its trained weights during `fit`."""
    weights_in_translate, model = [], small_model()

    def translate(texts):
        weight = float(keras.ops.convert_to_numpy(model.weights[0]).item())
        weights_in_translate.append(weight)
        output = model(np.ones((1, 1), "float32"))
        assert np.isfinite(keras.ops.convert_to_numpy(output)).all()
        model.predict(np.ones((1, 1), "float32"), verbose=0)
        return HYPOTHESES

    x = np.ones((4, 1), "float32")
    weights_of_epochs = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights_of_epochs.append(
            model.get_weights()[0].item()
        )
    )
    bleu = Bleu(SOURCE, REFERENCES, translate)
    model.fit(x, -3 * x, epochs=3, verbose=0, callbacks=[bleu, watch])
    assert weights_in_translate == weights_of_epochs
    assert len(set(weights_in_translate)) == 3


def test_examples_are_printed(capsys):
    fit([Bleu(SOURCE, REFERENCES, lambda texts: HYPOTHESES, examples=2)], 1)
    assert capsys.readouterr().out == (
        "\nsource      ein Haus\ntranslation A house.\nreference   A house.\n"
        "\nsource      zwei Hunde laufen\ntranslation two dogs run ."
        "\nreference   Two dogs are running.\n"
    )


def test_translate_must_return_every_sentence():
    with pytest.raises(ValueError, match="got 2 strings for 3 sentences"):
        fit([Bleu(SOURCE, REFERENCES, lambda texts: HYPOTHESES[1:])], 1)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((SOURCE, REFERENCES[1:]), {}, "got 3 sentences, 2 references"),
        (([], []), {}, "got 0 sentences, 0 references"),
        ((SOURCE, "A house."), {}, "`references` must be a list of strings"),
        ((SOURCE, [REFERENCES] * 3), {}, "`references` must be a list of strings"),
        ((SOURCE, REFERENCES), {"every_epochs": 0}, "got every_epochs=0, examples=0"),
        ((SOURCE, REFERENCES), {"examples": -1}, "got every_epochs=1, examples=-1"),
        ((SOURCE, REFERENCES), {"tokenize": "moses"}, "got tokenize='moses'"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        Bleu(*arguments, lambda texts: HYPOTHESES, **options)


def test_the_error_without_sacrebleu_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match=r"pip install 'keras-tfm\[recipes\]'"):
        Bleu(SOURCE, REFERENCES, lambda texts: HYPOTHESES)
