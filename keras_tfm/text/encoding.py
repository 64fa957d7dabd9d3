"""Writes encoded corpora: once, in one pass, resumable."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.text.checks import check
from keras_tfm.text.encoded_corpus import (
    FORMAT,
    HELD_OUT,
    IDS,
    LENGTHS,
    MAX_TEXT_TOKENS,
    METADATA,
    STARTS,
    EncodedCorpus,
    check_names,
    is_encoded,
    read_held_out,
    vocabulary_sha256,
)
from keras_tfm.text.files import chunks
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.subword_vocabulary import SubwordVocabulary
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

# Pairs that are tokenized and written together: a stop loses the last ones.
CHUNK_PAIRS = 50_000
PROGRESS = "progress.json"
DROPPED = ("a side without tokens", "a side too long", "a side held out")


def encode_corpus(
    pairs: Iterable[tuple[str, str]],
    folder: str | os.PathLike,
    vocabulary: SubwordVocabulary,
    target_vocabulary: SubwordVocabulary | None = None,
    languages: tuple[str, str] | None = None,
    held_out: dict[str, Pairs] | None = None,
) -> EncodedCorpus:
    """Tokenizes pairs into a folder, for `EncodedCorpus`.

    The folder appears when it is complete. Memory does not grow with the pairs.
    Dropped are pairs with a side without tokens, or with one of over 65,000
    tokens, and those that share a side with a held-out pair. They are counted
    in the `report` of the corpus.

    Args:
        pairs: iterable of `(source, target)` strings, such as `iterate_pairs`.
        folder: string or path, which does not exist.
        vocabulary: `Vocabulary` of the source, and of the target if there is no
            other. A copy is kept in the folder.
        target_vocabulary: `Vocabulary` of the target, or None for a joint one.
        languages: codes of source and target, such as `("en", "de")`, or None.
        held_out: dict of `Pairs`: `"validation"` and `"test"`, which are kept
            in the folder as text.

    Returns:
        `EncodedCorpus`.

    Raises:
        FileExistsError: the folder exists.
        ValueError: no pair is left, or another process writes the folder.

    Example:
        ```python
        import tempfile

        from keras_tfm import text

        pairs = [("a cat", "eine Katze"), ("a big dog", "ein Hund")]
        texts = [side for pair in pairs for side in pair]
        vocabulary = text.Vocabulary.train(texts, size=300, exact=False)
        with tempfile.TemporaryDirectory() as folder:
            corpus = text.encode_corpus(pairs, f"{folder}/corpus", vocabulary)
            print(corpus.report)
        ```
    """
    with CorpusWriter(folder) as writer:
        writer.save_vocabularies(lambda: (vocabulary, target_vocabulary or vocabulary))
        writer.save_held_out(lambda: held_out or {})
        writer.write(pairs)
        return writer.finish(languages)


class CorpusWriter(contextlib.AbstractContextManager):
    """Writes an encoded corpus under a temporary name, and renames it.

    Until it is complete the corpus is in `FOLDER.part`. A writer with the same
    identity resumes it after the last complete chunk of pairs.

    Args:
        folder: string or path, which does not exist.
        identity: JSON value that the corpus depends on, such as the names and
            sizes of files. None: a part is begun again.

    Attributes:
        num_read: int, pairs that were read before the stop.

    Raises:
        FileExistsError: the folder exists.
        FileNotFoundError: its parent folder does not exist.
        ValueError: the part has another identity, or another process writes it.
    """

    def __init__(self, folder: str | os.PathLike, identity: Any = None):
        self.folder = pathlib.Path(folder).resolve()
        if self.folder.exists():
            raise FileExistsError(
                f"`folder` must not exist; got {os.fspath(folder)!r}. Name another, or "
                "remove it."
            )
        if not self.folder.parent.is_dir():
            raise FileNotFoundError(
                f"`folder` must be in an existing folder; got {os.fspath(folder)!r}. "
                "Create the folder above it."
            )
        self.part = self.folder.with_name(f"{self.folder.name}.part")
        self.part.mkdir(exist_ok=True)
        self._files = {
            name: (self.part / name).open("ab") for name in (IDS, STARTS, LENGTHS)
        }
        try:
            self._lock()
            self._state = self._resume(json.loads(json.dumps(identity)))
        except BaseException:
            self._close()
            raise
        self.num_read = self._state["read"]

    def __exit__(self, *error: Any) -> None:
        self._close()

    def save_vocabularies(
        self, make: Callable[[], tuple[SubwordVocabulary, SubwordVocabulary]]
    ) -> None:
        """Keeps the vocabularies in the folder, unless they are there.

        Args:
            make: function that returns those of source and target.
        """
        if not self._state["vocabularies"]:
            source, target = make()
            names = [f"vocabulary{'.json' if source.is_text else '.model'}"]
            source.save(self.part / names[0])
            if vocabulary_sha256(target) != vocabulary_sha256(source):
                names.append(
                    f"target_vocabulary{'.json' if target.is_text else '.model'}"
                )
                target.save(self.part / names[1])
            self._state["vocabularies"] = [names[0], names[-1]]
            self._save_state()
        names = self._state["vocabularies"]
        vocabularies = [load_vocabulary(self.part / name) for name in names]
        self._encode = [vocabulary.encode for vocabulary in vocabularies]
        self._sha256 = [*map(vocabulary_sha256, vocabularies)]
        largest = max(vocabulary.size for vocabulary in vocabularies)
        self._id_type = "uint16" if largest <= 2**16 else "uint32"

    def save_held_out(self, make: Callable[[], dict[str, Pairs]]) -> None:
        """Keeps validation and test pairs in the folder, unless they are there.

        Args:
            make: function that returns a dict of `Pairs` by name.
        """
        if not self._state["held_out"]:
            for name, pairs in make().items():
                check(name in HELD_OUT, f"`held_out` must be of {HELD_OUT}", name=name)
                rows = ({"source": s, "target": t} for s, t in pairs)
                lines = (f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
                file = self.part / f"{name}.jsonl"
                file.write_text("".join(lines), encoding="utf-8")
            self._state["held_out"] = True
            self._save_state()
        self._held_out = (set(), set())
        for name in HELD_OUT:
            file = self.part / f"{name}.jsonl"
            if file.exists():
                pairs = read_held_out(file)
                self._held_out[0].update(pairs.source)
                self._held_out[1].update(pairs.target)

    def write(
        self,
        pairs: Iterable[tuple[str, str]],
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Tokenizes and writes the pairs that are not written yet.

        Args:
            pairs: iterable of `(source, target)` strings, all of the corpus.
            report: function that is called with the number of pairs read.

        Raises:
            ValueError: as the iterable does; the chunks before it are kept.
        """
        rest: Iterator = itertools.islice(pairs, self.num_read, None)
        for chunk in chunks(rest, CHUNK_PAIRS):
            self._write_chunk(chunk)
            if report is not None:
                report(self._state["read"])

    def finish(self, languages: tuple[str, str] | None = None) -> EncodedCorpus:
        """Renames the folder, and opens it.

        Args:
            languages: codes of source and target, or None.

        Raises:
            ValueError: the corpus has no pair.
        """
        state = self._state
        check(
            state["pairs"],
            "`pairs` must hold a pair with text on both sides",
            read=state["read"],
            dropped=state["dropped"],
        )
        names = state["vocabularies"]
        metadata = {
            "format": FORMAT,
            "pairs": state["pairs"],
            "source_tokens": state["tokens"][0],
            "target_tokens": state["tokens"][1],
            "id_type": self._id_type,
            "languages": languages,
            "vocabulary": names[0],
            "target_vocabulary": names[1],
            "vocabulary_sha256": self._sha256[0],
            "target_vocabulary_sha256": self._sha256[1],
            "crc32": state["crc32"],
            "dropped": state["dropped"],
            "identity": state["identity"],
        }
        _write_json(self.part / METADATA, metadata)
        self._close()
        (self.part / PROGRESS).unlink()
        os.rename(self.part, self.folder)
        return EncodedCorpus(self.folder)

    def _write_chunk(self, pairs):
        state = self._state
        sides = zip(*pairs, strict=True)
        rows = [
            encode(list(texts))
            for encode, texts in zip(self._encode, sides, strict=True)
        ]
        lengths = np.array([[*map(len, side)] for side in rows], "int64").T  # (n, 2)
        sources, targets = self._held_out
        reasons = np.zeros((3, len(pairs)), bool)
        reasons[0] = lengths.min(axis=1) == 0
        reasons[1] = lengths.max(axis=1) > MAX_TEXT_TOKENS
        reasons[2] = [s in sources or t in targets for s, t in pairs]
        for number, kind in enumerate(DROPPED):
            is_first = reasons[number] & ~reasons[:number].any(axis=0)
            state["dropped"][kind] += int(is_first.sum())
        is_used = ~reasons.any(axis=0)
        lengths = lengths[is_used]
        used = itertools.compress(zip(*rows, strict=True), is_used)
        tokens = itertools.chain.from_iterable(itertools.chain.from_iterable(used))
        ids = np.fromiter(tokens, f"<{np.dtype(self._id_type).str[1:]}")
        ends = sum(state["tokens"]) + np.cumsum(lengths.sum(axis=1))
        content = {
            IDS: ids.tobytes(),
            STARTS: (ends - lengths.sum(axis=1)).astype("<u8").tobytes(),
            LENGTHS: lengths.astype("<u2").tobytes(),
        }
        state["crc32"] = zlib.crc32(content[IDS], state["crc32"])
        state["crc32"] = zlib.crc32(content[LENGTHS], state["crc32"])
        state["read"] += len(pairs)
        state["pairs"] += len(lengths)
        state["tokens"] = [
            old + int(new)
            for old, new in zip(state["tokens"], lengths.sum(axis=0), strict=True)
        ]
        for name, data in content.items():
            self._files[name].write(data)
            state["sizes"][name] += len(data)
        self._save_state()

    def _save_state(self):
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        _write_json(self.part / PROGRESS, self._state)

    def _resume(self, identity):
        """Returns the state of the last complete chunk; drops what follows."""
        progress = self.part / PROGRESS
        state = _read_progress(progress) if progress.exists() else None
        if identity is None:
            state = None
        check(
            state is None or state.get("identity") == identity,
            f"{os.fspath(self.part)!r} must belong to the same files and flags; by its "
            f"{PROGRESS} it belongs to others",
            "Repeat that command, or remove that folder.",
            identity=identity,
        )
        if state is None:
            state = {
                "identity": identity,
                "read": 0,
                "pairs": 0,
                "tokens": [0, 0],
                "crc32": 0,
                "dropped": dict.fromkeys(DROPPED, 0),
                "sizes": dict.fromkeys(self._files, 0),
                "vocabularies": [],
                "held_out": False,
            }
        for name, file in self._files.items():
            file.truncate(state["sizes"][name])
        return state

    def _lock(self):
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._files[IDS], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{os.fspath(self.part)!r} is being written by another process. Wait "
                "for it, or name another folder."
            ) from error

    def _close(self):
        for file in self._files.values():
            file.close()


