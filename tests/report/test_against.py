"""The page beside an earlier space: vectors, or those that a repair was fitted on."""

import base64
import json
import re

import numpy as np
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

import isotropy
from isotropy import report
from isotropy.errors import InputError, RepairFileError


@pytest.fixture
def spaces():
    random = np.random.default_rng(0)
    old = random.standard_normal((600, 8)) * np.arange(1, 9) + 3
    return old, 1.5 * random.standard_normal((300, 8)) * np.arange(1, 9) + 3


def charts_of(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)["charts"]


def test_both_spectra_are_drawn_with_their_distance(spaces, tmp_path):
    old, new = spaces
    repair = isotropy.Whiten().fit(old)
    repair.save(tmp_path / "repair")
    found = charts_of(report.page(new, against=tmp_path / "repair"))
    (figure,) = found["against"]["figures"]
    assert [trace["name"] for trace in figure["data"]] == ["now", "before"]
    for X, trace in zip((new, old), heights(figure), strict=True):
        expected = np.sqrt(np.linalg.eigvalsh(np.cov(X.T, ddof=0))[::-1])
        np.testing.assert_allclose(trace, expected, rtol=1e-6)
    (words,) = found["against"]["sentences"]
    assert words.startswith(f"Drifted: Frechet distance {repair.drift(new).shift.frechet:.3g}")
    assert "against-cosines" not in found


def heights(figure):
    found = [trace["y"] for trace in figure["data"]]
    return [np.frombuffer(base64.b64decode(y["bdata"]), y["dtype"]) for y in found]


def test_cosines_of_both_are_drawn_where_there_are_vectors(spaces, tmp_path):
    old, new = spaces
    np.save(tmp_path / "old.npy", old)
    for given in (old, tmp_path / "old.npy"):
        found = charts_of(report.page(new, against=given))
        names = [trace["name"] for trace in found["against-cosines"]["figures"][0]["data"]]
        assert {"now", "before"} <= set(names)
        assert "The mean cosine of random pairs was 0." in found["against-cosines"]["sentences"][0]
    assert "against" not in charts_of(report.page(new))


def test_what_is_neither_vectors_nor_a_repair_is_refused(spaces, tmp_path):
    _, new = spaces
    with pytest.raises(InputError, match="there is no file"):
        report.page(new, against=tmp_path / "no.npy")
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(RepairFileError, match="is damaged or not a safetensors file"):
        report.page(new, against=tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="X has 8 features, but Center is expecting 5"):
        report.page(new, against=new[:, :5])
    with pytest.raises(InputError, match="against must come with vectors"):
        report.page(isotropy.measure(new), against=new)


def test_a_page_is_not_written_over_the_earlier_space(spaces, tmp_path):
    np.save(tmp_path / "old.npy", spaces[0])
    (tmp_path / "page.html").hardlink_to(tmp_path / "old.npy")
    with pytest.raises(InputError, match="must be another file than against"):
        report.write(
            spaces[1], tmp_path / "page.html", against=tmp_path / "old.npy", overwrite=True
        )
