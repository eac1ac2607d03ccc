import gzip
import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers import tokenizer_spm

from mt.errors import DataError, UserError
from mt.evaluation.scores import (
    ONE_ERROR,
    MetricCommand,
    choose_tokenizer,
    evaluate,
    is_better_than_chance,
    label_form,
    missing_model_reason,
    parse_metrics,
    why_unable_to_rank,
)
from tests.factories import foreign_vocabulary

ENGLISH = ["The cat sat on the mat.", "It is raining hard, isn't it?", ""]
ENGLISH_A = ["The cat sat on a mat.", "It's raining hard, isn't it?", "One line is missing."]
ENGLISH_B = ["A cat was sitting on the mat.", "It is pouring, right?", "A line is missing."]
CHINESE = ["今天天气很好。", "我想买3斤苹果，谢谢！"]
CHINESE_A = ["今天的天气很好。", "我想买三斤苹果，谢谢！"]
JAPANESE = ["今日は天気がいいですね。", "駅はどこにありますか。"]
JAPANESE_A = ["今日はいい天気ですね。", "駅はどこですか。"]
KOREAN = ["오늘은 날씨가 좋네요.", "역은 어디에 있습니까?"]
KOREAN_A = ["오늘 날씨가 참 좋네요.", "역이 어디에 있습니까?"]


@pytest.mark.parametrize(
    ("language", "tokenizer", "hypotheses", "references"),
    [
        ("en", "13a", ENGLISH, [ENGLISH_A]),
        ("en", "13a", ENGLISH, [ENGLISH_A, ENGLISH_B]),
        ("zh-CN", "zh", CHINESE, [CHINESE_A]),
        ("ja", "ja-mecab", JAPANESE, [JAPANESE_A]),
        ("ko", "ko-mecab", KOREAN, [KOREAN_A]),
    ],
)
def test_scores_equal_sacrebleu(
    language: str, tokenizer: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> None:
    scores = evaluate(hypotheses, references, target_language=language)
    bleu = sacrebleu.corpus_bleu(hypotheses, references, tokenize=tokenizer)
    assert scores.bleu.value == bleu.score
    assert scores.chrf.value == sacrebleu.corpus_chrf(hypotheses, references).score
    assert scores.bleu.value > 10
    spaced = evaluate(hypotheses, references, target_language="en", tokenizer="already-tokenized")
    assert spaced.bleu.value == sacrebleu.corpus_bleu(hypotheses, references, tokenize="none").score
    assert "|tok:none|" in spaced.bleu.signature
    assert f"nrefs:{len(references)}|case:mixed|eff:no|tok:{tokenizer}" in scores.bleu.signature
    assert f"version:{sacrebleu.__version__}" in scores.bleu.signature
    assert scores.chrf.signature.startswith(f"nrefs:{len(references)}|case:mixed|eff:yes|nc:6|nw:0")
    assert (scores.sentences, scores.chrf.name) == (len(hypotheses), "chrF2")


@pytest.mark.parametrize(
    ("language", "hypotheses", "references", "normalized"),
    [("en", ENGLISH, [ENGLISH_A, ENGLISH_B], False), ("zh", CHINESE, [CHINESE_A], True)],
)
def test_further_metrics_equal_sacrebleu(
    language: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], normalized: bool
) -> None:
    names = parse_metrics(["ter", "chrf++", "ter"])
    result = evaluate(hypotheses, references, target_language=language, metrics=names)
    ter, chrf = result.further
    ter_of_sacrebleu = sacrebleu.corpus_ter(
        hypotheses, references, normalized=normalized, asian_support=normalized
    )
    assert (ter.name, ter.value) == ("TER", ter_of_sacrebleu.score)
    assert 0 < ter.value < 80
    expected = sacrebleu.corpus_chrf(hypotheses, references, word_order=2).score
    assert (chrf.name, chrf.value) == ("chrF2++", expected)
    assert f"nrefs:{len(references)}|case:mixed|eff:yes|nc:6|nw:2" in chrf.signature
    with pytest.raises(UserError, match="`chrf\\+\\+`"):
        parse_metrics(["chrf+"])


