"""Terms of a glossary in translations: shown to the model, put in place, and reported."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.config.data import TERM_TAGS, Direction
from mt.data.glossary import Glossary, as_terms
from mt.data.tokenizer import Tokenizer
from mt.decoding.alignment import without_terms
from mt.decoding.confidence import mean_log_prob
from mt.decoding.engine import ExplainingEngine, Hypothesis, TokenDetails
from mt.decoding.text_files import report_line
from mt.decoding.translator import Translation, Translator
from tests.factories import Program, foreign_vocabulary

LINES = [
    "the black cats see a dog and 25 birds . The Dog sees 25 cats !",
    "die schwarzen Katzen sehen einen Hund und 25 Vögel . Der Hund sieht 25 Katzen !",
    "Mieze Köter 我的电脑 你好，世界。 a-b",
]
PLAIN = foreign_vocabulary(LINES, 160)
SHOWN = foreign_vocabulary(LINES, 162, control_symbols=[*TERM_TAGS])


class Dictionary(ExplainingEngine):
    """Engine that translates word by word, in order, and aligns each word with its source word.

    A shown term is ignored. Two source words that are joined by `_` in the table have one target.
    """

    def __init__(self, tokenizer: Tokenizer, table: dict[str, str]) -> None:
        self.tokenizer, self.table = tokenizer, table
        self.sources: list[str] = []

    def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
        found = []
        for source in sources:
            pieces = self.tokenizer.source.processor.id_to_piece(list(source[:-1]))
            self.sources.append("".join(pieces).replace("\u2581", " ").strip())
            text = " ".join(filter(None, (self.table.get(w, w) for w, _ in self.words(source))))
            [ids] = self.tokenizer.encode_target([text])
            found.append([Hypothesis(tuple(ids[:-1]), -1.0, -1.0, finished=True)])
        return found

    def words(self, source: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Return the words of a source with their tokens, without shown terms."""
        words: list[tuple[str, list[int]]] = []
        first, last = self.tokenizer.term_ids or (-1, -1)
        is_shown = False
        for place, token in enumerate(source[:-1]):
            is_shown = is_shown or token == first
            piece = self.tokenizer.source.processor.id_to_piece(int(token))
            if not is_shown and (piece[0] == "\u2581" or not words):
                words.append((piece[1:], [place]))
            elif not is_shown:
                words[-1] = (words[-1][0] + piece, [*words[-1][1], place])
            is_shown = is_shown and token != last
        return words

    def explain(self, sources: Any, hypotheses: Any) -> list[TokenDetails]:
        details = []
        for source, hypothesis in zip(sources, hypotheses, strict=True):
            owners = [
                places[0]
                for word, places in self.words(source)
                for target in self.table.get(word, word).split()
                for _ in self.tokenizer.encode_target([target])[0][:-1]
            ]
            pairs = tuple(zip(owners, range(len(hypothesis.ids)), strict=True))
            details.append(TokenDetails((), pairs))
        return details


def build(table: dict[str, str], *, shown: bool = False, longest: int = 60) -> Translator:
    words = SHOWN if shown else PLAIN
    tokenizer = Tokenizer(words, words, "")
    return Translator(
        Dictionary(tokenizer, table),
        tokenizer,
        DecodingConfig(split_sentences="off"),
        longest_source=longest,
        direction=Direction("en", "de"),
    )


TABLE = {
    "the": "die",
    "The": "Die",
    "cats": "Katzen",
    "see": "sehen",
    "a": "einen",
    "dog": "Hund",
    "Dog": "Hund",
    "black": "schwarzen",
    "birds": "Vögel",
}


def translate(glossary: Any, line: str, table: dict[str, str] = TABLE, **keys: Any) -> Translation:
    [translation] = build(table, **keys).stream([line], glossary=as_glossary(glossary))
    return translation


def as_glossary(rows: Any) -> Glossary:
    return Glossary(as_terms(rows), Direction("en", "de"))


