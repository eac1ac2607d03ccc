"""M2M-100 and NLLB-200 folders of transformers, imported and exported again."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from mt.data.sentencepiece_model import read_tokens
from mt.decoding.load import read_run
from mt.decoding.scoring import score_windows
from mt.decoding.translator import Translator
from mt.errors import ConfigError
from mt.export.export import ExportOptions, export_huggingface
from mt.export.m2m100 import import_m2m100
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.export.random_models import SHAPE, pad_rows, save_model, train_spm
from tests.factories import Refused, contents, export_run, journal, model_of, train_with
from tests.training.killed_training import outcome
from tests.training.test_resume import train_until

WORDS = ("der", "Hund", "läuft", "schnell", "zum", "alten", "Haus", "nicht", "grün", "the", "dog",
         "runs", "quickly", "old", "house", "green", "ﬁsh", "кот", "бежит", "быстро")  # fmt: skip
LINES = [" ".join(words) for words in itertools.product(WORDS[:4], WORDS[5:10], ("", "кот"))]
ODD = ["zwei  Räume", "ﬁ → fi", "漢字", "deu_Latn __de__ </s> <mask>", " Haus "]
"""Normalization, unknown characters, words that look like tokens, spaces at the ends."""
NLLB = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn"]
TO_THEIRS = {PAD: 1, UNK: 3, BOS: 0, EOS: 2}
NEVER_GENERATED = [0, 1, 3]

Make = Callable[..., Path]
disable_progress_bar()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that saves a random model in the layout of NLLB-200 or M2M-100."""

    def build(
        kind: str = "nllb", algorithm: str = "bpe", taught: bool = False, **keys: Any
    ) -> Path:
        folder = tmp_path / "theirs"
        folder.mkdir()
        texts = train_spm(folder / "sentencepiece.bpe.model", WORDS, algorithm, 100)
        described: dict[str, object] = {"src_lang": "deu_Latn", "tgt_lang": "eng_Latn"}
        described["tokenizer_class"] = "NllbTokenizer"
        if kind == "m2m":
            names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(texts), "▁elsewhere"]
            ids = {name: index for index, name in enumerate(names)}
            (folder / "vocab.json").write_text(json.dumps(ids))
            described = {"src_lang": "de", "tgt_lang": "en", "tokenizer_class": "M2M100Tokenizer"}
            rows = len(ids) + 100 + 8
        else:
            names = [*NLLB, "<mask>"]
            flags = {"normalized": False, "rstrip": False, "single_word": False, "special": True}
            described["added_tokens_decoder"] = {
                str(row): {"content": name, "lstrip": name == "<mask>", **flags}
                for row, name in enumerate(names, start=len(texts) + 4)
            }
            described["extra_special_tokens"] = NLLB
            described["legacy_behaviour"] = kind == "early nllb"
            rows = len(texts) + 4 + len(names) + 2
        torch.manual_seed(3)
        model = M2M100ForConditionalGeneration(_config(rows, **keys)).eval()
        save_model(model, folder, described, range(4, rows) if taught else None)
        return folder

    return build


def _config(vocabulary: int, **changes: Any) -> M2M100Config:
    no_drop = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    return M2M100Config(**{"vocab_size": vocabulary, **SHAPE, **no_drop, **changes})


def _theirs(token_ids: Sequence[int]) -> list[int]:
    return [TO_THEIRS.get(token_id, token_id) for token_id in token_ids]


def _load(folder: Path) -> M2M100ForConditionalGeneration:
    return M2M100ForConditionalGeneration.from_pretrained(folder).eval()


CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "m2m", "encoder_layers": 3, "decoder_layers": 1, "d_model": 48,
     "activation_function": "gelu", "encoder_attention_heads": 6, "decoder_attention_heads": 6},
    {"kind": "early nllb", "d_model": 20, "encoder_attention_heads": 2,
     "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 3},
)  # fmt: skip


