"""How many examples a fuzz tries, and which.

By default they are the same in every run. ISOTROPY_FUZZ multiplies their number, and
ISOTROPY_FUZZ_SEED draws others:

    ISOTROPY_FUZZ=100 ISOTROPY_FUZZ_SEED=1 pytest tests/attacks -k fuzz
"""

import os

from hypothesis import HealthCheck, seed, settings

SCALE = float(os.environ.get("ISOTROPY_FUZZ", "1"))
SEED = os.environ.get("ISOTROPY_FUZZ_SEED")


def fuzzed(n_examples):
    """Decorates a test that is given this many examples, unless more or fewer are asked for."""
    chosen = settings(
        max_examples=max(1, round(n_examples * SCALE)),
        derandomize=SEED is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    def decorate(test):
        return chosen(test if SEED is None else seed(int(SEED))(test))

    return decorate
