"""One program that decodes, in a process of its own, told what to do by lines.

Run by `benchmarks.decode`, which starts one for each row of its table with
`python -m benchmarks.decode_peers NAME`. The first line it reads is the job, as
JSON; for each line after that it does the job and answers with the seconds that
it took.
"""

import json
import os
import sys
import tempfile
import time

import numpy as np

START, END, FIRST = 2, 3, 4  # ids below FIRST are special


def sources(job):
    """Draws source ids, or reads those of the sentences of a job."""
    if job["sources"]:
        return job["sources"]
    draw = np.random.default_rng(0)
    shape = (job["sentences"], job["source_length"])
    return draw.integers(FIRST, job["vocabulary_size"], shape).tolist()


def model_of(job):
    """Makes the base model of random weights, or loads a trained one."""
    import keras

    from keras_tfm import models

    if job["model"]:
        return keras.models.load_model(os.path.join(job["model"], "model.keras"))
    keras.utils.set_random_seed(0)
    return models.transformer_base(job["vocabulary_size"], dropout=0.0)


def shortlist_of(job):
    """Loads a shortlist, or draws one, which is as fast."""
    from keras_tfm.decode import Shortlist

    if job["shortlist"]:
        return Shortlist.load(job["shortlist"])
    size = job["vocabulary_size"]
    draw = np.random.default_rng(0)
    return Shortlist(draw.integers(FIRST, size, (size, 32)), np.arange(size))


def ours(job):
    """Our search; the backend is that of KERAS_BACKEND."""
    from keras_tfm.decode import Options
    from keras_tfm.runtime import Decoder

    suppressed = [0, 1, START]
    length = None
    if not job["sources"]:
        suppressed, length = [*suppressed, END], job["target_length"]
    search = Decoder(
        model_of(job),
        Options(
            beam_size=job["beam_size"],
            max_decoding_length=length,
            suppress_ids=suppressed,
            shortlist=shortlist_of(job) if job.get("listed") else None,
            matmul_precision=job.get("precision", "float32"),
        ),
    )
    rows = sources(job)
    size = {"batch_size": job["batch_size"], "batch_tokens": 1_000_000}
    # As in a long job, which has them anyway.
    size["compile_lengths"] = bool(job["sources"])

    def run():
        found = dict(search.bulk(rows, **size))
        best = [found[number] for number in range(len(rows))]
        ids = [one.ids[0, 0, : one.lengths[0, 0]].tolist() for one in best]
        return [[token for token in one if token != END] for one in ids]

    return run


def ctranslate2(job):
    """CTranslate2; workers of some threads each split a batch between them."""
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
        return [[int(token[1:]) for token in one] for one in best]

    return run


def _write_ctranslate2(job, folder):
    """Converts with Keras in a process of its own: this one stays small."""
    import subprocess

    command = [sys.executable, "-m", "benchmarks.decode_peers", "convert"]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    job = json.dumps({**job, "folder": folder})
    subprocess.run(command, check=True, env=environment, input=job, text=True)


def convert(job):
    """Writes the model of a job for CTranslate2."""
    from keras_tfm import zoo

    model = model_of(job)
    pieces = [
        [f"p{i}" for i in range(embedding.vocabulary_size)]
        for embedding in (model.source_embedding, model.target_embedding)
    ]
    zoo.to_ctranslate2(model, pieces[0], job["folder"], target_vocabulary=pieces[1])


def convert_hugging_face(job):
    """Writes the model of a job for transformers."""
    from keras_tfm import zoo

    zoo.to_hugging_face(model_of(job), job["folder"])


def hugging_face(job):
    """Marian of Hugging Face on PyTorch; random, or of a model's weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    if job["sources"]:
        return _hugging_face_of(job)
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
            chosen = ids[start : start + size]
            with torch.inference_mode():
                model.generate(
                    chosen,
                    attention_mask=torch.ones_like(chosen),
                    num_beams=job["beam_size"],
                    do_sample=False,
                    min_new_tokens=job["target_length"],
                    max_new_tokens=job["target_length"],
                )
        return [[START] * job["target_length"]] * len(ids)

    return run


def _hugging_face_of(job):
    """A trained model of ours in transformers: sorted by length, in batches."""
    import subprocess

    import torch
    from transformers import AutoModelForSeq2SeqLM

    folder = tempfile.mkdtemp()
    command = [sys.executable, "-m", "benchmarks.decode_peers", "convert_hugging_face"]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    given = json.dumps({**job, "folder": folder})
    subprocess.run(command, check=True, env=environment, input=given, text=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = sources(job)
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    size = job["batch_size"]

    def run():
        found = {}
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            chosen = [torch.tensor(rows[number]) for number in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
            with torch.inference_mode():
                best = model.generate(
                    ids,
                    attention_mask=(ids != 0).long(),
                    num_beams=job["beam_size"],
                    do_sample=False,
                    max_new_tokens=2 * ids.shape[1] + 32,
                    suppress_tokens=[0, 1, START],
                )
            for number, one in zip(numbers, best.tolist(), strict=True):
                found[number] = [token for token in one if token > END]
        return [found[number] for number in range(len(rows))]

    return run


def keras_hub(job):
    """BART of KerasHub, random weights; the backend is KERAS_BACKEND's."""
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
            chosen = rows[start : start + size]
            target = np.zeros((len(chosen), length + 1), "int32")
            target[:, 0] = START
            model.generate(
                {
                    "encoder_token_ids": chosen,
                    "encoder_padding_mask": np.ones_like(chosen, "bool"),
                    "decoder_token_ids": target,
                    "decoder_padding_mask": target > 0,
                },
                stop_token_ids=None,
            )
        return [[START] * length] * len(rows)

    return run


PEERS = {f.__name__: f for f in (ours, ctranslate2, hugging_face, keras_hub)}


def main(name, job):
    """Prepares once, then does what each line asks for."""
    answers, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    run = PEERS[name](job)
    ids = run()  # compiles
    first = time.perf_counter() - start
    ready = {"tokens": sum(map(len, ids)), "first": first, "ids": ids}
    print(json.dumps(ready), file=answers, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    # A line, as an argument has a greatest length, which a long text passes.
    name, job = sys.argv[1], json.loads(sys.stdin.readline())
    if name.startswith("convert"):
        {f.__name__: f for f in (convert, convert_hugging_face)}[name](job)
    else:
        main(name, job)