@pytest.mark.parametrize("keys", CONFIGURATIONS, ids=lambda keys: keys.get("kind", "nllb"))
def test_tokens_and_logits_are_equal(keys: dict[str, Any], make: Make, tmp_path: Path) -> None:
    folder = make(**keys)
    assert import_m2m100(folder, tmp_path / "run").notes == ()
    run, tokenizer = read_run(tmp_path / "run"), AutoTokenizer.from_pretrained(folder)
    ours = Translator.load(tmp_path / "run").tokenizer
    lines = [line.strip() for line in LINES]
    source, target = ours.encode_source(lines), ours.encode_target(lines)
    assert [*map(_theirs, source)] == tokenizer(lines)["input_ids"]
    if keys.get("kind") == "early nllb":
        assert source[0][-2] == EOS
    else:
        assert [*map(_theirs, target)] == tokenizer(text_target=lines)["input_ids"]
    assert [ours.decode_target(ids) for ids in target] == lines
    target = [ids[:-1] for ids in target]
    inputs = pad_rows([*map(_theirs, source)], 1)
    prefixes = pad_rows([[2, *_theirs(ids)] for ids in target], 1)
    with torch.no_grad():
        real = pad_rows([[BOS, *ids] for ids in target], PAD)
        result = model_of(run)(pad_rows(source, PAD), real)
        mask = inputs != 1
        expected = _load(folder)(inputs, attention_mask=mask, decoder_input_ids=prefixes).logits
    expected = expected[prefixes != 1][:, _theirs(range(expected.shape[-1]))]
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(result, expected, atol=5e-5, rtol=1e-5)


def test_translations_are_equal(make: Make, tmp_path: Path) -> None:
    folder = make(taught=True)
    run, model = tmp_path / "run", _load(folder)
    import_m2m100(folder, run)
    translator = Translator.load(run)
    lines, prefix = LINES[:16], translator.tokenizer.target_prefix
    source = translator.tokenizer.encode_source(lines)
    inputs = pad_rows([*map(_theirs, source)], 1)

    def search(**keys: Any) -> list[list[int]]:
        decoding = translator.decoding.changed(max_length_ratio=0.0, max_length_extra=19, **keys)
        prefixes = [prefix] * len(source)
        hypotheses = translator.engine.translate_ids(source, decoding, prefixes=prefixes)
        return [_theirs(hypothesis.ids) for hypothesis in hypotheses]

    # transformers stops its beams by another rule unless scores are sums.
    for theirs, ours in (
        ({"num_beams": 1}, {"search": "greedy"}),
        (
            {"num_beams": 5, "length_penalty": 0.0},
            {"search": "beam", "beam": 5, "length_normalization": "none"},
        ),
    ):
        generated = model.generate(
            inputs,
            attention_mask=inputs != 1,
            max_length=20,
            forced_bos_token_id=prefix[0],
            suppress_tokens=NEVER_GENERATED,
            **theirs,
        )
        expected = [[token_id for token_id in row if token_id > 3] for row in generated.tolist()]
        assert search(**ours) == expected
        assert len({*map(tuple, expected)}) > 10


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("nllb", "unigram"), ("early nllb", "bpe"), ("m2m", "bpe")]
)
def test_an_import_is_exported_as_it_was(
    kind: str, algorithm: str, make: Make, tmp_path: Path
) -> None:
    folder, run, again = make(kind, algorithm), tmp_path / "run", tmp_path / "again"
    import_m2m100(folder, run)
    sample, exported = tmp_path / "sample.txt", tmp_path / "exported"
    sample.write_text("\n".join(LINES[:4]))
    options, folders = ExportOptions(sample=sample, device="cpu"), (folder, exported)
    assert export_run(run, exported, options, export_huggingface).failure is None
    assert json.loads((exported / "parity.json").read_text())["identical"] == 4
    tensors, back = (load_file(path / "model.safetensors") for path in folders)
    assert tensors.keys() == back.keys()
    assert all(torch.equal(tensors[name], back[name]) for name in tensors)
    before, after = (
        sentencepiece.SentencePieceProcessor(str(path / "sentencepiece.bpe.model"))
        for path in folders
    )
    for line in (*LINES, *ODD):
        assert before.encode(line, out_type=str) == after.encode(line, out_type=str)
    tokens = [[*read_tokens(spm.serialized_model_proto())] for spm in (before, after)]
    if kind == "m2m":  # in the order of vocab.json
        tokens = [sorted(side) for side in tokens]
        entries, same = (json.loads((path / "vocab.json").read_text()) for path in folders)
        assert entries == same
    assert tokens[0] == tokens[1]
    if algorithm == "bpe":  # the tokenizer of transformers for NLLB knows no other
        theirs, ours = map(AutoTokenizer.from_pretrained, folders)
        assert theirs.get_vocab() == ours.get_vocab()
        assert theirs(LINES)["input_ids"] == ours(LINES)["input_ids"]
        assert theirs(text_target=LINES)["input_ids"] == ours(text_target=LINES)["input_ids"]
    import_m2m100(exported, again)
    one, other = read_run(run), read_run(again)
    assert one.tokenizer.fingerprint == other.tokenizer.fingerprint
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert export_run(run, tmp_path / "fast", options).failure is None
    both = Translator.load(run), Translator.load(tmp_path / "fast")
    assert both[0].translate(LINES[:4]) == both[1].translate(LINES[:4])


