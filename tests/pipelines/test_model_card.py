"""What a model card says of a model."""

import pytest

from keras_tfm.pipelines.model_card import known_weaknesses

pytestmark = pytest.mark.backend("torch")
CARD = """# a-b

## Known weaknesses

* **Words.** It does not know `many`
  words, see [the list](list.md).
* Other things.

## What did not help

* Nothing.
"""


def test_weaknesses_are_plain_text(tmp_path):
    assert known_weaknesses(tmp_path) == []
    (tmp_path / "README.md").write_text(CARD)
    expected = ["Words. It does not know many words, see the list.", "Other things."]
    assert known_weaknesses(tmp_path) == expected


def test_presets_say_what_they_do_not_do_well():
    german = known_weaknesses("en-de")
    assert len(german) > 3 and german[0].startswith("Domain. ")
    pivot = known_weaknesses("de-fr")
    assert set(known_weaknesses("de-en")) < set(pivot)
