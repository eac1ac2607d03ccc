"""Documents: links, commands, settings and numbers are real."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from mt.cli.app import app
from mt.config.data import TextSource
from mt.config.loading import load_config
from mt.config.problems import all_places
from mt.config.root import Config

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "docs" / "README.zh.md"
RESULTS = ROOT / "docs" / "results.md"
READMES = [ENGLISH, CHINESE]
PAGES = [
    ENGLISH,
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "data" / "README.md",
    ROOT / "data" / "quickstart" / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
]
LAB = sorted((ROOT / "docs" / "lab").glob("*.md"))
"""Dated records, whose commands and options may be gone; their links are real."""
PROGRAM: Any = get_command(app)
GROUPS = [[name] for name, command in PROGRAM.commands.items() if hasattr(command, "commands")]
"""Commands with subcommands."""
SHELLS = {"sh", "bash", "shell"}
BEFORE_A_PROGRAM = {"$", "do", "then", "time", "nohup", "env"}

_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]+`+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: +(\S+)", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w.]*\d)", re.ASCII)


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _FENCED.findall(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return the link targets of a page, in order."""
    return [first or second for first, second in _LINK.findall(_CODE.sub("", prose(page)))]


def resolved(link: str, page: Path) -> str:
    """Return a link of a page relative to the root of the project."""
    if "://" in link:
        return link
    path, mark, anchor = link.partition("#")
    place = (page.parent / path).resolve() if path else page
    return f"{place.relative_to(ROOT.resolve())}{mark}{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def simple_commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell script, pipelines and lists taken apart."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word and set(word) <= set("|&;()"):
                if words:
                    yield words
                words = []
            elif words or not (word in BEFORE_A_PROGRAM or _ASSIGNMENT.match(word)):
                words.append(word)


def script_commands(page: Path) -> list[list[str]]:
    """Return the commands of a page's blocks of shell, and of its consoles behind `$`."""
    if page.name == "cli.md":  # shows forms of commands
        return []
    scripts = [block.text for block in blocks(page) if block.language in SHELLS]
    consoles = [block.text for block in blocks(page) if block.language == "console"]
    scripts += [line[2:] for text in consoles for line in text.splitlines() if line[:2] == "$ "]
    return [words for script in scripts for words in simple_commands(script)]


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page's blocks and of its sentences."""
    spans = [span.strip("`") for span in _CODE.findall(prose(page))]
    inline = [span for span in spans if re.match(r"(python -m )?mt |make ", span)]
    return [*script_commands(page), *(words for span in inline for words in simple_commands(span))]