def test_half_precision_in_several_files(make: Make, tmp_path: Path) -> None:
    folder = make()
    expected = {
        name: t.bfloat16().float() for name, t in load_file(folder / "model.safetensors").items()
    }
    model = _load(folder).bfloat16()
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    import_m2m100(folder, tmp_path / "run")
    weights = read_run(tmp_path / "run").weights
    shared = expected.pop("model.shared.weight")
    assert torch.equal(weights["target_embedding.weight"], shared[_theirs(range(len(shared)))])
    assert sorted(t.sum().item() for t in expected.values()) == sorted(
        t.sum().item() for name, t in weights.items() if "embedding" not in name
    )


@pytest.mark.parametrize(("kind", "algorithm"), [("nllb", "bpe"), ("m2m", "unigram")])
def test_pruning_keeps_tokens_and_logits_of_the_sample(
    kind: str, algorithm: str, make: Make, tmp_path: Path
) -> None:
    folder = make(kind, algorithm)
    german = [" ".join(words) for words in itertools.permutations(WORDS[:9], 2)]
    (tmp_path / "sample.txt").write_text("\n".join(german))
    import_m2m100(folder, tmp_path / "full")
    codes = ("deu_Latn", "eng_Latn") if kind == "nllb" else ("de", "en")
    imported = import_m2m100(
        folder, tmp_path / "run", languages=codes, samples=[tmp_path / "sample.txt"]
    )
    full, run = Translator.load(tmp_path / "full"), Translator.load(tmp_path / "run")
    before, after = (translator.tokenizer.target for translator in (full, run))
    note = imported.notes[-1]
    assert note.startswith(f"{len(before):,} tokens, ")
    assert note.endswith(f"; kept: {len(after):,} tokens")
    assert len(after) < len(before) - 20
    assert before.algorithm == after.algorithm == algorithm
    names = [after.processor.id_to_piece(token_id) for token_id in range(len(after))]
    rows = [before.processor.piece_to_id(name) for name in names]
    for line in german:
        ids = run.tokenizer.encode_source([line])[0]
        assert [rows[token_id] for token_id in ids] == full.tokenizer.encode_source([line])[0]
    assert {"x", "G"} & {*names} == {"x", "G"} & {*before.texts().values()}  # Latin letters
    assert "к" not in names
    assert ("fra_Latn" in names, "__fr__" in names) == (False, kind == "m2m")
    source = run.tokenizer.encode_source(german[:3])
    target = run.tokenizer.encode_target(german[:3])
    with torch.no_grad():
        result = model_of(read_run(tmp_path / "run"))(
            pad_rows(source, PAD), pad_rows([[BOS, *ids[:-1]] for ids in target], PAD)
        )
        expected = model_of(read_run(tmp_path / "full"))(
            pad_rows([[rows[token_id] for token_id in ids] for ids in source], PAD),
            pad_rows([[BOS, *(rows[token_id] for token_id in ids[:-1])] for ids in target], PAD),
        )
    torch.testing.assert_close(result, expected[:, rows], atol=1e-5, rtol=1e-5)
    if algorithm == "bpe":
        options = ExportOptions(sample=tmp_path / "sample.txt")
        export_run(tmp_path / "run", tmp_path / "small", options, export_huggingface)
        theirs = AutoTokenizer.from_pretrained(tmp_path / "small")
        assert theirs(german)["input_ids"] == [*map(_theirs, run.tokenizer.encode_source(german))]


def _edit(name: str, **changes: object) -> Callable[[Path], None]:
    """Return a function that changes keys of a JSON file of a folder."""

    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _lose_shard(folder: Path) -> None:
    _load(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    next(folder.glob("model-*.safetensors")).unlink()


def _pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _add_text(folder: Path) -> None:
    names = enumerate([*NLLB, "<mask>", "Katze"])
    tokens = [{"id": 104 + row, "content": name, "special": row < 4} for row, name in names]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))


