"""isotropy calibrate: what a high cosine is in a space."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from isotropy.cli.common import (
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    JsonOption,
    OverwriteOption,
    RepairOption,
    SchedulerOption,
    SeedOption,
    SkipOption,
    SourceArgument,
    WorkerTimeoutOption,
    beside,
    destination,
    examples,
    json_line,
    opened,
    running,
    say_skipped,
)
from isotropy.errors import InputError
from isotropy.repairs import ScoreCalibrator, load
from isotropy.repairs.calibrator import FEWEST
from isotropy.repairs.files import check_target


@examples(
    "isotropy calibrate vectors.npy --rate 0.001",
    "isotropy calibrate vectors.npy --score 0.83 --repair repair.safetensors --json",
)
def calibrate(
    source: SourceArgument,
    rate: Annotated[
        float, typer.Option(help="Share of unrelated pairs that may pass as matches.")
    ] = 0.01,
    score: Annotated[
        list[float] | None,
        typer.Option(help="A cosine to be judged; several times for more.", min=-1, max=1),
    ] = None,
    repair: RepairOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="File for the calibrator, which `ScoreCalibrator.load` takes."),
    ] = None,
    overwrite: OverwriteOption = False,
    n_pairs: Annotated[int, typer.Option(help="Random pairs of rows.", min=1)] = 1_000_000,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    worker_timeout: WorkerTimeoutOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Say what a high cosine is in this space: the threshold for a false-match rate."""
    if not 0 < rate < 1:
        raise InputError(
            f"--rate must be a number in (0, 1), got {rate:g}. 0.01 is one false match "
            "in a hundred unrelated pairs."
        )
    save = destination(save)
    inputs = {"SOURCE": source, "--repair": repair}
    check_target({"--save": save}, inputs, overwrite=overwrite)
    fitted = None if repair is None else load(repair)
    rows = opened(source, column, chunk_rows, skip_bad_rows)
    with running(engine, device, scheduler, worker_timeout, None) as run:
        calibrator = ScoreCalibrator(n_pairs, seed).fit(rows, repair=fitted)
        n_skipped = run.n_skipped
    expect_pairs(calibrator, rate)
    threshold = calibrator.threshold(rate)
    scores = [
        {"score": one, "p": calibrator.p_value(one), "percentile": calibrator.percentile(one)}
        for one in score or []
    ]
    say_skipped(n_skipped)
    with beside(save):
        if as_json:
            found = {
                "threshold": threshold,
                "false_match_rate": rate,
                "mean": calibrator.mean_,
                "std": calibrator.std_,
                "n_pairs": calibrator.n_pairs_,
                "repair": calibrator.repair_,
                "scores": scores,
            }
            typer.echo(json_line(found))
        else:
            typer.echo(str(calibrator))
            typer.echo(f"threshold for a false-match rate of {rate:g}: {threshold:.4f}")
            for one in scores:
                typer.echo(
                    f"{one['score']:g}: above {one['percentile']:.2f} % of unrelated pairs, "
                    f"p = {one['p']:.2g}"
                )
    if save is not None:
        calibrator.save(save, overwrite=overwrite)


def expect_pairs(calibrator: ScoreCalibrator, rate: float) -> None:
    """Raise where the pairs are too few to tell the rate."""
    n_pairs, n_rows = calibrator.n_pairs_, calibrator.n_samples_seen_
    if n_pairs <= FEWEST:
        raise InputError(
            f"there must be more than {FEWEST} pairs of rows that differ, got {n_pairs} "
            f"of {n_rows:,} rows. Give more rows or --n-pairs."
        )
    if rate * n_pairs * (1 + 1e-12) < FEWEST:
        digit = 10.0 ** (math.floor(math.log10(FEWEST / n_pairs)) - 1)
        least = math.ceil(FEWEST / n_pairs / digit) * digit  # two digits, rounded up
        raise InputError(
            f"--rate must be at least {least:.2g}, as {n_pairs:,} pairs of "
            f"{n_rows:,} rows cannot tell less, got {rate:g}. Raise it, or give more rows or "
            "--n-pairs."
        )
