import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mt.data.corpus_files import LineReader
from mt.errors import DataError, UserError
from mt.evaluation.checks import REASONS, ScoredText, TextChecks
from mt.evaluation.scores import evaluate

REFERENCES = ScoredText(
    "right.txt",
    [
        "The cat, which sat on the mat, was fed by Anna.",
        "Two dogs ran past London very fast!",
        "Is it raining in Paris, Peter?",
        "We came home on Monday; nobody was there.",
    ],
)
MADE = ScoredText(
    "made.txt",
    [
        "The cat which sat on the mat was fed by Anna.",
        "Two dogs ran through London very fast!",
        "Does it rain in Paris, Peter?",
        "We came home on Monday, but nobody was there.",
    ],
)
SOURCES = ScoredText(
    "sources.txt",
    [
        "Die Katze, die auf der Matte saß, wurde von Anna gefüttert.",
        "Zwei Hunde liefen sehr schnell an London vorbei!",
        "Regnet es gerade in Paris, mein lieber Peter?",
        "Wir kamen am Montag nach Hause; niemand war dort.",
    ],
)
SYSTEMS = [
    ("zh-en", "DLUT"),
    ("zh-en", "Online-W"),
    ("en-zh", "GTCOM"),
    ("en-zh", "Online-W"),
    ("en-de", "Online-W"),
    ("en-de", "PROMT"),
]


def changed(text: ScoredText, change: Callable[[str], str]) -> ScoredText:
    return replace(text, lines=[change(line) for line in text.lines])


def tokenized(line: str) -> str:
    return re.sub(r"([^\w\s])", r" \1 ", line).strip()


def in_bpe(line: str) -> str:
    return re.sub(r"(\w{3})(?=\w)", r"\1@@ ", line)


def in_sentencepiece(line: str) -> str:
    return " ".join(f"▁{word}" for word in line.split())


def segmented(line: str) -> str:
    return " ".join(re.findall(r"[一-鿿]{1,2}|[^一-鿿]+", line))


def check(
    hypotheses: ScoredText,
    references: Sequence[ScoredText],
    sources: ScoredText | None,
    allow: Sequence[str] = (),
) -> str:
    checks = TextChecks(allow)
    checks.check_texts(hypotheses, references, sources, language="en")
    return checks.forced


def first_lines(text: ScoredText) -> ScoredText:
    return replace(text, lines=text.lines[:3])


@pytest.mark.parametrize(
    ("reason", "message", "hypotheses", "references", "sources"),
    [
        ("line-counts", "made.txt has 3 lines, right.txt has 4", first_lines(MADE), REFERENCES, 0),
        ("tokenized", "made.txt: 4 of 4 lines look", changed(MADE, tokenized), REFERENCES, 0),
        ("tokenized", "right.txt: 4 of 4 lines look", MADE, changed(REFERENCES, tokenized), 0),
        ("lowercased", "made.txt: 4 of 4 lines are", changed(MADE, str.lower), REFERENCES, 0),
        ("lowercased", "right.txt: 4 of 4 lines are", MADE, changed(REFERENCES, str.lower), 0),
        ("tokens", "made.txt: 4 of 4 lines have", changed(MADE, in_bpe), REFERENCES, 0),
        ("tokens", "right.txt: 4 of", MADE, changed(REFERENCES, in_sentencepiece), 0),
        ("references", "the same text as the references right.txt", REFERENCES, REFERENCES, 0),
        ("swapped", "made.txt: the hypotheses are the same text as the sources", SOURCES, MADE, 4),
        ("swapped", "sources.txt: the sources are the same text as the ref", MADE, SOURCES, 4),
    ],
)
def test_each_mistake_is_rejected_and_may_be_allowed(
    reason: str, message: str, hypotheses: ScoredText, references: ScoredText, sources: int
) -> None:
    source_text = replace(SOURCES, lines=SOURCES.lines[:sources]) if sources else None
    hypotheses = replace(hypotheses, name="made.txt")
    with pytest.raises(DataError, match=r"^[^\n]+$") as error:
        check(hypotheses, [references], source_text)
    assert message in str(error.value)
    assert str(error.value).endswith(f"; pass `--allow {reason}` to score anyway")
    others = [name for name in REASONS if name != reason]
    with pytest.raises(DataError):
        check(hypotheses, [references], source_text, allow=others)
    # A text may be wrong in two ways; the first message is this one.
    assert reason in check(hypotheses, [references], source_text, allow=REASONS)


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        ({1: "", 3: " \u200b\u3000"}, "right.txt: 2 of 4 lines are blank, the first is line 2"),
        (dict(enumerate(SOURCES.lines[:3])), "right.txt: 3 of 4 lines are the same as their"),
        (dict.fromkeys(range(3), "他说不行。"), "right.txt: 3 of 4 lines are in another script"),
        ({0: "他说不行。", 1: "1984", 2: SOURCES.lines[2]}, ""),
    ],
)
def test_faults_of_references_are_noted(
    lines: dict[int, str], note: str, caplog: pytest.LogCaptureFixture
) -> None:
    changed_lines = [lines.get(n, line) for n, line in enumerate(REFERENCES.lines)]
    references = [replace(REFERENCES, lines=changed_lines)]
    for is_run in (False, True):
        caplog.clear()
        if is_run:
            TextChecks(REASONS).check_sources(SOURCES, references, language="en")
        else:
            TextChecks(REASONS).check_texts(MADE, references, SOURCES, language="en")
        notes = [message for message in caplog.messages if message.startswith("note: right.txt: ")]
        assert [message.startswith(f"note: {note}") for message in notes] == [True] * bool(note)