@pytest.mark.parametrize(
    ("glossary", "line", "text", "fates"),
    [
        ({"cats": "Katzen"}, "the cats see", "die Katzen sehen", "used model"),
        ({"cats": "Katze"}, "the cats see", "die Katzen sehen", "inflected model"),
        ({"cats": ["Kater", "Katze"]}, "the cats", "die Katzen", "inflected model"),
        ({"dog": "Köter"}, "see a dog", "sehen einen Köter", "used placed"),
        ({"a dog": "den Köter"}, "see a dog", "sehen den Köter", "used placed"),
        ({"dog": "Köter"}, "see a Dog", "sehen einen Köter", "used placed"),
        ({"see": "blicken"}, "see a dog", "blicken einen Hund", "used placed"),
        ({"the": "jene"}, "The dog", "Jene Hund", "used placed"),
        ({"dog": "Köter"}, "dog a dog", "Köter einen Köter", "used placed, used placed"),
        ({"dog": "Köter", "cats": "Mieze"}, "cats see a dog", "Mieze sehen einen Köter", 2),
        ({"dog": "Köter"}, "25 dog 25", "25 Köter 25", "used placed"),
        ({"fish": "Fisch"}, "the cats see", "die Katzen sehen", ""),
        ({"dog": "dog"}, "a dog", "einen dog", "used placed"),
    ],
)
def test_a_term_that_is_missing_replaces_the_aligned_words(
    glossary: Any, line: str, text: str, fates: Any
) -> None:
    translation = translate(glossary, line)
    assert translation.text == text
    uses = ", ".join(f"{use.fate} {use.way}" for use in translation.terms)
    assert uses == ("used placed, used placed" if fates == 2 else fates)
    assert (translation.status, translation.notes) == ("ok", ())


class Continuing(Dictionary):
    """Dictionary that goes on behind a forced beginning as a table says, or not at all."""

    def __init__(self, tokenizer: Tokenizer, table: dict[str, str]) -> None:
        super().__init__(tokenizer, table)
        self.further: dict[str, tuple[str, float]] = {}
        self.tried: list[str] = []

    def n_best_ids(
        self, sources: Any, *given: Any, prefixes: Any = (), **keys: Any
    ) -> list[list[Hypothesis]]:
        found = super().n_best_ids(sources, *given, **keys)
        for index, prefix in enumerate(prefixes):
            if prefix:
                beginning = self.tokenizer.decode_target(prefix)
                self.tried.append(beginning)
                rest, log_prob = self.further.get(beginning, ("", -99.0))
                ids = tuple(self.tokenizer.encode_target([beginning + rest])[0][:-1])
                finished = not rest.endswith("...")
                found[index] = [Hypothesis(ids, log_prob, log_prob, finished=finished)]
        return found


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize(
    ("line", "table", "further", "text", "way"),
    [
        # The words behind the term agree with it, and those before it stay.
        ("see a dog !", {}, {"sehen einen Köter": (" an !", -1)}, "sehen einen Köter an !", 1),
        # The search may not lengthen the term to another word, but to a form of it.
        ("see a dog !", {}, {"sehen einen Köter": ("hund !", -1)}, "sehen einen Köter !", 1),
        ("see a dog !", {}, {"sehen einen Köter": ("n !", -1)}, "sehen einen Kötern !", 1),
        # Of two aligned words, the more probable place counts.
        (
            "see a dog !",
            {"dog": "alten Hund"},
            {"sehen einen Köter": (" Hund !", -1), "sehen einen alten Köter": (" !", -2)},
            "sehen einen Köter Hund !",
            1,
        ),
        # Without an aligned word, each place is tried.
        ("see dog a", {"dog": ""}, {"sehen Köter": (" ein", -1)}, "sehen Köter ein", 3),
        # A compound with a hyphen is one word.
        (
            "see a dog !",
            {"dog": "Katzen-Hund"},
            {"sehen einen Köter": (" !", -9), "sehen einen Katzen-Köter": (" !", -1)},
            "sehen einen Köter !",
            1,
        ),
        # A search that loses a number, its end or the rest of the sentence is not used.
        (
            "see a dog the cats see birds !",
            {},
            {"sehen einen Köter": (" !", -1)},
            "sehen einen Köter die Katzen sehen Vögel !",
            1,
        ),
        ("see a dog !", {}, {"sehen einen Köter": ("...", -1)}, "sehen einen Köter !", 1),
    ],
)
def test_the_translation_goes_on_behind_a_term(
    line: str,
    table: dict[str, str],
    further: dict[str, tuple[str, float]],
    text: str,
    way: int,
    shown: bool,
) -> None:
    translator = build(TABLE | table, shown=shown)
    engine = Continuing(translator.tokenizer, TABLE | table)
    engine.further = further
    translator.engine = engine
    [translation] = translator.stream([line], glossary=as_glossary({"dog": "Köter"}))
    assert translation.text == text
    [use] = translation.terms
    assert (use.fate, use.way) == ("inflected" if "Kötern" in text else "used", "placed")
    assert translation.alternatives[0].score == -1.0, "alternatives stay in their order"
    [plain] = translator.stream([line])
    parts = [made.alternatives[0].parts for made in (translation, plain)]
    assert mean_log_prob(parts[0]) == mean_log_prob(parts[1]), "confidence is that of own words"


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize(
    ("line", "table", "text"),
    [
        ("see 25 dog", {"dog": ""}, "see 25"),  # no aligned word
        ("see a dog", {"dog": "!"}, "see a !"),
    ],
)
def test_a_term_without_a_place_is_reported(
    line: str, table: dict[str, str], text: str, shown: bool
) -> None:
    translation = translate({"dog": "Köter"}, line, table, shown=shown)
    assert translation.text == text
    assert translation.notes[-1] == "terms not in the translation: `Köter` for `dog`"
    assert translation.status in {"missed-term", "altered"}
    number, status, notes, _ = report_line(translation).removesuffix("\n").split("\t")
    assert (number, status) == ("1", translation.status)
    assert notes.endswith("; terms: dog → Köter: missed")


