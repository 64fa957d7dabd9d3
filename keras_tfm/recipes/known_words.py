"""The words that a translator has learned, from its training pairs.

`pipelines.TextConfig.known_words` recognizes names with them.
"""

import collections
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_tfm import text
from keras_tfm.pipelines import pretrained, saving
from keras_tfm.pipelines.names import find_words, key_of
from keras_tfm.recipes import corpora, multilingual

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation


def write(
    trained: "translation.Flags", corpus: corpora.Corpus, out: pathlib.Path
) -> None:
    """Writes the words that a model has learned, for `TextConfig.known_words`.

    Args:
        trained: `translation.Flags` of the run.
        corpus: `corpora.Corpus` that it was trained on. If it is encoded, there
            are no words, and names are not checked; nor are they if the run was
            fine-tuned from a model whose words are not known.
        out: path of the preset.
    """
    earlier = words_of_parent(trained.init_from)
    words = None if earlier is None else all_words(trained, corpus, earlier)
    if words is None:
        missing = "--from" if earlier is None else "--data"
        print(f"The preset does not check names: the words of {missing} are not known.")
        return
    (out / saving.KNOWN_WORDS).write_text("\n".join([*words, ""]), encoding="utf-8")


def all_words(
    trained: "translation.Flags", corpus: corpora.Corpus, earlier: Sequence[str]
) -> list[str] | None:
    """Returns the words that a model has learned, in all its runs.

    Args:
        trained: `translation.Flags` of the last run.
        corpus: `corpora.Corpus` of that run.
        earlier: list of str, words of the model that it was fine-tuned from.

    Returns:
        list of str, sorted; None if the corpus is encoded.
    """
    if not isinstance(corpus.train, text.Pairs):
        return None
    sources = corpus.train.source
    for language in multilingual.tagged_languages(trained):
        tag = f"{text.language_tag(language)} "
        sources = [source.removeprefix(tag) for source in sources]
    return sorted({*earlier, *learned_words(sources, corpus.train.target)})


def words_of_parent(name: str | None) -> list[str] | None:
    """Returns the known words of the model that a run was fine-tuned from.

    Args:
        name: str, see `pipelines.Translator.from_preset`; or None.

    Returns:
        list of str, empty without a model; None if its words are not known.
    """
    if name is None:
        return []
    folder = pathlib.Path(pretrained.locate(name))
    for place in (folder, folder / "model"):
        if words := saving.read_words(place).get("known_words"):
            return words
    return None


def learned_words(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Lists the words that a model has learned to translate.

    Args:
        sources: list of str, of the training pairs.
        targets: list of str, as many.

    Returns:
        list of str, sorted: the words that at least two sources have, unless
        three of four translations have the same word, as they have of a name.
        Each is written as it is most often inside sentences.
    """
    num_sources: dict[str, int] = collections.Counter()
    num_copies: dict[str, int] = collections.Counter()
    forms: dict[str, dict[str, int]] = collections.defaultdict(collections.Counter)
    for source, target in zip(sources, targets, strict=True):
        target_words = {word for _, word in find_words(target)}
        copied = {}
        for position, (_, word) in enumerate(find_words(source)):
            key = key_of(word)
            copied[key] = copied.get(key, False) or word in target_words
            forms[key][word] += position > 0
        num_sources.update(copied.keys())
        num_copies.update(key for key, is_copied in copied.items() if is_copied)
    return sorted(
        max(counts, key=lambda form, counts=counts: (counts[form], form.islower()))
        for key, counts in forms.items()
        if num_sources[key] >= 2 and 4 * num_copies[key] < 3 * num_sources[key]
    )
