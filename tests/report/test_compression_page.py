"""The picture of a compression: drawn with its data, by itself and in the report, for everyone."""

import html
import json

import numpy as np
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from isotropy import report
from isotropy.errors import InputError
from isotropy.report import charts

from .conftest import ATTACK

PATIENCE = 1_500_000  # milliseconds: a busy machine takes its time
SIZES = (384, 192, 96, 48)


def code(repair, size, score, stored=None, **more):
    loss = 52.9 - (score or 0.0)
    return {
        "name": f"{repair}, {size}", "repair": repair, "code": f"{size}", "n_bytes": size,
        "n_bytes_stored": stored or size, "ratio": 1536 / size, "score": score, "loss": loss,
        "interval": [loss - 1, loss + 1.5], "on_frontier": False, "chosen": False, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """As `compress --json` prints it, with a hostile name."""
    codes = [code(r, s, 50 + i - s / 1000) for i, r in enumerate(("none", ATTACK)) for s in SIZES]
    codes += [code("none", 48, 40.0), code("none", 48, 52.5, stored=432)]
    codes[7] = codes[7] | {"on_frontier": True, "chosen": True}
    codes[3] = codes[3] | {"name": codes[7]["name"]}  # a name does not tell which is chosen
    codes.append(code("center", 24, None) | {"loss": None, "interval": [None, None]})
    texts = {"reason": f"Use this {ATTACK}.", "task": "cranfield", "metric": "ndcg@10"}
    texts |= {"fitted_on": "the corpus", "items": "150 items", "choice": codes[7]["name"]}
    return texts | {
        "baseline": 52.9, "n_bytes": 1536, "n_tested": 150, "codes": codes, "notes": ["A note."],
    }  # fmt: skip


def test_the_figure_has_a_line_for_each_repair_and_marks_the_frontier(found):
    figure = charts.compression(found)
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [len(trace.x) for trace in lines] == [4, 4, 0]
    assert list(lines[0].y) == pytest.approx([50 - s / 1000 for s in sorted(SIZES)])
    np.testing.assert_allclose(lines[0].x, sorted(SIZES), rtol=0.05)
    np.testing.assert_allclose(lines[0].error_y.array, np.ones(4))
    np.testing.assert_allclose(lines[0].error_y.arrayminus, 1.5 * np.ones(4))
    (hollow,) = [t for t in figure.data if t.marker.symbol == "circle-open" and t.name == "none"]
    assert list(hollow.y) == [52.5]
    (rings,) = [trace for trace in figure.data if trace.name == "frontier"]
    assert list(rings.y) == [found["codes"][7]["score"]]
    (star,) = [trace for trace in figure.data if trace.name == "chosen"]
    assert (list(star.y), star.marker.symbol) == ([found["codes"][7]["score"]], "star")
    (dashed,) = [trace for trace in figure.data if trace.name == "float32, 1,536 bytes"]
    assert (list(dashed.y), dashed.line.dash) == ([52.9, 52.9], "dash")
    (note,) = figure.layout.annotations
    assert 10**note.x == pytest.approx(48, rel=0.05)
    assert len({(t.line.color, t.marker.symbol, t.line.dash) for t in lines}) == len(lines)
    assert all("<img" not in (trace.name or "") for trace in figure.data)


def test_the_chosen_code_of_two_stages_names_both_sizes(found):
    codes = [one | {"chosen": one["n_bytes_stored"] == 432} for one in found["codes"]]
    (note,) = charts.compression(found | {"codes": codes}).layout.annotations
    assert note.text == "chosen<br><b>48 bytes in memory<br>432 stored</b><br>32 times smaller"


def test_the_page_says_what_to_do(found, tmp_path):
    def written(found, **options):
        report.write_compression(found, tmp_path / "page.html", overwrite=True, **options)
        return html.unescape((tmp_path / "page.html").read_text("utf-8"))

    command = "isotropy compress docs.npy --out page.html"
    text = written(found, command=command, codec="my codec.safetensors")
    for step in (
        f"<code>{command}</code>",
        "<code>isotropy apply 'my codec.safetensors' vectors.npy --out codes.npy</code>",
        "<code>isotropy export 'my codec.safetensors' --to faiss --out index.faiss --verify</code>",
        "It need not be on the frontier: it was chosen on other items",
        "is a limit on one side",
    ):
        assert step in text
    assert f"<code>{command} --save codec.safetensors --overwrite</code>" in written(
        found, command=command
    )
    assert "<code>found.codec.save('codec.safetensors')</code>" in written(found)
    none = found | {"codes": [one | {"chosen": False} for one in found["codes"]]}
    text = written(none, command=command)
    assert "isotropy apply" not in text
    assert f"<code>{command}</code>" in text
    assert "What to do" not in written(none)
    assert "chosen" not in [trace.name for trace in charts.compression(none).data]


def test_other_output_is_refused(found):
    for wrong in ({}, found | {"codes": []}, found | {"baseline": None}, found | {"n_bytes": 0}):
        with pytest.raises(InputError, match="compression must be the output of `isotropy compr"):
            charts.compression(wrong)
    broken = found | {"codes": [found["codes"][0] | {"on_frontier": 1}]}
    with pytest.raises(InputError, match=r"codes\[0\].on_frontier must be true or false, got 1"):
        charts.compression(broken)


def test_the_report_shows_it_too(found, rows, tmp_path):
    path = tmp_path / "compress.json"
    path.write_text(json.dumps(found), "utf-8")
    text = report.page(rows, evidence=[path])
    assert "How small can vectors get? cranfield" in text
    assert "Every code, ndcg@10" in text
    assert ATTACK not in text
    assert "nan" not in text.partition("Every code, ndcg@10")[2].partition("</table>")[0]


@pytest.fixture
def opened(browser, found, tmp_path):
    """Opens the page at a width, and fails on anything the console or the network says."""
    contexts, said = [], []
    command = f"isotropy compress {'docs.npy ' * 30} {ATTACK}"
    report.write_compression(found, tmp_path / "page.html", command=command)

    def open_at(width):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: said.append(request.url)
                if not request.url.startswith(("file:", "data:", "blob:")) else None)  # fmt: skip
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("html[data-drawn=yes]")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_is_drawn_and_axe_finds_nothing_serious(opened, axe, width, found):
    page = opened(width)
    heights = page.evaluate("document.getElementById('compression-1')._fullData.map(t => [...t.y])")
    assert [52.9, 52.9] in heights
    assert page.locator("#compression-1 .main-svg").first.bounding_box()["height"] > 300
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("tbody tr").count() == 1 + len(found["codes"])
    for details in page.locator("summary").all():
        details.click()
    page.evaluate(axe)
    result = page.evaluate("axe.run()")
    bad = [v for v in result["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in bad] == []
    assert len(result["passes"]) > 10
