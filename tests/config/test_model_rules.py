"""Shapes of the model that cannot be are refused when the config is read, by key and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mt.config import ModelConfig
from mt.config.loading import load_config
from mt.errors import ConfigError

Program = Callable[..., tuple[int, str, str]]

BASE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
training:
  max_updates: 100
model:
"""
FIRST = BASE.count("\n") + 1
"""The line of the first key of the model."""


def load(path: Path, *keys: str, overrides: tuple[str, ...] = ()) -> ModelConfig:
    file = path / "recipe.yaml"
    file.write_text(BASE + "".join(f"  {key}\n" for key in keys))
    return load_config(file, overrides=overrides).model


IMPOSSIBLE = {
    "width of rotary heads, given": (
        ["positional: rotary", "d_head: 5"],
        2,
        "`model.positional: rotary` needs an even `model.d_head`, not 5",
    ),
    "width of rotary heads, computed": (
        ["d_model: 36", "positional: rotary", "heads: 4"],
        3,
        "`model.positional: rotary` needs an even `model.d_model` / `model.heads`, not 9",
    ),
    "heads that do not divide": (
        ["d_model: 512", "heads: 6"],
        2,
        "`model.d_model` 512 is no multiple of `model.heads` 6; "
        "change one, or set both `model.d_head` and `model.d_value`",
    ),
    "heads that do not divide, one width given": (
        ["heads: 6", "d_head: 64"],
        2,
        "`model.d_model` 512 is no multiple of `model.heads` 6; "
        "change one, or set both `model.d_head` and `model.d_value`",
    ),
    "key heads": (
        ["kv_heads: 3", "heads: 8"],
        2,
        "`model.kv_heads` 3 does not divide `model.heads` 8: "
        "every key head serves as many query heads",
    ),
    "more key heads than heads": (
        ["kv_heads: 16"],
        1,
        "`model.kv_heads` 16 does not divide `model.heads` 8: "
        "every key head serves as many query heads",
    ),
    "odd width of sinusoids": (
        ["d_model: 25", "heads: 5"],
        1,
        "`model.positional: sinusoidal` needs an even `model.d_model`, not 25",
    ),
    "too few positions": (
        ["positional: learned", "max_positions: 255"],
        2,
        "`model.max_positions` 255 is below `data.max_tokens` 256: "
        "`model.positional: learned` has no row for the end of the longest pair",
    ),
    "buckets beyond the distance": (
        ["positional: relative_bias", "relative_buckets: 64", "relative_max_distance: 32"],
        3,
        "`model.relative_max_distance` 32 must be above half of `model.relative_buckets` 64",
    ),
    "odd buckets": (
        ["relative_buckets: 33"],
        1,
        "`model.relative_buckets`: 33 is no multiple of 2",
    ),
    "two buckets": (
        ["relative_buckets: 2"],
        1,
        "`model.relative_buckets`: 2 is out of range: must be at least 4",
    ),
    "no temperature": (
        ["attention_temperature: 0"],
        1,
        "`model.attention_temperature`: 0 is out of range: must be more than 0.0",
    ),
    "no rotation": (
        ["rotary_base: 1"],
        1,
        "`model.rotary_base`: 1 is out of range: must be more than 1.0",
    ),
    "no key heads": (["kv_heads: 0"], 1, "`model.kv_heads`: 0 is out of range: must be at least 1"),
    "a word that is near": (
        ["positional: rotery"],
        1,
        "`model.positional`: `rotery` is none of `sinusoidal`, `learned`, `relative`, "
        "`relative_bias`, `alibi`, `rotary`, `none`; did you mean `rotary`?",
    ),
    "null for none": (
        ["positional: null"],
        1,
        "`model.positional`: `null` is none of `sinusoidal`, `learned`, `relative`, "
        "`relative_bias`, `alibi`, `rotary`, `none`",
    ),
}


@pytest.mark.parametrize(("keys", "line", "told"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_is_refused_with_its_line(
    keys: list[str], line: int, told: str, tmp_path: Path, program: Program
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, *keys)
    message = f"{tmp_path}/recipe.yaml:{FIRST + line - 1}: {told}"
    assert str(error.value) == message
    run = tmp_path / "run"
    told_by_the_program = program("train", tmp_path / "recipe.yaml", "--run", run)
    assert told_by_the_program == (2, "", f"error: {message}\n")
    assert not run.exists()


POSSIBLE = {
    "widths of heads": ["d_model: 510", "heads: 8", "d_head: 64", "d_value: 32"],
    "an odd width with rotary": [
        "d_model: 25",
        "heads: 5",
        "positional: rotary",
        "d_head: 6",
        "d_value: 5",
    ],
    "an odd width with learned positions": ["d_model: 25", "heads: 5", "positional: learned"],
    "an odd width of values": ["positional: rotary", "d_value: 5"],
    "one key head": ["kv_heads: 1"],
    "as many key heads": ["kv_heads: 8"],
    "just enough positions": ["positional: learned", "max_positions: 256"],
    "few positions that nothing uses": ["max_positions: 1"],
    "just enough distance": ["relative_buckets: 64", "relative_max_distance: 33"],
}


@pytest.mark.parametrize("keys", POSSIBLE.values(), ids=POSSIBLE)
def test_what_can_be_is_read(keys: list[str], tmp_path: Path) -> None:
    model = load(tmp_path, *keys)
    for key in keys:
        name, _, value = key.partition(": ")
        assert str(getattr(model, name)) == value


def test_the_option_that_broke_a_rule_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "heads: 8", overrides=("model.kv_heads=3",))
    assert str(error.value).startswith("--set model.kv_heads: `model.kv_heads` 3 does not divide")


def test_all_that_is_impossible_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "d_model: 35", "heads: 4", "kv_heads: 3")
    lines = str(error.value).splitlines()
    assert lines[0].endswith(": 3 problems")


def test_widths_follow_from_the_width_of_the_states_unless_they_are_given() -> None:
    usual = ModelConfig()
    assert (usual.key_width, usual.value_width, usual.key_heads) == (64, 64, 8)
    given = ModelConfig(d_head=10, d_value=12, kv_heads=2)
    assert (given.key_width, given.value_width, given.key_heads) == (10, 12, 2)
