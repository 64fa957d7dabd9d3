"""Make a preset of a run: a small folder that anybody can load.

* Run      python -m keras_tfm.recipes.preset --run runs/en-de --out en-de
* Needs    pip install ctranslate2, for a translator
* Leaves   of a translator weights in 8 bits and their vocabulary, in files of
           CTranslate2 (its own engine reads them too), and the settings of the
           search; of a classifier its own files, with weights in 16 bits; and a
           model card with the scores of both forms on the test part of the run,
           and on those of all languages that it was trained for

`from_preset(folder)` of `keras_tfm.pipelines.Translator` or `Classifier` loads
it. A folder of it in `keras_tfm/presets` comes with the package, by its name.
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
from keras_tfm.recipes import classification, label_scores, translation
from keras_tfm.recipes.runs import start, write_json

WEIGHTS = "model.weights.h5"  # in a Keras file
# Of a translator's settings, those that belong to the model.
KEPT = ("beam_size", "length_penalty", "split_tokens", "max_source_length")
CARD = """# {name}

A Transformer that translates from {sources} to {targets}: {parameters:,} parameters,
weights in {quantization}.

```python
from keras_tfm.pipelines import Translator

{examples}
```

* Data: {data}, {pairs:,} pairs, {origin}; {licence}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `python -m keras_tfm.recipes.translation{flags}`.
* Tested on {tests} pairs of which neither side is in the training part{others}:

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

* Data: {data}, {texts:,} texts, {origin}; {licence}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `python -m keras_tfm.recipes.classification{flags}`.
* Tested on {test_texts:,} texts of which none is in the training part:

| | {score} (95%), % | macro F1, % |
|---|---|---|
| float32, as trained | {before} |
| {quantization}, as here | {after} |
| TF-IDF and logistic regression | {baseline} |

{notes}
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is made of which run."""

    run: str
    """Folder of a finished run of the translation or classification recipe."""
    out: str
    """Folder to make; its last name is that of the preset."""
    notes: str = ""
    """File of Markdown for the card: known weaknesses, what did not help."""
    quantization: str | None = None
    """Of a translator a type of CTranslate2 (int8, int16, float16, bfloat16,
    float32, or int8_float16, which has matrices in 8 bits and all else in 16),
    else int8_float16; a classifier is written in float16."""
    example: str | None = None
    """Text on the card."""
    language: str = "en"
    """Of the texts of a classifier."""
    positions: int | None = None
    """Most tokens of a source, and of a target, of a translator: two bytes a
    channel for each. None: 1,024, or as many as its sources have at most."""
    most_megabytes: float = 12.0
    """A larger folder is refused."""


def main(settings: Settings) -> dict:
    """Writes the folder and returns what its `preset.json` says."""
    run, out = pathlib.Path(settings.run), pathlib.Path(settings.out)
    if settings.positions is not None and settings.positions < 1:
        raise ValueError(
            f"--positions must be 1 or more. Received: {settings.positions}."
        )
    file = run / "result.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{settings.run!r} is no finished run of a recipe: there is no "
            "`result.json`. Let it end, or name another folder."
        )
    clear(out)
    notes = ""
    if settings.notes:
        notes = pathlib.Path(settings.notes).read_text(encoding="utf-8").strip()
    result = json.loads(file.read_text(encoding="utf-8"))
    labels = (run / "model" / "classifier.json").is_file()
    make = make_classifier if labels else make_translator
    described, card, loss = make(settings, run, out, result, notes)
    write_json(out / "preset.json", described)
    (out / "README.md").write_text(card.strip() + "\n", encoding="utf-8")
    print(f"\n{out}: {megabytes(out):.1f} MB; {loss} less than as trained")
    return described


def clear(out: pathlib.Path):
    """Empties a folder of an earlier preset, of which nothing may be left."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "preset.json").is_file():
        raise FileExistsError(
            f"{str(out)!r} holds something else than a preset. Received: "
            f"{sorted(path.name for path in out.iterdir())[:8]}. Name a new folder."
        )
    shutil.rmtree(out)


