"""Transformers for the engine of CTranslate2."""

import os
import pathlib

import keras

from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.text import Vocabulary
from keras_tfm.zoo.ctranslate2 import load
from keras_tfm.zoo.ctranslate2.load import ACTIVATIONS, SHARED_MODEL
from keras_tfm.zoo.sentencepiece_models import SIDE_MODELS
from keras_tfm.zoo.weight_mapping import export, logits, to_array

DEFAULT_POSITIONS = 2048  # rows of sinusoids


def to_ctranslate2(
    model: keras.Model,
    vocabulary: Vocabulary | list[str],
    folder: str | os.PathLike,
    quantization: str | None = None,
    target_vocabulary: Vocabulary | list[str] | None = None,
    add_source_eos: bool = False,
    sequence_length: int | None = None,
    special_ids: tuple[int, int, int] = (1, 2, 3),
) -> None:
    """Writes a `Transformer` for the engine of CTranslate2.

    Its tokens are those of the vocabularies: pass the engine
    `vocabulary.tokens(ids)` for each sequence of `vocabulary.encode(texts)`. It
    adds no language tag: if the vocabulary has tags, see
    `Vocabulary.languages`, put one before the source. It does not know options
    of decoding either: pass it `beam_size`, `length_penalty` and `disable_unk`.

    Args:
        model: `Transformer` with positions added to tokens, scaled dot
            products, heads of dimension D / H, and `layer_norm` or `rms_norm`.
        vocabulary: `Vocabulary` of the source, and of the target if that is
            None; or a list of str, a token for each row of the embedding. A
            `Vocabulary` is also saved, as `sentencepiece.model`, or as
            `source.spm` and `target.spm`, so that `from_ctranslate2` finds it.
        folder: path. Created if missing.
        quantization: None for float32, or a type of CTranslate2 such as
            `"int8"` or `"float16"`.
        target_vocabulary: as `vocabulary`, or None.
        add_source_eos: bool. The engine appends the end token to each source,
            as most third-party models expect.
        sequence_length: int >= 1, in tokens: the longest source or target of
            the engine. None: 2,048 sinusoidal or all learned positions.
        special_ids: the ids of the unknown token, the start and the end.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: the engine does not support the model.

    Example:
        ```python
        # requires: ctranslate2
        import tempfile
        from keras_tfm import models, zoo

        model = models.Transformer(
            6, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=2
        )
        tokens = ["<pad>", "<unk>", "<s>", "</s>", "a", "b"]
        with tempfile.TemporaryDirectory() as folder:
            zoo.to_ctranslate2(model, tokens, folder, quantization="int8")
            print(zoo.from_ctranslate2(folder).model.vocabulary_size)  # 6
        ```
    """
    try:
        from ctranslate2.specs import model_spec
    except ImportError as error:
        raise ImportError(
            "Writing models of CTranslate2 needs its package, which cannot be "
            f"imported ({error}). Install `ctranslate2`."
        ) from error
    _check_model(model)
    if sequence_length is not None and sequence_length < 1:
        raise ValueError(
            f"`sequence_length` must be at least 1; got sequence_length="
            f"{sequence_length}."
        )
    target_vocabulary = target_vocabulary or vocabulary
    spec = _specification(model)
    source_tokens = _tokens(vocabulary, model.vocabulary_size)
    target_tokens = _tokens(target_vocabulary, model.target_vocabulary_size)
    config = spec.config
    special_tokens = (target_tokens[number] for number in special_ids)
    config.unk_token, config.bos_token, config.eos_token = special_tokens
    config.decoder_start_token = config.bos_token
    config.add_source_bos, config.add_source_eos = False, add_source_eos
    config.layer_norm_epsilon = model.config["epsilon"]
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    for name, array in _arrays(model, sequence_length).items():
        scope, _, attribute = name.rpartition("/")
        setattr(model_spec.index_spec(spec, scope), attribute, array)
    spec.encoder.scale_embeddings = model.source_embedding.factor != 1.0
    spec.decoder.scale_embeddings = model.target_embedding.factor != 1.0
    spec.validate()
    spec.optimize(quantization=quantization)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stale = [folder / name for name in (*SIDE_MODELS, SHARED_MODEL)]
    for file in (*folder.glob("*_vocabulary.*"), *stale):  # of another model
        file.unlink(missing_ok=True)
    spec.save(os.fspath(folder))
    _save_vocabularies(folder, vocabulary, target_vocabulary)


