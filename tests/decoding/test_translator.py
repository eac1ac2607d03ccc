import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.decoding.engine import Engine, Hypothesis, TranslatedPart, length_limit
from mt.decoding.retries import BLOCKED_NGRAM
from mt.decoding.translator import RankedTranslation, Translation
from mt.errors import UserError
from mt.languages import in_upper_case
from mt.runs import LineStatistics
from mt.special_ids import EOS
from tests.decoding.fakes import INVALID, UpperCase, build_translator, text_of, upper

LONG_ADDRESS = "https://www.example.org/a/b_c.html?d=1&e=%20"


def test_every_line_gives_one_line_in_order() -> None:
    engine = UpperCase()
    lines = ["ab", "", " \t\u3000", "c", "A very long line. It goes on and on, and on", "\u2028x"]
    translations = list(build_translator(engine).stream(lines))
    assert [each.line_number for each in translations] == [1, 2, 3, 4, 5, 6]
    assert [each.source for each in translations] == lines
    assert [each.status for each in translations] == ["ok", "empty", "empty", "ok", "ok", "ok"]
    texts = ["AB", "", "", "C", "A VERY LONG LINE. IT GOES ON AND ON, AND ON", "\u2028X"]
    assert [each.text for each in translations] == texts
    assert [each.score for each in translations] == [-1.0, 0, 0, -1.0, -3.0, -1.0]
    assert engine.calls == [[3, 2, 18, 19, 7, 3]], "blank lines never reach the model"
    assert build_translator(engine).translate(lines) == texts


def test_parts_are_joined_as_the_target_language_writes() -> None:
    for language, joined in (
        ("zh", "ONE TWO THREE.FOUR FIVE."),
        ("de", "ONE TWO THREE. FOUR FIVE."),
        ("th", "ONE TWO THREE. FOUR FIVE."),
        ("km", "ONE TWO THREE. FOUR FIVE."),
    ):
        translator = build_translator(UpperCase(), language=language)
        assert translator.translate(["one two three. Four five."]) == [joined]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"see {LONG_ADDRESS} at one", f"SEE {LONG_ADDRESS} AT ONE"),
        (f"see ({LONG_ADDRESS}), now", f"SEE ({LONG_ADDRESS}), NOW"),
        (f"see {LONG_ADDRESS}.", f"SEE {LONG_ADDRESS}."),
        (f"{LONG_ADDRESS} {LONG_ADDRESS} is it", f"{LONG_ADDRESS} {LONG_ADDRESS} IS IT"),
        (f"请看{LONG_ADDRESS}", f"请看 {LONG_ADDRESS}"),
    ],
)
def test_addresses_longer_than_the_model_supports_are_copied(line: str, text: str) -> None:
    [translation] = build_translator(UpperCase(), language="de").stream([line])
    assert (translation.text, translation.status) == (text, "ok")
    assert any("translated in" in note for note in translation.notes)


def test_line_ends_become_a_space_and_lone_surrogates_are_replaced() -> None:
    lines = ["a\nb", "a\r\nb", "a\rb", "a\u2028b\u0085c", "a\ud800b"]
    texts = ["A B", "A B", "A B", "A\u2028B\u0085C", "A\ufffdB"]
    *plain, repaired = build_translator(UpperCase()).stream(lines)
    assert [each.text for each in (*plain, repaired)] == texts
    assert repaired.notes == ("lone surrogates are read as U+FFFD",)


def test_look_ahead_is_bounded() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield f"line {number}"

    engine = UpperCase()
    stream = build_translator(engine, batch_size=2).stream(lines())
    assert read == 0
    found = Hypothesis(upper("line 0"), -2.0, -1.0, finished=True)
    part = TranslatedPart([*map(ord, "line 0"), EOS], found, "line 0", "LINE 0")
    best = RankedTranslation("LINE 0", -1.0, (part,))
    assert next(stream) == Translation(
        1, "line 0", "LINE 0", "ok", -1.0, alternatives=(best,), sentences=("line 0",)
    )
    assert best.ids == upper("line 0")
    assert read == 64
    assert [each.line_number for each in stream] == list(range(2, 1001))
    assert [len(call) for call in engine.calls] == [64] * 15 + [40]


