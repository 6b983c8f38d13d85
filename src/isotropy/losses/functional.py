"""Differentiable losses, each equal to its metric.

None of them uses autocast: half precision is raised to float32, and the spectrum to float64
unless float32 is measured to be exact enough."""

from __future__ import annotations

import math
from typing import Any, Literal

from isotropy.losses.base import full_precision, several_rows  # names the extra without torch

# isort: split
import torch

from isotropy import checks
from isotropy.errors import InputError, public

__all__ = [
    "cosine_penalty",
    "isoscore",
    "isoscore_star",
    "log_inverse",
    "log_partition",
    "mean_cosine",
    "spectrum_penalty",
]

Decay = Literal["polynomial", "exponential"]

UNRESOLVED = 1e-7  # singular values below this share of the largest are rounding errors
BLOCKS = 4  # of columns of a Gram matrix, half of which aren't computed
ROWS = {torch.float64: 4096, torch.float32: 1024}  # summed in this precision at a time
SAMPLE = 256  # rows on which the gradient's product is compared with float64
EXACT = 5e-6  # largest relative error of the gradient, of each of its two products
SAFETY = 2  # how much larger errors may be than on a sample
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # as compiled modules call it
ROUNDING = 16  # centred rows within this many eps are rounding errors


@public
@full_precision
def mean_cosine(X: Any) -> Any:
    r"""Mean cosine over all pairs of different rows, in [-1, 1], differentiable.

    (||s||^2 - n)/(n (n - 1)) with s the sum of unit rows: O(n d), never the n x n cosines.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
        At least two rows that are not zero.

    Notes
    -----
    The value of `isotropy.metrics.mean_cosine`. Zero rows have no direction: they are excluded, and
    their gradient is zero. `cosine_penalty` counts them.

    Examples
    --------
    >>> import torch
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 0.0]]))
    tensor(0.3333)
    """
    several_rows(X.shape[0])
    total, directed = _unit_sum(X)
    n = int(directed)
    if n < 2:
        raise InputError(f"X must have at least 2 rows that are not zero, got {n}.")
    return (total @ total - n) / (n * (n - 1))


@public
@full_precision
def cosine_penalty(X: Any) -> Any:
    r"""(1/n^2) sum_{i != j} cos(x_i, x_j), in (-1, 1), differentiable; zero for one row.

    (||s||^2 - m)/n^2 with s the sum of unit rows and m the number of rows that are not zero.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)

    Notes
    -----
    Cosine regularisation of Gao et al. 2019, as in section 3 of Ding et al. 2022. Zero rows have no
    cosines but count in n; their gradient is zero.

    Examples
    --------
    >>> import torch
    >>> cosine_penalty(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor(0.2222)
    """
    total, directed = _unit_sum(X)
    return (total @ total - directed) / X.shape[0] ** 2


def _unit_sum(X: Any) -> tuple[Any, Any]:
    """(the sum of unit rows, the number of rows that are not zero)."""
    norms = torch.linalg.vector_norm(X, dim=1)
    directed = norms > 0
    total = torch.where(directed, 1 / torch.where(directed, norms, 1.0), 0.0) @ X
    return total, directed.sum()


@public
@full_precision
def log_partition(X: Any, directions: Any = None) -> Any:
    r"""log F(u) and log F(-u), F(u) = sum_x exp(u.x), for every direction; differentiable.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
    directions : tensor of shape (n_features, n_directions), optional
        Unit vectors as columns; by default the eigenvectors of X'X, which are constants: no
        gradient flows through them.

    Returns
    -------
    tensor of shape (2, n_directions)
        The smallest less the largest is log I(W), `isotropy.metrics.partition_isotropy(X,
        log=True)`; the largest less the smallest can be used as a loss.

    Examples
    --------
    >>> import torch
    >>> logs = log_partition(torch.tensor([[1000.0, 0.0], [1000.0, 0.0]]))
    >>> (logs.min() - logs.max()).item()
    -2000.0
    """
    if directions is None:
        rows = X.detach().double()
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors
    if directions.ndim != 2 or directions.shape[0] != X.shape[1]:
        raise InputError(
            f"directions must be columns of {X.shape[1]} values, got shape "
            f"{tuple(directions.shape)}."
        )
    scores = X @ directions.to(X)
    return torch.stack([scores.logsumexp(dim=0), (-scores).logsumexp(dim=0)])


