"""The page in a browser: drawn with the right data, off the network, for everyone."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

import isotropy
from isotropy import evidence, report, tasks
from isotropy.report import charts

from .conftest import ATTACK

pytestmark = pytest.mark.slow
CHARTS = ("spectrum", "explained_variance", "partition", "cosines", "norms", "dimensions",
          "projection", "local", "layers-0", "layers-1", "layers-2", "evidence")  # fmt: skip


@pytest.fixture(scope="module")
def compared(rows):
    scores = np.einsum("ij,ij->i", rows[:40] - rows.mean(0), rows[40:80] - rows.mean(0))
    task = tasks.STS([(str(i), str(i + 40)) for i in range(40)], scores, name=f"pairs {ATTACK}")
    order = [int(text) for text in task.texts]
    return evidence.compare(rows[order], task, ["center", "whiten"], transductive=True)


PATIENCE = 1_500_000  # milliseconds: a busy machine takes its time


@pytest.fixture(scope="module")
def layers(rows):
    geometry = isotropy.measure(rows).to_dict()
    layer = {"tokens": geometry, "cls": geometry | {"mean_cosine": None}}
    found = [{"layer": i, **layer} for i in range(3)]
    return {"models": [{"model": "a/b", "first_token": "[CLS]", "layers": found}]}


@pytest.fixture(scope="module")
def written(table, repairs, compared, layers, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.write(table, path, repairs=repairs, evidence=[compared], layers=layers)
    return path


@pytest.fixture
def opened(browser, written):
    """Opens the page at a width, and fails on anything the console or the network says."""
    contexts, said = [], []

    def open_at(width=1440):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: said.append(request.url)
                if not request.url.startswith(("file:", "data:", "blob:")) else None)  # fmt: skip
        page.goto(written.as_uri())
        page.wait_for_selector("html[data-drawn=yes]")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert said == []


def drawn(page, name, trace=-1, key="y"):
    """What a chart has been drawn with."""
    found = page.evaluate(
        "([name, at, key]) => Array.from(document.getElementById(name)._fullData.at(at)[key])",
        [name, trace, key],
    )
    return np.array(found, dtype=object if isinstance(found[0], str) else np.float64)


def choose(page, view):
    page.check(f"input[name=view] >> nth={view}")


def test_every_chart_is_drawn_with_its_data(opened, rows, compared, layers):
    page = opened()
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    assert page.evaluate("Object.keys(JSON.parse(document.getElementById('data').textContent)"
                         ".charts)") == list(CHARTS)  # fmt: skip
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(drawn(page, "spectrum"), values, rtol=1e-5)
    variances = np.linalg.svd(centred, compute_uv=False) ** 2
    shares = np.cumsum(variances) / variances.sum()
    np.testing.assert_allclose(drawn(page, "explained_variance", 0), shares, rtol=1e-5)
    _, _, axes = np.linalg.svd(rows.astype(np.float64))
    heights = np.log10(np.exp(rows @ axes.T).mean(0)), np.log10(np.exp(-rows @ axes.T).mean(0))
    both = np.stack([drawn(page, "partition", i) for i in (0, 1)])
    np.testing.assert_allclose(np.sort(both, axis=0), np.sort(heights, axis=0), atol=1e-4)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (units @ units.T)[np.triu_indices(len(rows), 1)]
    x, y = drawn(page, "cosines", 0, "x"), drawn(page, "cosines", 0, "y")
    assert abs(x @ y - cosines.mean()) < 0.01
    assert abs(y.sum() - 1) < 1e-9
    x, y = drawn(page, "norms", 0, "x"), drawn(page, "norms", 0, "y")
    assert abs(x @ y - np.linalg.norm(rows, axis=1).mean()) < 0.05
    parts = drawn(page, "dimensions")
    assert int(parts.argmax()) == 5
    assert abs(parts.sum() - (cosines.mean())) < 1e-4
    assert "5: " in page.text_content("#dimensions")
    assert len(drawn(page, "projection", 0, "x")) == len(rows)
    across = np.var(drawn(page, "projection", 0, "x"))
    assert abs(across - variances[0] / len(rows)) < 1e-3 * across
    assert drawn(page, "local", 0, "x")[0] == pytest.approx(cosines.mean(), abs=1e-4)
    gains = [100 * r.difference for r in compared.results if r.candidate.method != "none"]
    np.testing.assert_allclose(drawn(page, "evidence", 0, "x"), gains, atol=1e-3)
    log = layers["models"][0]["layers"][0]["tokens"]["log_partition_isotropy"]
    np.testing.assert_allclose(drawn(page, "layers-0", 0), -np.log10(np.exp(log)) * np.ones(3))
    for name in CHARTS:
        assert page.locator(f"#{name} .main-svg").first.bounding_box()["height"] > 100


def test_the_toggle_changes_charts_numbers_and_words(opened, rows, repairs):
    page = opened()
    before = {name: drawn(page, name) for name in ("spectrum", "partition", "cosines")}
    words, number = page.text_content("#verdict"), page.text_content("[data-number=mean_cosine]")
    choose(page, 2)
    whitened = repairs[1].transform(rows.astype(np.float64))
    values = np.linalg.svd(whitened, compute_uv=False)
    np.testing.assert_allclose(drawn(page, "spectrum"), values, rtol=1e-3)
    np.testing.assert_allclose(drawn(page, "spectrum", 0), before["spectrum"])
    assert not np.array_equal(drawn(page, "partition"), before["partition"])
    assert page.text_content("#verdict") != words
    cosine = f"{isotropy.metrics.mean_cosine(whitened):.3f}"
    assert page.text_content("[data-number=mean_cosine]") == cosine != number
    choose(page, 0)
    np.testing.assert_array_equal(drawn(page, "cosines"), before["cosines"])


def test_views_are_changed_with_the_keyboard(opened):
    page = opened()
    before = drawn(page, "norms")
    page.focus("input[name=view] >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("input[name=view] >> nth=1")
    assert not np.array_equal(drawn(page, "norms"), before)


def test_points_are_coloured_by_any_column_and_turned(opened):
    page = opened()
    names = page.locator("#colour option").all_text_contents()
    assert names == ["cluster", "norm", "age", "kind"]
    colours = "Array.from(document.getElementById('projection')._fullData[0].marker.color)"
    seen = []
    for name in names:
        page.select_option("#colour", name)
        seen.append(page.evaluate(colours))
    assert len({json.dumps(colour) for colour in seen}) == 4
    assert max(seen[2]) == pytest.approx(59.9)
    page.check("#turnable")
    page.wait_for_selector("#projection canvas")
    assert page.evaluate("document.getElementById('projection').data[0].type") == "scatter3d"
    assert len(drawn(page, "projection", 0, "z")) == 600


def test_text_of_rows_is_shown_as_text(opened):
    page = opened()
    place = page.evaluate(
        """() => { const chart = document.getElementById('projection');
        chart.scrollIntoView();
        const row = chart.data[0].text.findIndex((text) => text.includes('onerror'));
        Plotly.Fx.hover(chart, [{curveNumber: 0, pointNumber: row}]); return row; }"""
    )
    assert place >= 0
    page.wait_for_selector("#projection .hoverlayer .hovertext")
    assert ATTACK in page.text_content("#projection .hoverlayer")
    assert page.locator("img").count() == 0
    page.select_option("#colour", "kind")
    assert ATTACK[:20] in page.text_content("#projection .colorbar, #projection .infolayer")
    assert ATTACK in page.text_content("table")


@pytest.mark.parametrize("width", [360, 1440])
def test_nothing_overflows(opened, width):
    page = opened(width)
    for view in range(3):
        choose(page, view)
        page.wait_for_timeout(200)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        for name in CHARTS:
            box = page.locator(f"#{name} .main-svg").first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [360, 1440])
def test_axe_finds_nothing_serious(opened, axe, width):
    page = opened(width)
    for details in page.locator("summary").all():
        details.click()
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    bad = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    shown = [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in bad]
    assert shown == []
    assert len(found["passes"]) > 10


def test_pictures_are_written(browser, rows, tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    report.write_image(charts.norms(rows), tmp_path / "norms.svg")
    assert "norm of a row" in (tmp_path / "norms.svg").read_text("utf-8")
    report.write_image(charts.cosines(rows), tmp_path / "cosines.png")
    assert (tmp_path / "cosines.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def odd(browser, rows, tmp_path):
    """A page whose columns have names that HTML, JavaScript and plotly could take amiss."""
    n = len(rows)
    half = n // 2
    columns = {" two  spaces ": np.arange(n), "2020": np.arange(n) / 2, "a\nb": ["x", "y"] * half,
               'say "&"': ['it\'s "<b>"', "plain"] * half, "w" * 200: ["long " * 40, ""] * half,
               "__proto__": np.arange(n) * 2}  # fmt: skip
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    pq.write_table(pa.table(columns | {"vector": vectors}), tmp_path / "odd.parquet")
    report.write(tmp_path / "odd.parquet", tmp_path / "odd.html")
    page = browser.new_page(viewport={"width": 360, "height": 900})
    page.set_default_timeout(PATIENCE)
    said = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "odd.html").as_uri())
    page.wait_for_selector("html[data-drawn=yes]")
    yield page
    page.close()
    assert said == []


def test_columns_of_any_name_can_be_coloured_by(odd):
    names = odd.locator("#colour option").all_text_contents()
    shown = "document.getElementById('projection')._fullData[0].marker.colorbar.title.text"
    odd.set_viewport_size({"width": 1440, "height": 900})
    for i, name in enumerate(names):
        odd.select_option("#colour", index=i)
        title = odd.evaluate(shown).replace("&amp;", "&")
        assert title.removesuffix("…") == name[: 23 if len(name) > 24 else None]
    odd.select_option("#colour", index=names.index('say "&"'))
    assert 'it\'s "<b>"' in odd.text_content("#projection .infolayer")


def test_long_names_fit_on_a_phone(odd):
    names = odd.locator("#colour option").all_text_contents()
    odd.select_option("#colour", index=names.index("w" * 200))
    assert odd.evaluate("document.documentElement.scrollWidth") <= 360
    size = odd.evaluate("document.getElementById('projection')._fullLayout._size")
    assert min(size["w"], size["h"]) > 120