class Answers(Engine):
    """An engine with a list of answers for each source, worse the longer they are.

    An answer that ends with `+` is unfinished. A search with blocked n-grams answers "... again".
    """

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.blocked: list[str] = []

    def n_best_ids(self, sources: Any, decoding: Any, count: int, *, prefixes: Any = ()) -> Any:
        texts = [text_of(source[:-1]) for source in sources]
        if decoding.no_repeat_ngram is not None:
            self.blocked += texts
            assert decoding.no_repeat_ngram == BLOCKED_NGRAM
            pairs = zip(map(text_of, prefixes), texts, strict=True)
            return [[answer(f"{prefix}{text} again")] for prefix, text in pairs]
        return [list(map(answer, self.answers[text][:count])) for text in texts]


def answer(text: str) -> Hypothesis:
    return Hypothesis(tuple(map(ord, text)), -9.0, -float(len(text)), not text.endswith("+"))


def test_only_loops_are_decoded_again_and_keep_their_prefix() -> None:
    engine = Answers(fine=["so so so"], loop=["nein" + " nein" * 20], **{"x. " * 20: ["y. " * 20]})
    lines, prefixes = ["fine", "loop", "x. " * 20, ""], ["", "Oh ", "", ""]
    translations = list(build_translator(engine, longest=99).stream(lines, prefixes=prefixes))
    assert [each.text for each in translations] == ["so so so", "Ohloop again", "y. " * 20, ""]
    assert [each.status for each in translations] == ["ok", "repeated", "ok", "empty"]
    assert engine.blocked == ["loop"]
    note = "the translation repeated itself or was too long; it was decoded again with "
    assert translations[1].notes == (f"{note}`decoding.no_repeat_ngram` 3",)


def test_loops_are_not_decoded_again_if_blocked_already_or_to_be_kept() -> None:
    engine = Answers()
    blocking = build_translator(engine, no_repeat_ngram=BLOCKED_NGRAM)
    assert blocking.translate(["aaaaaaaaaaaa"]) == ["aaaaaaaaaaaa again"]
    assert engine.blocked == ["aaaaaaaaaaaa"]
    loop = "nein" + " nein" * 20
    engine = Answers(loop=[loop])
    [translation] = build_translator(engine, repair="off").stream(["loop"])
    assert (translation.text, translation.status, engine.blocked) == (loop, "ok", [])


class Searches(Engine):
    """An engine with hypotheses for each source and for its second search.

    That of a source with other words than `answers` is `rest`.
    """

    def __init__(self, *answers: Hypothesis, rest: Hypothesis | None = None) -> None:
        self.answers = [*answers]
        self.rest = rest
        self.sources: list[str] = []

    def n_best_ids(self, sources: Any, decoding: Any, *_: Any, **__: Any) -> Any:
        self.sources += [text_of(source[:-1]) for source in sources]
        is_rest = self.rest is not None and len(self.sources) > 1
        return [[self.rest if is_rest else self.answers.pop(0)] for _ in sources]


def found(text: str, score: float = -1.0, *, finished: bool = True) -> Hypothesis:
    return Hypothesis(tuple(map(ord, text)), score * (len(text) + finished), score, finished)


LOOP = "ja " * 20


@pytest.mark.parametrize(
    ("first", "second", "text", "status"),
    [
        (found(LOOP), found("ja, ja"), "ja, ja", "repeated"),
        (found(LOOP), found("ja, ja", -9.0), "ja, ja", "repeated"),
        (found(LOOP), found("ja, j", finished=False), LOOP.strip(), "repeated"),
        (found(LOOP), found("nein " * 20, -0.5), ("nein " * 20).strip(), "repeated"),
        (found(LOOP), found("nein " * 20, -2.0), LOOP.strip(), "repeated"),
        (found(LOOP, finished=False), found("ja, ja", -9.0), "ja, ja", "repeated"),
        (found(LOOP, finished=False), found("ja, j", finished=False), "ja, j", "length-limited"),
        (found("abcdefghijklmnop"), found("abc"), "abcdefghijklmnop", "ok"),
        (found("abcdefghijklmnop", finished=False), found("abc", -9.0), "abc", "repeated"),
    ],
)
def test_the_better_of_two_searches_is_used(
    first: Hypothesis, second: Hypothesis, text: str, status: str
) -> None:
    translator = build_translator(Searches(first, second), split_sentences="on")
    [translation] = translator.stream(["an"])
    assert (translation.text, translation.status) == (text, status)
    kept = status == "repeated" and len(text) > 20
    assert any("found no better one" in note for note in translation.notes) is kept


