"""Sums over the rows of torch tensors, each in one reading of a CUDA device's memory.

The kernels are for contiguous float32 rows on a CUDA device, in Triton, which comes
with torch there. Where it is missing, where a kernel does not compile, and for other rows, the
functions return None, and `isotropy.linalg` has the plain form.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from isotropy.checks import is_tensor
from isotropy.errors import one_line

R = TypeVar("R")
Tensor = Any

SUMMED_ROWS = 256  # rows that are summed in their own dtype before float64 takes over
PROGRAM_ROWS = 128  # of kernels that hold whole rows: each program leaves its sums in memory
PANEL = 128  # columns of the result that `symmetric_product` computes at once
HELD = 512  # numbers that a warp holds at once
WIDEST = 4096  # features up to which a program holds whole rows
COLUMNS = 256  # of scores that a program sums

tl: Any = None  # triton.language, once there is a kernel to compile
_log = logging.getLogger(__name__)
_unusable: set[str] = set()  # names of fused forms that failed once in this process


def symmetric_product(Y: Tensor) -> Tensor:
    """Y'Y in the dtype of Y, from the products on and below its diagonal.

    Columns are multiplied in panels of 128: with six of them, 21 of 36 products are made.
    """
    import torch

    d = Y.shape[1]
    if d <= PANEL:
        return Y.T @ Y
    product = torch.empty((d, d), dtype=Y.dtype, device=Y.device)
    for start in range(0, d, PANEL):
        stop = min(start + PANEL, d)
        torch.matmul(Y[:, start:stop].T, Y[:, :stop], out=product[start:stop, :stop])
        product[:start, start:stop] = product[start:stop, :start].T
    return product


def shifted_sums(X: Tensor, origin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """y = x - origin and ||y||^2 of every row, the sums of y and of ||y||^2 y in float64."""
    return _launched(_fused_shifted_sums, X, origin) if fits(X) and X.shape[1] <= WIDEST else None


def fits_unit_sums(X: Any) -> bool:
    """Whether there is a kernel for `unit_sums` of X, which copies no rows."""
    usable = _has_triton() and _fused_unit_sums.__name__ not in _unusable
    return usable and is_tensor(X) and fits(X) and int(X.shape[1]) <= WIDEST


def unit_sums(X: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """||x||^2 of every row, and the sums of u = x / ||x|| and of u^2 in float64.

    Zero rows have no u. Squares outside the range of float32 are the caller's business.
    """
    return _launched(_fused_unit_sums, X) if fits_unit_sums(X) else None


def exp_sums(scores: Tensor, high: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Sums of exp(s - high) and exp(high - s) over each column of finite scores, in float64."""
    return _launched(_fused_exp_sums, scores, high) if fits(scores) else None


def fits(X: Tensor) -> bool:
    """Whether the kernels can read X: contiguous float32 rows on a CUDA device."""
    import torch

    return bool(X.is_cuda and X.dtype == torch.float32 and X.is_contiguous() and X.numel())


