# %% [markdown]
# # Translate
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/4_translate.ipynb
#
# **You will see** one training step in full detail, a model that learns a
# little Italian, how it translates `I love you very much` word by word, why a
# beam search finds `Ti amo molto` and a greedy search does not, what the model
# attends to, what the cache saves, and finally a run of the recipe on everyday
# phrases.
#
# **Takes** two minutes.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, sections 3.1,
# 3.2.3, 5.4 and 6.1, <https://arxiv.org/abs/1706.03762>; *The Illustrated
# Transformer*, <https://jalammar.github.io/illustrated-transformer/>; and
# lecture notes, which provide the sentence. The first corpus is synthetic, so
# that each claim can be counted; the last one is from Unicode's CLDR.

# %%
# %matplotlib inline
import contextlib
import io
import itertools
import pathlib
import tempfile
import time
from unittest import mock

import keras
import numpy as np
from keras import ops

from keras_tfm import decode, models, pipelines, plot, runtime, text, training
from keras_tfm.layers import masks
from keras_tfm.recipes import phrases, translation

np.set_printoptions(precision=3, suppress=True)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## A small language
#
# A sentence has a subject, a verb, an object and an adverb. Italian puts a
# pronoun object before the verb, and the ending of the verb marks the subject,
# so the subject may be omitted: `Ti amo molto`, or `Io ti amo molto`.

# %%
SUBJECTS = {
    "I": ("Io", "o"),
    "you": ("Tu", "i"),
    "he": ("Lui", "a"),
    "she": ("Lei", "a"),
    "we": ("Noi", "iamo"),
    "they": ("Loro", "ano"),
}
VERBS = {
    "love": "am",
    "admire": "ammir",
    "adore": "ador",
    "help": "aiut",
    "respect": "rispett",
    "comfort": "confort",
    "irritate": "irrit",
    "bother": "disturb",
}
OBJECTS = {"me": "mi", "you": "ti", "us": "ci", "them": "li"}
ADVERBS = {
    "very much": ("molto", "tanto", "moltissimo", "tantissimo"),
    "today": ("oggi",),
    "every day": ("ogni giorno",),
}
REFLEXIVE = {("I", "me"), ("you", "you"), ("we", "us")}


def english(subject, verb, thing, adverb):
    ending = "s" if subject in ("he", "she") else ""
    return f"{subject} {verb}{ending} {thing} {adverb}"


def italian(subject, verb, thing, adverb):
    """Returns the six translations in the corpus; some of them are equal."""
    pronoun, ending = SUBJECTS[subject]
    words = f"{OBJECTS[thing]} {VERBS[verb]}{ending}"
    short = f"{words} {ADVERBS[adverb][0]}".capitalize()
    long = [f"{pronoun} {words} {synonym}" for synonym in ADVERBS[adverb]]
    return [short] * 2 + (long * 4)[:4]


chosen_sentence = ("I", "love", "you", "very much")
print(english(*chosen_sentence), *italian(*chosen_sentence), sep="\n  ")

# %% [markdown]
# All sentences except 41 are for training, with six pairs each. The chosen
# sentence is among the 41: the model never sees it in training. Subword tokens
# are whole words here; `▁` shows where a word begins.

# %%
sentences = [
    sentence
    for sentence in itertools.product(SUBJECTS, VERBS, OBJECTS, ADVERBS)
    if (sentence[0], sentence[2]) not in REFLEXIVE and sentence != chosen_sentence
]
order = np.random.default_rng(0).permutation(len(sentences))
held_out = [chosen_sentence, *(sentences[i] for i in order[:40])]
training_sentences = [sentences[i] for i in order[40:]]
pairs = text.Pairs(
    source=[english(*sentence) for sentence in training_sentences for _ in range(6)],
    target=[line for sentence in training_sentences for line in italian(*sentence)],
)
assert english(*chosen_sentence) not in pairs.source
vocabulary = text.Vocabulary.train(
    pairs.source + pairs.target, size=2000, model_type="bpe", exact=False
)
print(
    f"{len(training_sentences)} sentences, {len(pairs.source)} pairs,"
    f" {vocabulary.size} tokens"
)
for line in ("I love you very much", "Ti amo molto"):
    [ids] = vocabulary.encode([line])
    print(ids, vocabulary.tokens(ids))

