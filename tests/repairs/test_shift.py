"""How far new rows are from the fitted ones: against formulas written out, and on real text."""

import csv
import gzip

import numpy as np
import pytest
import scipy.linalg

import isotropy
from isotropy import Center, ClusterRemoval, ScaledCenter
from isotropy.errors import InputError
from isotropy.repairs.shift import Shift, reach, shift
from isotropy.sources import ArraySource, Excerpt
from isotropy.stats import Moments


def drawn(seed, n_samples, n_features=20):
    """Normal rows whose variances fall off, far from the origin."""
    scale = np.arange(1, n_features + 1) ** -0.5
    return np.random.default_rng(seed).standard_normal((n_samples, n_features)) * scale + 5


def covariance(X):
    return np.cov(X.T, ddof=0)


def written_out(X, Y):
    """Squared Frechet distance of the normal distributions of X and Y, over tr C of X."""
    first, second = covariance(X), covariance(Y)
    root = scipy.linalg.sqrtm(first)
    cross = scipy.linalg.sqrtm(root @ second @ root)
    apart = ((X.mean(0) - Y.mean(0)) ** 2).sum()
    return (apart + np.trace(first + second - 2 * cross).real) / np.trace(first)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_distances_are_what_they_say(dtype):
    X, Y = drawn(0, 500).astype(dtype), (1.3 * drawn(1, 300)[:, ::-1]).astype(dtype)
    found = Center().fit(X).shift(Y)
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    assert found.frechet == pytest.approx(written_out(X, Y), rel=1e-9)
    apart = np.linalg.norm(X.mean(0) - Y.mean(0))
    assert found.mean_shift == pytest.approx(apart / np.trace(covariance(X)) ** 0.5, rel=1e-9)
    assert found.n_samples == 300


def test_singular_covariances_keep_their_digits():
    """Rows on axes commute: the distance is the sum of (a - b)^2 over deviations a and b."""
    a, b = np.array([3.0, 2.0, 0.0, 0.0, 1e-3]), np.array([0.0, 2.5, 0.0, 1.0, 1e-3])
    corners = np.sqrt(5) * np.vstack([np.eye(5), -np.eye(5)])  # of covariance one
    found = Center().fit(corners * a).shift(corners * b)
    assert found.frechet == pytest.approx(((a - b) ** 2).sum() / (a**2).sum(), rel=1e-12)


def test_fewer_rows_than_dimensions_are_at_no_distance_from_themselves():
    X = drawn(0, 30, 200)
    assert Center().fit(X).shift(X).frechet < 1e-12


def test_a_move_is_told_in_deviations():
    X = drawn(0, 1000)
    moved = X.copy()
    moved[:, 3] += 2 * np.trace(covariance(X)) ** 0.5
    found = Center().fit(X).shift(moved)
    assert found.mean_shift == pytest.approx(2)
    assert found.frechet == pytest.approx(4)
    assert found.outside > 0.9


@pytest.mark.parametrize("factor", [0.01, 1, 1e4])
def test_scale_does_not_matter(factor):
    X, Y = drawn(0, 400), 2 * drawn(1, 400)
    expected = Center().fit(X).shift(Y)
    found = Center().fit(factor * X).shift(factor * Y)
    for name in ("mean_shift", "frechet", "outside", "chance"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6)


@pytest.mark.parametrize("n_features", [1, 3, 30, 100])
@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed"])
def test_one_fitted_row_in_a_hundred_is_outside(n_features, kind):
    X = drawn(0, 10_000, n_features)
    random = np.random.default_rng(1)
    if kind == "heavy":
        X = 5 + (X - 5) * random.gamma(2.0, size=(len(X), 1)) ** 0.5
    if kind == "skewed":
        X = np.exp(X / 4)
    moments = Moments().update(X)
    squared = ((X - X.mean(0)) ** 2).sum(1)
    share = (squared > reach(moments)).mean()
    assert 0.004 < share < 0.025
    assert Center().fit(X).shift(X).outside == pytest.approx(share, abs=1e-3)


