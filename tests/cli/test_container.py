"""Files of the container: they parse, and name files, extras, options and paths that exist."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mt.serving.requests import Access
from tests.factories import Program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "container"
INSTRUCTIONS = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE"),
    *("FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"),
}


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile, continued lines joined."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def values(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def compose() -> Any:
    return YAML(typ="safe").load(FOLDER / "compose.yaml")


@pytest.fixture
def served(recorded: Callable[[str], Any]) -> Any:
    """Return the list of the calls of the server."""
    return recorded("mt.serving.server.serve_runs")


def test_the_image_copies_what_exists_and_ends_without_root() -> None:
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    ignored, *kept = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert ignored == "*"
    copied = [rest.split()[:-1] for rest in values("COPY") if not rest.startswith("--from")]
    for name in [name for names in copied for name in names]:
        assert (ROOT / name).exists()
        assert f"!{name}" in kept
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r'"\.\[(.*)\]"', "\n".join(values("RUN")))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {project["readme"], *project["license-files"]} <= {
        name for names in copied for name in names
    }
    [user] = values("USER")
    assert f"--uid {user} " in "\n".join(values("RUN"))
    assert int(user) >= 1000
    assert len({image.split()[0] for image in values("FROM")}) == 1


def test_the_image_starts_the_server(program: Program, served: Any) -> None:
    command = [*json.loads(values("ENTRYPOINT")[0]), *json.loads(values("CMD")[0])]
    assert command[0] == "mt"
    assert program(*command[1:]) == (0, "", "")
    [(positional, _)] = served
    assert positional[:2] == ([Path("/model")], ("0.0.0.0", 8000))
    assert values("EXPOSE") == ["8000"]


def test_the_health_check_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = values("HEALTHCHECK")
    python, option, code = json.loads(check.partition("CMD")[2])
    assert (python, option) == ("python", "-c")
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *url, **_: asked.append(url))
    exec(code, {})
    assert asked == [("http://127.0.0.1:8000/health",)]


def test_the_compose_file_starts_the_server_behind_a_proxy(
    program: Program, served: Any, tmp_path: Path
) -> None:
    services = compose()["services"]
    server, proxy = services["mt"], services["proxy"]
    build = server["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    [secret] = server["secrets"]
    assert secret in compose()["secrets"]
    words = [
        re.sub(r"\$\{DOMAIN[^}]*\}", "translate.example.org", word) for word in server["command"]
    ]
    words[words.index(f"/run/secrets/{secret}")] = str(keys)
    assert program("serve", *words) == (0, "", "")
    [(positional, named)] = served
    assert positional[:2] == ([Path("/model")], ("0.0.0.0", 8000))
    assert named["access"] == Access((b"one",), ("https://translate.example.org",))
    assert [volume.rpartition("}")[2] for volume in server["volumes"]] == [":/model:ro"]
    assert "ports" not in server, "the proxy alone can be reached from outside"
    assert proxy["command"].endswith("--to mt:8000")
    assert set(proxy["depends_on"]) == {"mt"}