def _fused_shifted_sums(X: Tensor, origin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    import torch

    n, d = X.shape
    n_programs, shape = _over_rows(X)
    Y, radius = torch.empty_like(X), torch.empty(n, dtype=X.dtype, device=X.device)
    parts = torch.empty((n_programs, 2, d), dtype=X.dtype, device=X.device)
    _compiled("_shifted_sums")[(n_programs,)](
        X, origin.contiguous(), Y, radius, parts, n, d, **shape
    )
    total, third = parts.sum(0, dtype=torch.float64)
    return Y, radius, total, third


def _fused_unit_sums(X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    n, d = X.shape
    n_programs, shape = _over_rows(X)
    norms = torch.empty(n, dtype=X.dtype, device=X.device)
    parts = torch.empty((n_programs, 2, d), dtype=X.dtype, device=X.device)
    _compiled("_unit_sums")[(n_programs,)](X, norms, parts, n, d, **shape)
    unit_sum, unit_square_sum = parts.sum(0, dtype=torch.float64)
    return norms, unit_sum, unit_square_sum


def _over_rows(X: Tensor) -> tuple[int, dict[str, int]]:
    """(number of programs, how each is laid out) of kernels that hold whole rows."""
    width = max(16, 1 << (X.shape[1] - 1).bit_length())
    n_warps = min(8, max(1, width // 128))  # side by side: each thread has its own columns
    shape = {"WIDTH": width, "TILE_ROWS": HELD * n_warps // width, "ROWS": PROGRAM_ROWS}
    return -(-X.shape[0] // PROGRAM_ROWS), shape | {"num_warps": n_warps}


def _fused_exp_sums(scores: Tensor, high: Tensor | None) -> tuple[Tensor, Tensor]:
    import torch

    n, k = scores.shape
    n_programs = -(-n // SUMMED_ROWS)
    parts = torch.empty((n_programs, 2, k), dtype=scores.dtype, device=scores.device)
    _compiled("_exp_sums")[(n_programs, -(-k // COLUMNS))](
        scores,
        scores if high is None else high.to(scores.dtype).contiguous(),
        parts,
        n,
        k,
        SHIFTED=high is not None,
        COLUMNS=COLUMNS,
        TILE_ROWS=8,
        ROWS=SUMMED_ROWS,
        num_warps=4,
    )
    plus, minus = parts.sum(0, dtype=torch.float64)
    return plus, minus


def _launched(fused: Callable[..., R], *given: Any) -> R | None:
    """What a fused form returns; None if Triton is missing or does not compile it."""
    if fused.__name__ in _unusable:
        return None
    import torch

    try:
        with torch.cuda.device_of(given[0]):  # Triton launches on the device that is current
            return fused(*given)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises
        _unusable.add(fused.__name__)
        name = fused.__name__.removeprefix("_fused_")
        _log.warning("the Triton kernel of %s cannot be used: %s", name, one_line(error))
        return None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _compiled(name: str) -> Any:
    """The kernel of that name, which Triton compiles for each device and width."""
    global tl
    import triton
    import triton.language

    tl = triton.language
    return triton.jit(globals()[name])


def _shifted_sums(  # type: ignore[no-untyped-def]
    x_at,
    origin_at,
    y_at,
    radius_at,
    parts_at,
    n,
    d,
    WIDTH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Triton: at most ROWS rows, TILE_ROWS whole rows at a time."""
    program = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    there = columns < d
    origin = tl.load(origin_at + columns, mask=there, other=0.0)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    third = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, ROWS, TILE_ROWS):
        rows = program.to(tl.int64) * ROWS + start + tl.arange(0, TILE_ROWS)
        mask = (rows < n)[:, None] & there[None, :]
        places = rows[:, None] * d + columns[None, :]
        x = tl.load(x_at + places, mask=mask, other=0.0)
        y = tl.where(mask, x - origin[None, :], 0.0)
        tl.store(y_at + places, y, mask=mask)
        radius = tl.sum(y * y, axis=1)
        tl.store(radius_at + rows, radius, mask=rows < n)
        total += tl.sum(y, axis=0)
        third += tl.sum(y * radius[:, None], axis=0)
    place = parts_at + program.to(tl.int64) * 2 * d + columns
    tl.store(place, total, mask=there)
    tl.store(place + d, third, mask=there)


def _unit_sums(  # type: ignore[no-untyped-def]
    x_at,
    norms_at,
    parts_at,
    n,
    d,
    WIDTH: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Triton: at most ROWS rows, TILE_ROWS whole rows at a time."""
    program = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    there = columns < d
    unit = tl.zeros((WIDTH,), dtype=tl.float32)
    square = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, ROWS, TILE_ROWS):
        rows = program.to(tl.int64) * ROWS + start + tl.arange(0, TILE_ROWS)
        mask = (rows < n)[:, None] & there[None, :]
        x = tl.load(x_at + rows[:, None] * d + columns[None, :], mask=mask, other=0.0)
        norms = tl.sum(x * x, axis=1)
        tl.store(norms_at + rows, norms, mask=rows < n)
        inverse = tl.where(norms > 0, 1.0 / tl.sqrt_rn(tl.where(norms > 0, norms, 1.0)), 0.0)
        u = x * inverse[:, None]
        unit += tl.sum(u, axis=0)
        square += tl.sum(u * u, axis=0)
    place = parts_at + program.to(tl.int64) * 2 * d + columns
    tl.store(place, unit, mask=there)
    tl.store(place + d, square, mask=there)


def _exp_sums(  # type: ignore[no-untyped-def]
    scores_at,
    high_at,
    parts_at,
    n,
    k,
    SHIFTED: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Triton: at most ROWS rows of COLUMNS scores.

    exp(s) = 2^m 2^f with m an integer and |f| <= 1/2. The hardware's exp2 is right to 2^-22 for
    such f, and rounding s / log 2 itself would cost |s| times that.
    """
    program = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < k
    plus = tl.zeros((TILE_ROWS, COLUMNS), dtype=tl.float32)
    minus = tl.zeros((TILE_ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, ROWS, TILE_ROWS):
        rows = program.to(tl.int64) * ROWS + start + tl.arange(0, TILE_ROWS)
        mask = (rows < n)[:, None] & there[None, :]
        s = tl.load(scores_at + rows[:, None] * k + columns[None, :], mask=mask, other=0.0)
        lost = tl.zeros_like(s)
        if SHIFTED:
            high = tl.load(high_at + columns, mask=there, other=0.0)[None, :]
            near = s - high
            back = near - s
            lost = (s - (near - back)) - (high + back)  # what rounding took from the difference
            s = near
        m = tl.floor(s * 1.4426950408889634 + 0.5)
        f = s - m * 0.693359375  # log 2 in two parts; the first product is exact
        f = (f + (m * 2.1219444005469057e-4 + lost)) * 1.4426950408889634
        up = tl.minimum(tl.maximum(m, -127.0), 128.0).to(tl.int32)
        down = tl.minimum(tl.maximum(-m, -127.0), 128.0).to(tl.int32)
        up = ((up + 127) << 23).to(tl.float32, bitcast=True)  # 2^m
        down = ((down + 127) << 23).to(tl.float32, bitcast=True)
        plus += tl.where(mask, tl.exp2(f) * up, 0.0)
        minus += tl.where(mask, tl.exp2(-f) * down, 0.0)
    place = parts_at + program.to(tl.int64) * 2 * k + columns
    tl.store(place, tl.sum(plus, axis=0), mask=there)
    tl.store(place + k, tl.sum(minus, axis=0), mask=there)
