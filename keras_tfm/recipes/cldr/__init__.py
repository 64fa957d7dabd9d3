"""Kinds of phrases that CLDR can say in any of its languages.

A kind has two functions. Its *stock* lists what both languages have data for:
styles of a date, units, currencies, countries. Its *draw* picks from those
lists with a random generator and returns `say`, which puts one meaning into
the words of the side it is given. `phrases` makes a corpus of them.

Numbers are digits, mostly below 1,000, some with a decimal or a group
separator, so a model must carry them over and put the separators right.
"""

from keras_tfm.recipes.cldr import amounts, dates, names
from keras_tfm.recipes.cldr.side import Kind, find_locale, open_side

KINDS = (*dates.KINDS, *amounts.KINDS, *names.KINDS)

__all__ = ["KINDS", "Kind", "find_locale", "open_side"]
