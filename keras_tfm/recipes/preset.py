"""Make a preset of a run: a small folder that everybody can load.

* Run      python -m keras_tfm.recipes.preset --run runs/en-de --out en-de
* Needs    pip install ctranslate2, for a translator
* Writes   of a translator its weights in 8 bits and its vocabulary (files that
           CTranslate2 reads too) and its decoding options; of a classifier its
           files with weights in 16 bits; and a model card with the test scores
           of both precisions for all languages that the run was trained for

`Translator.from_preset(folder)` or `Classifier.from_preset(folder)` of
`keras_tfm.pipelines` loads it. A folder in `keras_tfm/presets` is shipped with
the package, under its name.
"""

import dataclasses
import functools
import pathlib
import shutil
import tempfile
import types
from typing import Any

from keras_tfm import pipelines, text, zoo
from keras_tfm.file_reading import read_json, reading
from keras_tfm.pipelines import saving, spelling
from keras_tfm.recipes import (
    augmentation,
    classification,
    classification_scores,
    half_precision,
    known_words,
    lexicon,
    mixture,
    multilingual,
    preset_cards,
    translation,
    translation_defaults,
    translation_scores,
)
from keras_tfm.recipes.runs import start, write_json

# Arguments of a translator that belong to its model.
MODEL_ARGUMENTS = ("beam_size", "length_penalty", "split_tokens", "max_source_length")
# The steps around the model. What was measured for them stands in
# docs/translating.md.
STEPS = {
    "protect": "all",
    "match_numbers": True,
    "lower_capitals": True,
    "add_final_mark": True,
    "avoid_loops": True,
    "final_mark_words": 3,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The run, and the preset to make of it."""

    run: str
    """Folder of a finished run of the translation or classification recipe."""
    out: str
    """Folder to make; its last name is the name of the preset."""
    notes: str | None = None
    """Markdown file for the end of the card, such as known weaknesses."""
    quantization: str | None = None
    """Precision of a translator: int8, int16, float16, bfloat16, float32, or
    int8_float16 (default: matrices in 8 bits, the rest in 16). A classifier is
    written in float16."""
    example: str | None = None
    """Text of the example on the card."""
    language: str = "en"
    """Language of the texts of a classifier."""
    positions: int | None = None
    """Maximum tokens of a source and of a target of a translator; each takes
    two bytes a channel. Default: 1,024, or more if the sources of the run may
    have more."""
    license: str | None = None
    """License of the preset. Default: that of the corpus."""
    text_steps: bool = True
    """Whether a translator has the steps around the model that shipped ones
    have, see docs/translating.md, or translates text as it is."""
    max_megabytes: float = 12.0
    """Maximum size of the folder, in MB."""


def main(flags: Flags) -> dict:
    """Writes the preset and returns the content of its `preset.json`."""
    run, out = pathlib.Path(flags.run), pathlib.Path(flags.out)
    if flags.positions is not None and flags.positions < 1:
        raise ValueError(f"--positions must be at least 1; got {flags.positions}.")
    result_file = run / "result.json"
    if not result_file.is_file():
        raise FileNotFoundError(
            "--run must be the folder of a finished run, which has a `result.json`; "
            f"got {flags.run!r}. Wait for its end, or name another folder."
        )
    clear(out)
    result = read_json(result_file)
    is_classifier = (run / "model" / "classifier.json").is_file()
    make = make_classifier if is_classifier else make_translator
    description, card, comparison = make(flags, run, out, result)
    write_json(out / "preset.json", description)
    (out / "README.md").write_text(card.strip() + "\n", encoding="utf-8")
    print(f"\n{out}: {megabytes(out):.1f} MB; {comparison}")
    return description


def clear(out: pathlib.Path) -> None:
    """Removes an earlier preset.

    Raises:
        FileExistsError: the folder holds other files.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / "preset.json").is_file():
        raise FileExistsError(
            f"--out must be a new folder or a preset; got {str(out)!r}, which holds "
            f"{sorted(path.name for path in out.iterdir())[:8]}. Name a new folder."
        )
    shutil.rmtree(out)