@pytest.mark.parametrize(
    ("source", "first", "rest", "text", "status"),
    [
        ("call {n}", "ring", found("ring"), "ring {n}", "ok"),
        ("call {n}", "ring", found("ring", -9.0), "ring {n}", "ok"),
        ("call {n}", "ring", found(LOOP), "ring", "altered"),
        ("call {n}", "ring", found("rin", finished=False), "ring", "altered"),
        ("from 6 to 8 pm", "von 18 bis 20 Uhr", None, "von 18 bis 20 Uhr", "ok"),
        ("in 1984", "1948", None, "1948", "ok"),
        ("pay $200", "zahle zweihundert", None, "zahle zweihundert", "ok"),
    ],
)
def test_a_right_or_better_translation_is_not_repaired(
    source: str, first: str, rest: Hypothesis | None, text: str, status: str
) -> None:
    engine = Searches(found(first), rest=rest)
    [translation] = build_translator(engine).stream([source])
    assert (translation.text, translation.status) == (text, status)
    assert (len(engine.sources) > 1) is (rest is not None)


def test_only_the_looping_part_of_a_line_is_decoded_again() -> None:
    engine = Answers(**{"a one.": ["eins."], "a two.": ["drei" * 9]})
    [translation] = build_translator(engine, longest=7).stream(["a one. a two."])
    assert translation.text == "eins. a two. again"
    assert engine.blocked == ["a two."]
    assert (translation.status, len(translation.notes)) == ("repeated", 2)


def test_copied_and_empty_translations_have_their_status() -> None:
    answers = {" Peter ": ["Peter"], "12:30": ["12:30"], "ab": ["AB"], "so": [" "]}
    copied, number, other, empty = build_translator(Answers(**answers)).stream(answers)
    assert (copied.status, copied.notes) == ("copied", ("the translation is the line itself",))
    assert (number.status, other.status) == ("ok", "ok"), "a line without letters may be copied"
    assert (empty.status, empty.notes) == ("empty", ("the translation is empty",))


def test_unknown_characters_are_named_once_in_order() -> None:
    others = "".join(chr(0x4E00 + i) for i in range(15))
    lines = ["naïve", "雪 and 雨, 雪\u200b", f"a long text before {others}"]
    known, some, many = build_translator(UpperCase(), known=256).stream(lines)
    assert (known.status, known.notes) == ("ok", ())
    note = "unknown to the tokenizer: `雪` (U+96EA), `雨` (U+96E8), U+200B"
    assert (some.status, some.notes) == ("ok", (note,))
    assert many.notes[0].endswith(f"`{chr(0x4E09)}` (U+4E09) and 5 more")


def test_alternatives_of_a_split_line_are_the_best_combinations_of_its_parts() -> None:
    parts = {"a.": ["1", "22222"], "b.": ["7", "88", "999"], "c.": ["x", "yyy"]}
    [found] = build_translator(Answers(**parts), longest=3).stream(["a. b. c."], n_best=5)
    every = [
        (-float(len(a + b + c)), f"{a} {b} {c}")
        for a in parts["a."]
        for b in parts["b."]
        for c in parts["c."]
    ]
    every.sort(key=lambda scored: -scored[0])
    assert [each.score for each in found.alternatives] == [score for score, _ in every[:5]]
    assert {(each.score, each.text) for each in found.alternatives} <= set(every)
    assert len({each.text for each in found.alternatives}) == 5


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(UserError):
        build_translator(UpperCase()).stream([], n_best=6)
    with pytest.raises(UserError):
        build_translator(UpperCase(), search="greedy").stream([], n_best=2)
    assert list(build_translator(UpperCase(), beam=6).stream([], n_best=6)) == []
    assert list(build_translator(UpperCase(), search="sample", beam=1).stream([], n_best=9)) == []
    # One string in place of a list.
    with pytest.raises(TypeError):
        build_translator(UpperCase()).translate("a text")
    with pytest.raises(TypeError):
        build_translator(UpperCase()).translate(["a"], prefixes="x")


