"""The rules across fields and sections: the message names every key in full."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mt.config import Config, DataConfig, ModelConfig, TokenizerConfig, TrainingConfig
from mt.config.data import TextSource
from mt.config.evaluation import Band, EvaluationConfig

SOURCE = TextSource(corpus="c/train")


def config(**sections: Any) -> Config:
    usual: dict[str, Any] = {
        "data": DataConfig(source_language="en", target_language="de", train=SOURCE, valid=SOURCE),
        "training": TrainingConfig(max_updates=10),
    }
    return Config(**{**usual, **sections})


def test_one_matrix_for_all_needs_one_vocabulary() -> None:
    separate = TokenizerConfig(vocabulary="separate")
    with pytest.raises(ValidationError, match="`model.tie_embeddings: all` needs `tokenizer.voca"):
        config(tokenizer=separate)
    tied = config(tokenizer=separate, model=ModelConfig(tie_embeddings="decoder"))
    assert tied.tokenizer.vocabulary == "separate"


def test_the_longest_pair_fits_a_batch() -> None:
    with pytest.raises(ValidationError, match="_batch` 255 is below `data.max_tokens` 256"):
        config(training=TrainingConfig(max_updates=10, max_tokens_per_batch=255))
    fitting = config(training=TrainingConfig(max_updates=10, max_tokens_per_batch=256))
    assert fitting.training.max_tokens_per_batch == 256


@pytest.mark.parametrize(
    "rate",
    [
        {"dropout": 0.1},
        {"attention_dropout": 0.1},
        {"feed_forward_dropout": 0.1},
        {"encoder_layers": 2, "encoder_dropout": (0.0, 0.1)},
        {"decoder_layers": 2, "decoder_dropout": (0.1, 0.0)},
    ],
)
def test_r_drop_needs_dropout_of_some_kind(rate: dict[str, Any]) -> None:
    training = TrainingConfig(r_drop=5.0)
    with pytest.raises(ValidationError, match="`training.r_drop` compares .*set `model.dropout`"):
        config(model=ModelConfig(dropout=0.0), training=training)
    some = ModelConfig.model_validate({"dropout": 0.0, **rate})
    assert config(model=some, training=training).training.r_drop == 5.0


def test_a_band_belongs_to_a_split() -> None:
    with pytest.raises(
        ValidationError, match="`evaluation.expected.vaild`: .*did you mean `valid`"
    ):
        config(evaluation=EvaluationConfig(expected={"vaild": Band(low=3)}))
    assert config(evaluation=EvaluationConfig(expected={"valid": Band(low=3)}))


def test_tokens_are_added_to_a_tokenizer_that_is_copied() -> None:
    more = TokenizerConfig(added_tokens=5)
    with pytest.raises(
        ValidationError, match="`tokenizer.added_tokens` .*set `training.init_from`"
    ):
        config(tokenizer=more)
    tuned = config(tokenizer=more, training=TrainingConfig(init_from=Path("runs/a")))
    assert tuned.tokenizer_origin == ("training.init_from", Path("runs/a"))
    other = TokenizerConfig(added_tokens=5, from_=Path("runs/b"))
    both = config(tokenizer=other, training=TrainingConfig(init_from=Path("runs/a")))
    assert both.tokenizer_origin == ("tokenizer.from", Path("runs/b"))
    assert config().tokenizer_origin is None


def test_all_broken_rules_are_told() -> None:
    with pytest.raises(ValidationError) as error:
        config(
            tokenizer=TokenizerConfig(vocabulary="separate"),
            training=TrainingConfig(max_updates=10, max_tokens_per_batch=9),
        )
    (only,) = error.value.errors()
    assert len(str(only["ctx"]["error"]).splitlines()) == 2


def test_something_ends_the_training() -> None:
    with pytest.raises(ValidationError, match="set `training.max_updates`, `training.max_epochs`"):
        TrainingConfig(patience=None)
    assert TrainingConfig().patience == 10
    for end in ("max_updates", "max_epochs", "patience"):
        assert getattr(TrainingConfig.model_validate({end: 3}), end) == 3


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValidationError, match="`model.d_model` 10 is no multiple of `model.heads`"):
        ModelConfig(d_model=10, heads=4)
    assert ModelConfig(d_model=12, heads=4).d_model // 4 == 3


def test_a_band_has_its_ends_in_order() -> None:
    with pytest.raises(ValidationError, match=r"`low` 5.0 is above `high` 3.0"):
        Band(low=5, high=3)
    assert Band(low=5).high == 100.0


@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_test_split_has_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ValidationError, match=f"`data.tests.{name}`: `{name}` is the name of anot"):
        DataConfig(
            source_language="en",
            target_language="de",
            train=SOURCE,
            valid=SOURCE,
            tests={name: SOURCE},
        )


def test_splits_are_found_by_name() -> None:
    other = TextSource(source="a", target="b")
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=SOURCE,
        valid=SOURCE,
        tests={"news": other},
    )
    assert data.split("valid") is data.valid
    assert data.split("news") == other
    assert data.split("nwes") is None
    assert data.split_names() == ["valid", "news"]


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().seed = 2


def test_a_published_score_belongs_to_a_test_split() -> None:
    scores = [{"split": "tset", "system": "s", "score": 1.0, "source": "p"}]
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=SOURCE,
        valid=SOURCE,
        tests={"test": SOURCE},
    )
    message = r"published.0.split`: no split .* called `tset`; did you mean `test`\?"
    with pytest.raises(ValidationError, match=message):
        config(data=data, evaluation=EvaluationConfig.model_validate({"published": scores}))


def test_the_tokenizer_of_no_words_is_asked_for_by_a_name_that_says_what_it_is_for() -> None:
    message = "`none` is not the name of a tokenizer; did you mean `already-tokenized`"
    with pytest.raises(ValidationError, match=message):
        EvaluationConfig.model_validate({"bleu_tokenizer": "none"})
