"""Models that `save_pretrained` of transformers has written."""

import os
import pathlib

from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo import bart, bert, generation, gpt2, pieces, plans, t5
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.json_file import check_kinds, read_json, understood
from keras_tfm.zoo.weights import Weights

FAMILIES = {
    "bert": bert,
    "distilbert": bert,
    "roberta": bert,
    "bart": bart,
    "gpt2": gpt2,
    "m2m_100": bart,
    "marian": bart,
    "mbart": bart,
    "mt5": t5,
    "pegasus": bart,
    "t5": t5,
}
# Which settings are of which kind.
KINDS = (
    (
        {
            *("d_ff", "d_kv", "d_model", "decoder_attention_heads", "decoder_ffn_dim"),
            *("decoder_layers", "decoder_start_token_id", "decoder_vocab_size", "dim"),
            *("encoder_attention_heads", "encoder_ffn_dim", "encoder_layers"),
            *("eos_token_id", "bos_token_id", "pad_token_id", "unk_token_id"),
            *("hidden_dim", "hidden_size", "intermediate_size", "n_embd", "n_head"),
            *("max_position_embeddings", "n_heads", "n_inner", "n_layer", "n_layers"),
            *("n_positions", "num_attention_heads", "num_decoder_layers", "num_heads"),
            *("num_hidden_layers", "num_layers", "relative_attention_max_distance"),
            *("relative_attention_num_buckets", "type_vocab_size", "vocab_size"),
        },
        int,
        "a whole number",
    ),
    (
        {
            *("activation_dropout", "attention_dropout", "attn_pdrop", "dropout"),
            *("attention_probs_dropout_prob", "dropout_rate", "hidden_dropout_prob"),
            *("classifier_dropout", "seq_classif_dropout"),
            *("layer_norm_eps", "layer_norm_epsilon", "resid_pdrop"),
        },
        (int, float),
        "a number",
    ),
    (
        {
            *("activation", "activation_function", "dense_act_fn", "hidden_act"),
            *("feed_forward_proj", "position_embedding_type", "problem_type"),
        },
        str,
        "a name",
    ),
    ({"architectures"}, list, "a list"),
    ({"id2label"}, dict, "an object"),
)
HUB = "hf://"  # before the name of a repository
# What tokenizers are called that have marks of languages.
MARKED = ("M2M100", "MBart", "Nllb")
# Their pieces are of bytes, by rules of the library tokenizers.
BYTE_LEVEL = ("bart", "gpt2")
# What `architectures` of a configuration ends with.
HEADS = {
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "masked_lm",
    "ForSequenceClassification": "classifier",
    "ForConditionalGeneration": "seq2seq",
    "GPT2LMHeadModel": "causal_lm",
    "T5WithLMHeadModel": "seq2seq",
    "MTModel": "seq2seq",
    "LMHeadModel": None,  # of another: no encoder, though so it ends
    "Model": "encoder",
}