def make_translator(settings, run, out, result, notes):
    """Writes a translator; gives its description, card, and what it lost."""
    trained = settings_of(translation, result)
    translator = pipelines.Translator.load(run / "model")
    longest = translator.config.max_source_length
    positions = settings.positions or max(1024, longest)
    quantization = settings.quantization or "int8_float16"
    zoo.to_ctranslate2(
        translator.model,
        translator.vocabulary,
        out,
        quantization=None if quantization == "float32" else quantization,
        sequence_length=positions,
    )
    check_size(settings, out, quantization)
    corpus = translation.load_corpus(trained)
    public = without_paths(trained, corpus)
    directions = directions_of(trained, out.name)
    first = directions[0]
    described = {
        "task": "translation",
        "languages": [first.source, first.target],
        "parameters": result["parameters"],
        "license": corpus.licence,
        "data": ", ".join(dict.fromkeys(public.values())),
        "scores": {},
        "language_tags": bool(trained.more_targets),  # of targets, before sources
        "arguments": {k: v for k, v in translator.changes().items() if k in KEPT}
        | {"disable_unk": True, "suppress_ids": [0, 2]}
        | {"max_source_length": min(longest, positions)},
    }
    write_json(out / "preset.json", described)

    @functools.cache  # which compiles once
    def loaded(folder, target):
        return pipelines.Translator.from_preset(folder, target_language=target)

    rows, scores, signatures = [], {}, {}
    for own in directions:
        name = f"{own.source}-{own.target}"
        tested = translation.load_corpus(own)
        target = own.target if trained.more_targets else None
        before = result
        if (own.source, own.target) != (trained.source, trained.target):
            before = scored(own, loaded(run, target), tested)
        after = scored(own, loaded(out, target), tested)
        signatures |= dict.fromkeys([after["bleu_signature"], after["chrf_signature"]])
        label = f"{name}, " if directions[1:] else ""
        rows += card_rows(label, quantization, before, after)
        scores[name] = {
            "languages": [own.source, own.target],
            "scores": {"BLEU": after["bleu"], "chrF": after["chrf"]},
        }
        if own is first:
            lost, tests = before["bleu"] - after["bleu"], after["test_pairs"]
    described |= scores.pop(f"{first.source}-{first.target}")
    if scores:
        described["directions"] = scores
    example = settings.example or "Where is the station?"
    examples = []
    for own in directions if trained.more_targets else [first]:
        given = "" if own is first else f', target_language="{own.target}"'
        said = loaded(out, own.target if trained.more_targets else None)(example)
        examples += [
            f'translator = Translator.from_preset("{out.name}"{given})',
            f'print(translator("{example}"))  # {said}',
        ]
    card = CARD.format(
        **result | result["versions"] | dataclasses.asdict(trained) | public,
        name=out.name,
        sources=in_words(list(dict.fromkeys(own.source for own in directions))),
        targets=in_words(list(dict.fromkeys(own.target for own in directions))),
        tests=f"{tests:,}",
        others=", and on those of the others" if scores else "",
        quantization=quantization,
        rows="\n".join(rows),
        signatures=", ".join(f"`{one}`" for one in signatures),
        licence=corpus.licence,
        minutes=result["training_minutes"],
        flags=flags(trained, translation.Settings()),
        examples="\n".join(examples),
        notes=notes,
    )
    return described, card, f"{lost:.2f} BLEU"


def directions_of(trained, name):
    """Gives settings for the test of each direction that a run was trained for.

    The one that has the preset's name is first, else the run's own.
    """
    plain = dataclasses.replace(
        trained,
        more_sources=(),
        more_targets=(),
        additional=None,
        joined=0.0,
        unpunctuated=0.0,
    )
    found = [plain]
    found += [dataclasses.replace(plain, source=one) for one in trained.more_sources]
    for target in trained.more_targets:
        own = dataclasses.replace(plain, target=target)
        if translation.spaceless(target) != translation.spaceless(trained.target):
            own = dataclasses.replace(own, bleu_tokenize=None)
            own = translation.complete(own, 0)
        found.append(own)
    return sorted(found, key=lambda own: f"{own.source}-{own.target}" != name)


def scored(trained, translator, corpus) -> dict:
    """Scores a translator, and leaves nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        return translation.evaluate(trained, translator, corpus, pathlib.Path(folder))


def card_rows(what, quantization, before, after):
    """Two rows of a card's table."""
    forms = ("float32, as trained", before), (f"{quantization}, as here", after)
    return [f"| {what}{form} | {columns(one, 'bleu', 'chrf')} |" for form, one in forms]


