"""Prepare the pages of the documentation site in build/docs, for `mkdocs build`.

README.md becomes the home page. A link to a file that is not part of the site becomes its name.
Each package gets a page with its API reference.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "data/README.md": "corpus-files.md",
} | {str(page.relative_to(ROOT)): page.name for page in sorted((ROOT / "docs").glob("*.md"))}
PAGES["docs/README.zh.md"] = "zh.md"
FILES = {
    str(file.relative_to(ROOT)): str(file.relative_to(ROOT / "docs"))
    for pattern in ("images/*", "*.ipynb", "*.json")
    for file in (ROOT / "docs").glob(pattern)
}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def rewritten(text: str, page: Path) -> str:
    """Return the Markdown of a page with its relative links changed to those of the site."""

    def replaced(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        if not target or "://" in target:
            return link[0]
        path = (page.parent / target).resolve().relative_to(ROOT.resolve()).as_posix()
        place = PAGES.get(path) or FILES.get(path)
        return f"[{label}]({place}{anchor})" if place else f"`{label.strip('`')}`"

    return LINK.sub(replaced, text)


def api_page(package: Path) -> str:
    """Return the API reference of a package, a section for each module."""
    modules = [file for file in sorted(package.glob("*.py")) if file.name != "__init__.py"]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in modules]
    return f"# mt.{package.name}\n\n" + "\n".join(f"::: {name}\n" for name in names)


def main() -> None:
    """Write build/docs anew."""
    output = ROOT / "build" / "docs"
    shutil.rmtree(output, ignore_errors=True)
    (output / "api").mkdir(parents=True)
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (output / name).write_text(rewritten(text, ROOT / source), encoding="utf-8")
    for source, name in FILES.items():
        (output / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, output / name)
    for package in sorted((ROOT / "mt").iterdir()):
        if (package / "__init__.py").is_file() and package.name != "cli":
            (output / "api" / f"{package.name}.md").write_text(api_page(package), encoding="utf-8")


if __name__ == "__main__":
    main()
