"""Tasks made of unlabelled text: what belongs together, and what is left out."""

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.tasks.retrieval import adjacent, titled


def found(task):
    """The document of each query."""
    return {
        task.texts[task.members[item, 0]]: task.corpus[task.relevance[[item]].indices[0]]
        for item in range(task.n_items)
    }


@pytest.mark.parametrize("n_texts", [8, 9])
def test_each_text_looks_for_the_next(n_texts):
    task = adjacent([f"line {i}" for i in range(n_texts)])
    assert found(task) == {f"line {i}": f"line {i + 1}" for i in (0, 2, 4, 6)}
    assert task.corpus == [f"line {i}" for i in (1, 3, 5, 7)]
    assert "pseudo" in task.name


def test_each_title_looks_for_its_body():
    task = titled(["a", "b", "c"], ["of a", "of b", "of c"])
    assert found(task) == {"a": "of a", "b": "of b", "c": "of c"}
    assert "pseudo" in task.name


def test_near_neighbours_score_well():
    random = np.random.default_rng(0)
    task = adjacent([f"line {i}" for i in range(60)])
    queries = random.standard_normal((30, 16))
    X = np.concatenate([queries, queries + 0.1 * random.standard_normal((30, 16))])
    assert task.score(X).value == 1
    assert task.score(random.standard_normal((60, 16))).value < 0.5


def test_what_returns_is_one_document_and_one_query():
    titles = ["news", "a", "news", "b", "of a", "c"]
    bodies = ["first", "of a", "second", "of b", "x", "of b"]
    task = titled(titles, bodies)
    assert found(task) == {"news": "first", "a": "of a", "b": "of b", "c": "of b"}
    assert task.corpus == ["first", "of a", "second", "of b", "x"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adjacent(["a", "b", "c"]), "adjacent: texts must have at least 4 entries, got 3"),
        (lambda: adjacent(["a"] * 8), "titles must have at least 2 distinct entries that are no"),
        (lambda: titled(["a", "b"], ["c"]), "titles must be as many as bodies, got 2 and 1"),
        (lambda: titled(["a", "a"], ["c", "d"]), "titles must have at least 2 distinct entries"),
        (lambda: titled([], []), "titles must have at least 2 distinct entries .*, got 0"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()
