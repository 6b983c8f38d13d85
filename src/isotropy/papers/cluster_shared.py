"""What the experiments of the cluster-based paper share: the paper, its settings, its repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.models import Float32Array
from isotropy.papers.experiment import Paper, Record, over_seeds
from isotropy.papers.settings import Settings, isotropies
from isotropy.repairs import AllButTheTop, ClusterRemoval, Repair

PAPER = Paper(
    "cluster",
    title="A cluster-based approach for improving isotropy in contextual embedding space",
    authors="Rajaee and Pilehvar",
    year=2021,
    about="Token vectors of a pre-trained model fall into clusters, and each cluster has its own "
    "dominant directions. Removing them cluster by cluster makes the space more isotropic than "
    "removing global ones, and sentence similarities agree better with people.",
    bibtex="""
@inproceedings{rajaee-pilehvar-2021-cluster,
  title = {A Cluster-based Approach for Improving Isotropy in Contextual Embedding Space},
  author = {Rajaee, Sara and Pilehvar, Mohammad Taher},
  booktitle = {Proceedings of ACL-IJCNLP 2021 (Volume 2: Short Papers)},
  year = {2021}
}""",
    models={"GPT-2": "gpt2", "BERT": "bert-base-uncased", "RoBERTa": "roberta-base"},
)
DB, SM, ML, GT = "distilbert-base-cased", "smollm2-135m", "all-MiniLM-L6-v2", "gte-small"
BASELINE, GLOBAL, CLUSTER = SETTINGS = ("baseline", "global", "cluster-based")
# Appendix B.2: clusters, directions removed from each, directions removed globally. A causal model
# gets those of GPT-2, any other those of BERT.
SIZES = {
    "default": [27, 12, 15],
    "roberta-base": [27, 12, 25],
    "gpt2": [10, 30, 30],
    "smollm2-135m": [10, 30, 30],
}
QUICK_SIZES = {"default": [3, 2, 2]}


def sizes_for(settings: Settings, model: str) -> tuple[int, int, int]:
    """Clusters, directions removed from each, and directions removed globally, for a model."""
    known = settings.options["sizes"]
    n_clusters, n_components, n_global = known.get(Path(model).name, known["default"])
    return n_clusters, n_components, n_global


def sizes_note(settings: Settings, model: str) -> str:
    """These numbers in words."""
    n_clusters, n_components, n_global = sizes_for(settings, model)
    return (
        f"{Path(model).name}: {n_clusters} clusters and {n_components} directions each; "
        f"{n_global} directions globally."
    )


def repair_for(setting: str, sizes: Sequence[int], seed: int = 0) -> Repair:
    """The global or the cluster-based repair, not yet fitted."""
    n_clusters, n_components, n_global = sizes
    if setting == GLOBAL:
        return AllButTheTop(n_global)
    return ClusterRemoval(n_clusters, n_components, random_state=seed)


def repaired(rows: Float32Array, setting: str, sizes: Sequence[int], seed: int = 0) -> Float32Array:
    """The rows in one of the three settings, with a repair that is fitted on them."""
    if setting == BASELINE:
        return rows
    found: Float32Array = repair_for(setting, sizes, seed).fit_transform(rows)
    return found


def seeds_of(settings: Settings, setting: str) -> range:
    """The seeds of a setting; only clusters depend on one."""
    return range(settings.seeds if setting == CLUSTER else 1)


def isotropies_over(
    spaces: Callable[[int], Float32Array], seeds: range, **keys: Any
) -> list[Record]:
    """log10 I of the rows that `spaces(seed)` returns, in both sign conventions, over seeds."""
    found = []
    for seed in seeds:
        rows = spaces(seed)
        found.append(isotropies(rows))
    return [
        over_seeds([one[name] for one in found], n=len(rows), measure=name, **keys)
        for name in found[0]
    ]


def components(rows: Any, n: int) -> tuple[Any, Any]:
    """Coordinates of rows along their first principal components, and each one's variance share."""
    fitted = AllButTheTop(n).fit(rows)
    positions = (rows - fitted.mean_) @ fitted.components_.T
    return positions, positions.var(axis=0) / np.var(rows, axis=0, dtype=np.float64).sum()


def drawn(n_all: int, n: int) -> Any:
    """Numbers of n rows drawn at random, with a fixed seed."""
    return np.random.default_rng(0).choice(n_all, min(n, n_all), replace=False)