def _read_progress(file):
    """Reads the state that `_save_state` wrote, and checks it."""
    state = Config(read_json(file), file)
    for name in ("read", "pairs", "crc32"):
        state.natural(name)
    state.naturals("dropped", DROPPED)
    sizes = state.naturals("sizes", (IDS, STARTS, LENGTHS))
    check_names(file, state.typed("vocabularies", list))
    with reading(file, "the progress of an encoding"):
        source, target = state["tokens"]
        num_ids = int(source) + int(target)
        missing = [
            name for name in state["vocabularies"] if not file.with_name(name).is_file()
        ]
        check(
            isinstance(state["held_out"], bool)
            and not missing
            and len(state["vocabularies"]) in (0, 2)
            and sizes[IDS] in (2 * num_ids, 4 * num_ids)
            and sizes[STARTS] == 8 * state["pairs"]
            and sizes[LENGTHS] == 4 * state["pairs"]
            and all(file.with_name(n).stat().st_size >= sizes[n] for n in sizes),
            f"{file} must fit the files beside it, {', '.join(sizes)}",
            "Remove the folder to encode the text from the start.",
            sizes=sizes,
            missing=missing,
        )
    return state


def find_corpus(folder: str | os.PathLike, identity: Any) -> EncodedCorpus | None:
    """Returns a complete corpus of the same identity, or None.

    Args:
        folder: string or path.
        identity: JSON value, as of `CorpusWriter`.
    """
    if not is_encoded(folder):
        return None
    corpus = EncodedCorpus(folder)
    stored = corpus.metadata[0].get("identity")
    return corpus if stored == json.loads(json.dumps(identity)) else None


