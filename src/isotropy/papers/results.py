"""Results of experiments as files: result.json, Markdown, PNG and interactive HTML."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isotropy._version import __version__
from isotropy.errors import MissingExtraError
from isotropy.papers.experiment import Experiment, Findings, Layout, Paper, Record
from isotropy.papers.settings import Settings
from isotropy.report import render, write_images
from isotropy.tables import finite
from isotropy.writing import atomic_write, write_errors

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "transformers")
PICTURE = {"width": 900, "height": 480, "scale": 2}
PUBLISHED = " (paper)"


def result(
    settings: Settings, findings: Findings, models: Sequence[str], missing: list[str]
) -> Any:
    """Everything that result.json holds."""
    experiment = settings.experiment
    return finite({
        "experiment": experiment.full_name,
        "paper": experiment.paper.title,
        "shows": experiment.shows,
        "title": experiment.title,
        "command": command(settings, models),
        "models": [given_name(settings, model) for model in models],
        "data": settings.fingerprints(),
        "options": dict(settings.options),
        "seeds": settings.seeds,
        "quick": settings.quick,
        "versions": versions(),
        "missing": missing,
        "notes": findings.notes,
        "records": findings.records,
        "published": list(experiment.published),
    })  # fmt: skip


def given_name(settings: Settings, model: str) -> str:
    """The model as it can be named elsewhere: a folder of the user's by its last part."""
    own = settings.location(model) == model and os.path.isdir(model)
    return Path(model).name if own else model


def command(settings: Settings, models: Sequence[str]) -> str:
    """The command that makes the result; folders are where the user has them."""
    words = ["isotropy reproduce", settings.experiment.full_name]
    if not settings.experiment.trained:
        words += [f"--model {given_name(settings, model)}" for model in models]
    if settings.quick:
        words.append("--quick")
    if settings.seeds != settings.experiment.seeds:
        words.append(f"--seeds {settings.seeds}")
    if settings.records is not None:
        words.append(f"--records {settings.records.name}")
    return " ".join([*words, "--data DATA --out OUT"])


def versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers."""
    found = {"isotropy": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def tables(
    experiment: Experiment, records: Iterable[Record]
) -> list[tuple[Layout, list[str], list[list[str]]]]:
    """Each layout's head and rows; the paper's figures stand under ours, or inside the cells if \
    the model is the paper's own."""
    ours = list(records)
    known = {Path(one["model"]).name for one in ours if "model" in one}
    own, others = [], []
    for one in experiment.published:
        name = experiment.paper.models.get(one.get("model", ""), "")
        if Path(name).name in known and name:
            own.append(one | {"model": next(m for m in known if m == Path(name).name)})
        else:
            others.append(one | ({"model": f"{one['model']}{PUBLISHED}"} if "model" in one else {}))
    found = []
    for layout in experiment.layouts:
        head, rows = _pivot(layout, ours, own, others)
        if rows:
            found.append((layout, head, rows))
    return found


def _pivot(
    layout: Layout, ours: list[Record], own: list[Record], others: list[Record]
) -> tuple[list[str], list[list[str]]]:
    shown = [
        [one for one in part if not layout.measures or one.get("measure") in layout.measures]
        for part in (ours, own, others)
    ]
    everything = [*shown[0], *shown[2]]
    needed = {*layout.rows, *layout.columns} - {"measure"}
    everything = [one for one in everything if needed <= {*one} | {"model"}]
    columns = list(dict.fromkeys(_place(one, layout.columns) for one in everything))
    rows = list(dict.fromkeys(_place(one, layout.rows) for one in everything))
    cells = {(_place(o, layout.rows), _place(o, layout.columns)): o for o in everything}
    beside = {(_place(o, layout.rows), _place(o, layout.columns)): o for o in shown[1]}
    head = [*layout.rows, *(", ".join(filter(None, map(_text, column))) for column in columns)]
    body = [
        [
            *map(_text, row),
            *(_cell(layout, cells.get((row, c)), beside.get((row, c))) for c in columns),
        ]
        for row in rows
    ]
    return head, body