def test_texts_of_the_same_form_pass() -> None:
    assert check(MADE, [REFERENCES], SOURCES) == ""
    for change in (tokenized, str.lower, lambda line: tokenized(line.lower())):
        assert check(changed(MADE, change), [changed(REFERENCES, change)], None) == ""


def test_swapped_sides_are_rejected() -> None:
    pytest.importorskip("py3langid")
    german = replace(SOURCES, name="german.txt")
    with pytest.raises(DataError):
        check(german, [german], replace(REFERENCES, name="sources.txt"), allow=["references"])


def test_swapped_scripts_are_rejected_without_py3langid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.evaluation.checks.can_be_judged", not_installed)
    chinese = ScoredText("made.txt", ["今天天气很好。", "我们去公园吧。", "他说不行。"])
    english = ScoredText("sources.txt", ["It is fine.", "Let us go.", "He said no."])
    with pytest.raises(DataError):
        TextChecks().check_direction(english, [chinese], language="en")
    TextChecks().check_direction(chinese, [english], language="en")


def not_installed(text: str, language: str) -> bool:
    raise DataError("no py3langid")


@pytest.mark.parametrize("language", ["zh-CN", "ja", "ko"])
def test_13a_is_rejected_for_languages_with_a_tokenizer(language: str) -> None:
    with pytest.raises(DataError):
        TextChecks().check_tokenizer(language, "13a")
    TextChecks().check_tokenizer(language, "char")
    checks = TextChecks(["13a"])
    checks.check_tokenizer(language, "13a")
    assert checks.forced == "13a"


def test_languages_with_uncertain_words_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    TextChecks().check_tokenizer("de", "13a")
    assert not caplog.messages
    TextChecks().check_tokenizer("tlh", "13a")
    assert "the language `tlh` is not known" in caplog.text
    checks, text = TextChecks(), ScoredText("x", ["แมวนั่งบนโต๊ะ"])
    checks.check_tokenizer("th", "13a")
    checks.check_made(text, [text], language="th")
    assert "finds no words in `th`" in caplog.text


def test_allowed_reasons_are_in_every_signature(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UserError, match="--allow tokenised: unknown; did you mean `tokenized`"):
        TextChecks(["tokenised"])
    checks = TextChecks(["tokenized", "lowercased"])
    hypotheses = changed(MADE, lambda line: tokenized(line.lower()))
    with caplog.at_level(logging.WARNING):
        checks.check_made(hypotheses, [REFERENCES, REFERENCES], language="en")
    assert len(caplog.messages) == 4
    assert checks.forced == "tokenized,lowercased"
    scores = evaluate(hypotheses.lines, [REFERENCES.lines], target_language="en")
    for score in scores.marked("forced", checks.forced).scores():
        assert score.signature.endswith("|forced:tokenized,lowercased")