def test_prefix_of_a_split_line_belongs_to_its_first_part() -> None:
    engine = UpperCase()
    lines, prefixes = ["ab", " ", "One two. Three four.", "cd"], ["x ", "y", "Z:", ""]
    found = build_translator(engine, longest=12).translate(lines, prefixes=prefixes)
    assert found == ["xAB", "", "Z:ONE TWO. THREE FOUR.", "CD"]
    assert engine.prefixes == [["x", "Z:", "", ""]]


def test_invalid_and_unknown_characters_of_a_prefix_are_noted() -> None:
    translator = build_translator(UpperCase(), known=256)
    translations = translator.stream(["a", "2", "c"], prefixes=["x \u96ea y", "\ud800", "z"])
    unknown = "prefix: ends before `{0}` (U+{1:X}), unknown to the tokenizer"
    assert [(each.text, each.status, each.notes) for each in translations] == [
        ("xA", "ok", (unknown.format("\u96ea", 0x96EA),)),
        (
            *("2", "ok"),
            ("prefix: lone surrogates are read as U+FFFD", unknown.format("\ufffd", 0xFFFD)),
        ),
        ("zC", "ok", ()),
    ]


def test_lines_and_prefixes_of_different_number_are_an_error() -> None:
    translator = build_translator(UpperCase(), batch_size=1)
    stream = translator.stream(iter("abc"), prefixes=iter("xy"))
    assert next(stream).text == "xA"
    for lines, prefixes in (("abc", "xy"), ("ab", "xyz"), ("a", "")):
        with pytest.raises(UserError):
            translator.translate([*lines], prefixes=[*prefixes])


@pytest.mark.parametrize(
    ("languages", "line", "text", "sentences"),
    [
        ("en de", "  One day. \tTwo!  Three ", "  ONE DAY. \tTWO!  THREE ", 3),
        ("en zh", "One day. Two!  Three.", "ONE DAY.TWO!  THREE.", 3),
        ("zh en", "\u3000我累了。今天冷！ 好", "\u3000我累了。 今天冷！ 好", 3),
        ("zh ja", "我累了。今天冷！", "我累了。今天冷！", 2),
        ("en de", " \t", " \t", 0),
    ],
)
def test_sentences_are_translated_one_by_one_and_their_space_is_kept(
    languages: str, line: str, text: str, sentences: int
) -> None:
    source, target = languages.split()
    engine = UpperCase()
    translator = build_translator(
        engine, source_language=source, language=target, split_sentences="auto"
    )
    (found,) = translator.stream([line])
    assert found.text == text
    assert (len(found.sentences), sum(map(len, engine.calls))) == (sentences, sentences)
    assert found.status == ("ok" if sentences else "empty") or found.text == line.strip("\u3000")
    assert found.score == -sentences


def test_model_of_paragraphs_reads_paragraphs() -> None:
    line = " One. Two. "
    for mean, choice, calls in (
        (None, "auto", [5, 5]),
        (1.0, "auto", [5, 5]),
        (1.5, "auto", [10]),
        (1.5, "on", [5, 5]),
        (1.0, "off", [12]),
    ):
        engine = UpperCase()
        shape = None if mean is None else LineStatistics(mean)
        translator = build_translator(engine, line_shape=shape, split_sentences=choice)
        assert translator.translate([line]) == [" ONE. TWO. "]
        assert engine.calls == [calls]


def test_prefix_of_several_sentences_keeps_the_line_whole() -> None:
    translator = build_translator(UpperCase(), split_sentences="on")
    lines = [" One one. Two.", "One one. Two.", " One one. Two."]
    found = list(translator.stream(lines, prefixes=["An a", "Well well. To", ""]))
    texts = ["An aONE ONE. TWO.", "Well well. ToONE ONE. TWO.", " ONE ONE. TWO."]
    assert [each.text for each in found] == texts
    assert [len(each.sentences) for each in found] == [2, 1, 2]


