"""Results are data: pages made from them are current, and reports complete."""

import json
import platform
import re
import shutil
import sys

import pytest
from PIL import Image

from benchmarks import decode, page, quality_by_length, report
from tests.test_docs import ROOT
from tools import results

pytestmark = pytest.mark.backend("torch")  # text, which no backend changes
FILES = sorted((ROOT / report.RESULTS).glob("*.json"))
FIELDS = ["benchmark", "command", "processor", "versions", "commit", "date", "tables"]
SPEED = report.Column("speed", "tokens/s", ",.1f")


def write_report(folder, *tables, flags=report.Flags):
    file = folder / "result.json"
    report.report("decode", flags(json=str(file)), *tables)
    return json.loads(file.read_text("utf-8"))


def test_the_page_of_benchmarks_is_current():
    assert page.PAGE.read_text("utf-8") == page.make_page()


def test_the_picture_of_benchmarks_is_current():
    with Image.open(page.PICTURE) as picture:
        drawn = json.loads(picture.info["Description"])
    assert drawn == page.plotted_ratios()
    assert len(drawn) > 1


def test_the_page_of_results_is_current():
    assert results.PAGE.read_text("utf-8") == results.make_page(ROOT)


def test_every_result_is_on_the_page():
    text = page.PAGE.read_text("utf-8")
    assert len(FILES) > 20
    assert [file.name for file in FILES if f"/{file.name})" not in text] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_has_all_fields(file):
    document = json.loads(file.read_text("utf-8"))
    assert list(document) == FIELDS
    assert document["command"].split(" -m ")[1].split()[0].startswith("benchmarks.")
    assert re.fullmatch(r"([0-9a-f]{7}(\+changes)?)?", document["commit"])
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d)?", document["date"])
    for table in document["tables"]:
        columns = [report.Column(**column) for column in table["columns"]]
        assert {len(row) for row in table["rows"]} == {len(columns)}
    assert report.to_json(document) == file.read_text("utf-8")


