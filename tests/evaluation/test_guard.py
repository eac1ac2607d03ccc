"""The guard is silent on good systems, and speaks on whatever makes a score mislead."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mt.data.lines import LineReader
from mt.errors import DataError, UserError
from mt.evaluation.checks import REASONS, Guard, Text, cut_alike
from mt.evaluation.scores import evaluate

REFERENCES = Text(
    "right.txt",
    [
        "The cat, which sat on the mat, was fed by Anna.",
        "Two dogs ran past London very fast!",
        "Is it raining in Paris, Peter?",
        "We came home on Monday; nobody was there.",
    ],
)
MADE = Text(
    "made.txt",
    [
        "The cat which sat on the mat was fed by Anna.",
        "Two dogs ran through London very fast!",
        "Does it rain in Paris, Peter?",
        "We came home on Monday, but nobody was there.",
    ],
)
SOURCES = Text(
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
    ("zh-en", "NiuTrans"),
    ("zh-en", "Online-W"),
    ("en-zh", "DLUT"),
    ("en-zh", "GTCOM"),
    ("en-zh", "Online-W"),
    ("en-de", "Online-W"),
    ("en-de", "OpenNMT"),
    ("en-de", "PROMT"),
]


def _changed(text: Text, change: Callable[[str], str]) -> Text:
    return replace(text, lines=[change(line) for line in text.lines])


def _tokenized(line: str) -> str:
    return re.sub(r"([^\w\s])", r" \1 ", line).strip()


def _in_bpe(line: str) -> str:
    return re.sub(r"(\w{3})(?=\w)", r"\1@@ ", line)


def _in_sentencepiece(line: str) -> str:
    return " ".join(f"▁{word}" for word in line.split())


def _segmented(line: str) -> str:
    return " ".join(re.findall(r"[一-鿿]{1,2}|[^一-鿿]+", line))


def _check(
    made: Text, references: Sequence[Text], sources: Text | None, allow: Sequence[str] = ()
) -> str:
    guard = Guard(allow)
    guard.check_texts(made, references, sources, language="en")
    return guard.forced


def test_good_texts_are_let_pass() -> None:
    assert _check(MADE, [REFERENCES], SOURCES) == ""


def _first_lines(text: Text) -> Text:
    return replace(text, lines=text.lines[:3])


@pytest.mark.parametrize(
    ("reason", "told", "made", "references", "sources"),
    [
        ("line-counts", "made.txt has 3 lines, right.txt has 4", _first_lines(MADE), REFERENCES, 0),
        ("line-counts", "made.txt has 4 lines, sources.txt has 3", MADE, REFERENCES, 3),
        ("tokenized", "made.txt: 4 of 4 lines look", _changed(MADE, _tokenized), REFERENCES, 0),
        ("tokenized", "right.txt: 4 of 4 lines look", MADE, _changed(REFERENCES, _tokenized), 0),
        ("lowercased", "made.txt: is lower-cased, right", _changed(MADE, str.lower), REFERENCES, 0),
        ("lowercased", "right.txt: is lower-cased", MADE, _changed(REFERENCES, str.lower), 0),
        ("tokens", "made.txt: 4 of 4 lines hold", _changed(MADE, _in_bpe), REFERENCES, 0),
        ("tokens", "right.txt: 4 of", MADE, _changed(REFERENCES, _in_sentencepiece), 0),
        ("references", "the same text as the references right.txt", REFERENCES, REFERENCES, 0),
        ("swapped", "made.txt: the hypotheses are the same text as the sources", SOURCES, MADE, 4),
        ("swapped", "sources.txt: the sources are the same text as the ref", MADE, SOURCES, 4),
    ],
)
def test_each_mistake_has_its_own_line_and_its_own_name(
    reason: str, told: str, made: Text, references: Text, sources: int
) -> None:
    given = replace(SOURCES, lines=SOURCES.lines[:sources]) if sources else None
    made = replace(made, name="made.txt")
    with pytest.raises(DataError, match=r"^[^\n]+$") as error:
        _check(made, [references], given)
    assert told in str(error.value)
    assert str(error.value).endswith(f"; `--allow {reason}` scores it all the same")
    others = [name for name in REASONS if name != reason]
    with pytest.raises(DataError):
        _check(made, [references], given, allow=others)
    # What is wrong in two ways may need two names; the first that is told is this one.
    assert reason in _check(made, [references], given, allow=REASONS)


def test_tokens_in_both_texts_are_no_better() -> None:
    both = _changed(MADE, _in_bpe), _changed(REFERENCES, _in_bpe)
    with pytest.raises(DataError, match="tokens"):
        _check(both[0], [both[1]], None)


def test_both_tokenised_or_lower_cased_alike_are_let_pass() -> None:
    for change in (_tokenized, str.lower, lambda line: _tokenized(line.lower())):
        assert _check(_changed(MADE, change), [_changed(REFERENCES, change)], None) == ""


def test_sides_in_each_others_language_are_swapped() -> None:
    pytest.importorskip("py3langid")
    german = replace(SOURCES, name="german.txt")
    with pytest.raises(DataError, match=r"sources\.txt is in the target language `en`, german\.tx"):
        _check(german, [german], replace(REFERENCES, name="sources.txt"), allow=["references"])


def test_swapped_scripts_are_seen_without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.evaluation.checks.can_be_judged", _not_installed)
    chinese = Text("made.txt", ["今天天气很好。", "我们去公园吧。", "他说不行。"])
    english = Text("sources.txt", ["It is fine.", "Let us go.", "He said no."])
    with pytest.raises(DataError, match=r"sources\.txt is in the target language `en`, made\.txt"):
        Guard().check_direction(english, [chinese], language="en")
    Guard().check_direction(chinese, [english], language="en")


def _not_installed(text: str, language: str) -> bool:
    raise DataError("no py3langid")


@pytest.mark.parametrize(
    ("language", "right"), [("zh-CN", "zh"), ("ja", "ja-mecab"), ("ko", "ko-m")]
)
def test_13a_is_refused_where_it_finds_no_words(language: str, right: str) -> None:
    with pytest.raises(DataError, match=f"`13a` .* `{language}`.* the right one is `{right}"):
        Guard().check_tokenizer(language, "13a")
    Guard().check_tokenizer(language, "char")
    guard = Guard(["13a"])
    guard.check_tokenizer(language, "13a")
    assert guard.forced == "13a"


@pytest.mark.parametrize(
    ("language", "told"),
    [("de", ""), ("th", "written without spaces"), ("tlh", "the language `tlh` is not known")],
)
def test_languages_whose_words_are_not_sure_are_told(
    language: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    Guard().check_tokenizer(language, "13a")
    assert told in caplog.text if told else not caplog.messages


def test_an_unknown_reason_names_the_nearest() -> None:
    with pytest.raises(UserError, match="--allow tokenised: unknown; did you mean `tokenized`"):
        Guard(["tokenised"])


def test_what_was_forced_stands_in_every_signature(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(["tokenized", "lowercased"])
    made = _changed(MADE, lambda line: _tokenized(line.lower()))
    with caplog.at_level(logging.WARNING):
        guard.check_forms(made, [REFERENCES, REFERENCES], language="en")
    assert len(caplog.messages) == 4
    scores = guard.mark(evaluate(made.lines, [REFERENCES.lines], target_language="en"))
    assert all(
        score.signature.endswith("|forced:tokenized,lowercased") for score in scores.scores()
    )


def test_texts_of_different_length_are_cut_to_the_shortest() -> None:
    assert cut_alike([Text("a", ["1", "2"]), Text("b", ["3"])]) == [["1"], ["3"]]


def _wmt(corpora: Path, pair: str, system: str) -> tuple[Text, list[Text], Text]:
    source, target = pair.split("-")
    names = [f"hyp.{system}.{target}", f"refA.{target}", f"refB.{target}", f"src.{source}"]
    folder = corpora / "wmt22-bleu-check"
    made, *right, original = (
        Text(name, list(LineReader(folder / f"{pair}.{name}.gz"))) for name in names
    )
    return made, right, original


@pytest.mark.parametrize(("pair", "system"), SYSTEMS)
def test_no_alarm_on_the_systems_of_wmt22(
    pair: str, system: str, corpora: Path, caplog: pytest.LogCaptureFixture
) -> None:
    language = pair.split("-")[1]
    guard = Guard()
    guard.check_tokenizer(language, "zh" if language == "zh" else "13a")
    guard.check_texts(*_wmt(corpora, pair, system), language=language)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("pair", "system", "change", "reason"),
    [
        ("en-de", "PROMT", _tokenized, "tokenized"),
        ("en-de", "PROMT", str.lower, "lowercased"),
        ("en-de", "PROMT", _in_bpe, "tokens"),
        ("zh-en", "DLUT", _tokenized, "tokenized"),
        ("zh-en", "DLUT", str.lower, "lowercased"),
        ("zh-en", "DLUT", _in_sentencepiece, "tokens"),
        ("en-zh", "GTCOM", _segmented, "tokenized"),
        ("en-zh", "GTCOM", str.lower, "lowercased"),
    ],
)
def test_an_alarm_on_a_system_of_wmt22_that_was_spoilt(
    pair: str, system: str, change: Callable[[str], str], reason: str, corpora: Path
) -> None:
    made, right, original = _wmt(corpora, pair, system)
    language = pair.split("-")[1]
    spoilt = _changed(made, change)
    with pytest.raises(DataError, match=f"^{re.escape(made.name)}.*`--allow {reason}`"):
        Guard().check_texts(spoilt, right, original, language=language)


@pytest.mark.parametrize(("pair", "system"), [SYSTEMS[0], SYSTEMS[3], SYSTEMS[6]])
def test_swapped_sides_of_wmt22_are_seen(pair: str, system: str, corpora: Path) -> None:
    language = pair.split("-")[1]
    if language == "de":
        pytest.importorskip("py3langid")
    made, right, original = _wmt(corpora, pair, system)
    with pytest.raises(DataError, match=r"the sides are swapped.*`--allow swapped`"):
        Guard(["lowercased"]).check_texts(original, right, made, language=language)
