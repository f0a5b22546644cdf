"""Every test starts from the same seed, which pytest prints with a failure."""

import pytest
import torch

SEED = 20250703


@pytest.fixture(autouse=True)
def seeded():
    print(f"seed {SEED}")
    torch.manual_seed(SEED)
