"""The command line: its commands and options, what they call, and how they fail."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mt import __version__
from mt.__main__ import main
from mt.config import Config
from mt.decoding.files import FileJob
from mt.evaluation.evaluate import EvaluationJob, GivenTexts

RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
training: {max_updates: 100}
"""
HEAVY = {"torch", "numpy", "datasets", "pyarrow", "sentencepiece", "sacrebleu", "safetensors"}
# Wherever a test has gone, the package under test is the one that is imported.
# Its output waits in a buffer, as it does for most users.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "COLUMNS": "80",
}


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


Program = Callable[..., Outcome]
Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]
Replace = Callable[[str, str, Any], Calls]


@pytest.fixture
def mt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Return a function that runs the program in this process."""

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["mt", *map(str, arguments)])
        # Typer changes it.
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        status = main()
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(RECIPE)
    return Path("tiny.yaml")


@pytest.fixture
def replace_function(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Return a function that puts a recorder in the place of a heavy function."""

    def replace(module: str, name: str, result: Any) -> Calls:
        calls: Calls = []

        def record(*arguments: Any, **named: Any) -> Any:
            calls.append((arguments, named))
            if isinstance(result, BaseException):
                raise result
            return result

        stand_in = ModuleType(module)
        setattr(stand_in, name, record)
        monkeypatch.setitem(sys.modules, module, stand_in)
        return calls

    return replace


