"""One torch thread per test process: two workers with two threads each are slower on two cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
