"""Configuration of the search for translations, and of their scores."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import LocalPath, Section, TaggedSection


class DecodingConfig(TaggedSection):
    """Search for translations; stored with the model as its default."""

    search: Literal["greedy", "beam", "sample", "auto"] = "beam"
    """Take the most probable next token, keep the `beam` best prefixes, or draw the next token.
    `auto`: beam, but greedy from the end of training if it costs at most 0.2 BLEU on the validation
    split; the default with the presets of students."""
    beam: Annotated[int, Field(ge=1, le=200)] = 5
    """Number of prefixes that beam search keeps."""
    length_normalization: Literal["gnmt", "average", "none"] = "gnmt"
    """Divide log-probabilities by ((5 + length) / 6) ** alpha, by the length, or by nothing."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """Exponent alpha of `gnmt`."""
    ensemble: Annotated[tuple[LocalPath, ...], Field(strict=False)] = ()
    """Further runs with the same tokenizer; the probabilities of all models are averaged."""
    adapter: LocalPath | None = None
    """Run trained with `training.lora` from this one; its low-rank matrices are added."""
    temperature: Annotated[float, Field(ge=0.001, le=1000.0)] = 1.0
    """Divisor of the logits before sampling; below 1, likely tokens are drawn more often."""
    top_k: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Draw from the k most probable tokens; null: from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Draw from the smallest set of most probable tokens with at least this probability."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of sampling; the draw also depends on the sentence."""
    mbr: Literal["chrf", "bleu"] | None = None
    """Metric of minimum Bayes risk decoding among 16 candidates; null: take the best score."""
    no_repeat_ngram: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """Length of n-grams that must not occur twice in a translation; null: no limit."""
    repair: Literal["on", "off"] = "on"
    """Search again after loops, put back lost addresses, translate capitals in lower case, copy
    text without words."""
    max_length_ratio: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Longest translation: this times the source tokens, plus `max_length_extra`."""
    max_length_extra: Annotated[int, Field(ge=0, le=10**6)] = 50
    """Tokens added to the limit of `max_length_ratio`, end mark included."""
    split_sentences: Literal["auto", "on", "off"] = "auto"
    """Translate the sentences of a line one by one; `auto`: if training lines had one sentence."""
    batch_size: Annotated[int, Field(ge=1, le=10**6)] | None = None
    """Sentences decoded at once; changes speed, not text; null: 64, or more where it is faster."""
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    """Engine for the searches of a run; `auto`: CTranslate2 on a CPU, for plain searches."""
    quantization: Literal["none", "int8"] = "none"
    """`int8`: translate with the export RUN/ctranslate2-int8, smaller and faster on a CPU, whose
    translations differ a little."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Weights of a loaded run; `auto`: bf16 on a GPU that has it, else fp32, as for `mt score`."""

    @property
    def search_label(self) -> str:
        """Search as the labels of scores name it: `greedy`, `beam 5`, `sample`, with `mbr`."""
        search = self.search if self.search in {"greedy", "sample"} else f"beam {self.beam}"
        return f"{search}, mbr {self.mbr}" if self.mbr else search

    @property
    def sentences_at_once(self) -> int:
        """`batch_size`, or a default that is fast for most searches."""
        return self.batch_size or 64

    @property
    def look_ahead(self) -> int:
        """Lines that a translator reads ahead, so that sorting by length pays off."""
        batch = self.sentences_at_once
        return 1 if batch == 1 else LOOK_AHEAD_BATCHES * batch

    def _broken_rules(self) -> Iterator[str]:
        candidates = {"greedy": 1, "sample": MBR_CANDIDATES}.get(self.search, self.beam)
        if self.mbr is not None and candidates < MBR_CANDIDATES:
            yield (
                f"`mbr` chooses from {MBR_CANDIDATES} translations, and {self.search} search finds "
                f"{candidates}: take `search: sample`, or a larger `beam`"
            )


LOOK_AHEAD_BATCHES = 32
MBR_CANDIDATES = 16
"""Number of candidates for `decoding.mbr`, from samples or the beam."""
PYTORCH_ONLY = ("decoding.engine=torch", "decoding.quantization=none")
"""Overrides for PyTorch as the only engine of a run."""

Bleu = Annotated[float, Field(ge=0.0, le=100.0)]
_STATED = "(nrefs|case|tok|text):[^|:]+"


class Published(Section):
    """A score published by others on a test split of the recipe."""

    split: str
    """Name of the test split in `data.tests`."""
    system: Annotated[str, Field(min_length=1)]
    """Short description of the system."""
    score: Bleu
    """Published BLEU."""
    protocol: Annotated[str, Field(pattern=rf"^({_STATED}(\|{_STATED})*)?$")] = ""
    """The stated part of the signature, such as `nrefs:1|case:mixed|tok:13a|text:plain`."""
    source: Annotated[str, Field(min_length=1)]
    """Publication, and where the score was read if elsewhere."""


class Band(Section):
    """Range of BLEU that a recipe must reach."""

    low: Bleu
    """Lowest BLEU that passes."""
    high: Bleu = 100.0
    """Highest BLEU that passes."""

    def _broken_rules(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"`low` {self.low} is above `high` {self.high}"


class EvaluationConfig(Section):
    """BLEU and chrF by sacreBLEU."""

    bleu_tokenizer: Literal[
        "auto",
        "13a",
        "zh",
        "ja-mecab",
        "ko-mecab",
        "char",
        "intl",
        "flores200",
        "flores101",
        "already-tokenized",
    ] = "auto"
    """sacreBLEU's tokenizer; `auto`: by target language; `already-tokenized`: split at spaces."""
    expected: dict[str, Band] = Field(default_factory=dict)
    """Range of BLEU by test split; `make reproduce` fails outside it."""
    published: Annotated[tuple[Published, ...], Field(strict=False)] = ()
    """Published scores, which `make reproduce` compares with."""
