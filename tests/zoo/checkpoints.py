"""Small checkpoints of transformers with random weights."""

import json

import numpy as np

from keras_tfm import zoo
from tests.layers.formulas import numpy

V, S, T = 50, 9, 7


SIZES = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
}


MARIAN = {
    **SIZES,
    "pad_token_id": V - 1,
    "eos_token_id": 0,
    "decoder_start_token_id": V - 1,
    "forced_eos_token_id": None,
    "activation_function": "swish",
    "scale_embedding": True,
}


FSMT = {
    **{name: value for name, value in SIZES.items() if name != "vocab_size"},
    "src_vocab_size": V,
    "tgt_vocab_size": V,
    "forced_eos_token_id": None,
}


T5 = {
    "vocab_size": V,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
}


FAMILIES = {
    "Marian": ("MarianConfig", "MarianMTModel", MARIAN),
    "Marian, untied": (
        "MarianConfig",
        "MarianMTModel",
        {**MARIAN, "share_encoder_decoder_embeddings": False},
    ),
    "Pegasus": (
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        {**SIZES, "unk_token_id": 3, "scale_embedding": True},
    ),
    "M2M100": ("M2M100Config", "M2M100ForConditionalGeneration", SIZES),
    "mBART": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        {**SIZES, "scale_embedding": True, "decoder_start_token_id": 2},
    ),
    "FSMT": ("FSMTConfig", "FSMTForConditionalGeneration", FSMT),
    "BART": ("BartConfig", "BartForConditionalGeneration", SIZES),
    "T5": ("T5Config", "T5ForConditionalGeneration", T5),
    "T5 1.1": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mT5": (
        "MT5Config",
        "MT5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "umT5": ("UMT5Config", "UMT5ForConditionalGeneration", T5),
}


UNKNOWN = {"T5": 2, "T5 1.1": 2, "mT5": 2, "umT5": 2, "Marian": 1, "Marian, untied": 1}


def write(folder, family, **settings):
    """Writes a model of random weights as transformers does."""
    import torch
    import transformers

    config, model, defaults = FAMILIES[family]
    unknown = {"unk_token_id": UNKNOWN.get(family, 3)}
    config = getattr(transformers, config)(**{**unknown, **defaults, **settings})
    model = getattr(transformers, model)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name or config.model_type in ("bart", "mbart"):
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    if hasattr(model, "final_logits_bias"):
        torch.nn.init.normal_(model.final_logits_bias, generator=generator)
    model.save_pretrained(folder)
    return model


def start_of(config):
    begins_with_padding = config.model_type in (
        "marian",
        "pegasus",
        "t5",
        "mt5",
        "umt5",
    )
    return config.pad_token_id if begins_with_padding else config.eos_token_id


def draw(config):
    """Draws padded source and target ids; the target has a start token."""
    rng = np.random.default_rng(0)
    source = rng.integers(4, V - 1, (3, S))
    target = rng.integers(4, V - 1, (3, T))
    source[:, -1], source[1, 5], source[1, 6:] = (
        config.eos_token_id,
        config.eos_token_id,
        config.pad_token_id,
    )
    target[:, 0] = start_of(config)
    return source, target


def reference_ids(config):
    """Returns the id in the checkpoint of each id of the library.

    The library's ids begin with padding, unknown, start and end.
    """
    unknown = {"marian": 1, "t5": 2, "mt5": 2, "umt5": 2}.get(config.model_type, 3)
    first = [config.pad_token_id, unknown, start_of(config), config.eos_token_id]
    return np.array([*first, *(i for i in range(V) if i not in first)])


def library_ids(ids, config):
    """Returns the ids of the library for ids of the checkpoint."""
    rows = {number: i for i, number in enumerate(reference_ids(config)) if i != 2}
    actual = np.vectorize(rows.get)(ids).astype("int32")
    if ids.shape[1] == T:
        actual[:, 0] = 2
    return actual


# Seeds of random models whose outputs differ, some with an end token.
LIVELY = {
    "Marian": 3,
    "Marian, untied": 3,
    "Pegasus": 11,
    "M2M100": 19,
    "mBART": 11,
    "FSMT": 3,
    "BART": 15,
    "T5": 5,
    "T5 1.1": 15,
    "mT5": 15,
    "umT5": 15,
}


def write_lively(folder, family, rows=12):
    """Writes a model whose outputs differ and end; returns it and sources."""
    import torch

    reference = write(folder, family)
    config = reference.config
    generator = torch.Generator().manual_seed(LIVELY[family])
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "embed_positions" not in name or config.model_type in ("bart", "mbart"):
                noise = torch.randn(parameter.shape, generator=generator)
                is_scale = "norm" in name and name.endswith("weight")
                crosses = "encoder_attn" in name or "EncDec" in name
                noise = (0.3 if is_scale else 1.0 if crosses else 0.5) * noise
                parameter.copy_(1 + noise if is_scale else noise)
        if hasattr(reference, "final_logits_bias"):
            reference.final_logits_bias.zero_()
            reference.final_logits_bias[0, config.eos_token_id] = 4.0
        if config.model_type == "fsmt":  # no bias makes its outputs end
            reference.model.decoder.output_projection.weight[config.eos_token_id] *= 4
        reference.save_pretrained(folder)
    source = np.random.default_rng(1).integers(4, V - 1, (rows, S))
    source[:, -1] = source[1, 5] = config.eos_token_id
    source[1, 6:] = config.pad_token_id
    return reference, source


def until_end(rows):
    rows = [list(row) for row in rows]
    rows = [row[: row.index(3) + 1] if 3 in row else row for row in rows]
    return [[int(i) for i in row if i] for row in rows]


