"""What the loaders of third-party checkpoints return."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.text import MosesVocabulary, TokenizersVocabulary, Vocabulary

AnyVocabulary = Vocabulary | TokenizersVocabulary | MosesVocabulary

# Arguments of a `Translator` that change text around its model.
TEXT_STEPS = ("protect", "match_numbers", "known_words", "lexicon")
TEXT_STEPS += ("lower_capitals", "add_final_mark", "avoid_loops")
MISSING_STEPS = "The export translates text as it is"
START_ID, END_ID = 2, 3  # of every imported model that generates


class Imported(NamedTuple):
    """Holds a model read from another program, and what came with it.

    Attributes:
        model: Keras model.
        vocabulary: `TokenizersVocabulary`, or `Vocabulary` of a translation
            model without added tokens, or FSMT's `MosesVocabulary`; None if
            the checkpoint has none that is read.
        classes: list of str, the names of a classifier's classes; else None.
        options: dict, for a model that generates: fields of `decode.Options`
            and arguments of a `Translator`, as the checkpoint's configuration
            sets them; else None.
        target_vocabulary: as `vocabulary`, of the target, if it differs.
        tokens: pair of lists of str, source and target: the token of each id;
            None where the vocabulary knows it.
        languages: dict from str to int, the id of each language's tag, for a
            multilingual model; else None.
        tag_position: `"prefix"` or `"suffix"`: the tag of the source language
            stands before or after the source, and the tag of the target
            language begins the translation; or `"target"`: the tag of the
            target language stands before the source.
        permutations: pair of int arrays, source and target: the id in the
            checkpoint of each id here, -1 where it has none; None where the
            ids are the same.

    Example:
        ```python
        import keras_tfm
        from keras_tfm.zoo import Imported

        model = keras_tfm.models.Encoder(
            9, num_layers=1, embedding_dim=4, intermediate_dim=4, num_heads=1
        )
        imported = Imported(model, vocabulary=None, classes=["bad", "good"])
        print(imported.classes)  # ['bad', 'good']
        ```
    """

    model: keras.Model
    vocabulary: AnyVocabulary | None
    classes: list[str] | None
    options: dict[str, Any] | None = None
    target_vocabulary: AnyVocabulary | None = None
    tokens: tuple[list[str], list[str]] | None = None
    languages: dict[str, int] | None = None
    tag_position: str = "prefix"
    permutations: tuple[np.ndarray, np.ndarray] | None = None

    def __repr__(self) -> str:
        """Shows the sizes of long fields, not their content."""
        values = self._asdict()
        for name in ("tokens", "permutations"):
            if values[name] is not None:
                values[name] = f"<{' and '.join(str(len(v)) for v in values[name])}>"
        return f"Imported({', '.join(f'{k}={v!r}' for k, v in values.items())})"

    def options_for(
        self, source_language: str | None, target_language: str
    ) -> dict[str, Any]:
        """Returns `options` with the language tags of one direction.

        Args:
            source_language: str, one of `languages`, such as `"eng_Latn"`
                (NLLB), `"en"` (M2M100), `"en_XX"` (mBART); None where only the
                target has a tag, as in OPUS-MT.
            target_language: str, one of `languages`.

        Returns:
            dict, a changed copy of `options`.

        Raises:
            ValueError: a language is unknown, or is not the one that the model
                always starts with.

        Example:
            ```python
            from keras_tfm.zoo import Imported

            imported = Imported(None, None, None, languages={"en": 7, "de": 8})
            print(imported.options_for("en", "de"))
            # {'source_prefix': [7], 'source_suffix': [3], 'target_prefix': [8]}
            ```
        """
        languages = self.languages or {}
        names = [source_language, target_language]
        if self.tag_position == "target" and source_language is None:
            names = [target_language]
        unknown = [name for name in names if name not in languages]
        if unknown:
            raise ValueError(
                "`source_language` and `target_language` must be among the "
                f"{len(languages)} languages of the model; got {unknown}. It has "
                f"{', '.join(sorted(languages)) or 'none: leave them out'}."
            )
        options = dict(self.options or {})
        target_tag = languages[target_language]
        if self.tag_position == "target":
            return {**options, "source_prefix": [target_tag]}
        starts = [name for name, tag in languages.items() if tag == START_ID]
        if starts and starts != [target_language]:
            raise ValueError(
                f"`target_language` must be {starts[0]!r}, whose tag starts every "
                f"translation of this model; got {target_language!r}. Change "
                "`decoder_start_token_id` of its configuration."
            )
        source_tag, is_suffix = (
            languages[source_language],
            self.tag_position == "suffix",
        )
        return {
            **options,
            "source_prefix": [] if is_suffix else [source_tag],
            "source_suffix": [END_ID, source_tag] if is_suffix else [END_ID],
            "target_prefix": [] if starts else [target_tag],
        }


def missing_steps(options: Mapping[str, Any]) -> str:
    """Returns what to warn of, since other programs have no text steps.

    Args:
        options: dict of arguments of a `Translator`.

    Returns:
        str; empty if none of `TEXT_STEPS` is on.
    """
    names = [f"`{name}`" for name in TEXT_STEPS if options.get(name)]
    if not names:
        return ""
    return (
        f"{MISSING_STEPS}, without {', '.join(names)} of the translator, see "
        "`pipelines.TextConfig`. Serve the translator itself to have them."
    )
