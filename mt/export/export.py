"""Export of a run to CTranslate2 or a Hugging Face folder, kept only if it translates equally.

Both models translate by one plain search: a translation that repeats itself is not decoded again,
because CTranslate2 normalizes probabilities after blocking a sequence and this package before, so
that the loops of a weak model would end differently.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mt.config import Config, DecodingConfig
from mt.config.loading import dump_config
from mt.config.training import TrainingConfig
from mt.data.corpus_files import LineReader
from mt.data.pairs import SentencePair
from mt.data.splits import open_split
from mt.data.tokenizer import SOURCE_SPM, TARGET_SPM, Tokenizer, copy_tokenizer
from mt.decoding.ctranslate2_engine import describe_unsupported
from mt.decoding.engine import Engine, length_limit
from mt.decoding.load import (
    FinishedRun,
    StoredModel,
    build_engine,
    load_engine,
    read_run,
    require_ctranslate2,
)
from mt.decoding.translator import Translator
from mt.errors import DataError, RunError, UserError, listed
from mt.evaluation.calibration import calibrate_trained_run
from mt.evaluation.run_info import CARD_FILE
from mt.evaluation.scores import (
    Evaluation,
    choose_metrics,
    evaluate,
    is_better_than_chance,
    label_scores,
)
from mt.export.m2m100 import import_m2m100, write_m2m100
from mt.export.marian import import_marian, write_marian
from mt.files import (
    hash_file,
    open_aside,
    put_in_place,
    require_file,
    resolved,
    write_json,
    write_text,
)
from mt.model.device import available_devices, select_device
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    EXPORT_FILE,
    EXPORTED_MODEL,
    TOKENIZER_FOLDER,
    Exported,
    Quantization,
    export_folder,
    exported_details,
    is_export_of,
    is_exported,
    write_exported,
)
from mt.tables import align_columns

PARITY_FILE = "parity.json"
MIN_IDENTICAL = 0.995
"""Share of lines with equal translations that an export needs."""
MAX_BLEU_DIFFERENCE = 0.1
MAX_COST = 1.0
"""BLEU or chrF2 that a quantization may cost on the sample, unless it may be chance."""
_MAX_LINES, _MAX_LINES_FOR_COST = 500, 2000
"""Lines of the valid split for the proof that models are equal, and to measure a difference."""
_SHOWN_DIFFERENCES = 3
# Leaves room for other decoding settings; the table is small compared with a model.
_MIN_POSITIONS = 1024
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Number format of an export, and the proof by which it is kept."""

    quantization: Quantization = "none"
    sample: Path | None = None
    """Text in the source language for both models; None: the run's valid split."""
    device: str = "auto"
    """Device of the run."""
    min_identical: float = MIN_IDENTICAL
    """Share of lines with equal translations; 0 keeps a quantization whatever it costs."""
    most_lines: int | None = None
    """Number of lines that both models translate, fewer than usual."""
    card: str | None = None
    """Model card to write into the folder, as README.md."""
    program: str | None = None
    """Command that translates lines with the folder of an export to Bergamot, for its proof."""


