"""How checks are run, and what they have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from isotropy.errors import IsotropyError


def run(checks: Iterable[Callable[..., None]], excused: Mapping[str, str], *subject: Any) -> None:
    """Run every check that is not excused; a failure names its check."""
    checks = list(checks)
    unknown = excused.keys() - {check.__name__ for check in checks}
    expect(not unknown, f"there are no checks called {', '.join(sorted(unknown))}")
    for check in checks:
        if check.__name__ in excused:
            continue
        try:
            check(*subject)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


def expect(condition: Any, message: str) -> None:
    """Raise AssertionError with the message if the condition is false."""
    if not condition:
        raise AssertionError(message)


def expect_equal(found: Any, wanted: Any, what: str) -> None:
    """Raise AssertionError unless both are equal to the last digit; NaN equals NaN."""
    np.testing.assert_array_equal(found, wanted, err_msg=what)


def expect_close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    """Raise AssertionError unless both differ by at most tolerance times the largest entry."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    expect(found.shape == wanted.shape, f"{what} has shape {found.shape}, not {wanted.shape}")
    if wanted.dtype.kind in "iu":
        return expect_equal(found, wanted, what)
    size = np.abs(wanted[np.isfinite(wanted)]).max(initial=np.finfo(np.float64).tiny)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * size, err_msg=what)
    return None


def expect_refused(call: Callable[[], Any], message: str) -> None:
    """Raise AssertionError unless the call raises an error of one line that matches."""
    try:
        call()
    except (IsotropyError, ValueError) as error:
        text = str(error)
    else:
        raise AssertionError(f"bad input must be refused with a message like {message!r}")
    expect(re.search(message, text), f"the message must be like {message!r}, got {text!r}")
    expect("\n" not in text, f"the message must be one line, got {text!r}")