def draw_held_out(
    pairs: Iterable[tuple[str, str]], count: int, seed: int = 0
) -> dict[str, Pairs]:
    """Draws validation and test pairs, in one pass over pairs of any number.

    Args:
        pairs: iterable of `(source, target)` strings.
        count: int >= 1, pairs of each set.
        seed: int.

    Returns:
        dict of `Pairs`: `"validation"` and `"test"`, which share no side.

    Raises:
        ValueError: there are too few pairs.
    """
    draw, drawn, number = random.Random(seed), [], 0
    with_text = (pair for pair in pairs if all(map(str.strip, pair)))
    for number, pair in enumerate(with_text, start=1):
        if len(drawn) < 2 * count:
            drawn.append(pair)
        elif (index := draw.randrange(number)) < len(drawn):
            drawn[index] = pair
    draw.shuffle(drawn)
    drawn = list(dict.fromkeys(drawn))
    test = drawn[: (len(drawn) + 1) // 2]
    sources, targets = map(set, zip(*test, strict=True)) if test else (set(), set())
    validation = [
        pair
        for pair in drawn[len(test) :]
        if pair[0] not in sources and pair[1] not in targets
    ]
    check(
        number >= 4 * count and validation,
        "`held_out` must leave at least half of the pairs for training",
        "Decrease it, or name validation and test files.",
        held_out=count,
        pairs=number,
    )
    return {
        name: Pairs(*zip(*rows, strict=True), name=name)
        for name, rows in (("validation", validation), ("test", test))
    }


def _write_json(file, content):
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    os.replace(partial, file)
