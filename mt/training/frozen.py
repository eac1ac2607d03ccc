"""Parts of the model that keep their weights while the others learn."""

from collections.abc import Iterable

from torch import nn

PARTS: dict[str, tuple[str, ...]] = {
    "source_embedding": ("source_embedding",),
    "target_embedding": ("target_embedding",),
    "output": ("output",),
    "encoder": ("encoder_positional", "encoder", "encoder_norm"),
    "decoder": ("decoder_positional", "decoder", "decoder_norm"),
}
"""The modules of the model that the words of `training.freeze` stand for."""


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Let the named parts of a Transformer have no gradient.

    A matrix that several parts share is frozen in all of them; the config asks for that to be said.
    """
    for part in parts:
        for name in PARTS[part]:
            model.get_submodule(name).requires_grad_(requires_grad=False)


def describe_parameters(model: nn.Module) -> str:
    """Return how many parameters a model has, and how many of them are frozen."""
    sizes = {each: each.numel() for each in model.parameters()}
    frozen = sum(size for each, size in sizes.items() if not each.requires_grad)
    return f"{sum(sizes.values()):,} parameters" + (
        f", {frozen:,} of them frozen" if frozen else ""
    )
