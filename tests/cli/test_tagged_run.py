"""Commands on a run with two target languages, selected by tags."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mt import Translator
from mt.config.loading import load_config
from mt.errors import UserError
from mt.training.trainer import train
from tests.factories import Program


@pytest.fixture(scope="module")
def run(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run trained into German, and into German labelled as French."""
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


def test_missing_tag_is_refused_with_the_known_ones(
    run: Path, tiny_corpus: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text = tiny_corpus / "valid.en"
    tags = "`<2de>` (en to de) or `<2fr>` (en to fr), as in `--set 'decoding.tag=<2de>'`"
    out = tmp_path / "out"
    for call in (
        ("translate", run, text, "-o", out),
        ("distill", run, text, "--out", out),
        ("score", run, "--sources", text, "--targets", text),
    ):
        message = refused(*call)
        assert message.startswith(f"{run}: each ")
        assert message.endswith(tags)
    assert not out.exists()
    with pytest.raises(UserError):
        Translator.load(run)


@pytest.mark.parametrize("tag", ["<2fr>", "null"])
def test_tag_can_be_chosen_or_switched_off(
    tag: str, run: Path, tiny_corpus: Path, program: Program
) -> None:
    text = tiny_corpus / "valid.en"
    status, out, err = program("translate", run, text, "--set", f"decoding.tag={tag}")
    assert (status, out.count("\n")) == (0, text.read_text().count("\n"))
    assert "tag" not in err


def test_score_depends_on_the_tag(run: Path, tiny_corpus: Path, program: Program) -> None:
    files = ("--sources", tiny_corpus / "valid.en", "--targets", tiny_corpus / "valid.de")
    found = {
        tag: program("score", run, *files, "--set", f"decoding.tag={tag}")[1]
        for tag in ("<2de>", "<2fr>", "null")
    }
    assert len({*found.values()}) == 3


def test_generated_pairs_have_the_languages_of_the_tag(
    run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    text = tiny_corpus / "valid.en"
    limits = ("--set", "decoding.max_length_ratio=9", "--set", "decoding.max_length_extra=90")
    for tag, language in (("<2fr>", "fr"), ("<2de>", "de")):
        out = tmp_path / language
        call = ("distill", run, text, "--out", out, "--set", f"decoding.tag={tag}", *limits)
        status, printed, _ = program(*call)
        assert status == 0
        assert printed.splitlines()[-2:] == [str(out / "valid.en"), str(out / f"valid.{language}")]


def test_info_and_model_card_list_directions_and_tags(run: Path, program: Program) -> None:
    status, out, _ = program("info", run)
    shown = dict(line.split(None, 1) for line in out.split("\n\n")[0].splitlines())
    assert status == 0
    assert shown["languages"] == "en to de, en to fr"
    assert shown["tags"] == "`<2de>` (en to de), `<2fr>` (en to fr)"
    card = (run / "README.md").read_text()
    assert card.startswith('---\nlanguage: ["en", "de", "fr"]\npipeline_tag: "translation"\n---\n')
    assert "# Translation from `en` to `de` and from `en` to `fr`\n" in card
    assert "| tags | `<2de>` (en to de), `<2fr>` (en to fr) |\n" in card
    assert "--output output.txt --set 'decoding.tag=<2de>'\n" in card