def _check_model(model):
    if not isinstance(model, Transformer):
        raise ValueError(f"`model` must be a Transformer; got {type(model).__name__}.")
    config = model.config
    head_dim = config["embedding_dim"] // config["num_heads"]
    supported = {
        "score": ("scaled_dot",),
        "normalization": ("layer_norm", "rms_norm"),
        "num_key_value_heads": (None,),
        "decoder_recurrence": (None,),
        "key_dim": (None, head_dim),
        "value_dim": (None, head_dim),
    }
    wrong = {k: config[k] for k, v in supported.items() if config[k] not in v}
    positions = model.target_embedding.position_layer
    if positions is None or getattr(positions, "combine", "add") != "add":
        wrong["positions"] = config["positions"]
    if keras.activations.get(config["activation"]) not in _activations():
        wrong["activation"] = config["activation"]
    if wrong:
        raise ValueError(
            "`model` must have positions added to its tokens, scaled dot products, "
            "heads of dimension D / H, no grouped heads, self-attention in the "
            "decoder, layer or RMS normalization, and one of the activations "
            f"{sorted(getattr(a, '__name__', a) for a in ACTIVATIONS.values())}; got "
            f"{wrong}."
        )


def _activations():
    return {keras.activations.get(name): n for n, name in ACTIVATIONS.items()}


def _specification(model):
    from ctranslate2 import specs

    config = model.config
    activation = _activations()[keras.activations.get(config["activation"])]
    return specs.TransformerSpec.from_config(
        num_layers=(len(model.encoder_blocks), len(model.decoder_blocks)),
        num_heads=config["num_heads"],
        pre_norm=config["normalize_first"],
        activation=specs.common_spec.Activation(activation),
        layernorm_embedding=config["normalize_embedding"],
        ffn_glu=config["gated"],
        rms_norm=config["normalization"] == "rms_norm",
        alignment_heads=config["num_heads"],  # attention is the mean of all
    )


def _tokens(vocabulary, size):
    tokens = vocabulary
    if hasattr(vocabulary, "tokens"):
        tokens = vocabulary.tokens(range(vocabulary.size))
    return [*tokens, *(f"<spare {i}>" for i in range(len(tokens), size))]


def _save_vocabularies(folder, source, target):
    if not isinstance(source, Vocabulary) or not isinstance(target, Vocabulary):
        return
    if source.model == target.model:
        source.save(folder / SHARED_MODEL)
        return
    for name, side in zip(SIDE_MODELS, (source, target), strict=True):
        side.save(folder / name)


def _arrays(model, sequence_length):
    """Returns all arrays by their names in a `model.bin`."""
    source, target = model.source_embedding, model.target_embedding
    mapping = load.stack_weights(model)
    mapping += logits(model, None, load.PROJECTION, load.PROJECTION_BIAS)
    arrays = export(mapping)
    arrays["encoder/embeddings_0/weight"] = to_array(source.embeddings)
    arrays["decoder/embeddings/weight"] = to_array(target.embeddings)
    arrays.setdefault(load.PROJECTION, arrays["decoder/embeddings/weight"])
    for side, embedding in (("encoder", source), ("decoder", target)):
        name, positions = (
            f"{side}/position_encodings/encodings",
            embedding.position_layer,
        )
        if isinstance(positions, SinusoidalPositions):
            rows = sequence_length or DEFAULT_POSITIONS
            signal = positions.signal(rows, 0, embedding.embeddings.shape[-1])
            arrays[name] = to_array(signal)  # (T, D)
        arrays[name] = arrays[name][:sequence_length]
    return arrays