@public
@full_precision
def isoscore(X: Any) -> Any:
    r"""IsoScore of X in [0, 1], differentiable; one if every direction has the same variance.

    (p - 1)/(d - 1) with p = tr(C)^2 / ||C||_F^2, the participation ratio of the covariance C.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
        At least two rows and two features.

    Notes
    -----
    The value of `isotropy.metrics.isoscore`. With fewer rows than features the smaller Gram matrix
    is used. If all rows are equal, the score and its gradient are zero.

    Examples
    --------
    >>> import torch
    >>> isoscore(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    tensor(1.)
    """
    Y, largest = _centred(X)
    gram = smaller_gram(Y * torch.where(largest > 0, 1 / largest, 0.0))
    return _score(gram.trace(), (gram * gram).sum(), X.shape[1])


@public
@full_precision
def isoscore_star(X: Any, running_covariance: Any, zeta: float) -> Any:
    r"""IsoScore in [0, 1] of (1 - zeta) C + zeta C_running, differentiable in X.

    C is the covariance of the batch, which for few rows is far from that of the space; the running
    covariance adds the earlier batches.

    Parameters
    ----------
    X : tensor of shape (n_samples, n_features)
        At least two rows and two features.
    running_covariance : tensor of shape (n_features, n_features)
        Such as that of `RunningCovariance`; no gradient flows into it.
    zeta : float
        Share of the running covariance, in [0, 1].

    Notes
    -----
    IsoScore* of Rudman and Eickhoff, Stable anisotropic regularization, 2024. Differs from it:
    no decomposition; and for fewer rows than features the batch's covariance is never formed: its
    part of the norm comes from the smaller Gram matrix and one product with the running covariance.
    Covariances are divided by n - 1.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> isoscore_star(X, torch.eye(2), 0.0), isoscore_star(X, torch.eye(2), 1.0)
    (tensor(0.), tensor(1.))
    """
    zeta = checks.real(zeta, "zeta", 0.0, 1.0)
    n, d = X.shape
    if tuple(running_covariance.shape) != (d, d):
        raise InputError(
            f"running_covariance must be of shape {(d, d)}, got {tuple(running_covariance.shape)}."
        )
    Y, largest = _centred(X)
    known = running_covariance.detach().to(X)
    scale = torch.maximum(largest, known.abs().max().sqrt())
    scale = torch.where(scale > 0, scale, 1.0)
    Y, known = Y * torch.where(largest > 0, 1 / scale, 0.0), zeta * known / scale**2
    gram = (1 - zeta) / (n - 1) * smaller_gram(Y)
    trace = gram.trace() + known.trace()
    if n >= d:
        return _score(trace, ((gram + known) ** 2).sum(), d)
    shared = (1 - zeta) / (n - 1) * ((Y @ known) * Y).sum()
    return _score(trace, (gram * gram).sum() + 2 * shared + (known * known).sum(), d)


@public
def log_inverse(score: Any, eps: float = 1e-6) -> Any:
    r"""log(1/score), the isotropy loss in the joint loss; log(1/eps) for scores below eps.

    Notes
    -----
    L2 of section 3.3 in the paper of `IsotropyLayer`. Differs from it: for a batch on one line,
    which scores zero, the loss is log(1/eps), with gradient zero, instead of infinite.

    Examples
    --------
    >>> import torch
    >>> log_inverse(torch.tensor([0.5, 0.1]))
    tensor([0.6931, 2.3026])
    """
    return -torch.log(score.clamp(min=eps))


def _centred(X: Any) -> tuple[Any, Any]:
    """Rows less their mean, and their largest value, or zero if that is rounding error."""
    several_rows(X.shape[0])
    if X.shape[1] < 2:
        raise InputError("X must have at least 2 features, got 1.")
    Y = X - X.mean(dim=0)
    largest = _largest(Y)
    rounding = ROUNDING * torch.finfo(X.dtype).eps * _largest(X)
    return Y, torch.where(largest > rounding, largest, 0.0)


def _largest(X: Any) -> Any:
    low, high = X.detach().aminmax()
    return torch.maximum(-low, high)


def smaller_gram(Y: Any) -> Any:
    """Y Y' or Y'Y, whichever is smaller."""
    return _Gram.apply(Y.T if Y.shape[0] < Y.shape[1] else Y)


class _Gram(torch.autograd.Function):
    """Y'Y, whose gradient takes one product instead of autograd's two."""

    @staticmethod
    def forward(ctx: Any, Y: Any) -> Any:
        ctx.save_for_backward(Y)
        return Y.T @ Y

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        (Y,) = ctx.saved_tensors
        with torch.autocast(Y.device.type, enabled=False):
            return Y @ (gradient + gradient.T)


