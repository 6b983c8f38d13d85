"""apply killed with SIGKILL half-way: the target is whole, the old one, or not there."""

from __future__ import annotations

import numpy as np
import pytest

import isotropy

LINE = ("--chunk-rows", "250")


@pytest.fixture
def repair(X, tmp_path):
    """A saved repair and the rows that it gives."""
    fitted = isotropy.AllButTheTop(2).fit(X)
    fitted.save(tmp_path / "repair.safetensors")
    return tmp_path / "repair.safetensors", fitted.transform(X)


def rows_of(path):
    source = isotropy.open(path)
    return np.concatenate([b.rows for chunk in source.chunks() for b in source.read(chunk)])


def begun(target, n_bytes=1):
    """Whether rows are being written beside the target."""

    def check():
        files = target.parent.glob(f".{target.name}.*.isotropy-part")
        return sum(file.stat().st_size for file in files) > n_bytes

    return check


@pytest.mark.parametrize(
    ("suffix", "old"),
    [
        (".npy", b"what was there before"),
        pytest.param(".parquet", None, marks=pytest.mark.slow),
        pytest.param(".safetensors", None, marks=pytest.mark.slow),
    ],
)
def test_the_target_is_the_old_one_or_not_there(
    repair, path, tmp_path, killed_when, command, suffix, old
):
    saved, expected = repair
    target = tmp_path / f"fixed{suffix}"
    if old is not None:
        target.write_bytes(old)
    line = ("apply", saved, path, "--out", target, "--overwrite", *LINE)
    n_bytes = 4000 if suffix == ".parquet" else 40_000
    killed_when(begun(target, n_bytes), *line)
    assert (target.read_bytes() if target.exists() else None) == old
    result = command(*line)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    np.testing.assert_allclose(rows_of(target), expected, rtol=1e-5, atol=1e-5)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"repair.safetensors", target.name}
