"""Pickled weights are read without PyTorch, and nothing else of a pickle is."""

import collections
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

from keras_tfm import zoo
from keras_tfm.zoo.huggingface.pytorch_file import PytorchFile
from keras_tfm.zoo.huggingface.weights_folder import WeightsFolder
from tests.layers.formulas import numpy
from tests.zoo.checkpoints import write, write_marian

pytestmark = pytest.mark.backend("torch")  # files are read, not run


def state_dict():
    matrix = torch.arange(30.0).reshape(5, 6)
    tensors = collections.OrderedDict(
        matrix=matrix,
        transposed=matrix.T,
        tied=matrix,
        part=torch.arange(10.0)[3:7],
        bfloat16=torch.linspace(-3, 3, 7).bfloat16(),
        float16=torch.ones(2, 3).half(),
        float64=torch.ones(2).double(),
        integers=torch.arange(4),
        flags=torch.tensor([True, False]),
        scalar=torch.tensor(3.5),
        empty=torch.zeros(0, 4),
    )
    tensors._metadata = {"": {"version": 1}}
    return tensors


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_are_those_of_torch_load(is_zip, tmp_path):
    file = tmp_path / "pytorch_model.bin"
    torch.save(state_dict(), file, _use_new_zipfile_serialization=is_zip)
    expected, actual = torch.load(file, weights_only=True), PytorchFile(file)
    assert list(actual.shapes) == list(expected)
    for name, tensor in expected.items():
        array = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert actual.shapes[name] == tuple(tensor.shape)
        np.testing.assert_array_equal(actual.array(name), array.numpy())
        assert actual.array(name).dtype == array.numpy().dtype
    assert actual.dtypes["bfloat16"] == "BF16" and actual.dtypes["integers"] == "I64"


def to_pickle(folder, sharded=False):
    """Replaces safetensors by what PyTorch saves."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if not sharded:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    shards, weight_map = [{}, {}], {}
    for number, (name, tensor) in enumerate(tensors.items()):
        shards[number % 2][name] = tensor
        weight_map[name] = f"pytorch_model-0000{number % 2 + 1}-of-00002.bin"
    for number, shard in enumerate(shards, 1):
        torch.save(shard, folder / f"pytorch_model-0000{number}-of-00002.bin")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "pytorch_model.bin.index.json").write_text(index)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_with_a_pickle_has_the_same_logits(sharded, tmp_path):
    write_marian(tmp_path)
    ids = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7]])}
    expected = numpy(zoo.from_hugging_face(tmp_path).model(ids))
    to_pickle(tmp_path, sharded)
    actual = numpy(zoo.from_hugging_face(tmp_path).model(ids))
    np.testing.assert_array_equal(actual, expected)


def test_safetensors_are_preferred(tmp_path):
    write(tmp_path, "T5")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    zoo.from_hugging_face(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin cannot be read as tensors"
    ):
        zoo.from_hugging_face(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"No weights .*pytorch_model.bin"):
        zoo.from_hugging_face(tmp_path)


class Call:
    """Pickled as a call of any function."""

    def __init__(self, function, *arguments):
        self.arguments = function, arguments

    def __reduce__(self):
        return self.arguments


def touch():
    open("touched", "w").close()


def storage_file(content, members=("0",)):
    """Writes a file in the format of PyTorch 1.6 with any pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for member in members:
            archive.writestr(f"archive/data/{member}", bytes(16))
    return file.getvalue()


def tensor_file(offset=0, shape=(2, 2), strides=(2, 1), count=4, kind="FloatStorage"):
    """Writes a dict of one tensor, instruction by instruction."""

    def _numbers(*values):
        return b"(" + b"".join(b"\x8a\x08" + v.to_bytes(8, "little") for v in values)

    storage = b"(X\7\0\0\0storagectorch\n" + kind.encode() + b"\nX\1\0\0\0"
    storage += b"0X\3\0\0\0cpu" + _numbers(count)[1:] + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _numbers(offset)[1:]
    tensor += _numbers(*shape) + b"t" + _numbers(*strides) + b"t\x89"
    tensor += b"ccollections\nOrderedDict\n)RtR"
    return storage_file(b"\x80\2}X\1\0\0\0a" + tensor + b"s.")


def test_a_written_tensor_is_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(tensor_file())
    assert WeightsFolder(tmp_path).array("a").tolist() == [[0, 0], [0, 0]]


DEEP = b"\x80\2}" + b")" + b"\x85" + b"q\0h\0\x86" * 60  # a tuple of 2^60 leaves

HOSTILE = {
    "call": storage_file(pickle.dumps({"a": Call(touch)}, 2)),
    "system": storage_file(pickle.dumps(Call(__import__("os").system, "true"), 2)),
    "eval": storage_file(pickle.dumps({"a": Call(eval, "1")}, 4)),
    "getattr": storage_file(pickle.dumps({"a": Call(getattr, "", "join")}, 2)),
    "class": storage_file(pickle.dumps({"a": touch}, 2)),
    "object": storage_file(pickle.dumps({"a": Call}, 0)),
    "instance": storage_file(b"(S'true'\nios\nsystem\n."),
    "new object": storage_file(b"\x80\2}X\1\0\0\0acbuiltins\nobject\n)\x81s."),
    "dict with arguments": storage_file(b"\x80\2ccollections\nOrderedDict\n]\x85R."),
    "storage called": storage_file(b"\x80\2}X\1\0\0\0actorch\nFloatStorage\n)Rs."),
    "function called twice": storage_file(
        b"\x80\2}X\1\0\0\0accollections\nOrderedDict\n)R)Rs."
    ),
    "number": storage_file(pickle.dumps({"a": 1}, 2)),
    "list": storage_file(pickle.dumps(["a"], 2)),
    "deep key": storage_file(DEEP + b"K\1s."),
    "deep value": storage_file(b"\x80\2}X\1\0\0\0a" + DEEP[3:] + b"s."),
    "no end": storage_file(b"\x80\2}"),
    "empty stack": storage_file(b"\x80\2s."),
    "long string": storage_file(b"\x80\2X\xff\xff\xff\xffa."),
    "large index": storage_file(b"\x80\2}r\xff\xff\xff\xffh\0."),
    "repeated numbers": tensor_file(shape=(2**40,), strides=(0,)),
    "beyond": tensor_file(offset=1),
    "wide step": tensor_file(strides=(2**40, 1)),
    "negative": tensor_file(shape=(2**64 - 2, 2)),
    "many axes": tensor_file(shape=(1,) * 99, strides=(1,) * 99),
    "other strides": tensor_file(strides=(1,)),
    "large storage": tensor_file(count=2**40, shape=(2**40,), strides=(1,)),
    "other storage": tensor_file(kind="UntypedStorage"),
    "absent storage": tensor_file().replace(b"archive/data/0", b"archive/data/1"),
    "compressed": tensor_file().replace(
        b"PK\1\2\x14\3\x14\0\0\0\0\0", b"PK\1\2\x14\3\x14\0\0\0\x08\0"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_rejected(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"bin cannot be read as tensors of PyTorch"):
        WeightsFolder(tmp_path)
    assert not (tmp_path / "touched").exists()
