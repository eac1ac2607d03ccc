import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis, TargetPrefixes
from mt.decoding.text import BLOCKED_NGRAM
from mt.decoding.translator import Alternative, Part, Translation, Translator, log_notes
from mt.errors import UserError
from mt.special_ids import EOS, UNK


class Characters:
    """A tokenizer whose tokens are characters, and that refuses what UTF-8 cannot hold."""

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*(ord(c) for c in line.encode("utf-8").decode()), EOS] for line in lines]

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Latin1(Characters):
    """Characters of one byte; what has more is unknown."""

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        encoded = super().encode_source(lines)
        return [[i if i < 256 else UNK for i in ids] for ids in encoded]


class UpperCase(Engine):
    """An engine that puts letters in upper case, and remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.finished = True

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        self.calls.append([len(source) for source in sources])
        assert all(source[-1] == EOS for source in sources)
        upper = [[ord(c) for i in source[:-1] for c in chr(i).upper()] for source in sources]
        return [[Hypothesis(tuple(ids), -2.0, -1.0, self.finished)] for ids in upper]


def build(
    engine: Engine,
    *,
    longest: int = 20,
    language: str = "en",
    tokenizer: Characters | None = None,
    **decoding: Any,
) -> Translator:
    return Translator(
        engine,
        cast("Tokenizer", tokenizer or Characters()),
        DecodingConfig(**decoding),
        longest_source=longest,
        target_language=language,
    )


def test_every_line_gives_one_line_in_order() -> None:
    engine = UpperCase()
    lines = ["ab", "", " \t\u3000", "c", "A very long line. It goes on and on, and on", "\u2028x"]
    translations = list(build(engine).stream(lines))
    assert [t.line_number for t in translations] == [1, 2, 3, 4, 5, 6]
    assert [t.source for t in translations] == lines
    assert [t.status for t in translations] == ["ok", "empty", "empty", "ok", "split", "ok"]
    assert [t.text for t in translations] == [
        *("AB", "", "", "C"),
        "A VERY LONG LINE. IT GOES ON AND ON, AND ON",
        "\u2028X",
    ]
    assert [t.score for t in translations] == [-1.0, 0, 0, -1.0, -3.0, -1.0]
    assert engine.calls == [[3, 2, 18, 19, 7, 3]], "blank lines never reach the model"
    assert build(engine).translate(lines) == [t.text for t in translations]


def test_nothing_to_translate_needs_no_engine() -> None:
    engine = UpperCase()
    assert build(engine).translate([]) == []
    assert build(engine).translate(["", " "]) == ["", ""]
    assert engine.calls == []


def test_parts_are_joined_as_the_target_language_writes() -> None:
    line = "one two three. Four five six."
    assert build(UpperCase(), language="zh").translate([line]) == ["ONE TWO THREE.FOUR FIVE SIX."]
    assert build(UpperCase(), language="de").translate([line]) == ["ONE TWO THREE. FOUR FIVE SIX."]


def test_a_line_of_exactly_the_longest_is_not_split() -> None:
    fitting, longer = build(UpperCase()).stream(["x" * 19, "x" * 20])
    assert (fitting.status, fitting.notes) == ("ok", ())
    note = "21 tokens, the model knows up to 20: translated in 2 parts"
    assert (longer.status, longer.notes) == ("split", (note,))


def test_line_ends_in_the_output_become_a_space() -> None:
    lines = ["a\nb", "a\r\nb", "a\rb", "a\u2028b\u0085c"]
    assert build(UpperCase()).translate(lines) == ["A B", "A B", "A B", "A\u2028B\u0085C"]


def test_lone_surrogates_are_replaced_and_told(caplog: pytest.LogCaptureFixture) -> None:
    translations = list(build(UpperCase()).stream(["fine", "a\ud800b"]))
    assert [t.text for t in translations] == ["FINE", "A\ufffdB"]
    for translation in translations:
        log_notes(translation)
    assert caplog.messages == ["line 2: lone surrogates are read as U+FFFD"]
    assert caplog.records[0].levelno == logging.WARNING


def test_what_was_split_or_cut_is_told() -> None:
    engine = UpperCase()
    engine.finished = False
    [translation] = build(engine).stream(["x" * 30])
    assert translation.status == "length-limited"
    assert translation.notes == (
        "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
        "positions) and is cut there",
        "31 tokens, the model knows up to 20: translated in 2 parts",
    )
    assert translation.text == "X" * 19 + " " + "X" * 11


def test_the_look_ahead_is_bounded() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield f"line {number}"

    engine = UpperCase()
    stream = build(engine, batch_size=2).stream(lines())
    assert read == 0
    source = [*map(ord, "line 0"), EOS]
    upper = Hypothesis(tuple(map(ord, "LINE 0")), -2.0, -1.0, finished=True)
    best = Alternative("LINE 0", -1.0, (Part(source, upper),))
    first = Translation(1, "line 0", "LINE 0", "ok", -1.0, alternatives=(best,))
    assert next(stream) == first
    assert read == 64
    assert [t.line_number for t in stream] == list(range(2, 1001))
    assert [len(call) for call in engine.calls] == [64] * 15 + [40]


def test_batches_of_one_answer_each_line_before_the_next_is_read() -> None:
    read: list[str] = []

    def lines() -> Iterator[str]:
        for line in ("a", "b", "c"):
            read.append(line)
            yield line

    for stream in (
        build(UpperCase(), batch_size=1).stream(lines()),
        build(UpperCase()).stream(lines(), look_ahead=1),
    ):
        read.clear()
        assert next(stream).text == "A"
        assert read == ["a"]


class Answers(Engine):
    """An engine that knows by heart what to say, a list of texts for each source."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.blocked: list[str] = []

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        texts = ["".join(map(chr, source[:-1])) for source in sources]
        if decoding.no_repeat_ngram is not None:
            self.blocked += texts
            assert decoding.no_repeat_ngram == BLOCKED_NGRAM
            return [[answer(f"{text} again")] for text in texts]
        return [list(map(answer, self.answers[text][:count])) for text in texts]


