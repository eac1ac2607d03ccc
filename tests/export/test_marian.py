"""Marian folders of transformers: exported, and imported as OPUS-MT publishes them."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)

from mt.config import DecodingConfig, ModelConfig, TokenizerConfig
from mt.data.normalization import normalize_source, normalize_target
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Vocabulary
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.engine import LENGTH_NORMALIZATIONS
from mt.decoding.load import FinishedRun, read_run
from mt.errors import RunError, UserError
from mt.export.hf_folder import compute_exponent, read_search
from mt.export.marian import import_marian, write_marian
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.export.random_models import SHAPE, save_model, train_spm
from tests.factories import DIGITS, engine_translations, model_of

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

SMALL = ModelConfig(d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=3)
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
    "Marian's own": {"positional": "marian", "decoder_start": "zeros", "tie_embeddings": "none"},
    "six heads": {"d_model": 36, "heads": 6},
}


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
            input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target_in
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
    [["decoding.search=greedy"], ["decoding.beam=3", "decoding.length_normalization=none"]],
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


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_the_exponent_approximates_gnmt_at_common_lengths(alpha: float, tmp_path: Path) -> None:
    exponent = compute_exponent(DecodingConfig(length_normalization="gnmt", length_penalty=alpha))
    gnmt = LENGTH_NORMALIZATIONS["gnmt"]
    for shorter, longer in ((17, 23), (15, 26)):
        ours = math.log(gnmt(longer, alpha) / gnmt(shorter, alpha))
        theirs = exponent * math.log(longer / shorter)
        assert theirs == pytest.approx(ours, rel=0.01, abs=1e-9)
    (tmp_path / "generation_config.json").write_text(json.dumps({"length_penalty": exponent}))
    assert read_search(tmp_path, 9, {})[0].length_penalty == pytest.approx(alpha)
    average = DecodingConfig(length_normalization="average", length_penalty=alpha)
    nothing = DecodingConfig(length_normalization="none", length_penalty=alpha)
    assert (compute_exponent(average), compute_exponent(nothing)) == (1.0, 0.0)


SOURCE_WORDS = ("der", "Hund", "läuft", "schnell", "zum", "alten", "Haus", "nicht", "grün", "；")
TARGET_WORDS = ("the", "dog", "runs", "quickly", "to", "old", "house", "not", "green", "ﬁsh")
ONLY_IN_VOCABULARY = ("▁elsewhere", "▁quick", ">>deu<<", ">>zho<<")
LINES = [
    " ".join(words) for words in itertools.product(SOURCE_WORDS[:5], SOURCE_WORDS[5:], ("", "der"))
] + [">>deu<< Hund läuft", "zwei  Räume", "ﬁ → fi", "漢字", "zum >> alten << Haus", "</s> Haus"]
"""Normalization, unknown characters, a leading language, words that look like tokens."""

MakeMarian = Callable[..., Path]


@pytest.fixture
def marian(tmp_path: Path) -> MakeMarian:
    """Return a function that saves a random Marian in the layout of OPUS-MT."""

    def make(
        algorithm: str = "unigram", bias: bool = True, taught: bool = False, **changes: Any
    ) -> Path:
        folder = tmp_path / "opus"
        folder.mkdir()
        words = {"source": SOURCE_WORDS, "target": TARGET_WORDS}
        tokens = [train_spm(folder / f"{side}.spm", words[side], algorithm, 55) for side in words]
        # The last source token is missing from the vocabulary, as in real folders.
        known = sorted({*tokens[0][:-1], *tokens[1], *ONLY_IN_VOCABULARY})
        names = ["</s>", "<unk>", *known, "<pad>"]
        ids = {token: index for index, token in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        described = {"source_lang": "deu", "target_lang": "eng"}
        described["tokenizer_class"] = "MarianTokenizer"
        model = MarianMTModel(_config(len(ids), **changes))
        if bias:
            nn.init.normal_(model.final_logits_bias, 0.0, 1.0)
        save_model(model, folder, described, range(2, len(ids) - 1) if taught else None)
        return folder

    return make


def _config(vocabulary: int, **changes: Any) -> MarianConfig:
    settings = {
        "vocab_size": vocabulary,
        **SHAPE,
        "pad_token_id": vocabulary - 1,
        "eos_token_id": 0,
        "decoder_start_token_id": vocabulary - 1,
        "forced_eos_token_id": None,
        "activation_function": "swish",
        "scale_embedding": True,
    }
    return MarianConfig(**{**settings, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": False},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"scale_embedding": False},
        {"activation_function": "relu"},
    ],
    ids=lambda changes: "-".join(changes) or "as OPUS-MT",
)
def test_log_probabilities_are_equal(
    changes: dict[str, Any], marian: MakeMarian, tmp_path: Path
) -> None:
    folder = marian(**changes)
    import_marian(folder, tmp_path / "run")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    run = read_run(tmp_path / "run")
    rows = _rows(run.tokenizer.target, folder)
    target = [run.tokenizer.target.processor.piece_to_id(f"▁{word}") for word in ("dog", "runs")]
    with torch.no_grad():
        source = torch.tensor(run.tokenizer.encode_source(["Hund läuft nicht"]))
        ours = model_of(run)(source, torch.tensor([[BOS, *target]])).log_softmax(-1)
        encoded = AutoTokenizer.from_pretrained(folder)(["Hund läuft nicht"], return_tensors="pt")
        prefix = torch.tensor([[rows[index] for index in (BOS, *target)]])
        log_probs = theirs(**encoded, decoder_input_ids=prefix).logits[0].log_softmax(-1)
    assert float(log_probs.std()) > 0.5
    compared = [index for index in range(len(rows)) if index != PAD]
    expected = log_probs[:, [rows[index] for index in compared]]
    torch.testing.assert_close(ours[:, compared], expected, atol=2e-5, rtol=1e-5)
    assert float(ours[:, PAD].max()) < -50  # PAD and BOS share one row of Marian


SEARCHES: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": 0.0},
    {"num_beams": 4},
)


def test_imported_translations_are_equal(marian: MakeMarian, tmp_path: Path) -> None:
    folder = marian(taught=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    pad, unk = tokenizer.pad_token_id, tokenizer.unk_token_id
    special = {"decoder_start_token_id": pad, "pad_token_id": pad, "eos_token_id": 0}
    lines = LINES[:-1]  # transformers ends a text at `</s>`
    encoded = tokenizer(lines, return_tensors="pt", padding=True)
    for index, search in enumerate(SEARCHES):
        settings = GenerationConfig(max_length=20, suppress_tokens=[pad, unk], **special, **search)
        settings.save_pretrained(folder)
        run = tmp_path / str(index)
        assert import_marian(folder, run).notes == ()
        generated = model.generate(**encoded, generation_config=settings)
        theirs = tokenizer.batch_decode(generated, skip_special_tokens=True)
        ours = engine_translations(run, lines)
        assert len({*ours}) > 20
        same = sum(line.strip() == other for line, other in zip(ours, theirs, strict=True))
        # With averaged scores transformers searches longer and sometimes finds another hypothesis.
        exact = search["num_beams"] == 1 or search.get("length_penalty") == 0.0
        assert same >= (len(lines) if exact else 0.9 * len(lines))


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_imported_tokens_are_equal(algorithm: str, marian: MakeMarian, tmp_path: Path) -> None:
    folder = marian(algorithm)
    import_marian(folder, tmp_path / "run")
    run = read_run(tmp_path / "run")
    theirs = MarianTokenizer.from_pretrained(folder, split_special_tokens=True)
    rows = _rows(run.tokenizer.source, folder)
    ours = [[rows[index] for index in ids] for ids in run.tokenizer.encode_source(LINES)]
    assert ours == theirs(LINES)["input_ids"]
    english = [" ".join(words) for words in itertools.permutations(TARGET_WORDS, 2)]
    rows = _rows(run.tokenizer.target, folder)
    ours = [[rows[index] for index in ids] for ids in run.tokenizer.encode_target(english)]
    assert ours == theirs(text_target=english)["input_ids"]
    texts = {row: run.tokenizer.decode_target([index]) for index, row in enumerate(rows)}
    ids = theirs.get_vocab()
    assert texts[ids["▁elsewhere"]] == "elsewhere"
    assert texts[ids["▁dog"]] == "dog"


def test_languages_are_given_where_the_folder_has_none(marian: MakeMarian, tmp_path: Path) -> None:
    folder = marian()
    path = folder / "tokenizer_config.json"
    stated = json.loads(path.read_text())
    path.write_text(json.dumps(stated | {"source_lang": "deu", "target_lang": None}))
    import_marian(folder, tmp_path / "none")
    import_marian(folder, tmp_path / "run", source="de", target="eng_Latn")
    pairs = [str(read_run(tmp_path / name).config.direction) for name in ("none", "run")]
    assert pairs == ["deu to und", "de to eng-Latn"]
    for source, target in (("fr", "en"), (None, "jp")):
        with pytest.raises(UserError):
            import_marian(folder, tmp_path / "other", source=source, target=target)


def test_unsupported_models_are_refused_and_leave_no_files(
    marian: MakeMarian, tmp_path: Path
) -> None:
    folder = marian()
    for name, change, message in (
        ("config", {"model_type": "bart"}, "`model_type`"),
        ("config", {"vocab_size": 10**12}, "config.json gives"),
        ("vocab", {">>xyz<<": 999}, "more ids than"),
    ):
        path = folder / f"{name}.json"
        content = path.read_text()
        path.write_text(json.dumps({**json.loads(content), **change}))
        with pytest.raises(RunError, match=message):
            import_marian(folder, tmp_path / "run")
        path.write_text(content)
    assert [path.name for path in tmp_path.iterdir()] == ["opus"]


def _rows(vocabulary: Vocabulary, folder: Path) -> list[int]:
    """Return Marian's id of each token, matched by text."""
    ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    texts = [vocabulary.processor.id_to_piece(index) for index in range(len(vocabulary))]
    special = {PAD: ids["<pad>"], UNK: ids["<unk>"], BOS: ids["<pad>"], EOS: ids["</s>"]}
    languages = {f"▁{text}": index for text, index in ids.items() if text[0] == ">"}
    return [
        special.get(index, {**languages, **ids}.get(text, ids["<unk>"]))
        for index, text in enumerate(texts)
    ]