def test_long_sentence_is_cut_and_the_others_are_not() -> None:
    engine = UpperCase()
    translator = build_translator(engine, longest=12, split_sentences="on")
    (found,) = translator.stream(["One two.  Three four, five six. Seven."])
    assert found.text == "ONE TWO.  THREE FOUR, FIVE SIX. SEVEN."
    assert (found.status, found.notes) == (
        "ok",
        ("translated in parts: 2 of 22 tokens, the model supports up to 12",),
    )
    assert len(found.alternatives[0].parts) == 4


class Careless(UpperCase):
    """Writes an invalid byte for a placeholder, and words for numbers."""

    def n_best_ids(self, *arguments: Any, **options: Any) -> Any:
        found = super().n_best_ids(*arguments, **options)
        return [[replace(best, ids=_without_copies(best.ids))] for best, *_ in found]


def _without_copies(ids: Sequence[int]) -> tuple[int, ...]:
    return upper(re.sub(r"\d+", "MANY", text_of(ids)).replace("{N}", chr(INVALID)))


def test_altered_numbers_and_invalid_bytes_are_noted() -> None:
    for_name, plain = build_translator(Careless(), repair="off").stream(["for {n} now", "for now"])
    assert for_name.status == "altered"
    assert for_name.notes == (
        "not in the translation: `{n}`",
        "bytes that form no character are left out",
    )
    assert plain.status == "ok"


def test_altered_text_is_put_back() -> None:
    lines = {
        "for {n} now": "FOR {n} NOW",
        "{n} men, {n}!": "{n} MEN, {n}!",
        "in 1984": "IN MANY",
        "two {n} 3": "TWO {N} 3",  # its prefix says how the translation begins
    }
    prefixes = ["", "", "", "TWO"]
    restored = list(build_translator(Careless()).stream(lines, prefixes=prefixes))
    assert [each.text for each in restored[:3]] == list(lines.values())[:3]
    assert [each.status for each in restored] == [*["ok"] * 3, "altered"]
    assert restored[1].notes == ("put back into the translation: `{n}`",)
    assert restored[2].notes == ("numbers not in the translation: `1984`",)


class Shuffled(Careless):
    """Finds translations in an order of its own, and loops for lines that ask for it."""

    def __init__(self, random: Random | None) -> None:
        super().__init__()
        self.random = random

    def n_best_ids(self, sources: Any, decoding: Any, *rest: Any, **options: Any) -> Any:
        times = 9 if decoding.no_repeat_ngram is None else 1
        return [
            [replace(best, ids=best.ids * times) if "LOOP" in text_of(best.ids) else best]
            for [best] in super().n_best_ids(sources, decoding, *rest, **options)
        ]

    def iterate_n_best(self, *arguments: Any, **options: Any) -> Any:
        found = [*super().iterate_n_best(*arguments, **options)]
        if self.random:
            self.random.shuffle(found)
        yield from found


LINES = ("", "12", "a loop", "for {n} now", "One day. Two! A loop? In 1984 {n}", "x y " * 12)


@settings(max_examples=50, deadline=None)
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=12),
    window=st.integers(1, 9),
    random=st.randoms(use_true_random=False),
)
def test_translations_do_not_depend_on_windows_and_the_order_of_the_search(
    lines: list[str], window: int, random: Random
) -> None:
    ours, theirs = (
        build_translator(Shuffled(order), split_sentences="on") for order in (random, None)
    )
    assert [*ours.stream(lines, look_ahead=window)] == [*theirs.stream(lines)]


def test_lines_are_finished_while_the_engine_searches_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Slow(UpperCase):
        def iterate_n_best(self, *arguments: Any, **options: Any) -> Any:
            for index, found in [*super().iterate_n_best(*arguments, **options)][::-1]:
                if index == 0:
                    raise UserError("no memory")
                events.append(f"found {index}")
                yield index, found

    translator = build_translator(Slow())
    monkeypatch.setattr(translator.tokenizer.target, "has_invalid_bytes", record(events))
    with pytest.raises(UserError):
        next(translator.stream(["a", "b", "c"]))
    assert events == ["found 2", "C is finished", "found 1", "B is finished"]


def record(events: list[str]) -> Callable[[Sequence[int]], bool]:
    def has_invalid_bytes(ids: Sequence[int]) -> bool:
        events.append(f"{text_of(ids)} is finished")
        return False

    return has_invalid_bytes