def process(*arguments: str, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program, or code in its place, in a process of its own."""
    command = ["-c", code] if code else ["-m", "mt"]
    return subprocess.run(
        [sys.executable, *command, *arguments],
        capture_output=True,
        text=True,
        **{"env": ENVIRONMENT, **options},
    )


def test_the_commands_and_options_are_frozen(mt: Program) -> None:
    surface = {}
    for command in ("", *re.findall(r"^  (\w+)  ", mt().out.partition("Commands:")[2], re.M)):
        text = mt(*command.split(), "--help").out
        arguments = re.findall(r"^  ([A-Z]+) <", text, re.M)
        surface[command] = arguments + re.findall(r"^  (-.*?)(?:  |$)", text, re.M)
    assert surface == {
        "": ["--version", "--help"],
        "train": ["CONFIG", "--run DIR", "--init-from RUN", "--set KEY=VALUE", "--help"],
        "translate": [
            "RUN",
            "FILE",
            "-o, --output FILE",
            "--prefixes FILE",
            "--n-best N",
            "--json",
            "--report FILE",
            "--unbuffered",
            "--set KEY=VALUE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "evaluate": [
            "RUN",
            "--split NAME",
            "--hypotheses FILE",
            "--references FILE",
            "--target-language CODE",
            "--sources FILE",
            "--bleu-tokenizer NAME",
            "--metric NAME",
            "--bootstrap N",
            "--allow REASON",
            "--write-comet DIR",
            "--robustness",
            "--passport FILE",
            "--check FILE",
            "--set KEY=VALUE",
            "--json",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "compare": [
            "SYSTEM",
            "--split NAME",
            "--references FILE",
            "--target-language CODE",
            "--sources FILE",
            "--bleu-tokenizer NAME",
            "--metric NAME",
            "--test <bootstrap|randomization>",
            "--samples N",
            "--examples N",
            "--allow REASON",
            "--json FILE",
            "--html FILE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "score": [
            "RUN",
            "--sources FILE",
            "--targets FILE",
            "--json",
            "--set KEY=VALUE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "info": ["RUN", "--json", "--help"],
        "average": [
            "RUN",
            "--output DIR",
            "--best K",
            "--last K",
            "--updates N,N",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "reproduce": ["CONFIG", "--run DIR", "--help"],
        "ablate": ["FILE", "--runs DIR", "--json", "--help"],
        "inspect": [
            "CONFIG",
            "--set KEY=VALUE",
            "--source-length N",
            "--target-length N",
            "--json",
            "--help",
        ],
        "plan": ["CONFIG", "--run DIR", "--set KEY=VALUE", "--json", "--help"],
        "backtranslate": [
            "RUN",
            "MONO",
            "--out DIR",
            "--search <sample|beam|greedy>",
            "--drop P",
            "--mask P",
            "--swap N",
            "--shard K/N",
            "--set KEY=VALUE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "distill": [
            "RUN",
            "CONFIG",
            "--out DIR",
            "--n-best N",
            "--similarity <bleu|chrf>",
            "--shard K/N",
            "--set KEY=VALUE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "export": [
            "RUN",
            "--to <ctranslate2|huggingface>",
            "--quantization <none|int8|int8_float32|int8_float16|int16|float16|bfloat16>",
            "--output DIR",
            "--sample FILE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "serve": [
            "RUN",
            "--host HOST",
            "--port PORT",
            "--max-sentences N",
            "--max-characters N",
            "--max-waiting N",
            "--set KEY=VALUE",
            "--device <auto|cuda|mps|cpu>",
            "--help",
        ],
        "import": ["PATH", "--run DIR", "--help"],
        "bench": ["--help"],  # its sub-commands have a test of their own
        "data": ["--help"],  # likewise
        "plot": ["--help"],  # likewise
    }


def test_version_and_help(mt: Program) -> None:
    assert mt("--version") == Outcome(0, f"mt {__version__}\n", "")
    assert mt() == mt("--help")
    assert mt("--help").out.startswith("Usage: mt [OPTIONS] COMMAND [ARGS]...\n")


def test_no_help_text_is_cut_short(mt: Program) -> None:
    assert "..." not in mt("--help").out.replace("[ARGS]...", "")


def test_train(mt: Program, recipe: Path, replace_function: Replace) -> None:
    calls = replace_function("mt.training.trainer", "train", "runs/tiny: BLEU 30")
    assert mt("train", recipe) == Outcome(0, "runs/tiny: BLEU 30\n", "")
    settings = ["--set", "model.heads=4", "--set", "seed=7"]
    assert mt("train", recipe, "--run", "r", *settings).status == 0
    (((config, run), _), ((changed, other_run), _)) = calls
    assert isinstance(config, Config)
    assert (config.model.heads, config.seed, run) == (8, 1, Path("runs/tiny"))
    assert (changed.model.heads, changed.seed, other_run) == (4, 7, Path("r"))


@pytest.mark.parametrize("folder", ["runs/a", "null", "2024", "[1]", "a: b", 'say "é"', "c\\d"])
def test_the_run_to_begin_with_is_a_key_of_the_config(
    folder: str, mt: Program, recipe: Path, replace_function: Replace
) -> None:
    calls = replace_function("mt.training.trainer", "train", "")
    assert mt("train", recipe, "--init-from", folder, "--set", "seed=7").status == 0
    ((config, run), _) = calls[0]
    assert (config.training.init_from, config.seed) == (Path(folder), 7)
    assert run == Path("runs/tiny")


def test_translate(mt: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    monkeypatch.setattr(
        "mt.decoding.files.translate_file",
        lambda *arguments, **named: calls.append((arguments, named)),
    )
    assert mt("translate", "r") == Outcome(0, "", "")
    settings = ["--set", "decoding.beam=2", "--device", "cpu"]
    assert mt("translate", "r", "in", "-o", "out", "--n-best", "2", *settings).status == 0
    assert mt("translate", "r", "--json", "--report", "tsv", "--unbuffered").status == 0
    assert mt("translate", "r", "--json", "--n-best", "3", "--prefixes", "p").status == 0
    jobs = [
        FileJob(),
        FileJob(Path("in"), Path("out"), form="n-best", n_best=2),
        FileJob(form="json", report=Path("tsv"), look_ahead=1),
        FileJob(form="json", n_best=3, prefixes=Path("p")),
    ]
    assert [arguments for arguments, _ in calls] == [(Path("r"), job) for job in jobs]
    plain = {"overrides": (), "device": "auto"}
    changed = {"overrides": ["decoding.beam=2"], "device": "cpu"}
    assert [named for _, named in calls] == [plain, changed, plain, plain]


@dataclass(frozen=True)
class FakeEvaluation:
    def as_text(self) -> str:
        return "BLEU 30"

    def as_json(self) -> str:
        return "{}"


def test_evaluate_a_run(mt: Program, replace_function: Replace) -> None:
    calls = replace_function("mt.evaluation.evaluate", "evaluate_run", FakeEvaluation())
    assert mt("evaluate", "r") == Outcome(0, "BLEU 30\n", "")
    settings = ["--set", "decoding.beam=2", "--device", "cpu", "--json"]
    wishes = ["--metric", "ter", "--metric", "chrf++", "--bootstrap", "500", "--allow", "tokens"]
    outcome = mt("evaluate", "r", "--split", "news", *settings, *wishes)
    assert outcome == Outcome(0, "{}\n", "")
    job = EvaluationJob(("ter", "chrf++"), 500, ("tokens",))
    plain = {"split": None, "overrides": (), "device": "auto", "job": EvaluationJob()}
    wished = {"split": "news", "overrides": ["decoding.beam=2"], "device": "cpu", "job": job}
    assert calls == [((Path("r"),), plain), ((Path("r"),), wished)]


def test_evaluate_a_run_on_texts_of_ones_own(mt: Program, replace_function: Replace) -> None:
    texts = ["--sources", "s", "--references", "t", "--references", "u"]
    job = EvaluationJob(texts=GivenTexts(Path("s"), (Path("t"), Path("u"))))
    for module, name, more in [
        ("mt.evaluation.evaluate", "evaluate_run", []),
        ("mt.evaluation.robustness", "evaluate_robustness", ["--robustness"]),
    ]:
        calls = replace_function(module, name, FakeEvaluation())
        assert mt("evaluate", "r", *texts, *more) == Outcome(0, "BLEU 30\n", "")
        named = {"split": None, "overrides": (), "device": "auto", "job": job}
        assert calls == [((Path("r"),), named)]


def test_evaluate_a_run_on_changed_sources(mt: Program, replace_function: Replace) -> None:
    calls = replace_function("mt.evaluation.robustness", "evaluate_robustness", FakeEvaluation())
    wishes = ["--split", "news", "--allow", "tokens", "--set", "decoding.beam=2"]
    assert mt("evaluate", "r", "--robustness", *wishes) == Outcome(0, "BLEU 30\n", "")
    named = {"split": "news", "overrides": ["decoding.beam=2"], "device": "auto"}
    assert calls == [((Path("r"),), {**named, "job": EvaluationJob(allow=("tokens",))})]
    outcome = mt("evaluate", "r", "--robustness", "--metric", "ter")
    told = "--metric does not go with --robustness, which is by BLEU and chrF2"
    assert outcome == Outcome(2, "", f"error: {told}\n")
    outcome = mt("evaluate", "--robustness", "--hypotheses", "h", "--references", "r")
    assert outcome.err.startswith("error: --robustness does not go with --hypotheses")


def test_evaluate_files(mt: Program, replace_function: Replace) -> None:
    calls = replace_function("mt.evaluation.evaluate", "evaluate_files", FakeEvaluation())
    files = ["--hypotheses", "h", "--references", "r1", "--references", "r2", "--sources", "s"]
    wishes = ["--passport", "p", "--bleu-tokenizer", "char"]
    outcome = mt("evaluate", *files, "--target-language", "zh", *wishes)
    assert outcome == Outcome(0, "BLEU 30\n", "")
    named = {"target_language": "zh", "tokenizer": "char", "sources": Path("s")}
    job = EvaluationJob(passport=Path("p"))
    assert calls == [((Path("h"), [Path("r1"), Path("r2")]), {**named, "job": job})]


@dataclass(frozen=True)
class FakeScores(FakeEvaluation):
    references: tuple[str, ...] = ("r",)


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_to_do_with_comet_is_told_and_json_stays_json(
    form: str, mt: Program, replace_function: Replace
) -> None:
    replace_function("mt.evaluation.evaluate", "evaluate_run", FakeScores())
    as_json = ["--json"] if form == "json" else []
    outcome = mt("evaluate", "r", "--write-comet", "c", *as_json)
    told = outcome.err if as_json else outcome.out.removeprefix("BLEU 30\n")
    assert told.splitlines()[-1] == (
        "comet-env/bin/comet-score -s c/source.txt -t c/hypothesis.txt -r c/reference.txt "
        "--model Unbabel/wmt22-comet-da"
    )
    if as_json:
        assert outcome.out == "{}\n"


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_a_check_that_fails_has_status_1(
    passed: bool, status: int, mt: Program, replace_function: Replace
) -> None:
    calls = replace_function(
        "mt.evaluation.passport_check", "check_passport", FakeVerdict("as told", passed)
    )
    assert mt("evaluate", "--check", "p.json") == Outcome(status, "as told\n", "")
    assert calls == [((Path("p.json"),), {})]


@dataclass(frozen=True)
class FakeVerdict:
    text: str
    passed: bool


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_reproduce(
    passed: bool, status: int, mt: Program, recipe: Path, replace_function: Replace
) -> None:
    verdict = FakeVerdict("a table: 早上好。", passed)
    calls = replace_function("mt.experiments.reproduce", "reproduce", verdict)
    assert mt("reproduce", recipe) == Outcome(status, "a table: 早上好。\n", "")
    assert calls[0][0][1] == Path("runs/tiny")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "trian",
            "No such command 'trian'. Did you mean 'train'? Usage: mt [OPTIONS] COMMAND [ARGS",
        ),
        ("--versoin", "No such option: --versoin (Possible options: --version). Usage: mt [OPT"),
        ("train", "Missing argument 'CONFIG'. Usage: mt train [OPTIONS] "),
        ("train a --rn b", "No such option: --rn (Possible options: --run). Usage: mt train ["),
        ("train a b", "Got unexpected extra argument(s) (b). Usage: mt train [OPTIONS] "),
        ("train a --set", "Option '--set' requires an argument."),
        (
            "translate r --device gpu",
            "'--device': 'gpu' is not one of 'auto', 'cuda', 'mps', 'cpu'.",
        ),
        ("translate r --n-best 0", "'--n-best': Input should be greater than or equal to 1."),
        ("train tiny.yml", "tiny.yml: no such file; did you mean `tiny.yaml`?"),
        ("reproduce tiny.yml", "tiny.yml: no such file; did you mean `tiny.yaml`?"),
        (
            "train tiny.yaml --set model.nrom=x",
            "--set model.nrom: unknown; did you mean `model.norm`",
        ),
        (
            "translate r --set beam=4",
            "only keys of `decoding` can be set here; did you mean `decodi",
        ),
        ("evaluate r --set seed=4", "--set seed: only keys of `decoding` can be set here"),
        ("evaluate", "name what to score: RUN, or --hypotheses with --references"),
        ("evaluate r --hypotheses h", "--hypotheses does not go with a run; score either RUN with"),
        ("evaluate r --references h", "--sources is missing: a run is scored on --sources and"),
        ("evaluate r --sources h", "--references is missing: a run is scored on --sources and"),
        ("evaluate --check c --sources s", "--sources does not go with --check;"),
        ("evaluate --check c --json", "--json does not go with --check;"),
        ("evaluate --check c --bootstrap 100", "--bootstrap does not go with --check;"),
        ("evaluate r --target-language zh", "--target-language does not go with a run;"),
        ("evaluate --hypotheses h --split x", "--split does not go with --hypotheses;"),
        ("evaluate --hypotheses h --set a=1", "--set does not go with --hypotheses;"),
        ("evaluate r --passport p", "--passport does not go with a run;"),
        ("evaluate r --check p", "RUN does not go with --check;"),
        ("evaluate --references r", "name what to score: RUN, or --hypotheses with --references"),
        ("evaluate --hypotheses h", "--hypotheses needs --references, the right translations"),
        ("evaluate --hypotheses h --references r", "--hypotheses needs --target-language, such as"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: str, told: str, mt: Program, recipe: Path
) -> None:
    outcome = mt(*arguments.split())
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert told in outcome.err
    assert outcome.err.count("\n") == 1


def test_what_a_command_raises_passes_through_typer(
    mt: Program, recipe: Path, replace_function: Replace
) -> None:
    replace_function("mt.training.trainer", "train", PermissionError(13, "x", "runs/tiny"))
    assert mt("train", recipe) == Outcome(2, "", "error: runs/tiny: permission denied\n")
    replace_function("mt.training.trainer", "train", KeyboardInterrupt())
    assert mt("train", recipe) == Outcome(130, "", "")
    replace_function("mt.training.trainer", "train", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        mt("train", recipe)
    replace_function("mt.training.trainer", "train", SystemExit(143))
    with pytest.raises(SystemExit) as leaving:
        mt("train", recipe)
    assert leaving.value.code == 143


def test_python_m_mt_is_the_same_program(mt: Program) -> None:
    assert process("--help").stdout == mt("--help").out
    assert process("trian").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["train", "tiny.yaml", "--set", "model.nrom=1"], 2),
        (["evaluate", "r", "--sources", "s"], 2),
    ],
)
def test_help_and_config_errors_are_instant_since_they_load_nothing_heavy(
    arguments: list[str], status: int, recipe: Path
) -> None:
    code = (
        "import sys; from mt.__main__ import main; status = main();"
        f"print('loaded:', *sorted({HEAVY} & set(sys.modules))); sys.exit(status)"
    )
    done = process(*arguments, code=code)
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert done.returncode == status


WRITES = """
import os, sys, types
module = types.ModuleType("mt.decoding.files")
def translate_file(*_, **__):
    for _ in range(LINES):
        sys.stdout.write("a line of text\\n")
module.translate_file = translate_file
module.FileJob = lambda *_: None
sys.modules["mt.decoding.files"] = module
from mt.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_who_goes_ends_it_quietly(lines: int) -> None:
    """One line is written when the program ends, many break the pipe on the way."""
    reading, writing = os.pipe()
    os.close(reading)
    code = WRITES.replace("LINES", str(lines))
    done = subprocess.run(
        [sys.executable, "-c", code, "translate", "r"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_full_disk_behind_stdout_is_told_once(lines: int) -> None:
    code = WRITES.replace("LINES", str(lines))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "translate", "r"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
    assert done.returncode == 2
    assert done.stderr == b"error: output: no space left on the disk\n"


def test_output_is_utf_8_in_any_locale() -> None:
    code = WRITES.replace("LINES", "1").replace("a line of text", "早上好")
    done = process(
        "translate",
        "r",
        code=code,
        encoding="utf-8",
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout) == (0, "早上好\n")


def test_logs_go_to_stderr() -> None:
    says = "__import__('logging').getLogger('{}').info('{}')"
    both = f"{says.format('mt.x', 'ours')} or {says.format('y', 'theirs')} or 0"
    code = WRITES.replace("LINES", both)
    done = process("translate", "r", code=code)
    assert done.stderr == "ours\n"


def test_a_defect_of_ours_shows_a_plain_traceback() -> None:
    code = WRITES.replace("LINES", "1 / 0")
    done = process("translate", "r", code=code)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
