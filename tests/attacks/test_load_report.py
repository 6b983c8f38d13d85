"""Files of --evidence and --layers that no command printed: one line, and never markup."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from isotropy.report import charts, inputs, page, sections

from . import forging

NAN = float("nan")
NUMBERS = {"log_partition_isotropy": -1.5, "mean_cosine": 0.2, "isoscore": 0.5}
LAYER = {"layer": 0, "tokens": NUMBERS, "cls": NUMBERS | {"isoscore": None}}
LAYERS = {
    "models": [
        {"model": "a/model", "first_token": "[CLS]", "layers": [LAYER, LAYER | {"layer": 1}]}
    ]
}
RESULT = {
    "task": "sts",
    "metric": "spearman",
    "repair": "whiten(power=0.5)",
    "method": "whiten",
    "score": 60.0,
    "difference": 1.5,
    "interval": [0.5, None],
    "p_holm": 0.01,
    "fitted_on": "texts",
}
COMPARED = {"results": [RESULT | {"method": "none"}, RESULT], "notes": ["a note"]}
CANDIDATE = {
    "method": "whiten",
    "params": {"power": 0.5},
    "level": "token",
    "score": 60.0,
    "difference": 1.0,
    "standard_error": None,
}
ADVISED = {
    "reason": "It helps.",
    "task": "sts",
    "metric": "spearman",
    "choice": "whiten",
    "params": {"power": 0.5},
    "level": "sentence",
    "baseline": 50.0,
    "score": 60.0,
    "interval": [1.0, 2.0],
    "p": 0.01,
    "candidates": [CANDIDATE],
}
MARKUP = [
    '<img src="http://example.com/x.png" onerror="alert(1)">',
    "</script><script>alert(1)</script>",
    '<a href="http://example.com">x</a>',
    "</title><h1>x",
    "&lt;img src=x&gt;",
]
NO_NUMBER = ["1", [1], {}, True, 10**400, "<b>"]
NO_TEXT = [None, 5, ["a"], {}, True, "x" * 20_000]
NO_LIST = [None, 5, "abc", {}, True, [5], [None], [[]], ["x"]]


def changed(value, where, new):
    """A copy of value with another part; where is a path of keys."""
    found = copy.deepcopy(value)
    part = found
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = new
    return found


def test_what_the_fixtures_say_is_drawn():
    assert len(sections.layer_sections(sections.opened_layers(LAYERS))) == 3
    assert len(inputs.opened(COMPARED).gains) == 1
    assert len(inputs.opened(ADVISED).gains) == 2


WRONG_LAYERS = [
    *((("models",), value) for value in NO_LIST),
    (("models",), []),
    *((("models", 0, "model"), value) for value in NO_TEXT),
    *((("models", 0, "first_token"), value) for value in NO_TEXT if value is not None),
    *((("models", 0, "layers"), value) for value in NO_LIST),
    (("models", 0, "layers"), []),
    *((("models", 0, "layers", 0, "layer"), value) for value in (*NO_NUMBER, None, -1, 0.5, NAN)),
    *((("models", 0, "layers", 0, "tokens"), value) for value in (None, 5, [], "x", {})),
    *((("models", 0, "layers", 0, "tokens", "isoscore"), value) for value in NO_NUMBER),
    *((("models", 0, "layers", 1, "cls", "mean_cosine"), value) for value in NO_NUMBER),
    (("models", 0, "layers", 0, "tokens", "log_partition_isotropy"), float("inf")),
]


@pytest.mark.parametrize(("where", "new"), WRONG_LAYERS, ids=lambda v: str(v)[:40])
def test_layers_that_no_command_printed_are_refused(raises, where, new):
    raises(
        sections.opened_layers,
        changed(LAYERS, where, new),
        says="layers must be the output of `isotropy layers --json`",
    )


WRONG_EVIDENCE = [
    *((COMPARED, ("results",), value) for value in NO_LIST),
    (COMPARED, ("results",), []),
    *((COMPARED, ("notes",), value) for value in (None, 5, "abc", {}, [5])),
    *((COMPARED, ("results", 1, "score"), value) for value in NO_NUMBER),
    *((COMPARED, ("results", 1, "p_holm"), value) for value in NO_NUMBER),
    *((COMPARED, ("results", 1, "interval"), v) for v in (None, 5, [], [1], [1, 2, 3], ["a", 1])),
    *((COMPARED, ("results", 1, "task"), value) for value in NO_TEXT),
    *((COMPARED, ("results", 1, "repair"), value) for value in NO_TEXT),
    *((COMPARED, ("results", 0, "fitted_on"), value) for value in NO_TEXT),
    *((ADVISED, ("baseline",), value) for value in NO_NUMBER),
    *((ADVISED, ("score",), value) for value in (*NO_NUMBER, None)),
    *((ADVISED, ("choice",), value) for value in NO_TEXT),
    *((ADVISED, ("params",), value) for value in (None, 5, [], "x", {"a": []}, {"a": {}})),
    *((ADVISED, ("params",), {"a": value}) for value in (10**5000, -(10**5000))),
    *((ADVISED, ("p",), value) for value in (np.array([1, 2]), 10**5000)),
    *((ADVISED, ("candidates",), value) for value in NO_LIST),
    *((ADVISED, ("candidates", 0, "difference"), value) for value in NO_NUMBER),
    *((ADVISED, ("candidates", 0, "params"), value) for value in (None, [], {"a": [1]})),
]


def named(value):
    try:
        return str(value)[:40]
    except ValueError:  # Python does not print integers of thousands of digits
        return "a large integer"


@pytest.mark.parametrize(("whole", "where", "new"), WRONG_EVIDENCE, ids=named)
def test_evidence_that_no_command_printed_is_refused(raises, whole, where, new):
    raises(inputs.opened, changed(whole, where, new), says="evidence must be the output of ")


@pytest.mark.parametrize("key", [*ADVISED])
def test_evidence_that_lacks_something_is_refused_or_drawn(raises, key):
    found = {name: value for name, value in ADVISED.items() if name != key}
    if key == "level":
        assert inputs.opened(found).gains
    else:
        raises(inputs.opened, found, says="evidence must be the output of ")


TEXTS = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "depth within": b'{"results": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a key twice": b'{"models": [], "models": []}',
    "not UTF-8": b"\xff\xfe",
    "half a text": b'{"models": "',
    "zeros": bytes(1000),
    "a long number": b'{"models": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("option", ["--evidence", "--layers"])
@pytest.mark.parametrize("case", TEXTS)
def test_a_file_that_is_no_object_is_refused(folder, refused, option, case):
    np.save("x.npy", forging.ROWS)
    (folder / "found.json").write_bytes(TEXTS[case])
    says = f"report: {option[2:]} "
    refused("report", "x.npy", option, "found.json", "--out", "r.html", says=says)


@pytest.mark.parametrize("option", ["--evidence", "--layers"])
@pytest.mark.parametrize("path", ["gone.json", ".", "file/x.json", "\x1b[31m\n.json"])
def test_a_file_that_cannot_be_read_is_refused(folder, refused, option, path):
    np.save("x.npy", forging.ROWS)
    (folder / "file").write_text("mine")
    refused("report", "x.npy", option, path, "--out", "r.html", says="must be readable")


@pytest.mark.parametrize("option", ["--evidence", "--layers"])
def test_a_huge_file_is_not_read_to_its_end(folder, refused, option, monkeypatch):
    from isotropy import stored

    monkeypatch.setattr(stored, "LARGEST_TEXT", 1000)
    np.save("x.npy", forging.ROWS)
    (folder / "found.json").write_bytes(b" " * 1001)
    refused("report", "x.npy", option, "found.json", "--out", "r.html", says="has more than")


def test_names_never_become_markup():
    """Model, token, task and repair names, notes and the title, in every place of the page."""
    X = forging.ROWS
    names = iter(MARKUP * 10)
    layers = changed(LAYERS, ("models", 0, "model"), next(names))
    layers = changed(layers, ("models", 0, "first_token"), next(names))
    compared = changed(COMPARED, ("notes",), list(MARKUP))
    for i, key in enumerate(("task", "metric", "repair", "fitted_on")):
        compared = changed(compared, ("results", i % 2, key), next(names))
    advised = ADVISED | {"reason": next(names), "task": next(names), "choice": next(names)}
    advised |= {"params": {next(names): next(names)}}
    html = page(X, evidence=[compared, advised], layers=layers, title=MARKUP[0])
    body = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)  # ours, and plotly
    for text in MARKUP[:4]:
        assert text not in body
    assert "<img" not in body
    assert "example.com/x.png" in body  # it is there, as text
    data = json.loads(re.search(r'id="data">(.*?)</script>', body, re.DOTALL)[1])
    for section in data["charts"].values():
        for figure in section["figures"]:
            drawn = [trace.get("name", "") for trace in figure["data"]]
            drawn += [str(y) for trace in figure["data"] for y in _words(trace.get("y"))]
            assert not re.search(r"<(?!br>)", " ".join(drawn)), drawn


def _words(values):
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


@pytest.mark.parametrize("text", ["\x1b[31m", "a\nb", "x" * 10_000])
def test_odd_names_are_escaped_in_charts(text):
    figure = charts.layers(changed(LAYERS, ("models", 0, "model"), text))
    assert all(trace.name.isprintable() and len(trace.name) < 200 for trace in figure.data)
