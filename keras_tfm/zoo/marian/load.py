"""Translation models as Marian trains them, Firefox's among them."""

import math
import os
import pathlib
from typing import Any

from keras_tfm.decode.option_checks import check_stored
from keras_tfm.file_reading import Config, reading
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.zoo import weight_mapping
from keras_tfm.zoo.imported import END_ID, Imported
from keras_tfm.zoo.marian.shortlist import read_shortlist
from keras_tfm.zoo.marian.vocabulary import (
    load_vocabularies,
    read_tokens,
    special_ids,
    vocabulary_files,
)
from keras_tfm.zoo.marian.weights_file import WeightsFile
from keras_tfm.zoo.marian.yaml_file import read_yaml
from keras_tfm.zoo.sentencepiece_models import target_languages
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_loader import WeightLoader
from keras_tfm.zoo.weight_mapping import attention_names

ACTIVATIONS = {"relu": "relu", "swish": "silu"}
# Our layers inside a block; `{}` is W of a matrix and b of its bias.
BLOCK = {
    **attention_names("self_attention", "self_{{}}{}", "q k v o"),
    "self_attention_norm": "self_Wo",
    **attention_names("cross_attention", "context_{{}}{}", "q k v o"),
    "cross_attention_norm": "context_Wo",
    "recurrence.value_dense": "rnn_{}",
    "recurrence.gate_dense": "rnn_{}f",
    "feed_forward.inner_dense": "ffn_{}1",
    "feed_forward.output_dense": "ffn_{}2",
    "feed_forward_norm": "ffn_ffn",
}
# A projection that is not tied, (D, V) or (V, D).
PROJECTION, TRANSPOSED_PROJECTION = "decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt"
# The only values of an architecture that are supported.
SUPPORTED = {
    "type": "transformer",
    "transformer-attention-mask": "default",
    "transformer-disable-position-embeddings": False,
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-decoder-dim-ffn": 0,
    "transformer-no-projection": False,
    "transformer-no-affine": False,
    "transformer-no-bias": False,
    "transformer-pool": False,
    "transformer-rnn-projection": False,
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "lemma-dim-emb": 0,
    "right-left": False,
    "ulr": False,
}
NOT_MODELS = ("lex", "qualityModel")  # starts of the names of other binary files
MAX_CONFIG_BYTES = 100_000


def from_marian(folder: str | os.PathLike, **arguments: Any) -> Imported:
    """Loads a Transformer that Marian has trained.

    From a `.npz`, or a `.bin` in float32, float16 or 8-bit integers, which are
    dequantized; with a decoder of self-attention, or of SSRU as the fast
    students have. Firefox's translation models are of this kind. Ids are
    renumbered, see `from_hugging_face`; decoding starts with zeros, which
    become the embedding of the start token.

    Args:
        folder: path with a configuration of the decoder (`.yml`) that names the
            files; or with one model, its `.spm` vocabularies, and a binary
            shortlist (`lex*.bin`) or none. Where vocabularies are `.yml` or
            plain text, `source.spm` and `target.spm` hold the SentencePiece
            models.
        **arguments: of `Transformer`, such as `dropout`; they override the
            file's.

    Returns:
        `Imported`; a shortlist is one of its options.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ImportError: PyYAML or `protobuf` is not installed.
        ValueError: a file is damaged, of an unsupported architecture, or does
            not fit the others.

    Example:
        ```python
        import tempfile
        from keras_tfm import zoo

        with tempfile.TemporaryDirectory() as folder:
            try:
                imported = zoo.from_marian(folder)
            except FileNotFoundError as error:
                print(error)  # Expected one file *.npz or *.bin in ...
        ```
    """
    folder = pathlib.Path(folder)
    decoder = _decoder_config(folder)
    file = WeightsFile(_model_file(folder, decoder))
    with reading(file.file, "a Transformer of Marian"):
        _check_architecture(file)
        names = _embedding_names(file)
        for name in names:
            if 0 in file.shapes[name]:
                raise ValueError(f"{name!r} is empty, {file.shapes[name]}")
    sizes = [file.shapes[name][0] for name in names]
    files = vocabulary_files(folder, _names(decoder, "vocabs"))
    by_id = list(map(read_tokens, files, sizes))
    permutations = [
        TokenPermutation(size, None, unknown_id, None, end_id)
        for size, (unknown_id, end_id) in zip(
            sizes, map(special_ids, files, by_id), strict=True
        )
    ]
    with (
        reading(file.file, "a Transformer of Marian"),
        WeightLoader(file.file) as loader,
    ):
        defaults = _arguments(file, names, permutations)
        model = Transformer(**{**defaults, **arguments})
        mapping = _weights(model, file, names, permutations)
        weight_mapping.check_coverage(mapping, file.file, file.shapes)
        loader.load(mapping, file.array)
    tokens, vocabularies = load_vocabularies(folder, files, by_id, permutations)
    with reading(decoder.file, "options of decoding"):
        options = dict(check_stored(_options(decoder)))
    shortlist = _shortlist_file(folder, decoder)
    if shortlist is not None:
        shared = files[0] == files[1] and names[0] == names[1]
        options["shortlist"] = read_shortlist(shortlist, permutations, shared)
    return Imported(
        model,
        vocabularies[0],
        classes=None,
        options=options,
        target_vocabulary=vocabularies[1],
        tokens=tokens,
        languages=target_languages(tokens[0][4:]),
        tag_position="target",
        permutations=tuple(permutation.order for permutation in permutations),
    )