def test_intervals_equal_sacrebleu() -> None:
    hypotheses, references = ENGLISH[:2], [ENGLISH_A[:2]]
    plain = evaluate(hypotheses, references, target_language="en", metrics=["ter"])
    drawn = evaluate(hypotheses, references, target_language="en", metrics=["ter"], resamples=200)
    for score, metric in zip(drawn.scores(), (BLEU(), CHRF(), TER()), strict=True):
        expected = metric.corpus_score(hypotheses, references, n_bootstrap=200)
        assert score.interval is not None
        interval = score.interval.mean, score.interval.half_width
        assert interval == pytest.approx((expected._mean, expected._ci))
        assert score.interval.half_width > 1
        assert "|bs:200|seed:12345|" in score.signature
    assert [score.value for score in plain.scores()] == [score.value for score in drawn.scores()]
    assert all(score.interval is None for score in plain.scores())
    header, bleu = drawn.as_text().split("\n")[:2]
    assert header.split() == ["metric", "score", "95", "%", "interval", "signature"]
    assert drawn.bleu.interval is not None
    assert f"  {drawn.bleu.interval.as_text()}   nrefs:1|bs:200" in bleu
    assert drawn.as_record()["bleu"]["interval"] == asdict(drawn.bleu.interval)


def numbers(text: str) -> str:
    """Return a command that prints a text, and whose files have a line for each of its words."""
    return f'"{sys.executable}" -c \'print(open("{{translations}}").read() and """{text}""")\''


@pytest.mark.parametrize("output", ["[0.25, 1.5, -2]", "a 0.25\n1.5\n-2e0\nx score: -0.0833"])
def test_a_program_prints_the_score_of_each_line(output: str) -> None:
    command = MetricCommand(f"mine={numbers(output)}")
    values = list(map(float, command.score_lines(ENGLISH, ENGLISH_A)))
    assert values == [0.25, 1.5, -2]
    options: dict[str, Any] = {"target_language": "en", "metrics": [command]}
    evaluation = evaluate(ENGLISH, [ENGLISH_A], resamples=500, **options)
    (score,) = evaluation.further
    drawn = np.random.default_rng(12345).choice(3, (500, 3))  # as sacreBLEU
    means = np.sort(np.array(values)[drawn].mean(1))
    assert score.interval is not None
    assert (score.value, score.interval.mean) == pytest.approx((-1 / 12, means.mean()))
    assert score.interval.half_width == pytest.approx((means[-13] - means[12]) / 2)
    assert score.signature == f"nrefs:0|bs:500|seed:12345|command:{command.command}"
    assert evaluation.as_record()["commands"] == [{"name": "mine", **score.as_record()}]
    assert "-0.0833" in evaluation.as_text()


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("BLEU=cat {translations}", "another metric"),
        ("x=nothing-of-this-name {translations}", "no program `nothing-of-this-name`"),
        ("x=cat {hypotheses} {translations}", "with {translations} in"),
        ("x", "NAME=COMMAND"),
        ("x='cat {translations}", "No closing quotation"),
        ("x=cat {sources} {translations}", "needs --sources"),
        ("x=cat {translations}", "could not convert string to float: 'mat.'"),
        ("x=cat {translations}.missing", "`cat` failed: .*No such file"),
        (f"x={numbers('1')}", "1 finite numbers for 3 lines"),
        (f"x={numbers('[1, 2, NaN]')}", "2 finite numbers"),
        (f"x={numbers('[1, 2, null]')}", "a number for each line"),
        (f"x={numbers('[1, 2, 4, 2.4]')}", "4 finite numbers"),
    ],
)
def test_a_bad_program_is_one_line(option: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"^--metric-command \w*: [^\n]*{reason}[^\n]*$"):
        MetricCommand(option).score_lines(ENGLISH, ENGLISH_A)


def test_form_of_the_references_is_in_every_signature() -> None:
    alike = [f"it was line {word} , and it ended here ." for word in ("a", "b", "c", "d", "e")]
    scores = evaluate(alike, [alike], target_language="en", metrics=["chrf++"])
    for score in scores.scores():
        assert score.signature.endswith("|text:tokenised,lower-cased")
    assert scores.as_text().count("|text:tokenised,lower-cased") == 3
    plain = evaluate(alike[:3], [ENGLISH_A], target_language="en")
    assert "text:" not in plain.bleu.signature
    long = [f"The {line} It was very long, and so on." for line in alike]
    forms = [label_form(sets, "en") for sets in ([alike], [[x.title() for x in alike]], [long])]
    assert forms == ["tokenised,lower-cased", "tokenised", ""]
    assert label_form([alike, long], "en") == ""


