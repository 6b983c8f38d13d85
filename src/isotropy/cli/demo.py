"""isotropy demo: two real spaces, measured, repaired and tested."""

from __future__ import annotations

import os
import shlex
import shutil
import time
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console
from rich.markup import escape
from typer import Option

from isotropy.cli.common import OverwriteOption, SeedOption, command
from isotropy.errors import InputError, IsotropyWarning, MissingExtraError, reason
from isotropy.examples import SETS, WordVectors
from isotropy.geometry import measure
from isotropy.models import KeyedVectors
from isotropy.repairs import AllButTheTop
from isotropy.tables import text_table
from isotropy.writing import atomic_write, mark, quoted, write_errors, written_by_us

SHOWN = ("mean_cosine", "mean_norm_ratio", "partition_isotropy", "isoscore", "effective_rank")
COMPARED = ("center", "scaled-center", "all-but-the-top", "whiten", "cluster-removal")
WRITTEN = (".parquet", "-repair.safetensors", ".html")  # files of a space
BUDGET = 8  # repairs that advise tries


@command("isotropy demo", "isotropy demo --space wordllama --out shown")
def demo(
    space: Annotated[
        str | None, Option(help=f"Only one space: {' or '.join(SETS)}.", show_default=False)
    ] = None,
    out: Annotated[Path, Option(help="Folder for the vectors, pages and repairs.")] = Path(
        "isotropy-demo"
    ),
    overwrite: OverwriteOption = False,
    seed: SeedOption = 0,
) -> None:
    """Measure, repair and test two real embedding spaces.

    Their vectors come with Python packages, so nothing is downloaded. One space gains from a
    repair, the other should be left alone; a list of word pairs with human ratings tells which.
    Files of an earlier demo are replaced, others are not.
    """
    if space is not None and space not in SETS:
        raise InputError(f"--space must be one of {', '.join(SETS)}, got {space!r}.")
    console = Console(width=None if os.isatty(1) else 110)
    begun = time.perf_counter()
    names = [space] if space else list(SETS)
    pairs = prepared(out, names, overwrite)
    seen = []
    for name in names:
        try:
            words = SETS[name]()
        except MissingExtraError as error:
            console.print(f"[yellow]{name} was left out:[/] {escape(str(error))}\n")
            continue
        _present(console, name, words, pairs, out, seed)
        seen.append(name)
    if not seen:
        raise typer.Exit(2)
    first = shlex.quote(str(out / f"{seen[0]}.parquet"))
    console.print(f"This took {time.perf_counter() - begun:.0f} s. What to try next:", style="bold")
    for line in (
        f"isotropy measure {first}",
        f"isotropy calibrate {first} --score 0.6",
        f"isotropy repair {first} --method all-but-the-top --out fixed.parquet",
        "isotropy report YOUR_VECTORS.npy",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def _present(
    console: Console, name: str, words: WordVectors, pairs: Path, out: Path, seed: int
) -> None:
    from isotropy.evidence import HEAD, advise, cells, compare
    from isotropy.tasks import WordSimilarity

    rows = words.vectors[list(words.row_of.values())]
    vectors = KeyedVectors(rows, list(words.row_of))
    start = time.perf_counter()
    geometry = measure(rows, random_state=seed)
    seconds = time.perf_counter() - start
    n, d = rows.shape
    console.rule(f"[bold]{words.title}[/]: {n:,} x {d}, measured in {seconds:.1f} s")
    console.print(
        ", ".join(f"{name.replace('_', ' ')} {geometry.values[name]:.3g}" for name in SHOWN)
    )
    console.print(geometry.verdict, style="italic")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        task = WordSimilarity.read(pairs).known(vectors)
        compared = compare(vectors, task, COMPARED, seeds=1, seed=seed)
        advice = advise(vectors, task, budget=BUDGET, seed=seed)
    console.print(text_table(HEAD, map(cells, compared.results), {1, 2}), highlight=False)
    console.print(
        f"Correlation ({compared.results[0].metric}, x 100) of cosines with the ratings of "
        f"{compared.results[0].n_items} word pairs, and the gain over no repair. Repairs were "
        f"fitted on the other words; seed {seed}.",
        style="dim",
    )
    console.print(str(advice), style="bold green", highlight=False)
    repair = advice.repair
    if repair is not None:
        path = out / f"{name}-repair.safetensors"
        repair.save(path, note="isotropy demo", overwrite=True)
        mark(out, [path.name])
        console.print(f"The repair: {path}", soft_wrap=True, markup=False)
    drawn = AllButTheTop().fit(rows) if repair is None else repair
    write_rows(out / f"{name}.parquet", words)
    page = out / f"{name}.html"
    try:
        from isotropy.report import write
    except MissingExtraError as error:
        console.print(f"[yellow]The page was left out.[/] {escape(str(error))}\n")
        return
    write(
        vectors,
        page,
        repairs=[drawn],
        evidence=[compared, advice],
        title=words.title,
        seed=seed,
        overwrite=True,
    )
    mark(out, [page.name])
    console.print(f"The page:   {page}\n", soft_wrap=True, markup=False)


def prepared(out: Path, spaces: Sequence[str], overwrite: bool) -> Path:
    """Make the folder and its file of word pairs; raise if other files are in the way."""
    written = {"pairs.tsv", *(f"{space}{end}" for space in spaces for end in WRITTEN)}
    for name in sorted(written - written_by_us(out)):
        if os.path.lexists(out / name) and not overwrite:
            raise InputError(
                f"--out must not hold a {quoted(name)} that the demo did not write, or that "
                f"was changed since, got {quoted(out)}. Add --overwrite to replace it."
            )
    pairs = out / "pairs.tsv"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {quoted(out)} could not be created ({reason(error)}). Choose another."
        ) from error
    with (
        resources.as_file(resources.files("isotropy.cli") / "data/word_pairs.tsv") as file,
        write_errors(pairs),
    ):
        with atomic_write(pairs) as part:
            shutil.copyfile(file, part)
        mark(out, [pairs.name])
    return pairs


def write_rows(path: Path, words: WordVectors) -> None:
    rows = words.vectors[list(words.row_of.values())]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    with write_errors(path):
        with atomic_write(path) as part:
            pq.write_table(pa.table({"word": list(words.row_of), "vector": vectors}), part)
        mark(path.parent, [path.name])
