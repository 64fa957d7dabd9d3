"""Make a preset of a translation run: a small folder that anybody can load.

Run      python -m recipes.preset --run runs/tatoeba-en-de --out en-de
Needs    pip install ctranslate2
Leaves   weights in 8 bits and their vocabulary, in CTranslate2's files (its own
         engine reads them too), the settings of the search, and a model card
         with the scores of both forms on the test part of the run

`keras_tfm.serving.Translator.from_preset(folder)` loads it. A folder of it in
`keras_tfm/presets` comes with the package, under the folder's name.
"""

import dataclasses
import json
import pathlib
import tempfile

import tyro

from keras_tfm import serving, zoo
from recipes import translation
from recipes.runs import write_json

# Of a translator's settings, those that belong to the model.
KEPT = ("beam_size", "length_penalty", "max_source_length")
CARD = """# {name}

A Transformer that translates from {source} to {target}: {parameters:,} parameters,
weights in {quantization}.

```python
from keras_tfm.serving import Translator

print(Translator.from_preset("{name}")("{example}"))  # {translation}
```

* Data: {data}, {pairs:,} pairs, {origin}; {licence}.
* Trained in {minutes:.0f} minutes on {backend}, commit {commit}, {finished}, by
  `python -m recipes.translation{flags}`.
* Tested on {test_pairs:,} pairs of which neither side is in the training part:

| weights | BLEU (95%) | chrF (95%) |
|---|---|---|
| float32, as trained | {before} |
| {quantization}, as here | {after} |

`{bleu_signature}`, `{chrf_signature}`, beam {beam_size}.

{notes}
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is made of which run."""

    run: str
    """Folder of a finished run of recipes.translation."""
    out: str
    """Folder to make; its last name is that of the preset."""
    notes: str = ""
    """File of Markdown for the card: known weaknesses, what did not help."""
    quantization: str = "int8"
    """A type of CTranslate2: int8, int16, float16, bfloat16, float32."""
    example: str = "Where is the station?"
    """Sentence on the card."""
    most_megabytes: float = 12.0
    """A larger folder is refused."""


def main(settings: Settings) -> dict:
    """Writes the folder and returns what its `preset.json` says."""
    run, out = pathlib.Path(settings.run), pathlib.Path(settings.out)
    file = run / "result.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{settings.run!r} is no finished run of recipes.translation: there is no "
            "`result.json`. Let it end, or name another folder."
        )
    notes = ""
    if settings.notes:
        notes = pathlib.Path(settings.notes).read_text(encoding="utf-8").strip()
    result = json.loads(file.read_text(encoding="utf-8"))
    trained = translation.Settings(**result["settings"])
    translator = serving.Translator.load(run / "model")
    quantization = settings.quantization
    zoo.to_ctranslate2(
        translator.model,
        translator.vocabulary,
        out,
        quantization=None if quantization == "float32" else quantization,
    )
    translator.vocabulary.save(out / "sentencepiece.model")
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    if size > settings.most_megabytes:
        raise ValueError(
            f"A preset has {settings.most_megabytes} MB at most. Received: {size:.1f} "
            f"MB in {quantization}. Quantise more, or train a smaller model."
        )
    corpus = translation.load_corpus(trained)
    # The path of a file of one's own is nobody else's.
    public = {"data": corpus.name, "origin": corpus.origin}
    if pathlib.Path(trained.data.split(",")[0]).exists():
        public = dict.fromkeys(public, pathlib.Path(trained.data).name)
    described = {
        "task": "translation",
        "languages": [trained.source, trained.target],
        "parameters": result["parameters"],
        "licence": corpus.licence,
        "data": ", ".join(dict.fromkeys(public.values())),
        "scores": {},
        "settings": {name: translator.settings[name] for name in KEPT}
        | {"disable_unk": True, "suppress_ids": [0, 2]},
    }
    write_json(out / "preset.json", described)
    small = serving.Translator.from_preset(out)
    with tempfile.TemporaryDirectory() as folder:
        scores = translation.evaluate(trained, small, corpus, pathlib.Path(folder))
    described["scores"] = {"BLEU": scores["bleu"], "chrF": scores["chrf"]}
    write_json(out / "preset.json", described)
    card = CARD.format(
        **result | result["versions"] | dataclasses.asdict(trained) | public,
        name=out.name,
        quantization=quantization,
        before=score(result),
        after=score(scores),
        licence=corpus.licence,
        minutes=result["training_minutes"],
        flags=flags(trained),
        example=settings.example,
        translation=small(settings.example),
        notes=notes,
    )
    (out / "README.md").write_text(card.strip() + "\n", encoding="utf-8")
    loss = result["bleu"] - scores["bleu"]
    print(f"\n{out}: {size:.1f} MB; {loss:.2f} BLEU less than as trained")
    return described


def score(result) -> str:
    """Both scores as two columns of a table."""
    columns = (
        f"{result[k]:.2f} ± {result[f'{k}_half_width_95']:.2f}"
        for k in ("bleu", "chrf")
    )
    return " | ".join(columns)


def flags(trained) -> str:
    """The options of the command, those that are not of this machine."""
    plain = translation.Settings()
    given = {
        field.name: getattr(trained, field.name)
        for field in dataclasses.fields(trained)
        if field.name != "out"
        and getattr(trained, field.name) != getattr(plain, field.name)
    }
    named = {"data": pathlib.Path(trained.data).name} if "data" in given else {}
    pairs = (given | named).items()
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in pairs)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
