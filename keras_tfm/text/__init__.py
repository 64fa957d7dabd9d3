"""From files to batches: pairs, texts with labels, vocabularies, pipelines.

Shapes are written in the letters of `keras_tfm.layers`: `B` rows of a batch,
`S` source length, `T` target length, `V` tokens of a vocabulary; `N` examples,
`C` classes, `P` masked tokens. Padding is id 0, unknown 1, start 2, end 3.
TensorFlow is imported only by the functions that
return a `tf.data.Dataset` or a TensorFlow tokenizer, when they are called.
"""

from keras_tfm.text.batches import Batches
from keras_tfm.text.division import data_parallel_width, local_part
from keras_tfm.text.encoded_corpus import EncodedCorpus
from keras_tfm.text.encoding import encode_corpus
from keras_tfm.text.label_batches import LabelBatches
from keras_tfm.text.labeled import LabeledDataset, read_labeled
from keras_tfm.text.masked_batches import MaskedBatches
from keras_tfm.text.moses_vocabulary import MosesVocabulary
from keras_tfm.text.pair_files import iterate_pairs, read_pairs
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.special_tokens import SpecialTokens
from keras_tfm.text.splitting import split
from keras_tfm.text.streaming import stream
from keras_tfm.text.token_rows import TokenRows
from keras_tfm.text.tokenizers_vocabulary import TokenizersVocabulary, load_vocabulary
from keras_tfm.text.vocabulary import Vocabulary, language_tag

__all__ = [
    "Batches",
    "EncodedCorpus",
    "LabelBatches",
    "LabeledDataset",
    "MaskedBatches",
    "MosesVocabulary",
    "Pairs",
    "SpecialTokens",
    "TokenRows",
    "TokenizersVocabulary",
    "Vocabulary",
    "data_parallel_width",
    "encode_corpus",
    "iterate_pairs",
    "language_tag",
    "load_vocabulary",
    "local_part",
    "read_labeled",
    "read_pairs",
    "split",
    "stream",
]
