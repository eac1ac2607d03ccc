"""Translate a text file line by line, and list the lines that need a look.

python examples/translate_file.py runs/quickstart data/quickstart/test.en test.zh
"""

import argparse
from pathlib import Path

from mt import Translator


def translate_file(translator: Translator, source: Path, target: Path) -> int:
    """Write the translation of each line of `source`; return the number of lines to look at."""
    doubtful = 0
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as output:
        # Lines are read, translated and written in windows, so a file of any length fits.
        for translation in translator.stream(line.rstrip("\n") for line in lines):
            output.write(f"{translation.text}\n")
            if translation.notes:  # for example, that the line was split
                doubtful += 1
                print(f"line {translation.line_number}: {'; '.join(translation.notes)}")
    return doubtful


def main() -> None:
    """Parse the arguments and translate."""
    parser = argparse.ArgumentParser(description="Translate a text file line by line.")
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    translator = Translator.load(arguments.run, overrides=[f"decoding.beam={arguments.beam}"])
    doubtful = translate_file(translator, arguments.source, arguments.target)
    print(f"{arguments.target}: {doubtful} lines have notes")


if __name__ == "__main__":
    main()
