"""Automatic settings: rules, budget, and runs that keep what was chosen."""

import math
import tempfile
import time
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from mt.config import Config, TrainingConfig
from mt.config.loading import dump_config, load_config, open_keys, with_values
from mt.data.splits import open_training_corpora, scan_corpora
from mt.training import resolve, trainer
from mt.training.automatic import COVERAGES, measure_corpora
from mt.training.data import ReadCorpora, prepare, read_corpora
from mt.training.resolve import choose_length, choose_settings, with_settings
from mt.training.run_folder import RunFolder
from mt.training.setup import resolve_for_device
from tests.factories import CPU, Program, journal, train_with
from tests.training.killed_training import outcome
from tests.training.test_resume import train_until

GIVEN: dict[str, Any] = {
    "tokenizer.algorithm": "bpe",
    "tokenizer.vocabulary": "separate",
    "tokenizer.vocabulary_size": 3210,
    "tokenizer.character_coverage": 0.97,
    "model.d_model": 320,
    "model.d_ff": 100,
    "model.heads": 16,
    "model.encoder_layers": 5,
    "model.decoder_layers": 7,
    "model.positional": "alibi",
    "model.decoder_start": "eos",
    "model.residual": "sandwich",
    "model.feed_forward": "gelu",
    "model.dropout": 0.45,
    "model.tie_embeddings": "none",
    "training.max_updates": 77,
    "training.patience": 3,
    "training.target_tokens_per_update": 321,
    "training.max_tokens_per_batch": 5000,
    "training.learning_rate": 0.0123,
    "training.label_smoothing": 0.15,
    "training.weight_decay": 0.03,
    "training.schedule": "cosine",
    "training.warmup_updates": 7,
    "training.decay_updates": 99,
    "training.ema_decay": 0.9,
    "training.validate_every": 13,
    "training.validation_pairs": 17,
    "training.average": "last",
    "training.best_metric": "loss",
    "training.guided_alignment": 0.3,
    "training.init_embeddings": "random",
    "training.init_sublayers": "random",
    "training.guided_alignment_updates": 51,
}
"""A value that no rule chooses for each automatic key."""


def a_thousand_tokens(*_: object, **__: object) -> float:
    """Return a speed in target tokens per second."""
    return 1000.0


def sized(config: Config, device: torch.device = CPU) -> Config:
    """Return a config with its sizes, chosen from a scan of its training corpora."""
    scan = scan_corpora(open_training_corpora(config.data))
    corpus = measure_corpora(scan, config.data.max_tokens)
    settings, _ = choose_settings(config, corpus, device, a_thousand_tokens)
    return with_settings(config, settings)


def write(folder: Path, source: list[str], target: list[str]) -> None:
    for side, lines in (("source", source), ("target", target)):
        (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def config(folder: Path, **sections: dict[str, Any]) -> Config:
    """Return a config with only `data`, and `sections`."""
    files = {"source": str(folder / "source"), "target": str(folder / "target")}
    data = {"source_language": "en", "target_language": "de", "train": files, "valid": files}
    return Config.model_validate({"data": data, **sections})


@pytest.fixture(autouse=True)
def _validate_at_a_known_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "measure_validation", lambda *_: (FIRST, LAST))


FIRST, LAST = 0.02, 0.01
"""Seconds of a pair in validation, by a new and a trained model."""
ENGLISH, GERMAN = ["the little dog sleeps"] * 60, ["der kleine hund schläft"] * 60


def test_every_automatic_key_is_chosen_unless_it_is_given(tmp_path: Path) -> None:
    write(tmp_path, ENGLISH, GERMAN)
    open_config = config(tmp_path)
    assert sorted(open_keys(open_config)) == sorted(GIVEN)
    scan = scan_corpora(open_training_corpora(open_config.data))
    corpus = measure_corpora(scan, open_config.data.max_tokens)
    chosen, _ = choose_settings(open_config, corpus, CPU, a_thousand_tokens)
    for key, value in GIVEN.items():
        section, name = key.split(".")
        fixed = config(tmp_path, **{section: {name: value}})
        settings, _ = choose_settings(fixed, corpus, CPU, a_thousand_tokens)
        assert key not in settings
        assert getattr(getattr(with_settings(fixed, settings), section), name) == value
        assert chosen.get(key) is None or chosen[key].value != value


