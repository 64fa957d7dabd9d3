"""Search over a step function: from a model to the best target ids."""

from keras_tfm.decode.beam import beam
from keras_tfm.decode.compile import compiled
from keras_tfm.decode.greedy import greedy
from keras_tfm.decode.hypotheses import Hypotheses, penalty
from keras_tfm.decode.search import Search

__all__ = ["Hypotheses", "Search", "beam", "compiled", "greedy", "penalty"]
