import ast
import itertools
import json
import logging
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt.decoding.load import read_run
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.export import ctranslate2
from mt.export.export import ExportOptions, ModelResult, Parity, Proof
from tests.factories import DIGITS, Program, Refused, export_run, run_process


def test_an_export_translates_and_evaluates_like_its_run(
    run: Path, program: Program, refused: Refused, tmp_path: Path
) -> None:
    status, out, _ = program("export", run, "--to", "ctranslate2", "--device", "cpu")
    assert status == 0, out
    assert "7 of 7 lines identical" in out
    alone = tmp_path / "elsewhere"
    (run / "ctranslate2").rename(alone)
    lines = b"one two three four\n\nseven nine\n"
    # Greedy, because the engines block the repetitions of a weak model differently.
    greedy = ("--set", "decoding.search=greedy", "--device", "cpu")
    translated = program("translate", alone, *greedy, stdin=lines)
    assert translated == program("translate", run, *greedy, stdin=lines)
    assert translated[0] == 0
    assert translated[1].count("\n") == 3
    scores = [program("evaluate", path, "--split", "test", *greedy) for path in (alone, run)]
    assert scores[0][:2] == scores[1][:2]
    record = json.loads((alone / "evaluations" / "test.search=greedy.json").read_text())
    assert record["weights"] == json.loads((run / "model.json").read_text())["weights"]
    for name in ("config.json", "shared_vocabulary.json"):
        path = alone / name
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"a", b"b", 1))
        assert f"{path}: damaged" in refused("translate", alone, *greedy, stdin=lines)
        path.write_bytes(whole)


def test_the_lines_of_the_guide_translate_like_mt(exported_run: Path, program: Program) -> None:
    page = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
    code = "import ctranslate2" + page.split("```python\nimport ctranslate2")[1].split("```")[0]
    lines = [" ".join(words) for words in itertools.permutations(DIGITS[1:6], 2)]
    lines.append("one\xa0 \xadtwo")
    search = '_size": 1, "max_decoding_length": 25'
    changed = f"folder, lines = {str(exported_run)!r}, {lines}"
    code = re.sub(r"folder, lines = .*", lambda _: changed, code).replace('_size": 5', search)
    output = run_process(sys.executable, "-c", code)
    keys = ("search=greedy", "repair=off", "max_length_ratio=0", "max_length_extra=25")
    settings = [word for key in keys for word in ("--set", f"decoding.{key}")]
    text = "".join(f"{line}\n" for line in lines).encode()
    translated = program("translate", exported_run, *settings, stdin=text)[1].splitlines()
    assert ast.literal_eval(output) == translated
    assert len({*translated}) > 10


AUTO = ("--set", "training.export=auto")