def test_text_without_words_does_not_reach_the_model() -> None:
    engine = UpperCase()
    lines = ["12", " 3.14 ", "https://a.b/c", "{name} %s 😀!!!", "go to a@b.org"]
    translations = list(build_translator(engine).stream(lines))
    assert [each.text for each in translations] == [*lines[:4], "GO TO a@b.org"]
    assert [each.status for each in translations] == ["ok"] * 5
    assert [len(each.sentences) for each in translations] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("A MAN SEES {name} 3 TIMES.", "A man sees {name} 3 times."),
        ("YES, I AM", "Yes, I am"),
        ("STRAßE", "STRAßE"),
        ("EXIT", "EXIT"),
        ("EXITS", "EXITS"),
        ("NATO 7", "NATO 7"),
        ("MORNING NEWS", "Morning news"),
        ("我有GPU和CPU", "我有GPU和CPU"),
        ("ПРИВЕТ МИР", "Привет мир"),
        ("SEE https://a.b/i/X AND {NAME}", "See https://a.b/i/X and {NAME}"),
        ("{NAME} SAW A MAN", "{NAME} Saw a man"),
        ("This is NOT SO.", "This is NOT SO."),
    ],
)
def test_sentences_in_capitals_are_translated_in_lower_case(line: str, read: str) -> None:
    class Same(UpperCase):
        """Returns the source."""

        def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> Any:
            return [[Hypothesis(tuple(ids[:-1]), -1.0, -1.0, finished=True)] for ids in sources]

    translator = build_translator(Same(), longest=99)
    [translation] = translator.stream([line])
    [part] = translation.alternatives[0].parts
    assert text_of(part.source[:-1]) == read
    assert (translation.text, translation.sentences) == (line, (line,))
    [kept] = build_translator(Same(), longest=99, repair="off").stream([line])
    assert text_of(kept.alternatives[0].parts[0].source[:-1]) == line


def test_translation_that_loses_all_words_is_not_used() -> None:
    answers = {"so {n}": ["good"], "so": [""], "no {n}": [""], "no": [""]}
    used, empty = build_translator(Answers(**answers)).stream(["so {n}", "no {n}"])
    assert (used.text, used.status) == ("good", "altered")
    assert (empty.text, empty.status) == ("", "empty")


def test_turkish_capitals_keep_their_dots() -> None:
    translator = build_translator(UpperCase(), source_language="tr", language="tr", longest=99)
    [translation] = translator.stream(["İSTANBUL IŞIK İÇİNDE"])
    [part] = translation.alternatives[0].parts
    assert part.source_text == "İstanbul ışık içinde"
    assert in_upper_case("ışık içinde", "tr") == "IŞIK İÇİNDE"


def test_text_in_unknown_characters_is_copied() -> None:
    engine = UpperCase()
    translator = build_translator(engine, known=256, split_sentences="on")
    whole, part = translator.stream(["你好吗 ok", "Well. 你好吗？ Yes."])
    assert (whole.text, whole.status) == ("你好吗 ok", "copied")
    assert (part.text, part.status) == ("WELL. 你好吗？ YES.", "copied")
    assert whole.notes[0] == "a text in unknown characters is not translated"
    assert engine.calls == [[6, 5]]


def test_translations_of_more_than_three_times_the_source_are_decoded_again() -> None:
    class Talkative(Engine):
        def n_best_ids(self, sources: Any, decoding: Any, *_: Any, **__: Any) -> Any:
            limits = [length_limit(len(source), decoding) for source in sources]
            words = map(chr, range(0x61, 0x61 + 26))
            text = "".join(words)
            return [[Hypothesis(upper(text)[:limit], -1.0, -1.0, False)] for limit in limits]

    lines = ["a", "ab", "abcdefg", "abcdefgh"]
    [forced] = build_translator(Talkative()).stream(["a"], prefixes=["ABCDEFGH"])
    assert len(forced.text) == 26, "a prefix may be longer than the source"
    found = list(build_translator(Talkative()).stream(lines))
    assert [len(each.text) for each in found] == [6, 9, 21, 26]
    assert [each.status for each in found] == ["length-limited"] * 4, "all are cut"
    assert [len(each.notes) for each in found] == [2, 2, 2, 1]
    [kept] = build_translator(Talkative(), repair="off").translate(["a"])
    assert len(kept) == 26
