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
DECAY = "`training.decay_updates`"
RATE_IS_ZERO = (
    f"`training.schedule: linear` has a learning rate of 0 after {DECAY} 50: set "
    "`training.max_updates` to at most that"
)
BROKEN = {
    "tokenizer.algorithm=unigram; tokenizer.subword_dropout=[0.1, 0]": (
        "`tokenizer.subword_dropout` needs `tokenizer.algorithm: bpe`"
    ),
    "tokenizer.vocabulary=separate; model.tie_embeddings=all": (
        "`model.tie_embeddings: all` needs `tokenizer.vocabulary: "
        "joint`; with separate vocabularies use `decoder` or `none`"
    ),
    "training.max_tokens_per_batch=255": "`training.max_tokens_per_batch` 255 is below "
    "`data.max_tokens` 256: the longest pair would not fit",
    "training.r_drop=5; model.dropout=0": "`training.r_drop` compares two passes with different "
    "dropout, but dropout is off: set `model.dropout` above 0",
    **{
        f"training.guided_alignment=0.2; {other}": "`training.guided_alignment` does not work with "
        f"`{shown or other.replace('=', ': ')}`: choose one"
        for other, shown in {
            "training.r_drop=5": "training.r_drop",
            "training.compile=on": "",
            "training.recompute=on": "",
        }.items()
    },
    "evaluation.expected.vaild.low=3": "`evaluation.expected.vaild`: no split has this name; did "
    "you mean `valid`?",
    "evaluation.published=[{split: tset, system: s, score: 1, source: p}]": (
        "`evaluation.published.0.split`: no test split is named `tset`; did you mean `test`?"
    ),
    "evaluation.expected.test={low: 5, high: 3}": "`low` 5.0 is above `high` 3.0",
    "evaluation.bleu_tokenizer=none": "`none` is not the name of a tokenizer; did you mean "
    "`already-tokenized`?",
    "tokenizer.added_tokens=5": "`tokenizer.added_tokens` extends a copied tokenizer: set "
    "`training.init_from` or `tokenizer.from`; for a new tokenizer, set "
    "`tokenizer.vocabulary_size`",
    "tokenizer.tags=[<unk>]": "`tokenizer.tags`: `<unk>` is a special token already",
    "tokenizer.tags=[<bt>]; decoding.tag=<bb>": "`decoding.tag` is `<bb>`, which `tokenizer.tags` "
    "does not reserve; did you mean `<bt>`?",
    "data.tests.train.corpus=c/a": "`data.tests.train`: `train` is the name of another split",
    "data.valid.weight=2": "`data.valid.weight`: only training corpora have a weight; remove it",
    "model.tie_embeddings=all; training.freeze=[output]": (
        "`training.freeze` names `output`, but `model.tie_embeddings: all` "
        "makes one matrix of `source_embedding`, `target_embedding`, `output`: freeze all of "
        "them, or none"
    ),
    "training.freeze=[source_embedding, target_embedding, output, encoder, decoder]": (
        "`training.freeze` names every part: no weight is left to train"
    ),
    "training.max_updates=null; training.patience=null": "training has no end: set "
    "`training.max_updates`, `training.max_epochs` or `training.patience`",
    "training.schedule=cosine; training.decay_updates=null": (
        f"`training.schedule: cosine` needs {DECAY}, the update at which "
        "it ends: usually that of `training.max_updates`, 100"
    ),
    "training.schedule=linear; training.max_updates=null; training.decay_updates=null": (
        f"`training.schedule: linear` needs "
        f"{DECAY}, the update at which it ends: usually that of `training.max_updates`"
    ),
    "training.schedule=linear; training.warmup_updates=100; training.decay_updates=100": (
        f"`training.warmup_updates` 100 must be below {DECAY} 100"
    ),
    **{
        "training.schedule=linear; training.warmup_updates=9; training.decay_updates=50; "
        f"training.max_updates={last}": RATE_IS_ZERO
        for last in ("51", "null")
    },
    "model.positional=rotary; model.d_head=5": "`model.positional: rotary` needs an even "
    "`model.d_head`, not 5",
    "model.d_model=36; model.heads=4; model.positional=rotary": "`model.positional: rotary` needs "
    "an even `model.d_model` / `model.heads`, not 9",
    "model.d_head=64; model.heads=6": "`model.d_model` 512 is not a multiple of `model.heads` 6; "
    "change one, or set both `model.d_head` and `model.d_value`",
    "model.preset=transformer-tiny; model.heads=3": "`model.d_model` 128 is not a multiple of "
    "`model.heads` 3; change one, or set both `model.d_head` and `model.d_value`",
    "model.kv_heads=16": "`model.kv_heads` 16 does not divide `model.heads` 8: every key head "
    "serves the same number of query heads",
    "model.heads=5; model.d_model=25": "`model.positional: sinusoidal` needs an even "
    "`model.d_model`, not 25",
    "model.positional=learned; model.max_positions=255": "`model.max_positions` 255 is below "
    "`data.max_tokens` 256: `model.positional: learned` needs a position for every token of the "
    "longest pair",
}
HOLDS = [
    "tokenizer.vocabulary=separate; model.tie_embeddings=decoder",
    "training.max_tokens_per_batch=256",
    "evaluation.expected.valid.low=3",
    *(
        f"training.r_drop=5; model.dropout=0; model.{key}"
        for key in (
            "attention_dropout=0.1",
            "feed_forward_dropout=0.1",
        )
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


@pytest.mark.parametrize(("overrides", "message"), BROKEN.items())
def test_broken_rule_is_one_line_at_the_last_key(
    overrides: str, message: str, refuse: Refuse
) -> None:
    recipe = RECIPE.replace("training:", "  tests: {test: {corpus: c/test}}\ntraining:")
    *_, last = settings = overrides.split("; ")
    assert refuse(recipe, *settings) == f"--set {last.partition('=')[0]}: {message}"


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
    with pytest.raises(ValidationError, match="frozen"):
        load(RECIPE).seed = 2
