"""One torch thread for every test process: two workers with two threads each would fight over two cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