def _place(one: Record, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(one.get(key, "") for key in keys)


def _text(value: Any) -> str:
    return str(
        Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value
    )


def _cell(layout: Layout, one: Record | None, beside: Record | None) -> str:
    """A value with its interval; with the paper's value and the difference if it has one."""
    if one is None:
        return ""
    form = layout.forms.get(str(one.get("measure")), ".4g")
    text = written(one["value"], form) + str(one.get("mark", ""))
    if one.get("low") is not None and math.isfinite(one["low"]):
        text += f" ({written(one['low'], form)} to {written(one['high'], form)})"
    if beside is not None and one["value"] is not None:
        change = format(one["value"] - beside["value"], "+" + form.removeprefix("+"))
        text += f"; paper {written(beside['value'], form)} ({change})"
    return text


def written(value: float | None, form: str) -> str:
    return "undefined" if value is None or math.isnan(value) else format(value, form)


def markdown(experiment: Experiment, found: dict[str, Any], pictures: Sequence[str]) -> str:
    """The page of an experiment in Markdown."""
    lines = [
        f"# {experiment.title}",
        "",
        f"{experiment.shows[:1].upper()}{experiment.shows[1:]} of {experiment.paper.authors} "
        f"{experiment.paper.year}, *{experiment.paper.title}*.",
        "",
        f"**The claim.** {experiment.claim}",
        "",
        f"**What is computed.** {experiment.about}",
        "",
    ]
    for layout, head, rows in tables(experiment, found["records"]):
        lines += [f"**{layout.title}**", ""] if layout.title else []
        lines += [*_markdown_table(head, rows), ""]
    lines += [f"![{_spaced(name)}]({name}.png)\n" for name in pictures]
    remarks = [*found["notes"], *found["missing"], *experiment.remarks]
    lines += [f"- {note}" for note in remarks] + ([""] if remarks else [])
    lines += [f"Made with `{found['command']}`: {provenance(found)}.", ""]
    return "\n".join(lines)


def provenance(found: dict[str, Any]) -> str:
    """Models, data, seeds and versions in a line."""
    seeds = f"{found['seeds']} {'seed' if found['seeds'] == 1 else 'seeds'}"
    parts = [", ".join(found["models"]) or "no model", ", ".join(found["data"]) or "no data", seeds]
    parts.append(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
    if found["seeds"] > 1:
        parts.append("a bracket is a 95 % interval over seeds")
    return "; ".join(parts)


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def _spaced(name: str) -> str:
    return re.sub(r"[-_]+", " ", name)


def write(settings: Settings, found: dict[str, Any], figures: dict[str, Any]) -> list[str]:
    """Write result.json, README.md and the figures; remarks on what could not be written."""
    folder = settings.out
    remarks = []
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _save(folder / "result.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
        for name, figure in figures.items():
            _save(folder / f"{name}.html", figure.to_html(include_plotlyjs=True))
        pictures = list(figures)
        if figures and (why := _write_pictures(folder, figures)):
            remarks.append(why)
            pictures = []
        _save(folder / "README.md", markdown(settings.experiment, found, pictures))
    return remarks


def _save(path: Path, text: str) -> None:
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def _write_pictures(folder: Path, figures: dict[str, Any]) -> str:
    """Write all figures as PNG with one browser; why not, if there is no browser."""
    try:
        write_images(figures.values(), [folder / f"{name}.png" for name in figures], **PICTURE)
    except MissingExtraError as error:
        return f"no pictures: {error}"
    return ""


def paper_page(
    paper: Paper, folder: Path, done: Sequence[tuple[Experiment, dict[str, Any], dict[str, Any]]]
) -> None:
    """Write index.html, with every experiment of a paper that was run, and README.md."""
    sections = [
        {
            "name": one.name,
            "title": one.title,
            "shows": one.shows,
            "claim": one.claim,
            "about": one.about,
            "tables": [
                (layout.title, head, rows) for layout, head, rows in tables(one, found["records"])
            ],
            "figures": list(figures),
            "remarks": [*found["notes"], *found["missing"], *one.remarks],
            "made": f"{found['command']}: {provenance(found)}",
        }
        for one, found, figures in done
    ]
    drawn = {
        f"{one.name}-{name}": figure for one, _, figures in done for name, figure in figures.items()
    }
    _save(
        folder / "index.html",
        render("paper.html", figures=drawn, paper=paper, sections=sections),
    )
    rows = [[f"[{one.name}]({one.name}/README.md)", one.shows, one.title] for one, _, _ in done]
    lines = [f"# {paper.title}", "", f"{paper.authors} {paper.year}. {paper.about}", ""]
    lines += [*_markdown_table(["experiment", "in the paper", "what it shows"], rows), ""]
    _save(folder / "README.md", "\n".join([*lines, "```bibtex", paper.bibtex.strip(), "```", ""]))
