"""What the files of a tokenizer say, whichever files a folder has."""

import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from keras_tfm.file_reading import read_ids, read_json, reading
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.huggingface import older_tokenizers
from keras_tfm.zoo.huggingface.tokenizer_files import FAIRSEQ, NO_FLAGS

# Language tags of M2M100, and of mBART and NLLB.
LANGUAGE_TAG = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))")
# Special tokens of published models that no option of their tokenizers names:
# sentinels of T5, masks of Pegasus, Marian's tags, and spare rows.
OWN_TOKEN = re.compile(
    rf"{LANGUAGE_TAG.pattern}|\u2581?<extra_id_\d+>|<(?:mask|unk)_\w+>|>>.+<<"
    r"|<s>|</s>|<pad>|<unk>|<mask>|<.+>NOTUSED|madeupword\d+"
    r"|\[(?:PAD|UNK|CLS|SEP|MASK)\]"
)
# Options of tokenizers that name a special token, and names where none does.
ROLES = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
ROLES |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"}
ROLES |= {"mask_token": "<mask>"}
# Of most models, and of FSMT.
SOURCE_VOCABULARIES = ("vocab.json", "vocab-src.json")
TARGET_VOCABULARIES = ("target_vocab.json", "vocab-tgt.json")
NUM_SENTINELS = 100  # tokens of T5 after its subwords, where no file says it
# All files of a tokenizer.
NAMES = ("tokenizer.json", "added_tokens.json", "vocab.txt", "merges.txt")
NAMES += (*SOURCE_VOCABULARIES, *TARGET_VOCABULARIES)
NAMES += ("special_tokens_map.json", "tokenizer_config.json")
NAMES += (*sentencepiece_models.SIDE_MODELS, *older_tokenizers.SENTENCEPIECE_FILES)
PEGASUS_OFFSET = 103  # ids before Pegasus' subwords, where no file says it
PEGASUS_FIRST = ["<pad>", "</s>", "<mask_1>", "<mask_2>"]


