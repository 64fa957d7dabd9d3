"""A family of transformers is one module and one name in a list."""

import ast
import pathlib

import pytest

from keras_tfm.zoo import huggingface
from keras_tfm.zoo.huggingface import load
from keras_tfm.zoo.huggingface.family import Family

pytestmark = pytest.mark.backend("torch")
FOLDER = pathlib.Path(huggingface.__file__).parent
MODULES = ("bart", "bert", "gpt2", "t5")


def test_each_family_states_all_that_is_read_of_it():
    names = [name for family in load.FAMILIES for name in family.model_types]
    assert len(names) == len(set(names)) == 13
    for family in load.FAMILIES:
        assert isinstance(family, Family)
        generates = not {"seq2seq", "causal_lm"}.isdisjoint(family.heads)
        assert (family.decoding is not None) == generates


def test_a_new_family_touches_its_module_and_one_list():
    """No other module names an architecture or imports that of a family."""
    importers = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            is_import = isinstance(node, ast.ImportFrom)
            names = {alias.name for alias in node.names} if is_import else set()
            if names & set(MODULES) and node.module == huggingface.__name__:
                importers.add(file.stem)
    # Each export writes one family and reads its weight mapping.
    assert importers == {"load", "bert_export", "marian_export"}
    for name in MODULES:
        module = getattr(huggingface, name)
        assert module.FAMILY in load.FAMILIES
