"""The command line in processes of its own: train, translate, evaluate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from tests.factories import Program

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "PYTHONIOENCODING": "ascii",  # text is UTF-8 whatever the locale says
}


def mt(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**ENVIRONMENT, "MT_CACHE": os.environ["MT_CACHE"]}
    command = [sys.executable, "-m", "mt", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment)


@pytest.fixture
def trained(tiny_recipe: Path, finished_run: Path, tmp_path: Path) -> Path:
    """Return a run trained by the command; its result is on stdout, all else on stderr."""
    done = mt("train", tiny_recipe, "--run", tmp_path / "run")
    description = json.loads((tmp_path / "run" / "model.json").read_text())
    assert done.returncode == 0, done.stderr.decode()
    folder = tmp_path / "run"
    assert done.stdout.decode().splitlines() == [
        f"{folder}: {description['score']}",
        "next: translate a file, score the model, open it in a browser",
        f"  mt translate {folder} < FILE",
        f"  mt evaluate {folder} --split test",
        f"  mt serve {folder}",
        f"  {folder}/training.png: loss, scores and learning rate",
    ]
    err = done.stderr.decode()
    assert "60 pairs to train on (0 too long and 0 with an empty side left out of 60)" in err
    assert "tokenizer: 300 tokens learnt from 120 lines" in err
    assert "update 40 of 40: valid, 7 pairs, greedy: loss " in err
    assert "\r" not in err  # no bar in a log file
    return tmp_path / "run"


def test_train_translate_and_evaluate(
    trained: Path, finished_run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    # Another process and another cache give the same model.
    weights = (trained / "model.safetensors").read_bytes()
    assert weights == (finished_run / "model.safetensors").read_bytes()

    source, output = tiny_corpus / "test.en", tmp_path / "out.de"
    output.write_text("to be replaced")
    to_file = mt("translate", trained, source, "-o", output)
    assert (to_file.returncode, to_file.stdout) == (0, b"")
    assert all(line.startswith(b"line ") for line in to_file.stderr.splitlines())
    piped = program("translate", trained, stdin=source.read_bytes())
    assert piped[:2] == (0, output.read_text())

    of_run = mt("evaluate", trained, "--split", "test", "--json")
    references = tiny_corpus / "test.de"
    files = (output, "--references", references)
    of_files = mt("evaluate", *files, "--target-language", "de", "--json")
    scores = json.loads(of_files.stdout)
    texts = [path.read_text().splitlines() for path in (output, references)]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    assert scores["bleu"]["score"] == bleu.corpus_score(texts[0], [texts[1]]).score > 1.0
    assert scores["chrf"]["score"] == chrf.corpus_score(texts[0], [texts[1]]).score > 1.0
    assert scores["bleu"]["signature"] == str(bleu.get_signature())
    assert scores["sentences"] == len(texts[0]) == 6
    same = ("bleu", "chrf", "sentences", "target_language")
    assert {key: json.loads(of_run.stdout)[key] for key in same} == {k: scores[k] for k in same}
