"""Saved translators: round trips, changed models, and damaged files."""

import json

import numpy as np
import pytest

from keras_tfm.decode import Options, Shortlist
from keras_tfm.pipelines import Translator
from tests.decode.conftest import draw_transformer
from tests.layers.quantized import QUANTIZED, quantize
from tests.pipelines.random_translators import CHANGES, FAST, TEXTS, as_ids

torch_only = pytest.mark.backend("torch")  # files are the same on every backend


@pytest.fixture(scope="module")
def saved_folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "new" / "folder"
    translator.save(folder)
    return folder


@pytest.fixture
def copied_folder(saved_folder, tmp_path):
    for path in saved_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_saved_translator_translates_the_same(translator, translations, saved_folder):
    loaded = Translator.load(saved_folder)
    assert loaded.changes() == translator.changes()
    assert loaded.config == translator.config
    assert loaded(TEXTS) == translations
    greedy = Translator.load(saved_folder, beam_size=1)
    assert greedy.changes() == {**translator.changes(), "beam_size": 1}
    assert not getattr(loaded.model, "optimizer", None)
    assert translator.model.optimizer is not None  # of the original translator
    names = {"model.keras", "source.model", "target.model", "translator.json"}
    assert {path.name for path in saved_folder.iterdir()} == names


@torch_only
def test_a_shortlist_is_saved_with_its_translator(translator, tmp_path):
    sizes = translator.model.vocabulary_size, translator.model.target_vocabulary_size
    best = np.random.default_rng(0).integers(260, sizes[1], (sizes[0], 4))
    shortlist = Shortlist(best, np.arange(sizes[1])[::-1], frequent=0, best=1)
    limited = translator.replace(shortlist=shortlist)
    limited.save(tmp_path)
    loaded = Translator.load(tmp_path)
    assert loaded.decoder.options.shortlist.best == 1
    assert loaded(TEXTS[0]) == limited(TEXTS[0])
    loaded.replace(shortlist=None).save(tmp_path)
    assert Translator.load(tmp_path).decoder.options.shortlist is None


@torch_only
@pytest.mark.parametrize("suppressed", [range(3), {0, 1, 2}, np.arange(3)])
def test_numbers_of_numpy_are_saved(translator, tmp_path, suppressed):
    changed = translator.replace(
        beam_size=np.int64(2),
        length_penalty=np.float32(0.5),
        suppress_ids=suppressed,
        max_decoding_length=(1, np.int64(9)),
        source_prefix=np.array([3]).tolist(),
    )
    changed.save(tmp_path)
    options = Translator.load(tmp_path).decoder.options
    assert sorted(options.suppress_ids) == [0, 1, 2]
    assert (options.beam_size, options.length_penalty) == (2, 0.5)
    assert list(options.max_decoding_length) == [1, 9]


def changed_model(translator, change):
    """Returns a model of the same weights with LoRA or in int8."""
    model = type(translator.model).from_config(translator.model.get_config())
    model.set_weights(translator.model.get_weights())
    if change == "lora":
        model.enable_lora(2)
        for weight in model.trainable_weights:
            weight.assign(np.full(weight.shape, 0.3))
    else:
        quantize(model)
    return model


@torch_only
@QUANTIZED
@pytest.mark.parametrize("change", ["lora", "int8"])
def test_a_changed_model_is_saved_as_it_is(translator, change, tmp_path):
    vocabularies = translator.vocabulary, translator.target_vocabulary
    model = changed_model(translator, change)
    changed = Translator(model, *vocabularies).replace(**CHANGES)
    ids = as_ids(translator.vocabulary.encode(TEXTS[3:6]))
    expected = changed.decoder(ids)
    assert np.abs(expected.scores - translator.decoder(ids).scores).max() > 1e-4
    changed.save(tmp_path)
    loaded = Translator.load(tmp_path)
    loaded.save(tmp_path)  # over itself
    for reloaded in (loaded, Translator.load(tmp_path)):
        hypotheses = reloaded.decoder(ids)
        np.testing.assert_array_equal(hypotheses.ids, expected.ids)
        np.testing.assert_allclose(hypotheses.scores, expected.scores, atol=1e-4)


@torch_only
def test_a_failed_save_leaves_the_folder_unchanged(translator, copied_folder):
    content = {path.name: path.read_bytes() for path in copied_folder.iterdir()}
    with pytest.raises(TypeError, match="`logits_processors` cannot be saved"):
        translator.replace(logits_processors=[lambda x, history: x]).save(copied_folder)
    broken = Translator(draw_transformer(vocabulary_size=300), translator.vocabulary)
    broken.model.get_config = lambda: {"vocabulary_size": -1}
    with pytest.raises((TypeError, ValueError, KeyError)):
        broken.save(copied_folder)
    assert {path.name: path.read_bytes() for path in copied_folder.iterdir()} == content
    assert len(content) == 4