def _read(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("pair", "names"),
    [("zh-en", "A"), ("en-zh", "AB")],  # one of the English lines is empty
)
def test_published_scores_of_wmt22_are_reproduced(pair: str, names: str, corpora: Path) -> None:
    folder, language = corpora / "wmt22-bleu-check", pair.split("-")[1]
    rows = [line.split("\t") for line in (folder / "scores.tsv").read_text().split("\n")[1:-1]]
    published = {row[2]: float(row[3]) for row in rows if row[:2] == [pair, "Online-W"]}
    hypotheses = _read(folder / f"{pair}.hyp.Online-W.{language}.gz")
    references = [_read(folder / f"{pair}.ref{name}.{language}.gz") for name in names]
    scores = evaluate(hypotheses, references, target_language=language)
    sets = "all" if len(names) > 1 else "A"
    assert scores.bleu.value == published[f"bleu-{sets}"]
    # Between two references a tie may be broken differently.
    tolerance = 0.01 if sets == "all" else 1e-4
    assert scores.chrf.value == pytest.approx(published[f"chrf-{sets}"], abs=tolerance)


@pytest.mark.parametrize(
    ("languages", "tokenizer"),
    [
        (["de", "pt-BR"], "13a"),
        (["zh", "zh-CN", "zh_Hant", "ZH", "lzh", "yue", "wuu", "zho", "hak"], "zh"),
        (["ja", "jpn"], "ja-mecab"),
        (["ko", "kor"], "ko-mecab"),
    ],
)
def test_target_language_chooses_the_tokenizer(languages: list[str], tokenizer: str) -> None:
    assert {choose_tokenizer(language) for language in languages} == {tokenizer}
    assert choose_tokenizer(languages[0], "char") == "char"


@pytest.fixture
def sentencepiece_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the empty folder of sacreBLEU's models; no server can be reached."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    missing_model_reason.cache_clear()
    yield tmp_path / "models"
    missing_model_reason.cache_clear()


THAI = ["แมวนั่งอยู่บนโต๊ะในครัว", "เด็กกินข้าวที่บ้านกับแม่"]


@pytest.mark.parametrize("language", ["th", "lo", "km", "my", "bo", "dz", "tha", "khm", "my-MM"])
def test_languages_without_word_boundaries_are_scored_with_flores200_where_its_model_is(
    language: str, sentencepiece_models: Path
) -> None:
    assert choose_tokenizer(language) == "13a"
    assert not sentencepiece_models.exists()
    reason = why_unable_to_rank(THAI, target_language=language)
    place = sentencepiece_models / "flores200sacrebleuspm"
    assert re.search(rf"`{language}`; flores200: .*no route to host.*at {place}$", reason)
    sentencepiece_models.mkdir()
    place.write_bytes(foreign_vocabulary(THAI, 60).processor.serialized_model_proto())
    assert choose_tokenizer(language) == "13a"  # one attempt a process: no score in between
    missing_model_reason.cache_clear()
    assert choose_tokenizer(language) == "flores200"
    assert why_unable_to_rank(THAI, target_language=language) == ""
    scores = evaluate(THAI, [THAI], target_language=language)
    assert scores.bleu.value == pytest.approx(100)
    assert "|tok:flores200|" in scores.bleu.signature
    assert choose_tokenizer(f"{language.partition('-')[0]}-Latn") == "13a"


def test_named_tokenizer_without_its_model_is_one_line(sentencepiece_models: Path) -> None:
    for tokenizer in ("flores200", "flores101"):
        with pytest.raises(UserError, match=r"^BLEU tokenizer `flores[^\n]*no route[^\n]*`char`"):
            choose_tokenizer("de", tokenizer)
    sentencepiece_models.mkdir()
    (sentencepiece_models / "flores200sacrebleuspm").write_bytes(b"<html>")
    missing_model_reason.cache_clear()
    assert choose_tokenizer("th") == "13a"
    with pytest.raises(UserError, match=r"spm is damaged: delete it"):
        choose_tokenizer("th", "flores200")


