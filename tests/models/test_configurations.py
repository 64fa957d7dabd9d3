"""Configurations have the published sizes."""

import contextlib

import keras
import pytest

from keras_tfm import models

pytestmark = pytest.mark.backend("torch")  # shapes are the same everywhere

# Vaswani et al. 2017, table 3, in millions of parameters.
PUBLISHED = {
    "base": 65,
    "B1": 58,
    "B2": 60,
    "C1": 36,
    "C2": 50,
    "C3": 80,
    "C4": 28,
    "C5": 168,
    "C6": 53,
    "C7": 90,
    "big": 213,
}
VOCABULARY_SIZE = 37_000


@contextlib.contextmanager
def without_values():
    """Makes models that have shapes and no values, to save time and memory."""
    with keras.StatelessScope(initialize_variables=False):
        yield
    # Otherwise the end of the next scope would initialize all of these models.
    keras.utils.clear_session(free_memory=False)


def parameters(make_model, *args, **options):
    with without_values():
        return make_model(*args, **options).count_params()


@pytest.mark.parametrize("row", PUBLISHED)
def test_a_row_of_table_3_has_the_published_number_of_parameters(row):
    count = parameters(models.transformer_table_3, row, VOCABULARY_SIZE) / 1e6
    assert count == pytest.approx(PUBLISHED[row], rel=0.07)


def test_base_and_big_have_65_and_213_million_parameters():
    base = parameters(models.transformer_base, VOCABULARY_SIZE) / 1e6
    assert base == pytest.approx(65, rel=0.03)
    big = parameters(models.transformer_big, VOCABULARY_SIZE) / 1e6
    assert big == pytest.approx(213, rel=0.03)


def test_group_a_has_one_number_of_parameters():
    """The number of heads times their dimension is constant."""
    rows = ["base", "A1", "A2", "A3", "A4"]
    counts = {
        parameters(models.transformer_table_3, row, 100, num_layers=1) for row in rows
    }
    # The number of biases of projections is the same too: H * d_k is constant.
    assert len(counts) == 1


def test_counting_without_values_counts_all_parameters():
    options = {"num_layers": 1, "embedding_dim": 16, "intermediate_dim": 8}
    count = parameters(models.transformer_base, 50, **options)
    assert count == models.transformer_base(50, **options).count_params()


def test_transformer_tiny_has_the_published_number_of_parameters():
    assert parameters(models.transformer_tiny, 9_712) == 2_568_192


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("A1", {"num_heads": 1, "key_dim": 512, "value_dim": 512}),
        ("A4", {"num_heads": 32, "key_dim": 16, "value_dim": 16}),
        ("D1", {"dropout": 0.0}),
        ("D2", {"dropout": 0.2}),
        ("D3", {"dropout": 0.1, "num_layers": 6, "tie": "all"}),
        ("E", {"positions": "learned", "sequence_length": 512}),
        ("big", {"dropout": 0.3, "num_heads": 16, "intermediate_dim": 4096}),
    ],
)
def test_a_row_of_table_3_changes_the_options_of_the_paper(row, expected):
    with without_values():
        options = models.transformer_table_3(row, 100).config
    assert {name: options[name] for name in expected} == expected
    assert options["normalize_first"] is False  # post-norm, as in the paper


def test_options_override_the_configuration():
    options = {"num_layers": 1, "embedding_dim": 8, "intermediate_dim": 8}
    with without_values():
        model = models.transformer_tiny(20, num_heads=2, dropout=0.0, **options)
    assert model.config["num_layers"] == 1
    assert model.config["dropout"] == 0.0
    position = model.source_embedding.position_layer
    assert position.style == "halves"
    assert position.reach_max_period


def test_unknown_configurations_are_rejected():
    with pytest.raises(ValueError, match="must be one of .*'base', 'A1'.*got row='F1'"):
        models.transformer_table_3("F1", 100)
    with pytest.raises(ValueError, match="must be one of .*got name='bert_huge'"):
        models.bert_encoder("bert_huge")


# Parameters of the checkpoints, without the layer on the first token, which
# belongs to a classifier: `D * D + D` in BERT, MiniLM and RoBERTa; and without
# two positions of RoBERTa and its only segment.
ENCODERS = {
    "bert_base": 109_482_240 - 768 * 768 - 768,
    "bert_tiny": 4_385_920 - 128 * 128 - 128,
    "distilbert_base": 66_362_880,
    "minilm_l6": 22_713_216 - 384 * 384 - 384,
    "roberta_base": 124_645_632 - 768 * 768 - 768 - 3 * 768,
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_have_the_sizes_of_their_checkpoints(name):
    assert parameters(models.bert_encoder, name) == ENCODERS[name]


def test_options_override_the_configuration_of_an_encoder():
    with without_values():
        model = models.bert_encoder(
            "bert_tiny", vocabulary_size=50, num_layers=1, num_segments=0
        )
        small = models.encoder_small(50, dropout=0.3)
    assert len(model.blocks) == 1 and list(model.input) == ["token_ids"]
    assert small.config["dropout"] == 0.3
