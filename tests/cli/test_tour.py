"""The command line as a whole: its help as a tour, one wording an option, shell completion."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest
import typer
from typer.testing import CliRunner

from isotropy.cli import TOUR, app
from isotropy.metrics import METRICS
from isotropy.repairs import Repair
from isotropy.tasks import Scorer

COMMANDS = typer.main.get_command(app).commands
# What an option of the same name is for depends on the command; every other has one wording.
SPECIFIC = {
    "--against",  # layers of a model, or a space
    "--data",  # a task, or a folder of sets
    "--device",  # needs --engine, where there is one
    "--group-column",  # of rows, or of a task's texts
    "--max-length",  # of train: as the papers have it
    "--method",  # of repair, or of training
    "--model",  # of reproduce: it has a default
    "--out",  # rows, a chart, a page, a folder
    "--overwrite",  # of train: runs again
    "--part",  # of train: dev or test alone
    "--pool",  # rows of tokens are for files, not for tasks
    "--repair",  # of report: several
    "--repairs",  # of compare at their defaults, of advise searched
    "--save",  # a repair, or a calibrator
    "--seed",  # of repair: of cluster-removal alone
    "--seeds",  # of fits, or of runs
    "--task",  # of advise: none at all diagnoses
    "--text-column",  # of texts several, of a file of vectors one
}


def help_of(*command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    return result.stdout


def joined(text):
    """text without the spaces and breaks that a narrow help puts into it."""
    return "".join(text.split())


def test_every_command_is_under_a_heading_with_its_whole_sentence():
    shown = joined(help_of())
    for heading, commands in TOUR.items():
        assert joined(f"{heading}:{next(iter(commands))}") in shown
        for name, sentence in commands.items():
            assert joined(name + sentence) in shown
            assert COMMANDS[name].help.partition("\n\n")[0].replace("\n", " ") == sentence
    assert {name for commands in TOUR.values() for name in commands} == {*COMMANDS}


def test_the_tour_comes_first_and_fits_a_terminal():
    shown = help_of()
    steps = ["1. isotropy demo", "2. isotropy measure", "3. isotropy ", "4. isotropy "]
    places = [shown.index(step) for step in steps]
    assert places == sorted(places)
    assert places[-1] < shown.index("Options:")
    assert max(map(len, shown.splitlines())) <= 80


def imported_by(*lines):
    """The modules that a new process has imported after it ran these command lines."""
    code = "\n".join(
        [
            "import contextlib, sys",
            "from isotropy.cli import app",
            *(f"with contextlib.suppress(SystemExit): app({line})" for line in lines),
            "print('imported', *sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_no_command_is_imported_before_it_is_called():
    found = imported_by(["--help"], ["--version"], ["mesure"])
    assert "isotropy.cli" in found
    assert not found & {"numpy", "scipy.stats", "sklearn", "pandas", "pyarrow", "torch"}


def test_the_help_of_commands_imports_no_extra():
    found = imported_by(*([name, "--help"] for name in COMMANDS))
    assert not found & {"torch", "transformers", "dask", "plotly", "huggingface_hub", "datasets"}


def test_options_of_one_name_have_one_wording():
    wordings = defaultdict(set)
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.opts[0].startswith("--"):
                wordings[parameter.opts[0]].add(parameter.help)
    several = {name: texts for name, texts in wordings.items() if len(texts) > 1}
    assert several.keys() <= SPECIFIC, several


def test_json_and_seed_are_the_same_everywhere():
    for name, command in COMMANDS.items():
        options = {parameter.opts[0]: parameter for parameter in command.params}
        if "--json" in options:
            assert options["--json"].help.startswith("Print one JSON object;"), name
        if "--seed" in options:
            assert options["--seed"].default in (0, None), name


def completed(*words):
    """What a shell gets for the last of these words."""
    environment = {
        "_ISOTROPY_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["isotropy", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="isotropy")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("mea",), ["measure"]),
        (("measure", "--met"), ["--metrics"]),
        (("measure", "x.npy", "--metrics", "iso"), [n for n in METRICS if n.startswith("iso")]),
        (("measure", "x.npy", "--metrics", "isoscore,mean_c"), ["isoscore,mean_cosine"]),
        (("measure", "x.npy", "--metrics", "loc"), []),  # has an option of its own
        (("repair", "x.npy", "--method", "w"), ["whiten"]),
        (("repair", "x.npy", "--method", "center,r"), ["center,rotate"]),
        (("repair", "x.npy", "--whitening", "z"), ["zca"]),
        (("repair", "x.npy", "--engine", "d"), ["dask"]),
        (
            ("compare", "x.npy", "--repairs", "c"),
            [name for name in (*Repair.by_name, *Scorer.by_name) if name[0] == "c"],
        ),
        (("advise", "x.npy", "--repairs", "token/wh"), ["token/whiten"]),
        (("compare", "x.npy", "--task", "word-s"), ["word-similarity"]),
        (("embed", "bert", "x.txt", "--pool", "cl"), ["cls"]),
        (("compare", "bert", "--pool", "o"), ["own"]),
        (("embed", "bert", "x.txt", "--layer", "f"), ["first-last"]),
    ],
)
def test_names_are_completed(words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell, monkeypatch):
    # or the shell would be the parent process, which may be none
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="isotropy")
    assert result.exit_code == 0
    assert "_ISOTROPY_COMPLETE=" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_after_the_shown_script():
    bin = os.path.dirname(sys.executable)
    lines = [
        'eval "$(isotropy --show-completion bash)"',
        "COMP_WORDS=(isotropy repair x.npy --method whi) COMP_CWORD=4",
        "_isotropy_completion isotropy",
        'echo "${COMPREPLY[@]}"',
    ]
    environment = os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("whiten\n", "")
