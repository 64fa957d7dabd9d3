"""Makes a checkpoint through the classes of unbabel-comet, and scores texts.

Run      PYTHON tests/zoo/score_with_comet.py ENCODER FOLDER TEXTS OPTIONS
Needs    unbabel-comet, in an environment of its own: it needs an older NumPy
Writes   FOLDER/checkpoints/model.ckpt, FOLDER/hparams.yaml, FOLDER/scores.json

ENCODER is a folder with config and tokenizer of an XLM-R, TEXTS a JSON file of
sources, translations and references, OPTIONS the JSON of further arguments of
`RegressionMetric`.
"""

import importlib.metadata
import json
import pathlib
import sys

import comet.models
import pytorch_lightning
import torch


def main(encoder, folder, texts, options):
    folder = pathlib.Path(folder)
    metric = comet.models.RegressionMetric(
        pretrained_model=encoder,
        load_pretrained_weights=False,
        hidden_sizes=[12, 8],
        **json.loads(options),
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in metric.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    path = folder / "checkpoints" / "model.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer = pytorch_lightning.Trainer(
        logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    trainer.strategy.connect(metric)
    trainer.save_checkpoint(path)
    pytorch_lightning.core.saving.save_hparams_to_yaml(
        folder / "hparams.yaml",
        {**metric.hparams, "class_identifier": "regression_metric"},
    )
    metric = comet.models.load_from_checkpoint(str(path))
    sides = json.loads(pathlib.Path(texts).read_text("utf-8"))
    segments = zip(*sides, strict=True)
    samples = [{"src": s, "mt": h, "ref": r} for s, h, r in segments]
    output = metric.predict(samples, batch_size=5, gpus=0, progress_bar=False)
    names = ("unbabel-comet", "torch", "transformers", "pytorch-lightning")
    content = {
        "scores": output.scores,
        "system_score": output.system_score,
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
    (folder / "scores.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
