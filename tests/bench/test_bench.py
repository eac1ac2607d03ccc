"""Each script of bench/ runs with tiny settings and prints its table."""

import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from mt.config.loading import load_config
from mt.data.tokenizer import Tokenizer
from mt.errors import UserError
from mt.export.export import ExportOptions
from tests.factories import export_run

BENCH = Path(__file__).parents[2] / "bench"


class Script:
    """A script of bench/, called with arguments."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.capsys = capsys

    def load(self, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self.patch.setitem(sys.modules, module.__name__, module)
        spec.loader.exec_module(module)
        return module

    def run(self, name: str, *arguments: object) -> list[str]:
        """Return the lines on stdout."""
        module = self.load(name)
        self.patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        assert not module.main()
        return self.capsys.readouterr().out.splitlines()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    return Script(monkeypatch, capsys)


def test_plain(script: Script, tiny_recipe: Path) -> None:
    (line,) = script.run("plain", tiny_recipe, "--updates", 2, "--warmup", 1, "--threads", 1)
    found = json.loads(line)
    assert (found["updates"], found["threads"]) == (2, 1)
    assert 4 < found["loss"] < 7


@pytest.mark.slow  # starts two programs
def test_training(script: Script, tiny_recipe: Path) -> None:
    script.patch.setattr("bench.cost.SAMPLE_SECONDS", 1e-4)
    lines = script.run("training", tiny_recipe, "--pairs", 1, "--updates", 2, "--threads", 1)
    assert any(line.startswith("mt/plain: median ") for line in lines)


@pytest.mark.slow  # starts two programs
def test_startup(script: Script) -> None:
    script.patch.setenv("PYTHONPATH", str(BENCH.parent))
    lines = script.run("startup", "--pairs", 200, "--rounds", 1)
    assert [line.split(" | ")[0] for line in lines[2:]][-2] == "| first update"


def test_preparation(script: Script, tiny_recipe: Path, tmp_path: Path) -> None:
    script.patch.setenv("MT_CACHE", str(tmp_path))
    lines = script.run("preparation", tiny_recipe)
    costs = {row[1].strip(): float(row[2]) for row in (line.split("|") for line in lines[2:-2])}
    assert len(costs) == 19
    assert costs["encoding"] > costs["plain `spm_encode`"] > 0


def test_decoding(script: Script, finished_run: Path, tmp_path: Path) -> None:
    run, text = tmp_path / "run", tmp_path / "text.en"
    shutil.copytree(finished_run, run)
    exported = run / "ctranslate2"
    assert export_run(run, exported, ExportOptions(device="cpu")).failure is None
    text.write_text("one two three\nfour five\n" * 9, encoding="utf-8")
    *rounds, of_exported, of_run, of_torch = script.run(
        "decoding", run, exported, text, "--rounds", 2
    )
    assert len(rounds) == 2
    assert of_exported.startswith("exported: ")
    assert of_run.startswith("run: ")
    assert of_torch.startswith("run in PyTorch: ")


@pytest.mark.slow  # starts a server
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_serving(script: Script, finished_run: Path) -> None:
    module = script.load("serving")
    script.patch.setattr(module, "MOST_GROWTH", 1.0)  # the first requests load PyTorch
    assert not module.main([str(finished_run), "--requests", "40", "--clients", "4"])
    *_, last, _ = script.capsys.readouterr().out.splitlines()
    assert last.split()[::5] == ["40", "0"]


PROGRAM = """\
import json, os, shutil, sys
from pathlib import Path

command, path, *options = sys.argv[1:]
with Path("CALLS").open("a") as calls:
    print(command, Path(path).parent.name, os.environ["OMP_NUM_THREADS"], file=calls)
if command == "train":
    run = Path(options[1])
    shutil.copytree("RUN/tokenizer", run / "tokenizer", dirs_exist_ok=True)
    (run / "environment.json").write_text('{"processor": "Abacus"}')
    (run / "metrics.jsonl").write_text('{"event": "final", "loss": 0.5}')
else:
    name = Path(path).parent.name
    score = {"score": SCORES[name.removeprefix("tiny-")], "signature": "of a test"}
    print(json.dumps({"bleu": score}))
