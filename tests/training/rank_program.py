"""`mt` under torchrun, with a shorter timeout of collectives."""

import os
import sys
from datetime import timedelta

from mt.__main__ import main
from mt.training import distributed

if seconds := os.environ.get("TIMEOUT_SECONDS"):
    distributed.TIMEOUT = timedelta(seconds=int(seconds))
sys.exit(main())
