"""The benchmark sets themselves: sizes, shared sentences, and scores of real word vectors."""

import numpy as np
import pytest

from isotropy.models.texts import Span
from isotropy.tasks import WordSimilarity, open_task

pytestmark = pytest.mark.data


def sizes(task):
    return [len(items) for items in task.parts.values()]


@pytest.mark.parametrize(
    ("kind", "name", "parts", "expected", "n_unlabelled"),
    [
        ("sts", "stsb", ["train", "dev", "test"], [5749, 1500, 1379], 0),
        ("sts", "sts12", ["train", "test"], [2234, 3108], 0),
        ("sts", "sts14", ["test"], [3750], 0),
        ("word-similarity", "wordsim", ["all"], [6488], 0),
        ("retrieval", "cranfield", ["all"], [225], 0),
        ("classification", "trec", ["train", "test"], [5452, 500], 0),
        ("classification", "cola", ["train", "dev"], [8551, 1043], 0),
        ("classification", "boolq", ["train", "dev"], [32, 3270], 0),
        ("classification", "wnli", ["train", "dev"], [635, 71], 146),
        ("pair-classification", "rte", ["train", "dev"], [2490, 277], 3000),
        ("pair-classification", "mrpc", ["train", "dev", "test"], [3668, 408, 1725], 0),
        ("pair-classification", "qnli", ["dev"], [5463], 0),
        ("word-in-context", "wic", ["train", "dev"], [5428, 638], 1400),
        ("clustering", "trec", ["train", "test"], [5452, 500], 0),
    ],
)
def test_sizes_are_the_published_ones(data, kind, name, parts, expected, n_unlabelled):
    task = open_task(kind, data / name)
    assert task.name == name
    assert list(task.parts) == parts
    assert sizes(task) == expected
    assert task.n_unlabelled == n_unlabelled


def test_dev_pairs_of_stsb_share_sentences_with_train(data):
    task = open_task("sts", data / "stsb")
    train = task.texts_of(task.parts["train"])
    assert np.isin(task.members[task.parts["dev"]], train).any(axis=1).sum() == 252


def test_subsets_of_sts14(data):
    task = open_task("sts", data / "sts14", combine="mean")
    assert len(set(task.subsets)) == 6


def test_fine_classes_of_trec(data):
    assert len(open_task("classification", data / "trec", label="fine").classes) == 50


def test_documents_of_cranfield(data):
    task = open_task("retrieval", data / "cranfield")
    assert len(task.corpus) == 1398  # 471 and 995 have no text
    assert task.relevance.nnz == 1836
    assert set(task.relevance.data) == {1, 2, 3, 4}
    assert task.corpus[0].startswith("experimental investigation of the aerodynamics of a wing")


def test_words_of_wic_are_where_it_says(data):
    task = open_task("word-in-context", data / "wic")
    first = task.texts[task.members[task.parts["dev"][0], 1]]
    assert isinstance(first, Span)
    assert first.text[first.start : first.end] == "boards"
    assert task.labels[task.parts["train"]].mean() == 0.5


def test_glove_on_word_similarity(data, models):
    folder = models / "glove.6B.50d"
    if not folder.exists():
        pytest.skip("there are no GloVe vectors")
    words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
    place = {word: number for number, word in enumerate(words)}
    task = WordSimilarity.read(data / "wordsim").known(place)
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")[[place[text] for text in task.texts]]
    assert task.n_listed["men3000"] == 3000
    assert task.n_kept["simlex999"] > 990
    assert 0.3 < task.score(vectors).value < 0.7
