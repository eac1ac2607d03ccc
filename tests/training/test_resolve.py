"""Automatic settings: rules, budget, and runs that keep what was chosen."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mt.config import Config
from mt.config.loading import dump_config, load_config, open_keys
from mt.data.splits import CorpusScan, open_training_corpora, scan_corpora
from mt.training import resolve as resolve_module
from mt.training.data import prepare
from mt.training.resolve import (
    COVERAGES,
    AutoSettings,
    CorpusStatistics,
    count_parameters,
    resolve,
    resolve_for_device,
)
from mt.training.run_folder import RunFolder, open_run
from mt.training.setup import new_model
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
    "training.schedule": "cosine",
    "training.warmup_updates": 7,
    "training.decay_updates": 99,
    "training.ema_decay": 0.9,
    "training.validate_every": 13,
    "training.validation_pairs": 17,
    "training.average": "last",
}
"""A value that no rule chooses for each automatic key."""


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the speed, in target tokens per second at a width of 256."""

    def set_speed(tokens: float) -> None:
        def measured(config: Config, *_: object, **__: object) -> float:
            return tokens * 256 / config.model.d_model

        monkeypatch.setattr(resolve_module, "measure_speed", measured)

    set_speed(1000.0)
    return set_speed


def scan_and_resolve(config: Config, device: torch.device = CPU) -> AutoSettings:
    """Resolve a config with a scan of its training corpora."""
    return resolve(config, device, scan_corpora(open_training_corpora(config.data)))


def write(folder: Path, source: list[str], target: list[str]) -> None:
    for side, lines in (("source", source), ("target", target)):
        (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def config(folder: Path, **sections: dict[str, Any]) -> Config:
    """Return a config with only `data`, and `sections`."""
    files = {"source": str(folder / "source"), "target": str(folder / "target")}
    data = {"source_language": "en", "target_language": "de", "train": files, "valid": files}
    return Config.model_validate({"data": data, **sections})


ENGLISH, GERMAN = ["the little dog sleeps"] * 60, ["der kleine hund schläft"] * 60


def test_every_automatic_key_is_chosen_unless_it_is_given(tmp_path: Path, speed: object) -> None:
    write(tmp_path, ENGLISH, GERMAN)
    open_config = config(tmp_path)
    assert sorted(open_keys(open_config)) == sorted(GIVEN)
    scan = scan_corpora(open_training_corpora(open_config.data))
    chosen = resolve(open_config, CPU, scan).chosen
    for key, value in GIVEN.items():
        section, name = key.split(".")
        fixed = config(tmp_path, **{section: {name: value}})
        choices = resolve(fixed, CPU, scan)
        assert key not in choices.chosen
        assert getattr(getattr(choices.config, section), name) == value
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
    source: str, target: str, layout: str, tmp_path: Path, speed: object
) -> None:
    alphabet = "abcdefghijklmnopqrstuvwxyz"  # in some lines of every corpus
    write(tmp_path, [source] * 60 + [alphabet], [target] * 60 + [alphabet])
    assert scan_and_resolve(config(tmp_path), CPU).value("tokenizer.vocabulary") == layout


def _in_lines(text: str) -> list[str]:
    """Cut a text into 100 lines."""
    size = math.ceil(len(text) / 100)
    return [text[first : first + size] for first in range(0, len(text), size)]


@pytest.mark.parametrize("layout", ["joint", "separate"])
def test_characters_leave_room_for_words_in_the_vocabulary(
    layout: str, tmp_path: Path, speed: object
) -> None:
    # 8,000 characters a side, rare ones many, 7,000 of them on both sides.
    text = [chr(0x4E00 + n) * math.ceil(3000 * math.exp(-n / 700)) for n in range(9000)]
    write(tmp_path, _in_lines("".join(text[:8000])), _in_lines("".join(text[1000:])))
    choices = scan_and_resolve(config(tmp_path, tokenizer={"vocabulary": layout}), CPU)
    chosen = choices.value("tokenizer.character_coverage")
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
    assert tokens(chosen) <= 0.8 * choices.value("tokenizer.vocabulary_size") < tokens(better)
    few = ["the little dog sleeps"] * 60
    write(tmp_path, few, few)
    assert scan_and_resolve(config(tmp_path), CPU).value("tokenizer.character_coverage") == 0.9999


@pytest.mark.parametrize(
    ("source", "target", "algorithm"),
    [("de", "en", "unigram"), ("lzh", "zh", "bpe"), ("en", "th", "bpe"), ("ja", "ko", "bpe")],
)
def test_text_without_spaces_is_cut_by_bpe(
    source: str, target: str, algorithm: str, tmp_path: Path, speed: object
) -> None:
    write(tmp_path, ENGLISH, GERMAN)
    data = config(tmp_path).data.changed(source_language=source, target_language=target)
    assert scan_and_resolve(Config(data=data), CPU).value("tokenizer.algorithm") == algorithm


@pytest.mark.parametrize(("layout", "tied"), [("joint", "all"), ("separate", "decoder")])
def test_tied_matrices_are_counted_once(layout: str, tied: str, tmp_path: Path) -> None:
    shape = {"d_model": 32, "d_ff": 64, "heads": 2, "tie_embeddings": tied}
    built = config(tmp_path, tokenizer={"vocabulary": layout, "vocabulary_size": 500}, model=shape)
    model = new_model(built.model, (500, 500), CPU)
    assert count_parameters(built.model, built.tokenizer.vocabulary_size) == sum(
        each.numel() for each in model.parameters()
    )


