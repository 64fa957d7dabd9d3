# %% [markdown]
# # Classify
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/6_classify.ipynb
#
# **You will see** a query that learns which word of a review decides its label,
# four ways to pool vectors into one, how each of them behaves when a review
# gets longer, and why the weights of a query explain little above an encoder.
#
# **Takes** 40 seconds.
#
# **Follows** Yang et al. 2016, *Hierarchical Attention Networks for Document
# Classification*, section 2.2, <https://aclanthology.org/N16-1174>; lecture
# notes, which provide the attention query over a document; and, for the last
# section, Jain and Wallace 2019, *Attention is not Explanation*,
# <https://arxiv.org/abs/1902.10186>.

# %%
# %matplotlib inline
import keras
import numpy as np
from keras import ops

from keras_tfm import layers, models, pipelines, plot, text
from keras_tfm.plot import figures

np.set_printoptions(precision=3, suppress=True)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## Reviews in which one word decides
#
# A review consists of a few sentences in any order. One of them contains an
# opinion, expressed by one of sixteen words; the others contain none.

# %%
OPINIONS = {
    "good": "wonderful brilliant charming moving superb delightful clever gripping",
    "bad": "dull awful clumsy boring dreadful tedious shallow tiresome",
}
THINGS = ["film", "story", "music", "ending", "cast", "camera", "plot", "sound"]
PLACES = ["on Monday", "on a train", "with my sister", "after work", "at home"]
FACTS = [
    "The {thing} is by a young woman.",
    "The {thing} was made in France.",
    "It has a {thing} of two hours.",
    "The {thing} comes from a book.",
    "I saw it {place}.",
    "My friends watched it {place}.",
]


def fill_in(rng, lines):
    """Joins sentences, with a thing or a place in each."""
    return " ".join(
        line.format(thing=rng.choice(THINGS), place=rng.choice(PLACES))
        for line in lines
    )


def review(rng):
    """Draws a review, its label, and the deciding word."""
    label = str(rng.choice(["bad", "good"]))
    word = str(rng.choice(OPINIONS[label].split()))
    lines = ["I found the {thing} " + word + ".", *rng.choice(FACTS, 4)]
    return fill_in(rng, rng.permutation(lines)), label, word


rng = np.random.default_rng(0)
texts, labels, words = zip(*(review(rng) for _ in range(800)), strict=True)
print(texts[0], labels[0], words[0], sep="\n")

# %% [markdown]
# 600 reviews are for training and 200 for testing. A row of ids contains the
# start token, the review, the end token, and padding. Tokens are whole words.

# %%
train = text.LabeledDataset(texts[:600], labels[:600])
test = text.LabeledDataset(texts[600:], labels[600:])
vocabulary = text.Vocabulary.train(
    train.texts, size=2000, model_type="bpe", exact=False
)


def as_arrays(dataset):
    """Returns all texts as one batch of ids, and their class indices."""
    batches = text.LabelBatches(
        dataset, vocabulary, num_buckets=1, max_length=512, batch_tokens=10**6
    )
    inputs, classes = batches.ordered_batch(0)
    return inputs["token_ids"], classes


train_ids, train_classes = as_arrays(train)
test_ids, test_classes = as_arrays(test)
print(train.report, vocabulary.tokens(test_ids[0]), sep="\n")

# %% [markdown]
# ## Attention pooling: a query over words
#
# Each word $t$ has a vector $x_t$. One learned query $q$ is compared with all
# of them. The review becomes the mean of the vectors, weighted by how well they
# match:
#
# $$\alpha_t = \frac{e^{q \cdot x_t / \sqrt d}}
# {\sum_s e^{q \cdot x_s / \sqrt d}}, \qquad v = \sum_t \alpha_t\, x_t$$
#
# The layer is `AttentionPooling`. Here it pools random vectors, with two padded
# positions:

# %%
x = rng.normal(size=(1, 6, 8)).astype("float32")
real = np.array([[True] * 4 + [False] * 2])
keras.utils.set_random_seed(1)
pooling = layers.AttentionPooling()
v, alpha = pooling(x, padding_mask=real, return_attention_scores=True)

scores = x[0, :4] @ numpy(pooling.queries)[0] / np.sqrt(8)
by_hand = np.exp(scores) / np.exp(scores).sum()
np.testing.assert_allclose(numpy(alpha)[0], [*by_hand, 0, 0], atol=1e-6)
np.testing.assert_allclose(numpy(v)[0], by_hand @ x[0, :4], atol=1e-6)
print(numpy(alpha))

