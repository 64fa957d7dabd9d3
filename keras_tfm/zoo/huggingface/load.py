"""Models that `save_pretrained` of transformers has written."""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.zoo.huggingface import bart, bert, generation, gpt2, hub, t5
from keras_tfm.zoo.huggingface.family import Checkpoint, Family
from keras_tfm.zoo.huggingface.tokenizer_folder import TokenizerFolder
from keras_tfm.zoo.huggingface.weights_folder import WeightsFolder
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.weight_loader import WeightLoader
from keras_tfm.zoo.weight_mapping import check_coverage

FAMILIES = (bart.FAMILY, bert.FAMILY, gpt2.FAMILY, t5.FAMILY)
# Architectures that are others by another name, with another vocabulary.
SAME_AS = {"xlm-roberta": "roberta", "camembert": "roberta"}
# Heads by the ends of the names in `architectures`, the longest first.
HEADS = {
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "masked_lm",
    "ForSequenceClassification": "classifier",
    "ForConditionalGeneration": "seq2seq",
    "GPT2LMHeadModel": "causal_lm",
    "T5WithLMHeadModel": "seq2seq",
    "MTModel": "seq2seq",
    "LMHeadModel": None,  # of others it is not read, though it ends with Model
    "Model": "encoder",
}


def from_hugging_face(
    source: str | os.PathLike,
    head: str | None = None,
    num_classes: int | None = None,
    **arguments: Any,
) -> Imported:
    """Loads a model of transformers.

    Encoders: BERT, DistilBERT, MiniLM, RoBERTa, XLM-R and CamemBERT, with their
    heads. Models that generate: Marian (OPUS-MT), Pegasus, M2M100, NLLB, mBART,
    BART, FSMT (WMT 2019), T5, mT5 and umT5 as `Transformer`, and GPT-2 as
    `CausalLM`, with their vocabularies (Marian's without the punctuation rules
    of sacremoses; FSMT's needs that library). Ids of
    models that generate are renumbered, so that padding, unknown, start and end
    are 0 to 3; where decoding starts with padding or the end token, the start
    is a row more. `Imported.options_for` sets the tags of two languages, or
    MADLAD-400's tag of the target.

    Tokens that a user has added to a tokenizer are cut out of text and written
    back as transformers does it; the vocabulary is a `TokenizersVocabulary`
    then. The tokenizers of transformers that run in Python (M2M100, Marian)
    and in Rust disagree on where a `single_word` token ends: here it ends as in
    Rust. Text that spells a token of the model's own, such as `</s>`, is text.

    Weights load completely or not at all: an error names each tensor that is
    missing or unknown. Heads that are not asked for are left out. Safetensors
    are preferred; without them, the hub's automatic conversion to safetensors
    is looked for, and then `pytorch_model.bin`. A pickle is never run: a reader
    that knows nothing but tensors takes its place.

    `options` of the result has what `generation_config.json`, or without it
    `config.json`, says of decoding. `forced_eos_token_id` and the limit of 20
    tokens where none is set are not taken over. Options that are not supported
    raise an error. Where tokens are suppressed, results equal those of
    transformers with `renormalize_logits`.

    Args:
        source: path of a folder with `config.json`, `model.safetensors` or
            `pytorch_model.bin` (or shards and their index), and a vocabulary:
            `tokenizer.json`; `source.spm`, `target.spm` and `vocab.json` of
            Marian; a SentencePiece model of the others; BERT's `vocab.txt`, or
            GPT-2's `vocab.json` and `merges.txt`. Or the
            name of a repository such as `"Helsinki-NLP/opus-mt-en-de"`, also
            with `"@revision"`, which huggingface-hub downloads once.
        head: `"encoder"`, `"masked_lm"`, `"classifier"`, `"seq2seq"`,
            `"causal_lm"`; None for the one that the config names.
        num_classes: int, for a new classification layer; or None.
        **arguments: of the model, such as `dropout`, over those of the config.

    Returns:
        `Imported`.

    Raises:
        FileNotFoundError: the folder lacks its config or weights.
        ImportError: `safetensors`, `tokenizers` or `huggingface-hub` is needed
            and not installed.
        ValueError: a file is damaged, of an unsupported architecture, or does
            not fit the others.

    Example:
        ```python
        # requires: transformers
        import tempfile
        import transformers
        from keras_tfm import zoo

        config = transformers.BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
        with tempfile.TemporaryDirectory() as folder:
            transformers.BertModel(config).save_pretrained(folder)
            encoder = zoo.from_hugging_face(folder).model
        print(encoder.embedding_dim)  # 16
        ```
    """
    folder, weights_folder = hub.locate(source)
    tensors = WeightsFolder(weights_folder)
    config, family, kind = read_config(folder, source, tensors.shapes)
    if num_classes is not None and head is None:
        head = "classifier"
    head = head or _head(config, family)
    is_new = num_classes is not None
    if head not in family.heads or (is_new and head != "classifier"):
        raise ValueError(
            f"`head` must be one of {family.heads} for a {config['model_type']}, and "
            f"`num_classes` needs a classifier; got head={head!r}, num_classes="
            f"{num_classes}."
        )
    check_sizes(config, tensors.shapes)
    tokenizer = TokenizerFolder(folder, kind)
    checkpoint = Checkpoint(folder, config, tensors, head, num_classes, tokenizer)
    if family.permutations is not None:
        with tokenizer.reading():
            _complete_ids(config, tokenizer)
            permutations = family.permutations(config, tokenizer)
        checkpoint.permutation, checkpoint.target_permutation = permutations
    names = [config.file.name, *tensors.names]
    with reading(folder, "a model of transformers", names=names):
        with WeightLoader(folder) as loader:
            model = family.build(
                checkpoint, {**family.arguments(checkpoint), **arguments}
            )
            mapping = family.weights(model, checkpoint)
            advice = ", or pass another `head`" if family.heads[1:] else ""
            check_coverage(mapping, folder, tensors.shapes, family.ignored, advice)
            tensors.check_floats({name for w in mapping for name in w.tensors})
            loader.load(mapping, tensors.array)
        return Imported(**_fields(family, checkpoint, model))


