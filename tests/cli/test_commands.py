"""Commands: outputs line by line, errors with a status, interrupted jobs."""

import gzip
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm import zoo
from keras_tfm.cli import main, ray_cluster
from keras_tfm.cli import output as output_module
from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.pipelines import (
    Classifier,
    Comet,
    Translator,
    load,
    pretrained,
    translate_markup,
)
from tests.cli.conftest import LINES, PROGRAM, printed
from tests.decode.conftest import draw_transformer
from tests.layers.formulas import draw_weights
from tests.zoo import comet_checkpoints

torch_only = pytest.mark.backend("torch")


def test_help_loads_no_backend():
    program = (
        "import sys\nsys.argv = ['bin/keras-tfm', 'translate', '--help']\n"
        "from keras_tfm.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    assert end.code == 0\nassert 'keras' not in sys.modules"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert process.returncode == 0, process.stderr[-2000:]
    assert b"--beam-size" in process.stdout


@torch_only
def test_serve_says_what_it_loads_before_it_loads_keras():
    command = [sys.executable, "-m", "keras_tfm", "serve", "en-de", "--port", "0"]
    variables = {**os.environ, "KERAS_BACKEND": "none"}  # an import of Keras fails
    process = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith("Loading en-de ...\n"), process.stderr


@torch_only
def test_version_and_recipes_are_listed(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out.startswith("keras-tfm 0.")
    assert main(["train", "parsing"]) == 1
    error = capfd.readouterr().err
    assert "translation, classification, language-model; got 'parsing'" in error
    with pytest.raises(SystemExit) as end:
        main(["train", "translation", "--help"])
    assert end.value.code == 0
    assert "optimization options" in capfd.readouterr().out


@torch_only
def test_translate_writes_one_line_for_each_line(
    folder, translator, source, capfd, type_in, tmp_path
):
    expected = [text.replace("\n", " ") for text in translator(LINES)]
    assert main(["translate", folder, source]) == 0
    assert printed(capfd) == expected
    type_in("\r\n".join(LINES).encode())
    assert main(["translate", folder, "--window", "4"]) == 0
    assert printed(capfd) == expected
    compressed = tmp_path / "source.txt.gz"
    compressed.write_bytes(gzip.compress("\n".join(LINES).encode()))
    files = [source, str(compressed)]
    assert main(["translate", folder, *files, "--progress", "True"]) == 0
    out, err = capfd.readouterr()
    assert out.split("\n")[:-1] == expected * 2
    assert f"{2 * len(LINES):,} lines" in err
    assert main(["translate", folder, source, "--beam-size", "1"]) == 0
    greedy = Translator.load(folder, beam_size=1)(LINES)
    assert printed(capfd) == greedy != expected


@pytest.mark.slow("jax")
def test_translate_can_multiply_in_bfloat16(folder, source, capfd):
    command = ["translate", folder, source, "--matmul-precision", "bfloat16"]
    if keras.config.backend() == "tensorflow":
        assert main(command) == 1
        assert "bfloat16" in capfd.readouterr().err
        return
    translator = Translator.load(folder, matmul_precision="bfloat16")
    assert main(command) == 0
    assert printed(capfd) == translator([text.replace("\n", " ") for text in LINES])


@torch_only
def test_truncated_translations_are_counted(folder, source, tmp_path, capfd):
    short = Translator.load(folder, max_decoding_length=2)
    short.save(tmp_path / "short")
    count = sum(result.truncated for result in short.translate(LINES))
    assert 0 < count < len(LINES)
    assert main(["translate", str(tmp_path / "short"), source]) == 0
    expected = f"{count} translations were truncated at their maximum length."
    assert expected in capfd.readouterr().err


@torch_only
def test_lines_whose_numbers_differ_are_named(folder, capfd, type_in):
    flags = ["--match-numbers", "True", "--protect", "none", "--protect", "url"]
    type_in(b"a house\na house of 374")
    assert main(["translate", folder, *flags]) == 0
    assert "line 2: the numbers differ." in capfd.readouterr().err
    type_in(b'{"source": "a house of 374"}')
    assert main(["translate", folder, "--format", "jsonl", *flags]) == 0
    [line] = printed(capfd)
    assert json.loads(line)["number_mismatch"] is True


@torch_only
def test_alignments_follow_the_lines(folder, tmp_path, capfd, type_in):
    links = tmp_path / "links.txt"
    flags = ["--alignments", str(links)]
    type_in(b"a house\n\n\xff\nan old man")
    assert main(["translate", folder, *flags]) == 1  # a line is no UTF-8
    lines = printed(capfd)
    link_lines = links.read_text().split("\n")
    assert [bool(line) for line in link_lines] == [True, False, False, True, False]
    counts = [len(lines[0].split()), len(lines[3].split())]
    for line, size, count in zip(link_lines[::3], (2, 3), counts, strict=False):
        pairs = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert {i for i, _ in pairs} == set(range(size))
        assert {j for _, j in pairs} == set(range(count))
    type_in(b'{"source": "a house"}')
    assert main(["translate", folder, "--format", "jsonl", *flags]) == 0
    [line] = printed(capfd)
    assert json.loads(line)["alignment"] + "\n" == links.read_text()


@torch_only
def test_markup_is_translated(folder, translator, type_in, capfd):
    text = "<p>an <b>old</b> man</p><i>"
    expected = translate_markup(translator, text)
    type_in(f"{text}\n<br>".encode())
    assert main(["translate", folder, "--markup", "html"]) == 0
    assert printed(capfd) == [expected, "<br>"]
    type_in(json.dumps({"source": text, "id": 1}).encode())
    flags = ["--markup", "html", "--format", "jsonl"]
    assert main(["translate", folder, *flags]) == 0
    [answer] = map(json.loads, printed(capfd))
    assert answer == {"id": 1, "source": text, "translation": expected}
    assert main(["translate", folder, *flags, "--num-hypotheses", "2"]) == 1
    assert "--markup works without" in capfd.readouterr().err


@torch_only
def test_terms_of_a_glossary_are_used(folder, tmp_path, type_in, capfd):
    terms = tmp_path / "terms.tsv"
    terms.write_text("house\tboat\nman\ta long name\n", "utf-8")
    flags = ["--glossary", str(terms)]
    type_in(b"a house\nan old man")
    assert main(["translate", folder, *flags]) == 0
    out, err = capfd.readouterr()
    assert "boat" in out and "a long name" in out and "not met" not in err
    type_in(b'{"source": "an old man"}')
    assert main(["translate", folder, "--format", "jsonl", *flags]) == 0
    assert json.loads(printed(capfd)[0])["unmet_terms"] == {}


@torch_only
def test_pairs_of_presets_are_translated_and_not_scored(type_in, capfd):
    type_in(b"Wo ist der Bahnhof?\n")
    assert main(["translate", "de-fr", "--beam-size", "2"]) == 0
    assert "gare" in printed(capfd)[0]
    type_in(b"a\tb\n")
    assert main(["score", "de-fr"]) == 1
    assert "MODEL must be one model" in capfd.readouterr().err


@torch_only
def test_json_objects_have_prefixes_constraints_and_hypotheses(
    folder, translator, type_in, capfd, tmp_path
):
    items = [
        {"source": "a house"},
        {"source": "an old man", "target_prefix": "the boat", "id": [7]},
        {"source": "a house", "constraints": ["garden"]},
        {"source": ""},
    ]
    type_in("\n".join(map(json.dumps, items)).encode())
    flags = ["--format", "jsonl", "--num-hypotheses", "2"]
    assert main(["translate", folder, *flags]) == 0
    first, second, third, fourth = map(json.loads, printed(capfd))
    expected = translator.translate("a house", num_hypotheses=2)
    assert first["translation"] == expected.text
    assert [hypothesis["text"] for hypothesis in first["hypotheses"]] == [
        hypothesis.text for hypothesis in expected.hypotheses
    ]
    assert first["score"] == pytest.approx(expected.score, abs=1e-4)
    assert second["translation"].startswith("the boat") and second["id"] == [7]
    assert "garden" in third["translation"]
    assert fourth == {
        "source": "",
        "translation": "",
        "score": None,
        "truncated": False,
        "number_mismatch": False,
        "hypotheses": [{"text": "", "score": None}],
    }
    translator.replace(num_hypotheses=2).save(tmp_path / "several")
    for flags, count in (([], 1), (["--num-hypotheses", "2"], 2)):
        type_in(b'{"source": "a house"}')
        command = ["translate", str(tmp_path / "several"), "--format", "jsonl"]
        assert main([*command, *flags]) == 0
        [line] = printed(capfd)
        assert len(json.loads(line)["hypotheses"]) == count


def interrupt(command):
    """Runs a command until it has written four lines."""
    write_all = output_module.Output.write_all

    def write_four(self, texts, progress=None):
        def four():
            for number, text in enumerate(texts):
                if number == 4:
                    raise KeyboardInterrupt
                yield text

        write_all(self, four(), progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_module.Output, "write_all", write_four)
        assert main(command) == 130


@torch_only
def test_an_interrupted_translation_resumes(folder, source, tmp_path, capfd):
    target = tmp_path / "target.txt"
    command = ["translate", folder, source, "--output", str(target)]
    assert main(command) == 0
    whole = target.read_bytes()
    assert whole.count(b"\n") == len(LINES)
    assert not list(tmp_path.glob("*.part*"))
    target.unlink()
    # As after a power failure: four lines, and half of the fifth.
    interrupt(command)
    part = tmp_path / "target.txt.part"
    assert part.read_bytes() == b"".join(whole.splitlines(True)[:4])
    part.write_bytes(part.read_bytes() + b"half")
    assert main([*command, "--beam-size", "1"]) == 1
    assert "belongs to another model, other flags" in capfd.readouterr().err
    assert main([*command, "--progress", "True"]) == 0
    assert target.read_bytes() == whole
    assert f"{len(LINES):,} lines" in capfd.readouterr().err
    assert not list(tmp_path.glob("*.part*"))


def check_resumes(command, tmp_path):
    """Compares a command that was interrupted with one that was not."""
    whole, target = tmp_path / "whole", tmp_path / "target"
    assert main([*command, "--output", str(whole)]) == 0
    assert whole.read_bytes().count(b"\n") == len(LINES)
    resumed = [*command, "--output", str(target)]
    interrupt(resumed)
    part = tmp_path / "target.part"
    assert part.read_bytes() == b"".join(whole.read_bytes().splitlines(True)[:4])
    assert main([*resumed, "--window", "2"]) == 0
    assert target.read_bytes() == whole.read_bytes()
    assert main([*resumed[:-1], command[2]]) == 1  # the output is an input


@torch_only
def test_a_failed_start_leaves_nothing_behind(folder, source, tmp_path):
    target = tmp_path / "target.txt"
    command = ["translate", str(tmp_path / "none"), source, "--output", str(target)]
    assert main(command) != 0 and not list(tmp_path.glob("target*"))
    # A partial file without a complete line is discarded.
    (tmp_path / "target.txt.part").write_text("half")
    (tmp_path / "target.txt.part.json").write_text('{"of": "something else"}')
    assert main(["translate", folder, source, "--output", str(target)]) == 0
    # An output inside the model's folder does not change the model.
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    inside = str(model / "target.txt")
    command = ["translate", str(model), source, "--output", inside]
    interrupt(command)
    assert main(command) == 0
    assert (model / "target.txt").read_bytes() == target.read_bytes()


@torch_only
def test_a_preset_name_means_the_same_files_in_all_commands(tmp_path, monkeypatch):
    folder = pretrained.locate("en-de")
    assert (folder / "preset.json").is_file()
    assert output_module.fingerprints(folder)[0][1]  # other weights change it
    monkeypatch.chdir(tmp_path)
    for name in ("en-de", "mine"):
        (tmp_path / name).mkdir()
    assert pretrained.locate("en-de") == folder
    assert ray_cluster.absolute("en-de") == "en-de"
    assert ray_cluster.absolute("mine") == str(tmp_path / "mine")
    assert pretrained.locate("hf://one/two") == "hf://one/two"
    (tmp_path / "en-de" / "classifier.json").write_text("{}")
    assert isinstance(load("en-de"), Translator)


@torch_only
def test_lines_that_cannot_be_translated_are_named_and_the_others_written(
    folder, translator, tmp_path, capfd, type_in
):
    first, second, target = (tmp_path / n for n in ("a.txt", "b.txt", "out.txt"))
    first.write_bytes(b"a house\n\xff\n")
    second.write_bytes(b"old\n\n\xe9t\xe9\na man")
    command = ["translate", folder, str(first), str(second), "--output", str(target)]
    assert main(command) == 1
    error = capfd.readouterr().err
    assert f"{first}, line 2: byte 1 of the line (0xff)" in error
    assert f"{second}, line 3: byte 1 of the line (0xe9)" in error
    assert "2 lines have no answer, and are empty lines in the output" in error
    house, old, man = translator(["a house", "old", "a man"])
    assert target.read_text().split("\n") == [house, "", old, "", "", man, ""]
    type_in(b"a house\n\xff\nold")
    assert main(["translate", folder]) == 1
    out, error = capfd.readouterr()
    assert out.splitlines() == [house, "", old]
    assert "standard input, line 2: byte 1" in error and "Traceback" not in error
    # A prefix that reaches the maximum length is rejected by the decoder.
    objects = tmp_path / "texts.jsonl"
    long = json.dumps({"source": "old", "target_prefix": "a house " * 200, "id": 3})
    rows = ['{"source": "a man"}', "no", long, '{"source": 4}', '{"source": "old"}']
    objects.write_text("\n".join(rows))
    command = ["translate", folder, str(objects), "--format", "jsonl"]
    for window in ("1", "100"):
        assert main([*command, "--window", window]) == 1
        out, error = capfd.readouterr()
        answers = [json.loads(line) for line in out.splitlines()]
        assert [answer.get("translation") for answer in answers] == [
            *(man, None, None, None, old)
        ]
        assert answers[2]["id"] == 3 and "prefix" in answers[2]["error"]
        for number, answer in enumerate(answers[1:4], start=2):
            assert answer["error"].startswith(f"{objects}, line {number}: ")
            assert f"keras-tfm: {answer['error']}" in error
        assert 'got {"source": 4}' in error or "'{\"source\": 4}'" in error
        assert '3 lines have no answer, and are objects with "error"' in error
    first.write_text("No JSON here.\n" * 20)
    assert main(["translate", folder, str(first), "--format", "jsonl"]) == 1
    out, error = capfd.readouterr()
    assert out == "" and error.count("\n") == 1
    assert "None of the first 20 lines has an answer" in error


@torch_only
def test_invalid_flags_and_files_are_rejected(folder, source, tmp_path, capfd):
    def error_of(*command):
        assert main(list(command)) == 1
        return capfd.readouterr().err

    target = str(tmp_path / "out.txt")
    assert "'no" in error_of("translate", "no-such-model")
    missing = str(tmp_path / "no.txt")
    error = error_of("translate", folder, source, missing, "--output", target)
    assert "no.txt', which is not a file" in error
    error = error_of("translate", folder, source, "--window", "0", "--output", target)
    assert "--window must be at least 1; got 0" in error
    error = error_of("translate", folder, source, "--num-hypotheses", "2")
    assert "--num-hypotheses needs --format jsonl" in error
    file = tmp_path / "texts.jsonl"
    file.write_text('{"source": "a"}\n')
    command = ["translate", folder, str(file), "--format", "jsonl"]
    error = error_of(*command, "--num-hypotheses", "9", "--output", target)
    assert "--num-hypotheses=9" in error and "Line" not in error
    assert not list(tmp_path.glob("out*"))
    content = file.read_bytes()
    error = error_of("translate", folder, str(file), "--output", str(file))
    assert "--output must not be an input file" in error
    for flag, second in (
        *(("--output", "--glossary"), ("--output", "--alignments")),
        *(("--alignments", None), ("--alignments", "--glossary")),
    ):
        flags = [flag, str(file), *([second, str(file)] if second else [])]
        texts = str(file) if second is None else source
        error = error_of("translate", folder, texts, *flags)
        assert re.search("must not be an input file|must be two files", error)
        assert flag in error
    pair = [source, source, "--compare", str(file), "--output", str(file)]
    error = error_of("evaluate", folder, *pair)
    assert "--output must not be an input file" in error
    nowhere = str(tmp_path / "nowhere" / "out")
    error = error_of("translate", folder, source, "--alignments", nowhere)
    assert "--alignments must be in an existing folder" in error
    assert file.read_bytes() == content
    file.write_text("")
    assert main(["translate", folder, str(file), source]) == 0
    assert len(printed(capfd)) == len(LINES)
    with pytest.raises(SystemExit) as end:
        main(["translate", folder, "--no-such-flag"])
    assert end.value.code == 2


@torch_only
@pytest.mark.parametrize("command", ["translate", "classify", "score"])
def test_files_are_checked_before_a_model_is_loaded(
    command, folder, tmp_path, capfd, monkeypatch
):
    missing = str(tmp_path / "none.txt")
    for pipeline in (Translator, Classifier):
        monkeypatch.setattr(pipeline, "from_preset", lambda *_, **__: 1 / 0)
    assert main([command, folder, missing]) == 1
    assert f"FILE must be a text file; got {missing!r}" in capfd.readouterr().err


def start(*arguments, **options):
    """Starts a command as a process that Ctrl-C reaches.

    A process that a shell starts in the background, as these tests may be,
    ignores it.
    """
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@torch_only
@pytest.mark.parametrize("stream", ["input", "output"])
def test_a_closed_stream_is_an_error(stream, folder):
    redirection = {"input": "<&-", "output": ">&-"}[stream]
    # Only a shell can close it before the process starts.
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-c", PROGRAM]
    process = subprocess.run(
        [*shell, "translate", folder],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        input=b"a\n",
        capture_output=True,
    )
    assert process.returncode == 1 and b"Traceback" not in process.stderr
    assert f"Standard {stream} is closed".encode() in process.stderr


@torch_only
def test_answers_do_not_need_a_standard_error(folder):
    shell = ["sh", "-c", '"$@" 2>&-', "sh", sys.executable, "-c", PROGRAM]
    process = subprocess.run(
        [*shell, "translate", folder],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        input=b"a house\n\xff\nold\n",
        capture_output=True,
    )
    assert process.returncode == 1
    first, second, third, end = process.stdout.split(b"\n")
    assert first and third and (second, end) == (b"", b"")


@torch_only
def test_a_full_disk_is_an_error(folder):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with (
        open("/dev/full", "wb") as full,
        start("translate", folder, stdout=full) as process,
    ):
        _, error = process.communicate(b"a house\n" * 3, timeout=120)
    assert process.returncode == 1 and b"No space left" in error
    assert b"Traceback" not in error and b"Exception ignored" not in error


@pytest.mark.slow
@torch_only
@pytest.mark.parametrize(("reason", "status"), [("pipe", 141), ("interrupt", 130)])
def test_a_process_ends_without_a_traceback(reason, status, folder):
    command = ["translate", folder, "--window", "1"]
    with start(*command, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"a house\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
        if reason == "pipe":
            process.stdout.close()
            process.stdin.write(b"a house\n" * 5)
            process.stdin.close()
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == status
        assert b"Traceback" not in process.stderr.read()


@torch_only
def test_too_little_memory_is_an_error(monkeypatch, capfd):
    def run(arguments):
        raise MemoryError("Unable to allocate 9 GiB.")

    module = importlib.import_module("keras_tfm.cli.main")
    monkeypatch.setattr(module, "_run", run)
    assert module.main(["translate"]) == 1
    error = capfd.readouterr().err
    assert error.startswith("keras-tfm: there is too little memory. Unable to")


@torch_only
def test_score_scores_translations(
    folder, translator, source, capfd, type_in, tmp_path, monkeypatch
):
    pairs = [("a house", "the boat"), ("an old man", "a garden"), ("", "a")]
    expected = translator.score(pairs)
    type_in("".join(f"{s}\t{t}\n" for s, t in pairs).encode())
    assert main(["score", folder]) == 0
    scores = [float(line) for line in printed(capfd)]
    np.testing.assert_allclose(scores, [r.score for r in expected], atol=1e-4)
    items = [{"source": s, "target": t, "id": i} for i, (s, t) in enumerate(pairs)]
    del items[1]["id"]
    type_in("\n".join(map(json.dumps, items)).encode())
    assert main(["score", folder, "--format", "jsonl"]) == 0
    results = [json.loads(line) for line in printed(capfd)]
    assert [result.get("id", "") for result in results] == [0, "", 2]
    assert results[0]["tokens"][-1] == "</s>" and results[2]["score"] is None
    assert results[0]["score"] == pytest.approx(expected[0].score, abs=1e-4)
    type_in(b'{"source": "a house"}\n')
    assert main(["score", folder, "--format", "jsonl"]) == 1
    assert "line 1: expected a JSON object with 'source'" in capfd.readouterr().err
    type_in(b"a house\tthe boat\tCC-BY\n")
    assert main(["score", folder]) == 0
    assert float(printed(capfd)[0]) == pytest.approx(expected[0].score, abs=1e-4)
    type_in(b"a house\n")
    assert main(["score", folder]) == 1
    error = capfd.readouterr().err
    assert "standard input, line 1" in error and "or give two" in error
    check_resumes(["score", folder, source, source], tmp_path)
    # After a resume an error names the line of the file.
    command = ["score", folder, source, source, "--output", str(tmp_path / "again")]
    interrupt(command)

    def reject(*_):
        raise ValueError("no")

    monkeypatch.setattr(Translator, "score", reject)
    assert main(command) == 1
    assert f"{source}, {source}, line 5: no" in capfd.readouterr().err


@torch_only
def test_evaluate_scores_a_test_set(
    folder, translator, source, tmp_path, capfd, type_in
):
    pytest.importorskip("sacrebleu")
    target = tmp_path / "target.txt"
    target.write_text("".join(f"{text}\n" for text in translator(LINES)))
    assert main(["evaluate", folder, source, str(target)]) == 0
    out = capfd.readouterr().out
    assert "nrefs:1" in out and "BLEU 100.00" in out
    assert f"{len(LINES)} lines" in out
    pairs = zip(LINES, target.read_text().splitlines(), strict=True)
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    assert main(["evaluate", folder, str(tsv)]) == 0
    assert "BLEU 100.00" in capfd.readouterr().out
    command = ["evaluate", "nowhere", source, str(target)]
    assert main([*command, "--output", str(tmp_path / "out.txt")]) == 1
    assert not [*tmp_path.glob("out.txt*")]
    capfd.readouterr()
    (tmp_path / "short.txt").write_text("one\n")
    assert main(["evaluate", folder, source, str(tmp_path / "short.txt")]) == 1
    assert "short.txt" in capfd.readouterr().err
    type_in(b"")
    assert main(["evaluate", folder]) == 1
    assert "at least one pair of a source and a reference" in capfd.readouterr().err


@torch_only
def test_evaluate_compares_with_another_system(
    folder, translator, source, tmp_path, capfd
):
    translations = translator(LINES)
    target, baseline = tmp_path / "target.txt", tmp_path / "other.txt"
    target.write_text("".join(f"{text}\n" for text in translations))
    baseline.write_text("".join(f"{text[1:]} too\n" for text in translations))
    command = ["evaluate", folder, source, str(target), "--compare", str(baseline)]
    assert main([*command, "--ter"]) == 0
    out = capfd.readouterr().out
    assert "TER  0.00 ± 0.00" in out
    comparison = out.partition("Paired bootstrap")[2]
    for name, expected in (("BLEU", 100), ("chrF2", 100), ("TER", 0)):
        numbers = re.search(rf"{name} +(\S+) -> (\S+) \((\S+)\), p = (\S+)", comparison)
        old, new, difference, p_value = map(float, numbers.groups())
        assert new == expected and abs(difference) > 10 and p_value < 0.05
        assert new - old == pytest.approx(difference, abs=0.011)
    baseline.write_text("one line\n")
    assert main(command) == 1
    assert "--compare must hold one translation for each" in capfd.readouterr().err
    baseline.unlink()
    assert main(command) == 1
    assert "--compare must be a text file; got" in capfd.readouterr().err
    assert main([*command[:4], "--tokenize", "moses"]) == 1
    assert "--tokenize must be one of" in capfd.readouterr().err


@torch_only
def test_evaluate_scores_and_compares_with_comet(
    folder, translator, source, tmp_path, capfd
):
    encoder = comet_checkpoints.write_encoder(tmp_path / "encoder")
    _, tensors = comet_checkpoints.draw(encoder)
    comet = str(comet_checkpoints.write_checkpoint(tmp_path / "comet", tensors))
    translations = translator(LINES)
    target, baseline = tmp_path / "target.txt", tmp_path / "other.txt"
    target.write_text("".join(f"{text[::-1]}\n" for text in translations))
    baseline.write_text("a house " * 99 + "\n" + "the boat.\n" * (len(LINES) - 1))
    command = ["evaluate", folder, source, str(target), "--comet", comet]
    command += ["--comet-encoder", str(encoder)]
    assert main([*command, "--compare", str(baseline)]) == 0
    out = capfd.readouterr().out
    scorer = Comet.load(comet, encoder)
    references = target.read_text().split("\n")[:-1]
    systems = translations, baseline.read_text().split("\n")[:-1]
    means = [scorer.score(LINES, system, references).mean for system in systems]
    assert f"COMET {means[0]:.4f} ± 0.0" in out
    assert f"model:{comet}|version" in out and "nrefs:1|bs:1000|seed:12345" in out
    assert f"COMET {means[1]:.4f} -> {means[0]:.4f} (" in out
    assert f"80 tokens of a text in 1 of {len(LINES)} segments of {baseline}" in out
    assert main([*command[:4], *command[-2:]]) == 1
    assert "--comet-encoder needs --comet" in capfd.readouterr().err
    (encoder / "tokenizer.json").unlink()
    assert main(command) == 1
    assert "--comet-encoder must have a `tokenizer.json` or" in capfd.readouterr().err


@torch_only
def test_evaluate_reads_public_test_sets(
    folder, translator, tmp_path, capfd, monkeypatch
):
    """sacrebleu downloads a test set once; here its folder has one already."""
    dataset = pytest.importorskip("sacrebleu.dataset").DATASETS["wmt19"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    texts = [text.replace("\n", " ") for text in LINES if text]
    content = {"src": texts, "ref": translator(texts)}
    for name in dataset.fieldnames("en-de"):
        file = tmp_path / f"wmt19.en-de.{name}"
        file.write_text("".join(f"{text}\n" for text in content.get(name, texts)))
    command = ["evaluate", folder, "--test", "wmt19"]
    assert main([*command, "--language-pair", "en-de"]) == 0
    assert "BLEU 100.00" in capfd.readouterr().out
    for flags, message in (
        ([], "--language-pair must be one of cs-de, de-cs"),
        (["--language-pair", "en-xx"], "got 'en-xx'"),
        (["--test", "wmt9"], "Did you mean wmt19 or"),
        ([str(file)], "--test replaces FILE"),
    ):
        assert main([*command, *flags]) == 1
        assert message in capfd.readouterr().err


@torch_only
def test_inspect_prints_the_configuration(folder, translator, capfd):
    assert main(["inspect", folder]) == 0
    out = capfd.readouterr().out
    assert f"parameters: {translator.model.count_params():,}" in out
    assert "beam_size: 2" in out and "280 tokens" in out
    assert main(["inspect"]) == 0
    assert "en-de: translation, en to de" in capfd.readouterr().out
    assert main(["inspect", "sentiment-en"]) == 0
    out = capfd.readouterr().out
    assert "languages: en\n" in out and "num_layers: " in out
    assert main(["inspect", "de-fr"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("from de: de-en, then en-fr\n")
    assert "languages: de to en\n" in out and "languages: en to fr\n" in out
    assert main(["inspect", "auto-de"]) == 0
    out = capfd.readouterr().out
    assert "from fr: fr-en, then en-de\n" in out and out.count("parameters: ") > 2
    assert main(["export", "de-fr", "unwritten"]) == 1
    assert "MODEL must be one model; got 'de-fr'" in capfd.readouterr().err


@torch_only
@pytest.mark.parametrize(
    ("changes", "added_tokens", "adds_end"),
    [
        ({}, {}, False),
        ({"source_prefix": [270, 9]}, {"before each source": [270, 9]}, False),
        # The suffix of NLLB, then the suffix of other models.
        (
            {"source_suffix": [3, 270], "target_prefix": [9]},
            {"after each source": [3, 270], "as target_prefix": [9]},
            False,
        ),
        (
            {"source_suffix": [270, 3], "target_prefix": [9]},
            {"after each source": [270], "as target_prefix": [9]},
            True,
        ),
    ],
)
def test_export_to_ctranslate2_names_the_tokens_that_it_needs(
    changes, added_tokens, adds_end, translator, tmp_path, capfd
):
    pytest.importorskip("ctranslate2")
    translator.replace(**changes).save(tmp_path / "saved")
    command = ["export", str(tmp_path / "saved"), str(tmp_path / "out")]
    command += ["--format", "ctranslate2", "--quantization", "int8"]
    assert main(command) == 0
    assert (tmp_path / "out" / "model.bin").is_file()
    error = capfd.readouterr().err
    assert error.count("Pass these tokens to CTranslate2") == len(added_tokens)
    for position, ids in added_tokens.items():
        tokens = " ".join(translator.vocabulary.tokens(ids))
        assert f"{position}: {tokens}\n" in error
    if changes:
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["add_source_eos"] is adds_end


@torch_only
def test_export_names_the_text_steps_that_others_lack(tmp_path, capfd):
    pytest.importorskip("ctranslate2")
    for name in ("ctranslate2", "transformers", "keras"):
        command = ["export", "en-de", str(tmp_path / name), "--format", name]
        assert main(command) == 0
        err = capfd.readouterr().err
        count = 0 if name == "keras" else 1
        assert err.count("keras-tfm: The export translates text as it is,") == count
        assert ("without `protect`, `match_numbers`, `known_words`, " in err) == count
    model = Translator.from_preset("en-de")
    with pytest.warns(UserWarning, match="`add_final_mark`, `avoid_loops` of the"):
        zoo.to_hugging_face(model.model, tmp_path / "t", options=model.changes())


@torch_only
def test_export_writes_other_formats(folder, translator, tmp_path, capfd):
    assert main(["export", folder, str(tmp_path / "keras"), "--format", "keras"]) == 0
    loaded = Translator.load(tmp_path / "keras")
    assert loaded("a house") == translator("a house")
    assert loaded.target_vocabulary is loaded.vocabulary
    capfd.readouterr()
    for name, flag in (("keras", "--version"), ("saved-model", "--quantization")):
        command = ["export", folder, str(tmp_path / "no"), "--format", name, flag, "2"]
        assert main(command) == 1 and not (tmp_path / "no").exists()
        expected = f"{flag} has no effect with --format {name}; got 2"
        assert expected in capfd.readouterr().err
    pytest.importorskip("safetensors")
    target = [str(tmp_path / "theirs"), "--format", "transformers"]
    assert main(["export", folder, *target]) == 1  # three embedding matrices
    assert "tie" in capfd.readouterr().err
    model = draw_transformer(6, vocabulary_size=280, tie="all", normalize_first=False)
    Translator(model, translator.vocabulary).save(tmp_path / "tied")
    assert main(["export", str(tmp_path / "tied"), *target]) == 0
    names = {file.name for file in (tmp_path / "theirs").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= names


@torch_only
def test_classify_writes_one_label_for_each_line(vocabulary, source, tmp_path, capfd):
    encoder = Encoder(vocabulary.size, 1, 8, 12, 2)
    model = draw_weights(SequenceClassifier(encoder, 2), 0)
    classifier = Classifier(model, vocabulary, ["good", "bad"])
    classifier.save(tmp_path / "classifier")
    folder = str(tmp_path / "classifier")
    file = tmp_path / "texts.txt"
    texts = [line for line in LINES if line.strip()]
    file.write_text("\n".join(texts))
    assert main(["classify", folder, str(file)]) == 0
    predictions = classifier(texts)
    rows = [f"{p.label}\t{p.probability:.4f}" for p in predictions]
    assert printed(capfd) == rows
    objects = tmp_path / "texts.jsonl"
    items = [{"text": line, "id": i} for i, line in enumerate(LINES)]
    objects.write_text("\n".join(map(json.dumps, items)))
    assert main(["classify", folder, str(objects), "--format", "jsonl"]) == 0
    results = [json.loads(line) for line in printed(capfd)]
    assert [result["id"] for result in results] == list(range(len(LINES)))
    is_empty = [not line.strip() for line in LINES]
    assert [result["label"] is None for result in results] == is_empty
    labels = [result["label"] for result in results if result["label"]]
    assert labels == [prediction.label for prediction in predictions]
    assert results[0]["probabilities"].keys() == {"good", "bad"}
    assert main(["classify", folder, source, "--format", "jsonl"]) == 1
    assert "line 1: expected a JSON object with 'text'" in capfd.readouterr().err
    file.write_bytes(b"\xff\n" + texts[0].encode())
    assert main(["classify", folder, str(file)]) == 1
    assert printed(capfd) == ["", rows[0]]
    assert main(["classify", folder, source, "--window", "2"]) == 0
    remaining = iter(rows)
    assert printed(capfd) == [
        "" if no_text else next(remaining) for no_text in is_empty
    ]
    # The vocabulary has no token for this character, which is not whitespace.
    file.write_text(f"\u200b\n{texts[0]}\n\u200b\u200b\n", encoding="utf-8")
    assert main(["classify", folder, str(file)]) == 0
    assert printed(capfd) == ["", rows[0], ""]
    file.write_text(f"a house\n{'a boat ' * 300}\n" * 2, encoding="utf-8")
    assert main(["classify", folder, str(file), "--window", "2"]) == 0
    assert "2 texts were truncated at 256 tokens." in capfd.readouterr().err
    check_resumes(["classify", folder, source], tmp_path)
    assert main(["inspect", folder]) == 0
    assert "classes: ['good', 'bad']" in capfd.readouterr().out
    pairs = Classifier(model, vocabulary, ["good", "bad"], paired=True)
    pairs.save(tmp_path / "pairs")
    objects.write_text('{"text": "a house", "second": "a boat", "id": null}')
    command = ["classify", str(tmp_path / "pairs"), str(objects), "--format=jsonl"]
    assert main(command) == 0
    result = json.loads(printed(capfd)[0])
    [prediction] = pairs([("a house", "a boat")])
    assert (result["id"], result["label"]) == (None, prediction.label)


@torch_only
@pytest.mark.parametrize("saved", ["model", "unfinished"])
def test_average_averages_the_last_epochs(translator, saved, tmp_path, capfd):
    run = tmp_path / "run"
    translator.save(run / saved)
    (run / "averages").mkdir()
    original = translator.model.get_weights()
    weights = [np.ones_like(array) * 3 for array in original]
    for number, shift in ((1, 100), (2, 0), (3, 2)):
        translator.model.set_weights([array + shift for array in weights])
        file = run / "averages" / f"epoch_{number:04d}.weights.h5"
        translator.model.save_weights(file)
    translator.model.set_weights(original)
    assert main(["average", str(run), str(tmp_path / "mean"), "--last", "2"]) == 0
    expected = "epoch_0002.weights.h5, epoch_0003.weights.h5"
    assert expected in capfd.readouterr().out
    average = Translator.load(tmp_path / "mean").model.get_weights()
    assert all(np.all(array == 4) for array in average)
    assert main(["average", str(tmp_path), str(tmp_path / "mean")]) == 1
    assert "no folder `averages`" in capfd.readouterr().err