def make_translator(
    flags: Flags, run: pathlib.Path, out: pathlib.Path, result: dict
) -> tuple[dict, str, str]:
    """Writes a translator.

    Returns:
        The description, the model card, and BLEU beside that of the run.
    """
    trained = stored_flags(translation, result)
    translator = pipelines.Translator.load(run / "model")
    positions = flags.positions or max(1024, translator.config.max_source_length)
    quantization = flags.quantization or "int8_float16"
    zoo.to_ctranslate2(
        translator.model,
        translator.vocabulary,
        out,
        quantization=None if quantization == "float32" else quantization,
        sequence_length=positions,
    )
    corpus = multilingual.load_corpus(trained)
    directions = direction_flags(trained, out.name)
    if flags.text_steps:
        known_words.write(trained, corpus, out)
        write_lexicons(trained, directions, out)
    check_size(flags, out, quantization)
    origin = preset_cards.public_origin(trained, corpus)
    description = {
        "task": "translation",
        "languages": [directions[0].source, directions[0].target],
        "parameters": result["parameters"],
        "license": flags.license or corpus.license,
        "data": ", ".join(dict.fromkeys(origin.values())),
        "scores": {},
        "language_tags": bool(trained.additional_targets),  # before the sources
        "arguments": model_arguments(translator, positions, flags.text_steps),
    }
    write_json(out / "preset.json", description)  # `from_preset` reads it
    evaluation = Evaluation(trained, run, out, result)
    scores = [evaluation.score(direction) for direction in directions]
    description |= described_directions(directions, scores)
    card = translator_card(flags, trained, result, directions, scores, evaluation) | {
        **origin,
        "name": out.name,
        "license": flags.license or corpus.license,
        "quantization": quantization,
        "rows": score_table(directions, scores, quantization),
    }
    float_scores, preset_scores = scores[0]
    comparison = (
        f"BLEU {preset_scores['bleu']:.2f}; {float_scores['bleu']:.2f} in float32, as "
        "trained"
    )
    return description, preset_cards.TRANSLATOR.format(**card), comparison


def write_lexicons(
    trained: translation.Flags, directions: list[translation.Flags], out: pathlib.Path
) -> None:
    """Writes a lexicon for each direction whose languages have spaces.

    There is none for a fine-tuned model, whose parent knows further words.

    Args:
        trained: `translation.Flags` of the run.
        directions: see `direction_flags`.
        out: path of the preset.
    """
    for direction in () if trained.init_from else directions:
        corpus = multilingual.load_corpus(direction)
        sides = corpus.source, corpus.target
        is_encoded = not isinstance(corpus.train, text.Pairs)
        if is_encoded or any(map(augmentation.is_spaceless, sides)):
            continue
        words = lexicon.make(corpus, bool(trained.everyday_rate), seed=trained.seed)
        name = saving.lexicon_name(direction_name(direction))
        if words.translations:
            words.save(out / (name if directions[1:] else saving.LEXICON))


def model_arguments(
    translator: pipelines.Translator, positions: int, text_steps: bool = True
) -> dict[str, Any]:
    """Returns the arguments of a translator that its preset stores.

    Args:
        translator: of the run.
        positions: int, maximum tokens of a source in the preset.
        text_steps: bool, see `Flags`.
    """
    changes = translator.changes()
    arguments = {name: changes[name] for name in changes if name in MODEL_ARGUMENTS}
    suppressed = [0, 2]  # padding and the start
    if text_steps:  # these protect what only bytes spell
        arguments |= STEPS
        suppressed += spelling.byte_ids(translator.target_vocabulary)
    return {
        **arguments,
        "disable_unk": True,
        "max_source_length": min(translator.config.max_source_length, positions),
        "suppress_ids": suppressed,
    }


def described_directions(
    directions: list[translation.Flags], scores: list[tuple[dict, dict]]
) -> dict[str, Any]:
    """Returns languages and scores of the directions, for `preset.json`.

    Those of the first direction stand for the preset itself; the others, if
    any, are in `"directions"`, by name.

    Args:
        directions: see `direction_flags`.
        scores: see `Evaluation.score`, of each direction.
    """
    described = {
        direction_name(direction): {
            "languages": [direction.source, direction.target],
            "scores": {"BLEU": preset_scores["bleu"], "chrF": preset_scores["chrf"]},
        }
        for direction, (_, preset_scores) in zip(directions, scores, strict=True)
    }
    first = described.pop(direction_name(directions[0]))
    return first | {"directions": described} if described else first


