"""`keras-tfm train --cluster` without a cluster: its flags, and the worker."""

import os
import sys
import types

import pytest

from keras_tfm.cli import cluster_training, main, ray_cluster
from keras_tfm.recipes import translation
from keras_tfm.training import folder_lock

pytestmark = pytest.mark.backend("torch")  # Ray and flags know no backend
ON_CLUSTER = ["train", "translation", "--cluster", "auto"]


def test_flags_are_checked_before_ray_starts(tmp_path, monkeypatch, capfd):
    message = "the flags are wrong"
    monkeypatch.setattr(ray_cluster, "connect", lambda *_: pytest.fail(message))
    assert main([*ON_CLUSTER, "--", "--epochs", "1"]) == 1
    assert "--out must be a folder that all machines share" in capfd.readouterr().err
    assert main([*ON_CLUSTER, "--workers", "0", "--", "--out", "a"]) == 1
    assert "--workers must be at least 1; got 0." in capfd.readouterr().err
    with pytest.raises(SystemExit) as end:
        main([*ON_CLUSTER, "--", "--epoch", "1"])
    assert end.value.code == 2
    with pytest.raises(SystemExit) as end:
        main([*ON_CLUSTER, "--epochs", "1"])
    assert end.value.code == 2 and "--epochs" in capfd.readouterr().err


def test_a_worker_returns_why_the_recipe_rejects_its_input(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_training, "_set_addresses", lambda context: None)
    context = types.SimpleNamespace(get_world_rank=lambda: 0)
    train = types.SimpleNamespace(get_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(train=train))
    folder, out = os.getcwd(), tmp_path / "out"
    config = {"recipe": "translation", "out": str(out), "folder": folder}
    config["arguments"] = ["--out", str(out), "--epochs", "0"]
    assert "--epochs must be at least 1; got 0" in cluster_training.work(config)

    def fail(flags):
        raise OSError("the disk is full")

    monkeypatch.setattr(translation, "main", fail)
    with pytest.raises(OSError, match="the disk is full"):  # it is tried again
        cluster_training.work(config)
    folder_lock.unlock_folder(out)
