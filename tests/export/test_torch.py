"""Programs of torch.export, run where isotropy is missing."""

import numpy as np
import pytest

from isotropy import export

from .elsewhere import LIMIT, fitted, generated, largest_difference, run_elsewhere

pytest.importorskip("torch")
RUN = """
import numpy as np, torch
folder, *names = sys.argv[1:]
rows = torch.from_numpy(np.load(folder + "/rows.npy"))
for name in names:
    program = torch.export.load(folder + "/" + name + ".pt2").module()
    np.save(folder + "/" + name + ".npy", program(rows).numpy())
"""


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_it_is_transform_where_isotropy_is_missing(tmp_path, shift):
    X = generated(1000, 24, shift)
    repairs = fitted(X)
    names = ["center", "scaled-center", "whiten-unit", "whiten-pca", "cluster-removal"]
    names += ["rotate", "center-rotate", "cluster-rotate-unit", "unit-rotate"]
    np.save(tmp_path / "rows.npy", X)
    for name in names:
        export.torch(repairs[name], tmp_path / f"{name}.pt2")
    run_elsewhere(RUN, tmp_path, *names)
    for name in names:
        found = np.load(tmp_path / f"{name}.npy")
        assert largest_difference(found, repairs[name], X) <= LIMIT, name
