"""The report: one self-contained HTML page, and figures as files of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from isotropy._version import __version__
from isotropy.errors import InputError, MissingExtraError, public, without_secrets
from isotropy.geometry import ALONE, Geometry, measure
from isotropy.repairs import Repair, load
from isotropy.report import charts, inputs
from isotropy.report.against import against_sections, opened_old
from isotropy.report.sections import (
    NEEDED,
    Section,
    compression_section,
    compression_steps,
    evidence_section,
    layer_sections,
    opened_layers,
    space_sections,
)
from isotropy.report.views import View, carried, colourings, hover, repaired
from isotropy.sources import as_source, guard, output_path
from isotropy.writing import atomic_write, is_stream, quoted, write_errors

PICTURES = (".svg", ".png", ".pdf")


def check_image(
    path: Any, inputs: dict[str, Any] | None = None, *, overwrite: bool = False, name: str = "path"
) -> Path:
    """The path of a figure; raises if no figure can be written there. Inputs: see `guard`."""
    target = Path(output_path(path, name))
    if target.suffix not in (".html", *PICTURES) or target.is_dir():
        raise InputError(f"{name} must end in .html, {', '.join(PICTURES)}, got {quoted(path)}.")
    guard({name: path}, inputs, overwrite=overwrite)
    if target.suffix in PICTURES and importlib.util.find_spec("kaleido") is None:
        raise MissingExtraError(
            "a picture needs kaleido, which is not installed. "
            'Run: pip install "isotropy[report]", or write .html.'
        )
    return target


@public("report")
def write_image(figure: Any, path: Any, *, overwrite: bool = False) -> None:
    """Write a plotly figure as .html, .svg, .png or .pdf; pictures need Chrome or Chromium.

    The file appears only when it is complete. An existing file is replaced only with `overwrite`.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from isotropy.report import charts, write_image
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(charts.norms(X), f"{folder}/norms.html")
    """
    target = check_image(path, overwrite=overwrite)
    with _browser(), write_errors(target), atomic_write(target, overwrite=overwrite) as part:
        if target.suffix == ".html":
            figure.write_html(part, include_plotlyjs=True)
        else:
            figure.write_image(part, format=target.suffix[1:])


def write_images(figures: Iterable[Any], paths: Sequence[Path], **size: Any) -> None:
    """Write figures as pictures, replacing old ones, with one browser for all; all or none."""
    import plotly.io

    for path in paths:
        check_image(path, overwrite=True)
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context(atomic_write(path)) for path in paths]
        with _browser():
            kinds = [path.suffix[1:] for path in paths]
            plotly.io.write_images(list(figures), parts, format=kinds, **size)


@contextlib.contextmanager
def _browser() -> Iterator[None]:
    """Name what is missing if a picture can't be written for want of a browser."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # kaleido has several kinds for a browser that can't be started
        if "chrom" not in f"{error}".lower():
            raise
        raise MissingExtraError(
            "a picture needs Chrome or Chromium, and neither could be started. Install "
            "one, or write .html."
        ) from error


NUMBERS = {  # metric: (title, how it is written, what it means)
    "mean_cosine": ("mean cosine", ".3f", "of two random rows; near 0 is good"),
    "mean_norm_ratio": ("drift", ".3f", "norm of the mean over mean norm; near 0 is good"),
    "isoscore": ("IsoScore", ".3f", "share of dimensions in use; 1 is all"),
    "partition_isotropy": ("I(W)", ".3g", "smallest over largest partition function; 1 is ideal"),
}


