"""Encoders of KerasHub are compared with KerasHub itself."""

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from tests.layers.formulas import numpy

pytestmark = pytest.mark.backend("torch")  # test_backends.py compares the backends

V, S = 40, 9
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
SIZES = {
    "vocabulary_size": V,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_sequence_length": 12,
}


def write(folder, family):
    """Writes a preset of random weights, with a tokenizer."""
    import keras_hub

    models = keras_hub.models
    backbone = getattr(models, f"{family}Backbone")(**SIZES)
    draw = np.random.default_rng(0)
    for weight in backbone.weights:
        weight.assign(draw.normal(0, 0.3, weight.shape))
    backbone.save_to_preset(folder)
    if family == "Roberta":
        tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "c", "a", "t", "\u0120"]
        tokens += ["ca", "cat", "\u0120cat"]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        merges = ["c a", "ca t", "\u0120 cat"]
        tokenizer = models.RobertaTokenizer(vocabulary, merges)
    else:
        tokenizer = getattr(models, f"{family}Tokenizer")(TOKENS, lowercase=True)
    tokenizer.save_to_preset(folder)
    return backbone, tokenizer


@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Roberta"])
def test_vectors_and_ids_are_those_of_keras_hub(family, tmp_path):
    backbone, tokenizer = write(tmp_path, family)
    imported = zoo.from_keras_hub(str(tmp_path), dropout=0.0)
    encoder, vocabulary = imported.model, imported.vocabulary
    assert imported.classes is None
    ids = np.random.default_rng(1).integers(5, V, (2, S)).astype("int32")
    ids[1, 5:] = encoder.pad_id
    real = ids != encoder.pad_id
    reference = {"token_ids": ids, "padding_mask": real.astype("int32")}
    inputs = {"token_ids": ids}
    if family == "Bert":
        inputs["segment_ids"] = reference["segment_ids"] = (np.arange(S) > 3) * real
    expected = backbone(reference)
    expected = expected["sequence_output"] if family == "Bert" else expected
    imported, expected = numpy(encoder(inputs))[real], numpy(expected)[real]
    np.testing.assert_allclose(imported, expected, atol=1e-4)
    assert np.abs(expected).max() > 0.3
    text = "cat cat" if family == "Roberta" else "The cats sat."
    expected = [int(token_id) for token_id in tokenizer(text)]
    assert vocabulary.encode([text]) == [expected] and len(expected) > 1
    assert (vocabulary.start_id, vocabulary.end_id) == (
        (0, 2) if family == "Roberta" else (2, 3)
    )
    encoder.save(tmp_path / "encoder.keras")
    reloaded = keras.models.load_model(tmp_path / "encoder.keras")
    np.testing.assert_allclose(numpy(reloaded(inputs))[real], imported, atol=1e-6)


@pytest.mark.parametrize("options", [{"strip_accents": True}, {}])
def test_accents_are_treated_as_by_keras_hub(options, tmp_path):
    write(tmp_path, "Bert")
    import keras_hub

    tokens = [*TOKENS, "cafe", "caf\u00e9"]
    tokenizer = keras_hub.models.BertTokenizer(tokens, lowercase=True, **options)
    tokenizer.save_to_preset(tmp_path)
    vocabulary = zoo.from_keras_hub(str(tmp_path)).vocabulary
    expected = [int(token_id) for token_id in tokenizer("Caf\u00e9")]
    assert vocabulary.encode(["Caf\u00e9"]) == [expected]
    assert expected == [tokens.index("cafe" if options else "caf\u00e9")]


def test_an_unsupported_backbone_is_rejected(tmp_path):
    import keras_hub

    keras_hub.models.GPT2Backbone(**SIZES).save_to_preset(tmp_path)
    with pytest.raises(
        ValueError, match="'BertBackbone'.*whose backbone is GPT2Backbone"
    ):
        zoo.from_keras_hub(str(tmp_path))
