"""Prepare the pages of the documentation site in build/docs, for `mkdocs build`.

README.md becomes the home page. A link to a file that is not part of the site becomes its path.
The API reference has a page for `mt.Translator`, one for `mt.documents`, and one for each internal
package.
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
PAGES |= {"docs/README.zh.md": "zh.md", "docs/lab/README.md": "lab.md"}
FILES = {
    str(file.relative_to(ROOT)): str(file.relative_to(ROOT / "docs"))
    for pattern in ("images/*", "*.ipynb", "*.json")
    for file in (ROOT / "docs").glob(pattern)
}
PUBLIC = {
    "translator.md": (
        "mt.Translator",
        "Translator of lines, and its results.",
        [
            "mt.decoding.translator.Translator",
            "mt.decoding.translator.Translation",
            "mt.decoding.translator.RankedTranslation",
        ],
    ),
    "documents.md": (
        "mt.documents",
        "Translation of documents: their texts are located, translated and replaced.",
        ["mt.documents.document", "mt.documents.segments"],
    ),
}
"""Pages of the public API: title, introduction, and objects."""
STYLE = ".md-grid { max-width: 76rem }\n.md-typeset table code { word-break: normal }\n"
"""Wider pages, and tables whose code breaks between words."""
INTERNAL = "Internal modules of this package. They may change in any version."
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def rewrite_links(text: str, page: Path) -> str:
    """Return the Markdown of a page, with its relative links changed to those of the site."""

    def replace(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        if not target or "://" in target:
            return link[0]
        path = (page.parent / target).resolve().relative_to(ROOT.resolve()).as_posix()
        address = PAGES.get(path) or FILES.get(path)
        return f"[{label}]({address}{anchor})" if address else f"`{path}`"

    return LINK.sub(replace, text)


def api_page(title: str, introduction: str, names: list[str]) -> str:
    """Return a page of the API reference, with a section for each module or class."""
    return f"# {title}\n\n{introduction}\n\n" + "\n".join(f"::: {name}\n" for name in names)


def module_names(package: Path) -> list[str]:
    """Return the dotted names of the modules of a package."""
    files = [file for file in sorted(package.glob("*.py")) if file.name != "__init__.py"]
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


def main() -> None:
    """Write build/docs anew."""
    output = ROOT / "build" / "docs"
    shutil.rmtree(output, ignore_errors=True)
    (output / "api").mkdir(parents=True)
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (output / name).write_text(rewrite_links(text, ROOT / source), encoding="utf-8")
    for source, name in FILES.items():
        (output / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, output / name)
    pages = dict(PUBLIC)
    for package in sorted((ROOT / "mt").iterdir()):
        name = f"{package.name}.md"
        if (package / "__init__.py").is_file() and package.name != "cli" and name not in pages:
            pages[name] = (f"mt.{package.name}", INTERNAL, module_names(package))
    for name, (title, introduction, objects) in pages.items():
        page = api_page(title, introduction, objects)
        (output / "api" / name).write_text(page, encoding="utf-8")
    (output / "style.css").write_text(STYLE, encoding="utf-8")


if __name__ == "__main__":
    main()
