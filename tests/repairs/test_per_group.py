"""PerGroup: each row is repaired as if its group were fitted alone."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.base import clone

import isotropy
from isotropy.errors import InputError, IsotropyWarning, NotAffineError, RepairFileError
from isotropy.repairs import Origin, PerGroup
from isotropy.stored import checksum

REPAIRS = [
    isotropy.Center(),
    isotropy.ScaledCenter(normalize=True),
    isotropy.Whiten("pca", n_components=3),
    isotropy.AllButTheTop(2),
    isotropy.ClusterRemoval(3, 2),
]


@pytest.fixture
def X():
    random = np.random.default_rng(0)
    return random.standard_normal((600, 8)) @ random.standard_normal((8, 8)) + 3


@pytest.fixture
def groups():
    return np.random.default_rng(1).choice(["en", "fr", "de"], 600)


@pytest.fixture
def file(X, groups, tmp_path):
    path = tmp_path / "x.parquet"
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 8)
    table = pa.table({"lang": groups, "number": np.arange(600), "vector": lists})
    pq.write_table(table, path, row_group_size=70)
    return path


def by_hand(repair, X, groups):
    fitted = {g: clone(repair).fit(X[groups == g]) for g in np.unique(groups)}
    n_out = len(fitted["en"].get_feature_names_out())
    found = np.empty((len(X), n_out))
    for g, one in fitted.items():
        found[groups == g] = one.transform(X[groups == g])
    return found


@pytest.mark.parametrize("repair", REPAIRS)
def test_each_group_is_repaired_alone(repair, X, groups):
    expected = by_hand(repair, X, groups)
    fitted = PerGroup(repair).fit(X, groups=groups)
    assert list(fitted.repairs_) == ["de", "en", "fr"]
    assert fitted.n_samples_seen_ == 600
    np.testing.assert_allclose(fitted.transform(X, groups=groups), expected, atol=1e-9)
    both = PerGroup(repair).fit_transform(X, groups=groups.tolist())
    np.testing.assert_allclose(both, expected, atol=1e-9)


@pytest.mark.parametrize("repair", REPAIRS)
def test_groups_come_from_a_column(repair, X, groups, file, tmp_path):
    expected = by_hand(repair, X, groups)
    fitted = PerGroup(repair).fit(isotropy.open(file, column="vector"), groups="lang")
    out = tmp_path / "y.parquet"
    fitted.transform(isotropy.open(file, column="vector"), groups="lang", out=out)
    table = pq.read_table(out)
    assert table["lang"].to_pylist() == groups.tolist()
    assert table["number"].to_pylist() == list(range(600))
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), expected, atol=1e-9)
    fitted.transform(X, groups=groups, out=tmp_path / "y.npy")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-9)


def test_frames_have_a_column_of_groups(X, groups, file):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = by_hand(isotropy.Center(), X, groups)
    table = pq.read_table(file)
    frames = [table, pandas.read_parquet(file), polars.from_arrow(table)]
    for frame in (isotropy.open(one, column="vector") for one in frames):
        fitted = PerGroup(isotropy.Center()).fit(frame, groups="lang")
        for labels in ("lang", groups):
            found = fitted.transform(frame, groups=labels)
            assert type(found) is type(frame.frame)
            np.testing.assert_allclose(np.stack(found["vector"].to_numpy()), expected, atol=1e-9)
            assert list(found["lang"].to_numpy()) == groups.tolist()
        both = PerGroup(isotropy.Center()).fit_transform(frame, groups="lang")
        np.testing.assert_allclose(np.stack(both["vector"].to_numpy()), expected, atol=1e-9)
    plain = table.drop_columns(["number"])
    found = fitted.transform(plain, groups="lang")
    np.testing.assert_allclose(np.stack(found["vector"].to_numpy()), expected, atol=1e-9)
    reader = fitted.transform(plain.to_reader(100), groups="lang")
    np.testing.assert_allclose(
        np.stack(reader.read_all()["vector"].to_numpy()), expected, atol=1e-9
    )
    with pytest.raises(InputError, match="the name of a column for a stream"):
        fitted.transform(plain.to_reader(), groups=groups)


def test_bad_rows_of_a_frame_keep_their_groups(X, groups):
    X[7, 3] = np.nan
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 8)
    frame = isotropy.open(pa.table({"lang": groups, "v": lists}), skip_bad_rows=True)
    good = np.arange(600) != 7
    expected = by_hand(isotropy.Center(), X[good], groups[good])
    fitted = PerGroup(isotropy.Center()).fit(frame, groups=groups)
    for labels in ("lang", groups):
        found = fitted.transform(frame, groups=labels)
        np.testing.assert_allclose(np.stack(found["v"].to_numpy()), expected, atol=1e-9)


def test_the_job_is_the_groups_and_their_arrays(X, groups, file):
    source = isotropy.open(file, column="vector")
    fitted = PerGroup(isotropy.Center()).fit(source, groups="lang")

    def job(repair, labels):
        return repair._work(source, labels)[2]

    again = PerGroup(isotropy.Center()).fit(source, groups="lang")
    assert job(fitted, "lang") == job(again, "lang")
    again.repairs_["fr"].mean_[0] += 1
    others = [job(again, "lang"), job(fitted, "number"), job(fitted, groups[::-1])]
    again = PerGroup(isotropy.Center()).fit(X, groups=np.char.replace(groups, "fr", "it"))
    others.append(job(again, "lang"))
    assert len({job(fitted, "lang"), job(fitted, groups), *others}) == 6


@pytest.mark.parametrize("repair", REPAIRS)
def test_one_file_holds_all_groups(repair, X, groups, tmp_path):
    path = tmp_path / "repair"
    fitted = PerGroup(repair).fit(X, groups=groups)
    fitted.save(path, note="two towers", origin=Origin(model="minilm"))
    loaded = isotropy.load(path)
    assert type(loaded) is PerGroup
    assert (loaded.note_, loaded.origin_.model) == ("two towers", "minilm")
    assert loaded.repair.get_params() == repair.get_params()
    same = loaded.transform(X, groups=groups)
    np.testing.assert_array_equal(same, fitted.transform(X, groups=groups))
    assert loaded.shift(1.5 * X[:100]) == fitted.shift(1.5 * X[:100])
    np.testing.assert_array_equal(loaded.get_feature_names_out(), fitted.get_feature_names_out())


def test_drift_is_measured_in_each_group(X, groups, tmp_path):
    """Rows of one group only are near those, however far they are from all groups together."""
    X = X + np.where(groups == "fr", 5.0, -5.0)[:, None]
    fitted = PerGroup(isotropy.Center()).fit(X, groups=groups)
    fitted.save(tmp_path / "repair")
    alone = isotropy.Center().fit(X[groups == "fr"])
    new = X[groups == "fr"][:80]
    assert fitted.drift(new).drifted  # from all groups together
    moved = new + 2 * X[groups == "fr"].std(axis=0)
    for repair in (fitted, isotropy.load(tmp_path / "repair")):
        found = repair.drift(new, groups=["fr"] * 80)
        assert found.by_group == {"fr": alone.drift(new)}
        assert not found.drifted
        assert str(found).startswith("within (farthest of 1 groups: 'fr'): Frechet distance 0.")
        both = repair.drift(np.vstack([moved, X[groups == "en"]]), groups=others(groups))
        assert (both.group, both.drifted, both.by_group["en"].drifted) == ("fr", True, False)
        assert both.by_group["fr"] == alone.drift(moved)
        assert both.n_samples == 80 + (groups == "en").sum()
        assert both.to_dict()["groups"]["fr"]["frechet"] == both.to_dict()["frechet"]
    with pytest.raises(InputError, match=r"must be among those fitted, .* got 'it'"):
        fitted.drift(new, groups=["it"] * 80)


def others(groups):
    return ["fr"] * 80 + ["en"] * (groups == "en").sum()


def test_integers_are_labels_too(X, tmp_path):
    groups = np.arange(600) % 2
    fitted = PerGroup(isotropy.Center()).fit(X, groups=groups)
    fitted.save(tmp_path / "repair")
    assert list(isotropy.load(tmp_path / "repair").repairs_) == [0, 1]


def test_parameters_are_nested():
    grouped = PerGroup(isotropy.Whiten(power=0.5))
    assert grouped.get_params()["repair__power"] == 0.5
    copied = clone(grouped).set_params(repair__power=1.0)
    assert (copied.repair.power, grouped.repair.power) == (1.0, 0.5)
    assert "Whiten(power=0.5)" in repr(grouped)


def test_tensors_stay_tensors(X, groups):
    torch = pytest.importorskip("torch")
    T = torch.from_numpy(X).float()
    fitted = PerGroup(isotropy.Whiten()).fit(T, groups=groups)
    found = fitted.transform(T, groups=groups)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    expected = by_hand(isotropy.Whiten(), X, groups)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)


def test_bad_rows_are_left_out_of_their_group(X, groups):
    X[7, 3] = np.nan
    good = np.arange(600) != 7
    source = isotropy.open(X, skip_bad_rows=True)
    fitted = PerGroup(isotropy.Center()).fit(source, groups=groups)
    assert fitted.n_samples_seen_ == 599
    g = groups[7]
    np.testing.assert_allclose(fitted.repairs_[g].mean_, X[good & (groups == g)].mean(axis=0))


def test_weights_go_with_their_rows(X, groups):
    weights = np.random.default_rng(2).uniform(0, 2, 600)
    fitted = PerGroup(isotropy.Center()).fit(X, sample_weight=weights, groups=groups)
    own = groups == "fr"
    expected = np.average(X[own], axis=0, weights=weights[own])
    np.testing.assert_allclose(fitted.repairs_["fr"].mean_, expected)


def test_a_killed_fit_resumes(X, groups, file, tmp_path):
    source = isotropy.open(file, column="vector")
    expected = PerGroup(isotropy.Whiten()).fit(source, groups="lang").transform(X, groups=groups)
    for _ in range(2):
        again = PerGroup(isotropy.Whiten())
        again.fit(source, groups="lang", checkpoint=tmp_path / "kept")
        np.testing.assert_array_equal(again.transform(X, groups=groups), expected)


def test_unknown_groups_are_refused(X, groups, file, tmp_path):
    fitted = PerGroup(isotropy.Center()).fit(X, groups=groups)
    why = "groups must be among those fitted, 'de', 'en', 'fr', got 'it'. Fit again"
    with pytest.raises(InputError, match=why):
        fitted.transform(X[:2], groups=["en", "it"])
    with pytest.raises(InputError, match="'de', 'en', 'fr', got 0, 1, 2 and 597 others"):
        fitted.transform(file, groups="number", out=tmp_path / "y.parquet")
    assert not (tmp_path / "y.parquet").exists()


def test_what_is_no_group_is_refused(X, groups, file):
    grouped = PerGroup(isotropy.Center())
    for call in (grouped.fit, clone(grouped).fit(X, groups=groups).transform):
        with pytest.raises(InputError, match="PerGroup: groups must be given"):
            call(X)
        with pytest.raises(InputError, match="groups must be as many as the 600 rows, got 3"):
            call(X, groups=["en", "fr", "de"])
        missing = [*groups[:-1].tolist(), None]
        with pytest.raises(InputError, match="text or integers, got a missing one in row 599"):
            call(X, groups=missing)
    with pytest.raises(InputError, match="groups must be a column beside the vectors, got 'x'"):
        grouped.fit(isotropy.open(file, column="vector"), groups="x")
    with pytest.raises(InputError, match=r"column beside the vectors, got 'lang'.*give the label"):
        clone(grouped).fit(X, groups=groups).transform(X, groups="lang")
    for inner in (None, PerGroup(isotropy.Center())):
        with pytest.raises(InputError, match="repair must be a repair of rows"):
            PerGroup(inner).fit(X, groups=groups)


def test_groups_of_few_rows_are_named(X, groups):
    groups = groups.astype(object)
    groups[0] = "it"
    with pytest.raises(InputError, match="at least 2 rows each, got 1 in 'it'"):
        PerGroup(isotropy.Center()).fit(X, groups=groups)
    groups[1:5] = "it"
    with pytest.warns(IsotropyWarning, match="1 of 4 groups have fewer rows than the 8 features"):
        PerGroup(isotropy.Center()).fit(X, groups=groups)


def test_the_error_of_a_group_names_it(X, groups):
    X = X.copy()
    X[groups == "fr"] *= 1e-200
    with pytest.raises(InputError, match="group 'fr': X must have a scale"):
        PerGroup(isotropy.Whiten("pca", power=4.0)).fit(X, groups=groups)


def test_it_has_no_matrix_of_its_own(X, groups):
    fitted = PerGroup(isotropy.Center()).fit(X, groups=groups)
    assert not fitted.is_affine
    with pytest.raises(NotAffineError, match="each group has its own map"):
        fitted.affine()
    assert fitted.repairs_["en"].is_affine


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"groups": None}, "groups must be a list"),
        ({"groups": []}, "groups must be one or more that differ"),
        ({"groups": [{"label": 1.5, "n_samples": 2}]}, "must be text or an integer, got 1.5"),
        ({"groups": [{"label": "a", "n_samples": 600}]}, "'group/1/.*' is not expected"),
        ({"params": {"repair": {"method": "per-group"}}}, "the repair must be one of 'center'"),
        ({"params": {"repair": {"method": "center"}}}, "params must be an object"),
        ({"params": {"repair": 3}}, "repair must be an object"),
        ({"n_samples": 601}, "n_samples must be the sum"),
    ],
)
def test_a_damaged_file_is_refused(change, why, X, groups, tmp_path):
    path = tmp_path / "repair"
    PerGroup(isotropy.Center()).fit(X, groups=groups).save(path)
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["isotropy.repair"])
    tensors = load_file(path)
    del header["checksum"]
    header |= change
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, path, metadata={"isotropy.repair": json.dumps(header)})
    with pytest.raises(RepairFileError, match=why):
        isotropy.load(path)
