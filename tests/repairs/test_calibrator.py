"""Calibrated scores against a known distribution, and files that hold them."""

import json

import numpy as np
import pytest
import scipy.stats
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy.errors import InputError, RepairFileError
from isotropy.metrics import mean_cosine
from isotropy.repairs import calibrator as module
from isotropy.repairs import files
from isotropy.repairs.calibrator import ScoreCalibrator


def vectors(n=400, d=16, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def cosines(X, related=None):
    """Sorted cosines of all pairs of rows, in a loop; related pairs left out."""
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    return np.sort(
        [
            units[i] @ units[j]
            for i in range(len(X))
            for j in range(i)
            if related is None or not related(i, j)
        ]
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "calibrator.safetensors"
    ScoreCalibrator(n_pairs=5000, random_state=3).fit(vectors()).save(path, note="a test")
    return path


@pytest.mark.parametrize("d", [4, 30])
def test_random_directions_score_as_the_beta_distribution_says(d):
    """(1 + cosine)/2 of unrelated directions is Beta((d - 1)/2, (d - 1)/2)."""
    calibrator = ScoreCalibrator(n_pairs=400_000).fit(vectors(4000, d))
    known = scipy.stats.beta((d - 1) / 2, (d - 1) / 2)
    assert calibrator.mean_ == pytest.approx(0, abs=0.003)
    assert calibrator.std_ == pytest.approx(d**-0.5, rel=0.01)
    for rate in (0.5, 0.1, 0.01, 1e-3, 1e-4):
        wanted = 2 * known.isf(rate) - 1
        assert calibrator.threshold(rate) == pytest.approx(wanted, abs=0.004 + 0.02 * wanted)
    scores = np.array([-0.3, 0.0, 0.2, 0.4])
    assert np.allclose(calibrator.p_value(scores), known.sf((1 + scores) / 2), atol=0.004)
    assert np.allclose(calibrator.percentile(scores), 100 * known.cdf((1 + scores) / 2), atol=0.4)


def test_with_few_rows_every_pair_counts():
    X = vectors(60)
    calibrator = ScoreCalibrator().fit(X)
    assert calibrator.n_pairs_ == 60 * 59 // 2
    assert np.allclose(calibrator.scores_, cosines(X), atol=1e-6)
    assert calibrator.mean_ == pytest.approx(mean_cosine(X), abs=1e-6)


def test_thresholds_and_p_values_are_those_of_the_sorted_scores():
    calibrator = ScoreCalibrator(n_pairs=2000).fit(vectors())
    assert calibrator.n_pairs_ == 2000
    scores = calibrator.scores_
    for rate, matches in ((0.005, 10), (0.01, 20), (0.0109, 21), (0.5, 1000)):
        threshold = calibrator.threshold(rate)
        assert threshold == scores[-matches]
        assert (scores >= threshold).sum() == matches
        assert calibrator.p_value(threshold) == (1 + matches) / 2001
    assert calibrator.p_value(1.1) == 1 / 2001
    assert calibrator.p_value(-1.1) == 1
    assert calibrator.percentile(-1.1) == 0
    assert calibrator.percentile(1.1) == 100
    assert calibrator.percentile(scores[1000]) == pytest.approx(100 * 1000.5 / 2000)
    assert calibrator.p_value(scores.reshape(2, -1)).shape == (2, 1000)


def test_scores_that_many_pairs_share_are_no_threshold():
    """Four rows on each of three axes: 18 of the 66 pairs score 1, the others 0."""
    X = np.repeat(np.eye(3), 4, axis=0) * np.arange(1, 13)[:, None]
    calibrator = ScoreCalibrator().fit(X)
    assert calibrator.n_pairs_ == 66
    assert calibrator.threshold(0.28) == 1
    assert calibrator.threshold(0.2) > 1
    assert calibrator.threshold(0.9) == 1


def test_rows_of_a_group_are_not_unrelated():
    X = vectors(80)
    groups = np.arange(80) // 2
    X[1::2] = X[::2] + 0.01
    calibrator = ScoreCalibrator().fit(X, groups=groups)
    wanted = cosines(X, lambda i, j: groups[i] == groups[j])
    assert np.allclose(calibrator.scores_, wanted, atol=1e-6)
    assert ScoreCalibrator().fit(X, groups=[f"pair {g}" for g in groups]).mean_ == calibrator.mean_
    drawn = ScoreCalibrator(n_pairs=300).fit(X, groups=groups)
    assert drawn.scores_.max() < 0.99
    assert ScoreCalibrator(n_pairs=300).fit(X).scores_.max() > 0.99


def test_equal_rows_are_not_unrelated():
    X = np.vstack([vectors(50), vectors(50)[:20], np.zeros((3, 16))])
    calibrator = ScoreCalibrator().fit(X)
    wanted = cosines(X[:70], lambda i, j: (X[i] == X[j]).all())
    assert np.allclose(calibrator.scores_, wanted, atol=1e-6)
    half = ScoreCalibrator(n_pairs=600).fit(X, groups=np.arange(73) % 2)
    assert half.n_pairs_ == 600
    assert half.scores_.max() < 0.999


def test_pairs_are_drawn_once_each():
    X = vectors(100)
    drawn = ScoreCalibrator(n_pairs=2000).fit(X)
    assert len(np.unique(drawn.scores_)) == 2000
    assert np.isin(drawn.scores_, ScoreCalibrator().fit(X).scores_).all()


def test_the_same_seed_draws_the_same_pairs():
    X = vectors()
    first, again, other = (
        ScoreCalibrator(3000, random_state=seed).fit(X).scores_ for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_file_streams_to_the_same_scores(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_ROWS", 150)
    X = vectors().astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    groups = np.arange(400) // 2
    in_memory = ScoreCalibrator(3000).fit(X, groups)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=37)
    for streamed in (tmp_path / "x.npy", source):
        assert np.array_equal(
            ScoreCalibrator(3000).fit(streamed, groups).scores_, in_memory.scores_
        )
    assert in_memory.n_samples_seen_ == 400


def test_groups_go_with_the_rows_that_were_sampled(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_ROWS", 100)
    X = np.repeat(vectors(200), 2, axis=0)
    X[1::2] *= 2
    calibrator = ScoreCalibrator(2000).fit(X, groups=np.arange(400) // 2)
    assert calibrator.scores_.max() < 0.999


def test_a_repair_moves_the_scores():
    X = vectors() + 3
    repair = isotropy.Center().fit(X)
    before, after = ScoreCalibrator().fit(X), ScoreCalibrator().fit(X, repair=repair)
    direct = ScoreCalibrator().fit(repair.transform(X))
    assert before.mean_ > 0.85
    assert after.mean_ == pytest.approx(0, abs=0.01)
    assert np.allclose(after.scores_, direct.scores_, atol=1e-6)
    assert after.threshold() < before.threshold()
    assert str(after).endswith("(after center)")


def test_it_says_in_words_what_it_found():
    unfitted = ScoreCalibrator(n_pairs=500)
    assert str(unfitted) == repr(unfitted) == "ScoreCalibrator(n_pairs=500, random_state=0)"
    fitted = ScoreCalibrator().fit(vectors() + 3)
    words = (
        f"unrelated pairs score {fitted.mean_:.2f} on average; 1 % score above "
        f"{fitted.threshold(0.01):.2f}"
    )
    assert str(fitted) == words
    assert repr(fitted) == f"<ScoreCalibrator(n_pairs=1000000, random_state=0): {words}>"
    few = ScoreCalibrator(n_pairs=100).fit(vectors())
    assert "; 10 % score above" in str(few)
    assert str(ScoreCalibrator().fit(np.eye(2))) == "unrelated pairs score 0.00 on average"


def test_a_loaded_calibrator_is_the_one_saved(saved):
    fitted = ScoreCalibrator(n_pairs=5000, random_state=3).fit(vectors())
    loaded = ScoreCalibrator.load(saved)
    assert np.array_equal(loaded.scores_, fitted.scores_)
    assert (loaded.mean_, loaded.std_) == (fitted.mean_, fitted.std_)
    assert loaded.threshold(0.01) == fitted.threshold(0.01)
    assert repr(loaded) == repr(fitted)
    assert (loaded.n_samples_seen_, loaded.n_features_in_, loaded.note_) == (400, 16, "a test")
    loaded.save(saved, overwrite=True)
    assert np.array_equal(ScoreCalibrator.load(saved).scores_, fitted.scores_)


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_file_gets_one_line(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(RepairFileError, match="is damaged or not a safetensors file"):
        ScoreCalibrator.load(saved)


def test_a_flipped_bit_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[-20] ^= 1
    saved.write_bytes(content)
    with pytest.raises(RepairFileError, match="its checksum does not fit"):
        ScoreCalibrator.load(saved)


def test_repairs_and_calibrators_are_told_apart(saved, tmp_path):
    with pytest.raises(RepairFileError, match="holds no repair"):
        isotropy.load(saved)
    isotropy.Center().fit(vectors()).save(tmp_path / "center.safetensors")
    with pytest.raises(RepairFileError, match="holds no calibrator"):
        ScoreCalibrator.load(tmp_path / "center.safetensors")
    with pytest.raises(RepairFileError, match="does not exist, or is not a file"):
        ScoreCalibrator.load(tmp_path / "gone.safetensors")


def rewritten(path, change, tensors):
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["isotropy.calibrator"])
    header = {k: v for k, v in header.items() if k != "checksum"} | change
    header["checksum"] = files.checksum(header, tensors)
    save_file(tensors, path, metadata={"isotropy.calibrator": json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        ({}, {}, "scores_ is missing"),
        ({}, {"scores_": np.array([0.5, 0.1], dtype=np.float32)}, "must be ascending"),
        ({}, {"scores_": np.array([1.0, np.nan], dtype=np.float32)}, "must be finite, got nan"),
        ({"params": {"colour": "blue"}}, None, "colour"),
        ({"format": 2}, None, "Upgrade isotropy"),
    ],
)
def test_a_file_of_another_making_gets_one_line(saved, change, tensors, message):
    rewritten(saved, change, load_file(saved) if tensors is None else tensors)
    with pytest.raises(RepairFileError, match=message):
        ScoreCalibrator.load(saved)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, "1 %", None, True])
def test_rates_that_are_no_shares_get_one_line(rate):
    fitted = ScoreCalibrator().fit(vectors(50))
    with pytest.raises(InputError, match=r"ScoreCalibrator: false_match_rate must be a number in"):
        fitted.threshold(rate)


def test_rates_finer_than_the_pairs_get_one_line():
    fitted = ScoreCalibrator().fit(vectors(50))
    with pytest.raises(InputError, match=r"must be at least 0.00816 for 1,225 pairs"):
        fitted.threshold(0.005)
    assert fitted.threshold(0.0082) == fitted.scores_[-10]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScoreCalibrator(0).fit(vectors()), "n_pairs must be an integer of at least 1"),
        (
            lambda: ScoreCalibrator(random_state=-1).fit(vectors()),
            "random_state must be an integer",
        ),
        (lambda: ScoreCalibrator().fit(vectors() * np.nan), "ScoreCalibrator: X must be finite"),
        (lambda: ScoreCalibrator().fit(vectors()[0]), "ScoreCalibrator: X must be two-dimensional"),
        (lambda: ScoreCalibrator().fit(vectors(), [1, 2]), r"groups must have one entry for each"),
        (
            lambda: ScoreCalibrator().fit(np.ones((9, 2))),
            "X must have unrelated rows, got none among 9",
        ),
        (lambda: ScoreCalibrator().fit(np.zeros((9, 2))), "X must have unrelated rows, got none"),
        (lambda: ScoreCalibrator().fit(np.eye(3), [0, 0, 0]), "X must have unrelated rows"),
        (lambda: ScoreCalibrator().fit(np.eye(1)), "X must have unrelated rows, got none among 1"),
        (lambda: ScoreCalibrator().threshold(), "the calibrator is not fitted yet"),
        (lambda: ScoreCalibrator().p_value(0.5), "the calibrator is not fitted yet"),
        (lambda: ScoreCalibrator().save("x.safetensors"), "the calibrator is not fitted yet"),
        (lambda: ScoreCalibrator().fit(np.eye(3)).p_value([0.1, np.nan]), "scores must be finite"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()
