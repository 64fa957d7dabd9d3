"""Small checkpoints of COMET with random weights, and its published formula."""

import json

import numpy as np
import torch

HIDDEN = (12, 8)
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 84,  # two of them are not of tokens
    "type_vocab_size": 1,
}
PARTS = ["an old man", "a small boat", "the garden", "two dogs", "a red house"]
PARTS += ["Übung macht den Meister", "Привет, мир", "漢字", "3.50 €!"]
HPARAMS = {
    "class_identifier": "regression_metric",
    "encoder_model": "XLM-RoBERTa",
    "pretrained_model": "xlm-roberta-large",
    "pool": "avg",
    "layer": "mix",
    "layer_transformation": "sparsemax",
    "layer_norm": False,
    "hidden_sizes": [*HIDDEN],
    "activations": "Tanh",
    "final_activation": None,
    "dropout": 0.1,
    "train_data": ["data/1720-da.csv"],
    "validation_data": [],
}


def texts(count=24):
    """Returns sources, translations and references; one is empty, one long."""
    rng = np.random.default_rng(0)

    def _text():
        return " in front of ".join(rng.choice(PARTS, size=rng.integers(1, 4)))

    sides = [[_text() for _ in range(count)] for _ in range(3)]
    sides[1][3] = ""
    sides[1][5] = sides[2][5]
    sides[0][7] = "the boat is " * 40  # more tokens than the encoder has positions
    return sides


def write_encoder(folder):
    """Writes the config and the tokenizer of an XLM-R."""
    import tokenizers
    import transformers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.normalizer = tokenizers.normalizers.NFKC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(PARTS * 9, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    settings = dict(zip(names, special, strict=True))
    settings |= {"cls_token": "<s>", "sep_token": "</s>"}
    settings["tokenizer_class"] = "XLMRobertaTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    size = tokenizer.get_vocab_size()
    transformers.XLMRobertaConfig(vocab_size=size, **SIZES).save_pretrained(folder)
    return folder


def draw(encoder_folder, seed=0):
    """Returns an XLM-R of transformers and the tensors of a checkpoint."""
    import transformers

    config = transformers.XLMRobertaConfig.from_pretrained(encoder_folder)
    encoder = transformers.XLMRobertaModel(config, add_pooling_layer=False).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    tensors = {f"encoder.model.{n}": t for n, t in encoder.state_dict().items()}
    shapes = {"layerwise_attention.gamma": (1,)}
    for i in range(config.num_hidden_layers + 1):
        shapes[f"layerwise_attention.scalar_parameters.{i}"] = (1,)
    dims = (6 * config.hidden_size, *HIDDEN, 1)
    for i in range(len(dims) - 1):
        shapes[f"estimator.ff.{3 * i}.weight"] = (dims[i + 1], dims[i])
        shapes[f"estimator.ff.{3 * i}.bias"] = (dims[i + 1],)
    for name, shape in shapes.items():
        tensors[name] = torch.randn(shape, generator=generator) * 0.4
    return encoder, tensors


def write_checkpoint(folder, tensors, hparams=None, entries=None):
    """Writes a checkpoint as PyTorch Lightning does after training."""
    hparams = HPARAMS if hparams is None else hparams
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    content = {
        "epoch": 3,
        "pytorch-lightning_version": "1.6.4",
        "state_dict": tensors,
        "callbacks": {"ModelCheckpoint{'monitor': 'val_kendall'}": {"best": 0.3}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}}],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": hparams,
        **(entries or {}),
    }
    torch.save(content, folder / "checkpoints" / "model.ckpt")
    lines = [f"{name}: {json.dumps(value)}" for name, value in hparams.items()]
    (folder / "hparams.yaml").write_text("\n".join(lines) + "\n")
    return folder


def project(x):
    """Sparsemax by bisection: the numbers above a threshold sum to 1."""
    low, high = x.min() - 1, x.max()
    for _ in range(100):
        middle = (low + high) / 2
        is_above = np.maximum(x - middle, 0).sum() > 1
        low, high = (middle, high) if is_above else (low, middle)
    return np.maximum(x - low, 0)


def estimate(encoder, tensors, ids, transformation, normalizes):
    """Rei et al. 2020, sections 2.2 and 2.3, in float64.

    Args:
        encoder: `XLMRobertaModel`.
        tensors: dict, of a checkpoint.
        ids: lists of token ids with start and end, of a source, a translation
            and a reference.
        transformation: `"softmax"` or `"sparsemax"`.
        normalizes: bool, `layer_norm` of COMET.
    """
    weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    stem = "layerwise_attention"
    count = len(encoder.encoder.layer) + 1
    numbers = [weights[f"{stem}.scalar_parameters.{i}"] for i in range(count)]
    numbers = np.concatenate(numbers)
    powers = np.exp(numbers)
    shares = powers / powers.sum() if transformation == "softmax" else project(numbers)
    vectors = []
    for row in ids:
        with torch.no_grad():
            output = encoder.double()(torch.tensor([row]), output_hidden_states=True)
        states = [state[0].numpy() for state in output.hidden_states]  # (S, D)
        if normalizes:
            states = [(x - x.mean()) / np.sqrt(x.var() + 1e-12) for x in states]
        mixed = sum(share * x for share, x in zip(shares, states, strict=True))
        vectors.append((weights[f"{stem}.gamma"] * mixed).mean(0))
    s, h, r = vectors
    x = np.concatenate([h, r, h * r, abs(h - r), h * s, abs(h - s)])
    for i in range(len(HIDDEN) + 1):
        kernel = weights[f"estimator.ff.{3 * i}.weight"]
        x = (
            kernel @ (x if i == 0 else np.tanh(x))
            + weights[f"estimator.ff.{3 * i}.bias"]
        )
    return float(x[0])
