"""SentencePiece models of other programs, with the ids of a vocabulary here."""

import json
import os
import pathlib
import re

from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo.json_file import read_json
from keras_tfm.zoo.sentencepiece_model import of_tokenizer_json, read_model
from keras_tfm.zoo.tokenizer_json import marked

# Files of SentencePiece models that transformers writes.
FILES = ("sentencepiece.bpe.model", "spiece.model", "sentencepiece.model")
# The mark of a language: of M2M100, of mBART, of NLLB.
LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))")
SENTINELS = 100  # of T5: tokens after its pieces that stand for what is left out
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")


def vocabulary(model, names, marks):
    """Numbers the pieces of a SentencePiece model anew.

    What a piece is worth stays, so that text is cut as before; pieces that the
    model of the network does not know are left out.

    Args:
        model: a SentencePiece model, see `read`. It is changed.
        names: list of str: the piece of each id from 4 on.
        marks: collection of those names that stand for no text, such as marks
            of languages.

    Returns:
        `Vocabulary`. What of `names` the model does not have, as pieces of the
        other language's file, is never cut out of text, but for characters that
        would have no piece else.
    """
    kinds = type(model).SentencePiece
    control, unused = kinds.CONTROL, kinds.UNUSED
    known = {
        piece.piece: piece
        for piece in model.pieces
        if piece.type not in (kinds.UNKNOWN, control)
    }
    known |= {name: kinds(piece=name, type=control) for name in marks}
    types = (control, kinds.UNKNOWN, control, control)
    made = [kinds(piece=n, type=t) for n, t in zip(SPECIAL, types, strict=True)]
    letters = set().union(*known)
    least = min((piece.score for piece in known.values()), default=0.0)
    for name in names:
        # A character that no piece of the file has leaves no other way to cut.
        new = len(name) == 1 and name not in letters
        other = {"type": kinds.NORMAL, "score": least} if new else {"type": unused}
        made.append(known.get(name) or kinds(piece=name, **other))
    del model.pieces[:]
    model.pieces.extend(made)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(4)
    trainer.pad_piece, trainer.unk_piece = SPECIAL[:2]
    trainer.bos_piece, trainer.eos_piece = SPECIAL[2:]
    trainer.vocab_size = len(made)
    # It wants all bytes or none.
    bytes_known = sum(piece.type == kinds.BYTE for piece in made)
    trainer.byte_fallback = bytes_known == 256
    return Vocabulary(model.SerializeToString())


def names(model):
    """Gives the pieces of a SentencePiece model in the order of their ids.

    Args:
        model: of `read`.

    Returns:
        list of str.
    """
    return [piece.piece for piece in model.pieces]


def read(file):
    """Reads a SentencePiece model.

    Args:
        file: path.

    Returns:
        Message of protobuf.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: the file is no SentencePiece model.
    """
    return read_model(pathlib.Path(file).read_bytes(), os.fspath(file))


def _shared(folder):
    """The model of both sides, of its own file or of `tokenizer.json`."""
    for name in FILES:
        if (folder / name).is_file():
            return read(folder / name)
    file = folder / "tokenizer.json"
    whole = read_json(file)
    return of_tokenizer_json(whole, os.fspath(file)) if whole else None


