"""Translations that begin as they are told to, against every translation that does."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mt.config import DecodingConfig, ModelConfig
from mt.config.tokenizer import TokenizerConfig
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import train_model
from mt.data.vocabulary import Vocabulary
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Engine, Hypothesis, TargetPrefixes
from mt.decoding.load import read_run
from mt.decoding.text import BLOCKED_NGRAM, Prefix, encode_prefixes
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError
from mt.export.ctranslate2 import write_model
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS

VOCABULARY, LIMIT = 7, 5
EVERY = [
    (*ids, EOS)
    for length in range(LIMIT)
    for ids in itertools.product(range(EOS + 1, VOCABULARY), repeat=length)
]
SOURCES = [[4, 5, EOS], [6, EOS], [5, 5, 4, 6, EOS], [6, 4, EOS]]
PREFIXES = [(5, 5), (), (4, 6, 4), (6,)]
EXACT = {"beam": len(EVERY), "max_length_ratio": 0.0, "max_length_extra": LIMIT}
Ids = tuple[int, ...]
Program = Callable[..., tuple[int, str, str]]


def tiny_model(seed: int, vocabulary: int = VOCABULARY) -> Transformer:
    torch.manual_seed(seed)
    config = ModelConfig(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1)
    model = Transformer(config, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    with torch.no_grad():  # far from ties
        model.target_embedding.weight.mul_(3)
    return model.eval()


def forced(models: Sequence[Transformer], source: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The log-probability of each token, EOS as any other, in the mean of the models."""
    target_in = torch.tensor([[BOS, *ids[:-1]]])
    with torch.no_grad():
        each = [model(torch.tensor([source]), target_in).double().softmax(-1) for model in models]
    mean = torch.stack(each).mean(dim=0)
    return [math.log(mean[place, token]) for place, token in enumerate(ids)]


def best_of_all(
    models: Sequence[Transformer],
    source: Sequence[int],
    allowed: Callable[[Ids], bool],
    *,
    count: int,
    cost: Callable[[Ids, int], float],
) -> list[tuple[Ids, float]]:
    """Rank all translations by what their tokens cost, a multiple of the log-probability."""
    scores = {}
    for ids in filter(allowed, EVERY):
        parts = enumerate(forced(models, source, ids))
        total = sum(cost(ids, place) * log_prob for place, log_prob in parts)
        scores[ids[:-1]] = total / LENGTH_NORMALIZATIONS["gnmt"](len(ids), 0.6)
    return sorted(scores.items(), key=lambda item: -item[1])[:count]


def after(prefix: Ids) -> Callable[[Ids, int], float]:
    return lambda _, place: float(place >= len(prefix))


def begins_with(prefix: Ids) -> Callable[[Ids], bool]:
    return lambda ids: ids[: len(prefix)] == prefix


def most_probable(model: Transformer, source: Sequence[int], ids: Ids) -> Ids:
    longer = [(*ids, token) for token in range(EOS, VOCABULARY)]
    return max(longer, key=lambda each: forced([model], source, each)[-1])


def assert_same(found: Sequence[Hypothesis], wanted: list[tuple[Ids, float]]) -> None:
    assert [each.ids for each in found] == [ids for ids, _ in wanted]
    assert [each.score for each in found] == pytest.approx([each for _, each in wanted], abs=1e-4)


@pytest.mark.parametrize("others", [0, 1])
def test_beam_search_finds_the_best_of_all_that_begin_so(others: int) -> None:
    models = [tiny_model(seed) for seed in range(1 + others)]
    engine = TorchEngine(models[0], torch.device("cpu"), models[1:])
    decoding = DecodingConfig.model_validate(EXACT)
    lists = engine.n_best_ids(SOURCES, decoding, 4, prefixes=PREFIXES)
    for source, prefix, found in zip(SOURCES, PREFIXES, lists, strict=True):
        wanted = best_of_all(models, source, begins_with(prefix), count=4, cost=after(prefix))
        assert_same(found, wanted)
        parts = forced(models, source, (*found[0].ids, EOS))
        assert found[0].log_prob == pytest.approx(sum(parts), abs=1e-4), "the prefix counts"


