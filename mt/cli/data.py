"""Commands `mt data check` and `mt data clean`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import AsJson, Overrides, command_group, load, refuse_given
from mt.cli.train import ConfigFile, SourceLanguage, TargetLanguage
from mt.runs import CONFIG_FILE
from mt.tables import align_columns

if TYPE_CHECKING:
    from mt.data.splits import CleanedFiles

data = command_group("data", "Check and clean corpora.")


@data.command()
def check(
    corpora: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG|RUN|CORPUS...",
            help="Config; run, to check its tokenizer too; or files and folders as for `mt init`.",
        ),
    ],
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check the corpora of a config, or some files, and suggest cleaning.

    With a run, or a config that copies a tokenizer, the report has the tokens per word and the
    characters that the tokenizer loses. The exit status is 0 if the corpora could be read, whatever
    the result.
    """
    subject, tokenizer = Path(corpora[0]), None
    config = subject / CONFIG_FILE if (subject / CONFIG_FILE).is_file() else subject
    is_config = config.suffix in {".yaml", ".yml"} or not (config.exists() or ":" in corpora[0])
    if len(corpora) > 1 or not is_config:
        from mt.recipes.detection import detect_corpora, detect_data

        refuse_given({"--set": overrides}, "changes a config, and corpora are given")
        given = source_language, target_language
        data = detect_data(detect_corpora(corpora), valid=(), tests=(), given=given)
    else:
        languages = {"--source-language": source_language, "--target-language": target_language}
        refuse_given(languages, "is for corpora; a config names its languages")
        loaded = load(config, overrides)
        from mt.data.tokenizer import Tokenizer, find_tokenizer

        _, origin = loaded.tokenizer_origin or ("", subject)
        folder = find_tokenizer(subject if subject.is_dir() else origin)
        # Neither a run that has not trained its tokenizer yet, nor a config without one.
        tokenizer = Tokenizer.load(folder) if folder != subject else None
        data = loaded.data
    from mt.doctor.check import check_corpora
    from mt.doctor.corpus_report import as_text, dump_cleaning

    report = check_corpora(data, tokenizer=tokenizer)
    if as_json:
        typer.echo(json.dumps(asdict(report), default=dump_cleaning, ensure_ascii=False))
    else:
        typer.echo(as_text(report))


@data.command()
def clean(
    config: ConfigFile,
    out: Annotated[
        Path, typer.Option(metavar="DIR", writable=True, help="New folder for the output.")
    ],
    overrides: Overrides = None,
) -> None:
    """Write the training corpora of a config, cleaned by `data.cleaning`.

    Training applies the same cleaning by itself; use this to inspect the result, or for other
    programs. removed.tsv has the pairs removed, each with the reason.
    """
    loaded = load(config, overrides)
    from mt.data.splits import write_cleaned

    corpora = write_cleaned(loaded.data, out)
    texts = [f"{corpus.key}:\n{_describe_cleaning(corpus)}" for corpus in corpora]
    typer.echo("\n\n".join(texts) if len(corpora) > 1 else _describe_cleaning(corpora[0]))


def _describe_cleaning(cleaned: "CleanedFiles") -> str:
    counts = {f"removed by `{name}`": count for name, count in cleaned.removed.items()}
    counts["pairs kept"] = cleaned.total - sum(cleaned.removed.values())
    rows = [("pairs read", f"{cleaned.total:,}", "")]
    rows += [(name, f"{n:,}", f"{n / cleaned.total:.3%}") for name, n in counts.items()]
    rows.append(("changed among these", f"{cleaned.changed:,}", ""))
    return "\n".join([align_columns(rows, right=(1, 2)), *map(str, cleaned.files)])
