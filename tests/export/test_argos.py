"""Packages for Argos Translate: their contents, their proof, and the program itself."""

import json
import os
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.errors import UserError
from mt.export.argos import find_code
from mt.training.trainer import train
from tests.factories import Program, Refused, run_process

ARGOS = ("--to", "argos", "--device", "cpu")


def test_a_package_has_metadata_model_and_tokenizer(run: Path, program: Program) -> None:
    status, out, _ = program("export", run, *ARGOS)
    assert status == 0
    assert "in Argos Translate: 7 of 7 lines as in its search by the run, BLEU " in out
    output = run / "argos.argosmodel"
    with zipfile.ZipFile(output) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        archive.extractall(run / "unpacked")
    model = [f"model/{name}" for name in ("config.json", "model.bin", "shared_vocabulary.json")]
    files = ["metadata.json", *model, "sentencepiece.model"]
    assert names == [f"translate-en_de/{name}" for name in files]
    package = run / "unpacked" / "translate-en_de"
    assert json.loads((package / "metadata.json").read_text()) == {
        "package_version": "100.0",
        "argos_version": "1.11",
        "from_code": "en",
        "from_name": "English",
        "to_code": "de",
        "to_name": "German",
        "type": "translate",
    }
    assert not [path for path in run.iterdir() if path.name.startswith(".argos")]
    status, _, err = program("export", run, *ARGOS)
    assert (status, err) == (2, f"error: {output}: exists already; name another --output\n")
    assert program("export", run, *ARGOS, "--quantization", "int8", "--force")[0] == 0
    assert (run / "argos-int8.argosmodel").stat().st_size < output.stat().st_size


def test_a_package_with_other_tokens_is_not_kept(
    run: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.data.tokenizer.list_rules", lambda _: {"o": "e"})
    there = sorted(run.rglob("*"))
    status, _, err = program("export", run, *ARGOS)
    assert status == 1
    assert "not exported: " in err
    assert "of 7 lines are equal in a package of Argos Translate" in err
    assert sorted(run.rglob("*")) == there


def test_an_output_of_another_kind_is_refused(run: Path, refused: Refused, tmp_path: Path) -> None:
    there = sorted(tmp_path.rglob("*"))
    for output in ("out", "none/x.argosmodel"):
        refused("export", run, *ARGOS, "--output", tmp_path / output)
        assert sorted(tmp_path.rglob("*")) == there


@pytest.mark.parametrize("target", ["tt", "en-GB"])
def test_a_language_that_argos_lacks_or_cannot_tell_apart_is_refused(
    target: str, run: Path, refused: Refused
) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("target_language: de", f"target_language: {target}", 1))
    refused("export", run, *ARGOS)


def test_only_tags_that_lines_need_are_refused(
    tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    for name, setting in (("terms", "data.terms=0.5"), ("tags", "tokenizer.tags=[<2de>]")):
        overrides = ["training.export=off", setting]
        train(load_config(tiny_recipe, overrides=overrides), tmp_path / name)
    assert program("export", tmp_path / "terms", *ARGOS)[0] == 0
    status, _, err = program("export", tmp_path / "tags", *ARGOS)
    assert (status, err) == (2, "error: Argos Translate cannot put `<2de>` before a line\n")


@pytest.mark.parametrize(
    ("code", "languages"),
    [
        ("en", "en eng_Latn"),
        ("de", "de-AT"),
        ("zh", "zh cmn_Hans"),
        ("zt", "zh-Hant zho_TW"),
        ("pt", "pt-PT"),
        ("pb", "por_BR"),
        ("tl", "fil"),
        ("nb", "no nor-NO"),
        ("sr", "sr-Cyrl"),
        (None, "yue ka am_Ethi src"),
    ],
)
def test_codes_are_those_of_argos(code: str | None, languages: str) -> None:
    for language in languages.split():
        if code is None:
            with pytest.raises(UserError):
                find_code(language)
        else:
            assert find_code(language) == code


_PROGRAM = """
import sys
from argostranslate import package, sbd, translate

class OneSentence:  # the splitter is a download
    def __init__(self, *_, **__): pass
    def sentences(self, text): return [text]

sbd.SBDetect = OneSentence
package.install_from_path(sys.argv[1])
[installed] = package.get_installed_packages()
assert str(installed) == "English → German", str(installed)
for line in sys.stdin.read().splitlines():
    print(translate.translate(line, "en", "de"))
"""


@pytest.mark.skipif(find_spec("argostranslate") is None, reason="argostranslate is not installed")
def test_argos_translate_installs_the_package_and_translates_as_mt(
    run: Path, program: Program, tmp_path: Path
) -> None:
    assert program("export", run, *ARGOS)[0] == 0
    lines = "one two three four\nseven nine\nsix 17 one\n"
    search = ("--set", "decoding.beam=4", "--set", "decoding.length_penalty=0.2")
    plain = ("--set", "decoding.repair=off", "--device", "cpu")
    expected = program("translate", run, *search, *plain, stdin=lines.encode())
    folders = {"ARGOS_PACKAGES_DIR": str(tmp_path / "packages"), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", _PROGRAM, run / "argos.argosmodel"]
    environment = {**os.environ, **folders, "ARGOS_COMPUTE_TYPE": "default"}
    assert run_process(*command, input=lines, env=environment) == expected[1]
