"""Trial of the commands with damaged run folders, exports, configs, corpora and documents.

    python bench/damaged_inputs.py --cases 2000
    python bench/damaged_inputs.py --case 17

A tiny model is trained on the quickstart corpus in a temporary folder and exported. Each case
damages one file in a copy of that folder, as its number and the seed determine, and runs a command
that reads the file in a forked process. A table of the results goes to stdout, then each case that
is neither accepted nor refused by one clear line. `--case` runs one case and prints its output.
"""

import argparse
import gc
import gzip
import hashlib
import html
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from tqdm import tqdm

QUICKSTART = Path(__file__).resolve().parent.parent / "data" / "quickstart"
TEXT_FILES = "{source: corpus/train.en, target: corpus/train.zh}"
CONFIG = f"""\
data:
  source_language: en
  target_language: zh
  train: {TEXT_FILES}
  valid: {{source: corpus/valid.en, target: corpus/valid.zh}}
  tests:
    test: {{source: corpus/test.en, target: corpus/test.zh}}
tokenizer: {{algorithm: bpe, vocabulary: joint, vocabulary_size: 700}}
model:
  {{d_model: 16, d_ff: 32, heads: 2, encoder_layers: 1, decoder_layers: 1, positional: sinusoidal,
  residual: post, feed_forward: relu, tie_embeddings: all}}
training: {{max_updates: 4, validate_every: 2, keep_last: 2, device: cpu}}
decoding: {{search: greedy, max_length_ratio: 0.0, max_length_extra: 5, engine: torch}}
"""
PAIRS = {"train": 40, "valid": 3, "test": 3}
FORMATS = {
    "tmx": "{format: tmx, path: corpus/train.tmx}",
    "xlf": "{format: xliff, path: corpus/train.xlf}",
    "po": "{format: po, path: corpus/train.po}",
    "tsv": "{format: tsv, path: corpus/train.tsv}",
    "jsonl": "{format: jsonl, path: corpus/train.jsonl, source_field: s, target_field: t}",
    "parquet": "{format: parquet, path: corpus/train.parquet, source_field: s, target_field: t}",
    "gz": "{source: corpus/train.en.gz, target: corpus/train.zh.gz}",
}
"""`data.train` by suffix of its files."""
MOST_CPU_SECONDS, MOST_SECONDS, MOST_MEMORY = 10, 60, 1 << 30
MOST_ADDRESSES = 6 << 30
"""Bytes of address space, so that no command uses up the memory of the machine."""
LONGEST_MESSAGE = 1000
BAD = ("unclear", "traceback", "hang", "memory", "lost", "left behind")
"""A message that is not one line with a name; an exception; too much time; too much memory; a file
changed or deleted; files made by a command that was refused before it trained."""


def main() -> int:
    """Run the cases and print the results; the exit status is 1 if there is a bad one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, metavar="N", help="run this case alone")
    options = parser.parse_args()
    numbers = range(options.cases)
    if options.case is not None:
        numbers = range(options.case, options.case + 1)
    import_all()
    results: dict[str, Counter[str]] = {}
    bad = []
    with tempfile.TemporaryDirectory() as name:
        start = Path(name) / "start"
        prepare(start)
        for number in tqdm(numbers, disable=None):
            case, result, output = run_case(start, options.seed, number)
            results.setdefault(case.group, Counter())[result] += 1
            if result in BAD:
                bad.append(f"--seed {options.seed} --case {number}: {result}: {case}")
            if result in BAD or options.case is not None:
                print(f"--case {number}: {result}: {case}\n{output}", file=sys.stderr)
    print(as_markdown(results), *bad, sep="\n")
    return bool(bad)


def as_markdown(results: dict[str, Counter[str]]) -> str:
    """Return a table of the results by group."""
    kinds = ("accepted", "refused", *BAD)
    rows = [("damaged", "inputs", *kinds), ("---", *["---:"] * (len(kinds) + 1))]
    for group, counts in {**results, "all": sum(results.values(), Counter[str]())}.items():
        rows.append((group, f"{counts.total():,}", *(f"{counts[kind]:,}" for kind in kinds)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# Intact inputs.


def import_all() -> None:
    """Import all modules of `mt`, so that a forked process only has to run its command."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import mt

    for name in (
        *(module.name for module in pkgutil.walk_packages(mt.__path__, "mt.")),
        "datasets",
    ):
        if not name.endswith("__main__"):
            import_module(name)
    # A forked process can hang in its backward pass unless its parent has run one before.
    import_module("torch").zeros(1, requires_grad=True).sum().backward()
    gc.freeze()  # fewer pages to copy


