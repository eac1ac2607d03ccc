"""`mt selftest batches`: that it sees neighbours who matter, and forgives ties alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.errors import DataError, RunError
from mt.selftest.batches import BatchProof, Difference, selftest_batches

Program = Callable[..., tuple[int, str, str]]
WAYS = ("batches of 1", "batches of 7", "batches of 64", "batches of 64 in another order")


def test_a_sound_engine_passes(finished_run: Path, program: Program) -> None:
    status, out, _ = program("selftest", "batches", str(finished_run), "--device", "cpu")
    assert status == 0
    assert out.startswith("batches: ok, ")
    assert out.endswith(f"sentences, the same translations: {', '.join(WAYS)}\n")


def test_sentences_come_from_the_file_and_no_more_than_asked(
    finished_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "text"
    file.write_text("one two\n\n \nthree\nfour five six\n", encoding="utf-8")
    assert selftest_batches(finished_run, file, most=1000).sentences == 3
    assert selftest_batches(finished_run, file, most=2).sentences == 2
    file.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no sentence"):
        selftest_batches(finished_run, file, most=1000)
    with pytest.raises(DataError, match="missing"):
        selftest_batches(finished_run, tmp_path / "missing", most=1000)
    with pytest.raises(RunError, match="no such run folder"):
        selftest_batches(tmp_path / "missing", None, most=1000)


@pytest.mark.parametrize(("by", "passed"), [(0.5, False), (1e-6, True)])
def test_an_engine_that_looks_at_neighbours_is_found_out(
    by: float, passed: bool, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of seven it says something else of the third sentence."""
    n_best_ids = TorchEngine.n_best_ids

    def looking(
        self: TorchEngine,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        **named: Any,
    ) -> list[list[Hypothesis]]:
        found = n_best_ids(self, sources, decoding, count, **named)
        if decoding.batch_size == 7:
            other = found[2][0]
            found[2] = [replace(other, ids=(*other.ids, 9), score=other.score - by)]
        return found

    monkeypatch.setattr(TorchEngine, "n_best_ids", looking)
    proof = selftest_batches(finished_run, None, most=20)
    assert proof.ways == WAYS
    assert [(each.line_number, each.way) for each in proof.differences] == [(3, "batches of 7")]
    assert proof.passed is passed
    tie = ", a tie" if passed else ""
    assert f"  line 3, batches of 7: scores {proof.differences[0].scores[0]:.6f}" in proof.text
    assert proof.text.endswith(tie)


def test_one_tie_in_a_thousand_is_forgiven() -> None:
    def proof(sentences: int, lines: list[int]) -> BatchProof:
        ties = [Difference(line, "batches of 7", (-1.0, -1.000001)) for line in lines]
        return BatchProof(sentences, WAYS, tuple(ties))

    assert proof(10, [1, 1, 1]).passed
    assert not proof(1999, [1, 2]).passed
    assert proof(2000, [1, 2]).passed
