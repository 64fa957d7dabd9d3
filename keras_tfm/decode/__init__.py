"""Decoding algorithms: from a step function to the best target ids."""

from keras_tfm.decode import logits_processors
from keras_tfm.decode.beam_search import BeamSearch, beam_search
from keras_tfm.decode.ensemble import Ensemble
from keras_tfm.decode.hypotheses import BeamTrace, History, Hypotheses, penalty
from keras_tfm.decode.mbr import MBRResult, minimum_bayes_risk
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Capabilities, Decodable
from keras_tfm.decode.sampling import Sampling, greedy_search, sample
from keras_tfm.decode.search_state import BeamState, SamplingState
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.decode.strategy import search_strategy

__all__ = [
    "BeamSearch",
    "BeamState",
    "BeamTrace",
    "Capabilities",
    "Decodable",
    "Ensemble",
    "History",
    "Hypotheses",
    "MBRResult",
    "Options",
    "Sampling",
    "SamplingState",
    "Shortlist",
    "beam_search",
    "greedy_search",
    "logits_processors",
    "minimum_bayes_risk",
    "penalty",
    "sample",
    "search_strategy",
]
