"""The name that an error message begins with: added once, at the entry point that was called."""

import importlib
import inspect
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pytest

import isotropy
from isotropy.errors import (
    ClusterError,
    InputError,
    IsotropyError,
    MissingExtraError,
    WidthError,
    public,
)


def fail(error=InputError):
    raise error("X must have rows, got none.")


@public
def inner(X=None, *, k: int = 3) -> int:
    """What it does."""
    return fail()


@public
def outer():
    return inner()


@public("load")
def read():
    fail()


@public
class Base(ABC):
    def method(self):
        fail()

    @classmethod
    def made(cls):
        fail()

    @staticmethod
    def helped(value):
        fail()

    @property
    def size(self):
        return fail()

    def __call__(self):
        fail()

    def each(self):
        yield 1
        fail()

    @public("save")
    def save(self):
        fail()

    @abstractmethod
    def hook(self): ...

    def _private(self):
        fail()


class Derived(Base):
    def hook(self):
        fail()


@public
class Strict(Derived):
    def __init__(self, n):
        if n < 1:
            raise InputError(f"n must be at least 1, got {n}.")


@public
@dataclass(frozen=True)
class Pair:
    first: int
    second: int = 0

    def __post_init__(self):
        if self.first < self.second:
            raise InputError("first must be at least second.")


def message(function, *args):
    with pytest.raises(IsotropyError) as caught:
        function(*args)
    return str(caught.value)


SAID = "X must have rows, got none."


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (inner, "inner"),
        (outer, "inner"),  # the innermost entry point names it
        (read, "load"),
        (Derived().method, "Derived"),
        (Derived.made, "Derived"),
        (lambda: Derived.helped(1), "Base"),
        (lambda: Derived().size, "Derived"),
        (Derived(), "Derived"),
        (lambda: list(Derived().each()), "Derived"),
        (Derived().save, "save"),
    ],
)
def test_an_error_begins_with_the_name_of_the_entry_point(function, name):
    assert message(function) == f"{name}: {SAID}"


def test_what_is_not_public_gives_no_name():
    assert message(Derived()._private) == SAID
    assert message(Derived().hook) == SAID


def test_constructors_are_entry_points():
    assert message(Strict, 0) == "Strict: n must be at least 1, got 0."
    assert message(Pair, 1, 2) == "Pair: first must be at least second."
    assert Pair(2, 1) == Pair(2, 1)


def test_decorated_things_look_as_they_did():
    assert str(inspect.signature(inner)) == "(X=None, *, k: int = 3) -> int"
    assert (inner.__name__, inner.__doc__) == ("inner", "What it does.")
    assert list(inspect.signature(Strict).parameters) == ["n"]
    assert pickle.loads(pickle.dumps(inner)) is inner
    assert Base.__abstractmethods__ == {"hook"}


@pytest.mark.parametrize("kind", [InputError, ClusterError, WidthError, MissingExtraError])
def test_the_name_survives_pickling(kind):
    @public
    def apply():
        raise kind(3, 4) if kind is WidthError else kind("it went wrong.")

    with pytest.raises(kind) as caught:
        apply()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.caller) == (str(caught.value), caught.value.caller)
    assert ("apply" in str(again)) == (kind is not ClusterError)


def test_other_exceptions_pass_as_they_are():
    @public
    def broken():
        raise KeyError("ours")

    with pytest.raises(KeyError, match=r"^'ours'$"):
        broken()


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda X: isotropy.measure(X), "measure: X must be"),
        (lambda X: isotropy.metrics.isoscore(X), "isoscore: X must be"),
        (lambda X: isotropy.Whiten().fit(X), "Whiten: X must be"),
        (lambda X: isotropy.stats.Moments().update(X), "Moments: X must be"),
        (lambda X: isotropy.open(X), "isotropy.open: X must be"),
        (lambda X: isotropy.load(X), "load: path must be"),
        (lambda X: isotropy.Center().fit(np.eye(3)).save(X), "save: path must be"),
        (lambda X: isotropy.KeyedVectors(X, []), "KeyedVectors: X must be"),
        (lambda X: isotropy.tasks.open_task("sts", "nowhere.tsv"), "STS: "),
    ],
)
def test_users_see_the_name_of_what_they_called(call, start):
    assert message(call, np.ones(3)).startswith(start)


@pytest.mark.parametrize(
    "room", ["", ".evidence", ".export", ".metrics", ".models", ".repairs", ".tasks"]
)
def test_every_public_function_names_its_errors(room):
    found = importlib.import_module(f"isotropy{room}")
    functions = {name: getattr(found, name) for name in found.__all__}
    undecorated = {
        n for n, f in functions.items() if inspect.isfunction(f) and inspect.unwrap(f) is f
    }
    assert undecorated <= {
        "gather",
        "metric",
        "undefined",
    }  # for authors of metrics, which are named


def whitened():
    X = np.random.default_rng(0).standard_normal((300, 6))
    return isotropy.Whiten().fit_transform(X)


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda: isotropy.metrics.partition_isotropy(whitened()), "partition_isotropy: "),
        (lambda: isotropy.measure(whitened()), "measure: "),
        (lambda: isotropy.AllButTheTop(9).fit(np.eye(4)), "AllButTheTop: "),
        (lambda: isotropy.AllButTheTop(9).fit_transform(np.eye(4)), "AllButTheTop: "),
        (lambda: isotropy.ClusterRemoval(9, 0).fit(np.eye(4)), "ClusterRemoval: "),
    ],
)
def test_a_warning_points_at_the_line_of_the_user(call, start):
    with pytest.warns(isotropy.errors.IsotropyWarning) as caught:
        call()
    assert str(caught[0].message).startswith(start)
    line = inspect.getsourcelines(call)[1]
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, line)}
