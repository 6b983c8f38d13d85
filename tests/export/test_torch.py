"""Programs of torch.export, run where isotropy is missing."""

import numpy as np
import pytest

from isotropy import export

from .elsewhere import LIMIT, fitted, generated, largest_difference, run_elsewhere, sentences

pytest.importorskip("torch")
RUN = """
import numpy as np, torch
folder, *names = sys.argv[1:]
rows = torch.from_numpy(np.load(folder + "/rows.npy"))
for name in names:
    program = torch.export.load(folder + "/" + name + ".pt2").module()
    np.save(folder + "/" + name + ".npy", program(rows).numpy())
"""


def check_elsewhere(repairs, X, folder):
    """Write a program for each repair, and run rows through all of them without isotropy."""
    np.save(folder / "rows.npy", X)
    for name, repair in repairs.items():
        export.torch(repair, folder / f"{name}.pt2")
    run_elsewhere(RUN, folder, *repairs)
    for name, repair in repairs.items():
        found = np.load(folder / f"{name}.npy")
        assert largest_difference(found, repair, X) <= LIMIT, name


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_it_is_transform_where_isotropy_is_missing(tmp_path, shift):
    X = generated(1000, 24, shift)
    names = ["center", "scaled-center", "whiten-unit", "whiten-pca", "cluster-removal"]
    names += ["rotate", "center-rotate", "cluster-rotate-unit", "unit-rotate"]
    found = fitted(X)
    check_elsewhere({name: found[name] for name in names}, X, tmp_path)


@pytest.mark.parametrize("shift", [0.0, 10.0])
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_it_repairs_sentences_where_isotropy_is_missing(shift, tmp_path, models, data):
    X = sentences(models, data) + np.float32(shift)
    check_elsewhere(fitted(X[1000:]), X[:1000], tmp_path)
