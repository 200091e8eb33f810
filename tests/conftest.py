"""One torch thread per test process: two workers with two threads each are slower on two cores."""

from __future__ import annotations

import os

# By the environment, because the controller of pytest-xdist needs no torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
