"""Corpora larger than memory: token ids in files that are memory-mapped."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.text.checks import check
from keras_tfm.text.pair_files import read_pairs
from keras_tfm.text.pairs import Pairs
from keras_tfm.text.subword_vocabulary import SubwordVocabulary
from keras_tfm.text.tokenized_column import padded_rows
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

FORMAT = 1
METADATA, IDS, STARTS, LENGTHS = "metadata.json", "ids.bin", "starts.bin", "lengths.bin"
ID_TYPES = ("uint16", "uint32")
SIDES = ("source", "target")
MAX_TEXT_TOKENS = 65_000  # of a text; lengths are uint16
HELD_OUT = ("validation", "test")


@dataclasses.dataclass(frozen=True)
class EncodedFiles:
    """The arrays of one encoded folder, mapped into memory.

    Attributes:
        folder: path.
        ids: int array, for each pair the tokens of its source and its target.
        starts: uint64 `(N,)`, where each pair starts in `ids`.
        lengths: uint16 `(N, 2)`, tokens of source and target.
    """

    folder: pathlib.Path
    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def rows(
        self, side: int, indices: np.ndarray, length: int, vocabulary_size: int
    ) -> np.ndarray:
        """Returns the first tokens of some texts, int32 `(B, length)`.

        Raises:
            ValueError: the files do not fit each other, or an id is not below
                `vocabulary_size`.
        """
        counts, starts = self.lengths[indices], self.starts[indices]
        ends = starts + counts.sum(axis=1)
        is_last = indices == len(self.starts) - 1
        following = self.starts[np.where(is_last, indices, indices + 1)]
        is_whole = (starts <= ends) & (ends <= len(self.ids))
        is_whole &= ends == np.where(is_last, len(self.ids), following)
        self._check(is_whole, indices)
        if side:
            starts = starts + counts[:, 0]
        rows = padded_rows(self.ids, starts, counts[:, side], length)
        self._check(((rows >= 0) & (rows < vocabulary_size)).all(axis=1), indices)
        return rows

    def _check(self, fits, indices):
        check(
            fits.all(),
            f"{self.folder}: the files {IDS}, {STARTS} and {LENGTHS} must fit each "
            "other and the vocabulary",
            "Copy the folder again, or encode the text again.",
            pair=indices[~fits][:1].tolist(),
        )


class EncodedCorpus:
    """Pairs of token ids in one or several folders, for corpora over memory.

    `keras-tfm encode`, or `text.encode_corpus`, writes a folder once. Any
    number of processes may read it at the same time: they share its pages in
    the cache of the system. `Batches` takes it in place of `Pairs`, and has the
    same batches as of the text.

    Args:
        folders: string or path, or a list of them: one corpus of all pairs.
        weights: list of floats above 0, one for each folder: how often an epoch
            of `Batches` has each of its pairs. 2 is twice; 0.1 is a tenth of
            them, others in each epoch. None: all once.

    Attributes:
        vocabulary: vocabulary of the source.
        target_vocabulary: vocabulary of the target, the same object for a joint
            one.
        languages: codes of source and target, such as `("en", "de")`; None
            where they are not known.
        validation: `Pairs` that are not in the corpus, or None.
        test: `Pairs` that are not in the corpus, or None.
        fingerprint: string, the same for the same ids and weights.
        boundaries: int array, the first pair of each folder, and N.

    Raises:
        FileNotFoundError: a folder is missing, or is no encoded corpus.
        ValueError: a file is not complete, the folders have different
            vocabularies, or there is not one weight for each.

    Example:
        ```python
        import tempfile

        from keras_tfm import text

        pairs = [("a cat", "eine Katze"), ("a big dog", "ein Hund")]
        texts = [side for pair in pairs for side in pair]
        vocabulary = text.Vocabulary.train(texts, size=300, exact=False)
        with tempfile.TemporaryDirectory() as folder:
            text.encode_corpus(pairs, f"{folder}/corpus", vocabulary)
            corpus = text.EncodedCorpus(f"{folder}/corpus")
            batches = text.Batches(corpus, corpus.vocabulary, batch_tokens=64)
            print(len(corpus), batches.report)
        ```
    """

    def __init__(
        self,
        folders: str | os.PathLike | Sequence[str | os.PathLike],
        weights: Sequence[float] | None = None,
    ):
        if isinstance(folders, str | os.PathLike):
            folders = [folders]
        self.folders = [pathlib.Path(folder) for folder in folders]
        self.weights = None if weights is None else tuple(map(float, weights))
        check(
            weights is None
            or (len(weights) == len(self.folders) and min(self.weights) > 0),
            "`weights` must be None, or one number above 0 for each folder",
            weights=weights,
            folders=[os.fspath(folder) for folder in self.folders],
        )
        self.metadata = [read_metadata(folder) for folder in self.folders]
        check(self.metadata, "`folders` must name at least one folder", folders=folders)
        for name in ("vocabulary_sha256", "target_vocabulary_sha256", "languages"):
            values = [metadata.get(name) for metadata in self.metadata]
            check(
                values.count(values[0]) == len(values),
                f"`folders` must be encoded with the same {name.partition('_sha')[0]}",
                "Encode them with the same --vocabulary and languages.",
                **{name: dict(zip(map(str, self.folders), values, strict=True))},
            )
        sizes = [metadata["pairs"] for metadata in self.metadata]
        self.boundaries = np.concatenate([[0], np.cumsum(sizes)])
        self.files = [
            _open_files(folder, metadata)
            for folder, metadata in zip(self.folders, self.metadata, strict=True)
        ]
        self.languages = tuple(self.metadata[0].get("languages") or (None, None))
        self.vocabulary, self.target_vocabulary = self._load_vocabularies()
        self.validation, self.test = map(self._held_out, HELD_OUT)

    def __len__(self) -> int:
        return int(self.boundaries[-1])

    @property
    def fingerprint(self) -> str:
        values = [[m["pairs"], m["crc32"]] for m in self.metadata]
        values += [self.metadata[0]["vocabulary_sha256"], self.weights]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    @property
    def report(self) -> str:
        """The pairs of each folder, and those that were dropped."""
        lines = []
        for folder, metadata in zip(self.folders, self.metadata, strict=True):
            dropped = [f"{n:,} {kind}" for kind, n in metadata["dropped"].items() if n]
            line = f"{folder}: {metadata['pairs']:,} pairs, "
            line += f"{metadata['source_tokens'] + metadata['target_tokens']:,} tokens"
            lines.append(line + (f"; dropped: {', '.join(dropped)}" if dropped else ""))
        return "\n".join(lines)

    def tokens(self, side: int) -> "EncodedSide":
        """Returns the tokens of one side.

        Args:
            side: int, 0 for the sources and 1 for the targets.
        """
        return EncodedSide(self, side)

    def check_vocabularies(
        self, source: SubwordVocabulary, target: SubwordVocabulary
    ) -> None:
        """Rejects vocabularies other than those of the corpus.

        Args:
            source: vocabulary of the source.
            target: vocabulary of the target.

        Raises:
            ValueError: one is another.
        """
        expected = (
            self.metadata[0]["vocabulary_sha256"],
            self.metadata[0]["target_vocabulary_sha256"],
        )
        for name, vocabulary, digest in zip(
            ("vocabulary", "target_vocabulary"), (source, target), expected, strict=True
        ):
            actual = vocabulary_sha256(vocabulary)
            check(
                actual == digest,
                f"`{name}` must be the one that {self.folders[0]} was encoded with, "
                f"with sha256 {digest[:12]}",
                f"Use `EncodedCorpus.{name}`, or encode the text again with this one.",
                sha256=actual[:12],
                vocabulary=vocabulary,
            )

    def __repr__(self) -> str:
        return f"<EncodedCorpus: {len(self):,} pairs in {len(self.folders)} folders>"

    def _load_vocabularies(self):
        metadata, folder = self.metadata[0], self.folders[0]
        files = [metadata["vocabulary"], metadata["target_vocabulary"]]
        names = dict.fromkeys([METADATA, *files])
        with reading(folder, "an encoded corpus", names=names):
            for name in files:
                if not (folder / name).is_file():
                    raise FileNotFoundError(
                        f"{folder / METADATA} names the vocabulary {name!r:.80}, which "
                        "does not exist. Copy the folder again."
                    )
            source = target = load_vocabulary(folder / files[0])
            if files[1] != files[0]:
                target = load_vocabulary(folder / files[1])
            self.check_vocabularies(source, target)  # a file may have been replaced
        return source, target

    def _held_out(self, name):
        files = [folder / f"{name}.jsonl" for folder in self.folders]
        sets = [read_held_out(file) for file in files if file.exists()]
        rows: Iterator = (pair for pairs in sets for pair in pairs)
        return Pairs(*zip(*rows, strict=True), name=name) if sets else None


class EncodedSide:
    """The tokens of one side of an `EncodedCorpus`: its `Tokens`.

    Args:
        corpus: `EncodedCorpus`.
        side: int, 0 for the sources and 1 for the targets.
    """

    def __init__(self, corpus: EncodedCorpus, side: int):
        self._files, self._boundaries = corpus.files, corpus.boundaries
        self._side = side
        self._size = (corpus.vocabulary, corpus.target_vocabulary)[side].size
        columns = [files.lengths[:, side] for files in self._files]
        # One folder stays in its file; several take two bytes a pair.
        self.lengths = columns[0] if len(columns) == 1 else np.concatenate(columns)

    def rows(self, indices: np.ndarray, length: int) -> np.ndarray:
        """Returns the first tokens of some texts.

        Args:
            indices: int array `(B,)` of texts.
            length: int.

        Returns:
            int32 `(B, length)`, padded with 0.
        """
        indices = np.asarray(indices)
        if len(self._files) == 1:
            return self._files[0].rows(self._side, indices, length, self._size)
        rows = np.zeros((len(indices), length), "int32")
        folder_of = np.searchsorted(self._boundaries, indices, side="right") - 1
        for number in np.unique(folder_of):
            is_here = folder_of == number
            local = indices[is_here] - self._boundaries[number]
            rows[is_here] = self._files[number].rows(
                self._side, local, length, self._size
            )
        return rows


def is_encoded(folder: str | os.PathLike) -> bool:
    """Returns whether a folder is an encoded corpus."""
    return (pathlib.Path(folder) / METADATA).is_file()


def read_metadata(folder: pathlib.Path) -> Config:
    """Reads what is known of an encoded corpus.

    Raises:
        FileNotFoundError: the folder is no encoded corpus.
        ValueError: the file is damaged, or another version of the library wrote
            it.
    """
    if not is_encoded(folder):
        raise FileNotFoundError(
            f"`folders` must name encoded corpora; got {os.fspath(folder)!r}, which "
            f"has no {METADATA}. Write one with `keras-tfm encode`."
        )
    file = folder / METADATA
    metadata = Config(read_json(file), file)
    check(
        metadata.get("format") == FORMAT,
        f"`folders` must have format {FORMAT}",
        "Encode the text again with this version of keras_tfm.",
        file=os.fspath(file),
        format=metadata.get("format"),
    )
    for name in ("pairs", "source_tokens", "target_tokens", "crc32"):
        metadata.natural(name)
    if metadata.string("id_type") not in ID_TYPES:
        raise ValueError(
            f"{file}: `id_type` must be one of {ID_TYPES}; got "
            f"{metadata['id_type']!r:.60}. Copy the folder again."
        )
    metadata.string("vocabulary_sha256")
    check_names(file, [metadata["vocabulary"], metadata["target_vocabulary"]])
    metadata.naturals("dropped", metadata.typed("dropped", dict))
    metadata.typed("languages", list, None)
    return metadata


def check_names(file: pathlib.Path, names: Sequence[Any]) -> None:
    """Rejects names of vocabularies that are not in the folder of a file.

    Args:
        file: path of the file that names them.
        names: list of str.

    Raises:
        ValueError: one is no str, or the path of another folder.
    """
    for name in names:
        if not isinstance(name, str) or not name or os.path.basename(name) != name:
            raise ValueError(
                f"{file} must name vocabularies in its folder; got {name!r:.80}. Copy "
                "the folder again."
            )


def read_held_out(file: pathlib.Path) -> Pairs:
    """Reads validation or test pairs.

    Raises:
        ValueError: the file is damaged.
    """
    columns = dict(zip(("source_column", "target_column"), SIDES, strict=True))
    return read_pairs(file, **columns, max_bad_rate=0)


def vocabulary_sha256(vocabulary: SubwordVocabulary) -> str:
    """Returns the SHA-256 of the file of a vocabulary, in hexadecimal."""
    model = vocabulary.model
    content = model if isinstance(model, bytes) else model.encode()
    return hashlib.sha256(content).hexdigest()


def _open_files(folder, metadata):
    num_pairs = metadata["pairs"]
    num_ids = metadata["source_tokens"] + metadata["target_tokens"]
    with reading(folder / METADATA, "the sizes of an encoded corpus"):
        return EncodedFiles(
            folder,
            _map(folder / IDS, metadata["id_type"], (num_ids,)),
            _map(folder / STARTS, "uint64", (num_pairs,)),
            _map(folder / LENGTHS, "uint16", (num_pairs, 2)),
        )


def _map(file, dtype, shape):
    """Maps a file into memory, whose numbers are little-endian."""
    dtype = np.dtype(dtype).newbyteorder("<")
    expected = int(np.prod(shape)) * dtype.itemsize
    actual = file.stat().st_size if file.exists() else None
    check(
        actual == expected,
        f"`folders` must hold complete files; {file} must have {expected:,} bytes, "
        f"by {METADATA}",
        "Copy the folder again, or encode the text again.",
        bytes=actual,
    )
    # A plain view: slices of `np.memmap` cost more.
    return np.asarray(np.memmap(file, dtype, "r", shape=shape))
