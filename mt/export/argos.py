"""Export of a run to a package of Argos Translate, the engine of LibreTranslate."""

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sentencepiece

from mt.config.data import TERM_TAGS
from mt.data.tokenizer import SOURCE_SPM, SPACE_MARK, Tokenizer
from mt.decoding.load import FinishedRun
from mt.errors import UserError, listed
from mt.export import export as exports
from mt.files import open_aside, replace_file, write_json
from mt.languages import base_language, code_parts, language_name
from mt.runs import EXPORTED_MODEL, exported_details

SUFFIX = ".argosmodel"
_CODES = """
af ar az be bg bn bxr ca cop cs cu cy da de el en eo es et eu fa fi fo fr fro ga gd gl got grc gv
hbo he hi hr hsb hu hy hyw id is it ja kk kmr ko ky la lij lt lv lzh mr ms mt myv nb nl nn orv pb
pcm pl pt ro ru sa sk sl sme sq sr sv ta te th tl tr ug uk ur vi wo zh zt
"""
"""Languages with a sentence splitter in Argos Translate 1.11, some by that of a related one."""
_VARIANTS = {"no": "nb", "pt br": "pb"}
_VARIANTS |= dict.fromkeys(("zh hant", "zh tw", "zh hk", "zh mo"), "zt")
_NAMES = {"pb": "Portuguese (Brazil)", "zt": "Chinese (traditional)"}
# Higher than in the public index, whose packages then do not replace this one in an update.
_PACKAGE_VERSION, _ARGOS_VERSION = "100.0", "1.11"
_SEARCH: dict[str, Any] = {"beam_size": 4, "length_penalty": 0.2}
"""The search of Argos Translate for any package."""


def find_code(language: str) -> str:
    """Return the code of a language in Argos Translate; raise UserError if it lacks the language.

    A country or script is dropped, except for traditional Chinese and the Portuguese of Brazil.
    Norwegian is Bokmål.
    """
    codes = _CODES.split()
    first, *more = code_parts(language)
    base = base_language(first)
    code = first if first in codes or language_name(base) != language_name(first) else base
    variants = [code, *(f"{code} {part}" for part in more)]
    code = next((_VARIANTS[variant] for variant in variants if variant in _VARIANTS), code)
    if code not in codes:
        raise UserError(
            f"`{language}`: Argos Translate lacks this language; it has {listed(codes)}"
        )
    return code


def export_argos(
    run: FinishedRun, output: Path, proof: exports.Proof, options: exports.ExportOptions
) -> exports.ExportResult:
    """Export a run to the package `output` with the export to CTranslate2 and its proof.

    The package is kept only if tokens and text of the sample are those of the run as well. It has
    no sentence splitter: Argos Translate downloads that of the source language. Raises UserError
    before anything is written if the run cannot be exported, or `output` exists.
    """
    if output.suffix != SUFFIX:
        raise UserError(f"{output}: name a file {SUFFIX}")
    exports.check_export_folder(output, options)
    data, tokenizer = run.config.data, run.tokenizer
    codes = find_code(data.source_language), find_code(data.target_language)
    if codes[0] == codes[1]:
        raise UserError(f"{run.path}: both languages are `{codes[0]}` for Argos Translate")
    if tags := {*tokenizer.source.tags, *tokenizer.target.tags} - {*TERM_TAGS}:
        raise UserError(f"Argos Translate cannot put {listed(sorted(tags)[:3])} before a line")
    with open_aside(output.with_suffix("")) as folder:
        exported, package = folder / "ctranslate2", folder / f"translate-{codes[0]}_{codes[1]}"
        result = exports.export_ctranslate2(run, exported, proof, options)
        if result.failure is not None:
            return result
        model = package / "model"
        model.mkdir(parents=True)
        for path in (exported / EXPORTED_MODEL, *exported_details(exported)):
            shutil.copyfile(path, model / path.name)
        shutil.copyfile(exported / SOURCE_SPM, package / "sentencepiece.model")
        names = [_NAMES.get(code, language_name(code)) for code in codes]
        metadata = {
            "package_version": _PACKAGE_VERSION,
            "argos_version": _ARGOS_VERSION,
            "from_code": codes[0],
            "from_name": names[0],
            "to_code": codes[1],
            "to_name": names[1],
            "type": "translate",
        }
        write_json(package / "metadata.json", metadata)
        translations, expected = _translate(package, tokenizer, proof.lines)
        same = sum(map(str.__eq__, translations, expected))
        if same < exports.MIN_IDENTICAL * len(expected):
            reason = f"{same} of {len(expected)} lines are equal in a package of Argos Translate"
            return replace(result, failure=reason)
        with replace_file(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for path in sorted(package.rglob("*")):
                archive.write(path, path.relative_to(folder), zipfile.ZIP_DEFLATED)
    note = f"in Argos Translate: {same} of {len(expected)} lines as in its search by the run"
    if proof.references is not None:
        scores = proof.evaluate(translations, proof.references)
        note += f", BLEU {scores.bleu.value:.2f}, chrF2 {scores.chrf.value:.2f}"
    return replace(result, note=note)


def _translate(
    package: Path, tokenizer: Tokenizer, lines: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Translate lines as Argos Translate does with a package, each as one sentence.

    Return with the translations those of its search with the tokenizer of the run, `_` as a space.
    """
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(package / "sentencepiece.model")
    )
    pieces = processor.encode(list(lines), out_type=str)
    source, target = tokenizer.source.processor, tokenizer.target.processor
    tokens = [[*map(source.id_to_piece, ids[:-1])] for ids in tokenizer.encode_source(lines)]
    of_package, found = (_search(package / "model", side) for side in (pieces, tokens))
    of_run = ([*map(target.piece_to_id, hypothesis)] for hypothesis in found)
    texts = [
        [text.replace(SPACE_MARK, " ").replace("_", " ") for text in side]
        for side in (map(processor.decode_pieces, of_package), map(tokenizer.decode_target, of_run))
    ]
    return [text.removeprefix(" ") for text in texts[0]], texts[1]


def _search(model: Path, tokens: list[list[str]]) -> list[list[str]]:
    import ctranslate2

    translator = ctranslate2.Translator(str(model), "cpu")
    results = translator.translate_batch(
        tokens, replace_unknowns=True, max_batch_size=1024, batch_type="tokens", **_SEARCH
    )
    return [result.hypotheses[0] for result in results]