@public("report")
def write(
    X: Any,
    path: Any,
    *,
    repairs: Sequence[Any] = (),
    evidence: Sequence[Any] = (),
    layers: Any = None,
    against: Any = None,
    title: str = "",
    seed: int = 0,
    overwrite: bool = False,
    checkpoint: Any = None,
) -> Geometry:
    """Write the page of a space to one HTML file, and return its geometry.

    The file appears only when it is complete.

    Parameters
    ----------
    X : Geometry, array, tensor, path or source
    path : path
        The HTML file.
    repairs : sequence of Repair or path, optional
        Fitted or saved repairs; a button shows the space after each. Not with a Geometry, which
        has no rows to repair.
    evidence : sequence of Comparison, Advice, Compression or path, optional
        What `compare`, `advise` and `compress` returned, or a file with their --json output.
    layers : path or mapping, optional
        Output of `isotropy layers --json`.
    against : array, path, source or Repair, optional
        An earlier space to draw beside this one: vectors, or a repair, for those it was fitted on.
        Not with a Geometry.
    title : str
        Heading of the page; by default the name of the file.
    seed : int
        Seed for samples, pairs and clusters.
    overwrite : bool
        Replace the file if it exists.
    checkpoint : path, optional
        See `measure`.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from isotropy import Center
    >>> X = np.random.default_rng(0).standard_normal((500, 8)) + 1
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     geometry = write(X, f"{folder}/report.html", repairs=[Center().fit(X)])
    ...     print(open(f"{folder}/report.html").read(15))
    <!doctype html>
    """
    target = check_page(path, X, repairs, evidence, layers, against, overwrite=overwrite)
    if not title:
        is_path = isinstance(X, (str, os.PathLike))
        title = Path(without_secrets(os.fspath(X))).name if is_path else "Embedding space"
    text, geometry = _page(X, title, seed, checkpoint, layers, repairs, evidence, against)
    with write_errors(target), atomic_write(target, overwrite=overwrite) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
    return geometry


def check_page(
    path: Any,
    X: Any = None,
    repairs: Sequence[Any] = (),
    evidence: Sequence[Any] = (),
    layers: Any = None,
    against: Any = None,
    *,
    overwrite: bool = False,
    name: str = "path",
    **options: Any,
) -> Path:
    """The path of the page; raises if it can't be written or is one of the inputs."""
    target = Path(output_path(path, name))
    if not is_stream(target) and (target.suffix not in (".html", ".htm") or target.is_dir()):
        raise InputError(f"{name} must be an .html file, got {quoted(path)}.")
    inputs = {"SOURCE" if name.startswith("--") else "X": X}
    inputs |= {f"repair {i}": one for i, one in enumerate(repairs, 1)}
    inputs |= {f"evidence {i}": one for i, one in enumerate(evidence, 1)}
    inputs |= {"layers": layers, "against": against}
    guard({name: path}, inputs, overwrite=overwrite, **options)
    return target


@public("report")
def page(X: Any, **options: Any) -> str:
    """The HTML of the page; its options are those of `write` that are not about the file."""
    return _page(X, **options)[0]


def _page(
    X: Any,
    title: str = "Embedding space",
    seed: int = 0,
    checkpoint: Any = None,
    layers: Any = None,
    repairs: Sequence[Any] = (),
    evidence: Sequence[Any] = (),
    against: Any = None,
) -> tuple[str, Geometry]:
    fitted = [_fitted(repair) for repair in repairs]
    known = [inputs.opened(found) for found in evidence]
    by_layer = [] if layers is None else layer_sections(opened_layers(layers))
    old = None if against is None else opened_old(against)
    if old is not None and isinstance(X, Geometry):
        raise InputError("against must come with vectors, got a Geometry. Give vectors.")
    views = _views(X, fitted, seed, checkpoint)
    sections = [*space_sections(views), *by_layer]
    if old is not None:
        sections = [*against_sections(as_source(X), views[0], old), *sections]
    gains = [part for part in known if isinstance(part, inputs.Evidence)]
    codes = [part for part in known if isinstance(part, inputs.Codes)]
    sections += [compression_section(part, i) for i, part in enumerate(codes, 1)]
    if gains:
        sections.append(evidence_section(gains))
    first = views[0]
    text = _template("page.html").render(
        title=title,
        version=__version__,
        geometry=first.geometry,
        sampled=first.sampled,
        seed=seed,
        numbers=NUMBERS,
        written=_numbers(first.geometry),
        views=views,
        sections=sections,
        evidence=known,
        colourings=list(colourings(first)),
        data=_data(views, sections),
        style=_static("page.css"),
        script=_static("page.js"),
        plotly=_static("plotly-gl3d.min.js"),
    )
    return text, first.geometry


