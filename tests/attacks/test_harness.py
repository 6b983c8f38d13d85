"""The harness itself: it notices what an attack must not do."""

import numpy as np
import pytest


def test_a_refused_command_changes_nothing(refused):
    np.save("x.npy", np.ones((3, 2)))
    with open("x.npy", "r+b") as file:
        file.truncate(130)
    assert refused("measure", "x.npy", says="is truncated").startswith("measure: ")


def test_a_command_that_ends_well_is_not_refused(refused):
    np.save("x.npy", np.eye(4))
    with pytest.raises(AssertionError):
        refused("measure", "x.npy")
    with pytest.raises(AssertionError):
        refused("measure", "missing.npy", says="no such words")


def test_a_command_writes_what_it_is_told_to_and_nothing_else(done):
    np.save("x.npy", np.random.default_rng(0).normal(size=(9, 4)))
    done("repair", "x.npy", "--method", "center", "--out", "y.npy", writes=["y.npy"])
    with pytest.raises(AssertionError):
        done("repair", "x.npy", "--method", "center", "--out", "z.npy")
