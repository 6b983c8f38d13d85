"""The experiments of five papers, on any model, beside the published figures [models, report]."""

from isotropy.papers.experiment import Experiment, experiments
from isotropy.papers.running import reproduce

__all__ = ["Experiment", "experiments", "reproduce"]