def score_table(
    directions: list[translation.Flags],
    scores: list[tuple[dict, dict]],
    quantization: str,
) -> str:
    """Returns the rows of the card's table: two for each direction."""
    rows = []
    for direction, (float_scores, preset_scores) in zip(
        directions, scores, strict=True
    ):
        label = f"{direction_name(direction)}, " if directions[1:] else ""
        rows += preset_cards.score_rows(
            label, quantization, float_scores, preset_scores
        )
    return "\n".join(rows)


class Evaluation:
    """Scores a run and its preset on the test set of each direction.

    Args:
        trained: `translation.Flags` of the run.
        run: path of the run folder.
        out: path of the preset.
        result: dict, the `result.json` of the run.
    """

    def __init__(
        self,
        trained: translation.Flags,
        run: pathlib.Path,
        out: pathlib.Path,
        result: dict,
    ):
        self.trained, self.run, self.out, self.result = trained, run, out, result
        # Each model and target is compiled once.
        self.load = functools.cache(pipelines.Translator.from_preset)

    def translator(
        self, folder: pathlib.Path, direction: translation.Flags
    ) -> pipelines.Translator:
        """Loads the translator of a direction from the run or the preset."""
        target = direction.target if self.trained.additional_targets else None
        return self.load(folder, target_language=target)

    def score(self, direction: translation.Flags) -> tuple[dict, dict]:
        """Returns the scores of the run, in float32, and of the preset."""
        corpus = multilingual.load_corpus(direction)
        trained = (self.trained.source, self.trained.target)
        folders = [self.run, self.out]
        scores = []
        if (direction.source, direction.target) == trained:
            folders, scores = [self.out], [self.result]
        for folder in folders:
            translator = self.translator(folder, direction)
            with tempfile.TemporaryDirectory() as scratch:
                scores.append(
                    translation_scores.evaluate(
                        direction, translator, corpus, pathlib.Path(scratch)
                    )
                )
        float_scores, preset_scores = scores
        return float_scores, preset_scores


def direction_flags(trained: translation.Flags, name: str) -> list[translation.Flags]:
    """Returns flags for the test set of each direction of a run.

    Args:
        trained: `translation.Flags` of the run.
        name: str, of the preset. Its direction comes first; by default it is
            that of `--source` and `--target`.
    """
    base = dataclasses.replace(
        trained,
        additional_sources=(),
        additional_targets=(),
        additional_data=None,
        **dict.fromkeys(mixture.RATES, 0.0),
    )
    directions = [base]
    for source in trained.additional_sources:
        directions.append(dataclasses.replace(base, source=source))
    for target in trained.additional_targets:
        direction = dataclasses.replace(base, target=target)
        languages = (target, trained.target)
        if len(set(map(augmentation.is_spaceless, languages))) > 1:
            direction = dataclasses.replace(direction, bleu_tokenize=None)
            direction = translation_defaults.complete(direction, 0)
        directions.append(direction)
    return sorted(directions, key=lambda flags: direction_name(flags) != name)


def direction_name(flags: translation.Flags) -> str:
    """Returns the name of a direction, such as `"en-de"`."""
    return f"{flags.source}-{flags.target}"


def translator_card(
    flags: Flags,
    trained: translation.Flags,
    result: dict,
    directions: list[translation.Flags],
    scores: list[tuple[dict, dict]],
    evaluation: Evaluation,
) -> dict:
    """Returns values for the template of a translator's card."""
    sentence = flags.example or "Where is the station?"
    examples = []
    for direction in directions if trained.additional_targets else directions[:1]:
        target = f', target_language="{direction.target}"'
        target = "" if direction is directions[0] else target
        translator = evaluation.translator(evaluation.out, direction)
        examples += [
            f'translator = Translator.from_preset("{evaluation.out.name}"{target})',
            f'print(translator("{sentence}"))  # {translator(sentence)}',
        ]
    signatures = dict.fromkeys(
        preset_scores[f"{metric}_signature"]
        for _, preset_scores in scores
        for metric in ("bleu", "chrf")
    )
    sources, targets = (
        preset_cards.enumerate_names(
            list(dict.fromkeys(getattr(direction, side) for direction in directions))
        )
        for side in ("source", "target")
    )
    return run_values(flags, trained, result) | {
        "examples": "\n".join(examples),
        "sources": sources,
        "targets": targets,
        "pairs": result["pairs"],
        "minutes": result["training_minutes"],
        "test_pairs": scores[0][1]["test_pairs"],
        "others": ", and on those of the other directions" if directions[1:] else "",
        "signatures": ", ".join(f"`{signature}`" for signature in signatures),
        "beam_size": trained.beam_size,
    }


