"""The page as a file: whole, small, escaped, and clear about bad input."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

import isotropy
from isotropy import evidence, report, tasks
from isotropy.errors import InputError
from isotropy.report.inputs import Evidence, Gain, opened
from isotropy.report.page import _views
from isotropy.report.sections import evidence_section, space_sections
from isotropy.report.views import hover

from .conftest import ATTACK

MEGABYTES = 1_000_000


def data_of(text):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found)


def test_a_geometry_writes_its_page(rows, tmp_path):
    isotropy.measure(rows).report(tmp_path / "page.html", title="mine")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<h1>mine</h1>" in text
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]


def test_the_same_input_gives_the_same_page(table, repairs):
    assert report.page(table, repairs=repairs) == report.page(table, repairs=repairs)


def test_text_cannot_leave_its_place(table, repairs):
    text = report.page(table, repairs=repairs, title=ATTACK)
    assert "<img" not in text.split("<script>")[0]
    assert text.count("</script>") == 3
    found = data_of(text)
    assert any(ATTACK in line for line in found["texts"])


def test_nothing_is_fetched(table):
    text = report.page(table)
    shown = text.split("<script>")[0]
    assert not re.findall(r'(?:src|href)="(?!data:|#)', shown)
    assert "connect-src" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("n", [2_000, 60_000])
def test_the_size_does_not_grow_with_the_rows(n, tmp_path):
    X = np.random.default_rng(0).standard_normal((n, 32)).astype(np.float32) + 1
    report.write(X, tmp_path / "page.html")
    size = (tmp_path / "page.html").stat().st_size
    assert size < 2.3 * MEGABYTES
    words = "all 2,000 rows" if n == 2_000 else "a sample of 2,000 of 60,000 rows (seed 0)"
    assert words in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["page.txt", "no/such/page.html", ""])
def test_a_bad_path_is_refused_before_anything_is_read(name, tmp_path):
    with pytest.raises(InputError, match=r"path must be (an \.html file|in an existing folder)"):
        report.write(np.full((2, 2), np.nan), tmp_path / name)


def test_a_failed_page_leaves_the_old_one(rows, tmp_path):
    (tmp_path / "page.html").write_text("old")
    missing = [tmp_path / "missing.json"]
    with pytest.raises(InputError):
        report.write(rows, tmp_path / "page.html", evidence=missing, overwrite=True)
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_geometry_takes_no_repairs(rows, repairs):
    with pytest.raises(InputError, match="repairs must come with vectors"):
        report.page(isotropy.measure(rows), repairs=repairs)


@pytest.mark.parametrize("found", [[], {"results": []}, {"results": [{}]}, {"choice": 1}, 3])
def test_evidence_of_another_kind_is_refused(found):
    with pytest.raises(InputError, match="evidence must be the output of"):
        opened(found)


def test_advice_becomes_gains(rows):
    random = np.random.default_rng(0)
    signal = random.standard_normal((300, 8))
    X = np.concatenate([signal, 3 * random.standard_normal((300, 8)) + 5], axis=1)
    pairs = random.integers(0, 300, (150, 2))
    scores = [float(signal[i] @ signal[j]) for i, j in pairs]
    task = tasks.STS([(str(i), str(j)) for i, j in pairs], scores, name="planted")
    order = [int(text) for text in task.texts]
    advice = evidence.advise(X[order], task, budget=3)
    found = opened(advice)
    assert found.words == advice.reason
    assert str(advice).startswith(f"{found.conclusion}\n")
    assert found.baselines == {"planted, advised": pytest.approx(100 * advice.baseline, abs=1e-3)}
    inside = [gain for gain in found.gains if "while choosing" in gain.task]
    assert [gain.difference for gain in inside] == [c["difference"] for c in advice.candidates[1:]]
    assert opened(json.loads(json.dumps(advice.to_dict()))) == found


def test_many_long_columns_keep_the_page_small(rows):
    random = np.random.default_rng(0)
    view = report.View(isotropy.measure(random.standard_normal((2000, 4))))
    columns = {f"column {i}": ["<\u00e9" * 100] * 2000 for i in range(12)}
    lines = hover(columns, len(view.rows))
    assert 6 * sum(map(len, lines)) < 4 * MEGABYTES


def test_text_that_is_no_unicode_is_written(rows, tmp_path):
    report.write(rows, tmp_path / "page.html", title="a\udcff")
    assert "<h1>a?</h1>" in (tmp_path / "page.html").read_text("utf-8")


def test_a_folder_that_cannot_be_written_is_one_line(rows, tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("isotropy.writing.NewFile.begin", refused)
    with pytest.raises(InputError, match=r"could not be written: Permission denied"):
        report.write(rows, tmp_path / "page.html")


def test_repairs_of_one_kind_are_told_apart(rows):
    repairs = [isotropy.Whiten().fit(rows), isotropy.Center().fit(rows),
               isotropy.Whiten(method="pca", n_components=3).fit(rows)]  # fmt: skip
    found = data_of(report.page(rows, repairs=repairs))
    assert found["views"] == ["as it is", "after whiten (1)", "after center", "after whiten (2)"]


@pytest.mark.parametrize("name", ["effective_rank", "partition_isotropy", "mean_cosine"])
def test_a_geometry_without_a_metric_says_which(rows, name):
    rest = [metric for metric in isotropy.measure(rows).values if metric != name]
    with pytest.raises(InputError, match=f"report: the geometry must have {name}, which was not"):
        report.page(isotropy.measure(rows, rest))


@pytest.mark.parametrize(
    "found", [3, {}, {"models": 3}, {"models": [{}]},
              {"models": [{"model": "a", "first_token": None, "layers": [{"layer": 0}]}]}]
)  # fmt: skip
def test_layers_of_another_kind_are_refused(rows, found):
    with pytest.raises(
        InputError, match="report: layers must be the output of `isotropy layers --json`"
    ):
        report.page(rows, layers=found)


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
def test_sentences_of_small_spaces_have_numbers():
    def words(X):
        return {
            name: chart["sentences"][0] for name, chart in data_of(report.page(X))["charts"].items()
        }

    found = words(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert found["dimensions"].startswith("The mean cosine is -1.00")
    assert found["explained_variance"] == "The first component explains 100.0 % of the variance."
    assert found["spectrum"].startswith("The largest singular value is 1.41, the next 0,")
    found = words(np.zeros((4, 3)))
    assert found["dimensions"].startswith("The mean cosine is undefined")
    assert isotropy.measure(np.zeros((4, 3))).verdict.startswith("No problems found;")
    assert "nan" not in words(np.ones((3, 1)))["spectrum"]


def test_gains_without_an_interval_are_listed_without_one(rows):
    none = {"task": "t", "metric": "m", "repair": "none", "method": "none", "score": 1.0,
            "difference": 0.0, "interval": [0.0, 0.0], "p_holm": 1.0, "fitted_on": ""}  # fmt: skip
    gain = none | {"repair": "center", "method": "center", "interval": [None, None], "p_holm": None}
    text = report.page(rows, evidence=[{"results": [none, gain], "notes": []}])
    assert "nan" not in text.split("<tbody>")[1].split("</tbody>")[0]


def test_names_of_many_tasks_leave_room_for_their_gains():
    rows = [Gain(f"task {i}", "m", "center", 1.0, 0.5, (0.0, 1.0), 0.1) for i in range(12)]
    parts = [Evidence("", "", "", tuple(part), {}, "p") for part in (rows[:1], rows)]
    one, many = (evidence_section([part]).figures[0].layout.height for part in parts)
    assert many > one + 100


@pytest.mark.parametrize("seed", [0, 3])
def test_the_code_of_within_clusters_gives_its_numbers(rows, seed):
    X = np.concatenate([rows, rows[::-1] + 1])
    views = _views(X, [], seed, None)
    (section,) = (s for s in space_sections(views) if s.name == "local")
    found = eval(section.code, {"isotropy": isotropy, "X": X})
    assert found == views[0].local
    points = {trace.name: list(trace.x) for trace in section.figures[0].data}
    assert points == {
        "all rows": [whole for whole, _ in found.values()],
        "within clusters": [within for _, within in found.values()],
    }