def _decoder_config(folder):
    """Reads the configuration that names the model."""
    if not folder.is_dir():
        raise FileNotFoundError(f"`folder` must exist; got {os.fspath(folder)!r}.")
    configs = []
    for file in sorted(folder.glob("*.yml")):
        content = file.read_bytes()
        if len(content) < MAX_CONFIG_BYTES and b"models:" in content:
            configs.append(read_yaml(content, file))
    configs = [config for config in configs if _names(config, "models")]
    # Some folders have a configuration for weights that they lack.
    complete = [
        config
        for config in configs
        if all((folder / name).is_file() for name in _names(config, "models"))
    ]
    return next(iter([*complete, *configs]), Config({}, folder))


def _names(config, key):
    """Lists names of files in the folder, of which one may stand alone."""
    names = config.typed(key, (str, list), [], "a name or a list of names")
    names = [names] if isinstance(names, str) else names
    return [pathlib.PurePath(str(name)).name for name in names]


def _model_file(folder, decoder):
    names = _names(decoder, "models")
    if len(names) > 1:
        raise ValueError(
            f"{decoder.file}: `models` must be one model, not an ensemble; got "
            f"{names!s:.200}. "
            "Combine models in a `decode.Ensemble`."
        )
    files = [folder / name for name in names]
    if not names:
        files = sorted({*folder.glob("*.npz"), *folder.glob("*.bin")})
        files = [file for file in files if not file.name.startswith(NOT_MODELS)]
    if len(files) != 1 or not files[0].is_file():
        raise FileNotFoundError(
            f"`folder` must hold one model, {names[0] if names else '*.npz or *.bin'}; "
            f"got {sorted(path.name for path in folder.iterdir())[:8]} in "
            f"{os.fspath(folder)!r}. Download the model again."
        )
    return files[0]


def _check_architecture(file):
    config = file.config
    wrong = {k: config[k] for k, v in SUPPORTED.items() if config.get(k, v) != v}
    decoder = config.get("transformer-decoder-autoreg", "self-attention")
    if decoder not in ("self-attention", "rnn"):
        wrong["transformer-decoder-autoreg"] = decoder
    if decoder == "rnn" and config.get("dec-cell") != "ssru":
        wrong["dec-cell"] = config.get("dec-cell")
    for name, side in (("enc-depth", "encoder"), ("dec-depth", "decoder")):
        depth = _depth(file, side)
        if config.get(name, depth) != depth:
            wrong[name] = f"{config[name]!s:.20}, and {depth} in the weights"
    steps = _steps(config)
    if steps not in (("", "an", "", ""), ("n", "a", "n", "")):
        wrong["pre- and postprocess, top, embedding"] = steps
    if wrong:
        raise ValueError(
            f"{file.file} must be a Transformer as in the paper, post- or pre-norm, "
            f"with self-attention or SSRU in its decoder; got {wrong!s:.500}."
        )


def _depth(file, side):
    """Counts the layers that have weights."""
    stem = f"{side}_l"
    numbers = (n[len(stem) :].split("_")[0] for n in file.shapes if n.startswith(stem))
    return len({number for number in numbers if number.isdigit()})


