"""What a learner holds as tensors besides its weights: groups that a checkpoint keeps together."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mt.model.parameters import parameter_tensors
from mt.training.update import Learner


@dataclass(frozen=True)
class Group:
    """Tensors by name: how to take them from a learner, and how to put them back."""

    take: Callable[[Learner], dict[str, Tensor]]
    restore: Callable[[Learner, dict[str, Tensor]], None]


def kept_weights(learner: Learner) -> dict[str, Tensor]:
    """Return the weights that are validated and averaged, on the CPU."""
    averages = {name: each.cpu() for name, each in learner.average.averages().items()}
    return {**parameter_tensors(learner.model), **averages}


def other_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return the tensors of all groups on the CPU, each under `<group>.<its name there>`."""
    return {
        f"{name}.{key}": tensor.detach().cpu()
        for name, group in GROUPS.items()
        for key, tensor in group.take(learner).items()
    }


def restore_other_tensors(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Put back what `other_tensors` returned; `tensors` themselves are copied."""
    for name, group in GROUPS.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
        group.restore(learner, own)


def _moments(learner: Learner) -> dict[str, Tensor]:
    """Return Adam's tensors as `<parameter>.<kind>`; a parameter that does not learn has none."""
    return {
        f"{name}.{kind}": tensor
        for name, parameter in learner.model.named_parameters()
        for kind, tensor in learner.optimizer.state.get(parameter, {}).items()
    }


def _restore_moments(learner: Learner, tensors: dict[str, Tensor]) -> None:
    parameters = dict(learner.model.named_parameters())
    learner.optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition(".")
        parameter = parameters[name]
        # Adam's step counter stays on the CPU where the optimiser is not fused. A copy: a tensor
        # that was loaded is a view of its file, whose space a deletion would not make free.
        device = "cpu" if kind == "step" and parameter.device.type == "mps" else parameter.device
        learner.optimizer.state[parameter][kind] = tensor.to(device, copy=True)


GROUPS = {
    "learning": Group(
        lambda learner: learner.average.weights(),
        lambda learner, tensors: learner.average.restore(tensors),
    ),
    "adam": Group(_moments, _restore_moments),
}
"""What a learner keeps between two updates; one row for each kind of tensor.

No random state is among it: what an update draws follows from the seed and its number.
"""
