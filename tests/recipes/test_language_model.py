"""The language model recipe, on a corpus that trains in seconds."""

import dataclasses
import json
import math
import pathlib

import keras
import numpy as np
import pytest

import keras_tfm.cli
from keras_tfm import pipelines
from keras_tfm.models import CausalLM
from keras_tfm.recipes import language_model
from keras_tfm.text import TokenRows, Vocabulary

pytestmark = pytest.mark.backend("torch")
LINES = [
    f"I have {n} {animal} and {'no' if n % 2 else 'many'} mice ."
    for n in range(120)
    for animal in ("cats", "dogs", "birds")
]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    file = folder / "lines.txt"
    file.write_text("\n\n".join(LINES) + "\n", encoding="utf-8")
    return language_model.Flags(
        data=str(file),
        out=str(folder / "out"),
        vocabulary_size=320,
        length=16,
        batch_size=16,
        epochs=2,
        learning_rate=1e-2,
        max_new_tokens=8,
        prompt=("I have 7",),
    )


@pytest.fixture(scope="module")
def result(flags):
    return language_model.main(flags)


def test_a_run_learns_and_writes_the_documented_files(flags, result):
    out = pathlib.Path(flags.out)
    stored = json.loads((out / "result.json").read_text())
    assert stored == json.loads(json.dumps(result))
    assert {path.name for path in out.iterdir()} >= {
        "model",
        "curves.png",
        "samples.txt",
        "flags.json",
        "tensorboard",
        "vocabulary.model",
    }
    samples = (out / "samples.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(":")[0] for line in samples] == ["greedy", "sampled"]
    assert samples[0].startswith("greedy: I have 7")
    assert result["test_perplexity"] < 10  # of 320 tokens


def test_a_run_is_a_preset_that_continues_a_text(flags, result, capsys):
    writer = pipelines.Translator.from_preset(flags.out)
    samples = (pathlib.Path(flags.out) / "samples.txt").read_text(encoding="utf-8")
    assert samples.startswith("greedy: I have 7")
    [greedy, _] = samples.splitlines()
    prompt = flags.prompt[0]
    assert greedy == f"greedy: {prompt}{writer(prompt)}"
    *_, streamed = writer.stream(prompt)
    assert writer.translate([prompt])[0].text == streamed == writer(prompt)
    assert writer("I have 8 cats").startswith(" ")
    options = {"sampling_topk": 0, "sampling_topp": 0.9, "sampling_temperature": 3.0}
    sampler = pipelines.Translator.from_preset(flags.out, **options)
    assert len({sampler(prompt) for _ in range(8)}) > 1
    assert keras_tfm.cli.main(["inspect", flags.out]) == 0
    assert "Translator with a CausalLM" in capsys.readouterr().out


def test_perplexities_are_computed_from_the_logits(flags, result):
    """Start tokens do not count, since they always follow an end token."""
    out = pathlib.Path(flags.out)
    model = keras.models.load_model(out / "model" / "model.keras")
    assert isinstance(model, CausalLM)
    vocabulary = Vocabulary.load(out / "vocabulary.model")
    splits, _ = language_model.load_texts(flags)
    rows = TokenRows(splits["test"], vocabulary, flags.length, flags.batch_size)
    nats = count = 0
    expected = sum(len(ids) + 1 for ids in vocabulary.encode(splits["test"]))
    for inputs, labels in rows.ordered().as_numpy_iterator():
        logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")
        logits -= logits.max(-1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        label_log_probs = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
        nats -= label_log_probs[labels != 0].sum()
        count += (labels != 0).sum()
    assert count == expected
    words = sum(len(line.split()) for line in splits["test"])
    characters = sum(map(len, splits["test"]))
    expected = {
        "perplexity": math.exp(nats / count),
        "word_perplexity": math.exp(nats / words),
        "bits_per_character": nats / math.log(2) / characters,
    }
    for name, value in expected.items():
        assert result[f"test_{name}"] == pytest.approx(value, rel=2e-3)


def test_splits_share_no_line_and_a_finished_run_resumes(flags, result, capsys):
    splits, _ = language_model.load_texts(flags)
    sets = [set(splits[name]) for name in ("train", "validation", "test")]
    assert [len(lines) for lines in sets] == [324, 18, 18]
    assert set.union(*sets) == set(LINES)
    resumed = language_model.main(dataclasses.replace(flags, prompt=("I",)))
    assert "Epoch" not in capsys.readouterr().out
    assert resumed["test_perplexity"] == pytest.approx(result["test_perplexity"])
    with pytest.raises(ValueError, match="length: 16 before, 8 now"):
        language_model.main(dataclasses.replace(flags, length=8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "nowhere.txt"}, "'nowhere.txt', which is not a file"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"max_new_tokens": 0}, "--max-new-tokens must be at least 1"),
        ({"prompt": ("good", " ")}, "--prompt must not be blank"),
        ({"dropout": 1.0}, "--dropout must be at least 0 and less than 1; got 1.0"),
        ({"learning_rate": -1.0}, "--learning-rate must be greater than 0; got -1.0"),
        ({"clip_norm": 0.0}, "--clip-norm must be greater than 0; got 0.0"),
        ({"weight_decay": -1.0}, "--weight-decay must be at least 0; got -1"),
        ({"temperature": 0.0}, "--temperature must be greater than 0; got 0.0"),
        ({"length": 4_000}, "a batch of 16 rows of 4000"),
        ({"positions": "learned", "max_new_tokens": 65}, "max_decoding_length=65"),
        (
            {"positions": "learned", "prompt": ("cat " * 70,)},
            "--prompt must have fewer than",
        ),
        ({"sampling_topp": 1.5}, "sampling_topp|top_p|probability"),
    ],
)
def test_invalid_flags_are_rejected(flags, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        language_model.main(
            dataclasses.replace(flags, out=str(tmp_path / "out"), **change)
        )
    assert not (tmp_path / "out").exists()


def test_a_file_of_one_line_is_rejected(flags, tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("I have 7 cats\n")
    with pytest.raises(ValueError, match="1 different ones. Put one text on each"):
        language_model.main(dataclasses.replace(flags, data=str(file)))
