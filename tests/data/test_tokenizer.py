import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt.config import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer, copy_tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import RunError
from tests.factories import flip_bit

PAIRS = [
    SentencePair(f"the {animal} sleeps", f"{tier} schläft")
    for animal, tier in [("dog", "der Hund"), ("cat", "die Katze"), ("horse", "das Pferd")]
]
SMALL = TokenizerConfig(vocabulary_size=340)


def pairs() -> Iterator[SentencePair]:
    return iter(PAIRS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train_tokenizer(pairs, tmp_path / "run" / "tokenizer", config=SMALL)
    return tmp_path / "run" / "tokenizer"


def test_joint_tokenizer_has_one_vocabulary(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["joint.model", "tokenizer.json"]
    assert tokenizer.source_size == tokenizer.target_size == len(tokenizer.source)
    assert {b" dog", b" Hund"} <= set(tokenizer.source.token_bytes)
    for pair in PAIRS:
        assert tokenizer.decode_source(tokenizer.encode_source([pair.source])[0]) == pair.source
        assert tokenizer.decode_target(tokenizer.encode_target([pair.target])[0]) == pair.target


def test_translations_have_no_invalid_bytes(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    (ids,) = tokenizer.encode_target(["der Hund"])
    byte = next(i for i, token in enumerate(tokenizer.target.token_bytes) if token == b"\xe4")
    assert tokenizer.decode_target([ids[0], byte, *ids[1:]]) == "der Hund"
    assert tokenizer.target.has_invalid_bytes([byte, *ids])
    assert not tokenizer.target.has_invalid_bytes([ids[0], *tokenizer.encode_target(["€"])[0]])


def test_separate_tokenizer_has_a_vocabulary_for_each_side(tmp_path: Path) -> None:
    config = TokenizerConfig(vocabulary_size=400, vocabulary="separate")
    tokenizer = train_tokenizer(pairs, tmp_path, config=config)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"source.model", "target.model", "tokenizer.json"}
    assert b" dog" in tokenizer.source.token_bytes
    assert b" dog" not in tokenizer.target.token_bytes
    assert b" Hund" in tokenizer.target.token_bytes
    (ids,) = tokenizer.encode_target(["der Hund"])
    assert tokenizer.decode_target(ids) == "der Hund"
    again = Tokenizer.load(tmp_path)
    assert again.encode_source(["the dog"]) == tokenizer.encode_source(["the dog"])


def test_fingerprint_identifies_the_models(tmp_path: Path) -> None:
    other = SMALL.model_copy(update={"algorithm": "unigram"})
    one, same, another = (
        train_tokenizer(pairs, tmp_path / name, config=config)
        for name, config in (("a", SMALL), ("b", SMALL), ("c", other))
    )
    assert len(one.fingerprint) == 64
    assert one.fingerprint == same.fingerprint == Tokenizer.load(tmp_path / "a").fingerprint
    assert one.fingerprint != another.fingerprint


@pytest.mark.parametrize("inside", ["", "tokenizer"], ids=["run folder", "tokenizer folder"])
def test_tokenizer_is_copied_from_run_or_tokenizer_folder(
    folder: Path, tmp_path: Path, inside: str
) -> None:
    copied = copy_tokenizer(folder.parent / inside, tmp_path / "copy")
    assert copied.fingerprint == Tokenizer.load(folder).fingerprint
    for path in folder.iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(RunError):
            copy_tokenizer(place, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_damaged_or_missing_model_file_is_named(folder: Path) -> None:
    flip_bit(folder / "joint.model", 1000)
    with pytest.raises(RunError, match=r"joint\.model: "):
        copy_tokenizer(folder, folder / "copy")
    (folder / "joint.model").unlink()
    with pytest.raises(RunError):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    "manifest",
    [
        *(b"", b"\xff", b"[]", b"{}"),
        b'{"format": 1, "sha256": 3}',
        b'{"format": 2, "sha256": {"joint.model": "0"}}',
        b'{"format": 1, "sha256": {"../joint.model": "0"}}',
        b'{"format": 1, "sha256": {}}',
    ],
)
def test_damaged_or_foreign_manifest_is_an_error(folder: Path, manifest: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(manifest)
    with pytest.raises(RunError, match=r"tokenizer\.json: ") as caught:
        Tokenizer.load(folder)
    assert "\n" not in str(caught.value)


def test_foreign_model_is_rejected(folder: Path) -> None:
    (folder / "joint.model").write_bytes(b"not a model")
    sums = {"joint.model": hashlib.sha256(b"not a model").hexdigest()}
    (folder / "tokenizer.json").write_text(json.dumps({"format": 1, "sha256": sums}))
    with pytest.raises(RunError):
        Tokenizer.load(folder)


def test_interrupted_training_leaves_no_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mt.data.tokenizer.write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(pairs, tmp_path, config=SMALL)
    with pytest.raises(RunError):
        Tokenizer.load(tmp_path)