"""
"""A program `mt` with known scores, which writes its calls into a file."""


def commit(tree: Path) -> None:
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *words], check=True)


@pytest.fixture
def record(
    script: Script, tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> Callable[..., list[str]]:
    """Return a function that measures a checkout whose `mt` is PROGRAM."""
    scores = {"5m-seed1": 20.0, "5m-seed2": 22.0, "15m-seed1": 33.0, "15m-seed2": 30.0}
    scores |= {"60m-seed1": 40.0, "60m-seed2": 40.5, "20m-seed1": 35.0, "20m-seed2": 35.0}
    program = PROGRAM.replace("SCORES", str(scores)).replace("RUN", str(finished_run))
    package = tmp_path / "tree" / "mt"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(program.replace("CALLS", str(tmp_path / "calls")))
    (tmp_path / "tree" / ".gitignore").write_text("__pycache__/", encoding="utf-8")
    commit(tmp_path / "tree")

    def run(*options: object, goal: float = 26.25) -> list[str]:
        module = script.load("record")
        script.patch.setitem(module.CORPORA, "tiny", module.Corpus(tiny_recipe, goal, pairs=50))
        places = ["--tree", tmp_path / "tree", "--output", tmp_path / "records"]
        arguments = ["record.py", "tiny", *places, "--seeds", 1, 2, *options]
        script.patch.setattr(sys, "argv", [*map(str, arguments)])
        assert not module.main()
        (row,) = script.capsys.readouterr().out.splitlines()
        return row.strip("| ").split(" | ")

    return run


def test_record(record: Callable[..., list[str]], tiny_corpus: Path, tmp_path: Path) -> None:
    calls, measured = tmp_path / "calls", tmp_path / "records"
    row = record("--minutes", 15, 5, "--threads", 3)
    short_hash, *cells = row
    lines = (tiny_corpus / "valid.de").read_text(encoding="utf-8").splitlines()
    (tokenizer,) = measured.glob("*/tiny-5m-seed1/run/tokenizer")
    tokens = sum(map(len, Tokenizer.load(tokenizer).encode_target(lines)))
    bits = f"{0.5 / math.log(2) * tokens / sum(map(len, lines)):.3f}"
    assert re.fullmatch("[0-9a-f]{7}", short_hash)
    assert cells == [
        *("automatic", "Abacus, 3 threads", "1, 2", "21.00 (2.00)", "31.50 (3.00)", "–"),
        *(f"{math.sqrt(5 * 15):.1f}", f"{bits}, {bits}, –"),  # the goal is half-way
    ]
    models = ["tiny-5m-seed1", "tiny-5m-seed2", "tiny-15m-seed1", "tiny-15m-seed2"]
    assert calls.read_text(encoding="utf-8").splitlines() == [
        f"{command} {model} 3" for model in models for command in ("train", "evaluate")
    ]
    config = load_config(measured / f"{short_hash}-3-threads" / "tiny-15m-seed2" / "config.yaml")
    assert config.training.model_dump(exclude_unset=True) == {"budget": "15m"}
    assert (config.seed, config.model_fields_set) == (2, {"seed", "data", "training"})
    assert config.data.max_tokens != load_config(tiny_corpus / "tiny.yaml").data.max_tokens
    train = measured / "corpora" / "tiny" / "train.de"
    text = (tiny_corpus / "train.de").read_text(encoding="utf-8")
    assert train.read_text(encoding="utf-8") == "".join(text.splitlines(keepends=True)[:50])


def test_record_measures_each_model_once(record: Callable[..., list[str]], tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    first = record("--minutes", 5, 15)
    calls.unlink()
    assert record("--minutes", 5, 15) == first
    assert not calls.exists()
    (score,) = tmp_path.glob("records/*/tiny-5m-seed2/score.json")
    score.unlink()  # as if stopped before the end
    assert record("--minutes", 5, 15) == first
    assert calls.read_text(encoding="utf-8").split()[::3] == ["train", "evaluate"]
    *_, hour, _, bits = record("--minutes", 5, 15, 60)
    assert (hour, "–" in bits) == ("40.25 (0.50)", False)
    assert len(calls.read_text(encoding="utf-8").splitlines()) == 6


@pytest.mark.parametrize(
    ("goal", "minutes"),
    [(19, "at most 5"), (20, "at most 5"), (25, f"{75**0.5:.1f}"), (30, "15.0"), (31, "over 60")],
)
def test_record_gives_minutes_to_a_bleu(script: Script, goal: float, minutes: str) -> None:
    module = script.load("record")
    assert module.find_minutes({60: 29.0, 5: 20.0, 15: 30.0}, goal) == minutes


@pytest.mark.slow  # trains with automatic settings
def test_record_of_this_code(record: Callable[..., list[str]], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tree" / "mt")
    (tmp_path / "tree" / "mt").symlink_to(BENCH.parent / "mt")
    commit(tmp_path / "tree")
    row = record("--minutes", 0.5, "--seeds", 1, "--threads", 1, goal=100)
    assert row[3:] == ["1", "–", "–", "–", "over 0.5", "–, –, –"]
    (score,) = tmp_path.glob("records/*/tiny-0.5m-seed1/score.json")
    found = json.loads(score.read_bytes())
    assert 0 <= found["bleu"] <= 100
    assert 0 < found["bits"] < 5
    assert "tok:13a" in found["signature"]


def test_record_is_that_of_a_commit(record: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "tree" / "mt" / "__init__.py"
    file.write_text("# changed", encoding="utf-8")
    with pytest.raises(UserError, match=r"tree/mt: has changes; commit them"):
        record()
    shutil.rmtree(tmp_path / "tree" / ".git")
    with pytest.raises(UserError, match=r"tree: no git checkout; a record needs a commit"):
        record()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Yes, he said: “No!” (twice)", "Yes he said No twice"),
        ("I don't know 3.14 or well-known a/b.", "I don't know 3.14 or well-known a/b"),
        ("a - b", "a b"),
        ("你好，世界。我来了！", "你好世界我来了"),
        ("50% of A&B", "50% of A&B"),
        ("¿Qué?", "Qué"),
        ("...!", "...!"),
        ("no  marks", "no marks"),
    ],
)
def test_punctuation_is_removed_except_inside_words(script: Script, text: str, left: str) -> None:
    assert script.load("robustness").without_punctuation(text, Random(1)) == left