LONG_GREEK = ["η γάτα κοιμάται στο σπίτι", "ο σκύλος τρέχει στον κήπο"]


@pytest.mark.parametrize(
    ("language", "tokenizer", "references", "reason"),
    [
        ("de", "auto", ["die kleine Katze schläft", "der Hund"], ""),
        ("de", "auto", ["Datei öffnen", "Speichern", "die kleine Katze schläft"], "only 1 of 3 re"),
        ("de", "auto", ["ja", "", "nein"], "only 0 of 3 references have 4 words"),
        ("ja", "char", ["猫が寝ている"], ""),
        ("zh", "auto", ["你好", "打开", "保存文件"], "only 1 of 3"),
        ("zh", "auto", ["打开文件", "保存文件"], ""),
        ("zh", "13a", ["猫在桌子上睡觉"], "finds no words in `zh`"),
        ("ii", "auto", ["ꆈꌠꁱꂷ ꀊꀋ ꀌꀍ ꀎꀏ"], "finds no words in `ii`"),
        ("th", "char", THAI, ""),
        ("el", "auto", LONG_GREEK, ""),
        ("ka", "auto", ["კატა სახლში მშვიდად წევს"], ""),
        ("chr", "auto", ["ᎠᏂᏍᎦᏯ ᎤᏂᏲᏍᏔᏅ ᏗᎦᏙᎵ ᎠᎴ"], ""),
        ("hi", "auto", ["बिल्ली मेज़ पर सो रही है"], ""),
        ("ar", "auto", ["القطة نائمة على الطاولة"], ""),
        # A language that is not in any list, written without spaces.
        ("khb", "auto", [" ".join(4 * ["".join(map(chr, range(0x1980, 0x19A0)))])], "of 33 char"),
    ],
)
def test_references_show_that_bleu_cannot_rank(
    language: str, tokenizer: str, references: list[str], reason: str, sentencepiece_models: Path
) -> None:
    found = why_unable_to_rank(references, target_language=language, tokenizer=tokenizer)
    assert (reason in found) if reason else found == ""


def test_better_by_more_than_chance() -> None:
    random = np.random.default_rng(5)
    metric, right = CHRF(), [f"w{n} w{n + 1} w{n + 2} w{n + 3} w{n + 4}" for n in range(80)]

    def system(share: float) -> list[str]:
        return [line if random.random() < share else f"x{line[2:]}" for line in right]

    pairs = [(system(0.5), system(0.5)) for _ in range(20)]
    assert sum(is_better_than_chance(metric, *pair, [right]) for pair in pairs) <= 3
    assert is_better_than_chance(metric, system(0.9), system(0.3), [right])
    assert not is_better_than_chance(metric, system(0.3), system(0.9), [right])
    close = [(system(0.65), system(0.5)) for _ in range(8)]
    some, all_of_them = (
        sum(is_better_than_chance(metric, *pair, [right], level=level) for pair in close)
        for level in (0.001, ONE_ERROR)
    )
    assert some < all_of_them
    for count, is_better in ((5, False), (6, True)):
        poor = ["nothing"] * count + right[count:]
        assert is_better_than_chance(metric, right, poor, [right]) == is_better


@pytest.mark.parametrize(
    ("language", "tokenizer", "meant"),
    [
        ("", "auto", "`de`"),
        ("Chinese", "auto", "`de`"),
        ("cn", "auto", "`zh`"),
        ("kr", "char", "`ko`"),
        ("de", "13b", "`13a`"),
        ("de", "none", "`already-tokenized`"),
    ],
)
def test_bad_language_or_tokenizer_is_one_line(language: str, tokenizer: str, meant: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$") as error:
        choose_tokenizer(language, tokenizer)
    assert meant in str(error.value)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [(["a", "b"], [["a"]]), (["a"], [["a"], ["a", "b"]]), ([], [[]]), (["a"], [])],
)
def test_sets_of_other_sizes_are_errors(hypotheses: list[str], references: list[list[str]]) -> None:
    with pytest.raises(DataError):
        evaluate(hypotheses, references, target_language="en")
