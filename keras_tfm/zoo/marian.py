"""Translation models as Marian trains them, Firefox's among them."""

import math
import os
import pathlib
import struct

import numpy as np

from keras_tfm.decode import Shortlist
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.zoo import pieces, plans
from keras_tfm.zoo.imported import Imported
from keras_tfm.zoo.json_file import check_kinds
from keras_tfm.zoo.marian_file import MarianFile, vocabulary_of, yaml_of

UNKNOWN_ID, END_ID = 1, 0
# Which settings are of which kind, of an architecture and of a decoder.
KINDS = ((("transformer-dim-ffn", "transformer-heads"), int, "a whole number"),)
DECODER_KINDS = (
    (("beam-size",), int, "a whole number"),
    (("max-length-factor", "normalize", "word-penalty"), (int, float), "a number"),
    (("models", "shortlist", "vocabs"), (str, list), "a name, or a list of them"),
)
ACTIVATIONS = {"relu": "relu", "swish": "silu"}
# Names inside a block, ours and theirs.
ATTENTION = {
    "query_dense": ("Wq", "bq"),
    "key_dense": ("Wk", "bk"),
    "value_dense": ("Wv", "bv"),
    "output_dense": ("Wo", "bo"),
}
# A projection that is not tied: as it was, (D, V), and as it is, (V, D).
OUTPUTS = ("decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt")
# What is read of an architecture, and the only value of it that is.
PLAIN = {
    "type": "transformer",
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
CUTTERS = ("source.spm", "target.spm")  # beside a vocabulary in YAML
NO_MODELS = ("lex", "qualityModel")  # what such files begin with
SHORTLIST = 0xF11A48D5013417F5  # the first number of its file
WIDEST = 1_000  # target tokens for one of the source
LARGER = 30  # times, that its table may be than its file: most rows are full


def from_marian(folder, **settings) -> Imported:
    """Loads a Transformer that Marian has trained.

    From a `.npz`, or a `.bin` in float32, float16 or 8-bit integers, which are
    turned back to float32; with a decoder of self-attention, or of SSRU as the
    fast students have. Firefox's translation models are of this kind. Ids are
    put into the order that `Vocabulary` has here, see `from_hugging_face`;
    decoding starts with zeros, for which the start has a row.

    Args:
        folder: path with a configuration of the decoder (`.yml`) that names the
            files, or with one model, its `.spm` vocabularies, and a binary
            shortlist (`lex*.bin`) or none. Where vocabularies are `.yml`, the
            pieces of SentencePiece are those of `source.spm` and `target.spm`.
        **settings: of `Transformer`, such as `dropout`, over those of the file.

    Returns:
        `Imported`; a shortlist is one of its settings of the search.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ImportError: PyYAML or `protobuf` is not installed.
        ValueError: a file is damaged, of an architecture that is not read, or
            does not fit the others.
    """
    folder = pathlib.Path(folder)
    given = _decoder_config(folder)
    file = MarianFile(_only(folder, given.get("models"), ("*.npz", "*.bin")))
    config = _checked(file)
    tables = _tables(file)
    empty = [name for name in tables if 0 in file.shapes.get(name, ())]
    if empty:
        raise ValueError(
            f"{file.file}: tables of words have rows and columns. Received: {empty[0]} "
            f"of shape {file.shapes[empty[0]]}. Fetch it again."
        )
    try:
        ids = tuple(
            plans.Ids(file.shapes[name][0], None, UNKNOWN_ID, None, END_ID)
            for name in tables
        )
        with plans.Filling(file.file) as filling:
            model = Transformer(**{**_settings(file, config, tables, ids), **settings})
            plan = _plan(model, file, config, tables, ids)
            plans.check(plan, file.file, file.shapes)
            filling.fill(plan, file.array)
    except KeyError as error:
        raise ValueError(
            f"{file.file}: weights and configuration do not fit. Received: {error} "
            "missing. Fetch it again."
        ) from error
    tokens, vocabularies, shared = _vocabularies(folder, given, ids)
    search = _search(given)
    shortlist = _shortlist(folder, given, ids, shared and tables[0] == tables[1])
    if shortlist is not None:
        search["shortlist"] = shortlist
    languages = pieces.targets_in(tokens[0][4:])
    return Imported(
        model,
        vocabularies[0],
        None,
        search,
        vocabularies[1],
        tokens,
        languages,
        mark="target",
        orders=tuple(side.order for side in ids),
    )


def _decoder_config(folder):
    """What is said of decoding, in the file that names the model."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"A folder is wanted. Received: {os.fspath(folder)!r}, which is none."
        )
    read = []
    for file in sorted(folder.glob("*.yml")):
        content = file.read_bytes()
        if len(content) < 100_000 and b"models:" in content:
            found = yaml_of(content, file)
            found = {name: value for name, value in found.items() if value is not None}
            check_kinds(file, found, DECODER_KINDS)
            read.append(found)
    read = [one for one in read if one.get("models")]
    # Some folders have one for each kind of weights, and not all of these.
    there = [one for one in read if _is_there(folder, one["models"])]
    return next(iter([*there, *read]), {})


def _is_there(folder, names):
    paths = [folder / pathlib.PurePath(str(name)).name for name in _listed(names)]
    return all(path.is_file() for path in paths)


def _listed(names):
    """Names, of which one may stand alone."""
    return [names] if isinstance(names, str) else names


def _only(folder, names, patterns):
    """The one file of a kind, by its name or by how it is called."""
    if names:
        names = _listed(names)
        if len(names) != 1:
            raise ValueError(
                f"{folder}: one model is read, and no ensemble. Received: {names}. "
                "Read each from a folder of its own, and join them by "
                "`decode.Ensemble`."
            )
        found = [folder / pathlib.PurePath(str(names[0])).name]
    else:
        found = sorted({path for one in patterns for path in folder.glob(one)})
        found = [p for p in found if not p.name.startswith(NO_MODELS)]
    if len(found) != 1 or not found[0].is_file():
        raise FileNotFoundError(
            f"One file {' or '.join(patterns)} is wanted in {os.fspath(folder)!r}. "
            f"Received: {[path.name for path in found]}; there are "
            f"{sorted(path.name for path in folder.iterdir())[:8]}."
        )
    return found[0]


def _checked(file):
    """The architecture, if it is one that is read."""
    config = file.config
    check_kinds(file.file, config, KINDS)
    wrong = {k: config[k] for k, v in PLAIN.items() if config.get(k, v) != v}
    kind = config.get("transformer-decoder-autoreg", "self-attention")
    if kind not in ("self-attention", "rnn"):
        wrong["transformer-decoder-autoreg"] = kind
    if kind == "rnn" and config.get("dec-cell") != "ssru":
        wrong["dec-cell"] = config.get("dec-cell")
    if str(config.get("transformer-ffn-activation", "swish")) not in ACTIVATIONS:
        wrong["transformer-ffn-activation"] = config["transformer-ffn-activation"]
    for side in ("enc", "dec"):
        name, depth = f"{side}-depth", _depth(file, side)
        if config.get(name, depth) != depth:
            wrong[name] = f"{config[name]!s:.20}, and {depth} in the weights"
    order = _order(config)
    if order not in (("", "an", "", ""), ("n", "a", "n", "")):
        wrong["pre- and postprocess, top, embedding"] = order
    if wrong:
        raise ValueError(
            f"{file.file}: a Transformer as the paper's is read, post-norm (dan) or "
            "pre-norm with a norm at the top, its decoder with self-attention or SSRU. "
            f"Received: {wrong!s:.500}."
        )
    return config


def _depth(file, side):
    """How many layers there are weights of."""
    stem = {"enc": "encoder_l", "dec": "decoder_l"}[side]
    numbers = (n[len(stem) :].split("_")[0] for n in file.shapes if n.startswith(stem))
    return len({number for number in numbers if number.isdigit()})


def _order(config):
    """What is done before and after a layer, and at the ends, but dropout."""
    names = ("preprocess", "postprocess", "postprocess-top", "postprocess-emb")
    found = (config.get(f"transformer-{name}") or "" for name in names)
    return tuple(str(one).replace("d", "") for one in found)


def _tables(file):
    """The names of the tables of source and target."""
    if "Wemb" in file:
        return "Wemb", "Wemb"
    return "encoder_Wemb", "decoder_Wemb"


def _settings(file, config, tables, ids):
    output = any(name in file for name in OUTPUTS)
    tie = {(True, False): "all", (False, False): "target", (True, True): "inputs"}
    return {
        "vocabulary_size": ids[0].size,
        "target_vocabulary_size": ids[1].size,
        "num_layers": (config["enc-depth"], config["dec-depth"]),
        "embedding_dim": file.shapes[tables[0]][1],
        "intermediate_dim": config["transformer-dim-ffn"],
        "num_heads": config["transformer-heads"],
        "tie": tie.get((tables[0] == tables[1], output)),
        "positions": SinusoidalPositions("halves"),
        "scale_embedding": True,
        "logits_bias": True,
        "activation": ACTIVATIONS[config.get("transformer-ffn-activation", "swish")],
        "normalize_first": _order(config)[0] == "n",
        "epsilon": 1e-6,
        "decoder_recurrence": "ssru"
        if config.get("transformer-decoder-autoreg") == "rnn"
        else None,
    }


def _plan(model, file, config, tables, ids):
    plan = [(model.target_embedding.embeddings, [tables[1]], ids[1].rows)]
    if model.source_embedding.embeddings is not model.target_embedding.embeddings:
        plan.append((model.source_embedding.embeddings, [tables[0]], ids[0].rows))
    bias = None if config.get("output-omit-bias") else "decoder_ff_logit_out_b"
    turned = OUTPUTS[0] in file
    plan += plans.output_plan(model, ids[1], OUTPUTS[not turned], bias, turned)
    before = "_pre" if model.config["normalize_first"] else ""
    for side, blocks, top in (
        ("encoder", model.encoder_blocks, model.encoder_norm),
        ("decoder", model.decoder_blocks, model.decoder_norm),
    ):
        if top is not None:
            plan += _norm_plan(top, f"{side}_top", "")
        for number, block in enumerate(blocks, 1):
            plan += _block_plan(block, f"{side}_l{number}", before)
    return plan


def _block_plan(block, stem, before):
    plan = []
    for ours, theirs in (("self_attention", "self"), ("cross_attention", "context")):
        attention = getattr(block, ours, None)
        if attention is None:
            continue
        for name, (kernel, bias) in ATTENTION.items():
            layer = getattr(attention, name)
            plan += plans.columns_plan(
                layer, f"{stem}_{theirs}_{kernel}", f"{stem}_{theirs}_{bias}"
            )
        plan += _norm_plan(
            getattr(block, f"{ours}_norm"), f"{stem}_{theirs}_Wo", before
        )
    recurrence = getattr(block, "recurrence", None)
    if recurrence is not None:
        name = f"{stem}_rnn"
        plan += plans.columns_plan(recurrence.value_dense, f"{name}_W")
        plan += plans.columns_plan(recurrence.gate_dense, f"{name}_Wf", f"{name}_bf")
        inner = "" if before else "_ffn"  # Marian calls it so
        plan += _norm_plan(block.recurrence_norm, f"{name}{inner}", before)
    for number, layer in enumerate(
        (block.feed_forward.inner_dense, block.feed_forward.output_dense), 1
    ):
        name = f"{stem}_ffn"
        plan += plans.columns_plan(layer, f"{name}_W{number}", f"{name}_b{number}")
    return plan + _norm_plan(block.feed_forward_norm, f"{stem}_ffn_ffn", before)


def _norm_plan(norm, name, suffix):
    plan = []
    for variable, part in ((norm.gamma, "scale"), (norm.beta, "bias")):
        shape = tuple(variable.shape)
        make = plans.reshaped((1, *shape), shape)
        plan.append((variable, [f"{name}_ln_{part}{suffix}"], make))
    return plan


def _vocabularies(folder, given, ids):
    """Which piece each id is, and what cuts text into them."""
    named = _listed(given.get("vocabs"))
    if named:
        files = [folder / pathlib.PurePath(str(name)).name for name in named]
    else:
        files = [p for p in sorted(folder.glob("*.spm")) if p.name not in CUTTERS]
        files = _sides(folder, files or sorted(folder.glob("*vocab*.yml")))
    files = files * 2 if len(files) == 1 else files
    if len(files) != 2 or not all(file.is_file() for file in files):
        raise FileNotFoundError(
            f"Vocabularies of source and target are wanted in {os.fspath(folder)!r}: "
            f"one `.spm` or `.yml`, or two. Received: {[file.name for file in files]}."
        )
    shared = files[0] == files[1]
    tokens, cutters = [], []
    for file, short, own in zip(files, CUTTERS, ids, strict=True):
        tokens.append([*pieces.SPECIAL, *_names(file, own)])
        cutters.append(file if file.suffix == ".spm" else folder / short)
    vocabularies = [None, None]
    if all(cutter.is_file() for cutter in cutters):
        for side, (cutter, named) in enumerate(zip(cutters, tokens, strict=True)):
            marks = set(filter(pieces.is_mark, named[4:]))
            cutter = pieces.read(cutter)
            vocabularies[side] = pieces.vocabulary(cutter, named[4:], marks)
    if cutters[0] == cutters[1]:
        vocabularies[1] = None  # one for both
    return tuple(tokens), vocabularies, shared


def _sides(folder, files):
    """Two files as those of source and target, by their names."""
    if len(files) != 2:
        return files
    for one, other in (files, files[::-1]):
        for pair in (("src", "trg"), ("source", "target")):
            if pair[0] in one.name and pair[1] in other.name:
                return [one, other]
    raise ValueError(
        f"{folder}: which vocabulary is of the source is said by a configuration, or "
        "by src and trg, source and target in their names. Received: "
        f"{[file.name for file in files]}."
    )


def _names(file, ids):
    """The piece of each id here, from 4 on."""
    if file.suffix == ".spm":
        found = dict(enumerate(pieces.names(pieces.read(file))))
    else:
        found = vocabulary_of(file)
    wanted = {END_ID: "</s>", UNKNOWN_ID: "<unk>"}
    special = {number: found.get(number) for number in wanted}
    size = int(ids.order.max()) + 1
    if special != wanted or max(found) >= size:
        raise ValueError(
            f"{file}: the vocabulary does not fit the model. Received: {special}, the "
            f"last {max(found)}; wanted {wanted}, and a table of {size} rows. Fetch "
            "both from one model."
        )
    return [found.get(int(i), f"<{i}>") for i in ids.order[4:]]


def _search(given):
    """How it is decoded, as settings of a search here."""
    beam_size, factor = given.get("beam-size", 1), given.get("max-length-factor", 3)
    if beam_size < 1 or factor <= 0:
        raise ValueError(
            "A search has one hypothesis at least, and room for a token. Received: "
            f"beam-size: {beam_size}, max-length-factor: {factor}. Set both above 0."
        )
    if given.get("word-penalty"):
        raise ValueError(
            "A penalty for each word is not known. Received: word-penalty: "
            f"{given['word-penalty']}. Set it to 0."
        )
    return {
        "beam_size": beam_size,
        "length_penalty": float(given.get("normalize", 0)),
        "max_decoding_length": (math.ceil(factor), 0),
        "source_suffix": [3],
        "disable_unk": not given.get("allow-unk", False),
    }


def _shortlist(folder, given, ids, shared):
    """The binary shortlist: for each source token where its targets stand.

    Of one vocabulary what stands in the source may stand in the target.
    """
    named = _listed(given.get("shortlist")) or sorted(
        p.name for p in folder.glob("lex*.bin")
    )
    if not named:
        return None
    file = folder / pathlib.PurePath(str(named[0])).name
    if not file.is_file():
        raise FileNotFoundError(f"A shortlist is named that is not there: {file}.")
    if file.suffix in (".gz", ".txt"):
        raise ValueError(
            f"{file}: binary shortlists are read with a model. Received: one of text. "
            "Take its line out of the configuration, unpack it, and read it by "
            "`decode.Shortlist.read` with `tokens` of what is loaded."
        )
    data = file.read_bytes()
    try:
        magic, _, first, best, offsets, count = struct.unpack_from("<6Q", data)
    except struct.error:
        magic = None
    rows = int(ids[0].order.max()) + 1
    if (
        magic != SHORTLIST
        or offsets != rows + 1
        or len(data) != 48 + 8 * offsets + 4 * count
        or max(first, best) > WIDEST
    ):
        raise ValueError(
            f"{file} is damaged, no binary shortlist of Marian, or of another model. "
            f"Received: {len(data):,} bytes; the model has {rows} source tokens."
        )
    starts = np.frombuffer(data, "<u8", offsets, 48).astype("int64")
    targets = np.frombuffer(data, "<u4", count, 48 + 8 * offsets)
    lengths, size = np.diff(starts), int(ids[1].order.max()) + 1
    wrong = (lengths < 0).any() or lengths.max(initial=0) > best or starts[-1] != count
    if wrong or targets.max(initial=0) >= size:
        raise ValueError(f"{file} is damaged: its places or ids are out of range.")
    most = LARGER * len(data) // 4  # numbers
    ours = np.array([ids[1].ours(i) for i in range(size)])
    translations = _translations(file, starts, ours[targets], ids[0].order, most)
    order = np.concatenate([ours, ids[1].added])
    return Shortlist(translations, order, int(first), max(1, int(best)), shared)


def _translations(file, starts, targets, order, most):
    """The targets of each source token here, in a table of up to so many."""
    width = int(np.diff(starts).max(initial=1))
    if len(order) * width > most:
        raise ValueError(
            f"{file}: in a table each token has room for as many as any. Received: "
            f"{len(targets):,} translations of {len(order):,} tokens, {width:,} of one "
            "of them. Make it with fewer for a token."
        )
    found = np.zeros((len(order), width), "int32")
    for row, theirs in enumerate(order):
        if theirs >= 0:
            given = targets[starts[theirs] : starts[theirs + 1]]
            found[row, : len(given)] = given
    return found
