"""Make a lexicon of the words that a translator of a corpus knows badly.

* Run      python -m keras_tfm.recipes.lexicon --data tatoeba --out lexicon.tsv
* Needs    the corpus that the translator was trained on
* Writes   a table of rare words and their translations, for `lexicon=` of
           `pipelines.Translator`; `keras_tfm.recipes.preset` makes one, too

The translations are those that word alignment finds in the training pairs
(`word_pairs`), and with --everyday-words those of the lists that a recipe adds
with --everyday-rate.
"""

import collections
import dataclasses
import re

from keras_tfm import pipelines
from keras_tfm.pipelines.names import find_words, key_of
from keras_tfm.recipes import augmentation, corpora, user_files, word_pairs
from keras_tfm.recipes.everyday import has_tables, words
from keras_tfm.recipes.runs import start

MAX_COUNT = 30  # sentences with a word; a model knows others
MAX_TRANSLATIONS = 6
MIN_PROBABILITY = 0.002  # of a further translation; of both directions, multiplied
NUM_FREQUENT = 100  # words of the target language
_ARTICLE = re.compile("|".join(sorted({f"(?:{a})" for a in words.ARTICLES.values()})))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """The corpus, and the file to write."""

    out: str
    """File to write, such as lexicon.tsv."""
    data: str = "tatoeba"
    """What the translator was trained on: as of the translation recipe."""
    source: str = "en"
    """Source language, such as en."""
    target: str = "de"
    """Target language, such as de."""
    source_column: str | None = None
    """Where the sources are in a file of --data, as of the translation
    recipe."""
    target_column: str | None = None
    """Where the targets are."""
    max_bad_rate: float = 0.05
    """Fraction of rows of a file that may be unreadable."""
    additional_data: str | None = None
    """More training pairs, as of the translation recipe."""
    everyday_words: bool = False
    """Whether to add the lists of --everyday-rate."""
    max_count: int = MAX_COUNT
    """Maximum number of training sentences with a word, of those that are
    aligned: 200,000 at most, of up to 15 words."""
    seed: int = 0
    """Draws pairs of a large corpus, and missing test sets."""


def main(flags: Flags) -> pipelines.Lexicon:
    """Writes the lexicon, and returns it.

    Raises:
        ValueError: a language has no spaces between words.
    """
    if any(map(augmentation.is_spaceless, (flags.source, flags.target))):
        raise ValueError(
            "A lexicon needs languages with spaces between words; got --source "
            f"{flags.source} --target {flags.target}."
        )
    corpus = corpora.load(
        flags.data,
        flags.source,
        flags.target,
        source_column=user_files.parse_column(flags.source_column),
        target_column=user_files.parse_column(flags.target_column),
        max_bad_rate=flags.max_bad_rate,
        additional=flags.additional_data,
        seed=flags.seed,
    )
    lexicon = make(corpus, flags.everyday_words, flags.max_count, flags.seed)
    lexicon.save(flags.out)
    print(f"{flags.out}: {len(lexicon.translations):,} words")
    return lexicon


def make(
    corpus: corpora.Corpus,
    everyday_words: bool = False,
    max_count: int = MAX_COUNT,
    seed: int = 0,
) -> pipelines.Lexicon:
    """Makes a lexicon of a corpus.

    Args:
        corpus: `corpora.Corpus`, not encoded.
        everyday_words: bool. Add the lists of `recipes.everyday`.
        max_count: int, the most sentences that have a word of the lexicon.
        seed: int, see `word_pairs.align`.

    Example:
        ```python
        from keras_tfm import text
        from keras_tfm.recipes import corpora, lexicon

        sources = ["a red house", "a red boat", "my house", "my boat"]
        targets = ["ein rotes Haus", "ein rotes Boot", "mein Haus", "mein Boot"]
        pairs = text.Pairs(sources, targets)
        texts = 3 * [pairs]
        corpus = corpora.Corpus("toy", "en", "de", *texts, "", "", [])
        assert lexicon.make(corpus).translations["boat"] == ["Boot"]
        ```
    """
    aligned = word_pairs.align(corpus.train, seed)
    well_known = {key_of(item.word) for item in aligned if item.count > max_count}
    pairs = list(_everyday_pairs(corpus)) if everyday_words else []
    pairs += [(item.word, text) for item in aligned for text in _likely(item)]
    translations: dict[str, dict[str, str]] = collections.defaultdict(dict)
    forms: dict[str, str] = {}  # of each word, as it is written
    for word, text in pairs:
        key = key_of(word)
        if key not in well_known:
            forms.setdefault(key, word)
            translations[key].setdefault(key_of(text), text)
    return pipelines.Lexicon(
        {
            forms[key]: list(texts.values())[:MAX_TRANSLATIONS]
            for key, texts in sorted(translations.items())
        },
        _frequent_words(corpus.train.target),
    )


def _likely(item):
    """The likely translations of an aligned word; none if the first is not,
    or if it is the word itself, such as a name."""
    if item.count < word_pairs.MIN_COUNT or not item.translations:
        return []
    best, probability = item.translations[0]
    if probability < word_pairs.MIN_PROBABILITY or key_of(best) == key_of(item.word):
        return []
    if min(len(best), len(item.word)) == 1:
        return []
    return [
        text
        for text, probability in item.translations
        if probability >= MIN_PROBABILITY and len(text) > 1
    ]


def _everyday_pairs(corpus):
    """Words and expressions of the lists, without articles."""
    if not has_tables(corpus.source, corpus.target):
        return
    pairs, notes = words.list_pairs(corpus.source, corpus.target)
    print("\n".join(notes))
    held_out = {text for pair in corpus.held_out for text in pair}
    for pair in pairs:
        source, target = (words.FINAL_PUNCTUATION.sub("", text) for text in pair)
        is_text = re.search(r"[^\W\d_]", source) and re.search(r"[^\W\d_]", target)
        if not is_text or not held_out.isdisjoint(pair) or _ARTICLE.match(source):
            continue
        if len(source.split()) == 1:  # of verbs the infinitive without "to"
            target = target.removeprefix("to ")
        if key_of(source) != key_of(target):
            yield source, target


def _frequent_words(targets):
    counts = collections.Counter(
        key_of(word) for text in targets for _, word in find_words(text)
    )
    return sorted(word for word, _ in counts.most_common(NUM_FREQUENT))


if __name__ == "__main__":
    start(main, Flags, __doc__)
