"""Decodes with one program, in its own process, on commands from stdin.

`benchmarks.decode` starts one process for each row of its table with
`python -m benchmarks.decode_peers NAME`. The first line of stdin is the job, as
JSON. For each further line, the process does the job and prints the seconds
that it took.
"""

import json
import os
import sys
import tempfile
import time

import numpy as np

START, END, FIRST = 2, 3, 4  # ids below FIRST are special


def sources(job):
    """Returns the source ids of a job, or random ones if it has none."""
    if job["sources"]:
        return job["sources"]
    draw = np.random.default_rng(0)
    shape = (job["sentences"], job["source_length"])
    return draw.integers(FIRST, job["vocabulary_size"], shape).tolist()


def make_model(job):
    """Loads the model of a job, or makes a base model with random weights."""
    import keras

    from keras_tfm import models

    if job["model"]:
        return keras.models.load_model(os.path.join(job["model"], "model.keras"))
    keras.utils.set_random_seed(0)
    return models.transformer_base(job["vocabulary_size"], dropout=0.0)


def make_shortlist(job):
    """Loads the shortlist of a job, or draws one, which is as fast."""
    from keras_tfm.decode import Shortlist

    if job["shortlist"]:
        return Shortlist.load(job["shortlist"])
    size = job["vocabulary_size"]
    draw = np.random.default_rng(0)
    return Shortlist(draw.integers(FIRST, size, (size, 32)), np.arange(size))


def keras_tfm(job):
    """Prepares our search, on the backend of KERAS_BACKEND."""
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    suppressed = [0, 1, START]
    length = None
    if not job["sources"]:
        suppressed, length = [*suppressed, END], job["target_length"]
    decoder = Decoder(
        make_model(job),
        Options(
            beam_size=job["beam_size"],
            max_decoding_length=length,
            suppress_ids=suppressed,
            shortlist=make_shortlist(job) if job.get("use_shortlist") else None,
            matmul_precision=job.get("precision", "float32"),
        ),
    )
    rows = sources(job)
    size = {"batch_size": job["batch_size"], "batch_tokens": 1_000_000}
    # A long job enables this itself.
    size["compile_lengths"] = bool(job["sources"])

    def run():
        results = dict(decoder.bulk(rows, **size))
        results = [results[index] for index in range(len(rows))]
        ids = [result.ids[0, 0, : result.lengths[0, 0]].tolist() for result in results]
        return [[token for token in row if token != END] for row in ids]

    return run


