"""Configuration of the tokenizer and of the Transformer's shape."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mt.config.base import Automatic, LocalPath, Section, TagText

Side = Literal["encoder", "decoder"]
Preset = Literal[
    "transformer-base",
    "transformer-big",
    "transformer-tiny",
    "modern",
    "deep-encoder",
    "student-tiny",
    "student-medium",
    "student-base",
]
_BASE: dict[str, Any] = {
    "d_model": 512,
    "d_ff": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
}
MARIAN = {"positional": "marian", "decoder_start": "zeros"}
PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3, "base" and "big".
    "transformer-base": _BASE,
    "transformer-big": {**_BASE, "d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    # For corpora of about ten thousand pairs (Wu et al. 2021, arXiv 2105.14462, on Multi30k).
    "transformer-tiny": {
        **_BASE,
        "d_model": 128,
        "d_ff": 256,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
    # The usual parts of language models since 2023. Three feed-forward matrices of width 1,368 have
    # the parameters of two of 2,048 (Shazeer 2020 also scales by 2/3), rounded to a multiple of 8.
    "modern": {
        **_BASE,
        "d_ff": 1368,
        "positional": "rotary",
        "norm": "rmsnorm",
        "residual": "pre",
        "feed_forward": "swiglu",
        "bias": False,
    },
    # Fast decoding: the deep encoder runs once, the single decoder layer once per token (Kasai et
    # al. 2021). DeepNorm keeps a Post-Norm encoder of this depth trainable.
    "deep-encoder": {**_BASE, "encoder_layers": 12, "decoder_layers": 1, "residual": "deepnorm"},
    # For the translations of a teacher, and for every export; the training chooses the search. The
    # shapes of Bogoychev et al. 2020, "Edinburgh's Submissions to the 2020 Machine Translation
    # Efficiency Task", with self-attention in the decoder, and one between them.
    "student-tiny": {**_BASE, **MARIAN, "d_model": 256, "d_ff": 1536, "decoder_layers": 2},
    "student-medium": {**_BASE, **MARIAN, "d_model": 384, "d_ff": 1536, "decoder_layers": 4},
    "student-base": {**_BASE, **MARIAN, "decoder_layers": 2},
}
STUDENTS = ("student-tiny", "student-medium", "student-base")
"""Presets with `decoding.search: auto`."""
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Width = Annotated[int, Field(ge=1, le=2**16)]
Layers = Annotated[int, Field(ge=1, le=1000)]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]


class TokenizerConfig(Section):
    """A SentencePiece tokenizer, trained by the run or copied."""

    from_: Annotated[LocalPath | None, Field(alias="from")] = None
    """Run or tokenizer folder to copy the tokenizer from; null: `training.init_from`, if set."""
    added_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Maximum number of new tokens to add to each copied vocabulary. They are learned from text in
    languages that only corpora with a new tag have; without such a language, from all text."""
    algorithm: Annotated[Literal["bpe", "unigram"], Automatic] = "bpe"
    """Byte-pair encoding, or the unigram language model."""
    vocabulary: Annotated[Literal["joint", "separate"], Automatic] = "joint"
    """One vocabulary for both languages, or one for each side."""
    vocabulary_size: Annotated[int, Field(ge=300, le=1_000_000), Automatic] = 8000
    """Tokens per vocabulary, with special and byte tokens; lowered if the text has too few."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0), Automatic] = 0.9999
    """Share of the characters with a token of their own; the others are spelled in bytes."""
    tags: Annotated[tuple[TagText, ...], Field(strict=False)] = ()
    """Reserved tokens that `tag` keys put in front of source lines: `<bt>`, `<2de>`."""
    subword_dropout: Annotated[tuple[_Share, _Share], Field(strict=False)] = (0.0, 0.0)
    """Share of the BPE merges that training skips at random, on the source and the target side."""

    def _broken_rules(self) -> Iterator[str]:
        is_unigram = self.algorithm == "unigram" and not self.is_open("algorithm")
        if any(self.subword_dropout) and is_unigram:
            yield "`tokenizer.subword_dropout` needs `tokenizer.algorithm: bpe`"


class ModelConfig(Section):
    """Transformer encoder-decoder; the defaults are the paper's base model."""

    preset: Preset | None = None
    """Named shape, resolved on reading; other keys override it. `--set` replaces the section."""
    d_model: Annotated[Width, Automatic] = 512
    """Width of the states between layers."""
    d_ff: Annotated[Width, Automatic] = 2048
    """Inner width of the feed-forward layers."""
    heads: Annotated[Width, Automatic] = 8
    """Query heads of attention."""
    kv_heads: Width | None = None
    """Key and value heads, each shared by a group of query heads; null: as many as `heads`."""
    d_head: Width | None = None
    """Width of a head's queries and keys; null: d_model / heads."""
    d_value: Width | None = None
    """Width of a head's values; null: d_model / heads."""
    encoder_layers: Annotated[Layers, Automatic] = 6
    """Number of encoder layers."""
    decoder_layers: Annotated[Layers, Automatic] = 6
    """Number of decoder layers."""
    positional: Annotated[
        Literal[
            "sinusoidal",
            "learned",
            "relative",
            "relative_bias",
            "alibi",
            "rotary",
            "none",
            "marian",
            "fairseq",
        ],
        Automatic,
    ] = "sinusoidal"
    """Representation of token order."""
    decoder_start: Annotated[Literal["bos", "eos", "zeros"], Automatic] = "bos"
    """Embedding at the start of the decoder's input: learned, as by default; that of the end mark,
    as in fairseq; or zeros, as in Marian."""
    max_positions: Width = 512
    """Rows of the `learned` position table; no sentence can be longer."""
    relative_clip: Width = 16
    """Largest offset that `relative` distinguishes."""
    attention_temperature: Annotated[float, Field(ge=1e-5, le=1000.0)] = 1.0
    """Divisor of the attention scores; towards 0, each query attends only to its best key."""
    bias: bool = True
    """Learned biases in linear layers and LayerNorm."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Type of normalisation."""
    residual: Annotated[Literal["post", "pre", "sandwich", "deepnorm"], Automatic] = "post"
    """Place of the normalisation: `post` is Norm(x + Sublayer(x))."""
    feed_forward: Annotated[
        Literal["relu", "gelu", "swish", "glu", "swiglu", "geglu"], Automatic
    ] = "relu"
    """Feed-forward layer; the `glu` variants have a gate, and three matrices instead of two."""
    dropout: Annotated[Probability, Automatic] = 0.1
    """Dropout of the sublayer outputs and the embeddings."""
    attention_dropout: Probability = 0.0
    """Dropout of the attention weights."""
    feed_forward_dropout: Probability = 0.0
    """Dropout of the inner activation of feed-forward layers."""
    tie_embeddings: Annotated[Literal["all", "decoder", "none"], Automatic] = "all"
    """Sharing of one matrix: both embeddings and output, target embedding and output, or none."""

    @property
    def key_heads(self) -> int:
        """Number of key and value heads."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.d_head or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_value or self.d_model // self.heads

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        """Fill in the values of a preset for keys that are not given."""
        name = value.get("preset") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return value  # no preset, or an unknown one, which the field's own check reports
        return {**PRESETS[name], **value, "preset": None}

    def _broken_rules(self) -> Iterator[str]:
        widths_given = self.d_head is not None and self.d_value is not None
        if self.d_model % self.heads and not widths_given:
            divisors = [heads for heads in range(1, self.d_model + 1) if not self.d_model % heads]
            near = min(reversed(divisors), key=lambda heads: abs(heads - self.heads))
            yield (
                f"`model.d_model` {self.d_model} is not a multiple of `model.heads` {self.heads}; "
                f"set `model.heads: {near}` as well, or a whole shape by `model.preset`"
            )
        if self.heads % self.key_heads:
            yield (
                f"`model.kv_heads` {self.kv_heads} does not divide `model.heads` {self.heads}: "
                "every key head serves the same number of query heads"
            )
        if self.positional in {"sinusoidal", "marian", "fairseq"} and self.d_model % 2:
            kind = f"`model.positional: {self.positional}`"
            yield f"{kind} needs an even `model.d_model`, not {self.d_model}"
        if self.positional == "rotary" and self.key_width % 2:
            key = "`model.d_head`" if self.d_head else "`model.d_model` / `model.heads`"
            yield f"`model.positional: rotary` needs an even {key}, not {self.key_width}"
