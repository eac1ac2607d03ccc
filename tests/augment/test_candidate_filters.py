"""Filters of candidates, the choice among them, and their rates on a corpus with bad answers."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sacrebleu import sentence_bleu

from mt.augment.candidate_filters import REASONS, Selection, SourceCandidates, read_candidates
from mt.errors import DataError
from tests.factories import Program

QUICKSTART = Path(__file__).parents[2] / "data" / "quickstart"
CONFIG = """\
data:
  source_language: en
  target_language: zh
  train: {{source: {0}/train.en, target: {0}/train.zh}}
  valid: {{source: {1}/valid.en, target: {1}/valid.zh}}
"""
REFUSALS = (
    "I'm sorry, but I can't translate this text.",
    "As an AI language model, I cannot help with that.",
    "Es tut mir leid, aber ich kann diesen Text nicht übersetzen.",
)
REMARKS = (
    "Here is the translation: {}",
    "Sure! Here's the translation:\n\n{}",
    "翻译：{}",
    "“{}”",
    "{}\n\nNote: I chose an informal tone.",
    "{}（注：直译）",
    "**{}**",
    "Chinese: {}",
)
OTHER_LANGUAGE = (
    "Wir haben gestern im Kaufhaus drei neue Hemden gekauft.",
    "Она купила вчера вечером в магазине пять книг.",
    "Nous sommes allés au marché avec nos amis la semaine dernière.",
)


@pytest.fixture
def selection(tmp_path: Path) -> Callable[..., Selection]:
    """Return a function that makes a selection from English into German."""

    def make(*rows: list[str], **options: object) -> Selection:
        path = tmp_path / "pairs.jsonl"
        lines = (SourceCandidates(source, tuple(texts)).as_json() for source, *texts in rows)
        path.write_text("".join(f"{line}\n" for line in lines))
        return Selection(path, ("en", "de"), **options)  # type: ignore[arg-type]

    return make


GOOD = [
    ("He said: “Come here.”", "„Komm her“, sagte er."),
    ("“Come here!”", "„Komm her!“"),
    ('"Come here!", she said. "Now!"', '"Komm her!", sagte sie. "Jetzt!"'),
    ("I'm sorry, but I can't translate this letter.", "Leider kann ich das nicht übersetzen."),
    ("Unfortunately I cannot help you.", "Leider kann ich dir nicht helfen."),
    ("Note: the shop is closed.", "Hinweis: Das Geschäft ist geschlossen."),
    ("Translation: a difficult art.", "Übersetzung: eine schwierige Kunst."),
    ("One thing is clear – it rains.", "Eines ist klar: Es regnet."),
    ("He said, 'Come.'", "Er sagte: Komm."),
    ("Come at half past six.", "Komm um 6:30."),
    ("Berlin", "Berlin"),
    ("It costs 1,000 dollars at 6:30.", "Es kostet um 6.30 Uhr 1.000 Dollar."),
    ("See https://a.test/b <b>now</b>.", "Siehe <b>jetzt</b> https://a.test/b."),
    ("No, no, no, no, no!", "Nein, nein, nein, nein, nein!"),
    ("The dog sleeps (a little).", "Der Hund schläft (ein wenig)."),
]
BAD = [
    ("A dog sleeps.", "", "empty"),
    ("A dog sleeps.", "I'm sorry, I cannot translate this.", "language"),
    ("A dog sleeps.", "Désolé, je ne peux pas traduire ce texte.", "language"),
    ("A dog sleeps.", "抱歉，我无法翻译这句话。", "script"),
    ("A dog sleeps.", "Here is the translation: Ein Hund schläft.", "commentary"),
    ("A dog sleeps.", "Übersetzung: Ein Hund schläft.", "commentary"),
    ("A dog sleeps.", "Çeviri: Ein Hund schläft.", "commentary"),
    ("A dog sleeps.", "Ein Hund schläft.\nEr träumt.", "commentary"),
    ("A dog sleeps.", "„Ein Hund schläft.“", "commentary"),
    ("A dog sleeps.", "Ein Hund schläft. (Anmerkung: wörtlich)", "commentary"),
    ("A dog sleeps.", "<p>Ein Hund schläft.</p>", "commentary"),
    ("A dog sleeps.", "Ein **Hund** schläft.", "commentary"),
    ("A big dog sleeps here.", "A big dog sleeps here", "copy"),
    ("A dog sleeps.", "Собака спит.", "script"),
    ("A dog sleeps.", "Un grand chien dort dans le jardin de la maison.", "language"),
    ("A dog sleeps.", "Ein Hund Hund Hund Hund Hund Hund Hund", "repetition"),
    ("In 1987 a dog slept.", "1978 schlief ein Hund.", "numbers"),
    ("Hello {name}.", "Hallo {Name}.", "numbers"),
    ("A big brown dog sleeps in the garden behind our house.", "Ein Hund schläft.", "length"),
    ("A dog sleeps.", "Ein großer brauner Hund schläft im Garten hinter dem Haus.", "length"),
    ("A dog\nsleeps.", "Ein Hund schläft.", "several lines"),
]


def result(selection: Selection, folder: Path) -> tuple[list[str], list[list[str]]]:
    """Return the targets and the rows of rejected candidates."""
    job = selection.plan_job(folder)
    (window,) = selection.make_windows(job.lines)
    sources, targets, rejected = (text.decode().splitlines() for text in window.texts)
    assert len(sources) == len(targets)
    return targets, [row.split("\t") for row in rejected]


def test_filters_of_one_candidate(selection: Callable[..., Selection], tmp_path: Path) -> None:
    rows = [*([source, text] for source, text in GOOD), *([a, b] for a, b, _ in BAD)]
    targets, rejected = result(selection(*rows), tmp_path)
    assert targets == [text for _, text in GOOD]
    assert [row[2] for row in rejected] == [reason for _, _, reason in BAD]
    assert [row[4] for row in rejected] == [text.replace("\n", " ") for _, text, _ in BAD]
    assert [int(row[0]) for row in rejected] == [*range(len(GOOD) + 1, len(rows) + 1)]
    # An allowed filter rejects nothing; an empty text and several lines are never a pair.
    targets, rejected = result(selection(*rows, allow=REASONS), tmp_path)
    assert [row[2] for row in rejected] == ["empty", "several lines", "several lines"]
    assert len(targets) == len(rows) - 3


def test_best_of_several(selection: Callable[..., Selection], tmp_path: Path) -> None:
    texts = ["Ein Hund schläft dort.", "Ein Hund schläft hier.", "Ein Hund schläft hier lange."]
    far = "Die Firma bestreitet jede Schuld."
    row = ["A dog sleeps here.", far, *texts]
    targets, rejected = result(selection(row), tmp_path)
    similar = [sum(sentence_bleu(one, [two]).score for two in texts) for one in texts]
    assert targets == [texts[similar.index(max(similar))]]
    assert [(row[1], row[2], row[4]) for row in rejected] == [("1", "agreement", far)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.tsv", "no tab"),
        ("a.jsonl", "{"),
        ("a.jsonl", '{"source": "x", "translations": [1]}'),
        ("a.jsonl", "[" * 100_000),
    ],
)
def test_file_of_another_form_is_named_with_its_line(name: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / name
    first = "x\ty" if name == "a.tsv" else '{"source": "x", "translations": ["y"]}'
    path.write_text(f"{first}\n{line}\n")
    read = read_candidates(path)
    assert next(read) == SourceCandidates("x", ("y",))
    with pytest.raises(DataError, match=f"{name}: line 2: must be "):
        next(read)


def test_bad_answers_are_filtered_and_good_ones_kept(tmp_path: Path, program: Program) -> None:
    """A sixth of the answers is bad: 98 % of them must go, and 99 % of the good ones stay."""
    sides = [(QUICKSTART / f"train.{side}").read_text().splitlines() for side in ("en", "zh")]
    pairs: dict[str, str] = dict(zip(*(side[:1400] for side in sides), strict=True))
    for name, lines in {"train.en": [*pairs], "train.zh": [*pairs.values()]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    config = tmp_path / "my.yaml"
    config.write_text(CONFIG.format(tmp_path, QUICKSTART))
    generator = random.Random(5)
    kinds = ["omission", "refusal", "remark", "copy", "language"]
    bad = {text: generator.choice(kinds) for text in pairs if generator.random() < 1 / 6}
    texts = {
        source: {
            "omission": pairs[source][: len(pairs[source]) // 4],
            "refusal": generator.choice(REFUSALS),
            "remark": generator.choice(REMARKS).format(pairs[source]),
            "copy": source,
            "language": generator.choice(OTHER_LANGUAGE),
        }[kind]
        for source, kind in bad.items()
    }
    answers = tmp_path / "answers.jsonl"
    candidates = (SourceCandidates(source, (texts.get(source, pairs[source]),)) for source in pairs)
    answers.write_text("".join(f"{row.as_json()}\n" for row in candidates))
    call = ("distill", config, "--from", answers, "--out", tmp_path / "out")
    status, _, err = program(*call)
    assert (status, err) == (0, "")
    sources = [*pairs]
    rows = (tmp_path / "out" / "answers.rejected.tsv").read_text().splitlines()
    rejected = {sources[int(row.split("\t")[0]) - 1] for row in rows}
    wrong = {source for source, text in texts.items() if text != pairs[source]}
    assert len(wrong) > 0.13 * len(pairs)
    missed = Counter(bad[source] for source in wrong - rejected)
    assert len(wrong & rejected) >= 0.98 * len(wrong), missed
    lost = rejected - wrong
    assert len(lost) <= 0.01 * (len(pairs) - len(wrong)), sorted(lost)[:20]
    record = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert record["counts"]["pairs written"] == len(pairs) - len(rejected)
