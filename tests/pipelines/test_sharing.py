"""A model is uploaded to the hub with its card, and read from there."""

import json
import shutil

import numpy as np
import pytest

from keras_tfm import models, pipelines, text
from tests.layers.formulas import numpy

huggingface_hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.backend("torch")  # files are copied, not run
NAME = "hf://me/mine"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Stands in for the client of the hub: a repository is a folder."""
    server = tmp_path / "server"

    class Stub:
        def create_repo(self, repo_id, private, exist_ok):
            assert exist_ok and private is False
            (server / repo_id).mkdir(parents=True, exist_ok=True)

        def upload_folder(self, repo_id, folder_path, revision, **patterns):
            paths = [path for path in folder_path.rglob("*") if path.is_file()]
            names = [path.relative_to(folder_path).as_posix() for path in paths]
            choose = huggingface_hub.utils.filter_repo_objects
            for name in choose(names, **patterns):
                (server / repo_id / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder_path / name, server / repo_id / name)

        def upload_file(self, repo_id, path_or_fileobj, path_in_repo, revision):
            (server / repo_id / path_in_repo).write_bytes(path_or_fileobj)

        def snapshot_download(self, repo_id, revision, allow_patterns):
            assert revision is None
            return str(server / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", Stub)
    return server


@pytest.fixture
def run(tmp_path):
    """Returns a recipe's run, with its files of training, and its model."""
    vocabulary = text.Vocabulary.train(["a house"] * 9, 280, exact=False)
    sizes = {"embedding_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    model = models.Transformer(vocabulary.size, num_layers=1, **sizes)
    pipelines.Translator(model, vocabulary).save(tmp_path / "run" / "model")
    (tmp_path / "run" / "flags.json").write_text("{}")
    (tmp_path / "run" / "model" / "notes.txt").write_text("private")
    return tmp_path / "run", model


def test_an_uploaded_model_is_read_by_its_name(hub, run):
    folder, model = run
    pipelines.upload(folder, NAME)
    names = {path.name for path in (hub / "me/mine").iterdir()}
    files = {"model.keras", "source.model", "target.model", "translator.json"}
    assert names == {*files, "README.md"}
    translator = pipelines.Translator.from_preset(NAME)
    np.testing.assert_array_equal(
        numpy(translator.model.target_embedding.embeddings),
        numpy(model.target_embedding.embeddings),
    )
    card = (hub / "me/mine/README.md").read_text()
    assert card.startswith('---\nlibrary_name: "keras-tfm"\npipeline_tag: "translat')
    assert "# mine\n" in card and f'Translator.from_preset("{NAME}")' in card


def test_the_card_of_a_folder_gets_metadata(hub, run):
    folder, _ = run
    preset = {"task": "translation", "languages": ["en", "deu_Latn"], "data": "x"}
    (folder / "model" / "preset.json").write_text(json.dumps(preset))
    (folder / "model" / "README.md").write_text("# Our card\n")
    pipelines.upload(folder / "model", NAME)
    card = (hub / "me/mine/README.md").read_text()
    assert 'language: ["en"]\n' in card and card.endswith("---\n\n# Our card\n")
    (folder / "model" / "README.md").write_text("---\nlicense: mit\n---\n")
    pipelines.upload(folder / "model", NAME)
    assert (hub / "me/mine/README.md").read_text() == "---\nlicense: mit\n---\n"


def test_what_cannot_be_uploaded_is_rejected(hub, run, tmp_path):
    folder, _ = run
    for name in ("me/mine", "hf://mine", "hf://me/mine/more", 3):
        with pytest.raises(ValueError, match="`name` must be a repository as 'hf://"):
            pipelines.upload(folder, name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="`folder` must hold a model"):
        pipelines.upload(tmp_path / "empty", NAME)
    assert not hub.exists()