def test_weights_count_as_repetition():
    X, Y = drawn(0, 300), 1.5 * drawn(1, 200)
    weights = np.random.default_rng(0).integers(0, 4, size=200)
    repair = Center().fit(X)
    found = repair.shift(ArraySource(Y, weights))
    expected = repair.shift(np.repeat(Y, weights, axis=0))
    for name in ("mean_shift", "frechet", "outside"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_chunks_and_files_give_the_same_numbers(tmp_path):
    X, Y = drawn(0, 500), 1.2 * drawn(1, 701)
    repair = Center().fit(X)
    np.save(tmp_path / "y.npy", Y)
    for source in (ArraySource(Y, chunk_rows=37), tmp_path / "y.npy"):
        found, expected = repair.shift(source), repair.shift(Y)
        assert found.outside == expected.outside
        assert found.frechet == pytest.approx(expected.frechet, rel=1e-9)
        assert found.chance == pytest.approx(expected.chance, rel=1e-9)


@pytest.mark.parametrize("engine", ["torch", "dask"])
def test_another_engine_gives_the_same_numbers(engine, tmp_path):
    module = {"torch": "torch", "dask": "distributed"}[engine]
    pytest.importorskip(module, reason=f"{engine} is not installed")
    X, Y = drawn(0, 500), 1.2 * drawn(1, 701)
    np.save(tmp_path / "y.npy", Y)
    repair = Center().fit(X)
    source = isotropy.open(tmp_path / "y.npy", chunk_rows=300)
    found, expected = repair.shift(source, engine=engine), repair.shift(Y)
    assert found.frechet == pytest.approx(expected.frechet, rel=1e-9)
    assert (found.outside, found.n_samples) == (expected.outside, 701)


@pytest.mark.parametrize(("n_fitted", "n_new"), [(20, 400), (400, 20), (400, 400), (4000, 4000)])
def test_chance_is_twice_what_samples_of_one_distribution_are_apart(n_fitted, n_new):
    found = [
        Center().fit(drawn(seed, n_fitted)).shift(drawn(seed + 100, n_new)) for seed in range(20)
    ]
    ratio = np.mean([s.chance for s in found]) / np.mean([s.frechet for s in found])
    assert 1.8 < ratio < 4
    assert not any(s.large for s in found)


@pytest.mark.parametrize("n_features", [1, 10, 30])
@pytest.mark.parametrize("n_new", [1, 2, 5, 50])
def test_few_rows_are_large_only_where_they_are_far(n_features, n_new):
    repair = Center().fit(drawn(0, 500, n_features))
    near = [repair.shift(drawn(seed, n_new, n_features)).large for seed in range(1, 41)]
    assert sum(near) <= 3
    spread = np.trace(np.atleast_2d(covariance(drawn(0, 500, n_features)))) ** 0.5
    assert repair.shift(drawn(1, n_new, n_features) + 10 * spread).large


def test_rows_in_groups_count_as_groups():
    """Rows of one group are nearly equal, like the tokens of a sentence."""

    def grouped(seed, n_groups):
        random = np.random.default_rng(seed)
        rows = np.repeat(drawn(seed, n_groups), 25, axis=0)
        return rows + 0.2 * (drawn(seed + 1, len(rows)) - 5) * random.choice([-1, 1])

    repair = Center().fit(grouped(0, 60))
    found = [repair.shift(grouped(seed, 60)) for seed in range(10, 30)]
    assert np.mean([s.frechet for s in found]) > 0.1
    assert not any(s.large for s in found)


def test_fitted_rows_that_never_vary_are_infinitely_far_from_others():
    repair = Center().fit(np.full((30, 4), 0.1))
    same = repair.shift(np.full((7, 4), 0.1))
    assert (same.mean_shift, same.frechet, same.outside, same.large) == (0, 0, 0, False)
    other = repair.shift(np.full((7, 4), 0.2))
    assert (other.mean_shift, other.frechet, other.outside, other.large) == (
        np.inf,
        np.inf,
        1,
        True,
    )


def test_few_directions_give_a_lower_bound():
    X, Y = drawn(0, 2000, 200), drawn(1, 2000, 200)[:, ::-1]
    moments = Moments().update(X)
    whole, part = shift(moments, ArraySource(Y)), shift(moments, ArraySource(Y), 80)
    assert 0.5 * whole.frechet < part.frechet < whole.frechet
    assert part.large
    assert (part.mean_shift, part.outside) == (whole.mean_shift, whole.outside)


def test_it_says_so_in_words():
    assert str(Shift(0.01, 0.02, 0.012, 5000, 0.03)) == (
        "5,000 rows: Frechet distance 0.02 from the fitted ones (chance alone: up to 0.03), means "
        "0.01 deviations apart, 1.2 % of the rows farther out than 99 % of the fitted ones"
    )


def test_clusters_together_are_all_rows():
    X = drawn(0, 900)
    X[:300] += 4
    found, expected = ClusterRemoval(3, 2).fit(X).moments_, Moments().update(X)
    assert found.n_rows == expected.n_rows
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-9 * expected.weight)
    assert found.centred_fourth == pytest.approx(expected.centred_fourth, rel=1e-9)