@pytest.mark.parametrize(
    ("source", "target", "layout"),
    [
        ("the little dog sleeps", "der kleine hund schläft", "joint"),
        (
            "the little dog of T. Quick sleeps",
            "T. Quick 的 小狗 xyz 正在 睡觉 因为 它 今天 很累 而且 天气 很热",
            "separate",
        ),
        ("T 小狗 在 睡觉 因为 今天 很累", "the little dog sleeps", "separate"),
        ("собака спить", "собака спит", "joint"),
    ],
)
def test_vocabularies_are_joint_if_the_letters_are_shared(
    source: str, target: str, layout: str, tmp_path: Path
) -> None:
    alphabet = "abcdefghijklmnopqrstuvwxyz"  # in some lines of every corpus
    write(tmp_path, [source] * 60 + [alphabet], [target] * 60 + [alphabet])
    built = config(tmp_path)
    tied = {"joint": "all", "separate": "decoder"}[layout]
    assert sized(built).tokenizer.vocabulary == layout
    assert sized(built).model.tie_embeddings == tied
    shown = sized(built.changed(data=built.data.changed(terms=0.3)))
    assert shown.tokenizer.vocabulary == "joint"


def _in_lines(text: str) -> list[str]:
    """Cut a text into 100 lines."""
    size = math.ceil(len(text) / 100)
    return [text[first : first + size] for first in range(0, len(text), size)]


@pytest.mark.parametrize("layout", ["joint", "separate"])
def test_characters_leave_room_for_words_in_the_vocabulary(layout: str, tmp_path: Path) -> None:
    # 8,000 characters a side, rare ones many, 7,000 of them on both sides.
    text = [chr(0x4E00 + n) * math.ceil(3000 * math.exp(-n / 700)) for n in range(9000)]
    write(tmp_path, _in_lines("".join(text[:8000])), _in_lines("".join(text[1000:])))
    settings = sized(config(tmp_path, tokenizer={"vocabulary": layout})).tokenizer
    chosen = settings.character_coverage
    sides = [Counter("".join(text[:8000])), Counter("".join(text[1000:]))]
    if layout == "joint":
        sides = [sides[0] + sides[1]]

    def tokens(coverage: float) -> int:
        """Return the number of characters that SentencePiece makes tokens of."""
        counts = [sorted(side.values(), reverse=True) for side in sides]
        return max(
            sum(total < coverage * sum(each) for total in accumulate(each, initial=0))
            for each in counts
        )

    better = COVERAGES[COVERAGES.index(chosen) - 1]
    assert tokens(chosen) <= 0.8 * settings.vocabulary_size < tokens(better)
    few = ["the little dog sleeps"] * 60
    write(tmp_path, few, few)
    assert sized(config(tmp_path)).tokenizer.character_coverage == 0.9999


@pytest.mark.parametrize(
    ("source", "target", "algorithm"),
    [("de", "en", "unigram"), ("lzh", "zh", "bpe"), ("en", "th", "bpe"), ("ja", "ko", "bpe")],
)
def test_text_without_spaces_is_cut_by_bpe(
    source: str, target: str, algorithm: str, tmp_path: Path
) -> None:
    write(tmp_path, ENGLISH, GERMAN)
    data = config(tmp_path).data.changed(source_language=source, target_language=target)
    assert sized(Config(data=data)).tokenizer.algorithm == algorithm


