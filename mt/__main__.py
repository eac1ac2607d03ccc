"""`python -m mt`, the same program as `mt`."""

import io
import logging
import sys

from mt.cli.app import run_command_line
from mt.errors import run_reporting_errors


def main() -> int:
    """Run the command line and return the exit status: 0, 1 for a failed verdict, 2 for errors."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Translations are UTF-8 whatever the locale; a file name keeps the bytes it has.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    # To stderr; of other packages only what they warn of.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("mt").setLevel(logging.INFO)
    return run_reporting_errors(run_command_line)


if __name__ == "__main__":
    sys.exit(main())
