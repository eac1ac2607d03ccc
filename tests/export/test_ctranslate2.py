import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from mt.config import DecodingConfig, ModelConfig, TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.export.ctranslate2 import write_model
from mt.model.transformer import Transformer
from mt.model.weights import parameter_tensors
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.factories import DIGITS

Search = Literal["greedy", "beam"]
POSITIONS = 96
TINY = {"d_model": 32, "d_ff": 48, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
VARIANTS: list[dict[str, Any]] = [
    {},
    *({"positional": word} for word in ("learned", "relative", "relative_bias", "alibi", "rotary")),
    {"positional": "none"},
    {"positional": "fairseq", "decoder_start": "eos"},
    *(
        {"residual": residual, "norm": norm}
        for residual, norm in itertools.product(
            ("post", "pre", "sandwich", "deepnorm"), ("layernorm", "rmsnorm")
        )
    ),
    *({"feed_forward": word} for word in ("gelu", "swish", "glu", "swiglu", "geglu")),
    {"kv_heads": 2},
    {"kv_heads": 1, "positional": "rotary"},
    {"bias": False},
    {"bias": False, "residual": "deepnorm", "positional": "learned"},
    {"d_head": 6},
    {"d_value": 4},
    {"d_head": 6, "d_value": 12, "positional": "rotary"},
    {"d_head": 12, "d_value": 6, "positional": "relative", "kv_heads": 2, "relative_clip": 3},
    {"attention_temperature": 0.5},
    {"tie_embeddings": "decoder"},
    {"tie_embeddings": "none"},
    {"heads": 3, "d_model": 48, "positional": "alibi"},
    {"encoder_layers": 1, "decoder_layers": 3, "residual": "deepnorm"},
    {"positional": "relative_bias"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    text = [f"{DIGITS[i % 10]} {DIGITS[i % 7]} {DIGITS[i % 3]}" for i in range(40)]
    return train_tokenizer(
        lambda: (SentencePair(line, line) for line in text),
        tmp_path_factory.mktemp("tokenizer"),
        config=TokenizerConfig(vocabulary_size=300),
    )


def random_model(tokenizer: Tokenizer, **changes: Any) -> tuple[ModelConfig, Transformer]:
    """Return a model with random biases and gains."""
    torch.manual_seed(3)
    config = ModelConfig(**{**TINY, "max_positions": POSITIONS, **changes})
    size = tokenizer.source_size
    model = Transformer(config, source_vocabulary=size, target_vocabulary=size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return config, model


def write(folder: Path, config: ModelConfig, model: Transformer, tokenizer: Tokenizer) -> None:
    weights = {name: tensor.numpy() for name, tensor in parameter_tensors(model).items()}
    settings: dict[str, Any] = {"positions": POSITIONS, "quantization": None}
    write_model(folder, config, weights, tokenizer=tokenizer, **settings)


def sentences(tokenizer: Tokenizer, lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    size = tokenizer.source_size
    return [torch.randint(EOS + 1, size, (n,), generator=generator).tolist() for n in lengths]


def engine_of(folder: Path, tokenizer: Tokenizer) -> CTranslate2Engine:
    return CTranslate2Engine(folder, device="cpu", tokenizer=tokenizer, positions=POSITIONS)


def check_steps(folder: Path, model: Transformer, tokenizer: Tokenizer, search: Search) -> None:
    """Compare the scores of incremental decoding with one pass of the original model."""
    engine = engine_of(folder, tokenizer)
    decoding = DecodingConfig(search=search, beam=3, max_length_extra=12)
    sources = [[*ids, EOS] for ids in sentences(tokenizer, (2, 9, 40))]
    for source, hypotheses in zip(sources, engine.n_best_ids(sources, decoding, 3), strict=True):
        for hypothesis in hypotheses:
            ids = [*hypothesis.ids, *([EOS] if hypothesis.finished else [])]
            assert not {PAD, UNK, BOS} & set(ids)
            with torch.inference_mode():
                logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids[:-1]]]))
            log_prob = float(logits.log_softmax(-1)[range(len(ids)), ids].sum())
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-4)


def check_details(folder: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Compare log-probabilities, alignment and attention with the original engine's."""
    engine = engine_of(folder, tokenizer)
    sources = [[*ids, EOS] for ids in sentences(tokenizer, (3, 30, 1, 8))]
    targets = sentences(tokenizer, (5, POSITIONS, 2, 0))
    hypotheses = [Hypothesis(tuple(ids), 0.0, 0.0, finished=False) for ids in targets]
    expected = TorchEngine(model, torch.device("cpu")).explain(sources, hypotheses)
    details = engine.explain(sources, hypotheses)
    assert sum(len(detail.alignment) for detail in expected) > 40
    for theirs, ours in zip(details, expected, strict=True):
        assert theirs.log_probs == pytest.approx(ours.log_probs, abs=1e-5)
        assert theirs.alignment == ours.alignment
        assert (theirs.attention is None) == (ours.attention is None)
        if ours.attention is not None:
            assert theirs.attention == pytest.approx(ours.attention, abs=1e-4)


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes)))
def test_every_variant_computes_the_same(
    changes: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config, model = random_model(tokenizer, **changes)
    write(tmp_path, config, model, tokenizer)
    check_steps(tmp_path, model, tokenizer, "greedy")
    check_steps(tmp_path, model, tokenizer, "beam")
    check_details(tmp_path, model, tokenizer)


def test_a_quantization_changes_no_weight(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config, model = random_model(tokenizer, tie_embeddings="none")
    weights = {name: tensor.numpy() for name, tensor in parameter_tensors(model).items()}
    before = deepcopy(weights)
    settings: dict[str, Any] = {"positions": POSITIONS, "quantization": "int8"}
    write_model(tmp_path, config, weights, tokenizer=tokenizer, **settings)
    assert all(np.array_equal(weights[name], before[name]) for name in before)


def test_tied_matrices_are_written_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    sizes = {}
    for tie in ("all", "decoder", "none"):
        config, model = random_model(tokenizer, tie_embeddings=tie)
        folder = tmp_path / tie
        folder.mkdir()
        write(folder, config, model, tokenizer)
        sizes[tie] = (folder / "model.bin").stat().st_size
    matrix = 4 * tokenizer.source_size * 32
    assert sizes["decoder"] - sizes["all"] == pytest.approx(matrix, abs=100)
    assert sizes["none"] - sizes["decoder"] == pytest.approx(matrix, abs=100)