def _score(trace: Any, square: Any, n_features: int) -> Any:
    known = square > 0
    ratio = torch.where(known, trace**2 / torch.where(known, square, 1.0), 1.0)
    return (ratio - 1) / (n_features - 1)


@public
@full_precision
def spectrum_penalty(
    W: Any, decay: Decay = "polynomial", *, c1: float, gamma: float, c2: float = 1.0
) -> Any:
    r"""sum_k (sigma_k - t_k)^2 over the min(n, d) singular values of W, at least 0, differentiable.

    t_k = c1 k^gamma for polynomial decay, c1 exp(-c2 k^gamma) for exponential decay, k from 1.

    Parameters
    ----------
    W : tensor of shape (n_samples, n_features)
    decay : {"polynomial", "exponential"}
    c1 : float
        Scale of the targets, above zero.
    gamma : float
        Rate of decay: below zero for polynomial, above zero for exponential.
    c2 : float
        Above zero; used by exponential decay only.

    Notes
    -----
    The two penalties of section 3 in Ding et al. 2022, after Wang et al. 2020. The value depends on
    singular values alone, so the gradient is U f'(sigma) V', with no 1/(sigma_i - sigma_j). Both
    come from the smaller Gram matrix, decomposed in float64. Its products and that of the gradient
    are in float64 too, unless the error of single precision, measured on a sample of the rows,
    leaves the gradient right to 1e-5. On a CPU, single precision is tried for 4,096 float32 rows or
    more, and is usually enough up to condition 1,000. Equal singular values have no order
    and the penalty has a kink: there the gradient is that of the mean of their targets. Directions
    of singular values below 1e-7 of the largest are rounding errors, and get gradient zero.

    Examples
    --------
    >>> import torch
    >>> W = torch.diag(torch.tensor([3.0, 1.0])).requires_grad_()
    >>> penalty = spectrum_penalty(W, c1=2.0, gamma=-1.0)
    >>> penalty.backward()
    >>> penalty.detach(), W.grad
    (tensor(1.), tensor([[2., 0.], [0., 0.]]))
    """
    targets = _targets(min(W.shape), decay, c1, c2, gamma).to(W.device)
    return _Penalty.apply(W, targets)


