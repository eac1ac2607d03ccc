"""Entry point of the program `mt`, also run as `python -m mt`."""

import faulthandler
import io
import logging
import os
import sys

from mt.cli.app import run_command_line
from mt.errors import run_reporting_errors


def main() -> int:
    """Run the command line and return the exit status: 0, 1 for a failed check, 2 for an error."""
    # The number of a closed stream would go to the next file that is opened. As in GNU's tools,
    # results that cannot be written are an error, lost logs are none.
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Translations are UTF-8 in any locale; file names keep their bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if sys.__stderr__:  # names the signal that ends a crashed program, with the place in the code
        faulthandler.enable(sys.__stderr__, all_threads=False)
    # Logs go to stderr; of other packages, only warnings.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("mt").setLevel(logging.INFO)
    return run_reporting_errors(run_command_line)


if __name__ == "__main__":
    sys.exit(main())