@dataclass(frozen=True, slots=True)
class DifferentLine:
    """A line with two different translations, and the chrF between them, 0 to 100."""

    source: str
    of_run: str
    of_export: str
    chrf: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Scores, 0 to 100 or None without references, and time of one model on the sample."""

    bleu: float | None
    chrf: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Parity:
    """Comparison of the translations of a run and its export."""

    label: str
    """Lines and search, as `label_scores` returns them."""
    sentences: int
    identical: int
    run: ModelResult
    export: ModelResult
    signature: str
    """sacreBLEU signatures of both metrics, named and joined by "; "; empty without references."""
    worst: tuple[DifferentLine, ...]
    is_worse: bool = False
    """True if BLEU or chrF2 of the export is lower by more than chance."""

    def why_not_kept(self, options: ExportOptions) -> str | None:
        """Return why an export is not kept, unequal or at a cost above MAX_COST; None if it is."""
        share, limit = self.identical / self.sentences, options.min_identical
        is_exact = options.quantization == "none"
        if is_exact and share < limit:
            return (
                f"{self.identical} of {self.sentences} lines have equal translations, {share:.1%}; "
                f"at least {limit:.1%} are required"
            )
        before, after = self.run, self.export
        if before.bleu is None or before.chrf is None or after.bleu is None or after.chrf is None:
            return None
        bleu, chrf = before.bleu - after.bleu, before.chrf - after.chrf
        if is_exact and abs(bleu) >= MAX_BLEU_DIFFERENCE:
            return f"BLEU differs by {-bleu:+z.2f}; the limit is {MAX_BLEU_DIFFERENCE}"
        if not is_exact and limit and self.is_worse and max(bleu, chrf) > MAX_COST:
            return (
                f"the quantization costs {bleu:z.2f} BLEU and {chrf:z.2f} chrF2, more than "
                f"{MAX_COST} and more than chance; `mt export --force` keeps it all the same"
            )
        return None

    def as_text(self) -> str:
        """Return a table of both models, the share of identical lines, and the worst lines."""
        rows: list[tuple[str, ...]] = [(self.label, "BLEU", "chrF2", "sentences/s")]
        for name, result in (("run", self.run), ("export", self.export)):
            scores = ["-" if s is None else f"{s:.2f}" for s in (result.bleu, result.chrf)]
            rows.append((name, *scores, f"{self.sentences / result.seconds:.1f}"))
        share = f"{self.identical} of {self.sentences} lines identical"
        lines = [align_columns(rows, right=[1, 2, 3]), share]
        lines += filter(None, self.signature.split("; "))
        for line in self.worst:
            lines += ["", f"source: {line.source}", f"run:    {line.of_run}"]
            lines.append(f"export: {line.of_export}")
        return "\n".join(lines)


Translate = Callable[[Sequence[str]], list[str]]
SampleResult = tuple[list[str], ModelResult, str]
"""Translations of a sample by one model, their scores, and the signatures of these."""


@dataclass(frozen=True)
class Proof:
    """Lines that a run and its exports translate by one plain search, and their comparison."""

    run: FinishedRun
    lines: tuple[str, ...]
    references: tuple[str, ...] | None
    origin: str
    device: str = "auto"
    """Device of the run."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of `decoding`, for both models."""

    @classmethod
    def read(cls, run: FinishedRun, options: ExportOptions, **search: Any) -> "Proof":
        """Read the first lines of a text, or of the run's valid split, that are not blank.

        Raises UserError if there is no line, or none with a reference to measure the cost of a
        quantization.
        """
        file = options.sample
        needs_references = options.quantization != "none" and options.min_identical
        if file and needs_references:
            raise UserError(
                f"{file}: has no references to measure the cost of `{options.quantization}` with; "
                "leave --sample out for the valid split, or add --force"
            )
        origin = "the valid split" if file is None else str(file)
        hint = "give a text in the source language with --sample FILE"
        hint += " and --force" if needs_references else ""
        try:
            if file is not None:
                pairs = [SentencePair(line, "") for line in LineReader(require_file(file))]
            else:
                pairs = list(open_split(run.config.data, "valid").pairs())
        except (DataError, OSError) as error:
            raise UserError(f"{error}; {hint}") from error
        limit = _MAX_LINES if options.quantization == "none" else _MAX_LINES_FOR_COST
        limit = min(limit, options.most_lines or limit)
        pairs = [pair for pair in pairs if pair.source.strip()][:limit]
        if not pairs:
            raise UserError(f"{origin}: has no line to translate; {hint}")
        lines = tuple(pair.source for pair in pairs)
        references = tuple(pair.target for pair in pairs) if file is None else None
        return cls(run, lines, references, origin, options.device, search)

    def translator(
        self, engine: Engine, tokenizer: Tokenizer | None = None, **keys: Any
    ) -> Translator:
        """Return a translator with an engine: one search, in the direction of the valid split.

        The tokenizer is by default that of the run; `keys` are further ones of `decoding`.
        """
        run, config = self.run, self.run.config
        tags = {key: tag for key, tag in config.split_tags("valid").items() if tag}
        decoding = config.decoding.changed(repair="off", **tags, **self.search, **keys)
        return Translator(
            engine,
            tokenizer or run.tokenizer,
            decoding,
            longest_source=run.longest_source,
            direction=config.changed(decoding=decoding).direction,
            line_shape=run.record.line_shape,
        )

    @cached_property
    def of_run(self) -> Translator:
        """Translator with the weights of the run, in PyTorch."""
        return self.translator(build_engine([self.run], select_device(self.device)))

    @cached_property
    def expected(self) -> SampleResult:
        """Result of the run, the same for all of its exports.

        Raises RunError if its weights are not those of its config.
        """
        return self.translate(self.of_run.translate)

    def translate(self, translate: Translate) -> SampleResult:
        """Translate the lines and score the translations."""
        started_at = time.perf_counter()
        translations = translate(self.lines)
        seconds = time.perf_counter() - started_at
        if self.references is None:
            return translations, ModelResult(None, None, seconds), ""
        scores = self.evaluate(translations, self.references)
        result = ModelResult(scores.bleu.value, scores.chrf.value, seconds)
        signatures = (f"{score.name}: {score.signature}" for score in (scores.bleu, scores.chrf))
        return translations, result, "; ".join(signatures)

    def evaluate(self, translations: Sequence[str], references: Sequence[str]) -> Evaluation:
        """Score translations in the target language of the run."""
        language = self.run.config.data.target_language
        tokenizer = self.run.config.evaluation.bleu_tokenizer
        return evaluate(translations, [references], target_language=language, tokenizer=tokenizer)

    def compare(self, export: Translate, expected: SampleResult) -> Parity:
        """Translate the lines with an export, and compare with the result of the run."""
        of_run, run_result, signature = expected
        search = self.run.config.decoding.changed(**self.search)
        of_export, export_result, _ = self.translate(export)
        different = [
            DifferentLine(source, one, other, self.evaluate([other], [one]).chrf.value)
            for source, one, other in zip(self.lines, of_run, of_export, strict=True)
            if one != other
        ]
        language = self.run.config.data.target_language
        references = [self.references] if different and self.references else []
        is_worse = bool(references) and any(
            is_better_than_chance(metric, of_run, of_export, references)
            for metric in choose_metrics(language, self.run.config.evaluation.bleu_tokenizer)
        )
        return Parity(
            label_scores(self.origin, len(self.lines), f"{search.search_label}, without repair"),
            len(self.lines),
            len(self.lines) - len(different),
            run=run_result,
            export=export_result,
            signature=signature,
            worst=tuple(sorted(different, key=lambda line: line.chrf)[:_SHOWN_DIFFERENCES]),
            is_worse=is_worse,
        )


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Comparison of run and export."""

    parity: Parity
    failure: str | None
    """Reason for keeping no export, or None."""
    note: str = ""
    """A further result in one line."""


def export_ctranslate2(
    run: FinishedRun, output: Path, proof: Proof, options: ExportOptions
) -> ExportResult:
    """Export a run to the CTranslate2 model `output`.

    Both models translate the sample. Without quantization the export is kept only if the share
    `min_identical` of the translations is equal; with it, only if it costs at most MAX_COST or no
    more than chance, or if `min_identical` is 0. An earlier export at `output` is replaced. Raises
    UserError before anything is written if the run cannot be exported, or `output` holds other
    files.
    """
    require_ctranslate2()
    from mt.export.ctranslate2 import write_model

    if reason := describe_unsupported(run.config.decoding):
        raise UserError(reason)
    decoding = run.config.decoding.changed(quantization="none")
    positions, quantization = count_positions(run), options.quantization
    check_export_folder(output, options, is_replaced=True)
    expected = proof.expected
    with open_aside(output) as folder:
        write_model(
            folder,
            run.config.model,
            {name: tensor.numpy() for name, tensor in run.weights.items()},
            tokenizer=run.tokenizer,
            positions=positions,
            quantization=None if quantization == "none" else quantization,
        )
        copy_tokenizer(run.path, folder / TOKENIZER_FOLDER)
        run.tokenizer.write_for_others(folder)
        config = dump_config(run.config.changed(decoding=decoding))
        write_text(folder / CONFIG_FILE, config)
        exported = Exported(
            kind="ctranslate2",
            quantization=quantization,
            longest_source=run.longest_source,
            positions=positions,
            weights=run.record.sha256,
            tokenizer=run.tokenizer.fingerprint,
            model=hash_file(folder / EXPORTED_MODEL),
            details={path.name: hash_file(path) for path in exported_details(folder)},
            line_shape=run.record.line_shape,
        )
        write_exported(folder, exported)
        engine = load_engine(StoredModel.read(folder), "auto")
        parity = proof.compare(proof.translator(engine).translate, expected)
        failure = parity.why_not_kept(options)
        if failure is None:
            _check_earlier_export(output)  # others may have written there since
            card, earlier = "", output / CARD_FILE
            known = (output / EXPORT_FILE).read_bytes() if earlier.is_file() else b""
            if earlier.is_file() and hash_file(earlier).encode() not in known:
                text = "%s: is not the card of mt, so it is kept; delete it for a new one"
                _logger.info(text, earlier)
                shutil.copyfile(earlier, folder / CARD_FILE)
            elif options.card:
                write_text(folder / CARD_FILE, options.card)
                card = hash_file(folder / CARD_FILE)
            write_exported(folder, replace(exported, parity=asdict(parity), card=card))
            put_in_place(folder, output)
    return ExportResult(parity, failure)


def export_huggingface(
    run: FinishedRun, output: Path, proof: Proof, options: ExportOptions
) -> ExportResult:
    """Export a run to the Hugging Face folder `output`: M2M-100 with its positions, else Marian.

    The folder is read back as by `mt import`, without transformers, and translates the sample with
    the run's search settings. It is kept, with the comparison in parity.json, only if the
    translations are equal. Raises UserError before anything is written if the run cannot be
    exported, or `output` exists.
    """
    check_export_folder(output, options)
    decoding = run.config.decoding
    if (decoding.ensemble or decoding.adapter) and (reason := describe_unsupported(decoding)):
        raise UserError(reason)
    expected = proof.expected
    with open_aside(output) as temporary:
        folder, read_back = temporary / "model", temporary / "read_back"
        if run.config.model.positional == "fairseq":
            write_m2m100(run, folder)
            import_m2m100(folder, read_back)
        else:
            write_marian(run, folder)
            import_marian(folder, read_back)
        exported = read_run(read_back)
        engine = build_engine([exported], select_device(options.device))
        translator = proof.translator(engine, exported.tokenizer)
        parity = proof.compare(translator.translate, expected)
        failure = parity.why_not_kept(options)
        if failure is None:
            write_json(folder / PARITY_FILE, asdict(parity))
            if options.card:
                write_text(folder / CARD_FILE, options.card)
            put_in_place(folder, output, is_new=True)
    return ExportResult(parity, failure)


def check_export_folder(output: Path, options: ExportOptions, *, is_replaced: bool = False) -> None:
    """Raise UserError unless `output` is free, or with `is_replaced` an earlier export."""
    if not is_replaced and output.exists():
        raise RunError(f"{output}: exists already; name another --output")
    _check_earlier_export(output)
    if not (parent := resolved(output).parent).is_dir():
        raise UserError(f"{output}: there is no folder {parent} to write it into")
    if options.sample and resolved(options.sample).is_relative_to(resolved(output)):
        raise UserError(f"{options.sample}: is in {output}, which would be replaced")


def check_export_possible(training: TrainingConfig, decoding: DecodingConfig) -> None:
    """Raise UserError where `training.export` names an impossible export."""
    if training.export not in {"auto", "off"}:
        require_ctranslate2()
        if reason := _why_not_exported(training, decoding):
            raise UserError(f"`training.export: {training.export}`: {reason}")


def export_and_calibrate(run: Path, config: Config) -> None:
    """End a training: write the export and the confidence of its run, each if it has none."""
    export_trained_run(run, config.training, config.decoding)
    calibrate_trained_run(run, config)


def export_trained_run(run: Path, training: TrainingConfig, decoding: DecodingConfig) -> None:
    """Export a run whose training has finished into its folder, as `training.export` asks.

    An export that is there already is kept. The training has succeeded before, so a reason for no
    export is logged, never raised. All lines of the proof must be equal without a quantization,
    because the export then translates in place of the run.
    """
    if training.export == "off":
        return
    is_small = "int8" in (training.export, decoding.quantization)
    quantizations: list[Quantization] = ["none", "int8"] if is_small else ["none"]
    try:
        model = StoredModel.read(run, finished=True)
        weights = model.record.sha256
        missing = [q for q in quantizations if not is_export_of(export_folder(run, q), weights)]
        if not missing:
            return
        if reason := _why_not_exported(training, decoding):
            _logger.info("%s: no export to CTranslate2: %s", run, reason)
            return
        # The run translates the lines once, as many as the last quantization needs.
        most = model.config.training.final_pairs
        options = ExportOptions(missing[-1], device="cpu", min_identical=1.0, most_lines=most)
        proof = Proof.read(model.with_weights(), options)
        for quantization in missing:
            folder = export_folder(run, quantization)
            _logger.info("%s: exporting to CTranslate2, which translates faster on a CPU", folder)
            options = replace(options, quantization=quantization)
            result = export_ctranslate2(proof.run, folder, proof, options)
            if result.failure:
                _logger.warning("%s: not exported: %s", folder, result.failure)
    except (UserError, OSError, RuntimeError, ValueError) as error:
        _logger.warning("%s: not exported: %s", run, error)


def _why_not_exported(training: TrainingConfig, decoding: DecodingConfig) -> str | None:
    """Return why a run that was trained on this machine gets no export, or None."""
    device = available_devices()[0] if training.device == "auto" else training.device
    if device != "cpu":
        return f"the training device is {device}; `mt export` exports at any time"
    return describe_unsupported(decoding)


def _check_earlier_export(output: Path) -> None:
    """Raise UserError if a path is in use, unless by an earlier export or an empty folder."""
    if not output.exists():
        return
    names = [entry.name for entry in output.iterdir()] if output.is_dir() else [output.name]
    if not output.name or (names and not is_exported(output)):
        raise UserError(f"{output}: exists already and is not an export; name another --output")
    written = {EXPORT_FILE, EXPORTED_MODEL, CONFIG_FILE, TOKENIZER_FOLDER, EVALUATIONS_FOLDER}
    written |= {"config.json", CARD_FILE, SOURCE_SPM, TARGET_SPM}
    foreign = {name for name in names if not name.endswith("_vocabulary.json")} - written
    if foreign:
        raise UserError(f"{output}: also holds {listed(sorted(foreign))}; name another --output")


def count_positions(run: FinishedRun) -> int:
    """Return the length of the longest sequence that an exported model supports."""
    if run.config.model.positional == "learned":
        return run.config.model.max_positions
    source = run.longest_source
    return max(_MIN_POSITIONS, 2 * source, 2 * length_limit(source, run.config.decoding))