def answer(text: str) -> Hypothesis:
    """A text is the worse the longer it is; what ends with `+` was cut off."""
    return Hypothesis(tuple(map(ord, text)), -9.0, -float(len(text)), not text.endswith("+"))


def test_only_what_loops_is_decoded_again() -> None:
    engine = Answers(fine=["so so so"], loop=["nein" + " nein" * 20], **{"x. " * 20: ["y. " * 20]})
    translations = list(build(engine, longest=99).stream(["fine", "loop", "x. " * 20, ""]))
    assert [t.text for t in translations] == ["so so so", "loop again", "y. " * 20, ""]
    assert [t.status for t in translations] == ["ok", "repeated", "ok", "empty"]
    assert engine.blocked == ["loop"]
    assert translations[1].notes == (
        "the translation repeated itself; it was made again with `decoding.no_repeat_ngram` 3",
    )


def test_where_blocking_is_on_already_nothing_is_decoded_again() -> None:
    engine = Answers()
    (translation,) = build(engine, no_repeat_ngram=BLOCKED_NGRAM).stream(["aaaaaaaaaaaa"])
    assert (translation.text, engine.blocked) == ("aaaaaaaaaaaa again", ["aaaaaaaaaaaa"])


def test_what_loops_may_be_kept() -> None:
    loop = "nein" + " nein" * 20
    engine = Answers(loop=[loop])
    (translation,) = build(engine, on_repetition="keep").stream(["loop"])
    assert (translation.text, translation.status, engine.blocked) == (loop, "ok", [])


def test_a_part_that_loops_is_made_again_and_the_others_stay() -> None:
    engine = Answers(**{"a one.": ["eins."], "a two.": ["drei" * 9]})
    (translation,) = build(engine, longest=7).stream(["a one. a two."])
    assert translation.text == "eins. a two. again"
    assert engine.blocked == ["a two."]
    assert translation.status == "repeated"
    assert len(translation.notes) == 2


def test_copied_and_empty_translations_are_told() -> None:
    engine = Answers(Peter=["Peter"], **{"12:30": ["12:30"], "ab": ["AB"], "so": [" "]})
    lines = [" Peter ", "12:30", "ab", "so"]
    engine.answers[lines[0]] = ["Peter"]
    copied, number, other, empty = build(engine).stream(lines)
    assert (copied.status, copied.notes) == ("copied", ("the translation is the line itself",))
    assert (number.status, other.status) == ("ok", "ok"), "without letters there may be no other"
    assert (empty.status, empty.notes) == ("empty", ("the translation is empty",))


def test_unknown_characters_are_named_once_in_their_order() -> None:
    lines = ["naïve", "雪 and 雨, 雪\u200b", "".join(chr(0x4E00 + i) for i in range(15))]
    known, some, many = build(UpperCase(), tokenizer=Latin1()).stream(lines)
    assert (known.status, known.notes) == ("ok", ())
    note = "the tokenizer does not know `雪` (U+96EA), `雨` (U+96E8), U+200B"
    assert (some.status, some.notes) == ("unknown-characters", (note,))
    assert many.notes[0].endswith(f"`{chr(0x4E09)}` (U+4E09) and 5 more")


def test_alternatives_come_best_first() -> None:
    engine = Answers(a=["1", "22", "333"], b=["7", "88"])
    first, second = build(engine).stream(["a", "b"], n_best=3)
    assert [(each.text, each.score) for each in first.alternatives] == [
        *(("1", -1.0), ("22", -2.0), ("333", -3.0)),
    ]
    assert (first.text, first.score) == ("1", -1.0)
    assert [each.text for each in second.alternatives] == ["7", "88"]


def test_alternatives_of_a_split_line_are_the_best_choices_of_its_parts() -> None:
    parts = {"a.": ["1", "22222"], "b.": ["7", "88", "999"], "c.": ["x", "yyy"]}
    (found,) = build(Answers(**parts), longest=3).stream(["a. b. c."], n_best=5)
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


def test_more_alternatives_than_the_search_finds_are_refused_at_once() -> None:
    with pytest.raises(
        UserError, match="for 6 of them `decoding.beam` must be at least 6, it is 5"
    ):
        build(UpperCase()).stream([], n_best=6)
    with pytest.raises(UserError, match="greedy search finds one translation"):
        build(UpperCase(), search="greedy").stream([], n_best=2)
    assert list(build(UpperCase(), beam=6).stream([], n_best=6)) == []
    assert list(build(UpperCase(), search="sample", beam=1).stream([], n_best=9)) == []


def test_one_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="put a single one into a list"):
        build(UpperCase()).translate("a text")
