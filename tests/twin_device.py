"""A device for tests that computes on the CPU: its tensors claim another device.

Operations that mix devices raise an error, as on a GPU. Copies between the devices and waits for a
value are counted by source line, and operations that a GPU computes, by name.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mt.model.transformer import Transformer

NAME = "twin"
aten = torch.ops.aten
_WAITS = {
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
}
_AUTOCAST = "AutocastPrivateUse1"
_LOWER = ("linear", "matmul", "scaled_dot_product_attention")
_FP32 = ("layer_norm", "rms_norm", "softmax.int", "log_softmax.int")
_libraries: list[Any] = []
"""Registrations, which end with their objects."""
_MASKED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
traffic: Counter[str] = Counter()
"""Number of copies and waits by kind and source line."""
launches: Counter[str] = Counter()
"""Number of operations by name, without views and allocations."""
_NOT_COMPUTED = {"detach", "empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view"}


class Twin(Tensor):
    """A tensor on the twin device around a tensor of the CPU."""

    values_on_cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Twin":
        made: Twin = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device(),
        )
        made.values_on_cpu = inner
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Twin({self.values_on_cpu})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        _count("copy to the host")
        return self.values_on_cpu.tolist()


class _TwinMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch of functions that create tensors on the twin device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def device() -> torch.device:
    return torch.device(NAME, 0)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [each for each in _leaves((*args, *kwargs.values())) if isinstance(each, Tensor)]
    twins = [each for each in tensors if isinstance(each, Twin)]
    others = [each for each in tensors if not isinstance(each, Twin)]
    if func is torch.ops.prim.device.default:
        return device() if twins else torch.device("cpu")
    is_copy = func in {aten._to_copy.default, aten.copy_.default}
    asked = args[0].device if func is aten.copy_.default else kwargs.get("device")
    to_twin = asked is not None and torch.device(asked).type == NAME
    to_host = asked is not None and not to_twin and is_copy
    if (is_copy and to_twin and others) or (to_host and twins):
        _count("copy to the device" if to_twin else "copy to the host")
    elif twins and any(each.dim() for each in others):
        raise RuntimeError(f"{func}: tensors on {device()} and on the cpu; {_source_line()}")
    if twins and (func in _WAITS or (func in _MASKED and _has_mask(args[1]))):
        _count("wait")
    keywords = {name: _inner(value) for name, value in kwargs.items()}
    if "device" in keywords and to_twin:
        keywords["device"] = torch.device("cpu")
    result = func(*map(_inner, args), **keywords)
    if to_host or not (twins or to_twin):
        return result
    name = func._schema.name.removeprefix("aten::")
    if not _is_view(func) and name not in _NOT_COMPUTED:
        launches[name] += 1
    return _result(func, args, result)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _inner(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_inner, value))
    return value.values_on_cpu if isinstance(value, Twin) else value


def _result(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Return the argument that an operation has changed in place, or wrap its new tensors."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return value if len(func._schema.returns) == 1 else result
    return tree_map(lambda each: Twin(each) if isinstance(each, Tensor) else each, result)


def _is_view(func: Any) -> bool:
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


def _has_mask(indices: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)


def _count(kind: str) -> None:
    traffic[f"{kind}: {_source_line()}"] += 1


def _source_line() -> str:
    """Return file and line of the innermost frame in the package."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        _, found, path = frame.f_code.co_filename.rpartition("/mt/")
        if found:
            return f"mt/{path}:{frame.f_lineno}"
    return "elsewhere"


@cache
def _register() -> None:
    """Register the device, with autocast as on CUDA."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    torch.twin.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
    new_library: Any = torch.library.Library
    fallback, library = new_library("_", "IMPL"), new_library("aten", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, _AUTOCAST)
    for name in _LOWER:
        library.impl(name, partial(_cast, _operator(name), None), _AUTOCAST)
    for name in _FP32:
        library.impl(name, partial(_cast, _operator(name), torch.float32), _AUTOCAST)
    _libraries.extend((fallback, library))


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _cast(func: Any, dtype: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    """Call an operation with its floating-point tensors in `dtype`, None for autocast's own."""
    dtype = dtype or torch.get_autocast_dtype(NAME)
    key = torch._C._parse_dispatch_key(_AUTOCAST)
    assert key is not None
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        return func(
            *(_in_dtype(each, dtype) for each in args),
            **{name: _in_dtype(each, dtype) for name, each in kwargs.items()},
        )


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def twin_device(patch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Make the twin device usable inside the block, and yield it; `traffic` begins at zero."""
    _register()
    # `torch.tensor` and inference mode bypass the dispatcher.
    tensor = torch.tensor

    def on_device(data: Any, *, device: Any = None, **keys: Any) -> Tensor:
        made = tensor(data, **keys)
        return made if device is None else made.to(device)

    patch.setattr(torch, "tensor", on_device)
    patch.setattr(torch, "inference_mode", _without_gradients)
    traffic.clear()
    threads = torch.autograd.set_multithreading_enabled
    with threads(False), _TwinMode():  # type: ignore[no-untyped-call]
        yield device()


def _without_gradients(mode: bool = True) -> Any:
    return torch.no_grad() if mode else contextlib.nullcontext()


def on_twin(model: Transformer) -> Transformer:
    """Move a model to the twin device, in place; shared parameters stay shared."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = nn.Parameter(Twin(parameter.detach().clone()), parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), new)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Twin(buffer)
    return model


def host(tensor: Tensor) -> Tensor:
    """Return the values of a tensor without counting a copy."""
    return tensor.values_on_cpu if isinstance(tensor, Twin) else tensor


def counted(work: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """Return the result of `work`, and its copies and waits."""
    traffic.clear()
    result = work()
    return result, Counter(traffic)
