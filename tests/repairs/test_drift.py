"""Drift: rows of the same source stay within the limit, moved ones and other text do not."""

import csv
import gzip
import json

import numpy as np
import pytest
import scipy.linalg
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy.errors import InputError, RepairFileError
from isotropy.repairs import PerGroup, Repair
from isotropy.repairs.drift import farthest, n_directions
from isotropy.repairs.shift import expected
from isotropy.stats import BlockSums
from isotropy.stats.blocks import MOST_ROWS, N_DIRECTIONS, directions
from isotropy.stored import checksum


def covariance(X):
    return np.cov(X.T, ddof=0)


def written_out(X, Y):
    """Squared Frechet distance of the normal distributions of X and Y, over tr C of X."""
    first, second = covariance(X), covariance(Y)
    root = scipy.linalg.sqrtm(first)
    cross = scipy.linalg.sqrtm(root @ second @ root)
    apart = ((X.mean(0) - Y.mean(0)) ** 2).sum()
    return (apart + np.trace(first + second - 2 * cross).real) / np.trace(first)


def clustered(seed, n_samples=4000, n_features=48, run=1):
    """Heavy-tailed rows of 40 unequal clusters, of which `run` follow each other."""
    random = np.random.default_rng(seed)
    scale = np.arange(1, n_features + 1) ** -0.5
    centers = 2 * random.standard_normal((40, n_features)) * scale
    shares = random.dirichlet(np.full(40, 0.5))
    labels = np.repeat(random.choice(40, n_samples // run + 1, p=shares), run)[:n_samples]
    return centers[labels] + random.standard_t(3, (n_samples, n_features)) * scale + 5


@pytest.mark.parametrize("n_features", [20, 100])
@pytest.mark.parametrize("n_joined", [1, 4])
def test_blocks_are_as_far_apart_as_their_formula_says(n_features, n_joined):
    X = clustered(0, 800, n_features, run=10)
    blocks = BlockSums(len(X)).update(X)
    seen = X @ directions(n_features)
    found = []
    for k in range(16 // n_joined):
        own = np.arange(800) // (50 * n_joined) == k
        values = np.linalg.eigvalsh(covariance(seen[~own]))
        chance = expected(values, 1 / own.sum() + 1 / (~own).sum())
        found.append(written_out(seen[~own], seen[own]) - chance)
    assert farthest(blocks, n_joined) == pytest.approx(max(found), rel=1e-6)


def test_any_split_of_the_rows_gives_the_same_blocks():
    X = clustered(0, 700, 100).astype(np.float32)
    weights = np.random.default_rng(1).integers(0, 3, 700).astype(float)
    whole = BlockSums(700).settled(X, 700)
    parts = [whole.empty() for _ in range(3)]
    edges = [0, 13, 450, 700]
    for part, start, end in zip(parts, edges, edges[1:], strict=False):
        part.update(X[start:end], weights[start:end], first_row=start)
    merged = parts[2].merge(parts[0]).merge(parts[1])
    whole.update(X, weights)
    for name, value in whole.state().items():
        np.testing.assert_allclose(merged.state()[name], value, rtol=1e-5, atol=1e-4)
    again = BlockSums.from_state(whole.state())
    assert farthest(again, 1) == farthest(whole, 1)


def test_the_work_on_many_rows_is_bounded():
    X = np.random.default_rng(0).standard_normal((40_000, 3))
    blocks = BlockSums(len(X)).update(X)
    assert blocks.rows.max() <= MOST_ROWS
    assert blocks.rows.min() > MOST_ROWS / 2
    assert directions(1000).shape[1] == N_DIRECTIONS
    np.testing.assert_allclose(directions(1000).T @ directions(1000), np.eye(64), atol=1e-12)


def test_rows_of_any_scale_and_place_are_as_far_apart():
    X = clustered(0, 800, 30, run=10)
    usual = isotropy.Center().fit(X).held_out_
    for other in (1e100 * X, 1e-100 * X, X + 1e4):
        found = isotropy.Center().fit(other).held_out_
        assert found.at(50) == pytest.approx(usual.at(50), rel=1e-5)


@pytest.mark.parametrize(
    "X", [np.ones((100, 4)), np.eye(40), np.vstack([np.zeros((80, 4)), np.ones((80, 4))])]
)
def test_where_blocks_tell_nothing_the_limit_is_that_of_a_large_shift(X):
    repair = isotropy.Center().fit(X)
    found = repair.drift(X)
    if len(X) < 160:
        assert repair.held_out_ is None
        assert found.held_out is None
        assert found.limit == found.shift.chance + 0.1
    assert not found.drifted


@pytest.mark.parametrize("name", sorted(Repair.by_name))
def test_every_repair_keeps_what_its_blocks_show(name, tmp_path):
    X = clustered(0, 600, 20, run=10)
    repair = Repair.by_name[name]().fit(X)
    assert repair.held_out_ is not None
    repair.save(tmp_path / "repair")
    loaded = isotropy.load(tmp_path / "repair")
    assert loaded.held_out_ == repair.held_out_
    assert loaded.drift(X[:100] + 1) == repair.drift(X[:100] + 1)


def test_parts_that_are_joined_show_no_blocks():
    X = clustered(0, 600, 20)
    for repair in (
        isotropy.Center().partial_fit(X[:300]).partial_fit(X[300:]),
        isotropy.Center().fit(X[:300]).merge(isotropy.Center().fit(X[300:])),
        isotropy.Center().fit(X).fit_statistic(isotropy.Center().fit(X).moments_),
        PerGroup(isotropy.Center()).fit(X, groups=np.arange(600) % 2),
    ):
        assert repair.held_out_ is None
        assert not repair.drift(X[:100]).drifted
        assert repair.drift(X[:100] + 3 * X.std(axis=0)).drifted


def test_a_limit_can_be_given():
    X = clustered(0, 600, 20)
    repair = isotropy.Center().fit(X)
    distance = repair.drift(X[:100] + 1).shift.frechet
    assert repair.drift(X[:100] + 1, max_drift=0.9 * distance).drifted
    assert not repair.drift(X[:100] + 1, max_drift=1.1 * distance).drifted
    with pytest.raises(InputError, match="max_drift must be a number"):
        repair.drift(X, max_drift=-1)


def test_few_rows_are_compared_in_few_directions():
    assert [n_directions(n) for n in (1, 128, 800, 10**6)] == [16, 16, 100, 1024]


@pytest.mark.parametrize(
    "held_out", [3, [1.0], {"lasting": 1.0}, {"lasting": -1.0, "per_row": 0.0}, {"lasting": "a"}]
)
def test_damaged_blocks_are_refused(held_out, tmp_path):
    path = tmp_path / "repair"
    isotropy.Center().fit(clustered(0, 100, 4)).save(path)
    with safe_open(str(path), framework="numpy") as file:
        header = json.loads(file.metadata()["isotropy.repair"])
    tensors = load_file(path)
    del header["checksum"]
    header["held_out"] = held_out
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, path, metadata={"isotropy.repair": json.dumps(header)})
    with pytest.raises(RepairFileError, match="held_out must"):
        isotropy.load(path)
    header = {k: v for k, v in header.items() if k not in ("held_out", "checksum")}
    header["checksum"] = checksum(header, tensors)
    save_file(tensors, path, metadata={"isotropy.repair": json.dumps(header)})
    assert isotropy.load(path).held_out_ is None  # as in older files


def verdicts(X, n_new, n_seeds, moved=0.0):
    """Whether a random stripe of the rows, moved by so many deviations, is called drifted."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(n_seeds):
        start = random.integers(0, len(X) - n_new + 1)
        new = np.arange(start, start + n_new)
        repair = isotropy.Center().fit(np.delete(X, new, axis=0))
        found.append(repair.drift(X[new] + moved * X.std(axis=0)).drifted)
    return np.array(found)


@pytest.mark.parametrize("run", [1, 20])
def test_stripes_of_clustered_rows_stay_within(run):
    for n_new in (100, 250):
        drifted = [verdicts(clustered(seed, run=run), n_new, 5) for seed in range(10)]
        assert np.sum(drifted) <= 2


def test_half_a_deviation_is_drift():
    for n_new in (250, 1000):
        assert verdicts(clustered(0), n_new, 10, moved=0.5).all()
    assert verdicts(clustered(1, 8000, run=20), 2000, 5, moved=0.5).all()


@pytest.fixture(scope="module")
def sentences(models, data):
    """(vectors of STS-B's sentences in their order, vectors of Cranfield's abstracts)."""
    pytest.importorskip("transformers")
    folder = models / "all-MiniLM-L6-v2"
    if not folder.exists():
        pytest.skip(f"all-MiniLM-L6-v2 is not under {models}; set ISOTROPY_MODELS")
    with open(data / "stsb" / "train.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with gzip.open(data / "cranfield" / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        abstracts = [json.loads(line)["text"][:200] for line in file]
    encoder = isotropy.Encoder(folder)
    texts = [row["sentence1"] for row in rows][::2]
    return encoder.encode(texts), encoder.encode([text for text in abstracts if text][:300])


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_stripes_of_sentences_stay_within_and_another_domain_does_not(sentences):
    X, other = sentences
    shuffled = X[np.random.default_rng(0).permutation(len(X))]
    for rows in (X, shuffled):  # genres follow each other in the file
        for n_new in (50, len(X) // 16):
            assert verdicts(rows, n_new, 25).sum() <= 1
        assert isotropy.Whiten().fit(rows).drift(other).drifted
    assert verdicts(shuffled, 150, 5, moved=0.5).all()
    assert isotropy.Center().fit(shuffled).drift(other[:50]).drifted
