"""The report: charts of a space, and one self-contained HTML page of them; needs `report`."""

from isotropy.report import charts
from isotropy.report.page import page, render, write, write_compression, write_image, write_images
from isotropy.report.views import View

__all__ = ["View", "charts", "page", "write", "write_compression", "write_image"]
