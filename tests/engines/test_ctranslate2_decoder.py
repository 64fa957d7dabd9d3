"""The engine of CTranslate2 decodes as our search, or says what it lacks."""

import gzip
import pathlib

import numpy as np
import pytest

from keras_tfm import cli, decode, engines, models
from keras_tfm.engines import choice
from keras_tfm.pipelines import SharedTranslator, Translator
from keras_tfm.runtime import Decoder
from tests.decode.conftest import draw_transformer

ctranslate2 = pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.backend("torch")  # the engine uses no backend

SOURCES = [[4, 5, 6, 7, 8], [9, 4], [], [5, 5, 5, 5, 5, 5, 5, 6], [7], [8, 9, 4, 6]]
CHANGES = [
    {},
    {"beam_size": 4},
    {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.6},
    {"beam_size": 3, "num_hypotheses": 3, "patience": 2.0, "length_penalty": 0.0},
    {"beam_size": 3, "repetition_penalty": 1.3},
    {"beam_size": 2, "no_repeat_ngram_size": 2},
    {"beam_size": 2, "min_decoding_length": 3},
    {"beam_size": 3, "num_hypotheses": 2, "suppress_sequences": [[5], [6, 7]]},
    {"beam_size": 3, "suppress_ids": [0, 2, 8], "disable_unk": False},
    {"beam_size": 2, "max_decoding_length": 3},
    {"beam_size": 2, "max_decoding_length": (1, 1)},
    {"max_decoding_length": 1},
]


@pytest.fixture(scope="module")
def model():
    return draw_transformer(tie="target")


@pytest.fixture(scope="module")
def engine(model):
    return engines.make_decoder(model, decode.Options(engine="ctranslate2")).engine


def make_both(model, engine, **changes):
    """Our decoder, and that of CTranslate2, with the same options."""
    options = decode.Options(jit_compile=False, early_stopping=True, **changes)
    reference = Decoder(model, options)
    options = options.replace(engine="ctranslate2")
    return reference, engines.CTranslate2Decoder(model, options, engine)


def check_equal(actual, expected):
    """Compares `Hypotheses` of different padding."""
    np.testing.assert_array_equal(actual.lengths, expected.lengths)
    length = actual.ids.shape[-1]
    np.testing.assert_array_equal(actual.ids, expected.ids[..., :length])
    assert not expected.ids[..., length:].any()
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_hypotheses_are_those_of_our_search(model, engine, changes):
    reference, converted = make_both(model, engine, **changes)
    check_equal(converted(SOURCES), reference(SOURCES))
    assert converted([]).scores.shape == reference([]).scores.shape
    assert converted.engine is engine  # not converted again


def test_bulk_yields_each_source_once(model, engine):
    reference, converted = make_both(model, engine, beam_size=2)
    rows = [row * n for n in (1, 2) for row in SOURCES]
    expected = dict(reference.bulk(rows))
    pairs = list(converted.bulk(iter(rows), batch_tokens=12, batch_size=3))
    assert sorted(number for number, _ in pairs) == list(range(len(rows)))
    for number, hypotheses in pairs:
        check_equal(hypotheses, expected[number])


def test_bulk_starts_few_batches_at_once(model, engine):
    _, converted = make_both(model, engine)
    sizes = []

    class Counting:
        def translate_batch(self, rows, *arguments, **options):
            sizes.append(len(rows))
            return engine.translator.translate_batch(rows, *arguments, **options)

    converted.engine = engine._replace(translator=Counting(), num_workers=2)
    results = converted.bulk([[4, 5]] * 100, batch_size=2)
    next(results)
    assert sizes == [2] * 3  # those who stop do not wait for the rest
    assert len(list(results)) == 99


def test_attention_is_the_mean_of_the_heads(model, engine):
    reference, converted = make_both(model, engine, beam_size=2, return_attention=True)
    actual, expected = converted(SOURCES), reference(SOURCES)
    check_equal(actual, expected)
    length, size = actual.attention.shape[2:]
    np.testing.assert_allclose(
        actual.attention, expected.attention[..., :length, :size], atol=1e-5
    )


def test_prefixes_are_not_scored(model, engine):
    reference, converted = make_both(model, engine, beam_size=3, score_prefix=False)
    prefixes = [[5, 6], [], [4], [7], [], [8]]
    check_equal(converted(SOURCES, prefixes), reference(SOURCES, prefixes))
    with pytest.raises(
        ValueError, match="needs score_prefix=False.*got score_prefix=T"
    ):
        converted.replace(score_prefix=True)(SOURCES, prefixes)


def test_tokens_are_streamed(model, engine):
    reference, converted = make_both(model, engine)
    for source, prefix in ((SOURCES[0], []), (SOURCES[3], [5, 6]), (SOURCES[2], [])):
        expected = [int(ids[0]) for ids in reference.stream([source], [prefix])]
        actual = [int(ids[0]) for ids in converted.stream([source], [prefix])]
        assert actual == expected
    with pytest.raises(ValueError, match="greedy search; got beam_size=2"):
        list(converted.replace(beam_size=2).stream([[4]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"beam_size": 2, "late_stopping": True},
            "needs the defaults of late_stopping",
        ),
        ({"logits_processors": [lambda x, _: x]}, "defaults of logits_processors"),
        ({"return_token_scores": True}, "return_token_scores; got .*'keras'"),
        ({"compute_type": "int2"}, "`compute_type` must be 'float32' or .*'int2'"),
    ],
)
def test_what_the_engine_lacks_is_named(model, changes, message):
    with pytest.raises(ValueError, match=message):
        options = decode.Options(**{"engine": "ctranslate2", **changes})
        engines.make_decoder(model, options)


