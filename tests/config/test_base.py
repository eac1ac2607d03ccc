"""Tests of the base class of sections."""

import pytest
from pydantic import ValidationError

from mt.config import ModelConfig


def test_a_changed_copy_is_validated_and_leaves_the_original() -> None:
    section = ModelConfig(d_model=64, heads=4)
    changed = section.changed(dropout=0.25)
    assert (changed.d_model, changed.dropout) == (64, 0.25)
    assert section.dropout != 0.25
    assert changed.model_fields_set == {"d_model", "heads", "dropout"}
    for wrong in ({"dropout": 1.5}, {"dropuot": 0.1}, {"dropout": "0.1"}, {"heads": 5}):
        with pytest.raises(ValidationError):
            section.changed(**wrong)
