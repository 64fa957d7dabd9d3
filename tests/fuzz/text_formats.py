"""Files of texts, words and notes: who writes a small one, and who reads it."""

import csv
import gzip
import json

import keras
import numpy as np

from keras_tfm import text, training
from keras_tfm.cli.output import Output
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.pipelines import Glossary, sharing
from keras_tfm.recipes import ablation
from keras_tfm.server import access
from tests.fuzz.file_format import Format
from tests.zoo import checkpoints

TEXTS = [*checkpoints.TEXTS, "the cats sat"] * 8
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))
LANGUAGES = ("en", "de")


def write_corpus(folder):
    vocabulary = text.Vocabulary.train(TEXTS, size=300, exact=False)
    held_out = {"validation": text.Pairs(["a dog", "cats"], ["ein Hund", "Katzen"])}
    text.encode_corpus(
        PAIRS, folder / "corpus", vocabulary, languages=LANGUAGES, held_out=held_out
    )


def read_corpus(folder):
    corpus = text.EncodedCorpus(folder / "corpus")
    batches = text.Batches(corpus, corpus.vocabulary, batch_tokens=256)
    return [batches.batch(step) for step in range(len(batches))], corpus.validation


def _writer(folder):
    return text.encoding.CorpusWriter(folder / "corpus", identity=["pairs.tsv", 1])


def _write_unfinished_corpus(folder):
    vocabulary = text.Vocabulary.train(TEXTS, size=300, exact=False)
    with _writer(folder) as writer:
        writer.save_vocabularies(lambda: (vocabulary, vocabulary))
        writer.save_held_out(lambda: {"test": text.Pairs(["a dog"], ["ein Hund"])})
        writer.write(PAIRS[:9])


def _finish_corpus(folder):
    with _writer(folder) as writer:
        writer.save_vocabularies(None)
        writer.save_held_out(None)
        writer.write(PAIRS)
        writer.finish(LANGUAGES)
    read_corpus(folder)


def _write_pairs(folder):
    lines = "".join(f"{source}\t{target}\n" for source, target in PAIRS).encode()
    (folder / "pairs.tsv").write_bytes(lines)
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress(lines, mtime=0))
    with open(folder / "pairs.csv", "w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([LANGUAGES, *PAIRS])
    rows = [dict(zip(LANGUAGES, pair, strict=True)) for pair in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'
        for source, target in PAIRS
    )
    (folder / "pairs.tmx").write_text(
        f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{units}</body></tmx>\n'
    )


PAIR_FILES = ("pairs.tsv", "pairs.tsv.gz", "pairs.csv", "pairs.jsonl", "pairs.tmx")


def _read_pairs(folder):
    return [
        text.read_pairs(folder / name, languages=LANGUAGES, max_bad_rate=0)
        for name in PAIR_FILES
    ]


def _write_labeled(folder):
    rows = [(line, "ab"[number % 2]) for number, line in enumerate(TEXTS)]
    with open(folder / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    lines = [json.dumps({"text": line, "label": label}) for line, label in rows]
    (folder / "texts.jsonl").write_text("\n".join(lines))


def _read_labeled(folder):
    return [text.read_labeled(folder / f"texts.{e}") for e in ("csv", "jsonl")]


def _write_glossary(folder):
    (folder / "terms.tsv").write_text("bank\tUfer\nbank account\tKonto\n" * 9)
    (folder / "terms.csv").write_text('bank,Ufer\n"bank, big","Bank, groß"\n' * 9)


def _read_glossary(folder):
    return [Glossary(folder / f"terms.{e}").find("A bank") for e in ("tsv", "csv")]


def _write_lexicon(folder):
    lines = [f"t{i % 7} s{i} 0.{i}\n" for i in range(10, 40)]
    (folder / "lex.txt").write_text("".join(lines))


def _read_lexicon(folder):
    source, target = [f"s{i}" for i in range(45)], [f"t{i}" for i in range(10)]
    shortlist = Shortlist.read(folder / "lex.txt", source, target, frequent=2)
    return shortlist.rows(np.array([[12, 30]]), 4)


def _dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def _write_epochs(folder):
    for number in (1, 2):
        _dense().save_weights(folder / f"epoch_000{number}.weights.h5")


def _average_epochs(folder):
    training.CheckpointAverage(folder).apply(_dense())


def _table(folder):
    return ablation.Flags(out=str(folder), rows=("base",), epochs=2)


def _write_table(folder):
    ablation.check_folder(_table(folder), folder)
    (folder / "base-seed0").mkdir()
    result = dict.fromkeys(ablation.AVERAGED, 2.0)
    result |= {"flags": {"seed": 0, "epochs": 2}, "test_set": "a"}
    (folder / "base-seed0" / "result.json").write_text(json.dumps(result))


def _read_table(folder):
    ablation.check_folder(_table(folder), folder)
    return ablation.write_table(_table(folder), folder)


IDENTITY = {"model": "en-de", "beam_size": 4, "files": ["a.txt"]}


def _write_output(folder):
    output = Output(folder / "out.txt", IDENTITY)
    (folder / "out.txt.part").write_text("a line\n")
    output._file.close()


def _resume_output(folder):
    Output(folder / "out.txt", IDENTITY).write_all(["another line"])


def _write_card(folder):
    (folder / "README.md").write_text("# A model\n\nOf boats.\n")
    (folder / "preset.json").write_text('{"task": "translation", "languages": ["de"]}')


def _read_card(folder):
    return sharing.model_card(folder, "hf://owner/name")


FORMATS = {
    "encoded corpus": Format(
        write_corpus,
        read_corpus,
        (
            *("corpus/metadata.json", "corpus/ids.bin", "corpus/starts.bin"),
            *("corpus/lengths.bin", "corpus/vocabulary.model"),
            "corpus/validation.jsonl",
        ),
    ),
    "unfinished corpus": Format(
        _write_unfinished_corpus,
        _finish_corpus,
        (
            *("corpus.part/progress.json", "corpus.part/ids.bin"),
            *("corpus.part/starts.bin", "corpus.part/lengths.bin"),
            *("corpus.part/vocabulary.model", "corpus.part/test.jsonl"),
        ),
    ),
    "pairs": Format(_write_pairs, _read_pairs, PAIR_FILES),
    "labeled texts": Format(
        _write_labeled, _read_labeled, ("texts.csv", "texts.jsonl")
    ),
    "glossary": Format(_write_glossary, _read_glossary, ("terms.tsv", "terms.csv")),
    "lexicon": Format(_write_lexicon, _read_lexicon, ("lex.txt",)),
    "epochs": Format(_write_epochs, _average_epochs, ("epoch_0001.weights.h5",)),
    "ablation": Format(
        _write_table, _read_table, ("flags.json", "base-seed0/result.json")
    ),
    "output": Format(_write_output, _resume_output, ("out.txt.part.json",)),
    "model card": Format(_write_card, _read_card, ("README.md", "preset.json")),
    "API key": Format(
        lambda folder: (folder / "key.txt").write_text("abcdef0123456789\n"),
        lambda folder: access.read_key(folder / "key.txt"),
        ("key.txt",),
    ),
}