def from_hugging_face(source, head=None, num_classes=None, **settings) -> Imported:
    """Loads a model of transformers.

    Encoders: BERT, DistilBERT, MiniLM, RoBERTa, with their heads. Models that
    generate, as `Transformer`: Marian (OPUS-MT), Pegasus, M2M100, NLLB, mBART,
    BART, T5 and mT5; and GPT-2 as `CausalLM`; with their vocabularies (of
    Marian without the change of punctuation by sacremoses, which its tokenizer
    makes where that is installed). Their
    ids are put into the order that `Vocabulary` has here: padding, the unknown
    token, start and end are 0 to 3. Where decoding starts with padding or the
    end, the start is one row more. Of a model of many languages
    `Imported.between` gives the marks of two.

    Weights come from safetensors alone. Whatever of them is missing or unknown
    is named, and nothing is loaded; heads that are not asked for are left.

    `search` of the result has what `generation_config.json` says of decoding,
    or `config.json` where there is no such file, `max_length` and
    `max_new_tokens` among it. Not so `forced_eos_token_id`, which gives an end
    to what comes to the limit: here it is cut. Nor are 20 tokens the limit
    where none is said. What a search here has nothing for is refused. Where
    tokens are forbidden, equal answers take `renormalize_logits` of theirs.

    Args:
        source: path of a folder with `config.json`, `model.safetensors` and
            `tokenizer.json`, or `source.spm`, `target.spm` and `vocab.json` of
            Marian, or a SentencePiece model of the others: BERT's `vocab.txt`,
            and GPT-2's `vocab.json` and `merges.txt`, give no vocabulary where
            there is no `tokenizer.json`. Or the name of a repository such as
            `"Helsinki-NLP/opus-mt-en-de"`, with `"@revision"` after it or
            without, which is fetched once into the cache of huggingface-hub.
        head: `"encoder"`, `"masked_lm"`, `"classifier"`, `"seq2seq"`,
            `"causal_lm"`, or None for what the configuration names.
        num_classes: int or None. Of a classifier with a new last projection.
        **settings: of the `Encoder` or `Transformer`, such as `dropout`, over
            those of the configuration.

    Returns:
        `Imported`.

    Raises:
        FileNotFoundError: the folder lacks its configuration or weights.
        ImportError: `safetensors`, `tokenizers` or `huggingface-hub` is wanted
            and not installed.
        ValueError: a file is damaged, of an architecture that is not read, or
            does not fit the others.
    """
    folder = _folder(source)
    config = _config(folder)
    if num_classes is not None and head is None:
        head = "classifier"
    family = FAMILIES[config["model_type"]]
    start = generation.given(folder).get("decoder_start_token_id")
    if start is not None:
        config["decoder_start_token_id"] = start
    if config["model_type"] == "marian":  # whose configuration does not say it
        unknown = read_json(folder / "vocab.json").get("<unk>", 1)
        config.setdefault("unk_token_id", unknown)
    check_kinds(folder, config, KINDS)  # with what other files say
    head = head or _head(folder, config, family)
    if head not in family.HEADS or (num_classes is not None and head != "classifier"):
        raise ValueError(
            f"`head` is one of {family.HEADS} for a {config['model_type']}, and "
            f"`num_classes` of a classifier. Received: head={head!r}, num_classes="
            f"{num_classes}."
        )
    weights = Weights(folder)
    _check_sizes(folder, config, weights.shapes)
    try:
        with plans.Filling(folder) as filling:
            model, plan, ids = family.model_of(
                config, weights, head, num_classes, settings
            )
            advice = ", or ask for another `head`" if family.HEADS[1:] else ""
            plans.check(plan, folder, weights.shapes, family.LEFT, advice)
            weights.check_floats({name for _, names, _ in plan for name in names})
            filling.fill(plan, weights.array)
    except KeyError as error:
        raise ValueError(
            f"{folder}: the configuration lacks {error}. Received: "
            f"{sorted(config)}. Fetch `config.json` again."
        ) from error
    if ids is not None:
        with understood(folder, "what it says of decoding"):
            settings = generation.search(folder, config, ids)
        with understood(folder, "its vocabulary"):
            return _with_vocabulary(folder, config, model, ids, settings)
    vocabulary = _vocabulary(folder, model)
    return Imported(model, vocabulary, _classes(config, model, num_classes))


def _with_vocabulary(folder, config, model, ids, settings):
    given = {"orders": (ids.order, ids.order)}
    # One that is written here may have one vocabulary for both sides.
    sides = (folder / "vocab.json").is_file() or any(folder.glob("*.spm"))
    if config["model_type"] == "marian" and sides:
        source, target, languages = pieces.marian(folder, config, ids)
        given |= {"target_vocabulary": target, "languages": languages}
        given["mark"] = "target"
    elif config["model_type"] in BYTE_LEVEL:
        source = pieces.byte_level(folder, config, ids)
    else:
        source, languages, mark = pieces.multilingual(folder, config, ids)
        given |= {"languages": languages, "mark": mark}
        if source is not None and not languages:
            settings |= pieces.around(folder, ids)
        _check_start(folder, config, given)
        if source is not None and not languages:
            _check_needs_none(folder)
    return Imported(model, source, None, settings, **given)


def _check_needs_none(folder):
    """Refuses a tokenizer of many languages without their marks."""
    kind = read_json(folder / "tokenizer_config.json").get("tokenizer_class", "")
    if str(kind).startswith(MARKED):
        raise ValueError(
            f"{folder}: a {kind} puts marks of languages around a text. Received: none "
            "in `tokenizer.json`, `special_tokens_map.json` and "
            "`tokenizer_config.json`. Fetch these too."
        )


