"""Small corpora on which a model trains in seconds."""

import numpy as np

from keras_tfm.recipes import translation

# Sentences of similar lengths, since each length is compiled separately.
ANIMALS = {"cats": "Katzen", "dogs": "Hunde", "birds": "Vögel", "fish": "Fische"}
VERBS = {"have": "habe", "see": "sehe", "like": "mag"}


def write_tsv(file):
    """Writes 600 pairs of English and German."""
    rows = [
        f"I {verb} {n} {animal}\tIch {german_verb} {n} {german_animal}\n"
        for n in range(10, 60)
        for verb, german_verb in VERBS.items()
        for animal, german_animal in ANIMALS.items()
    ]
    file.write_text("".join(rows), encoding="utf-8")
    return file


def write_folder(folder):
    """Writes 360 sentences in three languages, 40 of them held out."""
    rows = [(v, n, a) for n in range(10, 40) for v in VERBS for a in ANIMALS]
    np.random.default_rng(0).shuffle(rows)
    texts = {
        "en": [f"I {v} {n} {a}" for v, n, a in rows],
        "de": [f"Ich {VERBS[v]} {n} {ANIMALS[a]}" for v, n, a in rows],
        "nl": [f"Ik {v}e {n} {a}en" for v, n, a in rows],
    }
    for language, lines in texts.items():
        splits = {"train": lines[40:], "val": lines[:20], "test": lines[20:40]}
        for split, sentences in splits.items():
            file = folder / f"{split}.{language}"
            file.write_text("".join(f"{line}\n" for line in sentences), "utf-8")
    return folder


def flags_for(data, out, **changes):
    """Returns the flags of a small and short run."""
    values = {
        "size": "small",
        "num_layers": (1, 2),
        "vocabulary_size": 300,
        "held_out": 40,
        "batch_tokens": 256,
        "epochs": 2,
        "learning_rate": 4e-3,
        "warmup_steps": 20,  # enough to learn to end a sentence
        "average_last": 2,
        "evaluate_every": 2,
        "beam_size": 2,
    }
    return translation.Flags(data=str(data), out=str(out), **values | changes)


# A text contains one word of its label.
OPINIONS = {
    "good": ["fine", "great", "lovely", "superb"],
    "bad": ["awful", "dull", "poor", "weak"],
}


def write_films(file, count, multi_label=False):
    """Writes texts with one word of each of their labels."""
    draw = np.random.default_rng(0)
    rows = ["text\tlabel"]
    names = list(OPINIONS)
    for i in range(count):
        labels = names if multi_label and i % 3 == 2 else [names[i % 2]]
        words = [*(draw.choice(OPINIONS[label]) for label in labels), "film", f"n{i}"]
        rows.append(f"{' '.join(words)}\t{','.join(labels)}")
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(file)
