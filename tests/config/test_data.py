"""Splits, directions and tags of the corpora."""

from typing import Any

from mt.config import DataConfig
from mt.config.data import (
    Direction,
    chosen_direction,
    needed_tags,
    tags_as_text,
    trained_directions,
    trained_tags,
)

TO_DE, TO_FR, FROM_NL = Direction("en", "de"), Direction("en", "fr"), Direction("nl", "de")


def data(**corpora: dict[str, str]) -> DataConfig:
    files = {"source": "a", "target": "b"}
    train: dict[str, Any] = {"corpora": {name: files | each for name, each in corpora.items()}}
    return DataConfig.model_validate(
        {"source_language": "en", "target_language": "de", "train": train, "valid": files}
    )


def test_single_corpus_has_one_direction_and_no_tag() -> None:
    plain = data(one={}).model_copy(update={"train": data(one={}).train_corpora().popitem()[1]})
    assert trained_directions(plain) == (TO_DE,)
    assert trained_tags(plain) == {None: (TO_DE,)}
    assert needed_tags(plain) == {}
    assert chosen_direction(plain, None) == TO_DE


def test_corpora_are_grouped_by_direction_and_tag() -> None:
    several = data(
        a={"tag": "<2de>"},
        b={"tag": "<2fr>", "target_language": "fr"},
        c={"tag": "<2de>"},
        d={"tag": "<2de>", "source_language": "nl"},
    )
    assert trained_directions(several) == (TO_DE, TO_FR, FROM_NL)
    assert trained_tags(several) == {"<2de>": (TO_DE, FROM_NL), "<2fr>": (TO_FR,)}
    assert needed_tags(several) == trained_tags(several)
    assert tags_as_text(trained_tags(several)) == [
        "`<2de>` (en to de and nl to de)",
        "`<2fr>` (en to fr)",
    ]
    chosen = [chosen_direction(several, tag) for tag in ("<2fr>", "<2de>", "<no>", None)]
    assert chosen == [TO_FR, TO_DE, TO_DE, TO_DE]


def test_both_tags_choose_a_direction_of_the_corpora_or_name_one() -> None:
    several = data(
        a={"tag": "eng_Latn", "target_tag": "deu_Latn"},
        b={"tag": "eng_Latn", "target_tag": "fra_Latn", "target_language": "fr"},
    )
    assert chosen_direction(several, "eng_Latn", "fra_Latn") == TO_FR
    assert chosen_direction(several, "eng_Latn", "ces_Latn") == Direction("eng-Latn", "ces-Latn")
    assert chosen_direction(several, None, "__cs__") == Direction("en", "cs")
    assert [*needed_tags(several, "target_tag")] == ["deu_Latn", "fra_Latn"]


def test_no_tag_is_needed_if_a_corpus_has_none() -> None:
    back = data(real={}, back={"tag": "<bt>"})
    assert needed_tags(back) == {}
    assert tags_as_text(trained_tags(back)) == ["`<bt>` (en to de)"]


def test_splits_are_found_by_name() -> None:
    tests = {"news": {"source": "c", "target": "d"}}
    several = DataConfig.model_validate({**data(one={}).model_dump(), "tests": tests})
    assert several.split("valid") is several.valid
    assert several.split("news") == several.tests["news"]
    assert several.split("nwes") is None
    assert several.split_names() == ["valid", "news"]
