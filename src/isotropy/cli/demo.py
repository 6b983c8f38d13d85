"""isotropy demo: two real spaces, measured, repaired, and told apart by a task."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from isotropy import linalg
from isotropy.cli.demo_vectors import SETS, WordVectors
from isotropy.errors import InputError, MissingExtraError
from isotropy.linalg import Floats
from isotropy.measure import measure
from isotropy.repairs import AllButTheTop, Center, ClusterRemoval, Repair, ScaledCenter, Whiten

REPAIRS = (Center(), ScaledCenter(), AllButTheTop(), ClusterRemoval(), Whiten())
N_DRAWS = 2000
SHOWN = ("mean_cosine", "mean_norm_ratio", "partition_isotropy", "isoscore", "effective_rank")


@dataclass(frozen=True)
class Pairs:
    """Word pairs that are in a vocabulary, with the grades people gave them."""

    title: str
    n_listed: int
    rows: NDArray[np.int64]
    grades: Floats


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="ISOTROPY_DATA",
            help="Folder with wordsim/men3000.tsv and wordsim/simlex999.tsv, scored too if given.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder that the recommended repair is saved to.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of clustering and bootstrap.", min=0)] = 0,
) -> None:
    """Measure and repair two real embedding spaces that come inside packages.

    One space gains from repair, the other should be left alone; a list of graded word pairs
    tells which.

    Examples:

      isotropy demo

      isotropy demo --data folder/of/sets --out repairs
    """
    console = Console(width=None if os.isatty(1) else 110)
    lists = _pair_files(data)
    shown = 0
    for name, load in SETS.items():
        try:
            words = load()
        except MissingExtraError as error:
            console.print(f"[yellow]{name} is left out.[/] {error}\n")
            continue
        _present(console, words, lists, out, seed)
        shown += 1
    if not shown:
        raise typer.Exit(2)
    console.print(
        "Next: isotropy.measure(your_vectors) prints the same for your own; "
        "repair.save(path) ships the repair."
    )


def _present(
    console: Console, words: WordVectors, files: dict[str, Any], out: Path | None, seed: int
) -> None:
    start = time.perf_counter()
    geometry = measure(words.vectors)
    seconds = time.perf_counter() - start
    n, d = words.vectors.shape
    console.rule(f"[bold]{words.title}[/]: {n:,} x {d}, measured in {seconds:.1f} s")
    console.print(
        ", ".join(f"{name.replace('_', ' ')} {geometry.values[name]:.3g}" for name in SHOWN)
    )
    console.print(geometry.verdict, style="italic")
    lists = [_pairs(title, file, words) for title, file in files.items()]
    table = Table("repair", *(f"{p.title}\n{len(p.grades)} of {p.n_listed} pairs" for p in lists))
    before = [_cosines(words.vectors, pairs) for pairs in lists]
    table.add_row("none", *(f"{_pearson(c, p.grades):.1f}" for c, p in _zip(before, lists)))
    lows: list[tuple[float, Repair]] = []
    for template in REPAIRS:
        repair = _seeded(template, seed).fit(words.vectors)
        cells = []
        for i, pairs in enumerate(lists):
            after = _cosines(repair.transform(words.vectors), pairs)
            low, high = _interval(before[i], after, pairs.grades, seed)
            score = _pearson(after, pairs.grades)
            gain = score - _pearson(before[i], pairs.grades)
            cells.append(f"{score:.1f} {gain:+.1f} [{low:+.1f}, {high:+.1f}]")
            if i == 0:
                lows.append((low, repair))
        table.add_row(repair.name, *cells)
    console.print(table)
    console.print(
        f"Pearson x 100 of cosines with the grades; gain over none with its interval "
        f"({N_DRAWS} paired bootstrap draws, seed {seed}, 95 % over the {len(REPAIRS)} repairs "
        "together).",
        style="dim",
    )
    _advise(console, lows, out)


def _advise(console: Console, lows: list[tuple[float, Repair]], out: Path | None) -> None:
    low, best = max(lows, key=lambda item: item[0])
    if low <= 0:
        console.print("[bold green]Leave it alone[/]: no repair gains more than chance would.\n")
        return
    console.print(
        f"[bold green]Repair it[/] with {best!r}: at least {low:+.1f} points on the demo pairs."
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{best.name}.safetensors"
        best.save(path, note="isotropy demo")
        console.print(f"Saved to {path}; isotropy.load brings it back.")
    console.print()


def _seeded(template: Repair, seed: int) -> Repair:
    params: dict[str, Any] = template.get_params()
    return type(template)(**(params | ({"random_state": seed} if "random_state" in params else {})))


def _pair_files(data: Path | None) -> dict[str, Any]:
    files: dict[str, Any] = {"demo pairs": resources.files("isotropy.cli") / "data/word_pairs.tsv"}
    if data is not None:
        files["MEN"] = data / "wordsim" / "men3000.tsv"
        files["SimLex-999"] = data / "wordsim" / "simlex999.tsv"
    for file in files.values():
        if not file.is_file():
            raise InputError(f"demo: --data must hold the word-pair sets, and there is no {file}.")
    return files


def _pairs(title: str, file: Any, words: WordVectors) -> Pairs:
    with file.open(encoding="utf-8", newline="") as lines:
        listed = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    known = [r for r in listed if r["word1"] in words.row_of and r["word2"] in words.row_of]
    rows = [(words.row_of[r["word1"]], words.row_of[r["word2"]]) for r in known]
    return Pairs(title, len(listed), np.array(rows), np.array([float(r["score"]) for r in known]))


def _cosines(vectors: NDArray[Any], pairs: Pairs) -> Floats:
    left, right = (linalg.unit_rows(vectors[pairs.rows[:, i]].astype(np.float64)) for i in (0, 1))
    cosines: Floats = np.einsum("ij,ij->i", left, right)
    return cosines


def _pearson(cosines: Floats, grades: Floats) -> float:
    return 100 * float(np.corrcoef(cosines, grades)[0, 1])


def _interval(before: Floats, after: Floats, grades: Floats, seed: int) -> tuple[float, float]:
    """Paired bootstrap interval of the gain, at a level that holds over all repairs."""
    random = np.random.default_rng(seed)
    gains = np.empty(N_DRAWS)
    for i in range(N_DRAWS):
        drawn = random.integers(len(grades), size=len(grades))
        gains[i] = _pearson(after[drawn], grades[drawn]) - _pearson(before[drawn], grades[drawn])
    tail = 0.025 / len(REPAIRS)
    low, high = np.quantile(gains, (tail, 1 - tail))
    return float(low), float(high)


def _zip(cosines: list[Floats], lists: list[Pairs]) -> Iterator[tuple[Floats, Pairs]]:
    return zip(cosines, lists, strict=True)
