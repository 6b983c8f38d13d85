"""Statistics that merge: small states of sums over rows, from which everything else follows."""

from isotropy.stats.base import Statistic
from isotropy.stats.blocks import BlockSums
from isotropy.stats.clusters import ClusterMoments, ClusterSums, Outliers, StripedMoments
from isotropy.stats.directions import Directions
from isotropy.stats.moments import Moments
from isotropy.stats.projections import LogPartition, Projections
from isotropy.stats.sample import Sample
from isotropy.stats.signs import SignProducts

__all__ = [
    "ClusterMoments",
    "ClusterSums",
    "Directions",
    "LogPartition",
    "Moments",
    "Projections",
    "Sample",
    "SignProducts",
    "Statistic",
]