@pytest.fixture
def open_recipe(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return a recipe with a budget whose number of updates, among others, is chosen."""
    text = tiny_recipe.read_text(encoding="utf-8")
    recipe = tmp_path / "open.yaml"
    recipe.write_text(
        text[: text.index("tokenizer:")]
        + "model: {d_model: 32, d_ff: 64, heads: 2, encoder_layers: 1, decoder_layers: 1}\n"
        + "training: {device: cpu, budget: 120s, target_tokens_per_update: 300}\n",
        encoding="utf-8",
    )
    return recipe


def test_budget_decides_the_updates_and_what_follows_from_them(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "measure_speed", lambda *_, **__: 200.0)
    train_with(open_recipe, tmp_path / "run")
    training = load_config(tmp_path / "run" / "config.yaml").training
    last_update = training.max_updates
    assert last_update is not None
    last = journal(tmp_path / "run", "final")[0]
    # 1.5 seconds an update; preparation, validation and export take the rest.
    assert 0.8 * 120 < 1.5 * last_update < 120
    assert (training.schedule, training.decay_updates) == ("linear", last_update)
    assert training.validate_every == last_update // 4  # too few for 20 validations
    assert training.patience is None
    assert (training.guided_alignment, training.guided_alignment_updates) == (0.5, last_update // 2)
    assert last["averaged_updates"][0] <= last_update


def length_of(
    recipe: Path, folder: Path, *settings: str, spent: float = 0.0, valid: int = 1
) -> TrainingConfig:
    """Return what is chosen when `spent` seconds have passed; `valid` repeats the validation."""
    config = load_config(recipe, overrides=[f"training.{each}" for each in settings])
    sides = {}
    for side in ("source", "target"):
        lines = Path(getattr(config.data.valid, side)).read_text(encoding="utf-8")
        sides[side] = str(folder / side)
        (folder / side).write_text(valid * lines, encoding="utf-8")
    config = config.changed(data=config.data.changed(valid=config.data.valid.changed(**sides)))
    config = sized(config)
    data = prepare(config, RunFolder(Path(tempfile.mkdtemp(dir=folder))))
    ends_at = time.perf_counter() - spent + (config.training.budget_seconds or 0.0)
    length = choose_length(config, data, CPU, lambda *_: 1200.0, ends_at=ends_at)
    return with_values(config, length).training


@pytest.mark.parametrize(
    "setting",
    ["r_drop=1.0", "compile=on", "recompute=on", "guided_alignment=0.0", "schedule=constant"],
)
def test_alignment_is_guided_in_the_first_half_unless_something_excludes_it(
    setting: str, open_recipe: Path, tmp_path: Path
) -> None:
    training = length_of(open_recipe, tmp_path)
    half = (training.max_updates or 0) // 2
    assert (training.guided_alignment, training.guided_alignment_updates) == (0.5, half)
    excluded = length_of(open_recipe, tmp_path, setting)
    assert (excluded.guided_alignment, excluded.guided_alignment_updates) == (0.0, None)
    constant = length_of(open_recipe, tmp_path, "guided_alignment=0.2")
    assert (constant.guided_alignment, constant.guided_alignment_updates) == (0.2, None)


@pytest.mark.parametrize(
    ("settings", "spent", "valid", "pairs", "final"),
    [
        ([], 0.0, 1, 7, 7),
        ([], 60.0, 1, 7, 7),
        ([], 0.0, 100, 64, 192),  # of 700: four validations
        (["validation_pairs=70"], 30.0, 100, 70, 210),
        (["validate_every=10"], 0.0, 1, 7, 7),
        (["validate_every=10", "validation_pairs=20"], 30.0, 20, 20, 60),
        (["validate_every=50"], 0.0, 100, 50, 150),
        (["validate_every=200"], 0.0, 100, 125, 375),
        ([], 100.0, 100, 50, 150),  # fewer pairs in place of a refusal
    ],
)
def test_budget_is_for_all_work_and_validations_take_5_percent_of_it(
    settings: list[str],
    spent: float,
    valid: int,
    pairs: int,
    final: int,
    open_recipe: Path,
    tmp_path: Path,
) -> None:
    training = length_of(open_recipe, tmp_path, *settings, spent=spent, valid=valid)
    updates, every = training.max_updates, training.validate_every
    assert updates is not None
    assert training.validation_pairs == pairs
    assert min(training.final_pairs or 7 * valid, 7 * valid) == final
    validation = pairs * FIRST
    if len(settings) < 2:  # else both are given
        assert validation <= 0.05 * 0.25 * every or every == updates or pairs in {7, 50}
    needed = spent + updates * (0.25 + validation / every) + 6 + 3 * final * LAST
    assert needed == pytest.approx(120, abs=4)  # validations and updates are whole


@pytest.mark.parametrize(
    ("settings", "valid", "warmup", "every"),
    [
        ([], 1, 100, 50),  # 40 updates are expected, more may come
        (["max_updates=20"], 1, 2, 12),  # 5 % of the time
        (["max_updates=100"], 1, 10, 25),
        (["max_updates=4000"], 1, 400, 200),
        (["max_updates=4000", "validation_pairs=700"], 100, 400, 1120),
        ([], 100, 100, 80),  # 50 pairs
    ],
)
def test_warm_up_and_interval_have_a_floor(
    settings: list[str], valid: int, warmup: int, every: int, open_recipe: Path, tmp_path: Path
) -> None:
    training = length_of(open_recipe, tmp_path, "budget=null", *settings, valid=valid)
    assert (training.warmup_updates, training.validate_every) == (warmup, every)


def test_budget_includes_the_reading_of_the_corpora(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passed = time.perf_counter, [0.0]

    def reading_slowly(config: Config) -> ReadCorpora:
        passed[0] += 90.0
        return read_corpora(config)

    monkeypatch.setattr(trainer, "measure_speed", lambda *_, **__: 1200.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed[0])
    monkeypatch.setattr(trainer, "read_corpora", reading_slowly)
    train_with(open_recipe, tmp_path / "run")
    updates = load_config(tmp_path / "run" / "config.yaml").training.max_updates
    assert updates is not None
    assert 0.7 * 30 < 0.25 * updates < 30


@pytest.mark.parametrize(
    ("settings", "end", "line"),
    [
        (["max_updates=100"], 100, "`training.max_updates: 100` ends the training, before its bu"),
        (["max_epochs=2"], 4, "`training.max_epochs: 2` ends the training, before its budget 120"),
        (["max_updates=12", "patience=3"], 12, "`training.max_updates: 12` ends the training"),
        (["max_updates=900"], 4, "budget 120s ends the training, after 4"),
        (["max_epochs=900"], 4, "updates instead of the 900 of `training.max_epochs: 900`"),
        (["max_updates=null"], 4, ""),
        (["schedule=linear", "decay_updates=90"], 90, "`training.decay_updates: 90` ends the"),
        (["max_updates=470"], 470, "`training.max_updates: 470` ends the training, before"),
    ],
)
def test_smaller_of_budget_and_given_end_wins_and_is_named(
    settings: list[str],
    end: int,
    line: str,
    open_recipe: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mt")
    training = length_of(open_recipe, tmp_path, *settings)
    if "max_epochs=2" in settings:
        assert training.max_epochs == 2
    elif end == 4:  # what 120 seconds allow
        assert 440 < (training.max_updates or 0) < 460
    else:
        assert training.max_updates == end
    assert line in caplog.text


@pytest.mark.parametrize(
    ("budget", "updates", "line"),
    [
        ("1d", 500, "500 passes over the corpus end the training, before its budget 1d"),
        (
            "null",
            None,
            "training: about 550 updates of 300 target tokens, until 10 validations bring no "
            "improvement, which may be earlier or later; the first validation in about 00:12, the "
            "end in about 02:25",
        ),
    ],
)
def test_corpus_decides_the_end_where_the_time_does_not(
    budget: str,
    updates: int | None,
    line: str,
    open_recipe: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mt")
    training = length_of(open_recipe, tmp_path, f"budget={budget}")
    assert (training.max_updates, training.decay_updates) == (updates, updates)
    assert training.warmup_updates == (updates or 1000) // 10
    assert line in caplog.messages


@pytest.mark.parametrize("budget", ["null", "1h", "60s"])
def test_continued_training_has_a_lower_rate_few_passes_and_the_model_of_its_start(
    budget: str,
    finished_run: Path,
    tiny_recipe: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mt")
    settings = [f"init_from={finished_run}", f"budget={budget}", "weight_decay=0.2"]
    training = length_of(tiny_recipe, tmp_path, *settings, "target_tokens_per_update=700")
    assert (training.learning_rate, training.weight_decay) == (0.00098, 0.2)
    assert (training.schedule, training.decay_updates) == ("linear", 10)
    assert (training.init_embeddings, training.guided_alignment) == ("random", 0.0)
    recipe = tmp_path / "other.yaml"
    text = tiny_recipe.read_text(encoding="utf-8").replace("d_model: 32", "d_model: 64")
    recipe.write_text(text, encoding="utf-8")
    made = sized(load_config(recipe, overrides=[f"training.{each}" for each in settings]))
    assert made.model == load_config(finished_run / "config.yaml").model
    assert "`model.d_model`, " in caplog.text
    assert "`training.learning_rate`, " in caplog.text


@pytest.mark.parametrize(
    ("language", "target", "given", "metric"),
    [
        ("de", GERMAN, None, "bleu"),
        ("de", ["hund", "der hund", "hunde", "die katze"] * 15, None, "chrf"),
        ("ja", ["犬が寝ている"] * 60, None, "bleu"),
        ("zh", ["狗", "小狗", "小狗狗"] * 20, None, "chrf"),
        ("ii", ["ꆈꌠꁱꂷ"] * 60, None, "chrf"),
        ("de", ["A", "B", "C"] * 20, None, "loss"),
        ("de", ["hund"] * 60, "bleu", "bleu"),
        ("de", GERMAN, "chrf", "chrf"),
    ],
)
def test_metric_that_ranks_is_one_that_can(
    language: str,
    target: list[str],
    given: str | None,
    metric: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mt")
    write(tmp_path, ENGLISH, target)
    keys = {"max_updates": 30, **({"best_metric": given} if given else {})}
    made = config(tmp_path, training=keys, tokenizer={"vocabulary_size": 300})
    made = made.changed(data=made.data.changed(target_language=language))
    (tmp_path / "run").mkdir()
    made = sized(made)
    data = prepare(made, RunFolder(tmp_path / "run"))
    length = choose_length(made, data, CPU, a_thousand_tokens)
    assert with_values(made, length).training.best_metric == metric
    if given == "bleu":
        text = (
            "warning: `training.best_metric: bleu` cannot rank checkpoints, `chrf` can: only 0 of"
        )
        assert text in caplog.text
    elif given is None and metric != "bleu":
        assert f"validation: `training.best_metric: {metric}`, because " in caplog.text
    else:
        assert "best_metric" not in caplog.text


def test_resumed_run_keeps_what_was_chosen(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "measure_speed", lambda *_, **__: 200.0)
    resumed, whole = tmp_path / "resumed", tmp_path / "whole"
    train_until(open_recipe, resumed, 30, "SIGTERM")
    chosen = (resumed / "config.yaml").read_bytes()
    monkeypatch.setattr(trainer, "measure_speed", lambda *_, **__: 199.0)
    train_with(open_recipe, resumed)
    assert (resumed / "config.yaml").read_bytes() == chosen
    train_with(resumed / "config.yaml", whole)
    assert (whole / "config.yaml").read_bytes() == chosen
    assert outcome(resumed) == outcome(whole)


def test_each_session_on_cuda_chooses_the_size_of_its_batches(
    open_recipe: Path, tmp_path: Path
) -> None:
    cuda, folder = torch.device("cuda"), RunFolder(tmp_path / "run")
    folder.path.mkdir()
    open_config = sized(load_config(open_recipe), cuda)
    ends_at = time.perf_counter() + 120
    length = choose_length(
        open_config, prepare(open_config, folder), cuda, a_thousand_tokens, ends_at=ends_at
    )
    chosen = with_values(open_config, length)
    assert open_keys(chosen) == ["training.max_tokens_per_batch"]
    folder.config.write_text(dump_config(chosen), encoding="utf-8")
    folder.model.touch()
    resumed = folder.resume_config(load_config(open_recipe))
    assert (resumed, folder.changes) == (chosen, [])
    assert open_keys(resumed) == open_keys(chosen)
    for device, most in (("cuda", 32_768), ("mps", 4096), ("cpu", 4096)):
        for given in (None, 77):
            keys = {} if given is None else {"max_tokens_per_batch": given}
            config = chosen.changed(training=chosen.training.changed(**keys))
            training = resolve_for_device(config, torch.device(device)).training
            assert training.max_tokens_per_batch == (given or most)
            assert not training.is_open("max_tokens_per_batch")
    longer = chosen.changed(data=chosen.data.changed(max_tokens=5000))
    assert resolve_for_device(longer, CPU).training.max_tokens_per_batch == 5000


def test_too_short_budget_is_refused_with_the_updates_it_allows(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.setattr(trainer, "measure_speed", lambda *_, **__: 1.0)
    status, out, err = program(
        "train", open_recipe, "--run", tmp_path / "run", "--set", "training.budget=90s"
    )
    assert (status, out) == (2, "")
    assert "error: budget 90s: too short; on this machine it allows 0 updates" in err
    assert "an update takes 3e+02 s" in err