@public("report")
def write_compression(
    found: Any,
    path: Any,
    *,
    title: str = "",
    command: str = "",
    codec: Any = None,
    overwrite: bool = False,
) -> None:
    """Write a page with the picture of a compression: quality against bytes per vector.

    Parameters
    ----------
    found : Compression, mapping or path
        What `compress` returned, or its --json output.
    path : path
        The HTML file, which appears only when it is complete.
    title : str
        Heading of the page; by default the task.
    command : str
        The command line that found it, to be shown.
    codec : path, optional
        Where the chosen codec is saved, for the commands that use it.
    overwrite : bool
        Replace the file if it exists.
    """
    target = check_page(path, found, overwrite=overwrite)
    codes = inputs.opened_codes(found)
    section, steps = compression_section(codes, 1), compression_steps(codes, command, codec)
    values = {"section": section, "title": title or section.title, "steps": steps}
    text = render("compression.html", {section.name: section.figures[0]}, **values)
    with write_errors(target), atomic_write(target, overwrite=overwrite) as part:
        part.write_text(text, encoding="utf-8", errors="replace")


def _views(X: Any, repairs: Sequence[Repair], seed: int, checkpoint: Any) -> list[View]:
    if isinstance(X, Geometry):
        if repairs:
            raise InputError(
                "repairs must come with vectors, got a Geometry, which has no rows. Give vectors."
            )
        missing = [name for name in NEEDED if name not in X.values]
        if missing:
            raise charts.not_measured(", ".join(missing))
        return [View(X, seed=seed)]
    source = as_source(X)
    first = View(measure(source, random_state=seed, checkpoint=checkpoint), seed=seed)
    first.columns.update(carried(source, first))
    named = zip(_names(repairs), repairs, strict=True)
    return [first, *(repaired(source, repair, name, first) for name, repair in named)]


def _names(repairs: Sequence[Repair]) -> list[str]:
    """The name of the space after each repair; repairs of one kind are numbered."""
    kinds = [repair.name for repair in repairs]
    numbers = [f" ({kinds[: i + 1].count(kind)})" for i, kind in enumerate(kinds)]
    return [
        f"after {kind}{number if kinds.count(kind) > 1 else ''}"
        for kind, number in zip(kinds, numbers, strict=True)
    ]


def _fitted(repair: Any) -> Repair:
    if isinstance(repair, (str, os.PathLike)):
        repair = load(repair)
    if not isinstance(repair, Repair):
        raise InputError(
            f"repairs must be fitted repairs or their files, got {type(repair).__name__}."
        )
    return repair


def _data(views: Sequence[View], sections: Sequence[Section]) -> str:
    """Everything that the script draws."""
    first, *others = views
    after = [  # without the advice to leave it alone
        f"{view.name.capitalize()}: {view.geometry.verdict.removesuffix(ALONE).strip()}"
        for view in others
    ]
    found = {
        "views": [view.name for view in views],
        "numbers": [_numbers(view.geometry) for view in views],
        "verdicts": [first.geometry.verdict, *after],
        "charts": {
            section.name: {
                "figures": [json.loads(figure.to_json()) for figure in section.figures],
                "sentences": section.sentences,
            }
            for section in sections
        },
        "markers": [
            json.loads(charts.coloured(colouring, name).to_json())["data"][0]["marker"]
            for name, colouring in colourings(first).items()
        ],
        "texts": hover(first.columns, len(first.rows)),
    }
    return _script(found)


def render(template: str, figures: Mapping[str, Any], **values: Any) -> str:
    """A page with figures, whose template draws each in the element with its name."""
    found = _template(template).render(
        **values,
        version=__version__,
        data=_script({name: json.loads(figure.to_json()) for name, figure in figures.items()}),
        style=_static("page.css"),
        plotly=_static("plotly-gl3d.min.js"),
    )
    return str(found)


def _script(found: Any) -> str:
    """A value as JSON that can't end the script it stands in."""
    text = json.dumps(found, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _numbers(geometry: Geometry) -> dict[str, str]:
    """The four numbers as they are written; a rounded zero has no sign."""
    return {
        name: format(geometry.values[name], form).replace("-0.000", "0.000")
        if name in geometry.values
        else "not measured"
        for name, (_, form, _) in NUMBERS.items()
    }


def _static(name: str) -> str:
    return (resources.files("isotropy.report") / "static" / name).read_text(encoding="utf-8")


def _template(name: str) -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError(
            'the page needs jinja2, which is not installed. Run: pip install "isotropy[report]".'
        ) from error
    made = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return made.from_string(_static(name))