def _fields(family, checkpoint, model):
    fields = {"classes": None}
    target = checkpoint.target_permutation
    if family.decoding is not None:
        fields["options"] = {
            **generation.read_options(checkpoint.folder, checkpoint.config, target),
            **family.decoding(checkpoint),
        }
        fields["permutations"] = (checkpoint.permutation.order, target.order)
    with checkpoint.tokenizer.reading():
        vocabulary = family.vocabulary(checkpoint, model)
        options = vocabulary.pop("options", {})
        _check_tokens(vocabulary, model)
    if options:
        fields["options"] |= options
    return {"model": model, **fields, **vocabulary}


def _check_tokens(vocabularies, model):
    for side in ("", "target_"):
        tokens = vocabularies.get(f"{side}vocabulary")
        rows = getattr(model, f"{side}vocabulary_size", math.inf)
        if tokens is not None and tokens.size > rows:
            raise ValueError(f"it must have at most {rows} tokens; got {tokens.size}")


def read_config(
    folder: pathlib.Path,
    source: str | os.PathLike,
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Config, Family, str]:
    """Reads `config.json`, and what other files say in its place.

    Args:
        folder: path.
        source: str or path. The name of the model, in which the first configs
            have their architecture.
        shapes: dict from the names of the tensors.

    Returns:
        The config, the family, and the architecture by its first name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the architecture is unknown.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"No `config.json` in {os.fspath(folder)!r}; it has "
            f"{sorted(path.name for path in folder.iterdir())[:8]}. Pass a folder "
            "that `save_pretrained` of transformers has written."
        )
    config = Config(read_json(file), file)
    families = {name: family for family in FAMILIES for name in family.model_types}
    if "model_type" not in config:
        names = sorted([*families, *SAME_AS], key=len)
        config["model_type"] = _model_type(config, source, shapes, names)
    name = kind = config["model_type"]
    if isinstance(name, str) and name in SAME_AS:
        name = config["model_type"] = SAME_AS[name]
    if not isinstance(name, str) or name not in families:
        raise ValueError(
            f"{file}: `model_type` must be one of {sorted([*families, *SAME_AS])} "
            f"(MiniLM is a bert); got {name!r}."
        )
    for side, size in (("src", "vocab_size"), ("tgt", "decoder_vocab_size")):
        if f"{side}_vocab_size" in config:  # of FSMT
            config[size] = config[f"{side}_vocab_size"]
            config.setdefault("share_encoder_decoder_embeddings", False)
    end = config.get("eos_token_id")
    if isinstance(end, list) and len(end) == 1:
        config["eos_token_id"] = end[0]
    start = "decoder_start_token_id"
    decoding = Config(read_json(folder / generation.FILE), folder / generation.FILE)
    if start in decoding:
        config[start] = decoding.integer(start)
    return config, families[name], kind


def _model_type(config, source, shapes, names):
    """Infers the architecture, which the first configs did not name."""
    architectures = config.typed("architectures", list, [])
    texts = [str(architecture).lower() for architecture in architectures]
    texts += [name.split(".")[0] for name in shapes if name.count(".") > 2]
    plain = {name: name.replace("_", "").replace("-", "") for name in names}
    for name in reversed(names):  # the longest first
        if any(text.startswith(plain[name]) for text in texts):
            return name
    # As transformers once did.
    text = os.path.basename(os.path.normpath(os.fspath(source))).lower()
    return next((name for name in reversed(names) if name in text), None)


def _complete_ids(config, tokenizer):
    """Takes ids that the config lacks, or has outside the vocabulary."""
    size = config.integer("vocab_size")
    for role in ("pad_token", "unk_token", "eos_token"):
        number = config.get(f"{role}_id")
        if role == "unk_token":
            if number is None:
                number = tokenizer.id_of(role)
        elif isinstance(number, int) and not 0 <= number < size:
            number = tokenizer.id_of(role)
        else:
            continue
        config.pop(f"{role}_id", None)
        if isinstance(number, int) and 0 <= number < size:
            config[f"{role}_id"] = number


def _head(config, family):
    for name in map(str, config.typed("architectures", list, [])):
        head = next((h for end, h in HEADS.items() if name.endswith(end)), None)
        if head is None:
            raise ValueError(
                f"{config.file}: `architectures` must be of the heads "
                f"{sorted({*HEADS.values()} - {None})}; got {name!r}. Pass "
                f"head={family.heads[0]!r} to load the model without its head."
            )
        # Some are saved without the layer that makes logits, which is tied.
        return family.heads[0] if head == "encoder" else head
    return family.heads[0]


def check_sizes(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Rejects what would make a model much larger than its file.

    Args:
        config: `Config`.
        shapes: dict from the names of the tensors to their shapes.

    Raises:
        ValueError: the config has more rows or layers than the tensors.
    """
    # An embedding matrix of no columns has no bytes for its rows.
    rows = max((s[0] for s in shapes.values() if s and 0 not in s), default=0)
    limits = {"vocab_size": rows, "decoder_vocab_size": rows}
    # Each layer has tensors of its own.
    limits |= dict.fromkeys((n for n in config if "layer" in n), len(shapes))
    for name, limit in limits.items():
        size = config.get(name)
        if isinstance(size, (int, float)) and size > limit:
            raise ValueError(
                f"{config.file}: `{name}` must fit the weights, which have {limit}; "
                f"got {size}. Download both from one model."
            )
