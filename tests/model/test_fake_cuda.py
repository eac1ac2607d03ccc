"""Passes on a CUDA device that does not exist, under autocast: dtypes and devices, no values.

Tensors are fake: each operation returns shape, dtype and device alone, by the rules of CUDA. Builds
of torch without CUDA have no device guard, which gradients and a few functions ask for: gradients
are off, and the functions are replaced by other operations.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mt.model.transformer import Transformer
from mt.training.loss import label_smoothed_loss
from tests.factories import transformer
from tests.test_twin_device import KINDS

CUDA = torch.device("cuda:0")
aten = torch.ops.aten


class WithoutGuard(TorchFunctionMode):
    """Replace functions that ask for a device guard."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__getitem__:
            return item(*args)
        if func is Tensor.__setitem__:
            tensor, key, value = args
            return aten.copy_.default(item(tensor, key), value)
        if func is Tensor.__invert__:
            return torch.logical_not(*args)
        if func is F.log_softmax:
            (tensor,) = args
            return torch.log_softmax(tensor.to(kwargs["dtype"]), kwargs["dim"])
        if func is Tensor.masked_fill:
            tensor, mask, value = args
            return torch.where(mask, aten.full_like(tensor, value), tensor)
        return func(*args, **(kwargs or {}))


class ProductsOfOneDtype(TorchDispatchMode):
    """Refuse products of different dtypes, as CUDA does; fake tensors allow them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name.endswith("mm"):
            dtypes = {
                each.dtype for each in args if isinstance(each, Tensor) and each.is_floating_point()
            }
            assert len(dtypes) == 1, f"{name}: {dtypes}"
            if name != "aten::bmm":  # the fallback of attention takes it in fp32
                self.dtypes |= dtypes
        return func(*args, **(kwargs or {}))


def item(tensor: Tensor, key: Any) -> Tensor:
    """Return tensor[key] for numbers, slices, None, an ellipsis at the start, and one tensor."""
    dim, keys = 0, key if isinstance(key, tuple) else (key,)
    if keys[0] is Ellipsis:
        keys = (slice(None),) * (tensor.dim() - len(keys) + 1) + keys[1:]
    indices: list[Tensor | None] = []
    for each in keys:
        if isinstance(each, int):
            tensor = aten.select.int(tensor, dim, each)
            continue
        if each is None:
            tensor = aten.unsqueeze.default(tensor, dim)
        elif isinstance(each, slice):
            step = each.step or 1
            tensor = aten.slice.Tensor(tensor, dim, each.start, each.stop, step)
        indices.append(each if isinstance(each, Tensor) else None)
        dim += 1
    if any(each is not None for each in indices):
        return aten.index.Tensor(tensor, indices)  # type: ignore[no-any-return]
    return tensor


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    if torch.cuda.is_available():
        pytest.skip("this machine has a real device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    with FakeTensorMode() as mode, WithoutGuard(), torch.no_grad():
        yield mode


def on_fake_device(model: Transformer, mode: FakeTensorMode) -> Transformer:
    moved: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                    copied: Tensor = FakeTensor(mode, empty, CUDA)
                    if isinstance(tensor, nn.Parameter):
                        copied = nn.Parameter(copied, requires_grad=False)
                    moved[id(tensor)] = copied
                tensors[name] = moved[id(tensor)]  # type: ignore[assignment]
    return model


def ids(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=CUDA)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [*((kind, torch.bfloat16) for kind in KINDS), (KINDS[0], torch.float16)],
    ids=lambda value: value["positional"] if isinstance(value, dict) else str(value),
)
def test_products_are_in_the_precision_of_autocast(
    kind: dict[str, Any], precision: torch.dtype, fake: FakeTensorMode
) -> None:
    model = on_fake_device(transformer(**kind), fake)
    with ProductsOfOneDtype() as products, torch.autocast("cuda", dtype=precision):
        states = model.states(ids(6, 9), ids(6, 8), ids(40))
        loss = label_smoothed_loss(states, model.output.weight, ids(40), 0.1)
        state = model.start(model.encode(ids(6, 9)), 2)
        logits = [model.step(ids(6), state), model.step(ids(12), state)]
    assert (states.device, loss.smoothed.device) == (CUDA, CUDA)
    assert products.dtypes == {precision}
    assert loss.smoothed.dtype == loss.nll.dtype == torch.float32
    assert [each.shape for each in logits] == [(6, 20), (12, 20)]
    assert {each.device for each in logits} == {CUDA}
