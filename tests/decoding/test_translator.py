import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.translator import Translation, Translator, log_notes
from mt.special_ids import EOS


class Characters:
    """A tokenizer whose pieces are characters, and that refuses what UTF-8 cannot hold."""

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*(ord(c) for c in line.encode("utf-8").decode()), EOS] for line in lines]

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class UpperCase(Engine):
    """An engine that puts letters in upper case, and remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.finished = True

    def n_best_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
    ) -> list[list[Hypothesis]]:
        self.calls.append([len(source) for source in sources])
        assert all(source[-1] == EOS for source in sources)
        upper = [[ord(c) for i in source[:-1] for c in chr(i).upper()] for source in sources]
        return [[Hypothesis(tuple(ids), -2.0, -1.0, self.finished)] for ids in upper]


def build(
    engine: UpperCase, *, longest: int = 20, language: str = "en", **decoding: Any
) -> Translator:
    return Translator(
        engine,
        cast("Tokenizer", Characters()),
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
    assert [t.status for t in translations] == ["ok", "blank", "blank", "ok", "split", "ok"]
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
    assert (longer.status, len(longer.notes)) == ("split", 1)


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
    assert translation.notes == (
        "31 pieces, the model knows up to 20: translated in 2 parts",
        "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
        "positions) and is cut there",
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
    assert next(stream) == Translation(1, "line 0", "LINE 0", "ok", -1.0)
    assert read == 64
    assert [t.line_number for t in stream] == list(range(2, 1001))
    assert [len(call) for call in engine.calls] == [64] * 15 + [40]


def test_batches_of_one_answer_each_line_before_the_next_is_read() -> None:
    read: list[str] = []

    def lines() -> Iterator[str]:
        for line in ("a", "b", "c"):
            read.append(line)
            yield line

    stream = build(UpperCase(), batch_size=1).stream(lines())
    assert next(stream).text == "A"
    assert read == ["a"]
