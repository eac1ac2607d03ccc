"""Does each kind of broken training raise its own alarm in time, and a healthy one none?"""

import json
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.evaluation.scores import Evaluation, Score
from mt.model import transformer
from mt.model.attention import EVERYWHERE
from mt.training import diagnosis
from mt.training import trainer as spine
from mt.training.diagnosis import ALARMS, Evidence, MaskProbe, SourceUse, sides_are_swapped
from mt.training.run_folder import RunFolder
from mt.training.validation import Symptoms, Validation

Pairs = list[tuple[str, str]]
Sabotage = Callable[[dict[str, Pairs]], None]

ENGLISH = ["the", "old", "man", "sees", "some", "river", "behind", "house", "while", "they", "sing"]
RUSSIAN = ["этот", "старый", "видит", "реку", "за", "домом", "пока", "дети", "поют", "про", "воду"]
UPDATES = 30
RECIPE = """\
data:
  source_language: en
  target_language: ru
  train: {{source: {0}/train.en, target: {0}/train.ru}}
  valid: {{source: {0}/valid.en, target: {0}/valid.ru}}
tokenizer: {{vocabulary_size: 320}}
model: {{d_model: 32, d_ff: 64, heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.0}}
training:
  max_updates: {1}
  target_tokens_per_update: 800
  learning_rate: 1.0e-2
  warmup_updates: 5
  validate_every: 15
  best_metric: loss
  average: off
  device: cpu
decoding: {{max_length_extra: 3}}
"""


def _pairs(count: int, *, seed: int) -> Pairs:
    """Return translations word by word, in reverse, of sentences drawn at random."""
    draw = random.Random(seed)
    rows = [draw.choices(range(len(RUSSIAN)), k=draw.randint(6, 9)) for _ in range(count)]
    return [
        (" ".join(ENGLISH[n] for n in row), " ".join(RUSSIAN[n] for n in reversed(row)))
        for row in rows
    ]


def _train(folder: Path, *settings: str, sabotage: Sabotage = lambda _splits: None) -> Path:
    """Train on what a sabotage leaves of the corpus; return the run."""
    splits = {"train": _pairs(1000, seed=1), "valid": _pairs(80, seed=2)}
    sabotage(splits)
    for split, pairs in splits.items():
        for side, language in enumerate(("en", "ru")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder, UPDATES), encoding="utf-8")
    spine.train(load_config(recipe, overrides=settings), folder / "run")
    return folder / "run"


def _events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def _alarms(run: Path) -> list[tuple[int, str]]:
    return [(event["update"], event["kind"]) for event in _events(run, "alarm")]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_healthy_run_is_silent_and_its_validations_hold_what_was_seen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = _train(tmp_path)
    assert _alarms(run) == []
    assert "alarm" not in capfd.readouterr().err
    assert not _warnings(caplog)
    *_, last = _events(run, "validation")
    assert 0 < last["length_ratio"] < 2
    assert last["copied"] == 0
    assert 0 < last["same_beginning"] <= 1
    assert len(last["bleu_by_length"]) == 4


def test_shuffled_targets_are_told_before_the_first_update_and_by_the_model_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(diagnosis, "_PATIENCE", UPDATES)

    def shuffle(splits: dict[str, Pairs]) -> None:
        sources, targets = map(list, zip(*splits["train"], strict=True))
        random.Random(3).shuffle(targets)
        splits["train"] = list(zip(sources, targets, strict=True))

    run = _train(tmp_path, sabotage=shuffle)
    (look,) = _warnings(caplog)
    assert "the lines of one side have nothing in common with those opposite" in look
    assert _alarms(run) == [(0, "unrelated_sides"), (UPDATES, "unused_source")]
    assert "as if a side had been shuffled" in _events(run, "alarm")[0]["told"]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_swapped_sides_are_told_at_the_start(split: str, tmp_path: Path) -> None:
    def swap(splits: dict[str, Pairs]) -> None:
        splits[split] = [(target, source) for source, target in splits[split]]

    run = _train(tmp_path, "training.max_updates=1", sabotage=swap)
    (alarm,) = _events(run, "alarm")
    assert (alarm["update"], alarm["kind"]) == (0, "swapped_sides")
    assert alarm["told"].startswith("data.train: its sides are swapped against those of data.valid")


def test_each_corpus_with_swapped_sides_is_told(tmp_path: Path) -> None:
    files = f"{{source: {tmp_path}/train.en, target: {tmp_path}/train.ru}}"
    mixture = f"data.train={{corpora: {{a: {files}, b: {files}}}}}"

    def swap(splits: dict[str, Pairs]) -> None:
        splits["train"] = [(target, source) for source, target in splits["train"]]

    run = _train(tmp_path, mixture, "training.max_updates=1", sabotage=swap)
    told = [event["told"].partition(": ")[0] for event in _events(run, "alarm")]
    assert told == ["data.train.corpora.a", "data.train.corpora.b"]


@pytest.mark.parametrize(("tag", "told"), [("null", ["data.valid"]), ("<2ru>", [])])
def test_a_split_without_a_tag_is_told_where_each_training_corpus_has_one(
    tag: str, told: list[str], tmp_path: Path
) -> None:
    files = f"source: {tmp_path}/train.en, target: {tmp_path}/train.ru, tag: <2ru>"
    settings = [f"data.train={{corpora: {{a: {{{files}}}}}}}", f"data.valid.tag={tag}"]
    run = _train(tmp_path, "tokenizer.tags=[<2ru>]", *settings, "training.max_updates=1")
    alarms = _events(run, "alarm")
    assert [each["told"].partition(": ")[0] for each in alarms] == told
    assert all(each["kind"] == "no_tag" for each in alarms)


