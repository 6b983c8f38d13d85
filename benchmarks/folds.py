"""How far the scores of folds are correlated if the labels are random.

    python benchmarks/folds.py

For k folds: the mean correlation of the accuracies of two folds over 1,000 random labellings, with
logistic heads trained on the other folds; 200 items of 16 normal features for five folds, and 60
and 40 items for three and two, so that about as many items train each head. About a minute.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

LABELLINGS, FEATURES = 1000, 16
ITEMS = {5: 200, 3: 60, 2: 40}  # folds: items


def correlation(n_folds: int, n_items: int) -> tuple[float, float]:
    """Mean correlation of the accuracies of two folds, and its standard error over 10 parts."""
    random = np.random.default_rng(0)
    X = random.standard_normal((n_items, FEATURES))
    folds = np.array_split(random.permutation(n_items), n_folds)
    accuracies = np.empty((LABELLINGS, n_folds))
    for row in accuracies:
        labels = random.integers(0, 2, n_items)
        for number, fold in enumerate(folds):
            others = np.setdiff1d(np.arange(n_items), fold)
            head = LogisticRegression().fit(X[others], labels[others])
            row[number] = head.score(X[fold], labels[fold])
    apart = ~np.eye(n_folds, dtype=bool)
    parts = [np.corrcoef(part.T)[apart].mean() for part in np.array_split(accuracies, 10)]
    return float(np.corrcoef(accuracies.T)[apart].mean()), float(np.std(parts, ddof=1) / 10**0.5)


def main() -> None:
    print("folds  items  correlation of two folds  1/k")
    for n_folds, n_items in ITEMS.items():
        found, error = correlation(n_folds, n_items)
        print(
            f"{n_folds:5}  {n_items:5}  {found:.2f} +- {error:.2f}              {1 / n_folds:.2f}"
        )


if __name__ == "__main__":
    main()
