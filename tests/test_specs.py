"""Specs: what is parsed is what was rendered, and what is malformed is refused."""

import pytest

from isotropy import specs
from isotropy.errors import InputError


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("center", "center", {}),
        ("center:", "center", {}),
        ("whiten:power=0.5,method=pca", "whiten", {"power": 0.5, "method": "pca"}),
        ("token/center: normalize = True", "token/center", {"normalize": True}),
        ("a:n-components=3,", "a", {"n_components": 3}),
        ("a:seed=none,flag=FALSE", "a", {"seed": None, "flag": False}),
        ("cosine:weight=1e-05,on=hidden:-1", "cosine", {"weight": 1e-5, "on": "hidden:-1"}),
    ],
)
def test_a_spec_is_parsed_and_read_back(spec, name, options):
    assert specs.parse(spec) == (name, options)
    assert specs.parse(specs.render(name, options)) == (name, options)


@pytest.mark.parametrize("option", ["power", "=3", " = 3"])
def test_an_option_without_name_or_value_is_refused(option):
    with pytest.raises(InputError, match=r"options of whiten must be name=value, got '"):
        specs.parse(f"whiten:{option}")


def test_unknown_options_are_refused_with_the_known_ones():
    specs.expect_known({"power": 1}, ["power"], "options of whiten")
    with pytest.raises(InputError, match="options of whiten must be among power, eps, got 'pow'"):
        specs.expect_known(["pow"], ["power", "eps"], "options of whiten")
    with pytest.raises(InputError, match="options of none must be left out, got 'power'"):
        specs.expect_known(["power"], [], "options of none")