def multilingual(folder, config, ids):
    """Reads the vocabulary of M2M100, NLLB, mBART, T5 or mT5.

    Args:
        folder: path with one of `FILES` or a `tokenizer.json` that says as
            much; and with what says the ids of its pieces and of marks: the
            latter too, or `vocab.json` and `special_tokens_map.json`.
        config: dict, `config.json`.
        ids: `plans.Ids`.

    Returns:
        `Vocabulary`; a dict from languages to ids of their marks here, or None;
        and where a mark stands, see `Imported`. None twice where the folder has
        no such file.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    model = _shared(folder)
    if model is None:
        return None, None, "before"
    own = names(model)
    found, marks = _numbered(folder, own, config["model_type"] in ("t5", "mt5"))
    wanted = {
        "<pad>": config["pad_token_id"],
        "<unk>": ids.unknown_id,
        "</s>": config["eos_token_id"],
    }
    given = {name: found.get(number) for name, number in wanted.items()}
    if any(a != b for a, b in given.items()) or max(found) >= config["vocab_size"]:
        raise ValueError(
            f"{folder}: the vocabulary does not fit the model. Received: {given}, the "
            f"last {max(found)}; wanted each by its own name, and vocab_size="
            f"{config['vocab_size']}. Fetch both from one model."
        )
    numbers = {name: number for number, name in found.items()}
    languages = {}
    for name in marks:
        match = LANGUAGE.fullmatch(name)
        if match and name in numbers:
            languages[match[1] or match[2]] = ids.ours(numbers[name])
    # A start that decoding does not start with is one token more.
    found = {i: f"<{i}>" if n in SPECIAL else n for i, n in found.items()}
    said = [found.get(int(i), f"<{i}>") for i in ids.order[4:]]
    known = set(own)
    made = vocabulary(model, said, [name for name in said if name not in known])
    settings = read_json(folder / "tokenizer_config.json")
    # mBART of 25 languages; of 50 they stand before.
    kind = settings.get("tokenizer_class", "")
    last = settings.get("legacy_behaviour", False) or kind.startswith("MBartT")
    last = last or (config["model_type"] == "mbart" and 0 < len(languages) <= 25)
    return made, languages or None, "after" if last else "before"


def around(folder, ids):
    """Reads what a `tokenizer.json` puts around a source.

    Args:
        folder: path.
        ids: `plans.Ids`.

    Returns:
        dict of settings of `pipelines.Translator`; empty where it does not say.

    Raises:
        ValueError: the file is damaged.
    """
    whole = read_json(folder / "tokenizer.json")
    step = whole.get("post_processor") or {}
    if step.get("type") != "TemplateProcessing":
        return {}
    sides = [[], []]
    try:
        tokens, place = step["special_tokens"], 0
        for part in step["single"]:
            if "Sequence" in part:
                place = 1
                continue
            found = tokens[part["SpecialToken"]["id"]]["ids"]
            sides[place] += [ids.ours(number) for number in found]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{folder / 'tokenizer.json'} is damaged: tokens around a text are wanted. "
            f"Received: {error!r:.80}. Fetch it again."
        ) from error
    return {"source_prefix": sides[0], "source_suffix": sides[1]}


def _numbered(folder, own, plain):
    """The name of each id, and which names are marks and no pieces."""
    whole = read_json(folder / "tokenizer.json")
    if whole:
        table = whole.get("model", {}).get("vocab", {})
        if isinstance(table, list):  # of pairs of a piece and its score
            table = {piece: number for number, (piece, _) in enumerate(table)}
        added = {one["content"]: one["id"] for one in whole.get("added_tokens", [])}
        found = {number: piece for piece, number in {**table, **added}.items()}
        known = set(own)
        return found, [name for name in found.values() if name not in known]
    if plain:  # ids of T5 are those of its file, which in mT5 has all
        count = 0 if any("extra_id" in piece for piece in own) else SENTINELS
        sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
        return dict(enumerate([*own, *sentinels])), sentinels
    marks = _marks(folder)
    table = read_json(folder / "vocab.json")
    if table:
        first = len(table)
        found = {number: piece for piece, number in table.items()}
    else:  # fairseq has its own four first
        table = ["<s>", "<pad>", "</s>", "<unk>", *own[3:]]
        first, found = len(table), dict(enumerate(table))
        marks = [*marks, "<mask>"] if marks else []
    return found | dict(enumerate(marks, first)), marks


def _marks(folder):
    """The marks of languages in their order."""
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            listed = read_json(folder / file).get(key) or []
            named = [t if isinstance(t, str) else t["content"] for t in listed]
            found = [name for name in named if LANGUAGE.fullmatch(name)]
            if found:
                return found
    return []


def byte_level(folder, config, ids):
    """Reads the byte-level vocabulary of BART or GPT-2 with the ids here.

    Args:
        folder: path with `tokenizer.json`.
        config: dict, `config.json`.
        ids: `plans.Ids`.

    Returns:
        `TokenizersVocabulary`; None where the folder has no such file.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: the file is damaged, or of another model.
    """
    file = folder / "tokenizer.json"
    whole = read_json(file)
    if not whole:
        return None
    table, size = whole.get("model", {}).get("vocab", {}), config["vocab_size"]
    if not isinstance(table, dict):
        raise ValueError(
            f"{file}: pieces of bytes and their ids are wanted. Received: a vocabulary "
            f"of type {type(table).__name__}. Fetch it again."
        )
    # Some have a mask that the network has no row for.
    added = whole.get("added_tokens", [])
    marks = {one["content"] for one in added}
    beyond = [n for n, number in table.items() if number >= size and n not in marks]
    added = [one for one in added if one["id"] < size]
    table = {name: number for name, number in table.items() if number < size}
    named = {**table, **{one["content"]: one["id"] for one in added}}
    names_of = {number: name for name, number in named.items()}
    end = names_of.get(config["eos_token_id"])
    if end is None or beyond:
        raise ValueError(
            f"{file}: the vocabulary does not fit the model. Received: {len(beyond)} "
            f"pieces from vocab_size={size} on, eos_token_id={config['eos_token_id']} "
            f"named {end!r}. Fetch both from one model."
        )
    table = {name: ids.ours(number) for name, number in named.items()}
    start = {number: name for name, number in table.items()}.get(ids.start_id)
    # Rows that theirs have not, or twice, or without a name.
    missing = sorted(set(range(ids.size)) - set(table.values()))
    marks = [f"<{i}>" if i or "<pad>" in table else "<pad>" for i in missing]
    if set(marks) & set(table):
        raise ValueError(f"{file}: names of pieces are taken: {marks[:4]}.")
    # No added tokens, which would be found in texts.
    whole["model"]["vocab"] = {**table, **dict(zip(marks, missing, strict=True))}
    for one in added:
        one["id"] = table[one["content"]]
    whole["added_tokens"] = sorted(added, key=lambda one: one["id"])
    start = start or marks[missing.index(ids.start_id)]
    marks = {ids.start_id: start, ids.end_id: end}
    pair = ([ids.start_id], [ids.end_id], [ids.end_id])
    whole = marked(whole, lambda given: [marks[i] for i in given], *pair)
    return TokenizersVocabulary(json.dumps(whole))


def marian(folder, config, ids):
    """Reads the vocabularies of a Marian model: two ways to cut, one table.

    Args:
        folder: path with `source.spm`, `target.spm` and `vocab.json`; and
            `target_vocab.json` where source and target have tables apart.
        config: dict, `config.json`.
        ids: `plans.Ids`.

    Returns:
        `Vocabulary` of source and of target, or None twice where the folder has
        none; and a dict from languages to the ids of their marks here, or None.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    files = [folder / name for name in ("source.spm", "target.spm", "vocab.json")]
    if not any(file.is_file() for file in files):
        return None, None, None
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: a vocabulary of Marian is three files. Received: {missing} "
            "missing. Fetch them again."
        )
    tables = [files[2], files[2]]
    if not config.get("share_encoder_decoder_embeddings", True):
        other = folder / "target_vocab.json"
        tables[1] = other if other.is_file() else tables[1]
    (source, names), (target, _) = (
        _marian_side(file, table, config, ids)
        for file, table in zip(files[:2], tables, strict=True)
    )
    return source, target, targets_in(names)


