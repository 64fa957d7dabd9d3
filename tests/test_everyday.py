"""Everyday inputs and their accepted answers, and how they are judged."""

import re

import pytest

from keras_tfm.recipes import everyday as training
from tools import everyday

pytestmark = pytest.mark.backend("torch")  # text is compared, no model is run

DIRECTIONS = [
    direction
    for language in ("de", "fr", "es", "it")
    for direction in (f"en-{language}", f"{language}-en")
]
ANSWERS = [[["Anna hat 2 Katzen.", "Anna hat 2 Kater."]], [["Anna hat zwei."]]]
CASE = everyday.Case("name", "Anna has 2 cats.", ANSWERS)


@pytest.fixture(scope="module", params=DIRECTIONS)
def cases(request):
    return everyday.read_cases(everyday.FOLDER / f"{request.param}.tsv")


def test_each_direction_has_200_inputs_of_all_kinds(cases):
    assert len({case.source for case in cases}) >= 195 and len(cases) >= 200
    kinds = {case.kind for case in cases}
    assert len(kinds) == 15 and {"capitals", "letter", "emoji", "chat"} <= kinds
    for case in cases:
        assert case.texts and not re.search(r"[\[\]]", "".join(case.texts))
        assert everyday.judge(case, case.texts[0]) == "right"


def test_few_inputs_are_in_the_lists_to_train_on(cases):
    rows = [*training.read_table("expressions"), *training.read_table("words")]
    texts = {row[code].lower().strip(" .!?") for row in rows for code in row}
    shared = [case for case in cases if case.source.lower().strip(" .!?") in texts]
    assert len(shared) <= 12, [case.source for case in shared]


@pytest.mark.parametrize(
    ("translation", "verdict"),
    [
        ("anna hat 2 Katzen", "right"),
        ("Anna hat 2  Katzen !", "right"),
        ("Anna hat 2 Katze.", "slip"),
        ("Anna hat 3 Katzen.", "wrong"),
        ("Anna hat 2 2 Katzen.", "wrong"),
        ("Anne hat 2 Katzen.", "wrong"),
        ("Niemand", "wrong"),
    ],
)
def test_an_answer_is_right_a_small_slip_or_wrong(translation, verdict):
    assert everyday.judge(CASE, translation) == verdict


def test_case_does_not_count_in_chat():
    answers = [[["alles gute zum geburtstag!"]]]
    chat = everyday.Case("chat", "happy bday!!!", answers)
    assert everyday.judge(chat, "Alles Gute zum Geburtstag!") == "right"
    greeting = chat._replace(kind="greeting")
    assert everyday.judge(greeting, "Alles Gute zum Geburtstag!") != "right"


def test_alternatives_are_written_out():
    answers = everyday.expand("[Bist/Sind] [du/Sie] da[, bitte/]?")
    assert len(answers) == 8 and "Sind Sie da?" in answers


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ("1,250 at 10:45", "1.250 um 10 h 45", True),
        ("3,500,000", "3 500 000", True),
        ("€12.50", "12,50 €", True),
        ("347", "374", False),
    ],
)
def test_numbers_are_compared_without_separators(first, second, is_equal):
    assert (everyday.numbers(first) == everyday.numbers(second)) == is_equal


def test_generated_sentences_depend_on_their_seed():
    first = everyday.generate("numbers", "fr", 40, seed=0)
    assert first == everyday.generate("numbers", "fr", 40, seed=0)
    assert first != everyday.generate("numbers", "fr", 40, seed=1)
    [case] = everyday.generate("names", "en", 1, seed=0)
    assert len(case.texts) == 2 and all(x in case.source for x in case.texts)
