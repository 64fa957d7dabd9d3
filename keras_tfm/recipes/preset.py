"""Makes a preset of a run: a small folder that anybody can load.

* Run      python -m keras_tfm.recipes.preset --run runs/en-de --out en-de *
Needs    pip install ctranslate2, for a translator * Writes   a translator as
CTranslate2 files with 8-bit weights, which its engine reads too, and its
options; a classifier with 16-bit weights; a model card with the scores of both
precisions on the test set of the run, for each language pair

`from_preset(folder)` of `pipelines.Translator` or `Classifier` loads it. A
folder in `keras_tfm/presets` is shipped with the package, under its name.
"""

import dataclasses
import functools
import json
import pathlib
import shutil
import tempfile
import zipfile

import h5py

from keras_tfm import pipelines, zoo
from keras_tfm.recipes import (
    augmentation,
    classification,
    classification_scores,
    multilingual,
    translation,
    translation_defaults,
    translation_scores,
)
from keras_tfm.recipes.runs import start, write_json

WEIGHTS = "model.weights.h5"  # in a Keras file
CARD = """# {name}

A Transformer that translates from {sources} to {targets}: {parameters:,} parameters,
weights in {quantization}.

```python
from keras_tfm.pipelines import Translator

{examples}
```

* Data: {data}, {pairs:,} pairs, {origin}; {license}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `keras-tfm train translation{flags}`.
* Tested on {tests} pairs, of which neither side is in the training set{others}:

| weights | BLEU (95%) | chrF (95%) |
|---|---|---|
{rows}

{signatures}, beam {beam_size}.

{notes}
"""

CLASSIFIER_CARD = """# {name}

A Transformer encoder that labels {language} texts as one of {classes}: {parameters:,}
parameters, weights in {quantization}.

```python
from keras_tfm.pipelines import Classifier

print(Classifier.from_preset("{name}")("{example}").label)  # {label}
```

* Data: {data}, {texts:,} texts, {origin}; {license}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `keras-tfm train classification{flags}`.
* Tested on {test_texts:,} texts that are not in the training set:

| | {score} (95%), % | macro F1, % |
|---|---|---|
| float32, as trained | {before} |
| {quantization}, as here | {after} |
| TF-IDF and logistic regression | {baseline} |

{notes}
"""


@dataclasses.dataclass(frozen=True)
class Flags:
    """The flags of `main`."""

    run: str
    """Folder of a finished run of the translation or classification recipe."""
    out: str
    """Folder to write; its last name is that of the preset."""
    notes: str = ""
    """Markdown file for the card: limits, and what did not help."""
    quantization: str | None = None
    """Type of a translator's weights in CTranslate2: int8, int16, float16,
    bfloat16, float32, or int8_float16 (the default: 8-bit matrices, 16-bit
    vectors). A classifier is written in float16."""
    example: str | None = None
    """Example text on the card."""
    language: str = "en"
    """Language of a classifier's texts."""
    positions: int | None = None
    """Maximum tokens of a translator's source and target, at two bytes per
    channel. Default: at least 1,024."""
    max_megabytes: float = 12.0
    """Maximum size of the folder."""


def main(flags: Flags) -> dict:
    """Writes the folder and returns the content of its `preset.json`."""
    run, out = pathlib.Path(flags.run), pathlib.Path(flags.out)
    if flags.positions is not None and flags.positions < 1:
        raise ValueError(f"--positions must be at least 1; got {flags.positions}.")
    file = run / "result.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"--run must be a finished run of a recipe; got {flags.run!r}, which has "
            "no `result.json`. Finish the run, or name another folder."
        )
    clear(out)
    notes = ""
    if flags.notes:
        notes = pathlib.Path(flags.notes).read_text(encoding="utf-8").strip()
    result = json.loads(file.read_text(encoding="utf-8"))
    labels = (run / "model" / "classifier.json").is_file()
    make = make_classifier if labels else make_translator
    description, card, loss = make(flags, run, out, result, notes)
    write_json(out / "preset.json", description)
    (out / "README.md").write_text(card.strip() + "\n", encoding="utf-8")
    print(f"\n{out}: {megabytes(out):.1f} MB; {loss} less than in float32")
    return description


