"""Pairs of languages of a server: its runs, their models in memory, the choice by languages."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from mt.config.data import Direction
from mt.data.filters import load_identifier
from mt.data.glossary import Term, read_memory
from mt.decoding.load import StoredModel, require_tag
from mt.decoding.translator import Translator
from mt.errors import DataError, RunError, UserError
from mt.files import read_json
from mt.languages import base_language, code_parts, describe_country, language_name
from mt.runs import MODEL_FILE, Provenance, is_finished
from mt.serving.batching import FAILED, TRIAL
from mt.tables import make_printable

INVALID = 400
LOOK_SECONDS = 1.0
"""Time between two looks at the files of the models in memory."""
MOST_ALTERNATIVES = 9
_MODEL_FILES = ("*.yaml", "*.json", "*.safetensors", "*.bin", "tokenizer/*", "ctranslate2*/*")
_SHOWN = 20
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options for all models of a server; `terms` are for requests without a glossary."""

    overrides: Sequence[str] = ()
    device: str = "auto"
    terms: tuple[Term, ...] = ()
    memory: Path | None = None


@dataclass(slots=True, eq=False)
class ServedRun:
    """Run of a server, and its model while it is in memory."""

    folder: Path
    direction: Direction
    quality: str = ""
    """Score on the validation split."""
    alternatives: int = 0
    """Number of translations after the best one, at most MOST_ALTERNATIVES."""
    options: ModelOptions = ModelOptions()
    translator: Translator | None = None
    files: frozenset[tuple[Any, ...]] = frozenset()
    """Files of the model in memory, or of a replacement that cannot be used."""

    @classmethod
    def read(cls, folder: Path, options: ModelOptions, *, with_model: bool = True) -> "ServedRun":
        """Read a run and, `with_model`, load and try its model; raise UserError."""
        files = list_files(folder)
        stored = StoredModel.read(folder, options.overrides)
        decoding, direction = stored.config.decoding, stored.config.direction
        require_tag(stored.config.tags_to_choose(), options.overrides, name=folder)
        score = read_json(folder / MODEL_FILE, Provenance).score if is_finished(folder) else ""
        counts = {"greedy": 0, "beam": decoding.beam - 1}
        alternatives = min(counts.get(decoding.search, MOST_ALTERNATIVES), MOST_ALTERNATIVES)
        run = cls(folder, direction, score, alternatives, options, files=files)
        if with_model:
            run.translator = Translator.from_stored(
                stored, options.device, terms=options.terms, memory=options.memory
            )
            # Links need the PyTorch engine beside an export: load it before its files are replaced.
            run.translator.find_links([*run.translator.stream([TRIAL])])
        elif options.memory is not None:
            try:
                read_memory(options.memory, direction)
            except DataError as error:
                _logger.warning("%s has no translation memory: %s", folder, error)
                run.options = replace(options, memory=None)
        return run