# %% [markdown]
# ## One training step
#
# Two pairs of different lengths make one batch. The decoder reads the target
# **shifted right**: the start token, id 2, and then the words. The label at
# each position is the next word, and at the end the end token, id 3. Where
# there is no token, the label is padding, id 0.

# %%
two_pairs = text.Pairs(
    source=["I love you very much", "we help them today"],
    target=["Ti amo molto", "Noi li aiutiamo oggi"],
)
small_batches = text.Batches(two_pairs, vocabulary, num_buckets=1, shuffle=False)
inputs, labels = small_batches.batch(0)
print("source_ids", inputs["source_ids"], sep="\n")
print("target_ids", inputs["target_ids"], "labels", labels, sep="\n")

for row, label in zip(inputs["target_ids"], labels, strict=True):
    tokens = np.count_nonzero(label)
    assert row[0] == vocabulary.start_id
    assert label[tokens - 1] == vocabulary.end_id
    np.testing.assert_array_equal(row[1:tokens], label[: tokens - 1])

# %% [markdown]
# In the figure, each color is a word: the label at one position is the input at
# the next. In training the decoder always reads the correct word, whatever it
# has predicted. So no position waits for another, and all positions are
# computed in one step, with one gradient. (The source has no end token here;
# the lecture notes and some programs add one.)

# %%
english_words = english(*chosen_sentence).split()
italian_words = italian(*chosen_sentence)[0].split()
plot.training_flow(english_words, italian_words)

# %% [markdown]
# **Masks** say what may be attended to. In the encoder, these are all positions
# except padding. In the decoder, these are all positions except padding and
# later positions,
#
# $$M_{ts} = [\,s \le t\,] \wedge [\,\mathrm{id}_s \ne 0\,],$$
#
# and all positions of the source except padding. The figure shows the decoder's
# self-attention mask for the first pair, and its mask of the source for the
# second. Queries at padding attend to words too, but their outputs are never
# used.

# %%
length = inputs["target_ids"].shape[1]
source_mask = masks.padding_mask(inputs["source_ids"])
target_mask = masks.combine(
    padding_mask=masks.padding_mask(inputs["target_ids"]),
    causal_mask=masks.causal_mask(length),
)
t, s = np.indices((length, length))
by_hand = (s <= t) & (inputs["target_ids"][:, None] != 0)  # (B, T, T)
np.testing.assert_array_equal(numpy(target_mask), by_hand)


def token_names(ids):
    """Returns names of tokens, with names for padding, start and end."""
    names = {0: "(pad)", 2: "(start)", 3: "(end)"}
    return [names.get(int(i)) or vocabulary.tokens([i])[0] for i in ids]


first_target, second_target = (
    token_names(inputs["target_ids"][0]),
    token_names(inputs["target_ids"][1]),
)
cross_mask = np.broadcast_to(numpy(source_mask)[1], (length, source_mask.shape[1]))
figure = plot.figure((6.6, 3.4))
left, right = figure.subplots(1, 2)
figure.align_titles()
plot.mask(target_mask[0], first_target, first_target, ax=left, title="target to target")
plot.mask(
    cross_mask,
    second_target,
    token_names(inputs["source_ids"][1]),
    ax=right,
    title="target to source",
    ylabel=None,
)

# %% [markdown]
# The model has two layers on each side. This is all of it, drawn from the model
# itself:


# %%
def new_model():
    keras.utils.set_random_seed(1)
    return models.Transformer(
        vocabulary.size,
        num_layers=2,
        embedding_dim=64,
        intermediate_dim=128,
        num_heads=4,
        dropout=0.0,
    )


model = new_model()
plot.architecture(model)

# %% [markdown]
# The masks work: another token at the third position changes no output before
# it, and an additional column of padding changes no output at the words.

# %%
logits = numpy(model(inputs))  # (B, T, V)
print("logits", logits.shape)

