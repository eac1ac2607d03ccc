"""Rules across keys and sections; messages name every key in full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mt.config import Config
from tests.factories import RECIPE

Load = Callable[..., Config]
Refuse = Callable[..., str]
BROKEN = [
    "tokenizer.algorithm=unigram; tokenizer.subword_dropout=[0.1, 0]",
    "tokenizer.vocabulary=separate; model.tie_embeddings=all",
    "training.max_tokens_per_batch=255",
    "training.r_drop=5; model.dropout=0",
    "training.guided_alignment=0.2; training.r_drop=5",
    "training.guided_alignment=0.2; training.compile=on",
    "training.guided_alignment=0.2; training.recompute=on",
    "evaluation.expected.vaild.low=3",
    "evaluation.published=[{split: tset, system: s, score: 1, source: p}]",
    "evaluation.expected.test={low: 5, high: 3}",
    "evaluation.bleu_tokenizer=none",
    "tokenizer.added_tokens=5",
    "tokenizer.tags=[<unk>]",
    "tokenizer.tags=[<bt>]; decoding.tag=<bb>",
    "data.tests.train.corpus=c/a",
    "data.valid.weight=2",
    "model.tie_embeddings=all; training.freeze=[output]",
    "training.freeze=[source_embedding, target_embedding, output, encoder, decoder]",
    "training.max_updates=null; training.patience=null",
    "training.schedule=cosine; training.decay_updates=null",
    "training.schedule=linear; training.max_updates=null; training.decay_updates=null",
    "training.schedule=linear; training.warmup_updates=100; training.decay_updates=100",
    "training.schedule=linear; "
    "training.warmup_updates=9; training.decay_updates=50; training.max_updates=51",
    "training.schedule=linear; "
    "training.warmup_updates=9; training.decay_updates=50; training.max_updates=null",
    "model.positional=rotary; model.d_head=5",
    "model.d_model=36; model.heads=4; model.positional=rotary",
    "model.d_head=64; model.heads=6",
    "model.preset=transformer-tiny; model.heads=3",
    "model.kv_heads=16",
    "model.heads=5; model.d_model=25",
    "model.positional=learned; model.max_positions=255",
]
HOLDS = [
    "tokenizer.vocabulary=separate; model.tie_embeddings=decoder",
    "training.max_tokens_per_batch=256",
    "evaluation.expected.valid.low=3",
    *(
        f"training.r_drop=5; model.dropout=0; model.{key}"
        for key in ("attention_dropout=0.1", "feed_forward_dropout=0.1")
    ),
    "training.freeze=[source_embedding, target_embedding, output]",
    *(
        f"training.max_updates=null; training.patience=null; training.{end}=3"
        for end in ("max_updates", "max_epochs", "patience")
    ),
    "training.schedule=linear; training.decay_updates=9000",
    "training.schedule=cosine; training.warmup_updates=99; training.decay_updates=100",
    "model.d_model=510; model.d_head=64; model.d_value=32",
    "model.d_model=25; model.heads=5; model.positional=rotary; model.d_head=6; model.d_value=5",
    "model.d_model=25; model.heads=5; model.positional=learned",
    "model.kv_heads=1",
    "model.kv_heads=8",
    "model.positional=learned; model.max_positions=256",
    "model.max_positions=1",
]


@pytest.mark.parametrize("overrides", BROKEN)
def test_broken_rule_is_one_line_at_the_last_key(overrides: str, refuse: Refuse) -> None:
    recipe = RECIPE.replace("training:", "  tests: {test: {corpus: c/test}}\ntraining:")
    *_, last = settings = overrides.split("; ")
    text = refuse(recipe, *settings)
    assert text.startswith(f"--set {last.partition('=')[0]}: ")
    assert "\n" not in text


@pytest.mark.parametrize("overrides", HOLDS)
def test_rule_that_holds_is_accepted(overrides: str, load: Load) -> None:
    load(RECIPE, *overrides.split("; "))


def test_all_broken_rules_are_reported_at_the_lines_of_their_keys(refuse: Refuse) -> None:
    overrides = ["tokenizer.vocabulary=separate", "model.tie_embeddings=all"]
    overrides.append("training.max_tokens_per_batch=9")
    assert refuse(RECIPE, *overrides).startswith("FILE: 2 problems\n")
    lines = refuse(RECIPE + "model:\n  heads: 4\n  kv_heads: 3\n  d_model: 35\n").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["FILE", "FILE:10", "FILE:11", "FILE:11"]


def test_tokenizer_is_copied_from_the_named_folder_or_the_initial_run(load: Load) -> None:
    tuned = ["tokenizer.added_tokens=5", "training.init_from=runs/a"]
    origins: list[tuple[list[str], Any]] = [
        ([], None),
        (tuned, ("training.init_from", Path("runs/a"))),
        ([*tuned, "tokenizer.from=runs/b"], ("tokenizer.from", Path("runs/b"))),
    ]
    for overrides, origin in origins:
        assert load(RECIPE, *overrides).tokenizer_origin == origin


def test_config_is_frozen(load: Load) -> None:
    with pytest.raises(ValidationError):
        load(RECIPE).seed = 2
