"""A recipe reproduced to its last line: what was published, held against what was measured."""

import shutil
from pathlib import Path

from mt.config.loading import load_config
from mt.experiments.reproduce import reproduce


def test_it_ends_with_the_published_scores_of_each_split(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    """They may be added to a finished run, and decide nothing."""
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    known = "protocol: {scorer: sacrebleu, tokenizer: 13a, case: kept, text: plain}"
    published = (
        f"[{{split: test, system: best, score: 99.9, {known}, source: one paper}}, "
        "{split: test, system: old, score: 3, source: another}]"
    )
    settings = [f"evaluation.published={published}", "evaluation.seed_band=0.7"]
    result = reproduce(load_config(tiny_recipe, overrides=settings), run)
    assert result.passed
    best, old = result.text.split("\n")[-2:]
    assert best.startswith("test: best 99.90, here ")
    assert best.endswith(": below the seed band (± 0.70) [one paper]")
    assert old.endswith(
        "not comparable: its source does not state `scorer`, `tokenizer`, `case`, `text` [another]"
    )