# %% [markdown]
# The first classifier has an embedding matrix, the query, and one linear layer.
# It has no positions and no encoder, so it cannot know the order of the words.


# %%
def word_classifier(pooling):
    """Makes a classifier of ids, and a model of its pooling weights, if any."""
    ids = keras.Input((None,), dtype="int32")
    mask = layers.masks.padding_mask(ids)
    embedding = layers.TokenAndPositionEmbedding(
        vocabulary.size, embedding_dim=32, positions=None, name="words"
    )
    weights = None
    if pooling.name == "attention":
        pooled, weights = pooling(
            embedding(ids), padding_mask=mask, return_attention_scores=True
        )
        weights = keras.Model(ids, weights)
    else:
        pooled = pooling(embedding(ids), padding_mask=mask)
    model = keras.Model(ids, keras.layers.Dense(2, name="logits")(pooled))
    compile_classifier(model, learning_rate=1e-2)
    return model, weights


def compile_classifier(model, learning_rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(learning_rate), loss, metrics=["accuracy"])


def fit(model, epochs):
    model.fit(train_ids, train_classes, batch_size=40, epochs=epochs, verbose=0)


def accuracy(model, ids, classes):
    return float(np.mean(model.predict(ids, verbose=0).argmax(axis=-1) == classes))


keras.utils.set_random_seed(1)
model, weights = word_classifier(layers.AttentionPooling(name="attention"))
initial_weights = weights.predict(test_ids, verbose=0)
fit(model, epochs=10)
trained_weights = weights.predict(test_ids, verbose=0)
print("accuracy on the test", accuracy(model, test_ids, test_classes))
assert accuracy(model, test_ids, test_classes) > 0.95

# %% [markdown]
# The figure shows the weights of the query in one review, before and after
# training:

# %%
row = int(np.argmin((test_ids != 0).sum(axis=1)))  # the shortest
length = np.count_nonzero(test_ids[row])
tokens = vocabulary.tokens(test_ids[row, :length])
columns = np.stack([initial_weights[row, :length], trained_weights[row, :length]], 1)
print(texts[600 + row], labels[600 + row])
plot.attention_map(columns, ["untrained", "trained"], tokens, xlabel=None, ylabel=None)

# %% [markdown]
# For all 200 test reviews we compute how often the deciding word has the
# largest weight, and how large its weight is. Uniform attention would give it
# 1/37.

# %%
[opinion_ids] = np.transpose(vocabulary.encode(words[600:]))
is_opinion = test_ids == opinion_ids[:, None]  # (B, S)
assert (is_opinion.sum(axis=1) == 1).all()


def opinion_attention(alpha):
    """Returns how often the deciding word comes first, and its mean weight."""
    first = np.mean(is_opinion[np.arange(len(alpha)), alpha.argmax(axis=1)])
    return first, alpha[is_opinion].mean()


print(f"even spread {np.mean(1 / (test_ids != 0).sum(axis=1)):.3f}")
initial, trained = map(opinion_attention, (initial_weights, trained_weights))
print("first {:.0%}, weight {:.3f} untrained".format(*initial))
print("first {:.0%}, weight {:.3f} trained".format(*trained))
assert initial[0] < 0.5 and trained[0] > 0.8

# %% [markdown]
# Without an encoder, the effect of a word consists of two numbers. Its score
# determines its weight. Its evidence is the difference of the logits that the
# word would give alone.

# %%
known_ids = np.setdiff1d(train_ids, [vocabulary.pad_id])
vectors = model.get_layer("words")(known_ids[None])[0]  # (n, D)
[query] = numpy(model.get_layer("attention").queries)
score = numpy(vectors) @ query / np.sqrt(len(query))
logits = numpy(model.get_layer("logits")(vectors))
evidence = logits[:, train.classes.index("good")]
evidence = evidence - logits[:, train.classes.index("bad")]

