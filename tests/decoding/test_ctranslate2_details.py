"""What an exported model tells of its translations is what its run tells."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.decoding import ctranslate2_engine as ctranslate2_details
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.engine import Hypothesis, TokenDetails
from mt.decoding.load import read_run
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.export.ctranslate2 import write_model
from mt.export.export import export_ctranslate2
from mt.special_ids import EOS

Program = Callable[..., tuple[int, str, str]]
LONG = " ".join(["one two three four five six"] * 10)
LINES = f"one two three four\n\n  seven nine 🦊\n{LONG}\nzero\n"


@pytest.fixture(scope="module")
def folder(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exports") / "ct2"
    assert export_ctranslate2(finished_run, output, device="cpu").failure is None
    return output


@pytest.fixture
def engine(folder: Path) -> CTranslate2Engine:
    engine = load_translator(folder, device="cpu").engine
    assert isinstance(engine, CTranslate2Engine)
    return engine


def test_json_is_that_of_the_run(folder: Path, finished_run: Path, program: Program) -> None:
    def translated(place: Path) -> list[dict[str, Any]]:
        # Greedy: so weak a model has beams that nearly tie.
        options = ("--json", "--device", "cpu", "--set", "decoding.search=greedy")
        status, out, _ = program("translate", place, *options, stdin=LINES.encode())
        assert status == 0
        return [json.loads(line) for line in out.splitlines()]

    ours, theirs = translated(finished_run), translated(folder)
    assert len(ours) == len(theirs) == 5
    assert len(ours[3]["token_log_probs"]) == len(ours[3]["tokens"]) > 20, "a line in parts"
    for one, other in zip(theirs, ours, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"score", "log_prob", "token_log_probs", "alternatives"}:
            assert one[key] == other[key], key
        for key in ("score", "log_prob", "token_log_probs"):
            assert one[key] == pytest.approx(
                other[key], abs=1e-3 if key != "token_log_probs" else 1e-4
            )
    assert sum(len(each["alignment"]) for each in ours) > 20


def test_the_batch_changes_nothing(
    engine: CTranslate2Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [[20, 21, EOS], [22, EOS], [*range(30, 60), EOS], [23, 24, EOS]]
    targets = [(25,), tuple(range(60, 100)), (26, 27, 28), ()]
    found = [Hypothesis(ids, 0.0, 0.0, finished=True) for ids in targets]
    together = engine.explain(sources, found)
    assert together[3] == TokenDetails((), ())
    monkeypatch.setattr(ctranslate2_details, "_POSITIONS_AT_ONCE", 1)
    alone = engine.explain(sources, found)
    for one, other, ids in zip(together, alone, targets, strict=True):
        assert len(one.log_probs) == len(ids)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert one.alignment == other.alignment


def test_long_sources_are_not_cut(finished_run: Path, tmp_path: Path) -> None:
    """CTranslate2 by itself reads 1,024 tokens."""
    run, ours = read_run(finished_run), load_translator(finished_run, device="cpu").engine
    assert isinstance(ours, TorchEngine)
    weights = {name: tensor.numpy() for name, tensor in run.weights.items()}
    write_model(
        tmp_path, run.config.model, weights, tokenizer=run.tokenizer, positions=1200,
        quantization=None,
    )  # fmt: skip
    theirs = CTranslate2Engine(tmp_path, device="cpu", tokenizer=run.tokenizer, positions=1200)
    source, target = [*([20] * 1030), *range(25, 60), EOS], [29, 30, 31, 32, EOS]
    [short], [found] = (theirs.score([some], [target]) for some in ([*source[:1023], EOS], source))
    assert found == pytest.approx(ours.score([source], [target])[0], abs=1e-4)
    assert found != pytest.approx(short, abs=1e-4), "nothing was put to the test"
    hypothesis = Hypothesis(tuple(target[:-1]), 0.0, 0.0, finished=True)
    [details], [expected] = (each.explain([source], [hypothesis]) for each in (theirs, ours))
    assert details.attention is not None
    assert details.attention == pytest.approx(expected.attention, abs=1e-4)


def test_no_torch_is_needed(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two\nthree\n")
    code = (
        "import sys; from mt.decoding.translator import load_translator; from pathlib import Path;"
        "from mt.decoding.files import as_json; from mt.decoding.scoring import score_files;"
        "translator = load_translator(Path(sys.argv[1]));"
        "lines = list(as_json(list(translator.stream(['one two'])), translator));"
        "text = Path(sys.argv[2]);"
        "print(len(lines), len(list(score_files(Path(sys.argv[1]), sources=text, targets=text))));"
        "print(sorted({'torch', 'datasets', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1 2\n[]\n", done.stderr
