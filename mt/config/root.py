"""Complete configuration of a run, and the rules across its sections."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from mt.config.base import Section
from mt.config.data import (
    TAG_KEYS,
    TERM_TAGS,
    DataConfig,
    Direction,
    TagKey,
    chosen_direction,
    needed_tags,
)
from mt.config.decoding import DecodingConfig, EvaluationConfig
from mt.config.model import STUDENTS, ModelConfig, TokenizerConfig
from mt.config.training import Part, TrainingConfig
from mt.errors import did_you_mean, listed

_TIED_PARTS: dict[str, tuple[Part, ...]] = {
    "all": ("source_embedding", "target_embedding", "output"),
    "decoder": ("target_embedding", "output"),
    "none": (),
}
"""Parts that share one matrix, by `model.tie_embeddings`."""


class Config(Section):
    """Configuration of one run, from corpus to score."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of every random choice."""
    data: DataConfig
    """Languages, corpora and splits."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer of the run."""
    model: ModelConfig = ModelConfig()
    """Shape of the Transformer."""
    training: TrainingConfig = TrainingConfig()
    """Training, validation and checkpoints."""
    decoding: DecodingConfig = DecodingConfig()
    """Search for translations."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Scoring of translations."""

    @model_validator(mode="before")
    @classmethod
    def _open_search(cls, value: Any) -> Any:
        """Set `decoding.search: auto` for the preset of a student, unless a search is given."""
        sections = value if isinstance(value, dict) else {}
        model, decoding = sections.get("model"), sections.get("decoding") or {}
        preset = model.get("preset") if isinstance(model, dict) else None
        if preset in STUDENTS and isinstance(decoding, dict):
            return {**value, "decoding": {"search": "auto", **decoding}}
        return value

    def flat(self) -> dict[str, Any]:
        """Return the values of all keys as plain data, by dotted key."""

        def leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
            for key, value in tree.items():
                if isinstance(value, dict):
                    yield from leaves(value, f"{prefix}{key}.")
                else:
                    yield f"{prefix}{key}", value

        return dict(leaves(self.model_dump(mode="json"), ""))

    @property
    def tokenizer_origin(self) -> tuple[str, Path] | None:
        """Key and folder from which the tokenizer is copied; None if the run trains its own."""
        if self.tokenizer.from_ is not None:
            return "tokenizer.from", self.tokenizer.from_
        if self.training.init_from is not None:
            return "training.init_from", self.training.init_from
        return None

    @property
    def learns_tokens(self) -> bool:
        """True if the tokenizer has tokens that `training.init_from` may lack."""
        is_other = self.tokenizer.from_ not in {None, self.training.init_from}
        return bool(self.tokenizer.added_tokens or self.reserved_tags or is_other)

    @property
    def continues(self) -> bool:
        """True if the training of a finished run continues, with all of its tokens."""
        return self.training.init_from is not None and not self.learns_tokens

    @property
    def reserved_tags(self) -> tuple[str, ...]:
        """Tags that the tokenizer of a new run has."""
        terms = TERM_TAGS if self.data.terms else ()
        return tuple(dict.fromkeys((*self.tokenizer.tags, *terms)))

    def split_tags(self, name: str) -> dict[str, str | None]:
        """Return the tags of `valid` or a test split, by key."""
        split, default = self.data.split(name), self.decoding
        return {key: getattr(split, key, None) or getattr(default, key) for key in TAG_KEYS}

    def tag_overrides(self, name: str) -> list[str]:
        """Return overrides of `decoding` with the tags of `valid` or a test split."""
        tags = self.split_tags(name).items()
        return [f"decoding.{key}={tag or 'null'}" for key, tag in tags]

    def tags_to_choose(self) -> dict[TagKey, dict[str | None, tuple[Direction, ...]]]:
        """Return the needed tags, by key, of each key that `decoding` does not set."""
        needed = {key: needed_tags(self.data, key) for key in TAG_KEYS}
        return {key: of for key, of in needed.items() if of and not getattr(self.decoding, key)}

    @property
    def direction(self) -> Direction:
        """Languages of the translations, by the tags of `decoding`."""
        return chosen_direction(self.data, self.decoding.tag, self.decoding.target_tag)

    def _broken_rules(self) -> Iterator[str]:
        if self.tokenizer.added_tokens and self.tokenizer_origin is None:
            yield (
                "`tokenizer.added_tokens` extends a copied tokenizer: set `training.init_from` or "
                "`tokenizer.from`; for a new tokenizer, set `tokenizer.vocabulary_size`"
            )
        is_tied = self.model.tie_embeddings == "all" and not self.model.is_open("tie_embeddings")
        if is_tied and self.tokenizer.vocabulary == "separate":
            yield (
                "`model.tie_embeddings: all` needs `tokenizer.vocabulary: joint`; "
                "with separate vocabularies use `decoder` or `none`"
            )
        batch_is_open = self.training.is_open("max_tokens_per_batch")
        if self.training.max_tokens_per_batch < self.data.max_tokens and not batch_is_open:
            yield (
                f"`training.max_tokens_per_batch` {self.training.max_tokens_per_batch} is below "
                f"`data.max_tokens` {self.data.max_tokens}: the longest pair would not fit"
            )
        if self.model.positional == "learned" and self.model.max_positions < self.data.max_tokens:
            yield (
                f"`model.max_positions` {self.model.max_positions} is below `data.max_tokens` "
                f"{self.data.max_tokens}: `model.positional: learned` needs a position for every "
                "token of the longest pair"
            )
        model = self.model
        rates = model.dropout, model.attention_dropout, model.feed_forward_dropout
        if self.training.r_drop and not any(rates):
            yield (
                "`training.r_drop` compares two passes with different dropout, but dropout is off: "
                "set `model.dropout` above 0"
            )
        excluded = {
            "training.r_drop": self.training.r_drop > 0,
            "training.compile: on": self.training.compile == "on",
            "training.recompute: on": self.training.recompute == "on",
        }
        for setting, is_used in excluded.items():
            if is_used and self.training.guided_alignment:
                yield f"`training.guided_alignment` does not work with `{setting}`: choose one"
        yield from self._missing_tags()
        tied = self.model.tie_embeddings
        shared = [*_TIED_PARTS[tied]]
        frozen = [part for part in shared if part in self.training.freeze]
        if frozen and frozen != shared and not self.model.is_open("tie_embeddings"):
            yield (
                f"`training.freeze` names {listed(frozen)}, but `model.tie_embeddings: {tied}` "
                f"makes one matrix of {listed(shared)}: freeze all of them, or none"
            )
        splits = self.data.split_names()
        for name in self.evaluation.expected:
            if name not in splits:
                near = did_you_mean(name, splits)
                yield f"`evaluation.expected.{name}`: no split has this name{near}"
        for index, published in enumerate(self.evaluation.published):
            if published.split not in self.data.tests:
                near = did_you_mean(published.split, self.data.tests)
                key = f"evaluation.published.{index}.split"
                yield f"`{key}`: no test split is named `{published.split}`{near}"

    def _missing_tags(self) -> Iterator[str]:
        """Yield a message for each tag that the run's new tokenizer will not contain."""
        sources = {**self.data.train_corpora(), "valid": self.data.valid}
        sources |= {f"tests.{name}": source for name, source in self.data.tests.items()}
        places = {f"data.{key}": source for key, source in sources.items()}
        users = itertools.product({**places, "decoding": self.decoding}.items(), TAG_KEYS)
        for (place, user), key in users:
            tag = getattr(user, key)
            if tag and tag not in self.tokenizer.tags and self.tokenizer_origin is None:
                near = did_you_mean(tag, self.tokenizer.tags)
                yield f"`{place}.{key}` is `{tag}`, which `tokenizer.tags` does not reserve{near}"
        for name in sorted({"<pad>", "<unk>"} & {*self.tokenizer.tags}):
            yield f"`tokenizer.tags`: `{name}` is a special token already"
