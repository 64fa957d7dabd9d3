"""The command line: lines in their order, faults said, runs gone on with."""

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_tfm.cli import main
from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.pipelines import Classifier, Translator, load
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.layers.formulas import draw_weights
from tests.pipelines.test_translator import SETTINGS, TEXTS

LINES = [*TEXTS, "the boat.", "a man"]
PROGRAM = "import sys; from keras_tfm.cli import main; sys.exit(main())"


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train([text for text in TEXTS if text.isascii()] * 20, size=280)


@pytest.fixture(scope="module")
def translator(vocabulary):
    model = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    return Translator(model, vocabulary, **SETTINGS)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    translator.save(folder)
    return str(folder)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.txt"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(file)


def given(monkeypatch, content):
    """Makes bytes the standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def said(capfd):
    """What a command has written, line by line."""
    return capfd.readouterr().out.split("\n")[:-1]


def start(*arguments, **options):
    """Starts a command as a process that Ctrl-C reaches.

    What a shell starts in the background, these tests too, may not hear it.
    """
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_help_loads_no_backend():
    program = (
        "import sys\nfrom keras_tfm.cli import main\n"
        "try:\n    main(['translate', '--help'])\nexcept SystemExit as end:\n"
        "    assert end.code == 0\nassert 'keras' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"--beam-size" in done.stdout


@pytest.mark.backend("torch")
def test_a_line_is_translated_for_a_line(
    folder, translator, source, capfd, monkeypatch, tmp_path
):
    wanted = [text.replace("\n", " ") for text in translator(LINES)]
    assert main(["translate", folder, source]) == 0
    assert said(capfd) == wanted
    given(monkeypatch, "\r\n".join(LINES).encode())
    assert main(["translate", folder, "--window", "4"]) == 0
    assert said(capfd) == wanted
    packed = tmp_path / "source.txt.gz"
    packed.write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert main(["translate", folder, source, str(packed), "--progress", "True"]) == 0
    out, err = capfd.readouterr()
    assert out.split("\n")[:-1] == wanted * 2
    assert f"{2 * len(LINES):,} lines" in err
    assert main(["translate", folder, source, "--beam-size", "1"]) == 0
    greedy = Translator.load(folder, beam_size=1)(LINES)
    assert said(capfd) == greedy != wanted


def test_translate_by_products_in_bfloat16(folder, source, capfd):
    ask = ["translate", folder, source, "--matmul-precision", "bfloat16"]
    if keras.config.backend() == "tensorflow":
        assert main(ask) == 1
        assert "KERAS_BACKEND=jax or torch" in capfd.readouterr().err
        return
    wanted = Translator.load(folder, matmul_precision="bfloat16")
    assert wanted.search.options.matmul_precision == "bfloat16"
    assert main(ask) == 0
    assert said(capfd) == wanted([text.replace("\n", " ") for text in LINES])


@pytest.mark.backend("torch")
def test_translations_that_were_cut_are_counted(folder, source, tmp_path, capfd):
    short = Translator.load(folder, max_decoding_length=2)
    short.save(tmp_path / "short")
    found = short.translate(LINES)
    count = sum(not one.hypotheses[0].finished for one in found)
    assert 0 < count < len(LINES)
    assert main(["translate", str(tmp_path / "short"), source]) == 0
    said = capfd.readouterr().err
    assert f"{count} translations were cut at their limit of tokens." in said


@pytest.mark.backend("torch")
def test_objects_have_prefixes_constraints_and_hypotheses(
    folder, translator, monkeypatch, capfd, tmp_path
):
    asked = [
        {"source": "a house"},
        {"source": "an old man", "target_prefix": "the boat", "id": [7]},
        {"source": "a house", "constraints": ["garden"]},
        {"source": ""},
    ]
    given(monkeypatch, "\n".join(map(json.dumps, asked)).encode())
    assert main(["translate", folder, "--form", "jsonl", "--num-hypotheses", "2"]) == 0
    found = [json.loads(line) for line in said(capfd)]
    wanted = translator.translate("a house", num_hypotheses=2)
    assert found[0]["translation"] == wanted.text
    assert [one["text"] for one in found[0]["hypotheses"]] == [
        one.text for one in wanted.hypotheses
    ]
    assert found[0]["score"] == pytest.approx(wanted.score, abs=1e-4)
    assert found[1]["translation"].startswith("the boat") and found[1]["id"] == [7]
    assert "garden" in found[2]["translation"]
    assert found[3] == {
        "source": "",
        "translation": "",
        "score": None,
        "finished": True,
        "hypotheses": [{"text": "", "score": None}],
    }
    several = {**SETTINGS, "num_hypotheses": 2}
    Translator(translator.model, translator.vocabulary, **several).save(
        tmp_path / "several"
    )
    for options, count in (([], 1), (["--num-hypotheses", "2"], 2)):
        given(monkeypatch, b'{"source": "a house"}')
        ask = ["translate", str(tmp_path / "several"), "--form", "jsonl", *options]
        assert main(ask) == 0
        [line] = said(capfd)
        assert len(json.loads(line)["hypotheses"]) == count
    given(monkeypatch, b'{"source": "a", "target-prefix": "b"}')
    assert main(["translate", folder, "--form", "jsonl"]) == 1
    assert "Received: ['target-prefix']" in capfd.readouterr().err


@pytest.mark.backend("torch")
def test_a_run_goes_on_where_it_was_cut(folder, source, tmp_path, capfd):
    output = str(tmp_path / "target.txt")
    ask = ["translate", folder, source, "--output", output]
    assert main(ask) == 0
    whole = (tmp_path / "target.txt").read_bytes()
    assert whole.count(b"\n") == len(LINES)
    assert not list(tmp_path.glob("*.part*"))
    # As it is left when the power goes: four lines, half of a fifth, and marks
    # that say which they are.
    with pytest.raises(KeyboardInterrupt):
        interrupted(ask)
    part = tmp_path / "target.txt.part"
    assert part.read_bytes() == b"".join(whole.splitlines(True)[:4])
    part.write_bytes(part.read_bytes() + b"half")
    assert main([*ask, "--beam-size", "1"]) == 1
    assert "begun with another model, other options" in capfd.readouterr().err
    assert main([*ask, "--progress", "True"]) == 0
    assert (tmp_path / "target.txt").read_bytes() == whole
    assert f"{len(LINES):,} lines" in capfd.readouterr().err
    assert not list(tmp_path.glob("*.part*"))


def stops_and_goes_on(ask, tmp_path):
    """Holds a command that was interrupted to one that was not."""
    whole, output = tmp_path / "whole", tmp_path / "output"
    assert main([*ask, "--output", str(whole)]) == 0
    assert whole.read_bytes().count(b"\n") == len(LINES)
    ask = [*ask, "--output", str(output)]
    with pytest.raises(KeyboardInterrupt):
        interrupted(ask)
    part = tmp_path / "output.part"
    assert part.read_bytes() == b"".join(whole.read_bytes().splitlines(True)[:4])
    assert main([*ask, "--window", "2"]) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert main([*ask[:-1], ask[2]]) == 1  # over what is read


@pytest.mark.backend("torch")
def test_a_false_start_leaves_nothing_in_the_way(folder, source, tmp_path):
    output = tmp_path / "target.txt"
    wrong = ["translate", str(tmp_path / "none"), source, "--output", str(output)]
    assert main(wrong) != 0 and not list(tmp_path.glob("target*"))
    # One that ended before a line was whole.
    (tmp_path / "target.txt.part").write_text("half")
    (tmp_path / "target.txt.part.json").write_text('{"of": "something else"}')
    assert main(["translate", folder, source, "--output", str(output)]) == 0
    # An output beside the model is no other model.
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    ask = ["translate", str(model), source, "--output", str(model / "target.txt")]
    with pytest.raises(KeyboardInterrupt):
        interrupted(ask)
    assert main(ask) == 0
    assert (model / "target.txt").read_bytes() == output.read_bytes()


def test_a_part_is_written_by_one_process(source, tmp_path):
    from keras_tfm.cli.lines import Output

    first = Output(tmp_path / "out", {"a": 1})
    with pytest.raises(ValueError, match="written by another process"):
        Output(tmp_path / "out", {"a": 1})
    first.write_all(["one", "two\nlines"], False)
    assert (tmp_path / "out").read_text() == "one\ntwo lines\n"
    with pytest.raises(FileNotFoundError, match="a folder that is there.*Make '"):
        Output(tmp_path / "nowhere" / "out")
    # What somebody else has begun is not lost.
    (tmp_path / "out.part").write_text("old\n")
    for of in (None, {"a": 1}):
        with pytest.raises(ValueError, match="begun by something else. Remove it"):
            Output(tmp_path / "out", of)
    assert (tmp_path / "out.part").read_text() == "old\n"
    # What depends on nothing that is known begins anew.
    (tmp_path / "out.part.json").write_text("null")
    Output(tmp_path / "out").write_all(["new"], False)
    assert (tmp_path / "out").read_text() == "new\n"


def test_lines_go_to_a_file_alone(tmp_path):
    from keras_tfm.cli.lines import Output

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        before = (tmp_path / name).stat()
        with pytest.raises(ValueError, match=f"go to a file.*{name}'.*folder or a dev"):
            Output(tmp_path / name, {"a": 1})
        assert (tmp_path / name).stat().st_mode == before.st_mode
    # What a link leads to is written, and stays there.
    (tmp_path / "target").write_text("old\n")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "new").symlink_to("folder/made")
    for name, wanted in (("link", "target"), ("new", "folder/made")):
        Output(tmp_path / name).write_all(["said"], False)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / wanted).read_text() == "said\n"
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.backend("torch")
def test_a_name_stands_for_the_same_files_everywhere(tmp_path, monkeypatch):
    from keras_tfm.cli import lines, serve
    from keras_tfm.pipelines import pretrained as preset

    folder = preset.place("en-de")
    assert (folder / "preset.json").is_file()
    assert lines.identity(folder)[0][1]  # so that other weights are another model
    monkeypatch.chdir(tmp_path)
    for name in ("en-de", "mine"):
        (tmp_path / name).mkdir()
    assert preset.place("en-de") == folder and serve._place("en-de") == "en-de"
    assert serve._place("mine") == str(tmp_path / "mine")
    assert preset.place("hf://one/two") == "hf://one/two"
    (tmp_path / "en-de" / "classifier.json").write_text("{}")
    assert isinstance(load("en-de"), Translator)
    file = tmp_path / "text"
    file.write_text("a")
    before = lines.identity(file)
    assert lines.identity(file) == before
    os.utime(file, (1, 1))  # of one size, but written at another time
    assert lines.identity(file) != before


def interrupted(ask):
    """Runs a command until it has written four lines."""
    from keras_tfm.cli import classify, lines, options, score, translate

    runs = {
        "translate": (translate.run, options.Translate),
        "classify": (classify.run, options.Classify),
        "score": (score.run, options.Score),
    }
    run, command = runs[ask[0]]
    write_all = lines.Output.write_all

    def some(self, found, progress):
        def four():
            for number, line in enumerate(found):
                if number == 4:
                    raise KeyboardInterrupt
                yield line

        write_all(self, four(), progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines.Output, "write_all", some)
        model, *files, _, output = ask[1:]
        run(command(model, tuple(files), output))


@pytest.mark.backend("torch")
def test_faults_are_said_and_have_a_status(
    folder, source, capfd, monkeypatch, tmp_path
):
    given(monkeypatch, b"a house\n\xff\n")
    assert main(["translate", folder]) == 1
    out, err = capfd.readouterr()
    assert (
        "line 2: byte 1 of the line (0xff) is not valid" in err
        and "Traceback" not in err
    )
    wrong = ['{"source": 3}', '{"source": null}', '{"source": "\\ud800"}']
    wrong += ['{"source": "a", "constraints": ["b", 3]}']
    for line in wrong:
        given(monkeypatch, b'{"source": "a"}\n' + line.encode())
        assert main(["translate", folder, "--form", "jsonl"]) == 1
        assert "Line 2: an object has 'source', a str, and" in capfd.readouterr().err
    wrong = ['"\\ud800x"', "1e999", '{"a": [1e999]}', "NaN"]
    for value in wrong:
        given(monkeypatch, f'{{"source": "a", "id": {value}}}'.encode())
        assert main(["translate", folder, "--form", "jsonl"]) == 1
        out, err = capfd.readouterr()
        assert "Line 1" in err and not out
    given(monkeypatch, b'{"source": "a"}\n' + b"[" * 100_000)
    assert main(["translate", folder, "--form", "jsonl"]) == 1
    assert "Line 2 is no JSON" in capfd.readouterr().err
    assert main(["translate", str(tmp_path / "no")]) == 1
    assert "which is none; in the package" in capfd.readouterr().err
    output = str(tmp_path / "out.txt")
    ask = ["translate", folder, source, str(tmp_path / "no.txt"), "--output", output]
    assert main(ask) == 1 and not list(tmp_path.glob("out*"))
    assert "no.txt', which is no file" in capfd.readouterr().err
    assert main(["translate", folder, source, "--output", output, "--window", "0"]) == 1
    assert "`--window` is 1 or more. Received: 0" in capfd.readouterr().err
    assert not list(tmp_path.glob("out*"))
    file = tmp_path / "texts.jsonl"
    file.write_text('{"source": "a"}\n{"source": "old"}\nno\n{"source": "a"}\n')
    ask = ["translate", folder, str(file), "--form", "jsonl", "--window", "1"]
    for _ in range(2):  # a line has its number after a new start too
        assert main([*ask, "--output", output]) == 1
        assert "Line 3 is no JSON" in capfd.readouterr().err
        assert (tmp_path / "out.txt.part").read_text().count("\n") == 2
    # What comes before it in its window is answered.
    assert main(["translate", folder, str(file), "--form", "jsonl"]) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)["source"] for line in out.splitlines()] == ["a", "old"]
    assert "Line 3 is no JSON" in err
    file.write_bytes(b"a\nold\n\xff\na\n")
    assert main(["translate", folder, str(file)]) == 1
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2 and "line 3: byte 1 of the line (0xff)" in err
    # And what comes before one that does not fit its limit.
    many = {"source": "old", "target_prefix": "a house " * 200}
    some = [{"source": "a"}, {"source": "house"}, many, {"source": "a"}]
    file.write_text("\n".join(map(json.dumps, some)))
    assert main(["translate", folder, str(file), "--form", "jsonl"]) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)["source"] for line in out.splitlines()] == ["a", "house"]
    assert "Line 3: " in err and "must leave room for a token" in err
    ask = ["translate", folder, source, "--num-hypotheses", "2"]
    assert main(ask) == 1
    assert "Ask for --form jsonl" in capfd.readouterr().err
    ask = ["translate", folder, str(file), "--form", "jsonl", "--num-hypotheses", "9"]
    assert main([*ask, "--output", str(tmp_path / "new")]) == 1
    err = capfd.readouterr().err
    assert "num_hypotheses=9, beam_size=2" in err and "Line" not in err
    assert not list(tmp_path.glob("new*"))
    kept = file.read_bytes()
    assert main(["translate", folder, str(file), "--output", str(file)]) == 1
    assert "another file than they come from" in capfd.readouterr().err
    assert file.read_bytes() == kept
    file.write_text("")
    assert main(["translate", folder, str(file), source]) == 0
    assert len(said(capfd)) == len(LINES)
    with pytest.raises(SystemExit) as end:
        main(["translate", folder, "--no-such-option"])
    assert end.value.code == 2


@pytest.mark.backend("torch")
@pytest.mark.parametrize("command", ["translate", "classify", "score"])
def test_what_is_read_is_looked_for_before_a_model_is_loaded(
    command, folder, tmp_path, capfd, monkeypatch
):
    none = str(tmp_path / "none.txt")
    for name in (Translator, Classifier):
        monkeypatch.setattr(name, "from_preset", lambda *names, **settings: 1 / 0)
    assert main([command, folder, none]) == 1
    assert f"Text files are wanted. Received: {none!r}" in capfd.readouterr().err


# A process is the same on every backend.
@pytest.mark.backend("torch")
@pytest.mark.parametrize("kind", ["pipe", "full", "interrupt", "closed"])
def test_a_process_ends_cleanly(kind, folder):
    ask = ["translate", folder, "--window", "1"]
    if kind == "closed":
        for title, end in (("input", "<&-"), ("output", ">&-")):
            # A shell's way to close one, before there is a process.
            command = ["sh", "-c", f'"$@" {end}', "sh", sys.executable, "-c", PROGRAM]
            asked = {"env": {**os.environ, "PYTHONPATH": os.getcwd()}, "input": b"a\n"}
            done = subprocess.run([*command, *ask], capture_output=True, **asked)
            assert done.returncode == 1 and b"Traceback" not in done.stderr
            assert f"Standard {title} is closed".encode() in done.stderr
        return
    if kind == "full":
        if not os.path.exists("/dev/full"):
            pytest.skip("this system has no /dev/full")
        with open("/dev/full", "wb") as full, start(*ask, stdout=full) as process:
            _, err = process.communicate(b"a house\n" * 3, timeout=120)
        assert (process.returncode, b"No space left" in err) == (1, True)
        assert b"Traceback" not in err and b"Exception ignored" not in err
        return
    with start(*ask, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"a house\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
        if kind == "pipe":
            process.stdout.close()
            process.stdin.write(b"a house\n" * 5)
            process.stdin.close()
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == {"pipe": 141, "interrupt": 130}[kind]
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.backend("torch")
def test_given_translations_are_scored(
    folder, translator, source, capfd, monkeypatch, tmp_path
):
    pairs = [("a house", "the boat"), ("an old man", "a garden"), ("", "a")]
    wanted = translator.score(pairs)
    given(monkeypatch, "".join(f"{s}\t{t}\n" for s, t in pairs).encode())
    assert main(["score", folder]) == 0
    found = [float(line) for line in said(capfd)]
    np.testing.assert_allclose(found, [one.score for one in wanted], atol=1e-4)
    asked = [{"source": s, "target": t, "id": i} for i, (s, t) in enumerate(pairs)]
    del asked[1]["id"]
    given(monkeypatch, "\n".join(map(json.dumps, asked)).encode())
    assert main(["score", folder, "--form", "jsonl"]) == 0
    found = [json.loads(line) for line in said(capfd)]
    assert [one.get("id", "") for one in found] == [0, "", 2]
    assert found[0]["tokens"][-1] == "</s>" and found[2]["score"] is None
    assert found[0]["score"] == pytest.approx(wanted[0].score, abs=1e-4)
    given(monkeypatch, b'{"source": "a house"}\n')
    assert main(["score", folder, "--form", "jsonl"]) == 1
    assert "Line 1: an object has 'source' and 'target', a" in capfd.readouterr().err
    given(monkeypatch, b"a house\tthe boat\tCC-BY\n")
    assert main(["score", folder]) == 0
    assert float(said(capfd)[0]) == pytest.approx(wanted[0].score, abs=1e-4)
    given(monkeypatch, b"a house\n")
    assert main(["score", folder]) == 1
    error = capfd.readouterr().err
    assert "standard input, line 1: column 1" in error and "Or name two" in error
    stops_and_goes_on(["score", folder, source, source], tmp_path)
    # A fault after such a stop is of its line in the file.
    ask = ["score", folder, source, source, "--output", str(tmp_path / "again")]
    with pytest.raises(KeyboardInterrupt):
        interrupted(ask)

    def refusing(*_):
        raise ValueError("no")

    monkeypatch.setattr(Translator, "score", refusing)
    assert main(ask) == 1
    assert "Line 5: no" in capfd.readouterr().err


@pytest.mark.backend("torch")
def test_a_test_set_is_evaluated(
    folder, translator, source, tmp_path, capfd, monkeypatch
):
    pytest.importorskip("sacrebleu")
    target = tmp_path / "target.txt"
    target.write_text("".join(f"{text}\n" for text in translator(LINES)))
    assert main(["evaluate", folder, source, str(target)]) == 0
    out = capfd.readouterr().out
    assert "BLEU|nrefs:1" in out and "= 100.00" in out
    assert f"{len(LINES)} lines" in out
    both = zip(LINES, target.read_text().splitlines(), strict=True)
    (tmp_path / "both.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in both))
    assert main(["evaluate", folder, str(tmp_path / "both.tsv")]) == 0
    assert "= 100.00" in capfd.readouterr().out
    ask = ["evaluate", "nowhere", source, str(target)]
    assert main([*ask, "--output", str(tmp_path / "out.txt")]) == 1
    assert not [*tmp_path.glob("out.txt*")]  # a false start leaves nothing
    capfd.readouterr()
    (tmp_path / "short.txt").write_text("one\n")
    assert main(["evaluate", folder, source, str(tmp_path / "short.txt")]) == 1
    assert "short.txt with 1. Align" in capfd.readouterr().err
    given(monkeypatch, b"")
    assert main(["evaluate", folder]) == 1
    assert "a pair of lines at least. Received: none" in capfd.readouterr().err


def test_a_model_is_inspected_and_written_for_others(
    folder, translator, tmp_path, capfd
):
    assert main(["inspect", folder]) == 0
    out = capfd.readouterr().out
    assert f"parameters: {translator.model.count_params():,}" in out
    assert "beam_size: 2" in out and "280 pieces" in out
    assert main(["inspect"]) == 0
    capfd.readouterr()
    pytest.importorskip("ctranslate2")
    ask = ["export", folder, str(tmp_path / "ct2"), "--form", "ctranslate2"]
    assert main([*ask, "--quantization", "int8"]) == 0
    assert (tmp_path / "ct2" / "model.bin").is_file()
    assert "before each source" not in capfd.readouterr().err
    marked = Translator(translator.model, translator.vocabulary, source_prefix=[270, 9])
    marked.save(tmp_path / "marked")
    ask = ["export", str(tmp_path / "marked"), str(tmp_path / "ct2b")]
    assert main([*ask, "--form", "ctranslate2"]) == 0
    pieces = " ".join(translator.vocabulary.tokens([270, 9]))
    assert f"before each source: {pieces}\n" in capfd.readouterr().err
    suffixes = (([3, 270], False), ([270, 3], True))  # of NLLB, and of others
    for number, (suffix, ends) in enumerate(suffixes):
        marks = {"source_suffix": suffix, "target_prefix": [9]}
        marked = Translator(translator.model, translator.vocabulary, **marks)
        marked.save(tmp_path / f"behind{number}")
        ask = ["export", str(tmp_path / f"behind{number}"), str(tmp_path / "ct2c")]
        assert main([*ask, "--form", "ctranslate2"]) == 0
        said = capfd.readouterr().err
        after, before = (
            " ".join(translator.vocabulary.tokens(ids))
            for ids in (suffix[:1] if ends else suffix, [9])
        )
        assert f"after each source: {after}\n" in said
        assert f"as target_prefix: {before}\n" in said
        config = json.loads((tmp_path / "ct2c" / "config.json").read_text())
        assert config["add_source_eos"] is ends
    assert main(["export", folder, str(tmp_path / "keras"), "--form", "keras"]) == 0
    for form, option in (("keras", "--version"), ("saved-model", "--quantization")):
        ask = ["export", folder, str(tmp_path / "no"), "--form", form, option, "2"]
        assert main(ask) == 1 and not (tmp_path / "no").exists()
        assert f"{option} is not of --form {form}. Received: 2" in (
            capfd.readouterr().err
        )
    again = Translator.load(tmp_path / "keras")
    assert again("a house") == translator("a house")
    assert again.target_vocabulary is again.vocabulary
    pytest.importorskip("safetensors")
    ask = ["export", folder, str(tmp_path / "theirs"), "--form", "transformers"]
    assert main(ask) == 1  # of a Pegasus with three tables there is none
    assert "A Pegasus of transformers has tie='all'" in capfd.readouterr().err
    model = draw_transformer(6, vocabulary_size=280, tie="all", normalize_first=False)
    other = Translator(model, translator.vocabulary, beam_size=2)
    other.save(tmp_path / "tied")
    assert main(["export", str(tmp_path / "tied"), *ask[2:]]) == 0
    names = {file.name for file in (tmp_path / "theirs").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= names


@pytest.mark.backend("torch")
def test_a_classifier_labels_lines(vocabulary, source, tmp_path, capfd):
    encoder = Encoder(vocabulary.size, 1, 8, 12, 2)
    model = draw_weights(SequenceClassifier(encoder, 2), 0)
    classifier = Classifier(model, vocabulary, ["good", "bad"])
    classifier.save(tmp_path / "classifier")
    folder = str(tmp_path / "classifier")
    file = tmp_path / "texts.txt"
    texts = [line for line in LINES if line.strip()]
    file.write_text("\n".join(texts))
    assert main(["classify", folder, str(file)]) == 0
    wanted = classifier(texts)
    assert said(capfd) == [f"{one.label}\t{one.probability:.4f}" for one in wanted]
    objects = tmp_path / "texts.jsonl"
    asked = [{"text": line, "id": i} for i, line in enumerate(LINES)]
    objects.write_text("\n".join(map(json.dumps, asked)))
    assert main(["classify", folder, str(objects), "--form", "jsonl"]) == 0
    found = [json.loads(line) for line in said(capfd)]
    assert [one["id"] for one in found] == list(range(len(LINES)))
    assert [one["label"] is None for one in found] == [not s.strip() for s in LINES]
    labels = [one["label"] for one in found if one["label"]]
    assert labels == [one.label for one in wanted]
    assert found[0]["probabilities"].keys() == {"good", "bad"}
    assert main(["classify", folder, source, "--form", "jsonl"]) == 1  # are no objects
    assert "Line 1 is no JSON" in capfd.readouterr().err
    assert main(["classify", folder, source, "--window", "2"]) == 0
    lines = iter(f"{one.label}\t{one.probability:.4f}" for one in wanted)
    assert said(capfd) == [next(lines) if line.strip() else "" for line in LINES]
    pairs = Classifier(model, vocabulary, ["good", "bad"], paired=True)
    pairs.save(tmp_path / "pairs")
    objects.write_text('{"text": "a house", "second": "a boat", "id": null}')
    assert (
        main(["classify", str(tmp_path / "pairs"), str(objects), "--form=jsonl"]) == 0
    )
    found = json.loads(said(capfd)[0])
    [one] = pairs([("a house", "a boat")])
    assert (found["id"], found["label"]) == (None, one.label)
    # Of which the vocabulary has no token, though Unicode calls it no blank.
    file.write_text(f"\u200b\n{texts[0]}\n\u200b\u200b\n", encoding="utf-8")
    assert main(["classify", folder, str(file)]) == 0
    one = wanted[0]
    assert said(capfd) == ["", f"{one.label}\t{one.probability:.4f}", ""]
    with pytest.raises(ValueError, match="labels texts.*{'beam_size': 4}"):
        load(folder, beam_size=4)
    assert load(folder).classes == classifier.classes
    stops_and_goes_on(["classify", folder, source], tmp_path)
    assert main(["inspect", folder]) == 0
    assert "classes: ['good', 'bad']" in capfd.readouterr().out


@pytest.mark.backend("torch")
def test_the_last_epochs_of_a_run_are_meant(translator, tmp_path, capfd):
    run = tmp_path / "run"
    translator.save(run / "model")
    (run / "averages").mkdir()
    kept = translator.model.get_weights()
    weights = [np.ones_like(one) * 3 for one in kept]
    for number, shift in ((1, 100), (2, 0), (3, 2)):
        translator.model.set_weights([one + shift for one in weights])
        file = run / "averages" / f"epoch_{number:04d}.weights.h5"
        translator.model.save_weights(file)
    translator.model.set_weights(kept)
    assert main(["average", str(run), str(tmp_path / "mean"), "--last", "2"]) == 0
    assert "epoch_0002.weights.h5, epoch_0003.weights.h5" in capfd.readouterr().out
    mean = Translator.load(tmp_path / "mean").model.get_weights()
    assert all(np.all(one == 4) for one in mean)
    assert main(["average", str(tmp_path), str(tmp_path / "mean")]) == 1
    assert "no folder `averages`" in capfd.readouterr().err
