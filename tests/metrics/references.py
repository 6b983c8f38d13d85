"""Every metric written out in plain float64 numpy, and the data to try them on.

Nothing here comes from the package: singular values are those of X itself, pairs of rows are
taken one by one, and expectations over several rows are averages over all choices of them.
"""

from itertools import permutations

import numpy as np
from scipy.special import logsumexp

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def datasets() -> dict[str, np.ndarray]:
    """Float64 rows with distinct eigenvalues, in the shapes that real vectors come in."""
    random = np.random.default_rng(7)
    scales = np.linspace(1.5, 0.4, 8)
    drift = np.array([0.8, -0.3, 0.1, 0.5, 0.0, 0.2, -0.6, 0.4])
    rows = random.standard_normal((70, 8)) * scales + drift
    return {
        "random": rows,
        "shifted": rows + 1e6,
        "n < d": random.standard_normal((9, 20)) * np.linspace(1.5, 0.4, 20) + 0.3,
        "rank-deficient": rows[:, :3] @ random.standard_normal((3, 8)) / 2,
        "constant dimension": np.where(np.arange(8) == 5, 0.7, rows),
        "zero rows": np.where(np.arange(70)[:, None] % 9 == 4, 0.0, rows),
        "duplicate rows": np.repeat(rows[:35], 2, axis=0),
    }


def centred(X):
    """X minus its mean; the first row goes first, which costs no digits."""
    Y = np.asarray(X, dtype=np.float64) - np.asarray(X[0], dtype=np.float64)
    return Y - Y.mean(axis=0)


def singular_values(X, center=False):
    if center:
        return np.linalg.svd(centred(X), compute_uv=False)
    Y = np.array(X if X.shape[0] >= X.shape[1] else X.T, dtype=np.longdouble)
    for _ in range(12):  # one-sided Jacobi: columns are turned until they are orthogonal
        for i in range(Y.shape[1]):
            for j in range(i + 1, Y.shape[1]):
                a, b, c = Y[:, i] @ Y[:, i], Y[:, j] @ Y[:, j], Y[:, i] @ Y[:, j]
                angle = np.arctan2(2 * c, a - b) / 2
                cos, sin = np.cos(angle), np.sin(angle)
                Y[:, i], Y[:, j] = cos * Y[:, i] + sin * Y[:, j], cos * Y[:, j] - sin * Y[:, i]
    return np.sort(np.sqrt((Y * Y).sum(0)))[::-1].astype(np.float64)


def effective_rank(X, center=False):
    singular = singular_values(X, center)
    singular = singular[singular > 1e-7 * singular_values(X, center=True)[0]]
    p = singular / singular.sum()
    return np.exp(-sum(q * np.log(q) for q in p))


def variances(X):
    """Eigenvalues of the covariance, d of them."""
    values = np.zeros(X.shape[1])
    singular = singular_values(X, center=True)
    values[: len(singular)] = singular**2 / (len(X) - 1)
    return values


def explained_variance(X, k=1, center=True):
    values = variances(X) if center else singular_values(X) ** 2
    return values[:k].sum() / values.sum()


def participation_ratio(X):
    values = variances(X)
    return values.sum() ** 2 / (values**2).sum()


def isoscore(X):
    """The steps of Rudman et al. 2022, one after the other."""
    d = X.shape[1]
    diagonal = variances(X)
    normalised = np.sqrt(d) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalised - np.ones(d)) / np.sqrt(2 * (d - np.sqrt(d)))
    used = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d
    return (used - 1) / (d - 1)


def isoscore_unbiased(X):
    """(tr C)^2 and tr(C^2) as averages over all choices of four different rows."""
    squared_trace, trace_of_square, n_choices = 0.0, 0.0, 0
    for i, j, k, m in permutations(range(len(X)), 4):
        a, b = X[i] - X[j], X[k] - X[m]
        squared_trace += (a @ a) * (b @ b) / 4
        trace_of_square += (a @ b) ** 2 / 4
        n_choices += 1
    ratio = (squared_trace / n_choices) / (trace_of_square / n_choices)
    return (ratio - 1) / (X.shape[1] - 1)