def list_files(folder: Path) -> frozenset[tuple[Any, ...]]:
    """Return path, inode, size and time of the files that form the model of a run."""
    facts = set()
    with suppress(OSError):  # one is being replaced
        for path in (path for pattern in _MODEL_FILES for path in folder.glob(pattern)):
            stat = path.stat()
            facts.add((path, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return frozenset(facts)


@dataclass(frozen=True, slots=True)
class Route:
    """Way between two languages: by one run, or by two with the language `via` between them."""

    direction: Direction
    runs: tuple[ServedRun, ...]
    via: str | None = None

    def __str__(self) -> str:
        return f"{self.direction} via {self.via}" if self.via else str(self.direction)

    def describe(self) -> dict[str, str]:
        """Return names and languages, and the quality of a single run, for `/health`."""
        names = [run.folder.resolve().name for run in self.runs]
        facts = {"model": " + ".join(names), "quality": "" if self.via else self.runs[0].quality}
        return facts | self.direction._asdict() | ({"via": self.via} if self.via else {})


class Pairs:
    """Runs of a server by their languages, with at most `keep` models in memory.

    A model is loaded on first use, in place of the one that was not used for the longest time;
    requests that use that one keep it until they end. All methods run in one event loop.
    """

    def __init__(self, runs: Sequence[ServedRun], keep: int | None = None) -> None:
        """Raise UserError for two runs of one pair; `keep` is by default all."""
        self.keep = keep or len(runs)
        self.routes = list[Route]()
        for run in runs:
            for other in self._fit(*run.direction):
                both = f"{other.runs[0].folder} and {run.folder} both translate"
                raise UserError(f"{both} {run.direction}; serve one of them")
            self.routes.append(Route(run.direction, (run,)))
        for first, second in permutations(runs, 2):
            (source, via), (after, target) = first.direction, second.direction
            is_way = is_same_language(via, after) and not is_same_language(source, target)
            if is_way and not self._fit(source, target):
                self.routes.append(Route(Direction(source, target), (first, second), via))
        self._in_memory = [run for run in runs if run.translator]
        """Runs with a model, the last used one at the end."""
        self._loading = asyncio.Lock()

    def __str__(self) -> str:
        name = "model" if len(self.routes) == 1 else "server"
        return f"the {name} translates {', '.join(map(str, self.routes))}"

    def _fit(self, source: str | None, target: str | None) -> list[Route]:
        return [
            route
            for route in self.routes
            if (not source or is_same_language(source, route.direction.source))
            and (not target or is_same_language(target, route.direction.target))
        ]

    def choose(self, source: str | None, target: str | None, text: str | None = None) -> Route:
        """Return the route for the languages of a request; None stands for any.

        Of several sources it is the most probable language of `text`, if given. Raises
        HTTPException (400), with all routes, if there is none, or not only one.
        """
        routes = self._fit(source, target)
        if not routes:
            name, code = ("target", target) if self._fit(source, None) else ("source", source)
            shown = " ".join(make_printable(code or "").split())[:_SHOWN]
            reason = describe_country(shown) or f"`{shown}` is not supported"
            raise HTTPException(INVALID, f"`{name}`: {reason}; {self}")
        if text is not None and len(routes) > 1:
            with suppress(DataError):  # py3langid is not installed
                likely = dict(load_identifier().rank(text))
                codes = [base_language(route.direction.source) for route in routes]
                best = max(codes, key=lambda code: likely.get(code, 0.0))
                routes = [routes[codes.index(best)]]
        if len(routes) > 1:
            raise HTTPException(INVALID, f"name the languages by `source` and `target`; {self}")
        return routes[0]

    def list_languages(self) -> list[dict[str, Any]]:
        """Return the languages, each with those that it can be translated into."""
        targets: dict[str, list[str]] = {}
        for source, target in [route.direction for route in self.routes]:
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        return [
            {"code": code, "name": language_name(code), "targets": codes}
            for code, codes in targets.items()
        ]

    async def open(self, route: Route) -> list[Translator]:
        """Return the models of a route, loaded if they are not in memory.

        Raises HTTPException (500) for a run that cannot be loaded; the log has the reason.
        """
        models = []
        for run in route.runs:
            if run.translator is None:
                async with self._loading:
                    if run.translator is None:  # no other request has loaded it meanwhile
                        while len(self._in_memory) >= self.keep:
                            self._in_memory.pop(0).translator = None
                        await self._load(run)
            if run.translator is None:
                raise HTTPException(*FAILED)
            models.append(run.translator)
            self._in_memory = [*(other for other in self._in_memory if other is not run), run]
        return models

    async def watch(self) -> None:
        """Load the models of runs that were replaced, beside those in memory until then."""
        seen: dict[ServedRun, Any] = {}
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for run in self._in_memory:
                files = await asyncio.to_thread(list_files, run.folder)
                is_complete = files == seen.get(run)  # files that still change are being written
                seen[run] = files
                if is_complete and files != run.files:
                    async with self._loading:
                        if run.translator is not None:
                            await self._load(run)

    async def _load(self, run: ServedRun) -> None:
        """Load the model of a run in place of that in memory, if any; log an error."""
        run.files = list_files(run.folder)
        try:
            new = await asyncio.to_thread(ServedRun.read, run.folder, run.options)
            if new.direction != run.direction:
                raise RunError(f"it translates {new.direction}, not {run.direction}")
        except Exception as error:
            kept = "; the model in memory is kept" if run.translator else ""
            _logger.error("cannot load %s: %s%s", run.folder, error, kept)
        else:
            run.quality, run.alternatives = new.quality, new.alternatives
            run.translator, run.files = new.translator, new.files


def is_same_language(asked: str, offered: str) -> bool:
    """Return True for equal languages; one code may add a country or script (zh, zho-Hant)."""
    (first, *more), (offered_first, *offered_more) = map(code_parts, (asked, offered))
    shared = min(len(more), len(offered_more))
    is_same = language_name(first) == language_name(offered_first)
    return is_same and more[:shared] == offered_more[:shared]
