"""Model cards of presets: templates, and the format of flags and scores."""

import dataclasses
import pathlib
from typing import Any

from keras_tfm.recipes.runs import FLAG_NAMES

TRANSLATOR = """# {name}

A Transformer that translates from {sources} to {targets}: {parameters:,} parameters,
weights in {quantization}.

```python
from keras_tfm.pipelines import Translator

{examples}
```

* Data: {data}, {pairs:,} pairs, {origin}; {license}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `keras-tfm train translation{flags}`.
* Tested on {test_pairs:,} pairs of which neither side is in the training set{others}:

| weights | BLEU (95%) | chrF (95%) |
|---|---|---|
{rows}

{signatures}, beam {beam_size}.

{notes}
"""

CLASSIFIER = """# {name}

A Transformer encoder that classifies {language} texts as one of {classes}:
{parameters:,} parameters, weights in {quantization}.

```python
from keras_tfm.pipelines import Classifier

print(Classifier.from_preset("{name}")("{example}").label)  # {label}
```

* Data: {data}, {texts:,} texts, {origin}; {license}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `keras-tfm train classification{flags}`.
* Tested on {test_texts:,} texts of which none is in the training set:

| | {score} (95%), % | macro F1, % |
|---|---|---|
| float32, as trained | {float_scores} |
| {quantization}, as here | {preset_scores} |
| TF-IDF and logistic regression | {baseline} |

{notes}
"""

# Flags whose values are files, of which a card shows the names only.
FILE_FLAGS = ("data", "additional_data", "init_from")


def public_origin(flags: Any, corpus: Any) -> dict[str, str]:
    """Returns name and origin of a corpus, without the folders of files.

    Args:
        flags: flags of the run.
        corpus: `corpora.Corpus` or `labeled_corpora.LabeledCorpus`.
    """
    if pathlib.Path(flags.data.split(",")[0]).exists():
        return dict.fromkeys(("data", "origin"), file_names(flags.data))
    return {"data": corpus.name, "origin": corpus.origin}


def file_names(paths: str) -> str:
    """Returns the names of comma-separated files without their folders."""
    return ",".join(pathlib.Path(path).name for path in paths.split(","))


def command_flags(flags: Any) -> str:
    """Formats the flags of a run that are not the defaults.

    Args:
        flags: dataclass instance. `--out` is left out.
    """
    words = ""
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if field.name == "out" or value == field.default:
            continue
        name = FLAG_NAMES.get(field.name, field.name.replace("_", "-"))
        if field.name in FILE_FLAGS:
            value = file_names(value)
        if isinstance(value, bool):
            words += f" --{name}" if value else f" --no-{name}"
            continue
        values = value if isinstance(value, list | tuple) else [value]
        words += f" --{name} {' '.join(map(str, values))}"
    return words


def score_rows(
    label: str, quantization: str, float_scores: dict, preset_scores: dict
) -> list[str]:
    """Formats BLEU and chrF of the run and of the preset as two table rows."""
    forms = {
        "float32, as trained": float_scores,
        f"{quantization}, as here": preset_scores,
    }
    return [
        f"| {label}{form} | {score_columns(scores, 'bleu', 'chrf')} |"
        for form, scores in forms.items()
    ]


def score_columns(scores: dict | None, *names: str) -> str:
    """Formats scores as columns of a table, with their intervals if any."""
    if scores is None:  # texts without a word have no TF-IDF baseline
        return " | ".join("none" for _ in names)
    return " | ".join(f"{scores[name]:.2f}{_interval(scores, name)}" for name in names)


def _interval(scores, name):
    if f"{name}_interval_95" in scores:
        low, high = scores[f"{name}_interval_95"]
        return f" ({low:.2f} to {high:.2f})"
    half_width = scores.get(f"{name}_half_width_95")
    return "" if half_width is None else f" ± {half_width:.2f}"


def enumerate_names(names: list[str]) -> str:
    """Joins names with commas and "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