def _steps(config):
    """Returns the steps around a layer and at the ends, without dropout."""
    names = ("preprocess", "postprocess", "postprocess-top", "postprocess-emb")
    steps = (config.get(f"transformer-{name}") or "" for name in names)
    return tuple(str(step).replace("d", "") for step in steps)


def _embedding_names(file):
    if "Wemb" in file:
        return "Wemb", "Wemb"
    return "encoder_Wemb", "decoder_Wemb"


def _arguments(file, names, permutations):
    config, is_shared = file.config, names[0] == names[1]
    is_tied = PROJECTION not in file and TRANSPOSED_PROJECTION not in file
    tie = ("all" if is_shared else "target") if is_tied else None
    tie = "inputs" if is_shared and not is_tied else tie
    is_ssru = config.get("transformer-decoder-autoreg") == "rnn"
    activation = config.string("transformer-ffn-activation", "swish")
    return {
        "vocabulary_size": permutations[0].size,
        "target_vocabulary_size": permutations[1].size,
        "num_layers": (config.integer("enc-depth"), config.integer("dec-depth")),
        "embedding_dim": file.shapes[names[0]][1],
        "intermediate_dim": config.integer("transformer-dim-ffn"),
        "num_heads": config.integer("transformer-heads"),
        "tie": tie,
        "positions": SinusoidalPositions("halves"),
        "scale_embedding": True,
        "logits_bias": True,
        "activation": ACTIVATIONS[activation],
        "normalize_first": _steps(config)[0] == "n",
        "epsilon": 1e-6,
        "decoder_recurrence": "ssru" if is_ssru else None,
    }


def _weights(model, file, names, permutations):
    suffix = "_pre" if model.config["normalize_first"] else ""
    # Without the suffix, the normalization after an SSRU is named as one of the
    # feed-forward network.
    table = {**BLOCK, "recurrence_norm": "rnn" if suffix else "rnn_ffn"}
    omits_bias = file.config.get("output-omit-bias")
    is_transposed = PROJECTION not in file
    mapping = weight_mapping.embeddings(model, names, permutations)
    kernel = TRANSPOSED_PROJECTION if is_transposed else PROJECTION
    bias = None if omits_bias else "decoder_ff_logit_out_b"
    mapping += weight_mapping.logits(
        model, permutations[1], kernel, bias, is_transposed
    )

    def _layers(layers, name):
        if hasattr(layers[0], "kernel"):
            names = name.format("W"), name.format("b")
            return weight_mapping.projections(layers, *names)
        return _norm(layers[0], name, suffix)

    for side, _, layers, norm in weight_mapping.stacks_of(model):
        for number, block in enumerate(layers, 1):
            stem = f"{side}_l{number}_"
            mapping += weight_mapping.blocks([block], table, stem, _layers)
        if norm is not None:
            mapping += _norm(norm, f"{side}_top", "")
    return mapping


def _norm(norm, name, suffix):
    names = f"{name}_ln_scale{suffix}", f"{name}_ln_bias{suffix}"
    return weight_mapping.normalization(norm, *names)


def _options(config):
    """Returns how the model is decoded."""
    beam_size = config.integer("beam-size", 1)
    factor = config.number("max-length-factor", 3)
    if beam_size < 1 or factor <= 0:
        raise ValueError(
            f"{config.file}: `beam-size` and `max-length-factor` must be above 0; got "
            f"{beam_size} and {factor}."
        )
    if config.number("word-penalty", 0):
        raise ValueError(
            f"{config.file}: `word-penalty` must be 0; got "
            f"{config.number('word-penalty', 0)}. Set it to 0: scores then differ from "
            "Marian's."
        )
    return {
        "beam_size": beam_size,
        "length_penalty": float(config.number("normalize", 0)),
        "max_decoding_length": (math.ceil(factor), 0),
        "source_suffix": [END_ID],
        "disable_unk": not config.get("allow-unk", False),
    }


def _shortlist_file(folder, config):
    names = _names(config, "shortlist")
    names = names or sorted(path.name for path in folder.glob("lex*.bin"))
    if not names:
        return None
    file = folder / names[0]
    if not file.is_file():
        raise FileNotFoundError(
            f"The configuration names the shortlist {file}, which does not exist. "
            "Download it, or delete `shortlist` from the configuration."
        )
    if file.suffix in (".gz", ".txt"):
        raise ValueError(
            f"{file}: a shortlist must be binary. Delete it from the configuration, "
            "and pass the unpacked text to `decode.Shortlist.read`."
        )
    return file