def clear(out: pathlib.Path):
    """Empties a folder that holds an earlier preset."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "preset.json").is_file():
        raise FileExistsError(
            f"--out must be a new folder or a preset; got {str(out)!r} with "
            f"{sorted(path.name for path in out.iterdir())[:8]}. Name a new folder."
        )
    shutil.rmtree(out)


def make_translator(flags, run, out, result, notes):
    """Writes a translator; returns its description, card and lost score."""
    trained = read_flags(translation, result)
    translator = pipelines.Translator.load(run / "model")
    longest = translator.config.max_source_length
    positions = flags.positions or max(1024, longest)
    quantization = flags.quantization or "int8_float16"
    zoo.to_ctranslate2(
        translator.model,
        translator.vocabulary,
        out,
        quantization=None if quantization == "float32" else quantization,
        sequence_length=positions,
    )
    check_size(flags, out, quantization)
    corpus = multilingual.load_corpus(trained)
    public = without_paths(trained, corpus)
    directions = directions_of(trained, out.name)
    first = directions[0]
    description = {
        "task": "translation",
        "languages": [first.source, first.target],
        "parameters": result["parameters"],
        "license": corpus.license,
        "data": ", ".join(dict.fromkeys(public.values())),
        "scores": {},
        "language_tags": bool(trained.additional_targets),
        "arguments": {
            "beam_size": translator.decoder.options.beam_size,
            "length_penalty": translator.decoder.options.length_penalty,
            "split_tokens": translator.config.split_tokens,
            "max_source_length": min(longest, positions),
            "disable_unk": True,
            "suppress_ids": [0, 2],
        },
    }
    write_json(out / "preset.json", description)

    @functools.cache  # compiled functions are reused
    def load(folder, target):
        return pipelines.Translator.from_preset(folder, target_language=target)

    rows, scores, signatures = [], {}, {}
    for direction in directions:
        name = f"{direction.source}-{direction.target}"
        tested = multilingual.load_corpus(direction)
        target = direction.target if trained.additional_targets else None
        float32 = result
        if (direction.source, direction.target) != (trained.source, trained.target):
            float32 = score(direction, load(run, target), tested)
        quantized = score(direction, load(out, target), tested)
        signatures |= dict.fromkeys(
            [quantized["bleu_signature"], quantized["chrf_signature"]]
        )
        label = f"{name}, " if directions[1:] else ""
        rows += card_rows(label, quantization, float32, quantized)
        scores[name] = {
            "languages": [direction.source, direction.target],
            "scores": {"BLEU": quantized["bleu"], "chrF": quantized["chrf"]},
        }
        if direction is first:
            loss = float32["bleu"] - quantized["bleu"]
            tests = quantized["test_pairs"]
    description |= scores.pop(f"{first.source}-{first.target}")
    if scores:
        description["directions"] = scores
    example = flags.example or "Where is the station?"
    examples = []
    for direction in directions if trained.additional_targets else [first]:
        target = direction.target if trained.additional_targets else None
        argument = "" if direction is first else f', target_language="{target}"'
        examples += [
            f'translator = Translator.from_preset("{out.name}"{argument})',
            f'print(translator("{example}"))  # {load(out, target)(example)}',
        ]
    card = CARD.format(
        **result | result["versions"] | dataclasses.asdict(trained) | public,
        name=out.name,
        sources=in_words(list(dict.fromkeys(d.source for d in directions))),
        targets=in_words(list(dict.fromkeys(d.target for d in directions))),
        tests=f"{tests:,}",
        others=", and on those of the others" if scores else "",
        quantization=quantization,
        rows="\n".join(rows),
        signatures=", ".join(f"`{signature}`" for signature in signatures),
        license=corpus.license,
        minutes=result["training_minutes"],
        flags=command_flags(trained, translation.Flags()),
        examples="\n".join(examples),
        notes=notes,
    )
    return description, card, f"{loss:.2f} BLEU"


def directions_of(trained, name):
    """Returns flags for the test of each direction of a run.

    The direction with the preset's name comes first, otherwise the run's own.
    """
    plain = dataclasses.replace(
        trained,
        additional_sources=(),
        additional_targets=(),
        additional_data=None,
        concatenation_rate=0.0,
        unpunctuated_rate=0.0,
    )
    directions = [plain]
    for source in trained.additional_sources:
        directions.append(dataclasses.replace(plain, source=source))
    is_spaceless = augmentation.is_spaceless
    for target in trained.additional_targets:
        direction = dataclasses.replace(plain, target=target)
        if is_spaceless(target) != is_spaceless(trained.target):
            direction = dataclasses.replace(direction, bleu_tokenize=None)
            direction = translation_defaults.complete(direction, 0)
        directions.append(direction)
    return sorted(directions, key=lambda d: f"{d.source}-{d.target}" != name)


def score(trained, translator, corpus) -> dict:
    """Scores a translator without writing a run folder."""
    with tempfile.TemporaryDirectory() as folder:
        return translation_scores.evaluate(
            trained, translator, corpus, pathlib.Path(folder)
        )


def card_rows(label, quantization, float32, quantized):
    """Returns two rows of a card's table."""
    rows = {"float32, as trained": float32, f"{quantization}, as here": quantized}
    return [
        f"| {label}{precision} | {columns(result, 'bleu', 'chrf')} |"
        for precision, result in rows.items()
    ]


