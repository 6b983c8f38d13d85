"""Links of files outside the site, and pictures made again; `make docs` checks the rest."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from isotropy.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(
    r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)|(?:src|href)=\"([^\"#:]+)\""
)
NUMBER = re.compile(r"-?\d+\.?\d*")
FILES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def anchors(page):
    """What the headings of a page can be linked by."""
    text = re.sub(r"(?s)^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M)
    heads = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", FILES)
def test_links_of_files_outside_the_site_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for path, anchor, source in LINK.findall(text):
        target = ROOT / (path or source or name)
        assert target.exists(), f"{name} links to {path or source}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name} links to {path}#{anchor}"


def test_pictures_are_what_the_script_makes(tmp_path):
    folder = ROOT / "docs" / "figures"
    spec = importlib.util.spec_from_file_location("make_figures", folder / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    try:
        make.main(tmp_path)
    except MissingExtraError as error:
        pytest.skip(str(error))
    kept = sorted(path.name for path in folder.glob("*.svg"))
    assert kept == sorted(path.name for path in tmp_path.iterdir())
    for name in kept:
        old, new = ((place / name).read_text(encoding="utf-8") for place in (folder, tmp_path))
        assert NUMBER.split(old) == NUMBER.split(new)
        numbers = [np.array(NUMBER.findall(text), dtype=float) for text in (old, new)]
        np.testing.assert_allclose(*numbers, atol=0.11)  # a last digit may round the other way
