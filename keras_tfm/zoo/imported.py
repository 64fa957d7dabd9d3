"""What is read from other programs."""

from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.text import TokenizersVocabulary, Vocabulary

START = 2  # the id of what decoding starts with


class Imported(NamedTuple):
    """What a folder or preset held.

    Attributes:
        model: Keras model.
        vocabulary: `TokenizersVocabulary`, of a translation model `Vocabulary`;
            None if the folder has none.
        classes: list of str, the classes of a classifier; else None.
        search: dict, settings of `pipelines.Translator` for a model that
            generates, as its configuration has them; else None.
        target_vocabulary: `Vocabulary` of the target, where it is another.
        tokens: pair of lists of str, of source and target: what each id stands
            for; None where a vocabulary says it.
        languages: dict from str to int, the id of the mark of each language, of
            a model of many; else None.
        mark: `"before"` or `"after"`: where the mark of its language stands
            beside a source, and that of the target begins the translation; or
            `"target"`: the mark of the target stands before a source.
        orders: pair of int arrays, of source and target of a model that
            generates: the id of theirs that each id here stands for, -1 where
            it is none of theirs; else None, and ids are theirs.
    """

    model: keras.Model
    vocabulary: TokenizersVocabulary | Vocabulary | None
    classes: list[str] | None
    search: dict | None = None
    target_vocabulary: Vocabulary | None = None
    tokens: tuple[list[str], list[str]] | None = None
    languages: dict[str, int] | None = None
    mark: str = "before"
    orders: tuple[np.ndarray, np.ndarray] | None = None

    def __repr__(self):
        """Says how many tokens there are, and not which."""
        shown = self
        for name in ("tokens", "orders"):
            sizes = getattr(self, name) and tuple(map(len, getattr(self, name)))
            shown = shown._replace(**{name: f"{sizes} of them"}) if sizes else shown
        fields = (f"{name}={value!r}" for name, value in shown._asdict().items())
        return f"Imported({', '.join(fields)})"

    def between(self, source, target) -> dict:
        """Gives the settings of the search for a pair of languages.

        Args:
            source: str, of `languages`, such as `"eng_Latn"` of NLLB, `"en"` of
                M2M100 and `"en_XX"` of mBART; or None where only the target has
                a mark, as of OPUS-MT.
            target: str, likewise.

        Returns:
            dict of settings of `pipelines.Translator`, over those of `search`.

        Raises:
            ValueError: there is no such language, or the model says another.
        """
        known = self.languages or {}
        one = self.mark == "target" and source is None
        named = (target,) if one else (source, target)
        unknown = [name for name in named if name not in known]
        if unknown:
            raise ValueError(
                f"A model of {len(known)} languages with marks. Received: {unknown}. "
                f"It has {', '.join(sorted(known)) or 'none: leave them out'}."
            )
        settings, end = self.search or {}, 3
        if self.mark == "target":
            return {**settings, "source_prefix": [known[target]]}
        first, after = known[source], self.mark == "after"
        starts = [name for name, mark in known.items() if mark == START]
        if starts and starts != [target]:
            raise ValueError(
                "The model begins each translation with the mark of one language. "
                f"Received: {target!r}; it is {starts[0]!r}. Change "
                "`decoder_start_token_id` of its configuration."
            )
        return {
            **settings,
            "source_prefix": [] if after else [first],
            "source_suffix": [end, first] if after else [end],
            "target_prefix": [] if starts else [known[target]],
        }