def test_greedy_search_goes_on_with_the_most_probable_token() -> None:
    model = tiny_model(3)
    engine = TorchEngine(model, torch.device("cpu"))
    decoding = DecodingConfig.model_validate({**EXACT, "search": "greedy"})
    found = engine.translate_ids(SOURCES, decoding, prefixes=PREFIXES)
    for source, prefix, hypothesis in zip(SOURCES, PREFIXES, found, strict=True):
        ids = prefix
        while len(ids) < LIMIT and EOS not in ids:
            ids = most_probable(model, source, ids)
        assert (*hypothesis.ids, *[EOS] * hypothesis.finished) == ids
        assert hypothesis.log_prob == pytest.approx(sum(forced([model], source, ids)), abs=1e-4)
    assert found != engine.translate_ids(SOURCES, decoding)


def test_a_prefix_stands_above_the_rules_and_they_hold_after_it() -> None:
    """It comes as it is, though no token may come twice, and costs nothing."""
    model, source, prefix = tiny_model(2), SOURCES[2], (4, 4)
    engine = TorchEngine(model, torch.device("cpu"))

    def once(ids: Ids) -> bool:
        new = ids[len(prefix) : -1]
        return ids[:2] == prefix and len({4, *new}) == 1 + len(new)

    decoding = DecodingConfig.model_validate({**EXACT, "no_repeat_ngram": 1})
    [found] = engine.n_best_ids([source], decoding, 9, prefixes=[prefix])
    wanted = best_of_all([model], source, once, count=9, cost=after(prefix))
    assert_same(found[: len(wanted)], wanted)

    def dear(ids: Ids, place: int) -> float:
        return after(prefix)(ids, place) * (1.7 if ids[place] in ids[:place] else 1.0)

    decoding = DecodingConfig.model_validate({**EXACT, "repetition_penalty": 1.7})
    [found] = engine.n_best_ids([source], decoding, 5, prefixes=[prefix])
    begins = best_of_all([model], source, begins_with(prefix), count=5, cost=dear)
    assert_same(found, begins)


def test_samples_begin_so_and_have_the_probability_of_the_model() -> None:
    model = tiny_model(4)
    with torch.no_grad():  # unsure of everything
        model.output.weight.mul_(0.1)
    engine = TorchEngine(model, torch.device("cpu"))
    decoding = DecodingConfig(search="sample", max_length_extra=6, top_p=0.9)
    lists = engine.n_best_ids(SOURCES, decoding, 6, prefixes=PREFIXES)
    for source, prefix, hypotheses in zip(SOURCES, PREFIXES, lists, strict=True):
        assert len({found.ids for found in hypotheses}) > 1
        for found in hypotheses:
            assert found.ids[: len(prefix)] == prefix
            ids = (*found.ids, *[EOS] * found.finished)
            assert found.log_prob == pytest.approx(sum(forced([model], source, ids)), abs=1e-4)


@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_neighbours_and_their_prefixes_change_nothing(search: str) -> None:
    engine = TorchEngine(tiny_model(5, vocabulary=40), torch.device("cpu"))
    sources = [[*range(4 + number, 9 + 2 * number), EOS] for number in range(12)]
    prefixes = [tuple(range(20, 20 + number % 4)) for number in range(12)]
    decoding = DecodingConfig.model_validate({"search": search, "beam": 3, "max_length_extra": 6})
    whole = engine.translate_ids(sources, decoding, prefixes=prefixes)
    for source, prefix, found in zip(sources, prefixes, whole, strict=True):
        [alone] = engine.translate_ids([source], decoding, prefixes=[prefix])
        assert alone.ids == found.ids
        assert found.ids[: len(prefix)] == prefix
        if not prefix:
            assert engine.translate_ids([source], decoding)[0].ids == found.ids


