"""From sentence to sentence: order, empty text, saving, and the SavedModel."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm.decode import Shortlist
from keras_tfm.decode.inputs import padded_rows
from keras_tfm.serving import Translator
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.layers.quantized import QUANTIZED, quantize

TEXTS = [
    "the small garden behind the old house",
    "a house",
    "",
    "an old man in a small boat",
    "the boat",
    "a garden and a house and a boat and a man",
    " ",
    "old",
    "Ünknown, zß!",
]
MAX_LENGTH = 16  # one stretch of a search, so one program a shape
FAST = {
    "max_decoding_length": MAX_LENGTH,
    "jit_compile": False,
    # No bytes either: random weights would say little else.
    "suppress_ids": [0, 1, 2, *range(4, 260)],
}
SETTINGS = {
    "beam_size": 2,
    "length_penalty": 0.7,
    "batch_size": 4,
    "batch_tokens": 2000,
    "max_source_length": 60,
    "length_penalty_form": "gnmt",
    "source_prefix": [],
    "source_suffix": [],
    "target_prefix": [],
    **FAST,
}
MARKS = {"source_prefix": [270], "source_suffix": [3, 271], "target_prefix": [265]}


def as_ids(rows):
    return padded_rows(rows, max(map(len, rows)))


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train([text for text in TEXTS if text.isascii()] * 20, size=280)


@pytest.fixture(scope="module")
def target_vocabulary():
    return Vocabulary.train(["un uomo, una barca e un giardino"] * 20, size=276)


@pytest.fixture(scope="module")
def translator(vocabulary, target_vocabulary):
    # Three rows more than pieces, as where a table is padded to a round size.
    model = draw_transformer(
        seed=6,  # says many things, and ends some of them
        vocabulary_size=vocabulary.size + 3,
        target_vocabulary_size=target_vocabulary.size + 3,
    )
    # Compiled, as after training: what is saved must not carry the optimizer.
    model.compile("adam", "sparse_categorical_crossentropy")
    return Translator(model, vocabulary, target_vocabulary, **SETTINGS)


@pytest.fixture(scope="module")
def translations(translator):
    return translator(TEXTS)


def test_a_list_comes_back_in_its_order(translator, translations):
    assert [type(text) for text in translations] == [str] * len(TEXTS)
    assert translations == [translator(text) for text in TEXTS]
    assert translator(text for text in TEXTS[:2]) == translations[:2]
    assert translator(np.array(TEXTS[:2])) == translations[:2]
    assert len(set(translations)) >= 6  # so that a wrong order is seen


def test_nothing_in_nothing_out(translator):
    assert translator("") == ""
    assert translator(" \n") == ""
    assert translator([]) == []
    assert translator(["", ""]) == ["", ""]


def test_progress_is_shown_when_asked_for(translator, translations, capsys):
    assert translator(TEXTS) == translations
    assert capsys.readouterr().out == ""
    assert translator(TEXTS, progress=True) == translations
    assert "9/9" in capsys.readouterr().out


def test_any_number_of_texts_is_translated_in_windows(translator, translations):
    read = []

    def lines():
        for text in TEXTS:
            read.append(text)
            yield text

    found = translator.bulk(lines(), window=4)
    first = next(found)
    assert len(read) == 4
    assert [first, *found] == translations
    cut = translator.cut
    translator(TEXTS)
    assert cut == translator.cut > 0
    assert list(translator.bulk([])) == []
    with pytest.raises(ValueError, match="`window` must be 1 or more. Received: 0"):
        next(translator.bulk(TEXTS, window=0))


def test_what_is_no_text_is_refused(translator):
    with pytest.raises(TypeError, match=r"str or a list of str.*\['NoneType', 'int'\]"):
        translator(["a house", None, 3])
    with pytest.raises(TypeError, match=r"Received: \['bytes'\]. Decode bytes"):
        translator(b"a house")
    with pytest.raises(TypeError, match=r"Received: \['int'\]"):
        translator(3)


def test_a_text_that_is_too_long_is_refused_by_its_number(translator):
    with pytest.raises(
        ValueError, match=r"Text 1 has \d+ tokens; max_source_length=60"
    ):
        translator(["a house", "a house " * 40])


def test_settings_that_cannot_work_are_refused(
    translator, vocabulary, target_vocabulary
):
    both = (vocabulary, target_vocabulary)
    small = draw_transformer(vocabulary_size=vocabulary.size - 1)
    with pytest.raises(ValueError, match="280 pieces, vocabulary_size=279. Load the"):
        Translator(small, vocabulary)
    with pytest.raises(ValueError, match="at least one sentence.*batch_size=0"):
        Translator(translator.model, *both, batch_size=0)
    with pytest.raises(ValueError, match="num_hypotheses=3, beam_size=2"):
        Translator(translator.model, *both, beam_size=2, num_hypotheses=3)


def test_two_vocabularies_each_have_their_side(
    translator, vocabulary, target_vocabulary
):
    with pytest.raises(ValueError, match="280 pieces, target_vocabulary_size=279"):
        Translator(translator.model, vocabulary)
    [best] = translator.search(np.array(vocabulary.encode(["a house"]))).ids[:, 0]
    assert [translator("a house")] == target_vocabulary.decode([best])
    assert [translator("a house")] != vocabulary.decode([best])


def test_marks_stand_around_each_text(translator, vocabulary, target_vocabulary):
    marked = Translator(
        translator.model, vocabulary, target_vocabulary, **{**SETTINGS, **MARKS}
    )
    texts = ["a house", "", "old"]
    rows = [[270, *row, 3, 271] for row in vocabulary.encode(texts)]
    found = [translator.search([row], [[265]]).ids[0, :1] for row in (rows[0], rows[2])]
    wanted = [target_vocabulary.decode(ids)[0] for ids in found]
    assert marked(texts) == [wanted[0], "", wanted[1]]
    assert found[0][0, 0] == 265 and wanted[0] != translator("a house")


def test_a_saved_translator_translates_the_same(translator, translations, tmp_path):
    translator.save(tmp_path / "new" / "folder")
    loaded = Translator.load(tmp_path / "new" / "folder")
    assert loaded.settings == SETTINGS
    assert loaded(TEXTS) == translations
    greedy = Translator.load(tmp_path / "new" / "folder", beam_size=1)
    assert greedy.settings == {**SETTINGS, "beam_size": 1}
    assert not getattr(loaded.model, "optimizer", None)
    assert translator.model.optimizer is not None  # of the one that was saved


def test_a_shortlist_goes_with_its_translator(translator, tmp_path):
    sizes = translator.model.vocabulary_size, translator.model.target_vocabulary_size
    draw = np.random.default_rng(0)
    best = draw.integers(260, sizes[1], (sizes[0], 4))
    shortlist = Shortlist(best, np.arange(sizes[1])[::-1], frequent=0, each=1)
    both = translator.vocabulary, translator.target_vocabulary
    listed = Translator(translator.model, *both, shortlist=shortlist, **SETTINGS)
    said = listed(TEXTS[0])
    listed.save(tmp_path)
    again = Translator.load(tmp_path)
    assert again.shortlist.each == 1
    assert again(TEXTS[0]) == said
    again.shortlist = None
    again.save(tmp_path)
    assert Translator.load(tmp_path).shortlist is None
    assert listed.search.shortlist is shortlist
    assert listed._search_of().shortlist is None  # what an export searches with


def test_settings_of_any_kind_of_number_are_saved(translator, tmp_path):
    both = translator.vocabulary, translator.target_vocabulary
    settings = {
        "beam_size": np.int64(2),
        "length_penalty": np.float32(0.5),
        "suppress_ids": range(3),
        "jit_compile": False,
    }
    for suppressed in (range(3), {0, 1, 2}, np.arange(3)):
        settings["suppress_ids"] = suppressed
        Translator(translator.model, *both, **settings).save(tmp_path)
        loaded = Translator.load(tmp_path).settings
        assert loaded["suppress_ids"] == [0, 1, 2]
        assert (loaded["beam_size"], loaded["length_penalty"]) == (2, 0.5)


def changed(translator, change):
    """A translator of the same weights with LoRA, or in int8."""
    model = type(translator.model).from_config(translator.model.get_config())
    model.set_weights(translator.model.get_weights())
    if change == "lora":
        model.enable_lora(2)
        for weight in model.trainable_weights:
            weight.assign(np.full(weight.shape, 0.3))
    else:
        quantize(model)
    both = translator.vocabulary, translator.target_vocabulary
    return Translator(model, *both, **SETTINGS)


@pytest.mark.backend("torch")  # files are the same elsewhere
@QUANTIZED
@pytest.mark.parametrize("change", ["lora", "int8"])
def test_a_changed_model_is_saved_as_it_is(translator, change, tmp_path):
    other = changed(translator, change)
    ids = as_ids(translator.vocabulary.encode(TEXTS[3:6]))
    wanted = other.search(ids)
    assert np.abs(wanted.scores - translator.search(ids).scores).max() > 1e-4
    other.save(tmp_path)
    loaded = Translator.load(tmp_path)
    loaded.save(tmp_path)  # over itself
    for found in (loaded.search(ids), Translator.load(tmp_path).search(ids)):
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4)


def test_what_cannot_be_saved_leaves_the_folder_as_it_was(translator, tmp_path):
    translator.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    both = translator.vocabulary, translator.target_vocabulary
    other = Translator(translator.model, *both, **FAST)
    other.settings["strange"] = object()
    with pytest.raises(TypeError, match="not JSON serializable"):
        other.save(tmp_path)
    other = Translator(draw_transformer(vocabulary_size=300), *both, **FAST)
    other.model.get_config = lambda: {"vocabulary_size": -1}
    with pytest.raises((TypeError, ValueError, KeyError)):
        other.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(before) == 4


def test_what_was_cut_before_its_end_is_counted(translator):
    real = [text for text in TEXTS if text.strip()]
    alone = [translator.search(np.array(translator._rows([one]))) for one in real]
    ends = [translator.target_vocabulary.end_id in found.ids[0, 0] for found in alone]
    translator(TEXTS)
    assert translator.cut == ends.count(False)
    assert 0 < translator.cut < len(real)
    translator("")
    assert translator.cut == 0


def test_a_folder_without_a_translator_is_named(translator, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'model.keras', 'source.model'.*missi"
    ):
        Translator.load(tmp_path)
    translator.save(tmp_path)
    (tmp_path / "target.model").unlink()
    with pytest.raises(FileNotFoundError, match=r"\['target.model'\] missing. Name a"):
        Translator.load(tmp_path)


# A machine that serves: TensorFlow and its text ops, nothing of ours.
SERVER = """
import json, sys
import tensorflow as tf
import tensorflow_text
translate = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answers = []
for texts in json.load(sys.stdin):
    answer = translate(text=tf.constant(texts, tf.string))
    words = [text.decode() for text in answer["translation"].numpy()]
    rest = [answer[name].numpy().tolist() for name in ("score", "finished")]
    answers.append([words, *rest])