@torch_only
def test_a_translator_that_cannot_be_saved_creates_no_folder(translator, tmp_path):
    with pytest.raises(TypeError, match="`logits_processors` cannot be saved"):
        translator.replace(logits_processors=[lambda x, history: x]).save(
            tmp_path / "saved"
        )
    assert not (tmp_path / "saved").exists()


@torch_only
@pytest.mark.parametrize("kind", ["shorter", "empty", "torn"])
def test_the_error_names_a_damaged_model(copied_folder, kind):
    file = copied_folder / "model.keras"
    content = file.read_bytes()
    third, half = len(content) // 3, len(content) // 2
    torn = content[:third] + b"\0" * (half - third) + content[half:]
    file.write_bytes({"shorter": content[:-100], "empty": b"", "torn": torn}[kind])
    with pytest.raises(ValueError, match="model.keras cannot be read as a Keras model"):
        Translator.load(copied_folder)


@torch_only
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "JSON"),
        ("[1]", "object"),
        ({"speed": 1}, r"unknown entries \['speed'\]. Known are \['keras_tfm'"),
        ({"options": []}, "'options' must be of type dict; got"),
        ({"options": {"beams": 2}}, r"unknown entries \['beams'\]"),
        ({"options": {"start_id": 2}}, r"unknown entries \['start_id'\]"),
        ({"options": {"beam_size": "2"}}, "`beam_size`.*'2'"),
        ({"options": {"disable_unk": "no"}}, "'disable_unk' must be of type bool"),
        ({"text": {"batch_size": 0}}, "`batch_size` must be.*got 0"),
        ({"text": {"beam_size": 2}}, r"unknown entries \['beam_size'\]"),
        ({"text": {"source_prefix": 7}}, "`source_prefix` must be a list.*got 7"),
    ],
)
def test_the_error_names_a_damaged_configuration(copied_folder, content, message):
    text = content if isinstance(content, str) else json.dumps(content)
    (copied_folder / "translator.json").write_text(text)
    with pytest.raises(ValueError, match=f"translator.json.*{message}"):
        Translator.load(copied_folder)


@torch_only
@pytest.mark.parametrize("version", ["0.0.1", "999.1"])
def test_the_error_names_a_newer_version_that_has_written(copied_folder, version):
    file = copied_folder / "translator.json"
    config = json.loads(file.read_text()) | {"keras_tfm": version}
    file.write_text(json.dumps(config))
    Translator.load(copied_folder)  # nothing in it is new
    file.write_text(json.dumps(config | {"rhythm": 3}))
    with pytest.raises(ValueError, match="unknown entries") as caught:
        Translator.load(copied_folder)
    is_newer = "translator.json was written by keras_tfm 999.1, which is newer than"
    assert (is_newer in str(caught.value)) == (version == "999.1")


@torch_only
def test_large_numbers_of_a_file_are_rejected(copied_folder):
    file = copied_folder / "translator.json"
    for name, value in (
        ("beam_size", 3_000_000),
        ("max_decoding_length", 10**9),
        ("max_decoding_length", [10**6, 1]),
        ("min_decoding_length", 10**7),
    ):
        file.write_text(json.dumps({"options": {name: value}}))
        with pytest.raises(ValueError, match=rf"translator.json.*`{name}` of a file"):
            Translator.load(copied_folder)


@torch_only
def test_the_error_names_missing_files(copied_folder, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match="'model.keras', 'source.model'.*missi"):
        Translator.load(tmp_path_factory.mktemp("empty"))
    (copied_folder / "target.model").unlink()
    with pytest.raises(FileNotFoundError, match=r"\['target.model'\] missing. Name a"):
        Translator.load(copied_folder)


@pytest.mark.backend("jax", "torch")
def test_the_matmul_precision_is_not_saved(translator, tmp_path):
    vocabularies = translator.vocabulary, translator.target_vocabulary
    options = Options(beam_size=2, matmul_precision="bfloat16", **FAST)
    translator = Translator(translator.model, *vocabularies, options)
    assert translator.decoder.options.matmul_precision == "bfloat16"
    translator.save(tmp_path)
    assert Translator.load(tmp_path).decoder.options.matmul_precision == "float32"
