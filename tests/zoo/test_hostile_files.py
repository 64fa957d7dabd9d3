"""Damaged and hostile weight files raise an error and take little memory."""

import functools
import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm.file_reading import reading
from keras_tfm.zoo.ctranslate2.model_bin import ModelBin
from keras_tfm.zoo.huggingface.weights_folder import WeightsFolder
from keras_tfm.zoo.marian.weights_file import WeightsFile
from keras_tfm.zoo.marian.yaml_file import read_yaml

pytestmark = pytest.mark.backend("torch")  # no backend is used
ARRAYS = {
    "encoder_Wemb": np.arange(600, dtype="float32").reshape(100, 6),
    "encoder_l1_ffn_b1": np.ones((1, 6), "float32"),
}
CONFIG = b"type: transformer\n\0"
START = 700  # bytes that are changed: all headers are among them


def npz():
    file = io.BytesIO()
    arrays = {**ARRAYS, "special:model.yml": np.frombuffer(CONFIG, "int8")}
    np.savez(file, **arrays)
    return file.getvalue()


def marian_bin():
    arrays = {**ARRAYS, "special:model.yml": np.frombuffer(CONFIG, "int8")}
    kinds = {"float32": 0x404, "int8": 0x101}
    head, datas = struct.pack("<2Q", 1, len(arrays)), b""
    for name, array in arrays.items():
        data = array.tobytes()
        kind = kinds[str(array.dtype)]
        head += struct.pack("<4Q", len(name) + 1, kind, array.ndim, len(data))
        datas += data
    head += b"".join(name.encode() + b"\0" for name in arrays)
    head += b"".join(struct.pack(f"<{a.ndim}i", *a.shape) for a in arrays.values())
    return head + struct.pack("<Q", 0) + datas


def model_bin():
    def text(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<I", 7)
    content += struct.pack("<I", len(ARRAYS))
    for name, array in ARRAYS.items():
        content += text(name) + struct.pack("<B", array.ndim)
        content += struct.pack(f"<{array.ndim}I", *array.shape)
        content += struct.pack("<BI", 0, array.nbytes) + array.tobytes()
    return content + struct.pack("<I", 0)


def safetensors():
    return pytest.importorskip("safetensors.numpy").save(ARRAYS)


def pytorch(is_zip):
    import torch

    file = io.BytesIO()
    tensors = {name: torch.tensor(array) for name, array in ARRAYS.items()}
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


FORMATS = {
    "npz": (npz, "model.npz", WeightsFile),
    "bin": (marian_bin, "model.bin", WeightsFile),
    "CTranslate2": (model_bin, "model.bin", ModelBin),
    "safetensors": (
        safetensors,
        "model.safetensors",
        lambda file: WeightsFolder(file.parent),
    ),
    "PyTorch": (
        functools.partial(pytorch, True),
        "pytorch_model.bin",
        lambda file: WeightsFolder(file.parent),
    ),
    "PyTorch before 1.6": (
        functools.partial(pytorch, False),
        "pytorch_model.bin",
        lambda file: WeightsFolder(file.parent),
    ),
}


@functools.cache
def intact_file(form):
    return FORMATS[form][0]()


def read(form, folder, content):
    """Reads all arrays of a file with this content."""
    _, name, reader = FORMATS[form]
    (folder / name).write_bytes(content)
    actual = reader(folder / name)
    names = getattr(actual, "shapes", None) or actual.arrays
    return {name: np.array(actual.array(name)) for name in names}


@pytest.mark.parametrize("form", FORMATS)
def test_an_intact_file_is_read(form, tmp_path):
    actual = read(form, tmp_path, intact_file(form))
    assert set(actual) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=100)
@given(data=st.data())
def test_a_changed_header_is_read_or_rejected_without_much_memory(
    form, data, tmp_path_factory
):
    content = bytearray(intact_file(form))
    # The directory of a zip file is at its end.
    from_end = form == "npz" and data.draw(st.booleans(), "at the end")
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        offset = data.draw(st.integers(0, min(START, len(content) - 9)), "place")
        offset = len(content) - 9 - offset if from_end else offset
        size = data.draw(st.sampled_from([1, 4, 8]), "size")
        value = data.draw(
            st.one_of(
                st.sampled_from([0, 1, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63]),
                st.integers(0, 2**64 - 1),
            ),
            "value",
        )
        content[offset : offset + size] = struct.pack("<Q", value % 2**64)[:size]
    folder = tmp_path_factory.getbasetemp() / form
    folder.mkdir(exist_ok=True)
    tracemalloc.start()
    try:
        read(form, folder, bytes(content))
    except ValueError as error:
        assert str(folder) in str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 2_000_000  # the file has 4,000 bytes


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_rejected(form, fraction, tmp_path):
    content = intact_file(form)
    with pytest.raises(ValueError, match=r"damaged"):
        read(form, tmp_path, content[: int(len(content) * fraction)])


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_duplicate_array_is_rejected(tmp_path):
    first, second = (name.encode() for name in ARRAYS)
    content = intact_file("bin").replace(second, first.ljust(len(second), b"\0"))
    with pytest.raises(ValueError, match="'encoder_Wemb' exists twice"):
        read("bin", tmp_path, content)
    content = intact_file("CTranslate2").replace(
        second, first.ljust(len(second), b"\0")
    )
    with pytest.raises(ValueError, match="'encoder_Wemb' exists twice"):
        read("CTranslate2", tmp_path, content)
    file = io.BytesIO(intact_file("npz"))
    with zipfile.ZipFile(file, "a") as archive:
        name = archive.namelist()[0]
        archive.writestr(name, archive.read(name))
    with pytest.raises(ValueError, match="exists twice"):
        read("npz", tmp_path, file.getvalue())


