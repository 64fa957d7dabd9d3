"""SavedModels give the text of the pipeline in other programs."""

import gzip
import os
import subprocess

import numpy as np
import pytest

from keras_tfm import export
from keras_tfm.export import saving
from keras_tfm.models import RecurrentSeq2Seq
from keras_tfm.pipelines import Classifier, Translator
from keras_tfm.text import TokenizersVocabulary
from tests.decode.conftest import draw_transformer, redraw
from tests.export.serving_process import (
    compile_c_program,
    operation_names,
    serve,
    text_operations,
)
from tests.pipelines.random_translators import (
    AFFIXES,
    CHANGES,
    FAST,
    TEXTS,
    as_ids,
    hostile,
)
from tests.pipelines.test_classifier import CLASSES, network

tensorflow_only = pytest.mark.backend("tensorflow")
other_backends = pytest.mark.backend("jax", "torch")


def signature_of(folder):
    """Loads the default signature in this process."""
    import tensorflow as tf

    return tf.saved_model.load(os.fspath(folder)).signatures["serving_default"]


def answers_of(signature, texts):
    import tensorflow as tf

    answer = {k: v.numpy() for k, v in signature(text=tf.constant(texts)).items()}
    return {**answer, "translation": [x.decode() for x in answer["translation"]]}


def assert_same(answer, translations):
    assert answer["translation"] == [str(result) for result in translations]
    scores = [result.score for result in translations]
    np.testing.assert_allclose(answer["score"], scores, atol=1e-4)
    truncated = [result.truncated for result in translations]
    assert list(answer["truncated"]) == truncated


def warm_up_requests(folder):
    import tensorflow as tf

    file = folder / "assets.extra" / "tf_serving_warmup_requests"
    return list(tf.data.TFRecordDataset(os.fspath(file)).as_numpy_iterator())