def ctranslate2(job):
    """Prepares CTranslate2; its workers split a batch between them."""
    import ctranslate2 as library

    folder = tempfile.mkdtemp()
    _write_ctranslate2(job, folder)
    translator = library.Translator(
        folder,
        compute_type=job["type"],
        inter_threads=job["workers"],
        intra_threads=job["threads"],
    )
    tokens = [[f"p{i}" for i in row] for row in sources(job)]
    options = {
        "beam_size": job["beam_size"],
        "max_batch_size": max(1, job["batch_size"] // job["workers"]),
    }
    if not job["sources"]:
        length = job["target_length"]
        options |= {
            "min_decoding_length": length,
            "max_decoding_length": length,
        }

    def run():
        results = translator.translate_batch(tokens, **options)
        best = [result.hypotheses[0] for result in results]
        return [[int(token[1:]) for token in tokens] for tokens in best]

    return run


def _write_ctranslate2(job, folder):
    """Converts with Keras in another process, so that this one stays small."""
    import subprocess

    command = [sys.executable, "-m", "benchmarks.decode_peers", "convert"]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    job = json.dumps({**job, "folder": folder})
    subprocess.run(command, check=True, env=environment, input=job, text=True)


def convert(job):
    """Writes the model of a job for CTranslate2."""
    from keras_tfm import zoo

    model = make_model(job)
    tokens = [
        [f"p{i}" for i in range(embedding.vocabulary_size)]
        for embedding in (model.source_embedding, model.target_embedding)
    ]
    zoo.to_ctranslate2(model, tokens[0], job["folder"], target_vocabulary=tokens[1])


def convert_hugging_face(job):
    """Writes the model of a job for transformers."""
    from keras_tfm import zoo

    zoo.to_hugging_face(make_model(job), job["folder"])


def hugging_face(job):
    """Prepares Marian of Hugging Face, with random or converted weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    if job["sources"]:
        return _converted_hugging_face(job)
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=job["vocabulary_size"],
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        pad_token_id=0,
        eos_token_id=END,
        bos_token_id=START,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        max_position_embeddings=512,
        scale_embedding=True,
    )
    model = MarianMTModel(config).eval()
    ids, size = torch.tensor(sources(job)), job["batch_size"]

    def run():
        for start in range(0, len(ids), size):
            batch = ids[start : start + size]
            with torch.inference_mode():
                model.generate(
                    batch,
                    attention_mask=torch.ones_like(batch),
                    num_beams=job["beam_size"],
                    do_sample=False,
                    min_new_tokens=job["target_length"],
                    max_new_tokens=job["target_length"],
                )
        return [[START] * job["target_length"]] * len(ids)

    return run


def _converted_hugging_face(job):
    """Prepares our model in transformers; batches are sorted by length."""
    import subprocess

    import torch
    from transformers import AutoModelForSeq2SeqLM

    folder = tempfile.mkdtemp()
    command = [sys.executable, "-m", "benchmarks.decode_peers", "convert_hugging_face"]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    job_line = json.dumps({**job, "folder": folder})
    subprocess.run(command, check=True, env=environment, input=job_line, text=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = sources(job)
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    size = job["batch_size"]

    def run():
        hypotheses = {}
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            batch = [torch.tensor(rows[index]) for index in indices]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
            with torch.inference_mode():
                best = model.generate(
                    ids,
                    attention_mask=(ids != 0).long(),
                    num_beams=job["beam_size"],
                    do_sample=False,
                    max_new_tokens=2 * ids.shape[1] + 32,
                    suppress_tokens=[0, 1, START],
                )
            for index, tokens in zip(indices, best.tolist(), strict=True):
                hypotheses[index] = [token for token in tokens if token > END]
        return [hypotheses[index] for index in range(len(rows))]

    return run


def keras_hub(job):
    """Prepares BART of KerasHub with random weights, on KERAS_BACKEND."""
    import keras
    import keras_hub as library

    keras.utils.set_random_seed(0)
    length = job["target_length"]
    backbone = library.models.BartBackbone(
        vocabulary_size=job["vocabulary_size"],
        num_layers=6,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=2048,
        dropout=0.0,
        max_sequence_length=job["source_length"] + length + 2,
    )
    model = library.models.BartSeq2SeqLM(backbone, preprocessor=None)
    beam = job["beam_size"]
    sampler = "greedy" if beam == 1 else library.samplers.BeamSampler(num_beams=beam)
    model.compile(sampler=sampler, jit_compile=keras.backend.backend() != "torch")
    rows, size = np.array(sources(job), "int32"), job["batch_size"]

    def run():
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            target = np.zeros((len(batch), length + 1), "int32")
            target[:, 0] = START
            model.generate(
                {
                    "encoder_token_ids": batch,
                    "encoder_padding_mask": np.ones_like(batch, "bool"),
                    "decoder_token_ids": target,
                    "decoder_padding_mask": target > 0,
                },
                stop_token_ids=None,
            )
        return [[START] * length] * len(rows)

    return run


PEERS = {f.__name__: f for f in (keras_tfm, ctranslate2, hugging_face, keras_hub)}


def main(name, job):
    """Prepares the program, then runs it once for each line of stdin."""
    output, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    run = PEERS[name](job)
    ids = run()  # compiles
    first = time.perf_counter() - start
    ready = {"tokens": sum(map(len, ids)), "first": first, "ids": ids}
    print(json.dumps(ready), file=output, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds}), file=output, flush=True)


if __name__ == "__main__":
    # The job comes from stdin, since the length of an argument is limited.
    name, job = sys.argv[1], json.loads(sys.stdin.readline())
    if name.startswith("convert"):
        {f.__name__: f for f in (convert, convert_hugging_face)}[name](job)
    else:
        main(name, job)