@pytest.fixture(scope="module")
def original(finished_run: Path) -> Translator:
    return load_translator(finished_run, overrides=["decoding.beam=4"], device="cpu")


@pytest.fixture(scope="module")
def exported(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> CTranslate2Engine:
    run, folder = read_run(finished_run), tmp_path_factory.mktemp("ct2")
    weights = {name: tensor.numpy() for name, tensor in run.weights.items()}
    write_model(
        folder, run.config.model, weights, tokenizer=run.tokenizer, positions=200,
        quantization=None,
    )  # fmt: skip
    return CTranslate2Engine(folder, device="cpu", tokenizer=run.tokenizer, positions=200)


TEXTS = ["one two three", "four", "five six seven eight nine", "two two", "three one", "six"]
BEGIN = ["two", "", "one two one two one two", "three three", "e", "four five"]


@pytest.mark.parametrize(
    "settings",
    [
        {"search": "greedy"},
        {"search": "greedy", "no_repeat_ngram": 2, "min_length_ratio": 2.0},
        {"search": "greedy", "max_length_ratio": 0.2, "max_length_extra": 3},
        {"beam": 4, "length_normalization": "none"},
        {"beam": 4, "no_repeat_ngram": 2},
        {"beam": 4, "max_length_ratio": 0.2, "max_length_extra": 3},
    ],
)
def test_an_exported_model_begins_and_counts_likewise(
    settings: dict[str, Any], original: Translator, exported: CTranslate2Engine
) -> None:
    decoding = DecodingConfig.model_validate({"max_length_extra": 20, **settings})
    sources = original.tokenizer.encode_source(TEXTS)
    prefixes = [prefix.ids for prefix in encode_prefixes(BEGIN, original.tokenizer)]
    ours, theirs = (
        engine.n_best_ids(sources, decoding, 4, prefixes=prefixes)
        for engine in (original.engine, exported)
    )
    for wanted, found, prefix in zip(ours, theirs, prefixes, strict=True):
        if "beam" in settings and wanted[0].ids == prefix:
            wanted = wanted[1:]  # it does not end right after a prefix so easily
        assert (found[0].ids, found[0].finished) == (wanted[0].ids, wanted[0].finished)
        assert found[0].log_prob == pytest.approx(wanted[0].log_prob, abs=1e-3)
        assert found[0].score == pytest.approx(wanted[0].score, abs=1e-3)
        for each in found:
            assert each.ids[: len(prefix)] == prefix[: len(each.ids)]
        assert len({each.ids for each in found}) == len(found)
        scores = {each.ids: each.score for each in wanted}
        for each in found:
            assert each.score == pytest.approx(scores.get(each.ids, each.score), abs=1e-3)


def test_who_has_no_prefix_is_translated_as_if_nobody_had_one(exported: CTranslate2Engine) -> None:
    decoding = DecodingConfig(beam=30, length_normalization="none", max_length_extra=10)
    sources = [[20 + number, EOS] for number in range(8)]
    prefixes = [(), *[(30, 31)] * 7]
    [wanted] = exported.n_best_ids(sources[:1], decoding, 30)
    assert any(not each.ids for each in wanted), "one is empty"
    assert exported.n_best_ids(sources, decoding, 30, prefixes=prefixes)[0] == wanted


def test_a_prefix_is_cut_where_the_length_limit_is(
    original: Translator, exported: CTranslate2Engine
) -> None:
    decoding = DecodingConfig(beam=3, max_length_ratio=0.0, max_length_extra=4)
    sources, prefix = original.tokenizer.encode_source(["one"]), [20, 21, 22, 23, 24, 25]
    for engine in (original.engine, exported):
        [[found]] = engine.n_best_ids(sources, decoding, 3, prefixes=[prefix])
        assert (found.ids, found.finished) == ((20, 21, 22, 23), False)


def test_minimum_bayes_risk_chooses_among_those_that_begin_so(finished_run: Path) -> None:
    settings = ["decoding.search=sample", "decoding.mbr=chrf", "decoding.mbr_candidates=5"]
    translator = load_translator(finished_run, overrides=settings, device="cpu")
    for translation in translator.stream(TEXTS, prefixes=BEGIN, n_best=3):
        for alternative in translation.alternatives:
            assert alternative.text.startswith(BEGIN[translation.line_number - 1])


def test_white_space_at_the_end_of_a_prefix_does_not_count(original: Translator) -> None:
    tokenizer = original.tokenizer
    bare, spaced, blank, begins = encode_prefixes(["one t", "one t \t", " ", " one"], tokenizer)
    assert bare == spaced == Prefix(tuple(tokenizer.encode_target(["one t"])[0][:-1]))
    assert blank == Prefix()
    assert tokenizer.decode_target(begins.ids) == " one"


class Letters:
    """A tokenizer whose tokens are characters, and that does not know those beyond Latin-1."""

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*(ord(c) if ord(c) < 256 else 1 for c in line), EOS] for line in lines]

    encode_target = encode_source

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class Echo(Engine):
    """An engine that says the prefix, then the source, in a loop unless that is blocked."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.prefixes: list[list[str]] = []

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        self.prefixes.append(["".join(map(chr, prefix)) for prefix in prefixes])
        times = 1 if decoding.no_repeat_ngram == BLOCKED_NGRAM else self.times
        found = [
            (*prefix, *(list(source[:-1]) * times))
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        return [[Hypothesis(ids, -1.0, -1.0, finished=True)] for ids in found]


def build(engine: Engine, **decoding: Any) -> Translator:
    return Translator(
        engine,
        cast("Tokenizer", Letters()),
        DecodingConfig(**decoding),
        longest_source=12,
        target_language="en",
    )


def test_the_first_part_of_a_split_line_has_its_prefix_and_a_blank_line_none() -> None:
    engine = Echo()
    lines = ["ab", " ", "One two. Three four.", "cd"]
    found = build(engine).translate(lines, prefixes=["x ", "y", "Z:", ""])
    assert found == ["xab", "", "Z:One two. Three four.", "cd"]
    assert engine.prefixes == [["x", "Z:", "", ""]]


def test_what_loops_keeps_its_prefix_when_it_is_made_again() -> None:
    engine = Echo(times=9)
    fine, again = build(engine, on_repetition="again").stream(["", "so "], prefixes=["", "Oh"])
    assert (fine.text, again.text, again.status) == ("", "Ohso ", "repeated")
    assert engine.prefixes == [["Oh"], ["Oh"]]


def test_what_a_prefix_cannot_hold_is_told() -> None:
    engine = Echo()
    translations = build(engine).stream(["a", "2", "c"], prefixes=["x \u96ea y", "\ud800", "z"])
    assert [(each.text, each.status, each.notes) for each in translations] == [
        ("xa", "ok", ("prefix: ends before `\u96ea` (U+96EA), unknown to the tokenizer",)),
        (
            *("2", "ok"),
            (
                "prefix: lone surrogates are read as U+FFFD",
                "prefix: ends before `\ufffd` (U+FFFD), unknown to the tokenizer",
            ),
        ),
        ("zc", "ok", ()),
    ]


def test_what_is_unknown_is_named_where_folding_changes_the_length() -> None:
    config = TokenizerConfig(normalization="nmt_nfkc", byte_fallback="off")
    lines = ["off we go", "a caf\u00e9"] * 20
    vocabulary = Vocabulary.from_model(train_model(lines, config=config, seed=1))
    tokenizer = Tokenizer(vocabulary, vocabulary, "")
    prefixes = encode_prefixes(["o\ufb00\u96ea", "cafe\u0301 we \u96ea"], tokenizer)
    told = ("prefix: ends before `\u96ea` (U+96EA), unknown to the tokenizer",)
    assert [each.notes for each in prefixes] == [told, told]
    assert [tokenizer.decode_target(each.ids) for each in prefixes] == ["off", "caf\u00e9 we"]


def test_as_many_prefixes_as_lines() -> None:
    translator = build(Echo(), batch_size=1)
    with pytest.raises(UserError, match=r"^3 lines, but 2 prefixes: each line has one, which may"):
        translator.stream(["a", "b", "c"], prefixes=["x", "y"])
    with pytest.raises(UserError, match="1 lines, but 0 prefixes"):
        translator.translate(["a"], prefixes=[])
    with pytest.raises(TypeError, match="put a single one into a list"):
        translator.translate(["a"], prefixes="x")
    read: list[str] = []

    def each(texts: str) -> Iterator[str]:
        for text in texts:
            read.append(text)
            yield text

    stream = translator.stream(each("abc"), prefixes=each("xy"))
    assert next(stream).text == "xa"
    assert read == ["a", "x"], "no more is read than is answered"
    with pytest.raises(UserError, match="at least 3 lines, but 2 prefixes"):
        list(stream)
    with pytest.raises(UserError, match="2 lines, but at least 3 prefixes"):
        list(translator.stream(each("ab"), prefixes=each("xyz")))


def test_mt_translate_begins_each_line_as_the_file_says(
    finished_run: Path, original: Translator, tmp_path: Path, program: Program
) -> None:
    text, begins, out = (tmp_path / name for name in ("text", "begins", "out"))
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    begins.write_bytes(b"\xef\xbb\xbf" + "".join(f"{line} \r\n" for line in BEGIN).encode())
    arguments = ("translate", finished_run, "--prefixes", begins, "--device", "cpu")
    settings = ("--set", "decoding.beam=4")
    assert program(*arguments, *settings, text, "-o", out) == (0, "", "")
    wanted = original.translate(TEXTS, prefixes=BEGIN)
    assert out.read_text().split("\n") == [*wanted, ""]
    assert all(map(str.startswith, wanted, BEGIN))
    assert wanted != original.translate(TEXTS)
    unbuffered = program(*arguments, *settings, "--unbuffered", stdin=text.read_bytes())
    assert unbuffered == (0, out.read_text(), "")
    scored = program("score", finished_run, "--sources", text, "--targets", out, "--device", "cpu")[
        1
    ].splitlines()
    found, compared = original.stream(TEXTS, prefixes=BEGIN), 0
    for line, translation in zip(scored, found, strict=True):
        [part] = translation.alternatives[0].parts
        spelt = original.tokenizer.encode_target([translation.text])[0][:-1]
        if part.hypothesis.finished and list(part.hypothesis.ids) == spelt:
            assert float(line.split("\t")[0]) == pytest.approx(part.hypothesis.log_prob, abs=1e-4)
            compared += bool(BEGIN[translation.line_number - 1])
    assert compared >= 3


def test_files_of_other_lengths_are_refused_and_nothing_is_replaced(
    finished_run: Path, tmp_path: Path, program: Program
) -> None:
    text, begins, out = (tmp_path / name for name in ("text", "begins", "out"))
    text.write_text("one\ntwo\nthree\n")
    begins.write_text("x\n\n")
    out.write_text("old\n")
    arguments = ("translate", finished_run, "--prefixes", begins, "-o", out, "--device", "cpu")
    status, _, error = program(*arguments, text)
    assert (status, error.count("\n")) == (2, 1)
    assert f"error: {text} has 3 lines, {begins} has 2: " in error
    status, _, error = program(*arguments, stdin=text.read_bytes())
    assert (status, error) == (
        2,
        "error: at least 3 lines, but 2 prefixes: each line has one, which may be empty\n",
    )
    status, _, error = program("translate", tmp_path, "--prefixes", tmp_path / "beginz")
    assert status == 2
    assert "no such file; did you mean `begins`?" in error
    status, _, error = program("translate", tmp_path, "--prefixes", begins, "--report", begins)
    assert (status, "is the prefixes; the report needs a file of its own" in error) == (2, True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        **{"text": "one\ntwo\nthree\n", "begins": "x\n\n", "out": "old\n"}
    }
