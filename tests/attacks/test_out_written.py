"""Writing that fails, is stopped or meets another: whole or not at all, and nothing left behind."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import isotropy
from isotropy import writing
from isotropy.errors import InputError
from isotropy.sources import open_sink
from isotropy.writing import atomic_write

X = np.random.default_rng(0).standard_normal((40, 4))
FITTED = isotropy.Center().fit(X)
REPAIR = ("repair", "x.npy", "--method", "center")
APPLY = ("apply", "r.safetensors", "x.npy")
PATIENCE = 240  # seconds, on a machine with much else to do


@pytest.fixture
def files(folder):
    np.save("x.npy", X)
    FITTED.save("r.safetensors")
    return folder


def names(folder="."):
    return sorted(os.listdir(folder))


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


# Links, modes and names


def test_a_link_stays_and_its_target_is_replaced(files, run):
    os.mkdir("far")
    (files / "far" / "y.npy").write_bytes(b"old")
    os.symlink("far/y.npy", "link.npy")
    assert run(*APPLY, "--out", "link.npy", "--overwrite").exit_code == 0
    assert os.readlink("link.npy") == "far/y.npy"
    assert len(np.load("far/y.npy")) == 40
    assert names("far") == ["y.npy"]


def test_a_link_that_leads_nowhere_gets_its_target(files, run):
    os.mkdir("far")
    os.symlink("far/y.npy", "link.npy")
    assert run(*APPLY, "--out", "link.npy").exit_code == 0
    assert len(np.load("far/y.npy")) == 40
    assert os.path.islink("link.npy")


def test_a_link_to_a_folder_of_parts_stays(files, run):
    os.mkdir("far")
    assert run(*APPLY, "--out", "far/parts").exit_code == 0
    os.symlink("far/parts", "link")
    assert run(*APPLY, "--out", "link", "--overwrite", "--chunk-rows", "10").exit_code == 0
    assert os.path.islink("link")
    assert len(names("far/parts")) == 5
    assert names("far") == ["parts"]


@pytest.mark.parametrize("where", ["loop", "loop/y.npy", "x.npy/y.npy", "no/y.npy"])
def test_a_path_that_leads_nowhere_gets_one_line(where, files, refused):
    os.symlink("loop", "loop")
    for option in (("--out", where), ("--save", where)):
        refused(*REPAIR, *option)
        refused(*REPAIR, *option, "--overwrite")


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o400, 0o666])
@pytest.mark.parametrize("option", ["--out", "--save"])
def test_a_file_keeps_its_mode(bits, option, files, run):
    (files / "y.npy").write_bytes(b"private")
    os.chmod("y.npy", bits)
    assert run(*REPAIR, option, "y.npy", "--overwrite").exit_code == 0
    assert mode("y.npy") == bits


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_a_new_file_has_the_mode_that_the_umask_leaves(umask, files, run):
    old = os.umask(umask)
    try:
        assert run(*REPAIR, "--out", "y.npy", "--save", "s").exit_code == 0
        assert run(*REPAIR, "--out", "parts").exit_code == 0
    finally:
        os.umask(old)
    assert {mode("y.npy"), mode("s"), mode("parts/part-00000.parquet")} == {0o666 & ~umask}
    assert mode("parts") == 0o777 & ~umask


def test_private_parts_stay_private(files, run):
    assert run(*APPLY, "--out", "parts").exit_code == 0
    os.chmod("parts", 0o700)
    os.chmod("parts/part-00000.parquet", 0o600)
    assert run(*APPLY, "--out", "parts", "--overwrite", "--chunk-rows", "10").exit_code == 0
    assert mode("parts") == 0o700
    assert {mode(f"parts/{name}") & 0o077 for name in names("parts")} == {0}


def test_a_name_as_long_as_can_be_is_written(files, run):
    name = "n" * 251 + ".npy"
    assert run(*APPLY, "--out", name).exit_code == 0
    assert len(np.load(name)) == 40


# Two at once


def test_of_two_that_write_one_new_file_one_wins_and_one_is_refused(files):
    first, second = (open_sink("y.npy", 4) for _ in range(2))
    with pytest.raises(InputError, match="has appeared or changed in the meantime"), second:  # noqa: PT012
        with first:
            first.write(X)
            second.write(2 * X)
        second.write(2 * X)
    np.testing.assert_array_equal(np.load("y.npy"), X.astype(np.float32))
    assert names() == ["r.safetensors", "x.npy", "y.npy"]


def test_of_two_that_replace_one_file_the_last_wins(files):
    (files / "y.npy").write_bytes(b"old")
    first, second = (open_sink("y.npy", 4, overwrite=True) for _ in range(2))
    with second:
        with first:
            first.write(X)
            second.write(2 * X)
        second.write(2 * X)
    np.testing.assert_array_equal(np.load("y.npy"), np.tile(2 * X, (2, 1)).astype(np.float32))
    assert names() == ["r.safetensors", "x.npy", "y.npy"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("exchange", [True, False])
def test_of_two_that_write_one_folder_one_wins(overwrite, exchange, files, monkeypatch):
    if not exchange:  # as on a file system that cannot
        monkeypatch.setattr(writing, "_exchanged", lambda one, other: False)
    if overwrite:
        with open_sink("parts", 4) as sink:
            sink.write(X)
    first, second = (open_sink("parts", 4, overwrite=overwrite) for _ in range(2))

    def both():
        with second, first:
            second.write(2 * X)
            first.write(X)
            first.write(X)
            second.write(2 * X)
            second.write(2 * X)

    if overwrite:
        both()
    else:
        with pytest.raises(InputError, match=r"could not be written|has appeared"):
            both()
    rows = isotropy.open("parts")
    assert rows.n_samples == (120 if overwrite else 80)
    assert names() == ["parts", "r.safetensors", "x.npy"]


def test_many_at_once_leave_one_whole_file(files):
    """Threads that write different rows to one file: one wins, the others are told."""
    ended = []
    gate = threading.Barrier(6)

    def write(scale):
        gate.wait()
        try:
            FITTED.transform(np.full((1000, 4), float(scale)), out="y.npy")
            ended.append(scale)
        except InputError:
            pass

    threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = np.load("y.npy") + FITTED.mean_
    assert len(ended) == 1
    np.testing.assert_allclose(found, ended[0], atol=1e-6)
    assert names() == ["r.safetensors", "x.npy", "y.npy"]


def test_a_file_system_without_hard_links_keeps_the_rule(files, monkeypatch):
    def no_links(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    FITTED.transform("x.npy", out="y.npy")
    sink = open_sink("z.npy", 4)
    with pytest.raises(InputError, match="has appeared or changed in the meantime"), sink:  # noqa: PT012
        sink.write(X)
        (files / "z.npy").write_bytes(b"another's")
    assert (files / "z.npy").read_bytes() == b"another's"
    assert names() == ["r.safetensors", "x.npy", "y.npy", "z.npy"]


# Leftovers


def test_leftovers_of_killed_runs_are_removed_and_those_in_use_are_not(files):
    dead = files / ".y.npy.0123456789abcdef.isotropy-part"
    dead.write_bytes(b"half")
    folder = files / ".parts.0123456789abcdef.isotropy-part"
    folder.mkdir()
    (folder / "part-00000.parquet").write_bytes(b"half")
    near = [".y.npy.0123.isotropy-part", "y.0123456789abcdef.isotropy-part", ".y.npy.part"]
    for name in near:
        (files / name).write_bytes(b"somebody's own")
    with atomic_write("alive.npy") as alive, open_sink("z.npy", 4) as sink:
        writing._swept.clear()
        FITTED.transform("x.npy", out="y.npy")
        sink.write(X)
        alive.write_bytes(b"alive")
    assert names() == sorted(["alive.npy", "r.safetensors", "x.npy", "y.npy", "z.npy", *near])


SLOW = """
import os, signal, sys, time
from isotropy import cli
from isotropy.sources import files