def _check_start(folder, config, given):
    start = config.get("decoder_start_token_id")
    if config["model_type"] == "mbart" and given["mark"] == "after" and start is None:
        raise ValueError(
            f"{folder}: mBART of 25 languages begins a translation with the mark of "
            "its language. Received: no decoder_start_token_id. Add it to "
            "`config.json`: the id of that mark."
        )


def _folder(source):
    name = os.fspath(source)
    folder = pathlib.Path(name)
    if folder.is_dir() and not name.startswith(HUB):
        return folder
    name, _, revision = name.removeprefix(HUB).partition("@")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise FileNotFoundError(
            "A folder, or a repository as 'owner/name', is wanted. Received: "
            f"{name!r}, which is neither. Check the path."
        )
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}, and to fetch a repository huggingface-hub "
            f"is needed ({error}). Install `keras-tfm[zoo]`."
        ) from error
    files = ["*config.json", "tokenizer.json", "*.safetensors", "*.index.json"]
    files += ["*.spm", "*vocab.json", *pieces.FILES, "special_tokens_map.json"]
    try:
        folder = pathlib.Path(
            huggingface_hub.snapshot_download(
                name, revision=revision or None, allow_patterns=files
            )
        )
    except OSError as error:
        raise FileNotFoundError(
            f"The repository {name!r} cannot be fetched. Received: {error}. Check its "
            "name, the network and the token of huggingface-hub."
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"The repository {name!r} has no safetensors on this revision, and pickles "
            "are not read. Look for one under its pull requests, and name it as "
            f"'{name}@refs/pr/1'."
        )
    return folder


def _config(folder):
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"No `config.json` in {os.fspath(folder)!r}. Received: "
            f"{sorted(path.name for path in folder.iterdir())[:8]}. Name a folder "
            "that `save_pretrained` of transformers has written."
        )
    config = read_json(file)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"{file}: models that are read: {sorted(FAMILIES)} (MiniLM is a bert). "
            f"Received: model_type={kind!r}."
        )
    config = {name: value for name, value in config.items() if value is not None}
    end = config.get("eos_token_id")
    if isinstance(end, list) and len(end) == 1:
        config["eos_token_id"] = end[0]
    check_kinds(file, config, KINDS)
    return config


def _head(folder, config, family):
    for name in map(str, config.get("architectures") or []):
        head = next((h for end, h in HEADS.items() if name.endswith(end)), None)
        if head is None:
            raise ValueError(
                f"{folder}: heads that are read: {sorted({*HEADS.values()} - {None})}. "
                f"Received: {name!r}. Ask for `head={family.HEADS[0]!r}`, without it."
            )
        # Some are saved without what gives their logits, which is tied.
        return family.HEADS[0] if head == "encoder" else head
    return family.HEADS[0]


def _check_sizes(folder, config, shapes):
    """Refuses what would make a model larger than its file."""
    # A table of no width has no bytes for its rows.
    tables = (shape for shape in shapes.values() if shape and 0 not in shape)
    rows = max((shape[0] for shape in tables), default=0)
    most = {"vocab_size": rows, "decoder_vocab_size": rows}
    # Each layer has tensors of its own.
    most |= dict.fromkeys((n for n in config if "layer" in n), len(shapes))
    for name, limit in most.items():
        size = config.get(name)
        if name in most and isinstance(size, (int, float)) and size > limit:
            raise ValueError(
                f"{folder}: weights and configuration do not fit. Received: {name}="
                f"{size}, and {limit} there in the weights. Fetch both from one model."
            )


def _vocabulary(folder, model):
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary = TokenizersVocabulary.load(file)
    encoder = getattr(model, "encoder", model)
    if vocabulary.size > encoder.vocabulary_size:
        raise ValueError(
            f"{file}: the vocabulary has more pieces than the model has rows. "
            f"Received: {vocabulary.size} pieces, vocab_size="
            f"{encoder.vocabulary_size}. Fetch both from one model."
        )
    if vocabulary.pad_id != encoder.config["pad_id"]:
        raise ValueError(
            f"{file}: texts are padded with another id than the model masks. Received: "
            f"{vocabulary.pad_id}, pad_id={encoder.config['pad_id']}. Pass pad_id="
            f"{vocabulary.pad_id} if the model was trained with it."
        )
    return vocabulary


def _classes(config, model, num_classes):
    count = getattr(model, "num_classes", None)
    if count is None or num_classes is not None:
        return None
    names = config.get("id2label") or {}
    return [str(names.get(str(i), f"LABEL_{i}")) for i in range(count)]
