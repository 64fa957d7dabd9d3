"""Trains with one program, in its own process, on commands from stdin.

`benchmarks.training` starts one process for each row of its table with
`python -m benchmarks.training_peers NAME`. The first line of stdin is the job,
as JSON. For each further line, the process trains for some steps and prints
the seconds that they took.
"""

import json
import sys
import time

import numpy as np

FIRST = 4  # ids below it are special
SIZES = {  # num_layers, embedding_dim, intermediate_dim, num_heads, dropout
    "tiny": (4, 128, 256, 4, 0.3),
    "base": (6, 512, 2_048, 8, 0.1),
}
CLIP_NORM, SMOOTHING = 25.0, 0.1
MATRIX, PRODUCTS = 1_024, 20  # of the row of matrix products


def draw_batch(job):
    """Source ids, target ids and labels `(B, T)`, without padding."""
    draw = np.random.default_rng(0)
    shape = (3, job["batch_size"], job["length"])
    return draw.integers(FIRST, job["vocabulary_size"], shape).astype("int32")


def set_precision(job):
    """Sets the precision of Keras."""
    import keras

    keras.utils.set_random_seed(0)
    if job["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")


def keras_tfm(job):
    """Prepares the network and loss of our recipe, on KERAS_BACKEND."""
    import keras

    from keras_tfm.recipes import translation, translation_defaults

    set_precision(job)
    model = translation_defaults.SIZES[job["size"]](job["vocabulary_size"])
    flags = translation_defaults.complete(
        translation.Flags(data="multi30k", size=job["size"]), 29_000
    )
    network = translation.compile_network(flags, model, steps_per_epoch=1_000)
    source, target, labels = draw_batch(job)
    inputs = {"source_ids": source, "target_ids": target}
    return keras_round(keras, network, inputs, labels, job)


def keras_round(keras, network, inputs, labels, job):
    """Returns a function that trains for the steps of a round."""

    class Repeated(keras.utils.PyDataset):
        def __len__(self):
            return job["steps"]

        def __getitem__(self, index):
            return inputs, labels

    return lambda: network.fit(Repeated(), verbose=0)


def keras_hub(job):
    """Prepares BART of KerasHub, on KERAS_BACKEND."""
    import keras
    import keras_hub as library

    set_precision(job)
    layers, width, inner, heads, dropout = SIZES[job["size"]]
    backbone = library.models.BartBackbone(
        vocabulary_size=job["vocabulary_size"],
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=inner,
        dropout=dropout,
        max_sequence_length=job["length"],
    )
    hidden = backbone.output["decoder_sequence_output"]
    logits = backbone.token_embedding(hidden, reverse=True)
    network = keras.Model(backbone.input, logits)
    network.compile(
        optimizer=keras.optimizers.Adam(1e-4, global_clipnorm=CLIP_NORM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    source, target, labels = draw_batch(job)
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": np.ones_like(source),
        "decoder_token_ids": target,
        "decoder_padding_mask": np.ones_like(target),
    }
    return keras_round(keras, network, inputs, labels, job)


def torch_transformer(job):
    """Prepares `torch.nn.Transformer` with a tied embedding."""
    import torch

    torch.manual_seed(0)
    layers, width, inner, heads, dropout = SIZES[job["size"]]
    length = job["length"]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(length)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(job["vocabulary_size"], width)
            self.positions = torch.nn.Parameter(torch.randn(length, width) * 0.02)
            self.body = torch.nn.Transformer(
                width, heads, layers, layers, inner, dropout, batch_first=True
            )

        def forward(self, source, target):
            sides = [self.embedding(ids) + self.positions for ids in (source, target)]
            hidden = self.body(*sides, tgt_mask=mask, tgt_is_causal=True)
            return hidden @ self.embedding.weight.T

    model = Model()

    def loss(source, target, labels):
        logits = model(source, target).flatten(0, 1)
        return torch.nn.functional.cross_entropy(
            logits, labels.flatten(), label_smoothing=SMOOTHING
        )

    return torch_round(model, loss, job)


def hugging_face(job):
    """Prepares Marian of Hugging Face with random weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    layers, width, inner, heads, dropout = SIZES[job["size"]]
    config = MarianConfig(
        vocab_size=job["vocabulary_size"],
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        dropout=dropout,
        max_position_embeddings=job["length"],
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config).train()

    def loss(source, target, labels):
        output = model(input_ids=source, decoder_input_ids=target, labels=labels)
        return output.loss

    return torch_round(model, loss, job)


def torch_round(model, loss, job):
    """Returns a function that trains for the steps of a round."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98))
    batch = [torch.tensor(ids, dtype=torch.int64) for ids in draw_batch(job)]
    is_mixed = job["precision"] == "bfloat16"

    def run():
        for _ in range(job["steps"]):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
                value = loss(*batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()

    return run


def products(job):
    """Prepares products of matrices, the ceiling of the table."""
    import torch

    dtype = torch.bfloat16 if job["precision"] == "bfloat16" else torch.float32
    matrix = torch.randn(MATRIX, MATRIX, dtype=dtype)

    def run():
        for _ in range(PRODUCTS):
            matrix @ matrix

    return run


def count_operations(name, job):
    """Floating-point operations of a step, or of a round of products."""
    if name == "products":
        return PRODUCTS * 2 * MATRIX**3
    from keras_tfm import models

    make = {"tiny": models.transformer_tiny, "base": models.transformer_base}
    model = make[job["size"]](job["vocabulary_size"])
    sizes = (job["batch_size"], job["length"], job["length"])
    return models.training_flops(model, *sizes)


PEERS = (keras_tfm, keras_hub, torch_transformer, hugging_face, products)


def main(name, job):
    """Prepares the program, then runs it once for each line of stdin."""
    output, sys.stdout = sys.stdout, sys.stderr
    begin = time.perf_counter()
    run = {peer.__name__: peer for peer in PEERS}[name](job)
    run()  # compiles
    first = time.perf_counter() - begin
    ready = {"first": first, "flops": count_operations(name, job)}
    print(json.dumps(ready), file=output, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        run()
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds}), file=output, flush=True)


if __name__ == "__main__":
    # The job comes from stdin, since the length of an argument is limited.
    main(sys.argv[1], json.loads(sys.stdin.readline()))