def test_other_arguments_that_it_lacks_are_named(model, engine, monkeypatch):
    _, converted = make_both(model, engine, beam_size=2)
    with pytest.raises(ValueError, match="`seed` needs the engine 'keras'; got seed=1"):
        converted(SOURCES, seed=1)
    with pytest.raises(ValueError, match="`constraints` need the engine 'keras'"):
        converted([[4]], constraints=[[[5]]])
    recurrent = models.RecurrentSeq2Seq(12, embedding_dim=8, units=8)
    with pytest.raises(ValueError, match="a Transformer; got RecurrentSeq2Seq"):
        engines.make_decoder(recurrent, decode.Options(engine="ctranslate2"))
    monkeypatch.setattr(
        ctranslate2, "get_supported_compute_types", lambda device: {"float32"}
    )
    options = decode.Options(engine="ctranslate2", compute_type="int8")
    with pytest.raises(ValueError, match="on this processor, float32; got 'int8'"):
        engines.make_decoder(model, options)
    with pytest.raises(ValueError, match="is an option of the engine 'ctranslate2'"):
        decode.Options(compute_type="int8")
    with pytest.raises(ValueError, match="must have the engine 'keras'; got 'ctr"):
        Decoder(model, decode.Options(engine="ctranslate2"))


@pytest.mark.parametrize(
    ("seconds", "engine", "compute_type"),
    [((2.0, 1.0), "ctranslate2", "int8"), ((1.0, 2.0), "keras", "float32")],
)
def test_auto_takes_the_faster_engine(
    model, seconds, engine, compute_type, monkeypatch
):
    times = iter(seconds)
    monkeypatch.setattr(choice, "_seconds", lambda run: (run(), next(times))[1])
    options = decode.Options(engine="auto", compute_type="int8")
    chosen = engines.make_decoder(model, options).options
    assert (chosen.engine, chosen.compute_type) == (engine, compute_type)


def test_auto_takes_keras_where_the_other_is_impossible():
    recurrent = models.RecurrentSeq2Seq(12, embedding_dim=8, units=8)
    decoder = engines.make_decoder(recurrent, decode.Options(engine="auto"))
    assert isinstance(decoder, Decoder) and decoder.options.engine == "keras"


@pytest.fixture(scope="module")
def translators():
    reference = Translator.from_preset("en-de", early_stopping=True)
    return reference, reference.replace(engine="ctranslate2")


def test_a_translator_has_its_steps_with_either_engine(translators, tmp_path):
    reference, converted = translators
    texts = [
        "THE HOUSE IS OLD.",
        "Visit <b>https://example.org</b> today, Tom! 😀",
        "I met Chloe Martin in Bordeaux.",
        "408,172 seats are free.\n\nGood night!",
        "",
    ]
    assert converted(texts) == reference(texts)
    assert list(converted.stream(texts[0]))[-1] == list(reference.stream(texts[0]))[-1]
    [pair] = converted.score([("Good night!", "Gute Nacht!")])
    assert pair.score > -1
    greedy = converted.translate(texts[2], beam_size=1)
    assert greedy.text == reference.translate(texts[2], beam_size=1).text
    assert not SharedTranslator.supports(converted)
    assert (
        converted.replace(engine="keras").decoder.options == reference.decoder.options
    )
    smaller = converted.replace(compute_type="int8", beam_size=1)
    assert smaller.decoder.engine.translator.compute_type.startswith("int8")
    smaller.save(tmp_path / "saved")
    assert Translator.load(tmp_path / "saved").decoder.options.engine == "keras"


def test_the_command_has_the_engine(tmp_path, capfd):
    (tmp_path / "texts.txt").write_text("Good morning!\n")
    arguments = ["translate", "en-de", str(tmp_path / "texts.txt")]
    assert cli.main([*arguments, "--engine", "ctranslate2"]) == 0
    assert capfd.readouterr().out == "Guten Morgen!\n"
    assert cli.main([*arguments, "--compute-type", "int8"]) == 1
    assert "--compute-type is an option of the engine" in capfd.readouterr().err


def test_a_server_says_which_engine_it_takes(monkeypatch):
    local = pytest.importorskip("keras_tfm.server.local")
    from keras_tfm.server.limits import Limits

    times = iter((2.0, 1.0))
    monkeypatch.setattr(choice, "_seconds", lambda run: (run(), next(times))[1])
    messages = []
    models = {"en-de": {"name": "en-de", "engine": "auto"}}
    clients = local.load(models, Limits(), 4, messages.append)
    assert messages[:2] == ["en-de: loading", "en-de: engine ctranslate2"]
    assert clients["en-de"].engine.model("Good night!") == "Gute Nacht!"


@pytest.mark.slow
def test_a_thousand_sentences_are_translated_alike(translators, data):
    path = pathlib.Path(data, "tatoeba", "eng-deu.test.tsv.gz")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    texts = [line.split("\t")[0] for line in lines[:1_000]]
    reference, converted = translators
    assert converted(texts) == reference(texts)