def _targets(n: int, decay: str, c1: float, c2: float, gamma: float) -> Any:
    checks.choice(decay, "decay", ("polynomial", "exponential"))
    c1 = checks.real(c1, "c1", math.ulp(0.0))
    c2 = checks.real(c2, "c2", math.ulp(0.0))
    sides = (-math.inf, 0.0) if decay == "polynomial" else (0.0, math.inf)
    gamma = checks.real(gamma, "gamma", *sides)
    powers = torch.arange(1, n + 1, dtype=torch.float64) ** gamma
    return c1 * (powers if decay == "polynomial" else torch.exp(-c2 * powers))


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, W: Any, targets: Any) -> Any:
        tall = W.T if W.shape[0] < W.shape[1] else W
        sample = _sample(tall) if _may_be_single(tall) else None
        for dtype in [torch.float64] if sample is None else [torch.float32, torch.float64]:
            gram, squares = _lower_gram(tall, dtype)
            if dtype == torch.float32 and not bool(squares.isfinite()):
                continue  # squares past its range
            values, vectors = torch.linalg.eigh(gram)
            sigma, vectors = values.clamp(min=0).sqrt().flip(0), vectors.flip(1)
            resolved = sigma > UNRESOLVED * sigma[0]
            wanted = _over_ties(targets, sigma)
            slope = 2 * (sigma - wanted) * resolved
            if dtype == torch.float64:
                break
            error = _gradient_error(sigma, wanted, _rounding(tall[sample]) * squares.sqrt())
            if bool(error <= EXACT * slope.norm()):
                break
        factor = slope / torch.where(resolved, sigma, 1.0)
        ctx.save_for_backward(W, (vectors * factor) @ vectors.T, sample)
        return ((sigma - targets) ** 2).sum().to(W.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        W, inner, sample = ctx.saved_tensors
        tall = W.T if W.shape[0] < W.shape[1] else W
        with torch.autocast(W.device.type, enabled=False):
            found = _rows_times(tall, gradient.double() * inner, sample)
        return found.T if W.shape[0] < W.shape[1] else found, None


def _may_be_single(tall: Any) -> bool:
    """Whether to try single precision: on a CPU, if a sample is cheap enough to tell its error."""
    many = len(tall) >= 4 * ROWS[torch.float32]
    return bool(tall.dtype == torch.float32 and tall.device.type == "cpu" and many)


def _sample(tall: Any) -> Any:
    """Numbers of a block of rows: first the longest, which may hold all of the error, then others.

    The others are drawn at random, the same each time: those at even distances may be of one kind.
    """
    n_rows = ROWS[torch.float32]
    longest = torch.linalg.vector_norm(tall, dim=1).topk(n_rows // 4).indices
    drawn = torch.randperm(len(tall), generator=torch.Generator().manual_seed(0))
    return torch.cat([longest, drawn[: n_rows - len(longest)]])


def _lower_gram(tall: Any, dtype: Any) -> tuple[Any, Any]:
    """(W'W, the sum of squares of its blocks' traces); blocks of rows are added in float64.

    Blocks of columns above the diagonal, which eigh doesn't read, are zero.
    """
    d = tall.shape[1]
    width = -(-d // BLOCKS)
    found = torch.zeros(d, d, dtype=torch.float64, device=tall.device)
    traces = [found.trace()]
    for part in tall.split(ROWS[dtype]):
        columns = part.to(dtype).T
        if dtype == torch.float32:
            columns = columns.contiguous()  # once, which oneDNN would do for every block
        for start in range(0, d, width):
            stop = start + width
            found[start:, start:stop] += _product(columns[start:], columns[start:stop])
        traces.append(found.trace())
    return found, torch.stack(traces).diff().square().sum()


def _rounding(rows: Any) -> Any:
    """Norm of the error of a block's W'W in single precision, relative to its trace.

    Measured on a sample of the rows, so that it holds for any way to multiply, and for lower
    precisions that torch.set_float32_matmul_precision allows. Errors of blocks are independent: the
    norm of their sum is the root of the sum of squares.
    """
    exact, _ = _lower_gram(rows, torch.float64)
    error = (_lower_gram(rows, torch.float32)[0] - exact).norm()
    return SAFETY * math.sqrt(2) * error / exact.trace()  # errors below the diagonal count twice


def _gradient_error(sigma: Any, wanted: Any, rounding: Any) -> Any:
    r"""Norm of the gradient's error, to first order, if W'W has an error E of norm `rounding`.

    The gradient is W f(W'W) with f = 2 - 2 t/sigma. In the basis of the singular vectors its error
    is sigma_i E_ij (f_i - f_j)/(sigma_i^2 - sigma_j^2), which is

        2 E_ij (t_j / (sigma_j (sigma_i + sigma_j)) - (t_i - t_j)/(sigma_i^2 - sigma_j^2)).

    Rounding errors have no preferred direction, so all E_ij are taken to be equally large, and
    singular values closer than that may change places. The first term grows with the square of the
    condition: E is about 1e-8 sigma_1^2 in single precision, so at condition 1,000 the relative
    error is below 1e-5 if small singular values have targets below 1e-3 of the gradient's norm.
    """
    size = rounding / len(sigma)
    squares = sigma**2
    apart = (squares[:, None] - squares).abs().clamp(min=size)
    swapped = (wanted[:, None] - wanted).abs() / apart
    return 2 * size * (wanted / (sigma * (sigma[:, None] + sigma)) + swapped).norm()


def _rows_times(tall: Any, inner: Any, sample: Any) -> Any:
    """The product with a symmetric matrix; in single precision if that is right on a sample."""
    if sample is not None:
        rows, single = tall[sample[:: len(sample) // SAMPLE]], inner.float()
        exact = rows.double() @ inner
        error = (_product(rows, single) - exact).norm()
        if bool(SAFETY * error < EXACT * exact.norm()):  # not for rows of zeros
            return _product(tall, single)
    parts = tall.split(ROWS[torch.float64])
    return torch.cat([(rows.double() @ inner).to(tall.dtype) for rows in parts])


def _product(A: Any, B: Any) -> Any:
    """A B'. In single precision on a CPU by oneDNN, in half of MKL's time on AMD processors."""
    if ONEDNN is None or A.dtype == torch.float64 or A.device.type != "cpu":
        return A @ B.T
    return ONEDNN(A, B, None, "none", [], "")


def _over_ties(targets: Any, sigma: Any) -> Any:
    """Targets averaged over runs of equal singular values, which are in descending order."""
    apart = sigma[:-1] - sigma[1:] > UNRESOLVED * sigma[0]
    groups = torch.cat([apart.new_zeros(1), apart]).cumsum(0)
    sums = torch.zeros_like(targets).index_add_(0, groups, targets)
    sizes = torch.zeros_like(targets).index_add_(0, groups, torch.ones_like(targets))
    return (sums / sizes.clamp(min=1))[groups]
