import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from mt.config.loading import dump_config, load_config
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.run_info import read_info, render_card, update_card
from tests.factories import Program, Refused


def rows(card: str) -> dict[str, str]:
    """Return the rows of the table of a card."""
    lines = [line for line in card.splitlines() if line.startswith("|")]
    return dict(re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines[2:])


def test_training_writes_a_card_of_the_folder(finished_run: Path) -> None:
    card = (finished_run / "README.md").read_text(encoding="utf-8")
    model = read_info(finished_run)["model"]
    assert card.startswith('---\nlanguage: ["en", "de"]\npipeline_tag: "translation"\n---\n')
    assert "# Translation from `en` to `de`" in card
    table = rows(card)
    assert (table["corpora train pairs"], table["corpora valid pairs"]) == ("60", "7")
    assert table["model sha256"] == model["sha256"]
    assert table["architecture widths"] == "d_model 32, d_ff 64, 2 heads"
    assert table["model validation"].replace("\\", "") == model["validation"]
    assert "scores test BLEU" not in table
    assert f"more than {model['longest_source']} tokens" in card


def test_card_has_the_scores_of_the_current_weights(run: Path) -> None:
    scores = evaluate_run(run, device="cpu")
    evaluate_run(run, overrides=["decoding.beam=1"], device="cpu")
    table = rows((run / "README.md").read_text(encoding="utf-8"))
    signature = scores.bleu.signature.replace("|", "\\|")
    assert table["scores test BLEU"] == f"{scores.bleu.value:.2f} ({signature})"
    assert table["scores test search"] == "beam 2"
    assert read_info(run)["experiments"]["test.beam=1"]["overrides"] == ["beam=1"]
    # Scores of other weights belong to another model.
    record = json.loads((run / "evaluations" / "test.json").read_text())
    (run / "evaluations" / "test.json").write_text(json.dumps({**record, "weights": "5a"}))
    assert "scores test BLEU" not in rows(render_card(run) or "")


def test_export_has_a_card_that_the_hub_reads(
    run: Path, program: Program, refused: Refused
) -> None:
    scores = evaluate_run(run, device="cpu")
    hub = "{format: hub, name: o/n, revision: '%s', columns: [a, b]}" % ("0" * 40)
    config = load_config(run / "config.yaml", overrides=[f"data.train={hub}"])
    (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    export, path = (
        ("export", run, "--to", "ctranslate2", "--license"),
        run / "ctranslate2/README.md",
    )
    for name in ("Apache 2.0", "", "MIT"):
        assert refused(*export, name).startswith(f"--license {name}: ")
    for name in ("mit", "apache-2.0"):
        assert program(*export, name)[0] == 0
        card: Any = ModelCard(path.read_text(encoding="utf-8")).data
        assert (card.license, card.library_name, card.datasets) == (name, "ctranslate2", ["o/n"])
    results = [(of.metric_value, of.metric_args["signature"]) for of in card.eval_results]
    expected = [(round(score.value, 2), score.signature) for score in (scores.bleu, scores.chrf)]
    assert results == expected
    path.write_text("mine", encoding="utf-8")
    for _ in range(2):
        assert program(*export, "mit")[0] == 0
        assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("edit", ["a line of mine\n{}", "{}\na line of mine", "mine"])
def test_edited_card_is_kept(edit: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mt")
    path = run / "README.md"
    text = edit.format(path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    evaluate_run(run, device="cpu")
    assert path.read_text(encoding="utf-8") == text
    assert f"{path}: is not the card of mt, so it is kept" in caplog.text


def test_missing_card_is_written(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "README.md"
    before = path.read_bytes()
    path.unlink()
    update_card(run, None)
    assert path.read_bytes() == before
    path.unlink()
    (run / "corpora.json").write_text("{")
    update_card(run, None)
    assert "corpora.json: damaged" in caplog.text
    for name in ("model.json", "model.safetensors"):  # an unfinished run has no card
        (run / name).unlink()
    update_card(run, None)
    assert not path.exists()