def test_a_model_that_learned_terms_reads_them_behind_their_source_terms() -> None:
    translator = build(TABLE, shown=True)
    engine = translator.engine
    assert isinstance(engine, Dictionary)
    glossary = {"dog": "Köter", "black cats": "Mieze"}
    line = "the black cats see a Dog !"
    [translation] = translator.stream([line], glossary=as_glossary(glossary))
    first, last = TERM_TAGS
    shown = f"the black cats{first} Mieze{last} see a Dog{first} Köter{last} !"
    assert {*engine.sources} == {shown}
    [part] = translation.alternatives[0].parts
    [plain] = translator.tokenizer.encode_source([line])
    assert translator.tokenizer.term_ids is not None
    assert without_terms(part.source, translator.tokenizer.term_ids) == plain != part.source
    assert translation.text == "die Mieze sehen einen Köter !"
    [links] = translator.find_links([translation])
    assert links is not None
    pairs = {(line[slice(*a.source)], translation.text[slice(*a.target)]) for a in links}
    assert ("!", "!") in pairs, "places are those of the line without the terms"
    assert {("black cats", "Mieze"), ("Dog", "Köter")} < pairs
    assert [link.target for link in links] == sorted(link.target for link in links)


def test_terms_for_which_there_are_too_many_tokens_are_left_out() -> None:
    line = "see a dog"
    count = len(build(TABLE, shown=True).tokenizer.encode_source([line])[0])
    translator = build(TABLE, shown=True, longest=count + 1)
    assert translator.translate([line], glossary={"dog": "Köter"}) == ["sehen einen Köter"]
    engine = translator.engine
    assert isinstance(engine, Dictionary)
    assert {*engine.sources} == {line}


@pytest.mark.parametrize("shown", [False, True])
def test_a_glossary_without_a_match_changes_nothing(shown: bool) -> None:
    lines = ["the cats see 25 birds !", "", " a dog", "我的电脑", "x\ud800y", "SEE A DOG"]
    translator = build(TABLE, shown=shown)
    plain = list(translator.stream(lines))
    for rows in ({f"q{number}": "x" for number in range(50)}, {}):
        assert list(translator.stream(lines, glossary=as_glossary(rows))) == plain