def change(folder, name="config.json", **values):
    """Changes values of a configuration; None deletes a value."""
    config = json.loads((folder / name).read_text()) | values
    config = {name: value for name, value in config.items() if value is not None}
    (folder / name).write_text(json.dumps(config))


def logits_of(folder, config):
    source, target = draw(config)
    model = zoo.from_hugging_face(folder).model
    ids = {
        "source_ids": library_ids(source, config),
        "target_ids": library_ids(target, config),
    }
    return numpy(model(ids))


TEXTS = [
    "the small garden behind the old house",
    "a house and a boat",
    "an old man in a small boat",
    "der kleine Garten hinter dem alten Haus",
    "ein alter Mann in einem kleinen Boot",
]


def write_marian(folder, first=("</s>", "<unk>"), **settings):
    """Writes a model with two SentencePiece files and tied embeddings."""
    import io

    import sentencepiece
    import torch

    tokens = list(first)
    for side, texts in (("source", TEXTS[:3]), ("target", TEXTS[3:])):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 4),
            model_writer=model,
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for i in range(3, processor.get_piece_size()):
            tokens.append(processor.id_to_piece(i))
    tokens = [*dict.fromkeys(tokens), ">>de<<", "<pad>"]
    ids_of_tokens = {token: i for i, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids_of_tokens))
    size = len(ids_of_tokens)
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    model = write(folder, "Marian", vocab_size=size, **ids, **settings)
    with torch.no_grad():
        model.final_logits_bias.zero_()
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.mul_(3.0)  # so that the outputs differ
    model.save_pretrained(folder)
    return model


M2M_CODES = 100 + 8  # language tags, and unused rows


MANY = {
    # family, tokenizer, model type, rows after the subword tokens, languages
    "M2M100": ("M2M100", "M2M100Tokenizer", "bpe", M2M_CODES, ("en", "de")),
    "NLLB": ("M2M100", "NllbTokenizer", "bpe", 204, ("eng_Latn", "deu_Latn")),
    "mBART 50": ("mBART", "MBart50Tokenizer", "unigram", 53, ("en_XX", "de_DE")),
    "mBART": ("mBART", "MBartTokenizer", "unigram", 26, ("en_XX", "de_DE")),
    "T5": ("T5", "T5Tokenizer", "unigram", 100, None),
}


def write_many(folder, kind):
    """Writes a model with one SentencePiece file and language tags."""
    import sentencepiece
    import torch
    import transformers

    family, tokenizer, model_type, rows, languages = MANY[kind]
    file_name = "spiece.model" if family == "T5" else "sentencepiece.bpe.model"
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_prefix=str(folder / "spm"),
        model_type=model_type,
        vocab_size=60,
        hard_vocab_limit=model_type == "bpe",
        minloglevel=2,
        **(special if family == "T5" else {}),
    )
    (folder / "spm.model").rename(folder / file_name)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / file_name))
    size = processor.get_piece_size() + rows + (family != "T5")
    if kind == "M2M100":
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        names += [
            processor.id_to_piece(i) for i in range(3, processor.get_piece_size())
        ]
        ids_of_tokens = {token: i for i, token in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(ids_of_tokens))
    settings = {"tokenizer_class": tokenizer}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    reference = getattr(transformers, tokenizer).from_pretrained(folder)
    if kind == "NLLB":  # transformers adds no tags from this file
        module = transformers.models.nllb.tokenization_nllb
        reference.add_special_tokens(
            {"extra_special_tokens": module.FAIRSEQ_LANGUAGE_CODES}
        )
        reference.save_pretrained(folder)
    if languages:
        reference.src_lang, target = (
            languages[0],
            reference.convert_tokens_to_ids(
                f"__{languages[1]}__" if kind == "M2M100" else languages[1]
            ),
        )
        ids_of_tokens = (
            getattr(reference, "lang_token_to_id", None) or reference.get_vocab()
        )
        first = processor.get_piece_size() + 1
        tags = {i: token for token, i in ids_of_tokens.items() if i >= first}
        codes = [tags[i] for i in sorted(tags) if tags[i] != "<mask>"]
        if kind != "NLLB":  # which has tokenizer.json
            special_tokens = {"additional_special_tokens": codes}
            (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens))
    ids = {"vocab_size": size}
    if kind == "mBART":
        ids["decoder_start_token_id"] = target
    elif languages:
        ids["decoder_start_token_id"] = 2
    model = write(folder, family, **ids)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.mul_(4.0 if kind == "mBART" else 2.0)
    start = ids.get("decoder_start_token_id", model.config.pad_token_id)
    bad = [[model.config.pad_token_id]]
    bad += [[i] for i in range(first, size)] if languages else []
    model.generation_config.update(
        num_beams=1,
        max_length=16,
        min_length=6,
        no_repeat_ngram_size=2,
        bad_words_ids=bad,
        renormalize_logits=True,
        forced_eos_token_id=None,
        decoder_start_token_id=start,
    )
    model.save_pretrained(folder)
    if languages and kind != "mBART":
        model.generation_config.forced_bos_token_id = target
    return model, reference


def byte_level(folder, special_tokens):
    """Writes a small byte-level tokenizer and returns it."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(special_tokens),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write_gpt2(folder, **settings):
    """Writes a small GPT-2 of random weights as transformers does."""
    import torch
    import transformers

    sizes = {"n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**{"vocab_size": V, **sizes, **ends, **settings})
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    model.save_pretrained(folder)
    return model
