"""Corners that rows of real files can lead into."""

import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest

import isotropy
from isotropy import metrics
from isotropy.errors import InputError
from isotropy.stats import Sample

X = np.random.default_rng(0).standard_normal((400, 8))


def test_one_row_has_a_geometry():
    geometry = isotropy.measure(X[:1])
    assert np.isnan(geometry.participation_ratio)
    assert np.isnan(geometry.isoscore)


def test_relative_weights_change_no_score():
    w = np.full(400, 1 / 400)
    for metric in (metrics.isoscore, metrics.participation_ratio, metrics.partition_isotropy):
        assert metric(X, sample_weight=w) == pytest.approx(metric(X), rel=1e-9)
    assert metrics.isoscore(X, unbiased=True, sample_weight=w) == pytest.approx(
        metrics.isoscore(X, unbiased=True), rel=1e-9
    )


def test_large_weights_stay_in_range():
    rows = (65 * X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    heavy = metrics.partition_isotropy(rows, log=True, sample_weight=np.full(400, 1e9))
    assert heavy == pytest.approx(metrics.partition_isotropy(rows, log=True), rel=1e-5)


def test_one_shifted_dimension_has_a_singular_value():
    assert metrics.singular_values(np.array([[1e6], [1e6 + 1]]))[0] == pytest.approx(2**0.5 * 1e6)


def test_hubness_of_zero_rows_is_undefined():
    assert np.isnan(metrics.hubness(np.zeros((5, 3)), k=1))


def test_exact_uniformity_uses_the_weights_of_a_source():
    w = np.arange(400.0)
    source = isotropy.open(X, sample_weight=w)
    expected = metrics.uniformity(X, exact=True, sample_weight=w)
    assert metrics.uniformity(source, exact=True) == expected


def test_metrics_take_paths(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    for metric in (metrics.hubness, metrics.isoscore, metrics.mean_cosine):
        assert metric(tmp_path / "rows.npy") == metric(X)


def test_a_geometry_can_be_pickled():
    geometry = isotropy.measure(X)
    assert str(pickle.loads(pickle.dumps(geometry))) == str(geometry)


def test_the_sample_does_not_depend_on_chunks_where_rows_are_left_out():
    rows = np.random.default_rng(0).standard_normal((3000, 4))
    rows[5] = np.nan
    picked = []
    for chunk_rows in (3000, 70):
        source = isotropy.open(rows, chunk_rows=chunk_rows, skip_bad_rows=True)
        (sample,) = isotropy.engines.reduce(source, [Sample(200)]).states
        picked.append(sample.numbers)
    assert np.array_equal(*picked)
    assert 5 not in picked[0]


def test_a_file_listed_twice_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    with pytest.raises(InputError, match="is listed twice"):
        isotropy.open([tmp_path / "rows.npy", tmp_path / "rows.npy"])


def test_a_checkpoint_of_other_columns_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({f"c{i}": X[:, i] for i in range(4)}), tmp_path / "rows.parquet")
    for columns, refused in ((["c0", "c1"], False), (["c2", "c3"], True)):
        source = isotropy.open(tmp_path / "rows.parquet", column=columns)
        if refused:
            with pytest.raises(InputError, match="is of other data or settings"):
                isotropy.measure(source, checkpoint=tmp_path / "kept")
        else:
            isotropy.measure(source, checkpoint=tmp_path / "kept")


def test_local_metrics_and_a_checkpoint_go_together(tmp_path):
    geometry = isotropy.measure(X, local=2, checkpoint=tmp_path / "kept")
    assert geometry.local_isotropy["isoscore"]["mean"] > 0


def test_an_interrupt_ends_a_pass_soon(tmp_path):
    code = (
        "import atexit, signal, threading, numpy as np, isotropy\n"
        "handled, read = threading.Event(), []\n"
        "def interrupt(number, frame):\n"
        "    handled.set()\n"
        "    raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGINT, interrupt)\n"
        "class Held(isotropy.sources.ArraySource):\n"
        "    def read(self, chunk):\n"
        "        read.append(chunk)\n"
        "        if len(read) == 9:\n"
        "            print('in the middle', flush=True)\n"
        "        if len(read) >= 9:\n"
        "            handled.wait()\n"
        "        yield from super().read(chunk)\n"
        "atexit.register(lambda: print(len(read)))\n"
        "isotropy.measure(Held(np.ones((50_000, 2)), chunk_rows=5))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        assert 9 <= int(run.stdout.read()) < 10_000  # of the first pass alone
    assert run.returncode != 0