assert not any(name.split(".")[0] == "keras_tfm" for name in sys.modules)
print(json.dumps(answers))
"""


def serve(folder, batches):
    """Lets a process without this library translate batches of texts."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER, os.fspath(folder)],
        input=json.dumps(batches),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.backend("tensorflow")
def test_the_savedmodel_says_what_the_translator_says(
    translator, translations, tmp_path
):
    translator.export(tmp_path)
    batches = [TEXTS, TEXTS[3:4], ["", ""]]
    (all_texts, scores, finished), (one, *_), nothing = serve(tmp_path, batches)
    assert all_texts == translations
    assert one == translations[3:4]
    assert nothing == [["", ""], [-np.inf] * 2, [True] * 2]
    ids = as_ids(translator.vocabulary.encode(TEXTS[:4]))
    wanted = translator.search(ids)
    np.testing.assert_allclose(scores[:4], wanted.scores[:, 0], atol=1e-4)
    translator(TEXTS)
    assert finished.count(False) == translator.cut > 0


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_savedmodel_keeps_the_limits(positions, vocabulary, tmp_path):
    model = draw_transformer(
        vocabulary_size=vocabulary.size, positions=positions, sequence_length=30
    )
    endless = {**FAST, "suppress_ids": [*FAST["suppress_ids"], 3]}
    del endless["max_decoding_length"]
    settings = {**endless, **MARKS, "max_source_length": 40}
    translator = Translator(model, vocabulary, **settings)
    texts = ["a house", "an old man in a small boat", "the"]
    rows = [[270, *row, 3, 271] for row in vocabulary.encode(texts)]
    best = translator.search(as_ids(rows), [[265]] * 3)
    wanted = vocabulary.decode(best.ids[:, 0])
    limits = [2 * len(row) + 16 for row in rows]
    longest = 30 if positions == "learned" else 1000
    assert best.lengths[:, 0].tolist() == [min(limit, longest) for limit in limits]
    assert max(limits) > 30
    translator.export(tmp_path)
    import tensorflow as tf

    loaded = tf.saved_model.load(os.fspath(tmp_path)).signatures["serving_default"]
    found = loaded(text=tf.constant([*texts, ""]))
    assert [text.decode() for text in found["translation"].numpy()] == [*wanted, ""]
    assert found["finished"].numpy().tolist() == [False] * 3 + [True]
    long = "a house " * 40
    limit = 30 if positions == "learned" else 40
    with pytest.raises(ValueError, match=f"Text 1 has .* max_source_length={limit}"):
        translator(["the", long])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"more than {limit} tokens. Split"
    ):
        loaded(text=tf.constant(["the", long]))


@pytest.mark.backend("jax", "torch")
def test_other_backends_say_how_to_export(translator, tmp_path):
    backend = keras.config.backend()
    with pytest.raises(
        RuntimeError, match=f"'{backend}'. Save the translator, and load"
    ):
        translator.export(tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