def test_a_term_of_an_unspaced_script_is_shown_without_a_space() -> None:
    tokenizer = Tokenizer(SHOWN, SHOWN, "")
    spaced, unspaced = map(tokenizer.encode_term, ["Hund", "电脑"])
    pieces = SHOWN.processor.id_to_piece(spaced + unspaced)
    assert "".join(pieces) == "\u2581Hund电脑"
    assert spaced == SHOWN.encode(["Hund"])[0][:-1]
    assert Tokenizer(PLAIN, PLAIN, "").term_ids is None


@pytest.mark.parametrize("extra", [[], ["--shard", "1/1"]])
def test_files_are_translated_with_a_glossary(
    extra: list[str], finished_run: Path, program: Program, tmp_path: Path
) -> None:
    text, terms = tmp_path / "in.txt", tmp_path / "terms.tsv"
    text.write_text("one two three four\nzero one\n")
    terms.write_text("two\tBÜHNE\nnine\tx\n")
    out, report = tmp_path / "out.txt", tmp_path / "report.tsv"
    common = [text, "--glossary", terms, "--report", report, "-o", out, *extra]
    status, _, err = program("translate", finished_run, *common)
    assert status == 0, err
    first, second = report.read_text().splitlines()
    assert "terms: two → BÜHNE: " in first
    assert "terms" not in second
    assert ("BÜHNE" in out.read_text()) is ("missed" not in first)
    if not extra:
        status, answer, _ = program("translate", finished_run, text, "--json", "--glossary", terms)
        records = [json.loads(line) for line in answer.splitlines()]
        [use] = records[0]["terms"]
        assert (use["source"], use["target"]) == ("two", "BÜHNE")
        assert records[1]["terms"] == []
        before = out.read_bytes()
        terms.write_text("two\n")
        status, _, err = program("translate", tmp_path / "none", *common)
        message = (
            f"error: {terms}: line 1: has 0 tabs; write source term, tab, target term, and "
            "perhaps a tab and a note\n"
        )
        assert (status, err) == (2, message)
        assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("in.txt", "one two\nzero\n", "lines 1 to 2"),
        ("in.jsonl", '{"text": "one two"}\n', "the texts"),
    ],
)
def test_a_glossary_of_which_no_term_is_found_is_named(
    name: str,
    content: str,
    where: str,
    finished_run: Path,
    program: Program,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text, terms = tmp_path / name, tmp_path / "terms.tsv"
    text.write_text(content)
    warning = f"{terms}: none of its source terms is in {where}"
    column = ["--column", "text"] if text.suffix == ".jsonl" else []
    for rows, is_named in [('"one"\tx\nTerm\ty\n', True), ("one\tx\n", False)]:
        terms.write_text(rows)
        caplog.clear()
        status, _, err = program("translate", finished_run, text, "--glossary", terms, *column)
        assert (status, warning in caplog.messages) == (0, is_named), err


def test_share_of_the_terms_that_are_used_is_scored(
    finished_run: Path, program: Program, tmp_path: Path
) -> None:
    terms, text = tmp_path / "terms.tsv", tmp_path / "text"
    terms.write_text("two\tzwei\nnine\tneun\nfive\tfünf\n")
    text.write_text("zwei\n")
    given = ["evaluate", text, "--references", text, "--target-language", "de"]
    status, _, err = program(*given, "--glossary", terms)
    assert (status, "--glossary" in err) == (2, True)
    run = shutil.copytree(finished_run, tmp_path / "run")
    status, out, err = program("evaluate", run, "--glossary", terms)
    assert status == 0, err
    last = r"terms: \d+\.\d % of \d are in the translations, \d inflected"
    assert re.fullmatch(last, out.splitlines()[-1])
    record = json.loads((run / "evaluations" / "test.json").read_text())
    assert "glossary" in [item["role"] for item in record["inputs"]]
    assert set(record["terms"]) == {"used", "inflected", "missed"}
    assert program("evaluate", run / "evaluations" / "test.json")[0] == 0
