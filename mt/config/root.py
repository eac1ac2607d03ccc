"""The whole configuration, and the rules across its sections."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from mt.config.base import Section
from mt.config.data import DataConfig
from mt.config.decoding import DecodingConfig
from mt.config.evaluation import EvaluationConfig
from mt.config.model import ModelConfig
from mt.config.tokenizer import TokenizerConfig
from mt.config.training import Part, TrainingConfig
from mt.errors import did_you_mean, listed

_SHARED: dict[str, tuple[Part, ...]] = {
    "all": ("source_embedding", "target_embedding", "output"),
    "decoder": ("target_embedding", "output"),
    "none": (),
}
"""The parts that are one matrix, by `model.tie_embeddings`."""


class Config(Section):
    """One run, from corpus to score."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Every random choice follows from it."""
    data: DataConfig
    """Where sentence pairs come from."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
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

    @property
    def tokenizer_origin(self) -> tuple[str, Path] | None:
        """The key that names a folder to copy the tokenizer of, and the folder; None: train one."""
        if self.tokenizer.from_ is not None:
            return "tokenizer.from", self.tokenizer.from_
        if self.training.init_from is not None:
            return "training.init_from", self.training.init_from
        return None

    def split_tag(self, name: str) -> str | None:
        """Return what is set in front of the source lines of `valid` or of a test split."""
        source = self.data.split(name)
        return source.tag if source and source.tag else self.decoding.tag

    def _broken_rules(self) -> Iterator[str]:
        if self.tokenizer.added_tokens and self.tokenizer_origin is None:
            yield (
                "`tokenizer.added_tokens` extends a tokenizer that is copied: set "
                "`training.init_from` or `tokenizer.from`, or for a new one "
                "`tokenizer.vocabulary_size`"
            )
        if self.model.tie_embeddings == "all" and self.tokenizer.vocabulary == "separate":
            yield (
                "`model.tie_embeddings: all` needs `tokenizer.vocabulary: joint`; "
                "with separate vocabularies use `decoder` or `none`"
            )
        if self.training.max_tokens_per_batch < self.data.max_tokens:
            yield (
                f"`training.max_tokens_per_batch` {self.training.max_tokens_per_batch} is below "
                f"`data.max_tokens` {self.data.max_tokens}: the longest pair would not fit"
            )
        if self.model.positional == "learned" and self.model.max_positions < self.data.max_tokens:
            yield (
                f"`model.max_positions` {self.model.max_positions} is below `data.max_tokens` "
                f"{self.data.max_tokens}: `model.positional: learned` has no row for the end of "
                "the longest pair"
            )
        if self.training.r_drop and not self.model.has_dropout:
            yield (
                "`training.r_drop` compares two passes with different dropout, and there is none: "
                "set `model.dropout` above 0"
            )
        yield from self._tags_without_a_token()
        yield from self._half_frozen()
        yield from self._splits_that_are_not_there()

    def _splits_that_are_not_there(self) -> Iterator[str]:
        """Yield the keys of `evaluation` that name a split which the data does not have."""
        splits = self.data.split_names()
        for name in self.evaluation.expected:
            if name not in splits:
                near = did_you_mean(name, splits)
                yield f"`evaluation.expected.{name}`: no split of `data.tests` has this name{near}"
        for number, published in enumerate(self.evaluation.published):
            if published.split not in self.data.tests:
                near = did_you_mean(published.split, self.data.tests)
                yield (
                    f"`evaluation.published.{number}.split`: no split of `data.tests` is called "
                    f"`{published.split}`{near}"
                )

    def _tags_without_a_token(self) -> Iterator[str]:
        """Yield the tags that a tokenizer of the run's own does not have."""
        sources = {**self.data.train_corpora(), "valid": self.data.valid}
        sources |= {f"tests.{name}": source for name, source in self.data.tests.items()}
        used = {f"data.{key}.tag": source.tag for key, source in sources.items()}
        for key, tag in {**used, "decoding.tag": self.decoding.tag}.items():
            if tag and tag not in self.tokenizer.tags and self.tokenizer_origin is None:
                near = did_you_mean(tag, self.tokenizer.tags)
                yield f"`{key}` is `{tag}`, which `tokenizer.tags` does not reserve{near}"
        for name in sorted({"<pad>", "<unk>"} & {*self.tokenizer.tags}):
            yield f"`tokenizer.tags`: `{name}` is a special token already"

    def _half_frozen(self) -> Iterator[str]:
        """Yield what is wrong where some, but not all, users of one matrix are to be frozen."""
        tied = self.model.tie_embeddings
        shared = [*_SHARED[tied]]
        frozen = [part for part in shared if part in self.training.freeze]
        if frozen and frozen != shared:
            yield (
                f"`training.freeze` names {listed(frozen)}, but `model.tie_embeddings: {tied}` "
                f"makes one matrix of {listed(shared)}: freeze all of them, or none"
            )
