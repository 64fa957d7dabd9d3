"""Kinds of phrases that CLDR has in all of its languages.

A kind has two functions. `list_choices` lists what both languages have data
for: styles of a date, units, currencies, countries. `draw` picks from these
lists with a random generator and returns `render`, which writes the phrase in
the language of a side. `phrases` makes a corpus of them.

Numbers are digits, mostly below 1,000, some with a decimal or a group
separator, so a model must copy them and place the separators.
"""

from keras_tfm.recipes.cldr import amounts, dates, names
from keras_tfm.recipes.cldr.side import Kind, find_locale, open_side

KINDS = (*dates.KINDS, *amounts.KINDS, *names.KINDS)

__all__ = ["KINDS", "Kind", "find_locale", "open_side"]