def in_words(names) -> str:
    """Joins names as in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def make_classifier(flags, run, out, result, notes):
    """Writes a classifier; returns its description, card and lost score."""
    if flags.quantization not in (None, "float16"):
        raise ValueError(
            "--quantization must be float16 for a classifier; got "
            f"{flags.quantization}. Leave it out."
        )
    trained = read_flags(classification, result)
    classifier = pipelines.Classifier.load(run / "model")
    classifier.save(out)
    write_half_precision(out / "model.keras")
    check_size(flags, out, "float16")
    corpus = classification.load_corpus(trained)
    public = without_paths(trained, corpus)
    small = pipelines.Classifier.load(out)
    with tempfile.TemporaryDirectory() as folder:
        scores, _ = classification_scores.evaluate(
            trained, small, corpus, pathlib.Path(folder)
        )
    first = classification_scores.main_score(corpus.train.multi_label)
    name = first.replace("_", " ")
    description = {
        "task": "classification",
        "languages": [flags.language],
        "parameters": result["parameters"],
        "license": corpus.license,
        "data": ", ".join(dict.fromkeys(public.values())),
        "scores": {name: scores[first], "macro F1": scores["macro_f1"]},
        "arguments": {},
    }
    example = flags.example or "A wonderful film, and I would see it again."
    card = CLASSIFIER_CARD.format(
        **result | result["versions"] | public,
        name=out.name,
        language=flags.language,
        classes=", ".join(classifier.classes),
        quantization="float16",
        score=name,
        before=columns(result, first, "macro_f1"),
        after=columns(scores, first, "macro_f1"),
        baseline=columns(result["tf_idf"], first, "macro_f1"),
        license=corpus.license,
        minutes=result["training_minutes"] + (result["pretraining_minutes"] or 0),
        flags=command_flags(trained, classification.Flags()),
        example=example,
        label=small(example).label,
        notes=notes,
    )
    return description, card, f"{result[first] - scores[first]:.2f}% {name}"


def write_half_precision(file: pathlib.Path):
    """Rewrites the weights of a Keras file in float16.

    Keras loads them into the float32 variables of the model.
    """
    with zipfile.ZipFile(file) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    with tempfile.TemporaryDirectory() as folder:
        before, after = (pathlib.Path(folder, name) for name in ("before", "after"))
        before.write_bytes(parts[WEIGHTS])
        with h5py.File(before) as source, h5py.File(after, "w") as target:
            _halve(source, target)
        parts[WEIGHTS] = after.read_bytes()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole:
        for name, content in parts.items():
            whole.writestr(name, content)


def _halve(source, target):
    target.attrs.update(source.attrs)
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            _halve(item, target.create_group(name))
        else:
            values = item[()]
            half = values.astype("float16") if values.dtype == "float32" else values
            target.create_dataset(name, data=half).attrs.update(item.attrs)


def megabytes(folder) -> float:
    """Returns the size of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def check_size(flags, out, quantization):
    """Rejects a folder that is too large to be shipped."""
    size = megabytes(out)
    if size > flags.max_megabytes:
        raise ValueError(
            f"--max-megabytes {flags.max_megabytes} is exceeded: the preset has "
            f"{size:.1f} MB in {quantization}. Quantize more, or train a smaller "
            "model."
        )


def without_paths(trained, corpus) -> dict:
    """Describes the data on a card, without paths of this machine."""
    public = {"data": corpus.name, "origin": corpus.origin}
    if pathlib.Path(trained.data.split(",")[0]).exists():
        public = dict.fromkeys(public, file_names(trained.data))
    return public


def file_names(paths: str) -> str:
    """Returns the names of files, without folders, separated by commas."""
    return ",".join(pathlib.Path(path).name for path in paths.split(","))


def columns(result, *names) -> str:
    """Formats scores as columns of a table, with intervals if there are any."""
    if result is None:  # texts without words have no TF-IDF baseline
        return " | ".join("none" for _ in names)
    return " | ".join(f"{result[name]:.2f}{_interval(result, name)}" for name in names)


def _interval(result, name) -> str:
    if f"{name}_interval_95" in result:
        low, high = result[f"{name}_interval_95"]
        return f" ({low:.2f} to {high:.2f})"
    half = result.get(f"{name}_half_width_95")
    return "" if half is None else f" ± {half:.2f}"


def read_flags(recipe, result):
    """Reads the flags of a run; JSON has turned tuples into lists."""
    stored = result["flags"].items()
    return recipe.Flags(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in stored}
    )


def command_flags(trained, default) -> str:
    """Returns the flags of a run's command, without paths of this machine."""
    changes = {
        field.name: getattr(trained, field.name)
        for field in dataclasses.fields(trained)
        if field.name != "out"
        and getattr(trained, field.name) != getattr(default, field.name)
    }
    for name in ("data", "additional_data", "init_from"):
        if name in changes:
            changes[name] = file_names(changes[name])
    text = ""
    for name, value in changes.items():
        flag = "from" if name == "init_from" else name.replace("_", "-")
        values = value if isinstance(value, list | tuple) else [value]
        text += f" --{flag} {' '.join(map(str, values))}"
    return text


if __name__ == "__main__":
    start(main, Flags, __doc__)
