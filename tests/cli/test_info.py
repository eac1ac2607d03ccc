"""Command `mt info`."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt.evaluation.run_info import read_info
from mt.runs import Exported
from tests.factories import Program


def test_text_describes_model_and_corpora(finished_run: Path, program: Program) -> None:
    status, out, err = program("info", finished_run)
    assert (status, err) == (0, "")
    info = read_info(finished_run)
    assert info.model is not None
    assert info.tokenizer is not None
    head, corpora = out.split("\n\n")
    shown = dict(line.split(None, 1) for line in head.splitlines())
    assert shown["run"] == f"{finished_run}, finished"
    assert shown["languages"] == "en to de"
    assert shown["model"] == "post layernorm, relu, sinusoidal"
    assert shown["weights"] == f"SHA-256 {info.model.sha256}"
    assert shown["fingerprint"] == info.tokenizer.fingerprint
    assert shown["parameters"].startswith(f"{info.model.parameters:,} in ")
    assert shown["validation"] == info.model.validation
    assert shown["decoding"].startswith("search=beam, beam=2, ")
    train = corpora.splitlines()[1].split()
    assert train[:2] == ["train", "60"]
    assert info.corpora[0].sha256_source is not None
    assert train[2] == info.corpora[0].sha256_source[:12]


def test_json_is_the_whole_record(finished_run: Path, program: Program) -> None:
    status, out, _ = program("info", finished_run, "--json")
    record = json.loads(out)
    assert (status, record["state"]) == (0, "finished")
    assert record == json.loads(json.dumps(read_info(finished_run).as_record()))
    assert record["config"]["model"]["d_model"] == 32


def test_unfinished_run_is_marked_and_damaged_file_refused(
    finished_run: Path, tmp_path: Path, program: Program
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    with (run / "model.safetensors").open("ab") as file:
        file.write(b"x")
    status, out, err = program("info", run)
    assert (status, out) == (2, "")
    assert err == (
        f"error: {run}/model.safetensors: damaged (its SHA-256 is not the one in model.json)\n"
    )
    (run / "model.safetensors").unlink()
    (run / "model.json").unlink()
    status, out, _ = program("info", run)
    assert status == 0
    assert f"{run}, unfinished, without a final model" in out
    assert "weights" not in out
    assert json.loads(program("info", run, "--json")[1])["state"] == "unfinished"


def test_info_does_not_import_torch(finished_run: Path) -> None:
    code = (
        "import sys; from mt.__main__ import main; status = main();"
        "bad = {'torch', 'datasets', 'pyarrow', 'sacrebleu'} & set(sys.modules);"
        "sys.exit(f'loaded: {bad}' if bad else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "info", finished_run], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout


def test_scores_come_with_their_signatures(
    finished_run: Path, tmp_path: Path, program: Program
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    bleu = json.loads(program("evaluate", run, "--json", "--device", "cpu")[1])["bleu"]
    (scored,) = json.loads(program("info", run, "--json")[1])["scores"]
    assert scored["bleu"]["value"] == bleu["score"]
    assert scored["bleu"]["signature"] == bleu["signature"]
    table = program("info", run)[1].split("\n\n")[2].splitlines()
    row = f"test 6 BLEU {bleu['score']:.2f} {bleu['signature']} as configured"
    assert table[1].split() == row.split()
    evaluation = run / "evaluations" / "test.json"
    record = json.loads(evaluation.read_text())
    evaluation.write_text(json.dumps({**record, "weights": "5a"}))
    assert "with different weights" in program("info", run)[1]


def test_exported_folder_shows_both_hashes_and_parity(
    finished_run: Path, program: Program, recorded: Callable[..., Any]
) -> None:
    exported = Exported(
        kind="ctranslate2",
        quantization="int8",
        longest_source=12,
        positions=64,
        weights="5a",
        tokenizer="6b",
        model="7c",
        parity={"sentences": 7, "identical": 6},
    )
    info = replace(read_info(finished_run), model=None, exported=exported)
    recorded("mt.evaluation.run_info.read_info", info)
    status, out, _ = program("info", "folder")
    assert status == 0
    assert f"{finished_run}, exported from a run" in out
    assert "ctranslate2, quantization int8" in out
    assert re.search("weights of the run +SHA-256 5a\n", out)
    assert re.search("model file +SHA-256 7c\n", out)
    assert "6 of 7 lines as from the run" in out
    assert "updates" not in out