def prepare(start: Path) -> None:
    """Write configs, corpora, documents, a run, its exports, and an unfinished run."""
    write_corpora(start)
    (start / "tiny.yaml").write_text(CONFIG)
    for suffix, section in FORMATS.items():
        (start / f"{suffix}.yaml").write_text(CONFIG.replace(TEXT_FILES, section))
    for command in (
        "train tiny.yaml --run run",
        "evaluate run --split test",
        "export run --to ctranslate2 --output ct2",
        "export run --to huggingface --output marian",
    ):
        if (done := run_forked(start, command)).status:
            raise SystemExit(f"mt {command}: {done.output}")
    shutil.copytree(start / "run", start / "stopped")
    for name in ("model.json", "model.safetensors"):
        (start / "stopped" / name).unlink()


def write_corpora(start: Path) -> None:
    """Write all splits, the training split in all formats, and its first pairs as documents."""
    import pyarrow.parquet

    for folder in ("corpus", "documents"):
        (start / folder).mkdir(parents=True)
    for split, count in PAIRS.items():
        for side in ("en", "zh"):
            lines = (QUICKSTART / f"{split}.{side}").read_text(encoding="utf-8").split("\n")
            text = "".join(f"{line}\n" for line in lines[:count])
            (start / f"corpus/{split}.{side}").write_text(text, encoding="utf-8")
    sides = [(start / f"corpus/train.{side}").read_bytes() for side in ("en", "zh")]
    for side, data in zip(("en", "zh"), sides, strict=True):
        (start / f"corpus/train.{side}.gz").write_bytes(gzip.compress(data))
    pairs = [*zip(*(data.decode().splitlines() for data in sides), strict=True)]
    table = pyarrow.Table.from_pylist([{"s": source, "t": target} for source, target in pairs])
    pyarrow.parquet.write_table(table, start / "corpus/train.parquet")
    for suffix, text in in_formats(pairs).items():
        if suffix in FORMATS:
            (start / f"corpus/train.{suffix}").write_text(text, encoding="utf-8")
    for suffix, text in in_formats(pairs[:3]).items():
        (start / f"documents/some.{suffix}").write_text(text, encoding="utf-8")


def in_formats(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return pairs, or their sources, in the text formats by suffix."""
    escaped = [(html.escape(source), html.escape(target)) for source, target in pairs]
    quoted = [(json.dumps(s), json.dumps(t, ensure_ascii=False)) for s, t in pairs]
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{s}</seg></tuv><tuv xml:lang="zh"><seg>{t}</seg></tuv></tu>\n'
        for s, t in escaped
    )
    segments = "".join(
        f'<trans-unit id="{n}"><source>{s}</source><target>{t}</target></trans-unit>\n'
        for n, (s, t) in enumerate(escaped)
    )
    header = 'msgid ""\nmsgstr "Language: zh\\nContent-Type: text/plain; charset=UTF-8\\n"\n\n'
    cues = "\n".join(f"00:00:0{n}.000 --> 00:00:0{n}.900\n{s}\n" for n, (s, _) in enumerate(pairs))
    return {
        "tmx": f'<tmx version="1.4"><header srclang="en"/><body>\n{units}</body></tmx>\n',
        "xlf": '<xliff version="1.2"><file source-language="en" target-language="zh"><body>\n'
        f"{segments}</body></file></xliff>\n",
        "po": header + "\n".join(f"msgid {s}\nmsgstr {t}\n" for s, t in quoted),
        "jsonl": "".join(f'{{"s": {s}, "t": {t}}}\n' for s, t in quoted),
        "tsv": "".join(f"{s}\t{t}\n" for s, t in pairs),
        "html": "<html><body>" + "".join(f"<p>{s} <b>x</b></p>\n" for s, _ in escaped),
        "md": "# Title\n\n" + "\n".join(f"- {s} *x* `y`\n" for s, _ in pairs),
        "srt": cues.replace(".000", ",000").replace(".900", ",900"),
        "vtt": f"WEBVTT\n\n{cues}",
        "txt": "".join(f"{s}\n" for s, _ in pairs),
    }


# Damage.

Edit = Callable[[bytes, random.Random], bytes]
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES: list[Any] = [None, True, -1, 0, 10**30, 1e308, float("nan"), "", "a\nb", "a\0b", "../x"]
VALUES += ["x" * 5000, [], {}, [1, "a"], {"a": {"b": [None]}}, DEEP]
"""Values of other types, sizes and depths."""


def change_value(tree: Any, by: random.Random) -> Any:
    """Replace, remove or rename a random value in nested dictionaries and lists."""
    container, key = by.choice([(each, key) for each in _containers(tree) for key in _keys(each)])
    kind = by.choice(("replace", "replace", "remove", "rename"))
    if kind == "replace" or isinstance(container, list):
        container[key] = by.choice(VALUES)
    elif kind == "remove":
        del container[key]
    else:
        new = by.choice((f"{key}x", key[1:], "a\nb", "x" * 5000, key.upper()))
        container[new] = container.pop(key)
    return tree


def _containers(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list) and tree:
        yield tree
        for key in _keys(tree):
            yield from _containers(tree[key])


def _keys(container: Any) -> list[Any]:
    return [*container] if isinstance(container, dict) else [*range(len(container))]


def change_json(data: bytes, by: random.Random) -> bytes:
    """Change a value of a JSON document."""
    return json.dumps(change_value(json.loads(data), by)).encode()


def change_line(data: bytes, by: random.Random) -> bytes:
    """Change a value in a line of JSON lines."""
    lines = data.splitlines()
    number = by.randrange(len(lines))
    lines[number] = change_json(lines[number], by)
    return b"".join(line + b"\n" for line in lines)


def change_header(data: bytes, by: random.Random) -> bytes:
    """Change a value in the header of a safetensors file."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = change_json(data[8:end], by)
    return len(header).to_bytes(8, "little") + header + data[end:]


def change_config(data: bytes, by: random.Random) -> bytes:
    """Change a value of a config; the result is JSON, which is YAML too."""
    from ruamel.yaml import YAML

    return json.dumps(change_value(YAML(typ="safe", pure=True).load(data), by)).encode()


def flip_bit(data: bytes, by: random.Random) -> bytes:
    """Change one bit."""
    place = by.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << by.randrange(8)]) + data[place + 1 :]