def targets_in(names):
    """Finds the marks of Marian that say what to translate into.

    Args:
        names: list of str: the piece of each id from 4 on.

    Returns:
        dict from languages to ids; or None.
    """
    found = enumerate(names, len(SPECIAL))
    return {n[2:-2]: i for i, n in found if is_mark(n)} or None


def is_mark(name):
    """Tells whether a piece is such a mark.

    Args:
        name: str.
    """
    return len(name) > 4 and name.startswith(">>") and name.endswith("<<")


def _marian_side(file, table, config, ids):
    numbers = read_json(table)
    wanted = {
        "<pad>": config["pad_token_id"],
        "<unk>": ids.unknown_id,
        "</s>": config["eos_token_id"],
    }
    found = {name: numbers.get(name) for name in wanted}
    last = max(numbers.values(), default=-1)
    if found != wanted or last >= config["vocab_size"]:
        raise ValueError(
            f"{table}: the vocabulary does not fit the model. Received: {found}, "
            f"the last {last}; wanted {wanted}, and "
            f"vocab_size={config['vocab_size']}. Fetch both from one model."
        )
    pieces = {number: piece for piece, number in numbers.items()}
    names = [pieces.get(int(i), f"<{i}>") for i in ids.order[4:]]
    return vocabulary(read(file), names, set(filter(is_mark, names))), names
