"""What a view shows of a space, against numpy."""

import numpy as np
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

import isotropy
from isotropy.errors import InputError
from isotropy.models import KeyedVectors
from isotropy.report import View, charts, page
from isotropy.report.inputs import Gain
from isotropy.report.views import carried, colourings, frequencies, hover
from isotropy.sources import as_source


@pytest.fixture(scope="module")
def view(rows):
    return View(isotropy.measure(rows))


def test_positions_are_principal_components(view, rows):
    centred = view.rows.astype(np.float64) - view.rows.mean(0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(view.positions), np.abs(left * values)[:, :3], atol=1e-6)
    shares = values**2 / (values**2).sum()
    np.testing.assert_allclose(view.axes[2], shares[:3], rtol=1e-8)


def test_origin_is_where_a_zero_row_would_be(rows):
    with_zero = np.vstack([rows, np.zeros((1, rows.shape[1]), np.float32)])
    view = View(isotropy.measure(with_zero))
    zero = np.flatnonzero(~view.rows.any(axis=1))
    np.testing.assert_allclose(view.origin, view.positions[zero[0]], atol=1e-6)


def test_threshold_is_the_percentile_of_all_pairs(view):
    units = view.rows / np.linalg.norm(view.rows, axis=1, keepdims=True)
    cosines = (units @ units.T)[np.triu_indices(len(units), 1)]
    assert view.threshold == pytest.approx(np.quantile(cosines, 0.99), abs=2e-3)


def test_local_removes_what_clusters_share(rows):
    random = np.random.default_rng(0)
    two = random.standard_normal((400, 8)) + np.where(np.arange(400) % 2, 6.0, 2.0)[:, None]
    view = View(isotropy.measure(two))
    whole, within = view.local["mean_cosine"]
    assert whole == pytest.approx(isotropy.metrics.mean_cosine(view.rows), abs=1e-9)
    assert abs(within) < 0.02 < whole


def test_clusters_are_numbered_by_size(view):
    sizes = np.bincount(view.clusters)
    assert (np.diff(sizes) <= 0).all()
    assert sizes.sum() == len(view.rows)


def test_columns_follow_their_rows(table, rows):
    source = as_source(table)
    view = View(isotropy.measure(source))
    columns = carried(source, view)
    numbers = view.geometry.drawn.sample.numbers
    assert columns["age"] == [pytest.approx(number / 10) for number in numbers]
    np.testing.assert_array_equal(view.rows, rows[numbers])


def test_columns_of_a_sample_of_many_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = np.random.default_rng(0).standard_normal((7000, 4)).astype(np.float32)
    X[[5, 4000]] = np.nan
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"id": np.arange(7000), "v": vectors}), path, row_group_size=900)
    source = isotropy.open(path, skip_bad_rows=True)
    view = View(isotropy.measure(source))
    found = carried(source, view)["id"]
    assert len(found) == 2000
    np.testing.assert_array_equal(X[found], view.rows)


def test_words_of_keyed_vectors_are_their_column(rows):
    vectors = KeyedVectors(rows, [f"w{i}" for i in range(len(rows))])
    view = View(isotropy.measure(vectors))
    view.columns.update(carried(vectors, view))
    numbers = view.geometry.drawn.sample.numbers
    assert hover(view.columns, 3) == [f"w{number}" for number in numbers[:3]]


def test_a_column_of_many_names_is_read_but_not_coloured(rows):
    n = len(View(isotropy.measure(rows)).rows)
    columns = {"id": [f"row {i}" for i in range(n)], "even": [i % 2 == 0 for i in range(n)]}
    view = View(isotropy.measure(rows), columns=columns)
    known = colourings(view)
    assert "id" not in known
    assert known["even"].names == ("False", "True")


def test_words_are_coloured_by_frequency(rows):
    pytest.importorskip("wordfreq")
    n = len(View(isotropy.measure(rows)).rows)
    words = ["the", "isotropy", "dog"] * n
    view = View(isotropy.measure(rows), columns={"word": words[:n]})
    common, rare, middle = colourings(view)["frequency"].values[:3]
    assert common > middle > rare


@pytest.mark.parametrize(
    ("pieces", "as_text"),
    [
        (["Ġthe", "Ġdog", "Ġisotropy", "ing", "ĠcafÃ©"], ["the", "dog", "isotropy", "ing", "café"]),
        (["the", "##dog", "##isotropy", "##ing"], ["the", "dog", "isotropy", "ing"]),
        (["▁the", "▁dog", "▁isotropy", "ing"], ["the", "dog", "isotropy", "ing"]),
    ],
)
def test_word_pieces_have_the_frequency_of_their_text(pieces, as_text):
    zipf_frequency = pytest.importorskip("wordfreq").zipf_frequency
    expected = [zipf_frequency(text, "en") for text in as_text]
    assert frequencies(pieces).tolist() == expected
    assert min(expected) > 0