def test_a_report_is_printed_and_written(tmp_path, capsys, monkeypatch):
    command = ["x", "--json=a", "--text", "/data/test.en", "--json", "b", "--beam", "4"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.delenv("KERAS_BACKEND")
    notes = []

    def rows():
        yield "ours", 1234.5678912
        yield "theirs", None
        notes.append("A signature.")

    table = report.Table([report.Column("program"), SPEED], rows(), "Base", notes)
    document = write_report(tmp_path, table)
    assert capsys.readouterr().out.split("\n") == [
        "",
        "Base",
        "",
        "| program | speed, tokens/s |",
        "|---|---|",
        "| ours | 1,234.6 |",
        "| theirs |  |",
        "A signature.",
        "",
    ]
    assert list(document) == FIELDS
    command = "python -m benchmarks.decode --text test.en --beam 4"
    assert document["command"] == command
    assert document["processor"]["cores"] >= 1 and document["processor"]["model"]
    assert document["versions"]["python"] == platform.python_version()
    assert "keras" in document["versions"]
    assert document["tables"] == [
        {
            "title": "Base",
            "columns": [
                {"name": "program", "unit": "", "format": ""},
                {"name": "speed", "unit": "tokens/s", "format": ",.1f"},
            ],
            "rows": [["ours", 1234.57], ["theirs", None]],
            "notes": ["A signature."],
        }
    ]


def test_help_names_the_command_instead_of_a_path(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [report.__file__, "--help"])
    with pytest.raises(SystemExit):
        report.parse(report.Flags, "Measures.")
    assert "usage: python -m benchmarks.report [-h]" in capsys.readouterr().out


def test_programs_that_do_not_fit_into_memory_do_not_start(monkeypatch):
    monkeypatch.setattr(decode.os, "sysconf", lambda name: 4_000_000)  # 16 TB
    decode.check_memory(18)
    sizes = {"SC_PHYS_PAGES": 6_000_000, "SC_PAGE_SIZE": 4_096}
    monkeypatch.setattr(decode.os, "sysconf", sizes.__getitem__)
    decode.check_memory(12)
    with pytest.raises(SystemExit, match="programs at once need .* has 25 GB"):
        list(decode.measure(decode.Flags()))


def test_no_file_is_written_without_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report.report("decode", report.Flags(), report.Table([SPEED], [[1.0]]))
    assert list(tmp_path.iterdir()) == []


def test_a_processor_without_cpuinfo_has_a_name(monkeypatch):
    def fail(path, *_):
        raise FileNotFoundError(path)

    monkeypatch.setattr(report.pathlib.Path, "read_text", fail)
    name = platform.processor() or platform.machine()
    assert report.processor(3) == {"model": name, "features": [], "cores": 3}


@pytest.mark.parametrize(
    ("model", "features", "expected"),
    [
        ("AMD EPYC 9B14 96-Core Processor", [], "AMD EPYC"),
        ("Intel(R) Xeon(R)", ["avx512_vnni"], "Intel Xeon, AVX512_VNNI"),
        ("AMD EPYC", ["avx512_bf16"], "AMD EPYC, AVX512_BF16"),
        ("Intel(R) Xeon(R) @ 2.5GHz", ["avx512_bf16", "amx"], "Intel Xeon, AMX"),
        ("Apple M4", [], "Apple M4"),
    ],
)
def test_processors_have_kinds(model, features, expected):
    assert page.kind({"model": model, "features": features}) == expected


def test_a_ratio_is_that_of_its_own_run():
    def result(date, **speeds):
        rows = [[page.BASELINE, 100], *speeds.items()]
        columns = [report.Column("program")._asdict()]
        columns += [report.Column("median")._asdict()]
        table = {"title": "", "columns": columns, "rows": rows, "notes": []}
        processor = {"model": "AMD EPYC", "features": [], "cores": 2}
        facts = {"file": date, "date": date, "commit": "abcdef0", "versions": {}}
        return facts | {"processor": processor, "tables": [table]}

    newest, oldest = result("2026-02-01", b=50), result("2026-01-01", b=10, c=300)
    rows = page.by_processor([newest, oldest])["AMD EPYC"]
    assert {name: values[:2] for name, values in rows.items()} == {
        page.BASELINE: (100, 1.0),
        "b": (50, 0.5),
        "c": (300, 3.0),
    }


def test_a_card_that_contradicts_its_preset_is_an_error(tmp_path):
    folder = tmp_path / "en-de"
    shutil.copytree(ROOT / results.PRESETS / "en-de", folder)
    [row] = results.preset_rows(folder)
    assert re.fullmatch(r"tatoeba, [\d,]+ pairs", row[4])
    card = (folder / "README.md").read_text("utf-8")
    score = json.loads((folder / "preset.json").read_text("utf-8"))["scores"]["BLEU"]
    (folder / "README.md").write_text(card.replace(f"{score:.2f}", "99.99"), "utf-8")
    with pytest.raises(ValueError, match=f"The card of en-de .* expected {score:.2f}"):
        list(results.preset_rows(folder))
    (folder / "README.md").write_text("# en-de\n", "utf-8")
    with pytest.raises(ValueError, match="the card of en-de has none"):
        list(results.preset_rows(folder))


def test_runs_that_build_on_others_are_left_out():
    text = (
        "## Results\n| corpus | minutes | command | BLEU, test (95%) |\n"
        "|---|---|---|---|\n"
        "| A | 1 | `a` | 5 ± 1 |\n| the same | 1 | `b` | 6 |\n"
        "| A again | 2 | `a` | **7 ± 1** |\n| B until 2026 | 1 | `c` | 8 |\n"
    )
    link = "[translation](../keras_tfm/recipes/README.md#results)"
    assert results.recipe_rows(text) == [(link, "A again", "BLEU 7 ± 1", "2", "`a`")]


def write_run(folder, rows):
    lines = ["source\treference\ttranslation", *map("\t".join, rows)]
    folder.mkdir()
    (folder / "translations.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    result = {
        "parameters": 1000,
        "target_tokens_seen": 2_000_000,
        "training_flops": 3e12,
        "training_minutes": 4.0,
        "bleu": 50.0,
        "bleu_half_width_95": 5.0,
        "flags": {"data": "data/pairs", "bleu_tokenize": "13a"},
    }
    (folder / "result.json").write_text(json.dumps(result), "utf-8")


def test_bleu_of_each_range_of_lengths_is_that_of_its_sentences(tmp_path):
    short = [("a b c", 'the "old man reads', 'the "old man reads')] * 3
    long = [("a b c d e", "he reads a book today", "he reads a book now")] * 2
    write_run(tmp_path / "first", short + long)
    write_run(tmp_path / "second", [row[:2] + ("wrong",) for row in short + long])
    folders = tuple(str(tmp_path / name) for name in ("first", "second"))
    file = tmp_path / "result.json"
    quality_by_length.main(
        quality_by_length.Flags(
            runs=folders,
            lengths=(4, 9),
            min_sentences=2,
            json=str(file),
            picture=str(tmp_path / "scores.png"),
        )
    )
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    runs, lengths = json.loads(file.read_text("utf-8"))["tables"]
    assert runs["title"] == "pairs, runs"
    assert runs["rows"][0] == ["first", 1000, 2.0, 3e12, 4.0, 50.0, 5.0]
    names = [column["name"] for column in lengths["columns"]]
    assert names[2::2] == ["first, BLEU", "second, BLEU"]
    assert [row[:2] for row in lengths["rows"]] == [["1 to 3", 3], ["4 to 8", 2]]
    scores = [row[2] for row in lengths["rows"]]
    assert scores[0] == pytest.approx(100) and 40 < scores[1] < 90
    assert [row[4] < 5 for row in lengths["rows"]] == [True, True]


def test_runs_of_different_test_sets_are_rejected(tmp_path):
    write_run(tmp_path / "first", [("a", "b", "b")])
    write_run(tmp_path / "second", [("a", "c", "b")])
    folders = tuple(str(tmp_path / name) for name in ("first", "second"))
    with pytest.raises(ValueError, match="same test set; got those of first"):
        quality_by_length.read_all(folders)
    with pytest.raises(ValueError, match="different names"):
        quality_by_length.read_all(folders[:1] * 2)