LINES = [
    "The café in Zürich opens at seven, but the bakery opens at six.",
    "Nobody at the railway station had seen the lost umbrella.",
    "Eleven señoras waited for the bus to Málaga!",
    "My grandmother paints small boats and naïve landscapes.",
    "Why does the gardener water the roses at noon?",
    "A crème brûlée was left over, so Noël ate two.",
    "Their daughter plays the violin in an orchestra.",
    "He read the whole novel during the flight to Oslo.",
    "The façade of the theatre is covered with ivy.",
    "Seven sheep slept under the old chestnut tree.",
    "Please close the window before the storm begins.",
    "Her résumé lists three universities and a bakery.",
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [unicodedata.normalize("NFD", line) for line in lines], "decomposed"),
        (lambda lines: [line.upper() for line in lines], "in capitals"),
        (lambda lines: [line.title() for line in lines], "a capital on every word"),
        (lambda lines: [f"{n}. {line}" for n, line in enumerate(lines, 1)], "begin with `0`"),
        (lambda lines: [f"“{line}”" for line in lines], "begin with `“`"),
        (lambda lines: [f"{line} </s>" for line in lines], "end with `>`"),
        (lambda lines: [line[:40] for line in lines], "exactly 40 characters"),
    ],
)
def test_the_cost_of_another_form_is_noted(
    change: Callable[[list[str]], list[str]], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    references = ScoredText("right.txt", LINES)
    TextChecks().check_made(
        ScoredText("made.txt", [*LINES[:-1], "Her CV lists three."]), [references], language="en"
    )
    assert not caplog.messages
    made = change([*LINES[:-1], "Her CV lists three universities and one more bakery."])
    TextChecks().check_made(ScoredText("made.txt", made), [references], language="en")
    note = caplog.messages[0]
    assert note.startswith("note: made.txt: ")
    assert words in note
    before, after = map(float, re.findall(r"BLEU is ([\d.]+), and ([\d.]+) with", note)[0])
    assert before == pytest.approx(
        evaluate(made, [LINES], target_language="en").bleu.value, abs=0.01
    )
    assert after > before


@pytest.mark.parametrize("end", [9, 12])
def test_lines_out_of_step_are_rejected(end: int) -> None:
    references = ScoredText("right.txt", LINES)
    made = [*LINES[:3], *LINES[4:end], "Quite another line.", *LINES[end:]]
    with pytest.raises(DataError, match=rf"lines 4 to {end - 1} match line N\+1 .*allow shifted"):
        TextChecks().check_made(ScoredText("made.txt", made), [references], language="en")


def test_characters_of_another_script_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    right = ScoredText(
        "right.txt", ["这个问题很难。", "我们说中文。", "他们学习历史。", "书在桌上。"]
    )
    made = ScoredText(
        "made.txt", ["這個問題很難。", "我們說中文。", "他們學習歷史。", "书在桌上。"]
    )
    checks = TextChecks()
    checks.check_tokenizer("zh", "zh")
    checks.check_made(right, [right], language="zh")
    assert not caplog.messages
    checks.check_made(made, [right], language="zh")
    assert "3 of 4 lines are in other characters" in caplog.messages[0]


def wmt(corpora: Path, pair: str, system: str) -> tuple[ScoredText, list[ScoredText], ScoredText]:
    source, target = pair.split("-")
    names = [f"hyp.{system}.{target}", f"refA.{target}", f"refB.{target}", f"src.{source}"]
    folder = corpora / "wmt22-bleu-check"
    hypotheses, *right, original = (
        ScoredText(name, list(LineReader(folder / f"{pair}.{name}.gz"))) for name in names
    )
    return hypotheses, right, original


@pytest.mark.parametrize(("pair", "system"), SYSTEMS)
def test_systems_of_wmt22_pass(
    pair: str, system: str, corpora: Path, caplog: pytest.LogCaptureFixture
) -> None:
    language = pair.split("-")[1]
    checks = TextChecks()
    checks.check_tokenizer(language, "zh" if language == "zh" else "13a")
    checks.check_texts(*wmt(corpora, pair, system), language=language)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("pair", "system", "change", "reason"),
    [
        ("en-de", "PROMT", in_bpe, "tokens"),
        ("zh-en", "DLUT", tokenized, "tokenized"),
        ("zh-en", "DLUT", str.lower, "lowercased"),
        ("en-zh", "GTCOM", segmented, "tokenized"),
        ("en-zh", "GTCOM", str.lower, "lowercased"),
    ],
)
def test_spoilt_systems_of_wmt22_are_rejected(
    pair: str, system: str, change: Callable[[str], str], reason: str, corpora: Path
) -> None:
    hypotheses, right, original = wmt(corpora, pair, system)
    language = pair.split("-")[1]
    spoilt = changed(hypotheses, change)
    with pytest.raises(DataError, match=f"^{re.escape(hypotheses.name)}.*`--allow {reason}`"):
        TextChecks().check_texts(spoilt, right, original, language=language)