@pytest.mark.backend("torch")
def test_text_steps_that_a_graph_lacks_are_named(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_write_by_tensorflow", lambda *arguments: None)
    with pytest.warns(UserWarning, match="as it is, without `protect`, `lower_cap"):
        careful = translator.replace(protect="all", lower_capitals=True)
        export.saved_model(careful, tmp_path)
    export.saved_model(translator, tmp_path)  # no warning, which were an error


@pytest.fixture(scope="session")
def exported_folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    export.saved_model(translator, folder, version=3)
    return folder / "3"


@tensorflow_only
def test_a_savedmodel_answers_as_the_translator(translator, exported_folder):
    texts = hostile()
    requests = [TEXTS, TEXTS[3:4], ["", ""], texts]
    requests = [("serving_default", batch) for batch in requests]
    requests += [("n_best", TEXTS), ("n_best", ["", ""]), ("encode", TEXTS[:4])]
    answers = serve(exported_folder, *requests)
    translations = translator.translate(TEXTS)
    assert_same(answers[0], translations)
    assert_same(answers[1], translations[3:4])
    assert answers[2] == {
        "translation": ["", ""],
        "score": [-np.inf] * 2,
        "truncated": [False] * 2,
    }
    assert_same(answers[3], translator.translate(texts))
    assert answers[0]["truncated"].count(True) > 0
    assert answers[3]["truncated"].count(True) > 3
    n_best, empty, states = answers[4:]
    for strings, scores, result in zip(
        n_best["translations"],
        n_best["scores"],
        translator.translate(TEXTS, num_hypotheses=2),
        strict=True,
    ):
        if result.source_tokens:
            assert strings == [hypothesis.text for hypothesis in result.hypotheses]
            expected = [hypothesis.score for hypothesis in result.hypotheses]
            np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert empty["translations"] == [["", ""]] * 2
    ids = as_ids(translator.vocabulary.encode(TEXTS[:4]))
    assert states["ids"] == ids.tolist()
    expected = translator.model.encode(ids)
    np.testing.assert_allclose(states["states"], expected, atol=1e-4)
    single, pair = warm_up_requests(exported_folder)
    assert b"serving_default" in single and b"one two three" in pair


@pytest.mark.slow
@tensorflow_only
def test_a_compiled_savedmodel_answers_the_same(translator, tmp_path):
    from keras_tfm.export.translation_graph import TranslationGraph

    buckets = [(8, 24), (2, 12)]
    export.saved_model(
        translator, tmp_path, version=1, jit_compile=True, buckets=buckets
    )
    folder = tmp_path / "1"
    assert b"_XlaMustCompile" in (folder / "saved_model.pb").read_bytes()
    long = "a house " * 20  # its segment fits in no bucket
    batches = [TEXTS[3:4], ["the"] * 2, TEXTS, TEXTS[:8], ["", ""], [long], ["a", long]]
    answers = serve(folder, *(("serving_default", texts) for texts in batches))
    for texts, answer in zip(batches, answers, strict=True):
        assert_same(answer, translator.translate(texts))
    # Warm-up requests fill each bucket.
    texts_of_buckets = TranslationGraph(translator, buckets).warm_up_texts()
    for (rows, length), texts in zip(sorted(buckets), texts_of_buckets, strict=True):
        sizes = {len(row) for row in translator.vocabulary.encode(texts)}
        assert len(texts) == rows and length - 2 < max(sizes) <= length
    for record, texts in zip(warm_up_requests(folder), texts_of_buckets, strict=True):
        assert record.count(texts[0].encode()) == len(texts)


@tensorflow_only
def test_a_program_in_c_translates_with_sessions(translator, exported_folder, tmp_path):
    program = compile_c_program(tmp_path)
    texts = [text for text in [*TEXTS, *hostile()] if not {"\n", "\x00"} & set(text)]
    process = subprocess.run(
        [
            program,
            exported_folder,
            text_operations(),
            *operation_names(exported_folder),
        ],
        input="".join(f"{text}\n" for text in texts).encode() + b"a \xff house\n",
        capture_output=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    expected = translator([*texts, "a \ufffd house"])  # for bytes that are not UTF-8
    assert process.stdout.decode() == "".join(f"{text}\n" for text in expected)


@pytest.mark.slow
@tensorflow_only
def test_a_savedmodel_respects_learned_positions(vocabulary, tmp_path):
    model = draw_transformer(
        vocabulary_size=vocabulary.size, positions="learned", sequence_length=30
    )
    endless = {**FAST, "suppress_ids": [*FAST["suppress_ids"], 3]}
    del endless["max_decoding_length"]
    changes = {**endless, **AFFIXES, "max_source_length": 40}
    translator = Translator(model, vocabulary).replace(**changes)
    texts = ["a house", "an old man in a small boat", "a"]
    rows = [[270, *row, 3, 271] for row in vocabulary.encode(texts)]
    best = translator.decoder(as_ids(rows), [[265]] * 3)
    limits = [2 * len(row) + 16 for row in rows]
    assert best.lengths[:, 0].tolist() == [min(limit, 30) for limit in limits]
    assert min(limits) < 30 < max(limits)
    export.saved_model(translator, tmp_path)
    signature = signature_of(tmp_path)
    answer = answers_of(signature, [*texts, ""])
    assert answer["translation"] == [*vocabulary.decode(best.ids[:, 0]), ""]
    assert answer["truncated"].tolist() == [True] * 3 + [False]
    long = "a house " * 40
    [source] = translator.encode([long])
    assert 24 < max(len(segment.ids) for segment in source.segments) <= 30
    assert_same(
        answers_of(signature, ["the", long]), translator.translate(["the", long])
    )
    # A bucket that is longer than the positions is shortened to them.
    export.saved_model(translator, tmp_path, jit_compile=True, buckets=[(1, 32)])


@pytest.mark.slow
@tensorflow_only
@pytest.mark.parametrize("kind", ["t5", "recurrent"])
def test_models_of_other_kinds_are_exported(kind, vocabulary, tmp_path):
    if kind == "t5":  # relative positions up to the capacity of the cache
        model = draw_transformer(vocabulary_size=vocabulary.size, positions="t5")
    else:  # states instead of a cache that grows
        model = RecurrentSeq2Seq(
            vocabulary.size, embedding_dim=16, units=16, dropout=0.0
        )
        redraw(model, 3)
    translator = Translator(model, vocabulary).replace(**CHANGES)
    translations = translator.translate(TEXTS)
    lengths = [len(result.hypotheses[0].tokens) for result in translations]
    assert max(lengths) > 8  # more than two chunks
    export.saved_model(translator, tmp_path)
    assert_same(answers_of(signature_of(tmp_path), TEXTS), translations)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_hypotheses": 0}, "`num_hypotheses`.*got 0"),
        ({"num_hypotheses": 99}, "beam_size=2, num_hypotheses=99"),
        ({"version": -1}, "`version` must be an integer of at least 0; got -1"),
        ({"jit_compile": True, "buckets": [(8, 0)]}, r"least 1; got \[\[8, 0\]\]"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message, translator, tmp_path):
    with pytest.raises(ValueError, match=message):
        export.saved_model(translator, tmp_path / "export", **arguments)
    assert not (tmp_path / "export").exists()


def test_an_export_replaces_only_an_export(translator, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="notes.txt.*Name another folder"):
        export.saved_model(translator, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.slow("torch")
@other_backends
def test_other_backends_export_translators(translator, translations, tmp_path):
    # NumPy numbers are passed to the other process as JSON.
    counts = {"version": np.int64(3), "num_hypotheses": np.int64(2)}
    export.saved_model(translator, tmp_path / "exported", **counts)
    [answer] = serve(tmp_path / "exported" / "3", ("serving_default", TEXTS))
    assert answer["translation"] == translations


@pytest.mark.slow("torch")
@pytest.mark.backend("torch")  # translators are tested on both backends
def test_other_backends_export_classifiers(vocabulary, tmp_path):
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES)
    export.saved_model(classifier, tmp_path / "saved")
    texts = [text for text in TEXTS if text.strip()]
    [answer] = serve(tmp_path / "saved", ("serving_default", texts))
    labels = [prediction.label for prediction in classifier(texts)]
    assert [row[0] for row in answer["labels"]] == labels


@pytest.mark.backend("torch")
def test_classifiers_that_cannot_be_exported_are_rejected(vocabulary, tmp_path):
    word_piece = TokenizersVocabulary.train(TEXTS, size=70)
    classifier = Classifier(network(word_piece), word_piece, CLASSES)
    with pytest.raises(TypeError, match="vocabulary of type TokenizersVocabulary"):
        export.saved_model(classifier, tmp_path)
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES)
    with pytest.raises(ValueError, match="are for translators"):
        export.saved_model(classifier, tmp_path, num_hypotheses=2)


@tensorflow_only
@pytest.mark.parametrize("paired", [False, True])
def test_a_savedmodel_answers_as_the_classifier(paired, vocabulary, tmp_path):
    import tensorflow as tf

    model = network(vocabulary, segments=2 * paired)
    classifier = Classifier(model, vocabulary, CLASSES, paired, max_length=14)
    export.saved_model(classifier, tmp_path / "saved", version=1)
    folder = tmp_path / "saved" / "1"
    texts = [text for text in TEXTS if text.strip()]
    if not paired:
        [answer] = serve(folder, ("serving_default", [*texts, "", " "]))
    else:
        texts = [(text, second_text) for text in texts for second_text in texts]
        sides = zip(*texts, ("a house", ""), (" ", "a"), strict=True)
        first, second = (tf.constant(list(side)) for side in sides)
        answer = signature_of(folder)(text=first, second=second)
        answer = {name: value.numpy().tolist() for name, value in answer.items()}
        answer["labels"] = [[x.decode() for x in row] for row in answer["labels"]]
    predictions = classifier(texts)
    assert answer["labels"][-2:] == [[""] * 3] * 2
    assert answer["probabilities"][-2:] == [[0.0] * 3] * 2
    truncated = [prediction.truncated for prediction in predictions]
    assert answer["truncated"][:-2] == truncated
    assert len(set(truncated)) == 2
    for labels, probabilities, prediction in zip(
        answer["labels"], answer["probabilities"], predictions, strict=False
    ):
        assert labels[0] == prediction.label
        by_label = dict(zip(labels, probabilities, strict=True))
        assert by_label == pytest.approx(prediction.probabilities, abs=1e-5)
    _, record = warm_up_requests(folder)
    assert (b"second" in record) == paired


@tensorflow_only
@pytest.mark.parametrize(
    ("num_sentences", "num_odd", "num_characters"),
    [(10, 80, 800), pytest.param(1000, 200, 30_000, marks=pytest.mark.slow)],
)
def test_real_sentences_and_hostile_texts_are_translated_alike(
    data, tmp_path, num_sentences, num_odd, num_characters
):
    folder = data / "multi30k" / "raw"
    file = next(iter(sorted(folder.glob("test*2016*.en*"))))
    open_file = gzip.open if file.suffix == ".gz" else open
    with open_file(file, "rt", encoding="utf-8") as lines:
        sentences = [line.rstrip("\n") for line in lines]
    assert len(sentences) == 1000
    long_text = " ".join(sentences)[:num_characters]
    sentences = sentences[:: 1000 // num_sentences]
    odd = hostile()
    draw = np.random.default_rng(1)
    letters = [*"aeinst ,.!", *"\u00e4\u05d0\u0627\U0001f600\u4e2d\t"]
    sizes = range(1, num_odd - len(odd))
    odd += ["".join(draw.choice(letters, size)) for size in sizes]
    odd.append(long_text)
    assert len(odd) == num_odd and len(odd[-1].split()) > num_characters / 6
    # Another test compares compiled decoding; so many lengths would take
    # minutes. Random text is decoded up to the maximum length.
    options = {"beam_size": 2, "max_decoding_length": 64}
    options |= {"jit_compile": False, "few_buckets": True}
    # A SavedModel has no steps around the model.
    options |= {"protect": "none", "match_numbers": False, "known_words": ()}
    options |= {"lexicon": None}
    options |= {"lower_capitals": False, "add_final_mark": False}
    options |= {"avoid_loops": False}
    translator = Translator.from_preset("en-de", **options)
    export.saved_model(translator, tmp_path / "model")
    # No batch has many segments and one of a thousand tokens.
    odd.sort(key=len)
    short = sum(len(text) < 250 for text in odd)
    batches = [sentences, odd[:short], odd[short:-1], odd[-1:]]
    answers = serve(tmp_path / "model", *(("serving_default", b) for b in batches))
    translations = [text for answer in answers for text in answer["translation"]]
    assert translations == translator([*sentences, *odd])
    answer = answers_of(signature_of(tmp_path / "model"), [b"a \xff house"])
    assert answer["translation"] == [translator("a \ufffd house")]
