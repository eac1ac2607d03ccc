import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from mt.config import DecodingConfig, ModelConfig
from mt.config.tokenizer import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer, train_tokenizer
from mt.decoding.engine import LENGTH_NORMALIZATIONS
from mt.decoding.load import FinishedRun, read_run
from mt.errors import UserError
from mt.export.export import export_marian
from mt.export.marian import (
    alpha_of,
    exponent_of,
    marian_tensors,
    why_not_marian,
    write_marian,
)
from mt.model.transformer import Transformer
from mt.model.weights import parameter_tensors
from mt.special_ids import BOS, EOS, PAD
from tests.factories import engine_translations, model_of

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

SMALL = ModelConfig(d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=3)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEXTS = [
    "seven three nine one",
    "two  spaces   and  more",
    " one in front and one behind ",
    "full-width：，。！ stays",
    "emoji 👩‍🚀 and é composed, e\u0301 not",
    "</s> <pad> <unk> <s> are words here",
    "مرحبا بالعالم",
    "a\tb",
    "zero",
]
VARIANTS: dict[str, dict[str, object]] = {
    "paper": {},
    "decoder tied": {"tie_embeddings": "decoder"},
    "nothing tied": {"tie_embeddings": "none"},
    "no biases": {"bias": False},
    "swish": {"feed_forward": "swish"},
    "gelu": {"feed_forward": "gelu"},
    "grouped keys": {"kv_heads": 2},
    "narrow heads": {"d_head": 5, "d_value": 3},
    "sharp": {"attention_temperature": 0.3},
}


@pytest.fixture
def random_run(finished_run: Path) -> Callable[..., FinishedRun]:
    """Return a function that builds a run with random weights, gains and biases."""

    def make(model: ModelConfig, tokenizer: Tokenizer | None = None) -> FinishedRun:
        run = read_run(finished_run)
        tokenizer = tokenizer or run.tokenizer
        sizes = {
            "source_vocabulary": tokenizer.source_size,
            "target_vocabulary": tokenizer.target_size,
        }
        ours = Transformer(model, **sizes)
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.3)
        config = run.config.model_copy(update={"model": model})
        return replace(run, config=config, weights=parameter_tensors(ours), tokenizer=tokenizer)

    return make


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_equal(
    name: str, random_run: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    run = random_run(SMALL.model_copy(update=VARIANTS[name]))
    write_marian(run, tmp_path / "marian")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian").eval()
    ours = model_of(run)
    source = torch.tensor([[5, 6, 7, 8, 9, EOS], [9, 10, EOS, PAD, PAD, PAD]])
    target_in = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, PAD, PAD]])
    real = target_in != PAD
    with torch.no_grad():
        expected = ours(source, target_in)
        found = theirs(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=target_in,
        ).logits[real]
    assert float(expected.std()) > 0.3
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_tokens_are_equal(finished_run: Path, tmp_path: Path) -> None:
    run = read_run(finished_run)
    write_marian(run, tmp_path / "marian")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "marian")
    assert theirs(TEXTS)["input_ids"] == run.tokenizer.encode_source(TEXTS)
    back = theirs.batch_decode(run.tokenizer.encode_target(TEXTS), skip_special_tokens=True)
    assert back == [text.strip() for text in TEXTS]


def test_separate_vocabularies_have_equal_tokens(
    random_run: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(
        lambda: iter([SentencePair(text, text[::-1]) for text in TEXTS]),
        tmp_path / "tokenizer",
        config=TokenizerConfig(vocabulary="separate", vocabulary_size=400),
        seed=1,
    )
    run = random_run(SMALL.model_copy(update={"tie_embeddings": "decoder"}), tokenizer)
    write_marian(run, tmp_path / "marian")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "marian")
    assert tokenizer.encode_source(TEXTS) != tokenizer.encode_target(TEXTS)
    assert theirs(TEXTS)["input_ids"] == tokenizer.encode_source(TEXTS)
    assert theirs(text_target=TEXTS)["input_ids"] == tokenizer.encode_target(TEXTS)
    back = theirs.batch_decode(tokenizer.encode_target(TEXTS), skip_special_tokens=True)
    assert back == [text.strip() for text in TEXTS]
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian")
    assert model.get_input_embeddings().weight.shape == (tokenizer.source_size, 32)
    assert model.get_output_embeddings().weight.shape == (tokenizer.target_size, 32)


