"""Checks for authors of metrics, repairs, codecs, statistics and tasks.

They need no test framework. Each raises AssertionError, with the name of the check that failed, if
its argument breaks what all metrics, repairs, codecs, statistics or tasks of the package promise.
"""

from isotropy.testing.codecs import check_codec
from isotropy.testing.metrics import check_metric
from isotropy.testing.repairs import check_repair
from isotropy.testing.statistics import check_statistic
from isotropy.testing.tasks import check_task

__all__ = ["check_codec", "check_metric", "check_repair", "check_statistic", "check_task"]