def member(header, data=b"\0" * 64):
    file = io.BytesIO()
    header = header.encode().ljust(118) + b"\n"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        archive.writestr("Wemb.npy", start + data)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            member("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}"),
            "of type float32 and shape",
        ),
        (
            member("{'descr': '<f4', 'fortran_order': False, 'shape': (2**40,)}"),
            "malformed node",
        ),
        (
            member("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,)}"),
            "of shape .* must have",
        ),
        (
            member("{'descr': '|O', 'fortran_order': False, 'shape': (8,)}"),
            "of type object",
        ),
        (member("", b"\0" * 10_000_000), "bytes are compressed into"),
        *(
            (
                member(
                    f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({n},)}}"
                ),
                r"of type .* and shape",
            )
            for dtype, n in (("<c8", 8), ("<U4", 4), ("<M8[s]", 8), ("|b1", 64))
        ),
    ],
    ids=[
        *("negative", "code", "long", "objects", "bomb"),
        *("complex", "text", "dates", "bool"),
    ],
)
def test_a_hostile_npz_is_rejected(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read("npz", tmp_path, content)


@pytest.mark.parametrize("value", [2**36, 2**63, 2**64 - 1])
@pytest.mark.parametrize("start", range(9, 25))
def test_a_zip_with_a_false_directory_is_read_or_rejected(start, value, tmp_path):
    content = bytearray(npz())
    content[-start : len(content) - start + 8] = struct.pack("<Q", value)
    try:
        read("npz", tmp_path, bytes(content))
    except ValueError as error:
        assert str(tmp_path) in str(error)


def test_a_panic_of_rust_names_the_file(tmp_path):
    class PanicException(BaseException):
        """As tokenizers raise it."""

    with (
        pytest.raises(ValueError, match="a.json cannot be read as .* no entry"),
        reading(tmp_path / "a.json", "a tokenizer"),
    ):
        raise PanicException("no entry found for key")
    with pytest.raises(KeyboardInterrupt), reading(tmp_path, "a tokenizer"):
        raise KeyboardInterrupt


def test_yaml_creates_no_objects(tmp_path):
    file = io.BytesIO()
    text = b"!!python/object/apply:os.system ['touch here']\0"
    np.savez(file, **{"special:model.yml": np.frombuffer(text, "int8")})
    with pytest.raises(
        ValueError, match="cannot be read as YAML.*could not determine a constructor"
    ):
        read("npz", tmp_path, file.getvalue())
    assert not (tmp_path / "here").exists()


def test_yaml_aliases_do_not_expand(tmp_path):
    lines = ["a0: &a0 {k: 1}"]
    for i in range(1, 11):
        lines.append(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}")
    with pytest.raises(ValueError, match="refers to parts of itself"):
        read_yaml("\n".join(lines).encode(), tmp_path / "decoder.yml")


def test_a_scale_has_a_number_for_each_row(tmp_path, monkeypatch):
    wide = {"w": np.ones((1, 5), "float32"), "w_scale": np.ones(1000, "float32")}
    monkeypatch.setitem(globals(), "ARRAYS", wide)
    with pytest.raises(
        ValueError, match="'w_scale' must have a number for each row of 'w'"
    ):
        read("CTranslate2", tmp_path, model_bin())
    for scale in (np.full(1, 2.0, "float32"), np.array(2.0, "float32")):
        monkeypatch.setitem(globals(), "ARRAYS", {**wide, "w_scale": scale})
        actual = read("CTranslate2", tmp_path, model_bin())
        np.testing.assert_array_equal(actual["w"], wide["w"] / 2)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": [1]}', "[" * 100_000])
def test_an_index_without_files_is_rejected(content, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index.json"):
        WeightsFolder(tmp_path)


def test_an_index_names_files_of_its_folder_alone(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    inside, outside = tmp_path / "folder", tmp_path / "outside.safetensors"
    inside.mkdir()
    safetensors.save_file(ARRAYS, outside)
    for name in ("../outside.safetensors", str(outside)):
        index = {"weight_map": dict.fromkeys(ARRAYS, name)}
        (inside / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(FileNotFoundError, match=r"outside.safetensors'\] missing"):
            WeightsFolder(inside)


def test_a_duplicate_tensor_is_rejected(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    for name in ("a", "b"):
        safetensors.save_file(ARRAYS, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="'encoder_Wemb' exists twice"):
        WeightsFolder(tmp_path)


def safetensors_with_offsets(offsets):
    header = {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": offsets[0]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": offsets[1]},
    }
    text = repr(header).replace("'", '"').encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 32


@pytest.mark.parametrize(
    "content",
    [
        safetensors_with_offsets([[0, 16], [0, 16]]),
        safetensors_with_offsets([[0, 16], [8, 24]]),
        safetensors_with_offsets([[0, 16], [16, 2**40]]),
        struct.pack("<Q", 2**60) + b"{}",
    ],
    ids=["same", "overlap", "beyond", "long header"],
)
def test_hostile_safetensors_are_rejected(content, tmp_path):
    pytest.importorskip("safetensors")
    with pytest.raises(ValueError, match=r"cannot be read as safetensors.*damaged"):
        read("safetensors", tmp_path, content)