def insert(*texts: str) -> Edit:
    """Return an edit that inserts one of some texts at a random place."""

    def edit(data: bytes, by: random.Random) -> bytes:
        place = by.randrange(len(data) + 1)
        return data[:place] + by.choice(texts).encode("latin-1") + data[place:]

    return edit


def copy_of_neighbour(path: Path) -> None:
    """Put a copy of another file of its folder in place of a file."""
    others = [each for each in path.parent.iterdir() if each.is_file()]
    shutil.copy(min(others, default=path.parent.parent / "tiny.yaml"), path)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda _path: None,
    "copy of another file": copy_of_neighbour,
}
"""Makers of something else in place of a file."""
BINARY: dict[str, Edit] = {
    "flipped bit": flip_bit,
    "truncated": lambda data, by: data[: by.randrange(len(data))],
    "emptied": lambda _data, _by: b"",
    "noise": lambda data, by: by.randbytes(len(data)),
}
_ALIASES = "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)).encode()
_ENTITIES = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 20}">' for n in range(1, 20))
TEXT: dict[str, Edit] = {
    **BINARY,
    "not UTF-8": insert("\xff", "\xe4\xb8", "\xed\xa0\x80"),
    "NUL": insert("\0", "a\nb\0\n"),
    "marks": insert("<", "&", '"', "\\", "\t", "\r", "]]>", "{", "\xe2\x80\xa8", "\x1b["),
    "UTF-16": lambda data, _by: data.decode().encode("utf-16"),
    "lines removed": lambda data, _by: b"".join(data.splitlines(keepends=True)[:-2]),
    "long line": insert("x" * (5 << 20), "word " * (1 << 20)),
    "deep": insert(*(each * 5000 for each in ("[", "{a: ", "<a>", "- ", "> ", "<!--"))),
    "many": insert(*(each * 5000 for each in ("<a/>", "*_", "\n", "a: 1\n", "[](", "&amp;"))),
    "aliases": lambda data, _by: b"a0: &a0 [x]\n" + _ALIASES + data,
    "entities": insert(f'<!DOCTYPE x [<!ENTITY a0 "x">{_ENTITIES}]>&a19;'),
    "newline in a key": lambda data, _by: data + b'"a\\nb": 1\n',
}
VALUE: dict[str, Edit] = {
    ".json": change_json,
    ".jsonl": change_line,
    ".safetensors": change_header,
    ".yaml": change_config,
}
"""Change of a value by suffix."""
BINARY_SUFFIXES = {".gz", ".parquet", ".bin", ".model", ".spm", ".safetensors"}


