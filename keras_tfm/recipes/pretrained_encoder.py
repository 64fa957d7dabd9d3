"""The pretrained encoder of `keras-tfm train classification --from`."""

import pathlib
from typing import Any

from keras_tfm import models, zoo
from keras_tfm.pipelines.texts import AnyVocabulary


def load(
    name: str, frozen_layers: int = 0, **config: Any
) -> tuple[models.Encoder, AnyVocabulary]:
    """Loads a pretrained encoder and its vocabulary.

    Args:
        name: a folder that transformers has saved, a repository (owner/name),
            or a KerasHub preset.
        frozen_layers: int, blocks that will be frozen.
        **config: options of the encoder: dropout, dtype.

    Raises:
        ValueError: there is no tokenizer, or there are fewer blocks.
    """
    folder = pathlib.Path(name)
    # A KerasHub preset is a name, or a folder with a file of metadata.
    if (folder / "metadata.json").is_file() or (
        len(folder.parts) == 1 and not folder.is_dir()
    ):
        imported = zoo.from_keras_hub(name, head="encoder", **config)
    else:
        imported = zoo.from_hugging_face(name, head="encoder", **config)
    encoder, vocabulary = imported.model, imported.vocabulary
    if vocabulary is None:
        raise ValueError(
            "--from must hold the tokenizer of the encoder; got "
            f"{name!r} without a tokenizer, or without `tokenizer.json`. "
            "Write it there with `save_pretrained` of the tokenizer."
        )
    if frozen_layers > len(encoder.blocks):
        raise ValueError(
            f"--frozen-layers must be at most {len(encoder.blocks)}, the blocks of the "
            f"encoder; got {frozen_layers}."
        )
    return encoder, vocabulary


def freeze(encoder: models.Encoder, lora_rank: int | None, frozen_layers: int) -> None:
    """Freezes an encoder but for low-rank updates, or its first layers.

    Args:
        encoder: `Encoder`.
        lora_rank: int, or None to train the weights themselves.
        frozen_layers: int. Freeze the embeddings and this many first blocks; 0
            for neither.
    """
    if lora_rank:
        encoder.enable_lora(lora_rank)
    if frozen_layers:
        layers = [encoder.embedding, encoder.segment_embedding, encoder.embedding_norm]
        for layer in (*layers, *encoder.blocks[:frozen_layers]):
            if layer is not None:
                layer.trainable = False