class TokenizerFolder:
    """The tokens of a folder of transformers, and which of them are special.

    Each file is read once, when it is needed.

    Args:
        folder: path.
        model_type: str, the architecture; it orders the tokens where only a
            SentencePiece model is there.

    Raises:
        ValueError: from each attribute, if a file is damaged.
    """

    def __init__(self, folder: pathlib.Path, model_type: str):
        self.folder, self.model_type = folder, model_type

        names = [name for name in NAMES if (folder / name).is_file()]
        # A guard, whose error names the files that are here.
        self.reading = functools.partial(
            reading, folder, "a tokenizer", names=["config.json", *names]
        )

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The options of the tokenizer; `tokenizer_config.json` comes first."""
        names = ("special_tokens_map.json", "tokenizer_config.json")
        files = [read_json(self.folder / name) for name in names]
        return {k: v for content in files for k, v in content.items() if v is not None}

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        """`tokenizer.json`, or the same made of older files; empty without.

        Older are `vocab.txt` of WordPiece, `vocab.json` with `merges.txt` of
        bytes, and the SentencePiece model of XLM-R and CamemBERT.
        """
        content = read_json(self.folder / "tokenizer.json")
        if content:
            return content
        content = older_tokenizers.read(self)
        if content:
            names = {token["content"] for token in content["added_tokens"]}
            added = [t for t in self.added_entries if t["content"] not in names]
            content["added_tokens"] += added
        return content

    @functools.cached_property
    def added_entries(self) -> list[dict[str, Any]]:
        """Tokens that files besides `tokenizer.json` add, as it lists them."""
        with self.reading():
            tokens = read_json(self.folder / "added_tokens.json")
            flags = {**NO_FLAGS, "special": False, "normalized": True}
            entries = [{**flags, "id": i, "content": t} for t, i in tokens.items()]
            decoder = self.settings.get("added_tokens_decoder", {})
            entries += [
                {**flags, **token, "id": int(i)} for i, token in decoder.items()
            ]
            by_id = {entry["id"]: entry for entry in entries}
            return [by_id[number] for number in sorted(by_id)]

    @property
    def is_byte_level(self) -> bool:
        """Whether the tokens are of bytes, as those of GPT-2."""
        return '"ByteLevel"' in str(self.content.get("pre_tokenizer")).replace("'", '"')

    @functools.cached_property
    def sentencepiece(self) -> Any:
        """The `ModelProto` that segments text; None without."""
        model = older_tokenizers.read_sentencepiece(self.folder)
        if model is not None:
            return model
        file = self.folder / "tokenizer.json"
        if not self.content:
            return None
        return sentencepiece_models.from_tokenizer_json(self.content, str(file))

    @functools.cached_property
    def added(self) -> dict[str, int]:
        """The ids of tokens that are cut out of text before segmentation."""
        with self.reading():
            tokens = [*self.added_entries, *self.content.get("added_tokens", [])]
            return {token["content"]: token["id"] for token in tokens}

    @property
    def user_added(self) -> list[str]:
        """Those of `added` that are not the model's own special tokens."""
        names = self.special_names
        return [t for t in self.added if t not in names and not OWN_TOKEN.fullmatch(t)]

    @property
    def special_names(self) -> set[str]:
        """The names of the tokens that have a role."""
        return {self.name_of(role) for role in ROLES}

    @functools.cached_property
    def tokens(self) -> dict[int, str]:
        """The token of each id; empty where the folder has no vocabulary."""
        vocab: Mapping[str, int]
        if self.content:
            vocab = self.content.get("model", {}).get("vocab", {})
            if isinstance(vocab, list):  # of pairs of a token and its score
                vocab = {token: number for number, (token, _) in enumerate(vocab)}
        else:
            vocab = _read_ids(self.folder, SOURCE_VOCABULARIES)
        by_id = {number: token for token, number in vocab.items()}
        if not self.content and self.sentencepiece is not None:
            subwords = sentencepiece_models.tokens_of(self.sentencepiece)
            by_id = by_id or self._of_subwords(subwords)
            tags = self._language_tags()
            if self.model_type in ("m2m_100", "mbart") and tags:
                tags += [] if vocab else ["<mask>"]
                by_id |= dict(enumerate(tags, len(by_id)))
        return by_id | {number: token for token, number in self.added.items()}

    @functools.cached_property
    def target_ids(self) -> dict[str, int]:
        """The ids of a vocabulary of the target alone; empty without."""
        return _read_ids(self.folder, TARGET_VOCABULARIES)

    def name_of(self, role: str, default: str | None = None) -> str:
        """Returns the name of a special token.

        Args:
            role: str, one of `ROLES`.
            default: str, where no file names it; None for that of `ROLES`.
        """
        name = self.settings.get(role, default or ROLES[role])
        return str(name.get("content", "")) if isinstance(name, dict) else str(name)

    def id_of(self, role: str) -> int | None:
        """Returns the id of a special token, or None.

        Args:
            role: str, one of `ROLES`.
        """
        if role == "unk_token":
            with self.reading():
                model = self.content.get("model", {})
                if isinstance(model.get("unk_id"), int):
                    return model["unk_id"]
        name = self.name_of(role)
        return next((i for i, token in self.tokens.items() if token == name), None)

    def _of_subwords(self, subwords):
        """Numbers the tokens of a SentencePiece model as transformers does."""
        if self.model_type in ("m2m_100", "mbart"):  # as fairseq does
            return dict(enumerate([*FAIRSEQ, *subwords[3:]]))
        if self.model_type == "pegasus":
            offset = self.settings.get("offset", PEGASUS_OFFSET)
            unused = [f"<unk_{i}>" for i in range(2, offset)]
            first = dict(enumerate([*PEGASUS_FIRST, *unused][: offset + 2]))
            return first | dict(enumerate(subwords[2:], offset + 2))
        # The file of mT5 has the sentinels.
        has_sentinels = any("extra_id" in token for token in subwords)
        count = 0 if has_sentinels else self.settings.get("extra_ids", NUM_SENTINELS)
        sentinels = (f"<extra_id_{i}>" for i in reversed(range(count)))
        return dict(enumerate([*subwords, *sentinels]))

    def _language_tags(self):
        """Returns the language tags in the order of their ids."""
        for file in ("special_tokens_map.json", "tokenizer_config.json"):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                tokens = read_json(self.folder / file).get(key) or []
                tokens = [t if isinstance(t, str) else t["content"] for t in tokens]
                tags = [token for token in tokens if LANGUAGE_TAG.fullmatch(token)]
                if tags:
                    return tags
        return []


def _read_ids(folder, names):
    """Reads the first of several files of ids that exists; empty without."""
    return next(filter(None, (read_ids(folder / name) for name in names)), {})