def test_training_ends_with_an_export_of_its_weights(run: Path, program: Program) -> None:
    assert program("train", run, *AUTO)[0] == 0
    path = run / "ctranslate2" / "export.json"
    record = json.loads(path.read_text())
    assert record["weights"] == json.loads((run / "model.json").read_text())["weights"]
    assert record["parity"]["identical"] == record["parity"]["sentences"] == 7
    written_at = path.stat().st_mtime_ns
    assert program("train", run, *AUTO)[0] == 0
    assert path.stat().st_mtime_ns == written_at, "it is not exported again"
    path.write_text(json.dumps(record | {"weights": "of an earlier training"}))
    assert program("train", run, *AUTO)[0] == 0
    assert json.loads(path.read_text())["weights"] == record["weights"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("training.export=off", None), ("decoding.search=sample", "`decoding.search: sample`")],
)
def test_training_ends_without_an_export_that_is_off_or_impossible(
    setting: str, reason: str | None, run: Path, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert program("train", run, *AUTO, "--set", setting)[0] == 0
    lines = [message for message in caplog.messages if "CTranslate2" in message]
    assert len(lines) == (reason is not None)
    assert all(f"no export to CTranslate2: {reason}" in line for line in lines)
    assert not (run / "ctranslate2").exists()


def test_impossible_export_is_refused_before_training(
    tiny_recipe: Path, refused: Refused, tmp_path: Path
) -> None:
    settings = ("--set", "training.export=ctranslate2", "--set", "decoding.search=sample")
    message = refused("train", tiny_recipe, "--run", tmp_path / "new", *settings)
    assert message.startswith("`training.export: ctranslate2`: `decoding.search: sample`")
    assert not (tmp_path / "new").exists()


def test_failed_export_is_a_warning_after_training(
    run: Path, program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _damage_exports(monkeypatch)
    status, out, _ = program("train", run, *AUTO)
    assert status == 0
    assert "finished already" in out
    (warning,) = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert "lines have equal translations" in warning.getMessage()
    assert not (run / "ctranslate2").exists()


def _damage_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exports have a wrong tensor."""
    write = ctranslate2.write_model

    def write_damaged(folder: Path, config: Any, weights: Any, **settings: Any) -> None:
        name = "decoder.0.cross_attention.value.weight"
        write(folder, config, {**weights, name: -weights[name]}, **settings)

    monkeypatch.setattr(ctranslate2, "write_model", write_damaged)


def test_repetition_loops_do_not_fail_the_parity(run: Path, tmp_path: Path) -> None:
    words, numbers = ("one", "two", "three", "four", "five", "six", "seven"), random.Random(2)
    lines = [" ".join(numbers.choices(words, k=numbers.randint(5, 20))) for _ in range(60)]
    sample = tmp_path / "sample.en"
    sample.write_text("".join(f"{line}\n" for line in lines))
    statuses = {line.status for line in Translator.load(run, device="cpu").stream(lines)}
    assert "repeated" in statuses
    result = export_run(run, tmp_path / "exported", ExportOptions(sample=sample, device="cpu"))
    assert result.failure is None
    assert result.parity.identical == 60


@pytest.mark.parametrize("exported", [False, True])
def test_a_corrupted_tensor_fails_and_leaves_no_files(
    exported: bool, run: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    if exported:
        assert export_run(run, output, ExportOptions(device="cpu")).failure is None
    there = sorted(tmp_path.rglob("*"))
    _damage_exports(monkeypatch)
    options = ("--to", "ctranslate2", "--output", output, "--device", "cpu")
    status, _, err = program("export", run, *options)
    assert status == 1
    assert "not exported:" in err
    assert "lines have equal translations" in err
    assert sorted(tmp_path.rglob("*")) == there


def test_only_an_earlier_export_is_replaced(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    # The cost of int8 differs between processors, so that these tests keep it whatever it is.
    result = export_run(run, output, ExportOptions("int8", device="cpu", min_identical=0))
    assert result.failure is None
    record = json.loads((output / "export.json").read_text())
    assert record["quantization"] == "int8"
    assert record["parity"]["identical"] == result.parity.identical
    assert record["parity"]["export"]["bleu"] == result.parity.export.bleu
    small = (output / "model.bin").stat().st_size
    assert export_run(run, output, ExportOptions(device="cpu")).failure is None
    assert (output / "model.bin").stat().st_size > small
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    (output / "mine.txt").write_text("kept")
    with pytest.raises(UserError, match=r"mine\.txt"):
        export_run(run, output, ExportOptions())
    (output / "export.json").unlink()
    with pytest.raises(UserError):
        export_run(run, output, ExportOptions())
    assert (output / "mine.txt").read_text() == "kept"


def test_without_the_valid_split_a_sample_is_required(run: Path, tmp_path: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("valid.en", "gone.en").replace("valid.de", "gone.de"))
    with pytest.raises(UserError, match="--sample FILE$"):
        export_run(run, tmp_path / "out", ExportOptions())
    sample = tmp_path / "sample"
    sample.write_text("one two\n\nthree four\n")
    result = export_run(run, tmp_path / "out", ExportOptions(sample=sample, device="cpu"))
    assert result.parity.sentences == 2
    assert result.parity.run.bleu is None
    assert (tmp_path / "out" / "model.bin").is_file()


@pytest.mark.parametrize(
    ("quantization", "identical", "bleu", "chrf", "is_worse", "is_kept"),
    [
        ("none", 995, 30.0, 50.0, False, True),
        ("none", 994, 30.0, 50.0, False, False),
        ("none", 1000, 30.09, 50.0, True, True),
        ("none", 1000, 29.8, 50.0, False, False),
        ("none", 1000, None, None, False, True),
        ("int8", 600, 29.1, 49.1, True, True),
        ("int8", 600, 31.1, 51.1, True, True),
        ("int8", 600, 28.9, 48.9, False, True),
        ("int8", 600, 28.9, 50.0, True, False),
        ("int8", 600, 30.4, 48.9, True, False),
    ],
)
def test_the_limits_of_parity(
    quantization: Any, identical: int, bleu: Any, chrf: Any, is_worse: bool, is_kept: bool
) -> None:
    run = ModelResult(None if bleu is None else 30.0, 50.0, 1.0)
    export = ModelResult(bleu, chrf, 1.0)
    parity = Parity(
        "x", 1000, identical, run=run, export=export, signature="", worst=(), is_worse=is_worse
    )
    assert (parity.why_not_kept(ExportOptions(quantization)) is None) == is_kept


def test_the_worst_differences_come_first(run: Path) -> None:
    class Fixed:
        def __init__(self, *texts: str) -> None:
            self.texts = list(texts)

        def translate(self, lines: Any) -> list[str]:
            return self.texts

    proof = Proof(read_run(run), ("a", "b", "c"), None, "x")
    vars(proof)["of_run"] = Fixed("same", "the old house", "the tree")
    export = Fixed("same", "the house", "water").translate
    result = proof.compare(export, proof.expected)
    assert result.identical == 1
    assert [line.source for line in result.worst] == ["c", "b"]
    assert np.isfinite(result.worst[0].chrf)
    assert "export: water" in result.as_text()


def test_positions_suffice_for_the_longest_translation(run: Path, tmp_path: Path) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("max_length_extra: 10", "max_length_extra: 1500"))
    assert export_run(run, tmp_path / "out", ExportOptions(device="cpu")).failure is None
    assert json.loads((tmp_path / "out" / "export.json").read_text())["positions"] >= 1500


INT8 = ("--to", "ctranslate2", "--quantization", "int8", "--device", "cpu")


def test_a_costly_quantization_is_kept_by_force_alone(
    run: Path, program: Program, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _damage_exports(monkeypatch)
    status, _, err = program("export", run, *INT8)
    assert status == 1
    assert re.search(r"not exported: the quantization costs \S+ BLEU .* `mt export --force`", err)
    assert not (run / "ctranslate2-int8").exists()
    sample = tmp_path / "sample"
    sample.write_text("one two\n")
    assert f"{sample}: has no references" in refused("export", run, *INT8, "--sample", sample)
    assert program("export", run, *INT8, "--force", "--sample", sample)[0] == 0
    assert program("export", run, *INT8, "--force")[0] == 0
    assert (run / "ctranslate2-int8" / "model.bin").is_file()
    message = refused("export", run, "--to", "ctranslate2", "--force")
    assert message.startswith("--force ")
    assert "--quantization" in message


def test_a_run_translates_with_its_quantized_export(
    run: Path, program: Program, refused: Refused
) -> None:
    setting = ("--set", "decoding.quantization=int8", "--device", "cpu")
    lines = b"one two three four\n\nseven nine\n"
    command = f"`mt export {run} --to ctranslate2 --quantization int8`"
    assert command in refused("translate", run, *setting, stdin=lines)
    assert program("export", run, *INT8, "--force")[0] == 0
    assert program("export", run, "--to", "ctranslate2", "--device", "cpu")[0] == 0
    small = program("translate", run / "ctranslate2-int8", "--device", "cpu", stdin=lines)
    assert program("translate", run, *setting, stdin=lines) == small
    for folder, key in ((run, "engine=torch"), (run, "mbr=chrf"), (run / "ctranslate2", "beam=1")):
        refused("translate", folder, *setting, "--set", f"decoding.{key}", stdin=lines)
    path = run / "ctranslate2-int8" / "export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "of another training"}))
    refused("translate", run, *setting, stdin=lines)


@pytest.mark.parametrize(
    ("of", "output"), [("run/ctranslate2", "new"), ("../run", "."), ("run", "link")]
)
def test_a_wrong_folder_is_refused_before_the_work(
    of: str, output: str, run: Path, refused: Refused, tmp_path: Path, monkeypatch: Any
) -> None:
    assert export_run(run, run / "ctranslate2", ExportOptions(device="cpu")).failure is None
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if output == "." else tmp_path)
    (tmp_path / "link").symlink_to("/none/of/these")
    refused("export", of, "--to", "ctranslate2", "--output", output)


def test_files_written_during_an_export_are_kept(
    run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_compare(*arguments: Any) -> Parity:
        (run / "ctranslate2").mkdir()
        (run / "ctranslate2" / "mine").touch()
        return compare(*arguments)

    compare = Proof.compare
    monkeypatch.setattr(Proof, "compare", write_and_compare)
    message = refused("export", run, "--to", "ctranslate2")
    assert "ctranslate2: exists already and is not an export" in message
    assert [path.name for path in (run / "ctranslate2").iterdir()] == ["mine"]


def test_training_ends_with_a_quantized_export_beside_the_other(
    run: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.export.export.MAX_COST", math.inf)
    assert program("train", run, "--set", "training.export=int8")[0] == 0
    for folder, quantization in (("ctranslate2", "none"), ("ctranslate2-int8", "int8")):
        record = json.loads((run / folder / "export.json").read_text())
        assert record["quantization"] == quantization
