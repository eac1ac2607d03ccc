"""The directions that a config trains, and the tags that tell a model of one from another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mt.config.data import DataConfig


@dataclass(frozen=True, slots=True)
class Direction:
    """From one language into another."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


def trained_directions(data: DataConfig) -> tuple[Direction, ...]:
    """Return the directions of the training corpora, each once, in their order."""
    return tuple(dict.fromkeys(direction for direction, _ in _corpora(data)))


def trained_tags(data: DataConfig) -> dict[str | None, tuple[Direction, ...]]:
    """Return the tags of the training corpora with the directions of each; None: without a tag."""
    corpora = dict.fromkeys(_corpora(data))
    tags = dict.fromkeys(tag for _, tag in corpora)
    return {tag: tuple(each for each, its in corpora if its == tag) for tag in tags}


def needed_tags(data: DataConfig) -> dict[str | None, tuple[Direction, ...]]:
    """Return the tags of which each line must have one; none where a line may go without."""
    tags = trained_tags(data)
    return {} if None in tags else tags


def tags_as_text(tags: Mapping[str | None, tuple[Direction, ...]]) -> list[str]:
    """Return each tag with its directions in words, but for None."""
    return [f"`{tag}` ({' and '.join(map(str, of))})" for tag, of in tags.items() if tag]


def chosen_direction(data: DataConfig, tag: str | None) -> Direction:
    """Return the direction that a tag stands for, or that of the config where it tells no one."""
    found = trained_tags(data).get(tag, ())
    return found[0] if len(found) == 1 else Direction(data.source_language, data.target_language)


def _corpora(data: DataConfig) -> Iterable[tuple[Direction, str | None]]:
    for source in data.train_corpora().values():
        own = data.of(source)
        yield Direction(own.source_language, own.target_language), source.tag
