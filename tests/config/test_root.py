"""Rules across sections, and of training and evaluation; messages name every key in full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mt.config import Config
from tests.factories import RECIPE

Load = Callable[..., Config]
Refuse = Callable[..., str]
NEEDS_DECAY = (
    "needs `training.decay_updates`, the update at which it ends: usually that of "
    "`training.max_updates`"
)
RATE_IS_ZERO = (
    "has a learning rate of 0 after `training.decay_updates` 50: set `training.max_updates` to at "
    "most that, or `training.final_learning_rate` above 0"
)
BROKEN = [
    (
        ["tokenizer.vocabulary=separate"],
        "--set tokenizer.vocabulary: `model.tie_embeddings: all` needs `tokenizer.vocabulary: "
        "joint`; with separate vocabularies use `decoder` or `none`",
    ),
    (
        ["training.max_tokens_per_batch=255"],
        "--set training.max_tokens_per_batch: `training.max_tokens_per_batch` 255 is below "
        "`data.max_tokens` 256: the longest pair would not fit",
    ),
    (
        ["training.r_drop=5", "model.dropout=0"],
        "--set model.dropout: `training.r_drop` compares two passes with different dropout, but "
        "dropout is off: set `model.dropout` above 0",
    ),
    (
        ["evaluation.expected.vaild.low=3"],
        "--set evaluation.expected.vaild.low: `evaluation.expected.vaild`: no split has this name"
        "; did you mean `valid`?",
    ),
    (
        ["evaluation.published=[{split: tset, system: s, score: 1, source: p}]"],
        "--set evaluation.published: `evaluation.published.0.split`: no test split is named `tset`"
        "; did you mean `test`?",
    ),
    (
        ["evaluation.expected.test={low: 5, high: 3}"],
        "--set evaluation.expected.test: `low` 5.0 is above `high` 3.0",
    ),
    (
        ["evaluation.bleu_tokenizer=none"],
        "--set evaluation.bleu_tokenizer: `none` is not the name of a tokenizer; did you mean "
        "`already-tokenized`?",
    ),
    (
        ["tokenizer.added_tokens=5"],
        "--set tokenizer.added_tokens: `tokenizer.added_tokens` extends a copied tokenizer: set "
        "`training.init_from` or `tokenizer.from`; for a new tokenizer, set "
        "`tokenizer.vocabulary_size`",
    ),
    (
        ["tokenizer.tags=[<unk>]"],
        "--set tokenizer.tags: `tokenizer.tags`: `<unk>` is a special token already",
    ),
    (
        ["tokenizer.tags=[<bt>]", "decoding.tag=<bb>"],
        "--set decoding.tag: `decoding.tag` is `<bb>`, which `tokenizer.tags` does not reserve"
        "; did you mean `<bt>`?",
    ),
    (
        ["data.tests.train.corpus=c/a"],
        "--set data.tests.train.corpus: `data.tests.train`: `train` is the name of another split",
    ),
    (
        ["data.valid.weight=2"],
        "--set data.valid.weight: `data.valid.weight`: only training corpora have a weight; "
        "remove it",
    ),
    (
        ["training.freeze=[output]"],
        "--set training.freeze: `training.freeze` names `output`, but `model.tie_embeddings: all` "
        "makes one matrix of `source_embedding`, `target_embedding`, `output`: freeze all of them, "
        "or none",
    ),
    (
        ["training.freeze=[source_embedding, target_embedding, output, encoder, decoder]"],
        "--set training.freeze: `training.freeze` names every part: no weight is left to train",
    ),
    (
        ["training.max_updates=null", "training.patience=null"],
        "--set training.patience: training has no end: set `training.max_updates`, "
        "`training.max_epochs` or `training.patience`",
    ),
    (
        ["training.schedule=cosine"],
        f"--set training.schedule: `training.schedule: cosine` {NEEDS_DECAY}, 100",
    ),
    (
        ["training.schedule=linear", "training.max_updates=null"],
        f"--set training.max_updates: `training.schedule: linear` {NEEDS_DECAY}",
    ),
    (
        ["training.schedule=linear", "training.warmup_updates=100", "training.decay_updates=100"],
        "--set training.decay_updates: `training.warmup_updates` 100 must be below "
        "`training.decay_updates` 100",
    ),
    (
        [
            "training.schedule=cosine",
            "training.decay_updates=5000",
            "training.final_learning_rate=1e-3",
        ],
        "--set training.final_learning_rate: `training.final_learning_rate` 0.001 is above "
        "`training.learning_rate` 0.0005",
    ),
    *(
        (
            [
                "training.schedule=linear",
                "training.warmup_updates=9",
                "training.decay_updates=50",
                f"training.max_updates={last}",
            ],
            f"--set training.max_updates: `training.schedule: linear` {RATE_IS_ZERO}",
        )
        for last in ("51", "null")
    ),
]


@pytest.mark.parametrize(("overrides", "message"), BROKEN)
def test_broken_rule_is_one_line_at_the_last_key(
    overrides: list[str], message: str, refuse: Refuse
) -> None:
    tests = "  tests: {test: {corpus: c/test}}\ntraining:"
    assert refuse(RECIPE.replace("training:", tests), *overrides) == message


@pytest.mark.parametrize(
    "overrides",
    [
        ["tokenizer.vocabulary=separate", "model.tie_embeddings=decoder"],
        ["training.max_tokens_per_batch=256"],
        ["evaluation.expected.valid.low=3"],
        *(
            ["training.r_drop=5", "model.dropout=0", *(f"model.{key}" for key in keys)]
            for keys in (
                ["dropout=0.1"],
                ["attention_dropout=0.1"],
                ["feed_forward_dropout=0.1"],
                ["encoder_layers=2", "encoder_dropout=[0.0, 0.1]"],
                ["decoder_layers=2", "decoder_dropout=[0.1, 0.0]"],
            )
        ),
        ["training.freeze=[source_embedding, target_embedding, output]"],
        *(
            ["training.max_updates=null", "training.patience=null", f"training.{end}=3"]
            for end in ("max_updates", "max_epochs", "patience")
        ),
        ["training.schedule=linear", "training.decay_updates=9000"],
        ["training.schedule=cosine", "training.warmup_updates=99", "training.decay_updates=100"],
        [
            "training.schedule=cosine",
            "training.decay_updates=5000",
            "training.final_learning_rate=5e-4",
            "training.max_updates=null",
        ],
        ["training.decay_updates=3", "training.final_learning_rate=7.0"],
    ],
)
def test_rule_that_holds_is_accepted(overrides: list[str], load: Load) -> None:
    load(RECIPE, *overrides)


def test_all_broken_rules_are_reported(refuse: Refuse) -> None:
    overrides = ["tokenizer.vocabulary=separate", "training.max_tokens_per_batch=9"]
    assert refuse(RECIPE, *overrides).startswith("FILE: 2 problems\n")


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
