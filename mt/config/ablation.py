"""Ablation file: a base config and the changes to train one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mt.config.base import LocalPath, Section
from mt.config.document import Document, Keys, Problem, read_document
from mt.config.loading import load_config, validate_document
from mt.config.problems import config_error
from mt.config.root import Config
from mt.errors import ConfigError, did_you_mean, listed

BASE = "base"
"""Name of the variant without a change."""

ChangeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A name that can begin the name of a run folder."""

Overrides = Annotated[tuple[str, ...], Field(strict=False)]
"""`KEY=VALUE` overrides, as for `--set`."""

Seed = Annotated[int, Field(ge=0, lt=2**31)]


class AblationFile(Section):
    """Content of an ablation file."""

    config: LocalPath
    """Recipe of the base variant."""
    set_: Annotated[Overrides, Field(alias="set")] = ()
    """`KEY=VALUE` overrides of every variant, the base included."""
    seeds: Annotated[tuple[Seed, ...], Field(strict=False)]
    """Seeds; every variant is trained once with each."""
    split: str | None = None
    """Split to score besides validation; null: none."""
    changes: dict[ChangeName, Overrides] = Field(default_factory=dict)
    """`KEY=VALUE` overrides by name of the variant."""

    def _broken_rules(self) -> Iterator[str]:
        if not self.seeds:
            yield "`seeds` is empty; name at least one seed"
        if len(set(self.seeds)) < len(self.seeds):
            yield "`seeds` has a duplicate: it would train the same run again"
        if BASE in self.changes:
            yield f"`changes.{BASE}`: this name is reserved for the variant without a change"
        lists = {"set": self.set_, **{f"changes.{name}": v for name, v in self.changes.items()}}
        for key, overrides in lists.items():
            if "seed" in (override.partition("=")[0] for override in overrides):
                yield f"`{key}`: sets the seed, which comes from the list of seeds; remove it"


@dataclass(frozen=True, slots=True)
class Variant:
    """The base, or the base with one change."""

    name: str
    changes: tuple[str, ...]
    """`KEY=VALUE` differences from the base."""
    config: Config
    """Config with the seed of the recipe; see `seeded`."""

    def seeded(self, seed: int) -> Config:
        """Return the config of the run with this seed."""
        return self.config.model_copy(update={"seed": seed})


@dataclass(frozen=True, slots=True)
class Ablation:
    """Variants, the base first, and the seeds to train each with."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    split: str | None
    """Split to score besides validation."""


def load_ablation(path: Path) -> Ablation:
    """Read an ablation file, and load and check the config of every variant.

    Raises ConfigError with all problems of the file; else with those of the base; else with those
    of the changes, which include a change that leaves the base as it is.
    """
    document = read_document(path)
    file = validate_document(AblationFile, document, file=str(path))
    try:
        base = _load(file, ())
    except ConfigError as error:
        raise config_error(_problems(document, (), error), file=str(path)) from None
    variants, problems = [Variant(BASE, (), base)], list[Problem]()
    for name, changes in file.changes.items():
        try:
            config = _load(file, changes)
            if config == base:
                raise ConfigError(f"changes nothing; it is the same as `{BASE}`")
            variants.append(Variant(name, changes, config))
        except ConfigError as error:
            problems += _problems(document, ("changes", name), error)
    if problems:
        raise config_error(problems, file=str(path))
    return Ablation(tuple(variants), file.seeds, file.split)


def _load(file: AblationFile, changes: Sequence[str]) -> Config:
    config = load_config(file.config, overrides=[*file.set_, *changes])
    names = config.data.split_names()
    if file.split is not None and file.split not in names:
        near = did_you_mean(file.split, names) or f"; there are {listed(names)}"
        raise ConfigError(f"the config has no split `{file.split}`{near}")
    return config


def _problems(document: Document, keys: Keys, error: ConfigError) -> Iterator[Problem]:
    """Yield one problem for each line of the error of a variant's config."""
    lines = str(error).splitlines()
    for line in lines[1:] if len(lines) > 1 else lines:  # several problems follow a heading
        yield Problem(document.origin(keys), keys, line if keys else f"`{BASE}`: {line}")
