"""Losses that can be differentiated, each the twin of its metric.

All of them leave autocast: half precision is taken to float32, and the spectrum to float64.
"""

from isotropy.repairs.networks.isoscore import isoscore, isoscore_star, log_inverse
from isotropy.train.cosine import mean_cosine
from isotropy.train.partition import log_partition
from isotropy.train.spectrum import spectrum_penalty

__all__ = [
    "isoscore",
    "isoscore_star",
    "log_inverse",
    "log_partition",
    "mean_cosine",
    "spectrum_penalty",
]
