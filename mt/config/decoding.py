"""How a translation is searched for."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import LocalPath, Section, TagText


class DecodingConfig(Section):
    """How the engine searches; these settings stay with the model."""

    search: Literal["greedy", "beam", "sample"] = "beam"
    """Take the best next token, keep the `beam` best beginnings, or draw the next token."""
    beam: Annotated[int, Field(ge=1, le=200)] = 5
    """Beginnings kept by beam search."""
    length_normalization: Literal["gnmt", "average", "none"] = "gnmt"
    """Divide log-probabilities by ((5 + length) / 6) ** alpha, by the length, or by nothing."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """The exponent alpha of `gnmt`."""
    coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """Beam search takes off so much for source tokens that a translation hardly looked at."""
    tag: TagText | None = None
    """A token in front of each source line, of the tokenizer's tags: `<2de>`; null: none."""
    ensemble: Annotated[tuple[LocalPath, ...], Field(strict=False)] = ()
    """Further runs with the same tokenizer: the mean of all models' probabilities decides."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """What the logits are divided by before sampling draws; below 1 it keeps to likely tokens."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Sampling draws among so many most probable tokens; unset: among all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Sampling draws among the fewest most probable tokens that have this probability together."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Together with the sentence, decides what sampling draws."""
    mbr: Literal["chrf", "bleu"] | None = None
    """Choose the one of several translations that all agree with best, by this; unset: the best."""
    mbr_candidates: Annotated[int, Field(ge=2, le=1000)] = 16
    """How many translations `mbr` chooses from: samples, or the beam's."""
    no_repeat_ngram: Annotated[int, Field(ge=1)] | None = None
    """No sequence of so many tokens comes twice in a translation; unset: it may."""
    on_repetition: Literal["again", "keep"] = "again"
    """Search again, with sequences of three blocked, where a translation is caught in a loop."""
    repetition_penalty: Annotated[float, Field(ge=1.0)] = 1.0
    """Multiplies the log-probability of a token that stands in the translation already."""
    min_length_ratio: Annotated[float, Field(ge=0.0)] = 0.0
    """Shortest translation: this times the source's tokens, end marks included."""
    max_length_ratio: Annotated[float, Field(ge=0.0)] = 1.0
    """Longest translation: this times the source's tokens ..."""
    max_length_extra: Annotated[int, Field(ge=1)] = 50
    """... plus this, end mark included."""
    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Sentences decoded at once: the speed changes, not the text; unset: 64, or more greedily."""

    @property
    def sentences_at_once(self) -> int:
        """`batch_size`, or what is fast for most searches."""
        return self.batch_size or 64