def test_broken_masks_are_told_at_the_start_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transformer, "CAUSAL", EVERYWHERE)
    monkeypatch.setattr(transformer, "_padding_mask", lambda _ids: None)
    run = _train(tmp_path, "training.max_updates=4", "training.validate_every=2")
    assert _alarms(run) == [(0, "causal_mask"), (0, "padding_mask")]
    assert [event["update"] for event in _events(run, "validation")] == [2, 4]
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("alarm: ")]
    assert [line.partition(":")[2][1:] for line in told] == [
        event["told"] for event in _events(run, "alarm")
    ]


def test_what_breaks_later_is_told_at_a_tenth_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = spine.take_update

    def breaking(*arguments: Any) -> None:
        take(*arguments)
        monkeypatch.setattr(transformer, "CAUSAL", EVERYWHERE)

    monkeypatch.setattr(spine, "take_update", breaking)
    assert _alarms(_train(tmp_path, "training.max_updates=20")) == [(2, "causal_mask")]


def test_a_run_is_the_same_without_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("training.max_updates=20", "model.dropout=0.1", "training.ema_decay=0.9")
    runs = [tmp_path / "with", tmp_path / "without"]
    for run in runs:
        run.mkdir()
        _train(run, *settings)
        monkeypatch.setattr(spine, "diagnose", lambda *_: None)
        monkeypatch.setattr(spine, "diagnose_early", lambda *_: None)
        monkeypatch.setattr(spine, "compare_sides", lambda *_: None)
    files = [run / "run/model.safetensors" for run in runs]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_sides_of_one_language_or_of_few_words_are_not_called_swapped() -> None:
    def pairs(rows: Sequence[tuple[str, str]]) -> list[SentencePair]:
        return [SentencePair(*row) for row in rows]

    train, valid = _pairs(500, seed=1), _pairs(100, seed=2)
    swapped = [(target, source) for source, target in valid]
    assert sides_are_swapped(pairs(train), pairs(swapped))
    assert not sides_are_swapped(pairs(train), pairs(valid))
    assert not sides_are_swapped(pairs(train), pairs(swapped[:49]))
    both = train[:250] + [(target, source) for source, target in train[250:]]
    assert not sides_are_swapped(pairs(both), pairs(swapped))
    assert not sides_are_swapped(pairs([(s, s) for s, _ in train]), pairs(swapped))


WELL = MaskProbe(later_tokens=0.0, padding=1e-6, source=1.0)
USED = SourceUse(loss=3.0, loss_with_others=5.0, unigram_entropy=5.0, pairs=200)


def _validation(
    bleu: float, copied: float = 0.0, chrf: float = 10.0, sentences: int = 100
) -> Validation:
    scores = Score("BLEU", bleu, ""), Score("chrF", chrf, "")
    symptoms = Symptoms(1.0, copied, 0.0, 0.1, 0.1, ())
    return Validation(3.0, Evaluation(*scores, sentences, "de"), symptoms)


LOW = SourceUse(0.5, 5.0, 5.0, 200)


@pytest.mark.parametrize(
    ("evidence", "kinds"),
    [
        (Evidence(WELL, USED, 1000), []),
        (Evidence(WELL, USED, 1000, _validation(0.1)), []),
        (Evidence(MaskProbe(0.5, 0.0, 1.0), USED, 0), ["causal_mask"]),
        (Evidence(MaskProbe(0.0, 0.5, 1.0), USED, 0), ["padding_mask"]),
        (Evidence(MaskProbe(0.0, 0.0, 0.0), USED, 0), ["no_source"]),
        (Evidence(WELL, SourceUse(3.0, 3.01, 5.0, 200), 1000), ["unused_source"]),
        (
            Evidence(WELL, SourceUse(4.8, 4.8, 5.0, 200), 1000),
            [],
        ),  # it has learnt little
        (Evidence(WELL, SourceUse(3.0, 3.01, 5.0, 20), 1000), []),  # too few pairs prove nothing
        (Evidence(MaskProbe(0.5, 0, 1), SourceUse(3.0, 3.01, 5.0, 200), 1000), ["causal_mask"]),
        (Evidence(WELL, SourceUse(3.0, 3.01, 5.0, 200), 999), []),  # it may be slow
        (Evidence(WELL, SourceUse(6.0, 5.9, 5.0, 200), 1000), []),
        (Evidence(WELL, LOW, 1000, _validation(1.0)), ["loss_too_low"]),
        (Evidence(WELL, LOW, 1000, _validation(40.0)), []),
        (Evidence(WELL, LOW, 1000, _validation(0.0, chrf=80.0)), []),  # lines of one word
        (Evidence(WELL, LOW, 1000, _validation(1.0, sentences=49)), []),
        (Evidence(WELL, USED, 1000, _validation(10.0, copied=0.6)), ["copies"]),
        (Evidence(WELL, USED, 1000, _validation(10.0, copied=0.4)), []),
        (Evidence(WELL, USED, 1000, _validation(10.0, copied=1.0, sentences=1)), []),
    ],
)
def test_which_evidence_raises_which_alarm(evidence: Evidence, kinds: list[str]) -> None:
    assert [kind for kind, alarm in ALARMS.items() if alarm(evidence)] == kinds