@pytest.mark.parametrize("repair", [ScaledCenter(), ClusterRemoval(2, 1)], ids=str)
def test_a_file_without_moments_loads_but_knows_no_shift(repair, tmp_path):
    X, path = drawn(0, 200), tmp_path / "old.safetensors"
    moments = repair.fit(X).moments_
    repair.moments_ = None
    repair.save(path)
    repair.moments_ = moments
    old = isotropy.load(path)
    assert np.array_equal(old.transform(X), repair.transform(X))
    with pytest.raises(InputError, match=r"shift needs the moments .* Fit it again\.$"):
        old.shift(X)
    if hasattr(old, "merge"):
        assert old.merge(repair).partial_fit(X).moments_ is None
        assert old.fit(X).shift(X).n_samples == 200


@pytest.mark.parametrize(
    ("n_samples", "chunk_rows"), [(100, None), (5000, 7), (50_000, 1000), (50_000, 20_000)]
)
def test_an_excerpt_is_a_few_rows_from_all_over(n_samples, chunk_rows):
    X = np.arange(2.0 * n_samples).reshape(-1, 2)
    source = ArraySource(X, chunk_rows=chunk_rows)
    excerpt = Excerpt(source, 1000)
    batches = [batch for chunk in excerpt.chunks() for batch in excerpt.read(chunk)]
    numbers = np.concatenate([batch.rows[:, 0] for batch in batches]) / 2
    assert len(numbers) == excerpt.n_samples
    assert abs(len(numbers) - min(n_samples, 1000)) < 10
    assert len(np.unique(numbers)) == len(numbers)
    assert numbers.min() == 0
    assert numbers.max() > 0.79 * n_samples
    assert len(batches) >= min(4, len(source.chunks()))


def lines(data):
    """200 captions and 80 lines of an encyclopedia."""
    captions = {}
    with open(data / "stsb" / "train.tsv", encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["genre"] == "main-captions":
                captions |= {row["sentence1"]: None, row["sentence2"]: None}
    with gzip.open(data / "wikitext2" / "valid.txt.gz", "rt", encoding="utf-8") as file:
        encyclopedia = [line for line in file if len(line.split()) > 20]
    random = np.random.default_rng(0)
    return random.permutation(list(captions))[:200], random.permutation(encyclopedia)[:80]


def token_vectors(folder, texts):
    """Last layer, without special tokens."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    for start in range(0, len(texts), 32):
        batch = tokenizer(
            [str(text) for text in texts[start : start + 32]],
            padding=True,
            truncation=True,
            max_length=48,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        kept = batch.pop("special_tokens_mask") == 0
        with torch.no_grad():
            found.append(model(**batch).last_hidden_state[kept].numpy())
    return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_captions_are_far_from_an_encyclopedia_and_near_other_captions(models, data):
    folder = models / "distilbert-base-cased"
    if not folder.exists():
        pytest.skip(f"distilbert-base-cased is not under {models}; set ISOTROPY_MODELS")
    captions, encyclopedia = (token_vectors(folder, text) for text in lines(data))
    half = len(captions) // 2
    for repair in (Center(), ClusterRemoval(5, 3)):
        repair.fit(captions[:half])
        same, other = repair.shift(captions[half:]), repair.shift(encyclopedia)
        assert not same.large
        assert same.mean_shift < 0.1
        assert same.outside < 0.04
        assert other.large
        assert 0.5 < other.mean_shift < 0.9
        assert other.frechet > 3 * same.frechet
    assert repair.fit(encyclopedia).shift(captions).large