@pytest.mark.parametrize(
    ("pairs", "letters", "tokens", "seconds", "same_script"),
    [
        (1_000, 20, 500.0, 120.0, True),
        (26_000, 30, 1_000.0, 600.0, False),
        (150_000, 100, 3_000.0, 3_600.0, True),
        (5_000_000, 120, 200_000.0, 40_000.0, False),
    ],
)
def test_more_time_never_makes_a_smaller_model_or_update(
    pairs: int,
    letters: int,
    tokens: float,
    seconds: float,
    same_script: bool,
    speed: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speed(tokens)
    lengths = np.full((8, 2), 2 + letters // 4, np.int32)
    characters = Counter("abc"), Counter("abc" if same_script else "零一二")
    facts = CorpusStatistics(pairs, (pairs * letters,) * 2, characters, lengths)
    monkeypatch.setattr(resolve_module, "measure_corpora", lambda *_: facts)
    chosen = []
    for times in (1, 2, 20):
        budget = {"budget": f"{times * seconds:.0f}s"}
        choices = resolve(config(Path(), training=budget), CPU, CorpusScan({}, 0, (0, 0), ()))
        applied = choices.config  # raises for settings that contradict each other
        layout = "joint" if same_script else "separate"
        assert applied.tokenizer.vocabulary == layout
        assert applied.model.tie_embeddings == ("all" if same_script else "decoder")
        assert applied.model.residual == "post"
        ruled = set(GIVEN) - {"model.decoder_start"}  # that one follows an initial run alone
        assert not (choices.open_keys & ruled) - choices.chosen.keys() - LENGTH
        chosen.append((applied.model.d_model, applied.training.target_tokens_per_update))
    assert chosen == sorted(chosen)
    assert [each[1] for each in chosen] == sorted(each[1] for each in chosen)


LENGTH = {
    "training.max_updates",
    "training.patience",
    "training.schedule",
    "training.warmup_updates",
    "training.decay_updates",
    "training.ema_decay",
    "training.validate_every",
    "training.validation_pairs",
    "training.average",
    "model.residual",
}
"""Keys that are chosen with the number of updates, or not at all."""


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
    monkeypatch.setattr(resolve_module, "measure_speed", lambda *_args, **_keys: 200.0)
    train_with(open_recipe, tmp_path / "run")
    training = load_config(tmp_path / "run" / "config.yaml").training
    assert training.max_updates is not None
    last = journal(tmp_path / "run", "final")[0]
    # 1.5 seconds an update; validation and preparation take the rest.
    assert 0.8 * 120 < 1.5 * training.max_updates < 120
    assert (training.schedule, training.decay_updates) == ("linear", training.max_updates)
    assert training.validate_every == training.max_updates // 20
    assert training.patience is None
    assert last["averaged_updates"][0] <= training.max_updates


def test_resumed_run_keeps_what_was_chosen(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_module, "measure_speed", lambda *_args, **_keys: 200.0)
    resumed, whole = tmp_path / "resumed", tmp_path / "whole"
    train_until(open_recipe, resumed, 30, "SIGTERM")
    chosen = (resumed / "config.yaml").read_bytes()
    monkeypatch.setattr(resolve_module, "measure_speed", lambda *_args, **_keys: 199.0)
    train_with(open_recipe, resumed)
    assert (resumed / "config.yaml").read_bytes() == chosen
    train_with(resumed / "config.yaml", whole)
    assert (whole / "config.yaml").read_bytes() == chosen
    assert outcome(resumed) == outcome(whole)


def test_each_session_on_cuda_chooses_the_size_of_its_batches(
    open_recipe: Path, tmp_path: Path, speed: object
) -> None:
    cuda, folder = torch.device("cuda"), RunFolder(tmp_path / "run")
    folder.path.mkdir()
    choices = scan_and_resolve(load_config(open_recipe), cuda)
    chosen = choices.resolve_length(prepare(choices.config, folder), cuda)
    assert open_keys(chosen) == ["training.max_tokens_per_batch"]
    folder.config.write_text(dump_config(chosen), encoding="utf-8")
    folder.model.touch()
    reopened, resumed = open_run(folder.path, load_config(open_recipe))
    assert (resumed, reopened.changes) == (chosen, [])
    assert open_keys(resumed) == open_keys(chosen)
    for device, most in (("cuda", 32_768), ("mps", 4096), ("cpu", 4096)):
        for given in (None, 77):
            keys = {} if given is None else {"max_tokens_per_batch": given}
            config = chosen.changed(training=chosen.training.changed(**keys))
            sized = resolve_for_device(config, torch.device(device)).training
            assert sized.max_tokens_per_batch == (given or most)
            assert not sized.is_open("max_tokens_per_batch")
    longer = chosen.changed(data=chosen.data.changed(max_tokens=5000))
    assert resolve_for_device(longer, CPU).training.max_tokens_per_batch == 5000


def test_too_short_budget_is_refused_with_the_updates_it_allows(
    open_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.setattr(resolve_module, "measure_speed", lambda *_args, **_keys: 1.0)
    status, out, err = program(
        "train", open_recipe, "--run", tmp_path / "run", "--set", "training.budget=90s"
    )
    assert (status, out) == (2, "")
    assert "error: budget 90s: too short; on this machine it allows 0 updates" in err