def run_values(
    flags: Flags, trained: translation.Flags | classification.Flags, result: dict
) -> dict:
    """Returns the values that the cards of all tasks have."""
    notes = ""
    if flags.notes:
        with reading(flags.notes, "the notes of a model card"):
            notes = pathlib.Path(flags.notes).read_text(encoding="utf-8").strip()
    return {
        "parameters": result["parameters"],
        "backend": result["versions"]["backend"],
        "commit": result["versions"]["commit"],
        "finished": result["finished"],
        "flags": preset_cards.command_flags(trained),
        "notes": notes,
    }


def make_classifier(
    flags: Flags, run: pathlib.Path, out: pathlib.Path, result: dict
) -> tuple[dict, str, str]:
    """Writes a classifier.

    Returns:
        The description, the model card, and the score beside that of the run.
    """
    if flags.quantization not in (None, "float16"):
        raise ValueError(
            "--quantization must be float16 for a classifier; got "
            f"{flags.quantization}. Leave it out."
        )
    trained = stored_flags(classification, result)
    pipelines.Classifier.load(run / "model").save(out)
    half_precision.convert(out / "model.keras")
    check_size(flags, out, "float16")
    corpus = classification.load_corpus(trained)
    origin = preset_cards.public_origin(trained, corpus)
    classifier = pipelines.Classifier.load(out)
    with tempfile.TemporaryDirectory() as scratch:
        scores, _ = classification_scores.evaluate(
            trained, classifier, corpus, pathlib.Path(scratch)
        )
    score = classification_scores.main_score(corpus.train.multi_label)
    score_name = score.replace("_", " ")
    description = {
        "task": "classification",
        "languages": [flags.language],
        "parameters": result["parameters"],
        "license": flags.license or corpus.license,
        "data": ", ".join(dict.fromkeys(origin.values())),
        "scores": {score_name: scores[score], "macro F1": scores["macro_f1"]},
        "arguments": {},
    }
    example = flags.example or "A wonderful film, and I would see it again."
    float_scores, preset_scores, baseline = (
        preset_cards.score_columns(values, score, "macro_f1")
        for values in (result, scores, result["tf_idf"])
    )
    card = preset_cards.CLASSIFIER.format(
        **run_values(flags, trained, result) | origin,
        name=out.name,
        license=flags.license or corpus.license,
        quantization="float16",
        language=flags.language,
        classes=", ".join(classifier.classes),
        texts=result["texts"],
        test_texts=result["test_texts"],
        minutes=result["training_minutes"] + result["pretraining_minutes"],
        score=score_name,
        float_scores=float_scores,
        preset_scores=preset_scores,
        baseline=baseline,
        example=example,
        label=classifier(example).label,
    )
    comparison = f"{score_name} {scores[score]:.2f}%; {result[score]:.2f}% in float32"
    return description, card, comparison


def megabytes(folder: pathlib.Path) -> float:
    """Returns the size of the files in a folder, in MB."""
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def check_size(flags: Flags, out: pathlib.Path, quantization: str) -> None:
    """Rejects a preset that is too large to be shipped."""
    size = megabytes(out)
    if size > flags.max_megabytes:
        raise ValueError(
            f"The preset must have at most {flags.max_megabytes} MB; got {size:.1f} MB "
            f"in {quantization}. Choose a smaller --quantization, train a smaller "
            "model, or increase --max-megabytes."
        )


def stored_flags(
    recipe: types.ModuleType, result: dict
) -> translation.Flags | classification.Flags:
    """Returns the flags of a run, whose tuples are lists in JSON."""
    return recipe.Flags(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in result["flags"].items()
        }
    )


if __name__ == "__main__":
    start(main, Flags, __doc__)