def mt_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of a command that calls `mt` under any of its names, else None."""
    if words[:3] == ["python", "-m", "mt"]:
        return words[3:]
    return words[1:] if Path(words[0]).name == "mt" else None


def mt_calls(page: Path) -> list[list[str]]:
    if page.name == "CHANGELOG.md":  # names removed commands and options
        return []
    calls = [mt_arguments(words) for words in commands(page)]
    return [call for call in calls if call is not None]


@cache
def options_of(names: str) -> set[str]:
    """Return the options of a command; "" is the program itself."""
    command = PROGRAM
    for name in names.split():
        assert name in command.commands, f"mt {names}: no such command"
        command = command.commands[name]
    return {"--help", *(option for each in command.params for option in each.opts)}


def tables(page: Path) -> list[list[str]]:
    """Return the cells of each row of the tables in a page, heads and rulers left out."""
    rows = []
    for table in re.findall(r"(?:^\|.*\n?)+", prose(page), re.MULTILINE):
        rows += [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    return rows


def numbers(row: list[str]) -> list[str]:
    return _NUMBER.findall(_LINK.sub("", " | ".join(row)))


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*PAGES, *LAB], ids=page_name)
def test_links_have_a_target(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: no such file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_readmes_have_the_same_sections_code_links_and_numbers() -> None:
    sections = [re.findall(r"^(#+) ", prose(page), re.MULTILINE) for page in READMES]
    assert sections[0] == sections[1]
    assert blocks(ENGLISH) == blocks(CHINESE)
    english, chinese = ([resolved(link, page) for link in links(page)] for page in READMES)
    assert [english.pop(0), chinese.pop(0)] == [page_name(CHINESE), page_name(ENGLISH)]
    assert english == chinese
    rows = [[numbers(row) for row in tables(page)] for page in READMES]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("page", READMES, ids=page_name)
def test_scores_of_readmes_are_in_results(page: Path) -> None:
    shown = [number for row in tables(page) for number in numbers(row) if "." in number]
    recorded = set(_NUMBER.findall(RESULTS.read_text(encoding="utf-8"))) if shown else set()
    assert [number for number in shown if number not in recorded] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_mt_commands_and_options_exist(page: Path) -> None:
    for arguments in mt_calls(page):
        words = [word for word in arguments if not word.startswith("-")]
        name = " ".join(words[: 2 if words[:1] in GROUPS else 1])
        used = {word.partition("=")[0] for word in arguments if re.match("--?[a-z]", word)}
        unknown = used - options_of(name)
        assert not unknown, f"mt {name} has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_mt_commands_of_blocks_parse(page: Path) -> None:
    """Values of options and the number of arguments are right, too."""
    for words in script_commands(page):
        arguments = mt_arguments([*takewhile(lambda word: word not in ("<", ">"), words)])
        if arguments is None:
            continue
        command = PROGRAM
        for name in arguments[: 2 if arguments[:1] in GROUPS else 1]:
            command, arguments = command.commands[name], arguments[1:]
        command.make_context(f"mt {command.name}", arguments)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_config_keys_exist(page: Path) -> None:
    keys = {".".join(place.keys[:2]) for place in all_places(Config)}
    sections = "|".join(Config.model_fields)
    named = re.findall(rf"`((?:{sections})\.(?!json|md|tsv|txt|(?:\w+\.)*bin)\w+)", prose(page))
    assert page.name == "CHANGELOG.md" or {*named} <= keys


def test_extras_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = tables(ROOT / "docs" / "install.md")
    listed = {name for row in rows for name in row[0].split(", ")}
    extras = {*project["optional-dependencies"]} - {"dev", "docs"}
    assert {f"`{extra}`" for extra in extras} <= listed


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lines_have_at_most_120_characters(page: Path) -> None:
    if page.name not in ("cli.md", "CHANGELOG.md"):  # a table row or an image is one line
        lines = [line for line in prose(page).splitlines() if not line.startswith(("|", "!"))]
        assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_recipes_and_settings_of_commands_are_valid(page: Path) -> None:
    for arguments in mt_calls(page):
        for path in (word for word in arguments if word.startswith("configs/")):
            assert (ROOT / path).is_file(), f"{path}: no such recipe"
        settings = [value for option, value in pairwise(arguments) if option == "--set"]
        load_config(ROOT / "configs" / "quickstart.yaml", overrides=settings)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    for program, *words in commands(page):
        if program != "make":
            continue
        for word in words:
            name, equals, value = word.partition("=")
            assert name in (variables if equals else targets), f"make {word}"
            if name == "RECIPE":
                assert (ROOT / "configs" / f"{value}.yaml").is_file(), f"make {word}"


def test_python_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r"Python :: (\d\.\d+)", "\n".join(project["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"[\d.]+", matrix) == classified
    assert project["requires-python"] == f">={classified[0]}"
    for page in READMES:
        (stated,) = re.findall(r"Python (\d\.\d+)\D{1,4}(\d\.\d+)", prose(page))
        assert stated == (classified[0], classified[-1])


def test_config_example_loads(tmp_path: Path) -> None:
    block = next(block for block in blocks(ROOT / "docs" / "data.md") if block.language == "yaml")
    file = tmp_path / "my.yaml"
    file.write_text(block.text, encoding="utf-8")
    config = load_config(file)
    assert isinstance(config.data.train, TextSource)
    assert config.data.train.source == "train.en"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_sections_of_config_examples_are_valid(page: Path) -> None:
    for block in blocks(page):
        sections = YAML(typ="safe").load(block.text) if block.language == "yaml" else {}
        keys = [(section, *item) for section, values in sections.items() for item in values.items()]
        overrides = [f"{section}.{key}={json.dumps(value)}" for section, key, value in keys]
        load_config(ROOT / "configs" / "quickstart.yaml", overrides=overrides)


def test_readme_lists_the_reading_path() -> None:
    """At most 20 files and 4,700 lines take a sentence from text to its loss."""
    steps = re.findall(r"^\d\. .*(?:\n   .*)*", prose(ENGLISH), re.MULTILINE)
    files = re.findall(r"\]\((mt/[\w/]+\.py)\)", "\n".join(steps))
    assert 15 < len(files) <= 20
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= 4700