figure = plot.figure((5.8, 3.8))
ax = figure.add_subplot()
ax.scatter(evidence, score, s=12, color="#bfc7ce", label="no opinion")
for number, label in enumerate(("good", "bad")):
    chosen = np.isin(known_ids, np.concatenate(vocabulary.encode([OPINIONS[label]])))
    assert np.mean((evidence[chosen] > 0) == (label == "good")) > 0.8
    assert score[chosen].mean() > score.mean() + 1
    style = {"color": figures.COLORS[number], "marker": figures.MARKERS[number]}
    ax.scatter(evidence[chosen], score[chosen], s=24, label=label, **style)
figures.style_axes(ax)
figures.set_labels(ax, None, "evidence for good", "score")
ax.legend(frameon=False, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
figure

# %% [markdown]
# Opinion words have large scores, and evidence for one of the two classes.
# Words without an opinion, in gray, have small scores, so their evidence hardly
# matters.
#
# How much larger these scores are depends on the score function, and a little
# on chance: the first line of the output is the model above, initialized and
# trained again. `"dot"` omits the $\sqrt d$ of `"scaled_dot"`. `"additive"` is
# the score of Yang et al., $u \cdot \tanh(W x_t + b)$, where $W x_t$ are the
# keys and $b$ is the query:

# %%
pooling = layers.AttentionPooling(score="additive")
alpha = numpy(pooling(x, padding_mask=real, return_attention_scores=True)[1])[0]
attention = pooling.attention
b = numpy(attention.query_dense(pooling.queries))[0]
keys = numpy(attention.key_dense(x))[0]
u = numpy(attention.score_layer.vector).ravel()
by_hand = np.exp(np.tanh(keys[:4] + b) @ u)
np.testing.assert_allclose(alpha[:4], by_hand / by_hand.sum(), atol=1e-5)

for score in ("scaled_dot", "dot", "additive"):
    keras.utils.set_random_seed(1)
    word_model, weights = word_classifier(
        layers.AttentionPooling(score=score, name="attention")
    )
    fit(word_model, epochs=10)
    alpha = weights.predict(test_ids, verbose=0)
    first, weight = opinion_attention(alpha)
    print(f"{score:12}first {first:.0%}, weight {weight:.2f}")
    assert weight > 0.3

# %% [markdown]
# ## Other pooling methods
#
# We compute by hand the mean, the maximum of each channel, and the first vector
# (as with BERT's `[CLS]`), and compare them with the layers.

# %%
np.testing.assert_allclose(
    numpy(layers.Pooling("mean")(x, padding_mask=real))[0], x[0, :4].mean(axis=0), 1e-5
)
np.testing.assert_array_equal(
    numpy(layers.Pooling("max")(x, padding_mask=real))[0], x[0, :4].max(axis=0)
)
np.testing.assert_array_equal(
    numpy(layers.Pooling("first")(x, padding_mask=real))[0], x[0, 0]
)

# %% [markdown]
# We train the same word classifier with each of them. Then we evaluate the test
# reviews again with forty additional sentences of facts, which change no label.
# How confident is each model in the correct label?

# %%
long_texts = [f"{line} {fill_in(rng, rng.choice(FACTS, 40))}" for line in texts[600:]]
long_ids, _ = as_arrays(text.LabeledDataset(long_texts, labels[600:]))
print("tokens, mean:", *((ids != 0).sum(axis=1).mean() for ids in (test_ids, long_ids)))


def confidence(model, ids):
    """Computes the mean probability of the correct label."""
    p = numpy(ops.softmax(model.predict(ids, verbose=0)))
    return p[np.arange(len(p)), test_classes].mean()


poolings = {kind: layers.Pooling(kind, name=kind) for kind in ("mean", "max", "first")}
for score in ("dot", "scaled_dot"):
    query = layers.AttentionPooling(score=score, name="attention")
    poolings[f"attention, {score}"] = query
print(f"{'':22}accuracy   1 - p, short   1 - p, long")
confidences = {}
for kind, pooling in poolings.items():
    keras.utils.set_random_seed(1)
    model, _ = word_classifier(pooling)
    fit(model, epochs=10)
    test_accuracy = accuracy(model, test_ids, test_classes)
    confidences[kind] = [confidence(model, ids) for ids in (test_ids, long_ids)]
    short, long = (1 - p for p in confidences[kind])
    print(f"{kind:22}{test_accuracy:8.2f}{short:15.0e}{long:14.0e}")
    assert (test_accuracy > 0.8) == (kind != "first")
    if kind == "first":  # always the start token: the same for all
        np.testing.assert_allclose(np.ptp(model.predict(test_ids, verbose=0), 0), 0)

# %% [markdown]
# The mean is diluted: one word of 330 changes the mean a ninth as much as one
# word of 37. The maximum is not diluted: words without an opinion seldom exceed
# the maximum, so the model is as confident for a long review as for a short
# one. The weighted mean of a query is diluted too, unless the score of the
# deciding word exceeds the other scores by more than the logarithm of their
# number. The large scores of `"dot"` do. With the smaller scores of
# `"scaled_dot"`, the layer's default, some confidence is lost, but not enough
# to matter here. The first vector is that of the start token, which is the same
# for each review. Without an encoder it contains no information.

# %%
confidence_loss = {kind: short - long for kind, (short, long) in confidences.items()}
assert confidence_loss["mean"] > 0.2
assert max(confidence_loss["max"], confidence_loss["attention, dot"]) < 0.1
assert confidence_loss["attention, dot"] < confidence_loss["attention, scaled_dot"]

# %% [markdown]
# ## Pooling above an encoder
#
# `models.SequenceClassifier` pools the output of an `Encoder`; `pooling`
# selects the method. Now each vector has attended to all words, including the
# vector of the start token, and all four methods succeed.

# %%
inputs = {"token_ids": train_ids}
for pooling in ("mean", "max", "first", "attention"):
    keras.utils.set_random_seed(1)
    encoder = models.Encoder(
        vocabulary.size,
        num_layers=1,
        embedding_dim=32,
        intermediate_dim=64,
        num_heads=2,
        dropout=0.0,
    )
    model = models.SequenceClassifier(
        encoder, num_classes=2, pooling=pooling, dropout=0.0
    )
    compile_classifier(model, learning_rate=3e-3)
    model.fit(inputs, train_classes, batch_size=40, epochs=8, verbose=0)
    test_accuracy = accuracy(model, {"token_ids": test_ids}, test_classes)
    print(f"{pooling:12}{test_accuracy:.2f}")
    assert test_accuracy > 0.9

# %% [markdown]
# The last classifier, with its vocabulary, takes text. What does its query
# attend to? We compute its weights for the tokens of the test reviews:

# %%
classifier = pipelines.Classifier(model, vocabulary, train.classes)
print(classifier("I saw it at home. I found the plot tiresome.").label)
assert classifier("I saw it at home. I found the plot tiresome.").label == "bad"

alpha = numpy(model.pooling_weights({"token_ids": test_ids}))  # (B, S)
print(f"even spread {np.mean(1 / (test_ids != 0).sum(axis=1)):.3f}")
first, weight = opinion_attention(alpha)
print(f"the word that decides: first {first:.0%}, weight {weight:.3f}")
assert first < 0.6 and weight < 0.2

# %% [markdown]
# The prediction is correct, but the deciding word has hardly more weight than
# any other word. Above an encoder, the vector at a word represents the whole
# review: attention can carry the opinion to any position, so the query does not
# need to select the word. To find out what decides, remove words one at a time
# and see how far the probability falls.


# %%
def probability_drops(line):
    """Computes how far the label's probability falls without each word."""
    words = line.split()
    without = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
    p = classifier.probabilities([line, *without])
    return p[0].max() - p[1:, p[0].argmax()]


examples = range(600, 640)
deciding_words = [
    texts[i].split()[probability_drops(texts[i]).argmax()].strip(".") for i in examples
]
fraction = np.mean(
    [word == words[i] for word, i in zip(deciding_words, examples, strict=True)]
)
print(f"without the word that decides the probability falls most in {fraction:.0%}")
assert fraction > 0.7

# %% [markdown]
# The figure shows both for one review, each relative to its largest value: the
# weight of the query at each word and its punctuation, which is largest where a
# full stop follows, and the fall of the probability without the word.

# %%
line = texts[600 + row]
words_of_line = line.split()
drops = np.maximum(probability_drops(line), 0)
weight, word = np.zeros(len(words_of_line)), -1
for token, value in zip(tokens, alpha[row, :length], strict=True):
    word += token.startswith("\u2581")  # a word begins
    if word >= 0:  # behind the start token
        weight[word] += value
plot.attention_map(
    np.stack([weight / weight.max(), drops / drops.max()], axis=1),
    ["weight", "fall"],
    words_of_line,
    label="relative",
    xlabel=None,
    ylabel=None,
)