def damage(path: Path, by: random.Random, *, is_read_once: bool) -> str:
    """Damage a file and return how; a pipe in place of a text that is read once is no damage."""
    if path.suffix in VALUE and by.random() < 0.6:
        path.write_bytes(VALUE[path.suffix](path.read_bytes(), by))
        return "value"
    edits = BINARY if path.suffix in BINARY_SUFFIXES else TEXT
    kind = by.choice([kind for kind in (*INSTEAD, *edits) if not is_read_once or kind != "pipe"])
    data = path.read_bytes()
    path.unlink()
    if kind in INSTEAD:
        INSTEAD[kind](path)
    else:
        path.write_bytes(edits[kind](data, by))
    return kind


def forge(folder: Path, before: bytes, after: bytes) -> None:
    """Replace the SHA-256 and size of a file, and the tokenizer's fingerprint, in JSON files."""

    def replace(old: str, new: str, size: int = 0) -> None:
        entry = rb'("bytes": )\d+(,\s*"sha256": "%s")' % new.encode()
        for path in folder.rglob("*.json"):
            if path.is_file():
                text = path.read_bytes().replace(old.encode(), new.encode())
                path.write_bytes(re.sub(entry, rb"\g<1>%d\2" % size, text))

    former = fingerprint(folder)
    old_sum, new_sum = (hashlib.sha256(data).hexdigest() for data in (before, after))
    replace(old_sum, new_sum, len(after))
    if former and (changed := fingerprint(folder)):
        replace(former, changed)


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of the tokenizer of a run; empty where its list is damaged."""
    try:
        sums = json.loads((folder / "tokenizer/tokenizer.json").read_bytes())["sha256"]
        lines = "".join(f"{name} {each}\n" for name, each in sums.items())
        return hashlib.sha256(lines.encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


# Cases.

TRANSLATING = (
    "translate {} corpus/test.en",
    "score {} --sources corpus/test.en --targets corpus/test.zh",
    "evaluate {} --split test",
    "info {}",
    "compare {} corpus/test.zh",
    "serve {} --port 0",
)
FROM_RUN = (
    *TRANSLATING,
    "export {} --to ctranslate2 --output new",
    "export {} --to huggingface --output new",
    "plot attention {} hello -o new.png",
    "data tokenizer {}",
    "train tiny.yaml --init-from {} --run new",
    "train tiny.yaml --run new --set tokenizer.from={}",
    "backtranslate {} corpus/test.zh --out new",
)
RESUMING = ("average {} --output new --last 2", "train {} --set training.max_updates=6")
FROM_CORPUS = ("train {} --run new", "data check {}", "data clean {} --out new", "plan {}")
FROM_CONFIG = (
    *FROM_CORPUS,
    "train {} --run run --set training.max_updates=6",
    "reproduce {} --run new",
    "inspect {}",
    "data tokenizer {}",
    "plot positions {} -o new.png",
    "plot schedule {} -o new.png",
)
GROUPS: dict[str, tuple[tuple[str, tuple[str, ...], str], ...]] = {
    "run folders": (
        ("run/[!.]*", (*FROM_RUN, *RESUMING), "run"),
        ("run/tokenizer/*", (*FROM_RUN, *RESUMING), "run"),
        ("run/checkpoints/*/*", RESUMING, "run"),
        ("run/evaluations/*", ("info {}", "evaluate --check {}/evaluations/test.json"), "run"),
        ("stopped/checkpoints/*/*", (*TRANSLATING, RESUMING[1]), "stopped"),
    ),
    "exports": (("ct2/**/*", TRANSLATING, "ct2"), ("marian/*", ("import {} --run new",), "marian")),
    "configs": (("tiny.yaml", FROM_CONFIG, "tiny.yaml"),),
    "corpora": (
        ("corpus/*.??", FROM_CORPUS, "tiny.yaml"),
        ("corpus/test.??", ("init corpus/test.en corpus/test.zh --output new.yaml",), ""),
        ("corpus/test.??", (TRANSLATING[1], TRANSLATING[4]), "run"),
        *((f"corpus/train*.{each}", FROM_CORPUS, f"{each}.yaml") for each in FORMATS),
    ),
    "documents": (("documents/*", ("translate run FILE -o new.txt",), "run"),),
}
"""By group: files, commands that read them, and the argument in place of {}."""
TURNS = ["run folders"] * 7 + ["exports"] * 3 + ["configs"] * 6 + ["corpora", "documents"] * 2


@dataclass(frozen=True, slots=True)
class Case:
    """Damage of one file, and a command that reads it."""

    group: str
    file: str
    damage: str
    command: str

    def __str__(self) -> str:
        return f"{self.file}, {self.damage}: mt {self.command}"


@dataclass(frozen=True, slots=True)
class Done:
    """Exit status, negative after a signal, and what the command took."""

    status: int
    output: str
    cpu_seconds: float
    seconds: float
    memory: int
    """Bytes that it used beyond those of its parent."""


def run_case(start: Path, seed: int, number: int) -> tuple[Case, str, str]:
    """Return a case, its result, and the output of the command."""
    by = random.Random(f"{seed} {number}")
    group = TURNS[number % len(TURNS)]
    pattern, commands, subject = by.choice(GROUPS[group])
    path = by.choice(sorted(each for each in start.glob(pattern) if each.is_file()))
    name = str(path.relative_to(start))
    command = by.choice(commands).format(subject).replace("FILE", name)
    folder = start.with_name("case")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(start, folder)
    how = damage(folder / name, by, is_read_once=group in ("corpora", "documents"))
    if group in ("run folders", "exports") and by.random() < 0.5 and (folder / name).is_file():
        how += ", forged checksums"
        forge(folder / subject, path.read_bytes(), (folder / name).read_bytes())
    before = contents(folder)
    done = run_forked(folder, command)
    result = judge(command, done, before, contents(folder))
    return Case(group, name, how, command), result, done.output


def contents(folder: Path) -> dict[str, object]:
    """Return the kind and the content of each file by name."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IFMT(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def judge(command: str, done: Done, before: dict[str, object], after: dict[str, object]) -> str:
    """Return the result of a command: accepted, refused, or one of BAD."""
    if done.cpu_seconds > MOST_CPU_SECONDS or done.seconds > MOST_SECONDS:
        return "hang"
    if done.memory > MOST_MEMORY:
        return "memory"
    if "Traceback" in done.output or done.status not in (0, 1, 2):
        return "traceback"
    # These commands write into the folder of a run.
    own = re.match(r"(?:train|evaluate) (\w+/|\w+)", command)
    changed = [name for name in before if after.get(name) != before[name]]
    if not all(own and name.startswith(own[1]) for name in changed):
        return "lost"
    if done.status != 2:
        return "accepted"
    message = f"\n{done.output}".rpartition("\nerror: ")[2].rstrip("\n")
    heading, *problems = message.split("\n")  # a config can have several problems
    if any(
        len(line) > LONGEST_MESSAGE or not re.search(r"[/`]|\w\.\w", line)
        for line in [heading, *problems]
    ) or (problems and not heading.endswith(f"{len(problems)} problems")):
        return "unclear"
    new = {name for name in after.keys() - before if not name.endswith(".lock")}
    return "left behind" if new and "new/metrics.jsonl" not in new else "refused"


