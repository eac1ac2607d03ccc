"""An ablation: a base config, and the changes to it that are trained one at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from mt.config.base import LocalPath, Section
from mt.config.document import Document, Keys, Problem, read_document
from mt.config.loading import checked, load_config
from mt.config.problems import config_error
from mt.config.root import Config
from mt.errors import ConfigError, did_you_mean, listed

BASE = "base"
"""The name of the variant that nothing is changed in."""

ChangeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A name that the folder of a run can begin with."""

Overrides = Annotated[tuple[str, ...], Field(strict=False)]
"""`KEY=VALUE`, as `--set` takes them."""

Seed = Annotated[int, Field(ge=0, lt=2**31)]


class AblationFile(Section):
    """What stands in the file of an ablation."""

    config: LocalPath
    """The recipe that all variants start from."""
    set_: Annotated[Overrides, Field(alias="set")] = ()
    """`KEY=VALUE` for every variant, the unchanged one too."""
    seeds: Annotated[tuple[Seed, ...], Field(strict=False)]
    """Every variant is trained once with each of them."""
    split: str | None = None
    """The split to score besides the validation; null scores none."""
    changes: dict[ChangeName, Overrides] = Field(default_factory=dict)
    """What is changed, `KEY=VALUE`, by the name of the variant."""

    @model_validator(mode="after")
    def _agrees(self) -> "AblationFile":
        if broken := [*self._broken_rules()]:
            raise ValueError("\n".join(broken))
        return self

    def _broken_rules(self) -> Iterator[str]:
        if not self.seeds:
            yield "`seeds` names no seed"
        if len(set(self.seeds)) < len(self.seeds):
            yield "`seeds` names one twice: the same run again says nothing new"
        if BASE in self.changes:
            yield f"`changes.{BASE}`: this is the name of the variant without a change"
        lists = {"set": self.set_, **{f"changes.{name}": v for name, v in self.changes.items()}}
        for key, overrides in lists.items():
            if "seed" in (override.partition("=")[0] for override in overrides):
                yield f"`{key}`: sets the seed, which is for the list of seeds to do"


@dataclass(frozen=True, slots=True)
class Variant:
    """The base, or the base with one change."""

    name: str
    changes: tuple[str, ...]
    """What differs from the base, as `KEY=VALUE`."""
    config: Config
    """Its seed is that of the recipe: `seeded` sets the one of a run."""

    def seeded(self, seed: int) -> Config:
        """Return the config of the run with this seed."""
        return self.config.model_copy(update={"seed": seed})


@dataclass(frozen=True, slots=True)
class Ablation:
    """What is trained, the base first, and with which seeds."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    split: str | None
    """The split to score besides the validation."""


def load_ablation(path: Path) -> Ablation:
    """Read the file of an ablation, and load and check the config of every variant.

    Raises ConfigError: for the file itself with all that is wrong in it, else for the base, else
    for every change that does not make a config, or makes that of the base again.
    """
    document = read_document(path)
    file = checked(AblationFile, document, file=str(path))
    try:
        base = _load(file, ())
    except ConfigError as error:
        raise config_error(_problems(document, (), error), file=str(path)) from None
    variants, problems = [Variant(BASE, (), base)], list[Problem]()
    for name, changes in file.changes.items():
        try:
            variants.append(Variant(name, changes, _changed(file, changes, base)))
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
        raise ConfigError(f"it has no split `{file.split}`{near}")
    return config


def _changed(file: AblationFile, changes: Sequence[str], base: Config) -> Config:
    config = _load(file, changes)
    if config == base:
        raise ConfigError(f"changes nothing, it is `{BASE}` again")
    return config


def _problems(document: Document, keys: Keys, error: ConfigError) -> Iterator[Problem]:
    """Yield what is wrong with the config of a variant, each line by itself."""
    lines = str(error).splitlines()
    told = lines[1:] if len(lines) > 1 else lines  # before several, a line says how many
    for line in told:
        text = line if keys else f"`{BASE}`: {line}"
        yield Problem(document.origin(keys), keys, text)