SPM = "sentencepiece.bpe.model"
OTHER_SPM = '{"model": {"vocab": {"▁": 9}}}'
SAMPLE = ("--sample", "sample.txt")
FAULTS: tuple[tuple[Callable[[Path], object], tuple[str, ...], str], ...] = (
    (_edit("config.json", model_type="m2m_10"), (), "did you mean `m2m_100`?"),
    (_edit("config.json", bos_token_id=5), (), "`bos_token_id`"),
    (_edit("config.json", decoder_ffn_dim=41), (), "`encoder_ffn_dim`"),
    (_edit("config.json", vocab_size=10**12), (), "[1000000000000, 32]"),
    (_edit("config.json", encoder_layers=3), (), "`model.encoder"),
    (
        _edit("tokenizer_config.json", added_tokens_decoder={"999": {"content": "fra_Latn"}}),
        (),
        "`fra_Latn` has the id 999",
    ),
    (_edit("tokenizer_config.json", added_tokens_decoder={}), (), "name no language"),
    (_lose_shard, (), "`model-000"),
    (_pickle, (), "`pytorch_model.bin`"),
    (_cut, (), "model.safetensors: damaged"),
    (lambda folder: (folder / SPM).write_bytes(b"\xff" * 9), (), SPM),
    (lambda folder: (folder / SPM).unlink(), (), f"{SPM}: missing"),
    (lambda folder: (folder / "tokenizer.json").write_text(OTHER_SPM), (), f"{SPM}: is of another"),
    (_add_text, (), "`Katze`"),
    (Path.is_dir, ("--target-language", "deu_Latn"), "`deu_Latn` is the source and the target"),
    (Path.is_dir, ("--target-language", "cn"), "`cn` is a country"),
    (Path.is_dir, ("--languages", "deu_Latn,fra", *SAMPLE), "did you mean `fra_Latn`?"),
    (Path.is_dir, ("--languages", "deu_Latn,fra_Latn", *SAMPLE), "lacks `eng_Latn`"),
)


@pytest.mark.parametrize(("damage", "options", "named"), FAULTS)
def test_a_fault_is_one_line_and_leaves_no_run(
    damage: Callable[[Path], object],
    options: tuple[str, ...],
    named: str,
    make: Make,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = make()
    damage(folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.txt").write_text("der Hund\n")
    before = contents(tmp_path)
    assert named in refused("import", folder, "--run", "run", *options)
    assert contents(tmp_path) == before


RECIPE = """
data:
  source_language: deu
  target_language: eng
  train: {{source: {0}/train.de, target: {0}/train.en, tag: deu_Latn, target_tag: eng_Latn}}
  valid: {{source: {0}/train.de, target: {0}/train.en, tag: deu_Latn, target_tag: eng_Latn}}
tokenizer: {{subword_dropout: [0.1, 0.1]}}
training: {{init_from: {0}/run, max_updates: 40, target_tokens_per_update: 300, warmup_updates: 10,
  learning_rate: 1.0e-2, schedule: inverse_sqrt, validate_every: 20, device: cpu, average: best,
  max_tokens_per_batch: 400}}
decoding: {{search: beam, beam: 2, max_length_ratio: 1.0, max_length_extra: 6, tag: deu_Latn,
  target_tag: eng_Latn}}
"""


def test_a_pruned_import_learns_resumes_exports_and_serves_other_languages(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    german, english = WORDS[:6], WORDS[9:15]
    rows = [*itertools.permutations(range(len(german)), 3)]
    for side, words in (("de", german), ("en", english)):
        lines = [" ".join(words[token_id] for token_id in row) for row in rows]
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n")
    samples = tmp_path / "train.de", tmp_path / "train.en"
    languages = ("deu_Latn", "eng_Latn", "fra_Latn")
    import_m2m100(make(), tmp_path / "run", languages=languages, samples=samples)
    recipe, run = tmp_path / "tuned.yaml", tmp_path / "tuned"
    recipe.write_text(RECIPE.format(tmp_path))
    train_with(recipe, run)
    losses = [event["loss"] for event in journal(run, "validation")]
    assert losses[-1] < 0.7 * losses[0]
    train_until(recipe, tmp_path / "again", 27, "SIGTERM")
    train_with(recipe, tmp_path / "again")
    assert outcome(run) == outcome(tmp_path / "again")
    assert export_run(run, tmp_path / "fast", ExportOptions(device="cpu")).failure is None
    again = tmp_path / "theirs again"
    assert export_run(run, again, ExportOptions(), export_huggingface).failure is None
    translator = Translator.load(run)
    ids = translator.tokenizer.target_prefix
    (begun,) = translator.stream(["der Hund"], prefixes=["the"])
    the = translator.tokenizer.target.encode(["the"])[0][0]
    assert begun.alternatives[0].ids[:2] == (*ids, the)
    (scored,) = score_windows(translator, *samples, range(0, 1))
    assert scored[0].tokens[0] == "eng_Latn"
    french = Translator.load(run, overrides=["decoding.target_tag=fra_Latn"])
    assert str(french.direction) == "deu-Latn to fra-Latn"
    assert french.tokenizer.target_prefix != ids
    with pytest.raises(ConfigError):
        Translator.load(run, overrides=["decoding.target_tag=ace_Arab"])