def run_forked(folder: Path, command: str) -> Done:
    """Run `mt` in a folder in a forked process, within the limits."""
    cache, out = folder.with_name("cache"), folder.with_name("out.txt")
    shutil.rmtree(cache, ignore_errors=True)
    resident, started_at = memory("VmRSS"), time.monotonic()
    if (child := os.fork()) == 0:
        os._exit(run_here(folder, cache, out, command))
    while (found := os.wait4(child, os.WNOHANG))[0] == 0:
        time.sleep(0.005)
        if time.monotonic() - started_at > MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
    _, status, used = found
    return Done(
        os.waitstatus_to_exitcode(status),
        out.read_text(encoding="utf-8", errors="replace"),
        used.ru_utime + used.ru_stime,
        time.monotonic() - started_at,
        used.ru_maxrss * 1024 - resident,
    )


def memory(name: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    found = re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def run_here(folder: Path, cache: Path, out: Path, command: str) -> int:
    """Run `mt` in this process, which ends afterwards, and return the exit status."""
    import uvicorn

    from mt.__main__ import main as mt

    with out.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ["MT_CACHE"] = str(cache)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + MOST_ADDRESSES,) * 2)
    status: object = 1
    try:
        with (
            mock.patch.object(uvicorn.Server, "run"),  # the model is loaded, but not served
            mock.patch.object(sys, "argv", ["mt", *command.split()]),
            Path(os.devnull).open() as sys.stdin,
        ):
            status = mt()
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 1


if __name__ == "__main__":
    sys.exit(main())