def in_words(names) -> str:
    """Names as a sentence has them."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def make_classifier(settings, run, out, result, notes):
    """Writes a classifier; gives its description, card, and what it lost."""
    if settings.quantization not in (None, "float16"):
        raise ValueError(
            "A classifier is written in float16. Received: --quantization "
            f"{settings.quantization}. Leave it out."
        )
    trained = settings_of(classification, result)
    classifier = pipelines.Classifier.load(run / "model")
    classifier.save(out)
    to_half(out / "model.keras")
    check_size(settings, out, "float16")
    corpus = classification.load_corpus(trained)
    public = without_paths(trained, corpus)
    small = pipelines.Classifier.load(out)
    with tempfile.TemporaryDirectory() as folder:
        scores, _ = classification.evaluate(
            trained, small, corpus, pathlib.Path(folder)
        )
    first = label_scores.first_of(corpus.train.multi_label)
    name = first.replace("_", " ")
    described = {
        "task": "classification",
        "languages": [settings.language],
        "parameters": result["parameters"],
        "license": corpus.licence,
        "data": ", ".join(dict.fromkeys(public.values())),
        "scores": {name: scores[first], "macro F1": scores["macro_f1"]},
        "arguments": {},
    }
    example = settings.example or "A wonderful film, and I would see it again."
    card = CLASSIFIER_CARD.format(
        **result | result["versions"] | public,
        name=out.name,
        language=settings.language,
        classes=", ".join(classifier.classes),
        quantization="float16",
        score=name,
        before=columns(result, first, "macro_f1"),
        after=columns(scores, first, "macro_f1"),
        baseline=columns(result["tf_idf"], first, "macro_f1"),
        licence=corpus.licence,
        minutes=result["training_minutes"] + (result["warm_up_minutes"] or 0),
        flags=flags(trained, classification.Settings()),
        example=example,
        label=small(example).label,
        notes=notes,
    )
    return described, card, f"{result[first] - scores[first]:.2f}% {name}"


def to_half(file: pathlib.Path):
    """Writes the weights of a Keras file anew in float16.

    They are loaded into what they were, float32.
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
    """The size of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def check_size(settings, out, quantization):
    """Refuses what is too large to be shipped."""
    size = megabytes(out)
    if size > settings.most_megabytes:
        raise ValueError(
            f"A preset has {settings.most_megabytes} MB at most. Received: {size:.1f} "
            f"MB in {quantization}. Quantise more, or train a smaller model."
        )


def without_paths(trained, corpus) -> dict:
    """What a card says of data: the path of one's own file is nobody else's."""
    public = {"data": corpus.name, "origin": corpus.origin}
    if pathlib.Path(trained.data.split(",")[0]).exists():
        public = dict.fromkeys(public, file_names(trained.data))
    return public


def file_names(paths: str) -> str:
    """The names, without their folders, of files with commas between them."""
    return ",".join(pathlib.Path(path).name for path in paths.split(","))


def columns(result, *names) -> str:
    """Scores as columns of a table, with intervals where there are any."""
    if result is None:  # texts without a word have no TF-IDF line
        return " | ".join("none" for _ in names)
    return " | ".join(f"{result[name]:.2f}{_interval(result, name)}" for name in names)


def _interval(result, name) -> str:
    if f"{name}_interval_95" in result:
        low, high = result[f"{name}_interval_95"]
        return f" ({low:.2f} to {high:.2f})"
    half = result.get(f"{name}_half_width_95")
    return "" if half is None else f" ± {half:.2f}"


def settings_of(recipe, result):
    """The settings of a run, of whose tuples JSON has made lists."""
    stored = result["settings"].items()
    return recipe.Settings(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in stored}
    )


def flags(trained, plain) -> str:
    """The options of the command, those that are not of this machine."""
    given = {
        field.name: getattr(trained, field.name)
        for field in dataclasses.fields(trained)
        if field.name != "out"
        and getattr(trained, field.name) != getattr(plain, field.name)
    }
    for name in ("data", "additional", "weights"):
        if name in given:
            given[name] = file_names(given[name])
    text = ""
    for name, value in given.items():
        flag = "from" if name == "weights" else name.replace("_", "-")
        values = value if isinstance(value, list | tuple) else [value]
        text += f" --{flag} {' '.join(map(str, values))}"
    return text


if __name__ == "__main__":
    start(main, Settings, __doc__)