read = files.FileSource.read

def slowly(self, chunk):
    if chunk.first_row >= 20:
        open("halfway", "w").close()
        while signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # until it was stopped
            time.sleep(0.01)
    yield from read(self, chunk)

files.FileSource.read = slowly
cli.app(sys.argv[1:])
"""


def stopped(number, *arguments):
    """The exit code and stderr of a command that a signal has stopped half-way."""
    line = [sys.executable, "-c", SLOW, *arguments, "--chunk-rows", "5"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        begun = time.monotonic()
        while not os.path.exists("halfway") and time.monotonic() - begun < PATIENCE:
            time.sleep(0.02)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stderr.decode()


@pytest.mark.parametrize("out", ["y.npy", pytest.param("parts", marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_leaves_nothing(out, files):
    code, said = stopped(signal.SIGTERM, *APPLY, "--out", out)
    assert (code, said) == (143, "")
    assert names() == ["halfway", "r.safetensors", "x.npy"]


@pytest.mark.slow
def test_a_killed_run_is_tidied_up_by_the_next(files, run):
    code, _ = stopped(signal.SIGKILL, *APPLY, "--out", "parts")
    assert code == -9
    assert len(names()) == 4
    writing._swept.clear()
    assert run(*APPLY, "--out", "parts").exit_code == 0
    assert names() == ["halfway", "parts", "r.safetensors", "x.npy"]


# Full disks and closed pipes


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FAILING = ["os.fsync", "os.replace", "os.link", "os.open", "os.mkdir", "os.rename"]
LINES = {
    "rows": (*APPLY, "--out", "y.npy"),
    "columns": (*APPLY, "--out", "y.parquet"),
    "tensors": (*APPLY, "--out", "y.safetensors"),
    "parts": (*APPLY, "--out", "parts"),
    "repair": (*REPAIR, "--save", "s"),
    "calibrator": ("calibrate", "x.npy", "--rate", "0.1", "--save", "s"),
    "page": ("report", "x.npy", "--out", "y.html"),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", FAILING)
@pytest.mark.parametrize("case", LINES)
def test_a_disk_that_is_full_gives_one_line(case, what, overwrite, files, run, monkeypatch):
    if case == "page":
        pytest.importorskip("plotly")
    line = LINES[case]
    if overwrite and case == "parts":
        assert run(*line).exit_code == 0
    elif overwrite:
        (files / line[-1]).write_bytes(b"old")
    before = {name: os.stat(name).st_size for name in names()}
    called = []

    def fail(*arguments, **options):
        called.append(arguments)
        full()

    if what == "os.open":  # of what is new only
        real = os.open

        def fail(path, flags, *rest, **options):
            if "isotropy-part" in str(path) and not called:
                called.append(path)
                full()
            return real(path, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(what, fail)
        result = run(*line, *(["--overwrite"] if overwrite else []))
    if not called or (what == "os.link" and result.exit_code == 0):
        assert result.exit_code == 0  # was not needed, or there is another way
        return
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "the disk is full" in result.stderr
    assert {name: os.stat(name).st_size for name in names()} == before


def test_a_write_that_fails_leaves_nothing(files, run, monkeypatch):
    monkeypatch.setattr("isotropy.repairs.files.save", full)
    result = run(*REPAIR, "--save", "s")
    assert result.exit_code == 2
    assert "the disk is full" in result.stderr
    assert names() == ["r.safetensors", "x.npy"]


@pytest.mark.parametrize("command", ["measure", "repair"])
def test_a_checkpoint_that_fails_leaves_nothing(command, files, run, monkeypatch):
    monkeypatch.setattr("isotropy.engines.checkpoint.save", full)
    line = ["measure", "x.npy"] if command == "measure" else [*REPAIR, "--out", "y.npy"]
    result = run(*line, "--checkpoint", "kept")
    assert result.exit_code == 2
    assert "the disk is full" in result.stderr
    assert names() == ["r.safetensors", "x.npy"]


LIMITED = """
import resource, sys
from isotropy import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
cli.app(sys.argv[1:])
"""


def in_another(*arguments, code="from isotropy import cli; import sys; cli.app(sys.argv[1:])", **o):
    line = [sys.executable, "-c", code, *arguments]
    return subprocess.run(line, stderr=subprocess.PIPE, timeout=PATIENCE, **o)


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_gives_one_line(files):
    np.save("x.npy", np.random.default_rng(0).standard_normal((400, 4)))
    result = in_another(*APPLY, "--out", "y.npy", code=LIMITED)
    said = result.stderr.decode()
    assert (result.returncode, said.count("\n")) == (2, 1), said
    assert "'y.npy' could not be written" in said.replace(f"{files}/", "")
    assert "File too large" in said
    assert names() == ["r.safetensors", "x.npy"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "how",
    ["printed", *(pytest.param(how, marks=pytest.mark.slow) for how in ("--save", "-", "help"))],
)
def test_output_that_cannot_be_written_is_no_success(how, files):
    lines = {
        "--save": [*REPAIR, "--save", "/dev/full"],
        "-": [*REPAIR, "--save", "-"],
        "printed": ["measure", "x.npy", "--json"],
        "help": ["--help"],
    }
    with open("/dev/full", "wb") as stdout:
        result = in_another(*lines[how], stdout=stdout)
    said = result.stderr.decode()
    assert (result.returncode, said.count("\n")) == (2, 1), said
    assert "could not be written" in said
    assert "the disk is full" in said
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert names() == ["r.safetensors", "x.npy"]


@pytest.mark.slow
def test_a_page_goes_through_a_pipe(files):
    pytest.importorskip("plotly")
    result = in_another("report", "x.npy", "--out", "-", stdout=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"<!doctype html>")
    assert result.stdout.rstrip().endswith(b"</html>")
    assert names() == ["r.safetensors", "x.npy"]


@pytest.mark.parametrize("how", [pytest.param("-", marks=pytest.mark.slow), "printed"])
def test_a_reader_that_has_gone_ends_the_command_silently(how, files):
    line = [*REPAIR, "--save", "-"] if how == "-" else ["measure", "x.npy"]
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "wb") as stdout:
        result = in_another(*line, stdout=stdout)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_repair_goes_through_a_pipe(files):
    result = in_another(*REPAIR, "--save", "-", stdout=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, b"")
    (files / "piped").write_bytes(result.stdout)
    np.testing.assert_allclose(isotropy.load("piped").mean_, FITTED.mean_)
    assert names() == ["piped", "r.safetensors", "x.npy"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("name", ["pipe.npy", "pipe.parquet", "pipe.safetensors"])
def test_rows_go_through_a_named_pipe(name, files, run):
    os.mkfifo(name)
    got = []

    def read():
        with open(name, "rb") as pipe:
            got.append(pipe.read())

    reader = threading.Thread(target=read)
    reader.start()
    assert run(*APPLY, "--out", name).exit_code == 0
    reader.join()
    assert stat.S_ISFIFO(os.stat(name).st_mode)
    os.unlink(name)
    (files / name).write_bytes(got[0])
    assert isotropy.open(name).n_samples == 40


@pytest.mark.slow
def test_a_file_that_is_appended_to_is_not_cut(files):
    (files / "log").write_bytes(b"before")
    with open("log", "ab") as stdout:
        result = in_another(*REPAIR, "--save", "/dev/stdout", stdout=stdout)
    assert result.returncode == 0, result.stderr
    content = (files / "log").read_bytes()
    assert content.startswith(b"before")
    assert len(content) > 200
