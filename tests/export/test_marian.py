import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from mt.config import DecodingConfig, ModelConfig, TokenizerConfig
from mt.data.normalization import normalize_source, normalize_target
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.engine import LENGTH_NORMALIZATIONS
from mt.decoding.load import FinishedRun, read_run
from mt.errors import UserError
from mt.export.export import ExportOptions, export_huggingface
from mt.export.hf_folder import compute_alpha, compute_exponent
from mt.export.marian import write_marian
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
FORMS = [
    *("one\xa0two\u202f three", "pil\xadlow\ufeff, \u200bten", "a \t b", "２０ ＡＢ ﾃﾞｰﾀ ﬁne 𝐁"),
    *("ộ o\u0302\u0323 o\u0323\u0302 \u1112\u1161\u11ab 한", "\u0958 \u2126 \u0344"),
]
"""Texts other than their normal form."""
VARIANTS: dict[str, dict[str, object]] = {
    "paper": {},
    "decoder tied": {"tie_embeddings": "decoder"},
    "nothing tied": {"tie_embeddings": "none"},
    "no biases": {"bias": False},
    "swish": {"feed_forward": "swish"},
    "gelu": {"feed_forward": "gelu"},
}


@pytest.fixture
def random_run(finished_run: Path) -> Callable[..., FinishedRun]:
    """Return a function that builds a run with random weights, gains and biases."""

    def make(model: ModelConfig, tokenizer: Tokenizer | None = None) -> FinishedRun:
        run = read_run(finished_run)
        tokenizer = tokenizer or run.tokenizer
        sizes = tokenizer.source_size, tokenizer.target_size
        ours = Transformer(model, source_vocabulary=sizes[0], target_vocabulary=sizes[1])
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.3)
        config = run.config.changed(model=model)
        return replace(run, config=config, weights=parameter_tensors(ours), tokenizer=tokenizer)

    return make


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_equal(
    name: str, random_run: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    run = random_run(SMALL.changed(**VARIANTS[name]))
    write_marian(run, tmp_path / "marian")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian").eval()
    ours = model_of(run)
    source = torch.tensor([[5, 6, 7, 8, 9, EOS], [9, 10, EOS, PAD, PAD, PAD]])
    target_in = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, PAD, PAD]])
    real = target_in != PAD
    with torch.no_grad():
        expected = ours(source, target_in)
        logits = theirs(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=target_in,
        ).logits[real]
    assert float(expected.std()) > 0.3
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("vocabulary", "tie"), [("joint", "all"), ("separate", "decoder")])
def test_tokens_are_equal(
    vocabulary: str, tie: str, random_run: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(
        lambda: iter([SentencePair(text, text[::-1]) for text in TEXTS]),
        tmp_path / "tokenizer",
        config=TokenizerConfig.model_validate({"vocabulary": vocabulary, "vocabulary_size": 400}),
        seed=1,
    )
    run = random_run(SMALL.changed(tie_embeddings=tie), tokenizer)
    write_marian(run, tmp_path / "marian")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "marian")
    same = tokenizer.encode_source(TEXTS[:1]) == tokenizer.encode_target(TEXTS[:1])
    assert same == (vocabulary == "joint")
    texts = [*TEXTS, *FORMS]
    source, target = tokenizer.encode_source(texts), tokenizer.encode_target(texts)
    assert theirs(texts)["input_ids"] == source
    assert theirs(text_target=texts)["input_ids"] == target
    back = theirs.batch_decode(target, skip_special_tokens=True)
    assert back == [normalize_target(text).strip() for text in texts]
    plain = [normalize_source(text) for text in texts]
    assert tokenizer.encode_source(plain) == source
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


@pytest.mark.parametrize(
    "change",
    [
        {"positional": "rotary"},
        {"residual": "deepnorm"},
        {"feed_forward": "swiglu"},
        {"d_head": 9},
        {"kv_heads": 2},
        {"heads": 3, "d_head": 4, "d_value": 4},
    ],
    ids=str,
)
def test_unsupported_models_are_refused_before_writing(
    change: dict[str, object], finished_run: Path, tmp_path: Path
) -> None:
    run, (key, value) = read_run(finished_run), next(iter(change.items()))
    config = run.config.changed(model=SMALL.changed(**change))
    with pytest.raises(UserError, match=f"`model.{key}: {value}`"):
        write_marian(replace(run, config=config), tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_an_export_records_its_parity(finished_run: Path, tmp_path: Path) -> None:
    result = export_huggingface(finished_run, tmp_path / "marian", ExportOptions())
    assert result.failure is None
    assert result.parity.identical == result.parity.sentences > 3
    assert [path.name for path in tmp_path.iterdir()] == ["marian"]
    record = json.loads((tmp_path / "marian" / "parity.json").read_text())
    assert record["identical"] == result.parity.identical
    assert record["export"]["bleu"] == result.parity.export.bleu


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_the_exponent_approximates_gnmt_at_common_lengths(alpha: float) -> None:
    exponent = compute_exponent(DecodingConfig(length_normalization="gnmt", length_penalty=alpha))
    gnmt = LENGTH_NORMALIZATIONS["gnmt"]
    for shorter, longer in ((17, 23), (15, 26)):
        ours = math.log(gnmt(longer, alpha) / gnmt(shorter, alpha))
        theirs = exponent * math.log(longer / shorter)
        assert theirs == pytest.approx(ours, rel=0.01, abs=1e-9)
    assert compute_alpha(exponent) == pytest.approx(alpha)
    average = DecodingConfig(length_normalization="average", length_penalty=alpha)
    nothing = DecodingConfig(length_normalization="none", length_penalty=alpha)
    assert (compute_exponent(average), compute_exponent(nothing)) == (1.0, 0.0)
