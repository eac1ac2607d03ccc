import os
import platform
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.data.batches import collate
from mt.errors import UserError
from mt.model.device import available_devices, is_out_of_memory, keep_freed_memory, select_device
from tests.factories import examples


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    cuda, mps = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("machine", "best"),
    [((True, True), "cuda"), ((False, True), "mps"), ((False, False), "cpu")],
    indirect=["machine"],
)
def test_auto_selects_the_fastest_device(machine: None, best: str) -> None:
    assert select_device("auto") == torch.device(best)
    assert available_devices()[-1] == "cpu"
    assert select_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("machine", [(False, True)], indirect=True)
def test_a_missing_device_is_an_error_that_lists_the_others(machine: None) -> None:
    for name, nearest in (("cuda", "`mps`, `cpu`"), ("cpus", "did you mean `cpu`")):
        with pytest.raises(UserError) as error:
            select_device(name)
        assert nearest in str(error.value)


@pytest.mark.parametrize("machine", [(True, False)], indirect=True)
@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_cuda_is_selected_without_attention_of_cudnn(machine: None, name: str) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        select_device(name)
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "a"}, {"PYTORCH_ALLOC_CONF": "a"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "b"}, {"PYTORCH_CUDA_ALLOC_CONF": "b"}),
    ],
)
def test_blocks_of_a_gpu_grow_unless_the_user_decides(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    kept = {name: each for name, each in os.environ.items() if name not in names}
    monkeypatch.setattr(os, "environ", {**kept, **given})
    keep_freed_memory()
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`"),
            True,
        ),
        (
            torch.distributed.DistBackendError(
                "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\n"
                "Last error:\nCuda failure 2 'out of memory'"
            ),
            True,
        ),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.0 GiB)"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
    ],
)
def test_lack_of_memory_is_recognised_in_every_form(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize("pinned", [False, True])
def test_only_copies_from_pinned_memory_are_asynchronous(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, to = [], Tensor.to

    def seen(ids: Tensor, device: str, **keys: Any) -> Tensor:
        asked.append(keys["non_blocking"])
        return to(ids, device, **keys)

    monkeypatch.setattr(Tensor, "is_pinned", lambda _: pinned)
    monkeypatch.setattr(Tensor, "to", seen)
    collate(examples(2)).to("cpu")
    assert asked == [pinned] * 4
