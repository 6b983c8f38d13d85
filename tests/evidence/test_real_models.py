"""Evidence on a pretrained model and a public set."""

import numpy as np
import pytest

import isotropy
from isotropy.repairs import ScoreCalibrator
from isotropy.tasks import STS

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.data]


@pytest.fixture(scope="module")
def stsb(models, data):
    """A function: rows of sentences of a part of STS-B by gte-small, and the item of each."""
    pytest.importorskip("transformers")
    folder = models / "gte-small"
    if not folder.exists():
        pytest.skip(f"no model {folder}")
    task = STS.read(data / "stsb")
    encoder = isotropy.Encoder(folder, pool="mean", device="cpu")

    def rows(part, n_items=300, seed=0):
        items = np.sort(
            np.random.default_rng(seed).choice(task.parts[part], n_items, replace=False)
        )
        texts = [task.texts[i] for i in task.members[items].ravel()]
        return encoder.encode(texts, progress=False), np.repeat(task.groups[items], 2)

    return rows


def test_a_false_match_rate_holds_on_text_it_was_not_fitted_on(stsb):
    """Unrelated pairs are sentences of items that share none."""
    X, groups = stsb("train")
    calibrator = ScoreCalibrator().fit(X, groups)
    new, of_item = stsb("dev")
    units = new / np.linalg.norm(new, axis=1, keepdims=True)
    first, second = np.triu_indices(len(new), 1)
    unrelated = of_item[first] != of_item[second]
    cosines = np.einsum("ij,ij->i", units[first[unrelated]], units[second[unrelated]])
    rate = (cosines >= calibrator.threshold(0.01)).mean()
    assert 0.005 <= rate <= 0.02, rate