@pytest.mark.parametrize(
    "settings",
    [
        ["decoding.search=greedy"],
        ["decoding.beam=3", "decoding.length_normalization=none"],
    ],
    ids=["greedy", "beam"],
)
def test_translations_are_equal(settings: list[str], finished_run: Path, tmp_path: Path) -> None:
    # transformers has one limit for all lengths and does not split long lines.
    settings = [*settings, "decoding.max_length_ratio=0", "decoding.max_length_extra=25"]
    run = read_run(finished_run, overrides=settings)
    write_marian(run, tmp_path / "marian")
    lines = [" ".join(words) for words in itertools.product(DIGITS[::2], DIGITS[1:6], ("six", ""))]
    assert max(map(len, run.tokenizer.encode_source(lines))) <= run.longest_source
    ours = engine_translations(finished_run, lines, settings)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "marian")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian").eval()
    generated = model.generate(**tokenizer(lines, return_tensors="pt", padding=True))
    theirs = tokenizer.batch_decode(generated, skip_special_tokens=True)
    assert len(set(ours)) > 15
    assert theirs == [line.strip() for line in ours]


@pytest.mark.filterwarnings("ignore:.translation. task was used")
def test_the_translation_pipeline_loads_it(finished_run: Path, tmp_path: Path) -> None:
    if "translation" not in PIPELINE_REGISTRY.get_supported_tasks():
        pytest.skip("transformers 5 has no translation pipeline; 4 has")
    settings = ["decoding.search=greedy", "decoding.max_length_ratio=0"]
    write_marian(read_run(finished_run, overrides=settings), tmp_path / "marian")
    lines = ["one two three", "  seven </s> nine", "零 🦊"]
    translate = pipeline("translation", model=str(tmp_path / "marian"))
    found = [each["translation_text"] for each in translate(lines)]
    assert found == [line.strip() for line in engine_translations(finished_run, lines, settings)]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"positional": "rotary"}, "model.positional: rotary"),
        ({"positional": "none"}, "model.positional: none"),
        ({"norm": "rmsnorm"}, "model.norm: rmsnorm"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon: 1e-06"),
        ({"residual": "pre"}, "model.residual: pre"),
        ({"residual": "deepnorm"}, "model.residual: deepnorm"),
        ({"feed_forward": "swiglu"}, "model.feed_forward: swiglu"),
        ({"d_head": 9}, "model.d_head: 9"),
        ({"d_value": 16}, "model.d_value: 16"),
        ({"heads": 3, "d_head": 4, "d_value": 4}, "model.heads: 3"),
    ],
)
def test_unsupported_models_are_refused_before_writing(
    change: dict[str, object],
    key: str,
    random_run: Callable[..., FinishedRun],
    tmp_path: Path,
) -> None:
    run = random_run(SMALL.model_copy(update=change))
    assert f"`{key}`" in str(why_not_marian(run.config.model))
    with pytest.raises(UserError, match="^Marian cannot express `model"):
        write_marian(run, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_an_export_records_its_parity(finished_run: Path, tmp_path: Path) -> None:
    result = export_marian(finished_run, tmp_path / "marian")
    assert result.failure is None
    assert result.parity.identical == result.parity.sentences > 3
    assert [each.name for each in tmp_path.iterdir()] == ["marian"]
    kept = json.loads((tmp_path / "marian" / "parity.json").read_text())
    assert kept["identical"] == result.parity.identical
    assert kept["export"]["bleu"] == result.parity.export.bleu


def test_a_wrong_tensor_fails_the_parity(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupted(weights: dict[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
        found = marian_tensors(weights, model)
        found["model.encoder.layers.0.fc1.weight"] *= -1
        return found

    monkeypatch.setattr("mt.export.marian.marian_tensors", corrupted)
    result = export_marian(finished_run, tmp_path / "marian")
    assert "lines have equal translations" in str(result.failure)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_the_exponent_approximates_gnmt_at_common_lengths(alpha: float) -> None:
    exponent = exponent_of(DecodingConfig(length_normalization="gnmt", length_penalty=alpha))
    gnmt = LENGTH_NORMALIZATIONS["gnmt"]
    for shorter, longer in ((17, 23), (15, 26)):
        ours = math.log(gnmt(longer, alpha) / gnmt(shorter, alpha))
        theirs = exponent * math.log(longer / shorter)
        assert theirs == pytest.approx(ours, rel=0.01, abs=1e-9)
    assert alpha_of(exponent) == pytest.approx(alpha)
    average = DecodingConfig(length_normalization="average", length_penalty=alpha)
    nothing = DecodingConfig(length_normalization="none", length_penalty=alpha)
    assert (exponent_of(average), exponent_of(nothing)) == (1.0, 0.0)
