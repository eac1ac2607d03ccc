"""A run that has learnt two target languages, told apart by tags: what the commands say of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mt import Translator
from mt.config.loading import load_config
from mt.errors import UserError
from mt.training.trainer import train

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was trained into German and, or so it is told, into French."""
    folder = tmp_path_factory.mktemp("tagged") / "run"
    corpus = tiny_recipe.parent / "train"
    files = f"source: {corpus}.en, target: {corpus}.de"
    recipe = folder.with_suffix(".yaml")
    recipe.write_text(
        "".join(
            f"  train: {{corpora: {{a: {{{files}, tag: <2de>}}, "
            f"b: {{{files}, tag: <2fr>, target_language: fr}}}}}}\n"
            if line.startswith("  train:")
            else line
            for line in tiny_recipe.read_text().splitlines(keepends=True)
        )
    )
    overrides = ["tokenizer.tags=[<2de>, <2fr>]", "data.valid.tag=<2de>"]
    overrides += ["training.max_updates=2", "training.validate_every=2"]
    train(load_config(recipe, overrides=overrides), folder)
    return folder


def test_a_forgotten_tag_is_told_with_those_that_there_are(
    run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    text = tiny_corpus / "valid.en"
    told = (
        f"error: {run}: each training line begins with a tag; choose one of "
        "`<2de>` (en to de) or `<2fr>` (en to fr), as in `--set 'decoding.tag=<2de>'`\n"
    )
    out = tmp_path / "out"
    assert program("translate", run, text, "-o", out) == (2, "", told)
    assert program("backtranslate", run, text, "--out", out) == (2, "", told)
    assert program("score", run, "--sources", text, "--targets", text) == (2, "", told)
    assert not out.exists()
    with pytest.raises(UserError, match="choose one of"):
        Translator.load(run)


@pytest.mark.parametrize("tag", ["<2fr>", "null"])
def test_a_chosen_tag_is_taken_also_none(
    tag: str, run: Path, tiny_corpus: Path, program: Program
) -> None:
    text = tiny_corpus / "valid.en"
    status, out, err = program("translate", run, text, "--set", f"decoding.tag={tag}")
    assert (status, out.count("\n")) == (0, text.read_text().count("\n"))
    assert "tag" not in err


def test_a_translation_is_scored_under_the_chosen_tag(
    run: Path, tiny_corpus: Path, program: Program
) -> None:
    files = ("--sources", tiny_corpus / "valid.en", "--targets", tiny_corpus / "valid.de")
    found = {
        tag: program("score", run, *files, "--set", f"decoding.tag={tag}")[1]
        for tag in ("<2de>", "<2fr>", "null")
    }
    assert len({*found.values()}) == 3


def test_made_pairs_are_in_the_languages_of_the_tag(
    run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    text = tiny_corpus / "valid.en"
    limits = ("--set", "decoding.max_length_ratio=9", "--set", "decoding.max_length_extra=90")
    for tag, language in (("<2fr>", "fr"), ("<2de>", "de")):
        out = tmp_path / language
        call = ("backtranslate", run, text, "--out", out, "--set", f"decoding.tag={tag}", *limits)
        status, told, _ = program(*call)
        assert status == 0
        assert told.splitlines()[-2:] == [str(out / f"valid.{language}"), str(out / "valid.en")]


def test_all_directions_and_tags_are_named(run: Path, program: Program) -> None:
    status, out, _ = program("info", run)
    told = dict(line.split(None, 1) for line in out.split("\n\n")[0].splitlines())
    assert status == 0
    assert told["languages"] == "en to de, en to fr"
    assert told["tags"] == "`<2de>` (en to de), `<2fr>` (en to fr)"
    card = (run / "README.md").read_text()
    assert card.startswith('---\nlanguage: ["en", "de", "fr"]\npipeline_tag: translation\n---\n')
    assert "# Translation from `en` to `de` and from `en` to `fr`\n" in card
    assert "| tags | `<2de>` (en to de), `<2fr>` (en to fr) |\n" in card
    assert "--output output.txt --set 'decoding.tag=<2de>'\n" in card
    assert 'Translator.load(".", overrides=["decoding.tag=<2de>"])\n' in card
