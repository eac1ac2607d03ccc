"""The whole configuration, and the rules across its sections."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from mt.config.base import Section
from mt.config.data import DataConfig
from mt.config.decoding import DecodingConfig
from mt.config.evaluation import EvaluationConfig
from mt.config.model import ModelConfig
from mt.config.tokenizer import TokenizerConfig
from mt.config.training import TrainingConfig
from mt.errors import did_you_mean


class Config(Section):
    """One run, from corpus to score."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Every random choice follows from it."""
    data: DataConfig
    """Where sentence pairs come from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes pieces."""
    model: ModelConfig = ModelConfig()
    """The Transformer's shape."""
    training: TrainingConfig = TrainingConfig()
    """How it learns."""
    decoding: DecodingConfig = DecodingConfig()
    """How a translation is searched for."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How translations are scored."""

    @model_validator(mode="after")
    def _sections_agree(self) -> "Config":
        if broken := [*self._broken_rules()]:
            raise ValueError("\n".join(broken))
        return self

    def _broken_rules(self) -> Iterator[str]:
        if self.model.tie_embeddings == "all" and self.tokenizer.vocabulary == "separate":
            yield (
                "`model.tie_embeddings: all` needs `tokenizer.vocabulary: joint`; "
                "with separate vocabularies use `decoder` or `none`"
            )
        if self.training.max_tokens_per_batch < self.data.max_pieces:
            yield (
                f"`training.max_tokens_per_batch` {self.training.max_tokens_per_batch} is below "
                f"`data.max_pieces` {self.data.max_pieces}: the longest pair would not fit"
            )
        if self.model.positional == "learned" and self.model.max_positions < self.data.max_pieces:
            yield (
                f"`model.max_positions` {self.model.max_positions} is below `data.max_pieces` "
                f"{self.data.max_pieces}: `model.positional: learned` has no row for the end of "
                "the longest pair"
            )
        splits = self.data.split_names()
        for name in self.evaluation.expected:
            if name not in splits:
                near = did_you_mean(name, splits)
                yield f"`evaluation.expected.{name}`: no split of `data.tests` has this name{near}"