def test_an_uncentred_projection_shows_the_drift(rows):
    X = rows.astype(np.float64) + 5
    view = View(isotropy.measure(X))
    figure = charts.projection(view, "norm", centered=False)
    _, values, axes = np.linalg.svd(view.rows, full_matrices=False)
    np.testing.assert_allclose(
        np.abs(figure.data[0].x), np.abs(view.rows @ axes[0]), rtol=1e-5, atol=1e-5
    )
    assert figure.data[1].x.tolist() == figure.data[1].y.tolist() == [0.0]  # the origin
    share = values[0] ** 2 / (values**2).sum()
    assert figure.layout.xaxis.title.text == f"axis 1: {share:.1%} of squared length"
    assert np.abs(np.mean(charts.projection(view, "norm").data[0].x)) < 1e-4


def test_a_geometry_without_rows_says_what_to_measure(rows):
    view = View(isotropy.measure(rows, ["isoscore"]))
    with pytest.raises(InputError, match="sample of rows, got none"):
        view.rows  # noqa: B018


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
@pytest.mark.parametrize(
    "X", [np.eye(2), np.eye(3)[:, :1] + 1, np.ones((5, 3)), np.zeros((4, 3)), np.ones((1, 4))]
)
def test_small_and_constant_spaces_are_drawn(X):
    assert page(X).startswith("<!doctype html>")


@pytest.mark.parametrize("scale", [1.0, 1e15])
def test_rows_of_one_length_are_drawn(scale):
    X = np.random.default_rng(0).standard_normal((500, 16))
    figure = charts.norms(scale * X / np.linalg.norm(X, axis=1, keepdims=True))
    x, y = (np.asarray(figure.data[0][key]) for key in ("x", "y"))
    assert y.max() == 1
    assert x[y.argmax()] == pytest.approx(scale, rel=0.02)


def test_weights_do_not_lift_the_partition_function(rows):
    alike, twice = (charts.partition(isotropy.measure(rows, sample_weight=w)).data[0].y
                    for w in (None, np.full(len(rows), 7.0)))  # fmt: skip
    np.testing.assert_allclose(twice, alike, atol=1e-9)


def test_values_that_python_has_not_are_left_out(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    days = pa.array([2**30] * 49 + [0], pa.date32())
    pq.write_table(pa.table({"day": days, "v": vectors}), tmp_path / "days.parquet")
    source = as_source(tmp_path / "days.parquet")
    view = View(isotropy.measure(source))
    found = carried(source, view)["day"]
    assert sorted(map(str, found)) == ["1970-01-01"] + 49 * ["None"]


def test_integers_that_no_float_reaches_are_not_coloured(rows):
    n = len(View(isotropy.measure(rows)).rows)
    view = View(isotropy.measure(rows), columns={"id": [10**400 + i for i in range(n)]})
    assert "id" not in colourings(view)


def test_columns_named_as_colourings_are_all_there(rows):
    n = len(View(isotropy.measure(rows)).rows)
    columns = {"norm (column)": [1.0] * n, "norm": [2.0] * n}
    known = colourings(View(isotropy.measure(rows), columns=columns))
    assert [known[name].values[0] for name in known if "column" in name] == [1, 2]


def test_names_are_plain_text_in_charts(rows):
    name = '<b>"it\'s"</b>'
    view = View(isotropy.measure(rows), name, {name: ["a" * 99] * len(rows)})
    shown = '&lt;b&gt;"it\'s"&lt;/b&gt;'
    for chart in (charts.spectrum, charts.explained_variance, charts.cosines, charts.norms,
                  charts.dimensions, charts.partition):  # fmt: skip
        assert chart(view).data[0].name.removesuffix(", +u") == shown
    bar = charts.projection(view, color=name).data[0].marker.colorbar
    assert bar.title.text == shown
    assert len(bar.ticktext[0]) < 30


def test_every_task_and_model_is_drawn():
    gains = [Gain(f"task {i}", "m", "center", 1.0, 0.5, (0.0, 1.0), 0.1) for i in range(14)]
    assert len(charts.evidence(gains).data) == 14
    layer = {"layer": 0, "tokens": {}, "cls": {}}
    models = [{"model": f"m{i}", "first_token": None, "layers": [layer]} for i in range(14)]
    assert len(charts.layers({"models": models}).data) == 28
