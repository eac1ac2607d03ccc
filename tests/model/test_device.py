import pytest
import torch

from mt.errors import UserError
from mt.model.device import available_devices, select_device


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
    with pytest.raises(UserError, match="device `cuda`: not on this machine, which has `mps`, `cp"):
        select_device("cuda")
    with pytest.raises(UserError, match="did you mean `cpu`"):
        select_device("cpus")
