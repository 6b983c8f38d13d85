"""The code blocks of a Markdown page, run in order in the current folder.

    python tests/docs/blocks.py PAGE [--show]

Blocks of python share one namespace. In blocks of console, lines that begin with "$ " are commands
and the others what they print; a block of text just below one of python is what that prints. What
is shown must be what is printed: the same words, and numbers within 2 %. A line of "..." stands for
any lines. A comment `<!-- not run: REASON -->` above a block leaves it out; `<!-- output differs:
REASON -->` runs it without comparing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

RUN = ("python", "console", "sh", "bash")
SHOWN = ("text", "toml", "yaml", "json")
FENCE = re.compile(r"^ *(```+)(\w*).*$")
SHELL = re.compile(r"[|&;<>$\\\n]")
MARK = re.compile(r"<!-- (not run|output differs): (.+) -->")
NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
NEAR = 3  # lines below a block of python in which its output begins
TOLERANCE, LEAST = 0.02, 0.002
ELSEWHERE = {  # commands that set up an environment, which is there when these blocks run
    "make": "the Makefile's targets are what CI runs",
    "pip": "installs",
    "source": "activates an environment",
}


@dataclass
class Block:
    """A fenced block: where it begins, what it is, and why it is not run or not compared."""

    line: int
    language: str
    text: str
    not_run: str = ""
    differs: str = ""
    output: str | None = None


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if not fence:
            number += 1
            continue
        ticks, language = fence.groups()
        end = number + 1
        while lines[end].strip() != ticks:
            end += 1
        text = textwrap.dedent("\n".join(lines[number + 1 : end]))
        above = MARK.search("\n".join(lines[max(0, number - 2) : number]))
        marks = {above[1]: above[2]} if above else {}
        found.append(
            Block(
                number + 1,
                language or guessed(text),
                text,
                marks.get("not run", ""),
                marks.get("output differs", ""),
            )
        )
        number = end + 1
    for block, below in pairwise(found):
        end = block.line + block.text.count("\n") + 2
        if block.language == "python" and below.language == "text" and below.line - end <= NEAR:
            block.output = below.text
    return found


def guessed(text: str) -> str:
    """What a block without a language is: commands, or output."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("$ "):
        return "console"
    return "sh" if all(line.split()[0] in ("isotropy", *ELSEWHERE) for line in lines) else "text"


def commands(text: str) -> list[tuple[str, str]]:
    """Commands of a console block, each with the output that is shown."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            command, _ = found.pop()
            found.append((f"{command}\n{line.removeprefix('> ')}", []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(output).strip()) for command, output in found]


def alike(shown: str, printed: str) -> bool:
    """Whether the words are the same and the numbers near; a line of "..." is anything."""
    parts = [part.split() for part in re.split(r"(?m)^\s*\.\.\.\s*$", shown)]
    words = printed.split()
    starts = [0]  # where the part at hand may begin
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        ends = [
            start + len(part)
            for start in starts
            if all(map(same, part, words[start : start + len(part)]))
            and start + len(part) <= len(words)
        ]
        if last:
            return len(words) in ends
        starts = list(range(min(ends), len(words) + 1)) if ends else []
    return False


def same(shown: str, printed: str) -> bool:
    """Whether two words are the same but for numbers that are near."""
    if NUMBER.split(shown) != NUMBER.split(printed):
        return False
    return all(map(near, NUMBER.findall(shown), NUMBER.findall(printed)))


def near(shown: str, printed: str) -> bool:
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) + LEAST


class Differs(Exception):
    """What is shown is not what is printed, or a command fails."""


def run(page: Path, show: bool = False) -> None:
    """Run the blocks of a page in the current folder."""
    began = time.perf_counter()
    module = sys.modules["page"] = ModuleType("page")  # so that its classes can be pickled
    namespace = vars(module)
    for block in blocks(page):
        if block.language not in RUN or block.not_run:
            continue
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            results = [(block.text, block.output, python(block.text, namespace, where))]
        elif block.language == "console":
            results = [(c, shown, shell(c, where)) for c, shown in commands(block.text)]
        else:
            results = [(block.text, None, shell(block.text, where))]
        for source, shown, printed in results:
            if show:
                print(
                    f"--- {where} {time.perf_counter() - began:.1f} s\n{source}\n{printed[0]}",
                    flush=True,
                )
                print(printed[1], file=sys.stderr, flush=True)
            wrong = shown and not any(alike(shown, text) for text in printed)
            if wrong and not block.differs and not show:
                raise Differs(f"{where}: {source}\nshows\n{shown}\nbut prints\n{printed[0]}")


def python(code: str, namespace: dict[str, object], where: str) -> tuple[str, ...]:
    """What the code prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, where, "exec"), namespace)
    return (printed.getvalue(), "")


def shell(source: str, where: str) -> tuple[str, ...]:
    """What the commands print: on standard output, and with standard error before or after it."""
    lines = [line for line in source.splitlines() if line.split()[:1] and not elsewhere(line)]
    if not lines:
        return ("", "")
    if len(lines) == 1 and lines[0].startswith("isotropy ") and not SHELL.search(lines[0]):
        code, out, err = beside().submit(isotropy, shlex.split(lines[0])[1:]).result()
    else:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    if code:
        raise Differs(f"{where}: {source}\nends with {code}\n{out}\n{err}")
    return (out, err, err + out, out + err)


@cache
def beside() -> ProcessPoolExecutor:
    """A process for commands, which imports what they need once, and not into the blocks'."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def isotropy(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code and output of the command."""
    from typer.testing import CliRunner

    from isotropy.cli import app

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = CliRunner().invoke(app, arguments, prog_name="isotropy")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def elsewhere(line: str) -> bool:
    return line.split()[0] in ELSEWHERE


if __name__ == "__main__":
    from isotropy.errors import IsotropyWarning

    warnings.simplefilter("error", IsotropyWarning)
    os.environ |= {"COLUMNS": "110", "TERM": "dumb"}
    try:
        run(Path(sys.argv[1]), "--show" in sys.argv)
    except Differs as error:
        sys.exit(str(error))
    finally:
        if beside.cache_info().currsize:
            beside().shutdown()