changed_inputs = {**inputs, "target_ids": inputs["target_ids"].copy()}
changed_inputs["target_ids"][:, 2] = inputs["target_ids"][0, 1]
changes = np.abs(numpy(model(changed_inputs)) - logits).max(axis=(0, 2))
print("changed at each place:", changes)
assert changes[:2].max() < 1e-4 < 0.1 < changes[2]

padded_inputs = {name: np.pad(ids, ((0, 0), (0, 1))) for name, ids in inputs.items()}
real = labels != 0
np.testing.assert_allclose(
    numpy(model(padded_inputs))[:, :-1][real], logits[real], atol=1e-4
)

# %% [markdown]
# **The loss of a token** is the negative log-probability of its label:
#
# $$\ell_t = -\log \frac{e^{z_{t,y_t}}}{\sum_v e^{z_{t,v}}}$$
#
# An untrained model has a loss of about $\log V$.

# %%
log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
losses = -np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]  # (B, T)
print(f"{'reads':10}{'has to say':12}{'p':>9}{'loss':>7}")
for input_token, label_token, loss in zip(
    first_target, token_names(labels[0]), losses[0], strict=True
):
    columns = (
        f"{np.exp(-loss):9.5f}{loss:7.2f}"
        if label_token != "(pad)"
        else "   does not count"
    )
    print(f"{input_token:10}{label_token:12}{columns}")
print(f"mean {losses[real].mean():.2f}, log V {np.log(vocabulary.size):.2f}")
assert abs(losses[real].mean() - np.log(vocabulary.size)) < 1.5

# %% [markdown]
# **The loss of a batch** is the mean over real tokens; padding is excluded from
# both the sum and the count. With label smoothing (section 5.4) the label has
# probability $1 - \epsilon$, and every token of the vocabulary has
# $\epsilon / V$ in addition:
#
# $$\ell_t = -(1 - \epsilon) \log p_{t,y_t}
# - \frac{\epsilon}{V} \sum_v \log p_{t,v}$$

# %%
plain = numpy(training.SmoothedCrossentropy()(labels, logits))
np.testing.assert_allclose(plain, losses[real].sum() / real.sum(), rtol=1e-5)

smoothed = 0.9 * losses - 0.1 * log_p.mean(axis=-1)
smoothed_loss = numpy(
    training.SmoothedCrossentropy(label_smoothing=0.1)(labels, logits)
)
np.testing.assert_allclose(smoothed_loss, smoothed[real].mean(), rtol=1e-5)

# %% [markdown]
# **The step** computes the gradients of this loss and updates the weights with
# Adam. After it, the loss of the same batch is lower.

# %%
model.compile(keras.optimizers.Adam(1e-3), training.SmoothedCrossentropy())
loss_before = float(model.train_on_batch(inputs, labels))
np.testing.assert_allclose(loss_before, plain, rtol=1e-4)
loss_after = float(model.test_on_batch(inputs, labels))
print(f"{loss_before:.3f} before the step, {loss_after:.3f} after it")
assert loss_after < loss_before

# %% [markdown]
# ## Training
#
# Training repeats this step some 200 times, in seven passes over all pairs,
# with a new model. The learning rate rises to its peak and falls to near zero,
# so that the probabilities are stable at the end.
#
# The corpus has six translations of each sentence, and no model can know which
# of them is used. The loss therefore has a lower bound: the mean of
# $-\log(\text{fraction of a translation among the six})$, per token.

# %%
batches = text.Batches(pairs, vocabulary, batch_tokens=600, num_buckets=1)
print(batches.report)
steps, epochs = batches.steps_per_epoch, 7
model = new_model()
model.compile(
    optimizer=keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(
            1e-4, steps * epochs - 60, warmup_target=4e-3, warmup_steps=60
        ),
        beta_2=0.98,
        epsilon=1e-9,
    ),
    loss=training.SmoothedCrossentropy(),
)
history = model.fit(
    batches.dataset(repeat=True),
    steps_per_epoch=steps,
    epochs=epochs,
    shuffle=False,
    verbose=0,
).history

