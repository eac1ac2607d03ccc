"""Named shapes of the model: values to begin with."""

from typing import Any, Literal

Preset = Literal[
    "transformer-base", "transformer-big", "transformer-tiny", "modern", "deep-encoder"
]

_BASE: dict[str, Any] = {
    "d_model": 512,
    "d_ff": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
}

PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3, "base" and "big".
    "transformer-base": _BASE,
    "transformer-big": {**_BASE, "d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    # For some ten thousand pairs (Wu et al. 2021, arXiv 2105.14462, on Multi30k).
    "transformer-tiny": {
        **_BASE,
        "d_model": 128,
        "d_ff": 256,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
    # What language models since 2023 are made of. Three matrices of 1,368 have the parameters of
    # the two of 2,048 (Shazeer 2020 scales by 2/3 likewise), rounded to a multiple of 8.
    "modern": {
        **_BASE,
        "d_ff": 1368,
        "positional": "rotary",
        "norm": "rmsnorm",
        "residual": "pre",
        "feed_forward": "swiglu",
        "bias": False,
    },
    # Twelve layers that run once and one that runs for each piece (Kasai et al. 2021): quick to
    # decode. DeepNorm keeps so deep a Post-Norm encoder trainable.
    "deep-encoder": {
        **_BASE,
        "encoder_layers": 12,
        "decoder_layers": 1,
        "residual": "deepnorm",
    },
}
