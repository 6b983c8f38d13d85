"""The table of docs/ship.md: each pair of repair and target is written, or refused in one line."""

from pathlib import Path

import numpy as np
import pytest

from isotropy import export, repairs
from isotropy.errors import IsotropyError

from ..static_models import model2vec, small
from .common import tiny
from .elsewhere import generated, learned_layer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ship.md"
TARGETS = ("sentence-transformers", "static", "faiss", "ONNX", "torch", "MTEB")
D = 16  # of the tiny models


def table():
    """The cells of the table, by repair and target."""
    page = PAGE.read_text("utf-8").partition("## Which repair goes where")[2]
    lines = page.partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    head, _, *rows = cells
    assert head == ["repair", *TARGETS]
    return {row[0]: dict(zip(TARGETS, row[1:], strict=True)) for row in rows}


def made(row):
    """Fitted repairs of a row of the table."""
    X = generated(300, D)
    affine = [repairs.Center(), repairs.Standardize(), repairs.AllButTheTop(2), repairs.Whiten()]
    if row == "the same with `normalize=True`":
        return [repair.set_params(normalize=True).fit(X) for repair in affine] + [
            learned_layer(X).set_params(normalize=True)
        ]
    return {
        "`ScaledCenter`": lambda: [
            repairs.ScaledCenter(normalize=unit).fit(X) for unit in (False, True)
        ],
        "`ClusterRemoval`": lambda: [repairs.ClusterRemoval(3, 1).fit(X)],
        "`Flow`": lambda: [repairs.Flow(n_levels=1, n_steps=1).fit(X)],
        "`PerGroup`": lambda: [
            repairs.PerGroup(repairs.Center()).fit(X, groups=["query", "document"] * 150)
        ],
    }.get(row, lambda: [repair.fit(X) for repair in affine] + [learned_layer(X)])()


class Encoder:
    """What mteb asks of an encoder, for made-up vectors."""

    mteb_model_meta = None

    def __init__(self, rows):
        self.rows = rows

    def encode(self, inputs, **kwargs):
        return self.rows

    def similarity(self, embeddings1, embeddings2):
        raise NotImplementedError

    similarity_pairwise = similarity


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Functions that write a repair for each target."""
    for package in ("torch", "sentence_transformers", "faiss", "onnx", "mteb"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("pairs")
    model, static = tiny(folder / "model"), model2vec(folder / "static")
    assert small()[0].shape[1] == D

    def out(name):
        return folder / f"{name}-{len(list(folder.iterdir()))}"

    return {
        "sentence-transformers": lambda r: export.sentence_transformers(model, r, out("st")),
        "static": lambda r: export.static(static, r, out("static")),
        "faiss": lambda r: export.faiss(r, None, out("faiss")),
        "ONNX": lambda r: export.onnx(r, out("onnx")),
        "torch": lambda r: export.torch(r, out("torch")),
        "MTEB": lambda r: export.mteb(Encoder(generated(4, D)), r),
    }


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", table())
def test_the_table_says_what_is_written_and_what_is_refused(row, target, written):
    cell = table()[row][target]
    for repair in made(row):
        supported = not cell.startswith("no") and (
            cell != "with `normalize=True`" or repair.normalize
        )
        if supported:
            written[target](repair)
            continue
        with pytest.raises(IsotropyError) as error:
            written[target](repair)
        assert type(repair).__name__ in str(error.value)
        assert "\n" not in str(error.value)


def test_towers_need_the_names_of_their_routes(written):
    X = generated(300, D)
    repair = repairs.PerGroup(repairs.Center()).fit(X, groups=["en", "fr"] * 150)
    with pytest.raises(IsotropyError, match="'query' and 'document'"):
        written["sentence-transformers"](repair)


def test_mteb_gets_what_transform_gives(written):
    rows = generated(50, D, 10.0)
    for row in table():
        for repair in made(row):
            if not repair.grouped:
                found = export.mteb(Encoder(rows), repair).encode(None)
                np.testing.assert_array_equal(found, repair.transform(rows))