frequencies = [
    np.mean([x == y for y in italian(*c)])
    for c in training_sentences
    for x in italian(*c)
]
tokens = sum(len(ids) + 1 for ids in vocabulary.encode(pairs.target))  # with end tokens
floor = -np.log(frequencies).sum() / tokens
print(f"loss {history['loss'][-1]:.3f}, floor {floor:.3f}")
assert 0.95 * floor < history["loss"][-1] < 1.5 * floor
figure = plot.training_curves(history)
plot.reference_line(figure.axes[0], floor, "lower bound")
figure.axes[0].set(yscale="log", ylim=(0.1, 10), yticks=(0.1, 1, 10))
figure

# %% [markdown]
# In this run the model translates all 41 unseen sentences by one of their six
# translations.

# %%
translator = pipelines.Translator(
    model, vocabulary, options=decode.Options(beam_size=1)
)
lines = translator([english(*sentence) for sentence in held_out])
is_correct = [
    line in italian(*sentence) for line, sentence in zip(lines, held_out, strict=True)
]
for sentence, line in list(zip(held_out, lines, strict=True))[:4]:
    print(f"{english(*sentence):26}{line}")
print(f"right: {sum(is_correct)} of {len(is_correct)}")
assert np.mean(is_correct) > 0.9

# %% [markdown]
# ## Decoding word by word
#
# To translate, `begin` runs the encoder once and stores the keys and values of
# every source word for every layer. Each `step` then takes the last word and
# returns the logits of the next one; it never sees the source again. Greedy
# search takes the most likely word each time,
#
# $$y_t = \arg\max_v\, p(v \mid y_{<t}, x).$$
#
# Compare the figure with that of the training step: now the next word is not
# known, so each step waits for the previous step and reads the word that it has
# chosen. The encoder runs once; its keys and values are used at each step.

# %%
plot.inference_flow(english_words, italian_words)

# %% [markdown]
# `mock.patch.object` counts the calls of the encoder and passes them on.

# %%
source = np.array(vocabulary.encode(["I love you very much"]), "int32")
token_id, generated_ids, stepwise_logits = vocabulary.start_id, [], []
with mock.patch.object(model, "encode", wraps=model.encode) as encode:
    cache = model.begin(source, max_length=16)
    memory = [numpy(x) for x in keras.tree.flatten(cache["memory"])]
    while token_id != vocabulary.end_id and len(generated_ids) < 16:
        logits, cache = model.step(
            ops.array([[token_id]], "int32"), len(generated_ids), cache
        )
        p = numpy(ops.softmax(logits))[0, 0]
        best = np.argsort(-p)[:3]
        candidates = zip(token_names(best), p[best], strict=True)
        columns = (f"{x:>12} {y:.2f}" for x, y in candidates)
        print(f"{token_names([token_id])[0]:9}", *columns)
        token_id = int(best[0])
        generated_ids.append(token_id)
        stepwise_logits.append(numpy(logits)[0, 0])

assert encode.call_count == 1
for stored, current in zip(memory, keras.tree.flatten(cache["memory"]), strict=True):
    np.testing.assert_array_equal(stored, numpy(current))

# %% [markdown]
# One call of the whole model on the complete output gives the same logits:
# decoding with the cache is equal to decoding without it.

# %%
target = np.array([[vocabulary.start_id, *generated_ids[:-1]]], "int32")
full_logits = numpy(model({"source_ids": source, "target_ids": target}))[0]
np.testing.assert_allclose(stepwise_logits, full_logits, atol=1e-4)

greedy = runtime.Decoder(model, decode.Options(length_penalty=0.0))(source)
print(vocabulary.decode(greedy.ids[0])[0])
assert greedy.ids[0, 0, : len(generated_ids)].tolist() == generated_ids

# %% [markdown]
# ## Greedy search and beam search
#
# Four of the six translations begin with `Io`, and so does the greedy one. But
# these four differ later, while both translations that begin with `Ti` are the
# same:
#
# | | frequency | |
# |---|---|---|
# | `Ti amo molto` | 2 of 6 | most likely sentence |
# | `Io ti amo molto`, `... tanto`, ... | 1 of 6 each | most likely first word |
#
# Beam search keeps the $K$ best partial hypotheses and does not decide at the
# first word. Its score of a complete sentence is
#
# $$\mathrm{score}(y) = \frac{\log p(y \mid x)}{|y|^{\alpha}},$$
#
# here with $\alpha = 0$, the plain log-probability. The paper uses a beam size
# of 4 and $\alpha = 0.6$ (section 6.1), and divides by
# $((5 + |y|) / 6)^\alpha$, like Wu et al. 2016, section 7,
# <https://arxiv.org/abs/1609.08144>: `length_penalty_form="gnmt"`. $|y|$
# includes the end token.