def isoscore_unbiased_by_sums(X):
    """The same for more rows: sums over different rows from sums over all of them."""
    Y = centred(X)
    n, G = len(Y), centred(X) @ centred(X).T
    own = np.diag(G)
    off = G - np.diag(own)
    pairs, triples, fours = n * (n - 1), n * (n - 1) * (n - 2), n * (n - 1) * (n - 2) * (n - 3)
    row = off.sum(1)
    two = (off**2).sum()
    three = (row**2).sum() - two
    four = off.sum() ** 2 - 4 * three - 2 * two
    square = two / pairs - 2 * three / triples + four / fours
    self_two = own.sum() ** 2 - own @ own
    self_three = own.sum() * off.sum() - 2 * own @ row
    trace = self_two / pairs - 2 * self_three / triples + four / fours
    return (trace / square - 1) / (X.shape[1] - 1)


def log_partition(X, basis):
    """log F(u) and log F(-u) for every column u, of shape (2, n_directions)."""
    scores = np.asarray(X, dtype=np.float64) @ basis
    return np.stack([logsumexp(scores, axis=0), logsumexp(-scores, axis=0)])


def eigenvectors(X):
    """All right singular vectors as columns."""
    return np.linalg.svd(np.asarray(X, dtype=np.float64), full_matrices=True)[2].T


def log_partition_isotropy(X, center=False):
    X = centred(X) if center else X
    logs = log_partition(X, eigenvectors(X))
    return logs.min() - logs.max()


def partition_isotropy(X, center=False):
    return np.exp(log_partition_isotropy(X, center))


def dispersion(logs):
    F = np.exp(logs - logs.max()).ravel()
    return np.sqrt(((F - F.mean()) ** 2).mean()) / F.mean()


def partition_dispersion(X, center=False):
    X = centred(X) if center else X
    return dispersion(log_partition(X, eigenvectors(X)))


def units(X):
    rows = [x / np.sqrt(x @ x) for x in np.asarray(X, dtype=np.float64) if x.any()]
    return np.array(rows)


def mean_over_pairs(X, value, weights=None):
    """Mean of value(u, v) over pairs of different rows, weighted by the product of weights."""
    weights = np.ones(len(X)) if weights is None else weights
    weights = weights[np.asarray(X).any(axis=1)]
    U = units(X)
    total, weight = 0.0, 0.0
    for i in range(len(U)):
        for j in range(len(U)):
            if i != j:
                total = total + weights[i] * weights[j] * value(U[i], U[j])
                weight += weights[i] * weights[j]
    return total / weight


def mean_cosine(X, weights=None):
    return mean_over_pairs(X, lambda u, v: u @ v, weights)


def rogue_dimensions(X, weights=None):
    parts = mean_over_pairs(X, lambda u, v: u * v, weights)
    return parts / parts.sum()


def uniformity(X, weights=None):
    return np.log(mean_over_pairs(X, lambda u, v: np.exp(-2 * ((u - v) @ (u - v))), weights))


def mean_norm_ratio(X):
    X = np.asarray(X, dtype=np.float64)
    return np.linalg.norm(X.mean(axis=0)) / np.mean([np.sqrt(x @ x) for x in X])


def mean_alignment(X):
    mean = np.asarray(X, dtype=np.float64).mean(axis=0)
    return abs(mean @ eigenvectors(X)[:, 0]) / np.linalg.norm(mean)


def norms(X):
    lengths = np.sort([np.sqrt(x @ x) for x in np.asarray(X, dtype=np.float64)])
    found = {"mean": lengths.mean(), "min": lengths[0], "max": lengths[-1]}
    for name, q in QUANTILES.items():
        place = q * (len(lengths) - 1)
        low = int(place)
        high = min(low + 1, len(lengths) - 1)
        found[name] = lengths[low] + (place - low) * (lengths[high] - lengths[low])
    return found


def occurrences(X, k):
    U = units(X)
    counts = np.zeros(len(U))
    for i, u in enumerate(U):
        similar = [(-(u @ v), j) for j, v in enumerate(U) if j != i]
        for _, j in sorted(similar)[:k]:
            counts[j] += 1
    return counts


def hubness(X, k):
    counts = occurrences(X, k)
    deviations = counts - counts.mean()
    return (deviations**3).mean() / (deviations**2).mean() ** 1.5