# %%
search = runtime.Decoder(
    model, decode.Options(beam_size=5, num_hypotheses=5, length_penalty=0.0)
)
beam = search(source)
print(
    "greedy  ",
    vocabulary.decode(greedy.ids[0])[0],
    f"p {np.exp(greedy.scores[0, 0]):.2f}",
)
for line, score in zip(vocabulary.decode(beam.ids[0]), beam.scores[0], strict=True):
    frequency = italian(*chosen_sentence).count(line) / 6
    print(
        f"beam     {line:20} p {np.exp(score):.2f}  share in the corpus {frequency:.2f}"
    )
assert vocabulary.decode(greedy.ids[0])[0].startswith("Io ")
assert vocabulary.decode(beam.ids[0])[0] == "Ti amo molto"
assert beam.scores[0, 0] > greedy.scores[0, 0]
assert set(vocabulary.decode(beam.ids[0])) == set(italian(*chosen_sentence))

options = {"length_penalty": 0.6, "length_penalty_form": "gnmt"}
penalized = runtime.Decoder(
    model, decode.Options(beam_size=5, num_hypotheses=5, **options)
)(source)
plain_scores = dict(zip(vocabulary.decode(beam.ids[0]), beam.scores[0], strict=True))
for n, line in enumerate(vocabulary.decode(penalized.ids[0])):
    by_hand = plain_scores[line] / ((5 + penalized.lengths[0, n]) / 6) ** 0.6
    np.testing.assert_allclose(penalized.scores[0, n], by_hand, atol=1e-4)

# %% [markdown]
# The scores are sums of token log-probabilities. `score` computes them without
# a search, over all tokens. A search never selects padding, start or the
# unknown token, so its probabilities are slightly larger.

# %%
ids = beam.ids[0, 0, : beam.lengths[0, 0]]
token_scores = search.score(source, [ids]).token_scores[0, 0, : len(ids)]
for token, score in zip(token_names(ids), token_scores, strict=True):
    print(f"{token:8}{score:7.3f}")
assert 0 <= beam.scores[0, 0] - token_scores.sum() + 1e-5 < 0.02

# %% [markdown]
# In the tree of the beam search, a column is a step. It shows the five best
# live beams and, above them in green, the hypotheses that finished in this
# step. Each entry has its last token and its cumulative log-probability. The
# thick line leads to the best hypothesis.

# %%
steps = list(search.trace(source))
assert all(len(step.live) <= 5 for step in steps)
tree = plot.beam_tree(steps, lambda i: token_names([i])[0].strip("\u2581"))
tree.set_dpi(130)
tree

# %% [markdown]
# ## Cross-attention: what the model attends to
#
# While the model generates a word, its decoder attends to the source. The
# figure shows the weights of the last layer, head by head; each row sums to
# one.

# %%
source_tokens = token_names(source[0])
target = [vocabulary.start_id, *vocabulary.encode(["Ti amo molto"])[0]]
maps = model.attention_maps(source, np.array([target], "int32"))
cross = numpy(maps["cross"][-1])[0]  # (H, T, S)
np.testing.assert_allclose(cross.sum(axis=-1), 1, atol=1e-5)
# The row of a word is the query that predicts it: that of the word before.
target_tokens = [*token_names(target[1:]), "(end)"]
plot.attention_heads(cross, source_tokens, target_tokens, title="last layer")

# %% [markdown]
# The next figures show the mean of the heads. In the first one, a path marks
# the source word with the largest weight for each target word. The verb `amo`
# attends to `love`. `Ti` stands before its verb; the word that it attends to
# differs from training to training.

# %%
path = cross.mean(axis=0).argmax(axis=1)
for token, index in zip(target_tokens, path, strict=True):
    print(f"{token:8}looks at {source_tokens[index]}")
assert source_tokens[path[1]] == "▁love"
plot.attention_path(cross, source_tokens, target_tokens)

# %%
plot.attention_lines(cross.mean(axis=0), source_tokens, target_tokens)

# %% [markdown]
# The decoder also attends to its previous words, and never to later ones: its
# attention map is a lower triangle. The encoder attends in both directions.

# %%
decoder_weights = numpy(maps["decoder"][-1])[0]  # (H, T, T)
np.testing.assert_array_equal(np.triu(decoder_weights.mean(axis=0), k=1), 0)
figure = plot.figure((7, 3.4))
left, right = figure.subplots(1, 2)
figure.align_titles()
input_tokens, encoder_weights = token_names(target), numpy(maps["encoder"][-1])[0]
plot.attention_map(
    decoder_weights,
    input_tokens,
    input_tokens,
    ax=left,
    title="decoder, last layer",
    vmax=1.0,
)
plot.attention_map(
    encoder_weights,
    source_tokens,
    source_tokens,
    ax=right,
    title="encoder, last layer",
    vmax=1.0,
    ylabel=None,
)
assert np.triu(encoder_weights.mean(axis=0), k=1).max() > 0.1
figure

# %% [markdown]
# Is this one sentence a coincidence? We compare attention with uniform
# attention for all 41 sentences: how much weight do the rows of the object and
# of the verb give to the corresponding English words?

# %%
english_ids = vocabulary.encode([english(*sentence) for sentence in held_out])
italian_ids = vocabulary.encode([italian(*sentence)[0] for sentence in held_out])
on_object, on_verb = [], []
for source_ids, target_ids in zip(english_ids, italian_ids, strict=True):
    decoder_ids = [vocabulary.start_id, *target_ids]
    weights = model.attention_maps(
        np.array([source_ids], "int32"), np.array([decoder_ids], "int32")
    )
    mean = numpy(weights["cross"][-1])[0].mean(axis=0)  # (T, S)
    on_object.append(mean[0, 2])
    on_verb.append(mean[1, 1])
uniform = np.mean([1 / len(source_ids) for source_ids in english_ids])
print(f"even spread {uniform:.2f}")
print(f"the object's row on the English object {np.mean(on_object):.2f}")
print(f"the verb's row on the English verb {np.mean(on_verb):.2f}")
assert np.mean(on_verb) > 1.5 * uniform
assert np.mean(on_object) > 1.2 * uniform

# %% [markdown]
# ## What a cache saves
#
# Without a cache, each new word runs the decoder over all words before it: $T$
# words take $1 + 2 + \dots + T = T(T + 1)/2$ positions. With a cache they take
# $T$. We count the positions for the five tokens above, in the first layer of
# the decoder:

# %%
T, block = len(generated_ids), model.decoder_blocks[0]
target = np.array([[vocabulary.start_id, *generated_ids[:-1]]], "int32")
with mock.patch.object(block, "call", wraps=block.call) as call:
    cache = model.begin(source, max_length=16)
    for t in range(T):
        _, cache = model.step(target[:, t : t + 1], t, cache)
    cached = sum(invocation.args[0].shape[1] for invocation in call.call_args_list)
    call.reset_mock()
    for t in range(T):
        model({"source_ids": source, "target_ids": target[:, : t + 1]})
    uncached = sum(invocation.args[0].shape[1] for invocation in call.call_args_list)
print(f"positions for {T} tokens: cached {cached}, uncached {uncached}")
assert (cached, uncached) == (T, T * (T + 1) // 2)

# %% [markdown]
# Now we measure the time for the next token after various lengths, once with
# `step` and its cache, and once with the whole model. The times are from the
# machine that ran this notebook, and are medians of nine calls. The cache has
# capacity for 1024 tokens from the start, and a step attends to all of it. A
# step therefore takes the same time at each length, while the whole model takes
# longer and longer.


# %%
def milliseconds(function, *arguments):
    """Measures the median of nine calls, after one warm-up call."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        numpy(keras.tree.flatten(function(*arguments))[0])  # waits for the result
        times.append(time.perf_counter() - start)
    return 1000 * np.median(times[1:])


lengths, cached, uncached = [64, 256, 512, 768, 1024], [], []
cache = model.begin(source, max_length=1024)
compiled_step = runtime.compiled(model.step, model)
compiled_model = runtime.compiled(model.call, model)
for length in lengths:
    target = np.full((1, length), vocabulary.start_id, "int32")
    last_id, index = map(ops.convert_to_tensor, (target[:, -1:], length - 1))
    cached.append(milliseconds(compiled_step, last_id, index, cache))
    model_inputs = {"source_ids": source, "target_ids": target}
    model_inputs = {
        name: ops.convert_to_tensor(ids) for name, ids in model_inputs.items()
    }
    uncached.append(milliseconds(compiled_model, model_inputs))

assert uncached[-1] > 2 * cached[-1]
curves = {"uncached": (lengths, uncached), "cached": (lengths, cached)}
figure = plot.curves(curves, "tokens so far", "milliseconds for the next")
figure.axes[0].set_ylim(0)
figure

# %% [markdown]
# ## The translation recipe
#
# The translation recipe does all of this for a corpus: vocabulary, batches,
# training, a search for each test sentence, and BLEU and chrF with their
# intervals. BLEU counts the n-grams of up to four words that translation and
# reference share; chrF counts those of up to six characters. The corpus here
# has 7,600 pairs of English and Italian phrases, dates, units, and names of
# languages and countries, from Unicode's CLDR, in five epochs. (With all 61,000
# pairs, `keras-tfm train translation --data phrases --target it` takes some
# minutes; the [recipes' page](../keras_tfm/recipes/README.md) lists such runs.)

# %%
folder = pathlib.Path(tempfile.mkdtemp())
corpus = phrases.phrases("it", size=8_000, validation=200, test=200)
splits = {"train": corpus.train, "val": corpus.validation, "test": corpus.test}
for split, split_pairs in splits.items():
    for language, lines in (("en", split_pairs.source), ("it", split_pairs.target)):
        file = folder / f"{split}.{language}"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")

# %%
flags = translation.Flags(
    data=str(folder),
    source="en",
    target="it",
    out=str(folder / "run"),
    size="small",
    vocabulary_size=1_000,
    epochs=5,
    learning_rate=4e-3,
    warmup_steps=100,
    cooldown_epochs=1,
    dropout=0.0,
    average_last=1,
    evaluate_every=5,
    beam_size=4,
)
with contextlib.redirect_stdout(io.StringIO()):
    result = translation.main(flags)
for name in ("bleu", "chrf"):
    print(f"{name:15}{result[name]:10.2f} ± {result[f'{name}_half_width_95']:.2f}")
for name in ("exact_percent", "parameters"):
    print(f"{name:15}{result[name]:10,}")
assert result["bleu"] > 40

# %% [markdown]
# `exact_percent` is the percentage of the 200 test phrases whose translation
# equals the reference exactly. `model/` in the run folder is a translator: text
# in, text out. Below are four unseen phrases, and the attention of the last
# one. In Italian the day comes first.

# %%
translator = pipelines.Translator.load(folder / "run" / "model")
training_sources = set(corpus.train.source)
unseen = [line for line in corpus.test.source if line not in training_sources][:3]
assert "May 14, 1987" not in training_sources
unseen.append("May 14, 1987")
translations = translator(unseen)
for line, italian_line in zip(unseen, translations, strict=True):
    print(f"{line:45}{italian_line}")
assert translations[-1].startswith("14 ")

source, target = (
    translator.vocabulary.encode([x[-1]])[0] for x in (unseen, translations)
)
start = translator.vocabulary.start_id
maps = translator.model.attention_maps(
    np.array([source], "int32"), np.array([[start, *target]], "int32")
)
mean = numpy(maps["cross"][-1])[0].mean(axis=0)  # (T, S)
np.testing.assert_allclose(mean.sum(axis=-1), 1, atol=1e-5)
source_tokens = translator.vocabulary.tokens(source)
target_tokens = [*translator.vocabulary.tokens(target), "(end)"]
plot.attention_map(mean, source_tokens, target_tokens, title="last layer")
