"""Rows on their way to a device, with memory of this machine as the device."""

import contextvars
import gc
import itertools
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

import isotropy
from isotropy import engines, metrics
from isotropy.engines.base import PassCheckpoint, fresh
from isotropy.engines.checkpoint import Checkpoint
from isotropy.engines.local import Local
from isotropy.engines.passes import Peeked
from isotropy.errors import InputError
from isotropy.sources import Batch, Chunk, joined, open_sink
from isotropy.stats import Moments, Sample
from isotropy.threads import ahead

torch = pytest.importorskip("torch", reason="torch is not installed")
from isotropy.engines import staging  # noqa: E402
from isotropy.engines import torch as torch_engine  # noqa: E402
from isotropy.engines.torch import Torch, in_groups  # noqa: E402

SLOT_BYTES = 1 << 12
READERS = 4


class Later:
    """A copy that takes its time."""

    def __init__(self, future):
        self.synchronize = future.result


class FakeSlot(staging.Slot):
    def __init__(self, copies, n_bytes):
        super().__init__(torch.full((n_bytes,), 255, dtype=torch.uint8))
        self.copies, self.n_copies = copies, 0

    def _empty(self, shape, dtype):
        return torch.full(shape, np.nan, dtype=dtype)

    def _copy(self, source, target):
        def slowly():
            time.sleep(0.001)
            target.copy_(source)

        self.n_copies += 1
        return Later(self.copies.submit(slowly))


class Fake(Torch):
    """The engine of a device that is not there, and has no memory to keep rows in."""

    free_bytes = 0

    def __init__(self, copies):
        super().__init__("cpu")
        self.device, self.copies, self.slots = torch.device("meta"), copies, []
        self.joins_chunks = True

    @property
    def n_copies(self):
        return sum(slot.n_copies for slot in self.slots)

    def _free_bytes(self):
        return self.free_bytes

    def _slots(self, n_bytes):
        def make():
            self.slots.append(FakeSlot(self.copies, n_bytes))
            return self.slots[-1]

        return make

    def place(self, source):
        return "cpu"

    def _receive(self, batch, copied):
        if copied is not None:
            copied.synchronize()
        return batch


@pytest.fixture
def engine(monkeypatch):
    """Small slots and groups, and four readers on any machine."""
    for module in (staging, torch_engine):
        monkeypatch.setattr(module, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(torch_engine, "JOINED_BYTES", 5 * SLOT_BYTES)
    monkeypatch.setattr(torch_engine, "n_threads", lambda: READERS)
    monkeypatch.setattr("isotropy.threads.n_threads", lambda: READERS)
    before = threading.active_count()
    with ThreadPoolExecutor(1) as copies:
        yield Fake(copies)
        assert threading.active_count() <= before + 1, "readers must not outlive the pass"


def rows_of(found):
    """All rows that a pass saw, by number."""
    order = np.argsort(found.numbers)
    return found.numbers[order], found.rows[order], found.weights[order]


def seen(source, engine):
    with engines.using(engine):
        return rows_of(engines.reduce(source, [Sample(100_000)]).states[0])


def saved(X, folder, kind):
    path = folder / f"x{kind}"
    if kind == ".npy":
        np.save(path, X)
    elif kind == ".safetensors":
        from safetensors.torch import save_file

        save_file({"x": torch.from_numpy(X).bfloat16()}, path)
    elif kind == ".npz":
        np.savez_compressed(path, X)
    elif kind == ".fvecs":
        widths = np.full((len(X), 1), X.shape[1], np.int32).view(np.float32)
        np.hstack([widths, X]).astype(np.float32).tofile(path)
    elif kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(X.reshape(-1), X.shape[1])})
        pq.write_table(table, path, row_group_size=700)
    return path


@pytest.mark.parametrize("chunk_rows", [1, 40, 250, 10_000])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", "<i4", "|i1"])
def test_every_row_arrives_once_and_as_it_was(X, tmp_path, engine, dtype, chunk_rows):
    X = X[:1500]
    X = (X * 10 if dtype[1] == "i" else X).astype(dtype)
    path = tmp_path / "x.npy"
    np.save(path, X[:500] if chunk_rows == 1 else X)
    source = isotropy.open(path, chunk_rows=chunk_rows)
    found, expected = seen(source, engine), seen(source, Local())
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
    assert len(engine.slots) <= torch_engine.SLOTS * READERS


@pytest.mark.parametrize("kind", [".safetensors", ".npz", ".fvecs", ".parquet", ".npy"])
def test_every_format_arrives(X, tmp_path, engine, kind):
    source = isotropy.open(saved(X, tmp_path, kind), chunk_rows=300)
    for mine, theirs in zip(seen(source, engine), seen(source, Local()), strict=True):
        assert np.array_equal(mine, theirs)


def test_metrics_agree_with_the_local_engine(source, engine, numbers):
    expected = numbers(isotropy.measure(source, engine="local"))
    found = numbers(isotropy.measure(source, engine=engine))
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6), name


def test_weights_and_bad_rows_that_are_left_out(X, tmp_path, engine):
    X = X.copy()
    X[[3, 700, 701, 5999]] = np.nan
    np.save(tmp_path / "x.npy", X)
    weights = np.arange(len(X), dtype=np.float64) % 3
    source = isotropy.open(
        tmp_path / "x.npy", chunk_rows=250, skip_bad_rows=True, sample_weight=weights
    )
    for mine, theirs in zip(seen(source, engine), seen(source, Local()), strict=True):
        assert np.array_equal(mine, theirs)
    with engines.using(engine):
        assert engines.reduce(source, [Sample()]).n_skipped == 4


def test_files_of_a_folder_are_not_joined_and_rows_are_counted_in_theirs(X, tmp_path, engine):
    for name, first in (("a", 0), ("b", 1000)):
        np.save(tmp_path / f"{name}.npy", X[first : first + 1000])
    source = isotropy.open(tmp_path, chunk_rows=50)
    for group in in_groups(source.chunks(), 64):
        assert len({chunk.file for chunk in group}) == 1
    bad = X[1000:2000].copy()
    bad[7] = np.inf
    np.save(tmp_path / "b.npy", bad)
    source = isotropy.open(tmp_path, chunk_rows=50)
    with pytest.raises(InputError, match=r"infinity in 1 row \(first: 7 of '.*b.npy'"):
        seen(source, engine)


def test_a_bad_row_is_named(X, tmp_path, engine):
    X = X.copy()
    X[4321, 3] = np.nan
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=250)
    messages = []
    for each in (engine, Local()):
        with pytest.raises(InputError) as error:
            seen(source, each)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "first: 4321" in messages[0]


def cut(path, n_bytes):
    """The file shorter than when it was opened, with its time of change as it was."""
    with open(path, "r+b") as file:
        file.truncate(n_bytes)


@pytest.mark.parametrize("bad_first", [False, True])
def test_a_file_that_shrank_is_refused_after_what_comes_before(
    X, tmp_path, engine, monkeypatch, bad_first
):
    X = X.copy()
    if bad_first:
        X[4005] = np.nan
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=100)
    cut(tmp_path / "x.npy", 128 + 4100 * X[:1].nbytes)
    monkeypatch.setattr("isotropy.sources.files.expect_unchanged", lambda file: None)
    expected = "first: 4005" if bad_first else "is truncated"
    with pytest.raises(InputError, match=expected):
        seen(source, engine)


def test_a_file_that_changed_is_refused(X, tmp_path, engine):
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=100)
    np.save(tmp_path / "x.npy", X[:100])
    with pytest.raises(InputError, match="has changed since it was opened"):
        seen(source, engine)


def test_an_error_in_the_middle_keeps_its_traceback_and_stops_the_readers(watched, engine):
    source = watched(fail_at=9)
    with pytest.raises(source.error, match="in the middle") as error:
        seen(source, engine)
    assert any(entry.name == "read" for entry in error.traceback)
    assert len(source.read_chunks) <= 9 + 4 * READERS


def test_an_error_of_the_computation_stops_the_readers(source, engine):
    class Broken(Sample):
        def _update(self, X, w, first_row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.reduce(source, [Broken()], PassCheckpoint(), lambda n: None)


def test_a_pass_reads_no_chunk_twice(watched, engine):
    source = watched()
    isotropy.measure(source, ["isoscore"], engine=engine)
    assert sorted(source.read_chunks) == [chunk.first_row for chunk in source.chunks()]


def test_memory_is_allocated_once_for_a_pass(source, engine):
    engine.reduce(source, [Sample()], PassCheckpoint(), lambda n: None)
    assert len(engine.slots) == torch_engine.SLOTS * READERS
    assert engine.n_copies == n_parts(source) > 10 * len(engine.slots)


def n_parts(source):
    return sum(len(source.split(chunk, SLOT_BYTES)) for chunk in source.chunks())


def test_rows_of_a_file_that_fits_are_copied_once_for_all_passes(source, engine, numbers):
    expected = numbers(isotropy.measure(source, engine=engine))
    n_copies = engine.n_copies
    assert n_copies > 1.9 * n_parts(source)  # the first chunk of a pass may have been peeked at
    engine.free_bytes = 16 * source.n_samples * source.n_features
    found = numbers(isotropy.measure(source, engine=engine))
    assert engine.n_copies - n_copies <= n_parts(source)
    for name in expected:
        assert np.array_equal(found[name], expected[name], equal_nan=True), name
    engine.free_bytes -= 1
    isotropy.measure(source, engine=engine)
    assert engine.n_copies - n_copies > 2.5 * n_parts(source)


def test_memory_for_copies_is_no_larger_than_float64_rows(tmp_path, engine):
    np.save(tmp_path / "x.npy", np.eye(6, dtype=np.float64))
    seen(isotropy.open(tmp_path / "x.npy", chunk_rows=2), engine)
    assert {len(slot.memory) for slot in engine.slots} == {8 * 2 * 6}


def test_rows_are_kept_on_the_device_until_the_call_ends(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    path = tmp_path / "x.npy"
    np.save(path, X)
    with engines.using(engine):
        isotropy.measure(path, ["isoscore", "partition_isotropy"])
        assert engine._held is None
        metrics.mean_cosine(path)
        assert engine._held is None
        before = path.stat()
        np.save(path, X + 3)  # the same size, and soon the same time
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        found = [metrics.mean_cosine(path), isotropy.measure(path, ["mean_cosine"]).mean_cosine]
    assert found == pytest.approx([metrics.mean_cosine(X + 3)] * 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda path, engine: isotropy.measure(path, engine=engine),
        lambda path, engine: isotropy.Whiten().fit(path, engine=engine),
        lambda path, engine: isotropy.ClusterRemoval(4, 2).fit(path, engine=engine),
    ],
    ids=["measure", "Whiten", "ClusterRemoval"],
)
def test_a_call_reads_a_file_that_fits_once(call, X, tmp_path, engine, monkeypatch):
    engine.free_bytes = 1 << 40
    X = np.concatenate([X] * 4)  # more rows than a sample for clusters holds
    np.save(tmp_path / "x.npy", X)
    ahead, passes = engine._ahead, []
    monkeypatch.setattr(engine, "_ahead", lambda *given: passes.append(given) or ahead(*given))
    call(tmp_path / "x.npy", engine)
    assert len(passes) == 1


def test_a_call_within_another_leaves_the_rows_where_they_are(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy")
    with engines.using(engine), engine.keeping():
        isotropy.measure(source, ["mean_cosine"])
        assert engine._held is not None
    assert engine._held is None


def test_calls_in_several_threads_keep_rows_of_their_own(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    path = tmp_path / "x.npy"
    np.save(path, X)
    source = isotropy.open(path)

    def drift():
        return isotropy.measure(path, ["mean_norm_ratio"], engine=engine).mean_norm_ratio

    with ThreadPoolExecutor(1) as other, engine.keeping():
        seen(source, engine)
        held = engine._held
        assert held is not None
        other.submit(seen, source, engine).result()  # without keeping: it leaves the rows alone
        assert engine._held is held
        before = other.submit(drift).result()
        assert engine._held is None
        stat = path.stat()
        np.save(path, X + 3)  # the same size, and soon the same time
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert other.submit(drift).result() > before + 0.1
    seen(source, engine)
    assert engine._held is None


def test_a_pass_outside_of_calls_that_keep_rows_keeps_none(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=100)
    another = contextvars.Context()  # as in another thread, where no call keeps rows
    with engine.keeping():
        passing = engine._kept(source, [source.chunks()])
        _, batches = another.run(next, passing)
        another.run(list, batches)
    another.run(list, passing)
    assert engine._held is None


def test_a_pass_that_begins_again_has_the_same_updates(X, tmp_path, engine):
    """The first chunk, which was looked at before the pass, is larger than what is joined."""
    X = np.concatenate([X] * 40)
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=len(X) // 2)
    assert source.chunks()[0].n_rows * X.shape[1] * 4 > 2 * torch_engine.JOINED_BYTES

    def found():
        with engines.using(engine):
            checkpoint = Checkpoint(tmp_path / "kept")
            return engines.reduce(source, [Moments(exact=False)], checkpoint).states[0].state()

    whole = found()
    (tmp_path / "kept" / "pass-000" / "run-00000.safetensors").unlink()
    again = found()
    for name, value in whole.items():
        assert np.array_equal(value, again[name]), name


def test_the_first_rows_are_not_held_after_they_were_read(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    peeked = Peeked(isotropy.open(tmp_path / "x.npy", chunk_rows=100))
    (batch,) = peeked.read(peeked.chunks()[0])
    rows = weakref.ref(batch.rows)
    del batch
    gc.collect()
    assert rows() is None


def test_devices_without_an_engine_are_refused():
    with pytest.raises(InputError, match="device must be a CPU or CUDA, got 'meta'"):
        Torch("meta")


def test_a_file_that_is_gone_is_named(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    path = tmp_path / "x.npy"
    np.save(path, X)
    source = isotropy.open(path, chunk_rows=100)
    path.unlink()
    with engine.keeping(), pytest.raises(InputError, match="there is no file"):
        list(engine._kept(source, [source.chunks()]))


def test_rows_of_a_file_that_changed_are_not_taken_from_the_device(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    path = tmp_path / "x.npy"
    with engines.using(engine), engine.keeping():  # no call ends between these passes
        for rows in (X, X + 3):
            np.save(path, rows)
            found = engines.reduce(isotropy.open(path, chunk_rows=100), [Sample(100_000)]).states
            assert engine._held is not None
            assert np.array_equal(rows_of(found[0])[1], rows)


def test_an_array_is_read_anew_in_every_pass(X, engine):
    engine.free_bytes = 1 << 40
    X = X.copy()
    with engines.using(engine), engine.keeping():
        engines.reduce(isotropy.open(X), [Sample(100_000)])
        X[1] += 3  # of so many rows, this one is no part of the identity
        found = engines.reduce(isotropy.open(X), [Sample(100_000)]).states
    assert engine._held is None
    assert np.array_equal(rows_of(found[0])[1], X)


def test_an_error_leaves_no_rows_on_the_device(X, tmp_path, engine):
    engine.free_bytes = 1 << 40
    X = X.copy()
    X[-1] = np.nan
    np.save(tmp_path / "x.npy", X)
    with engine.keeping(), pytest.raises(InputError, match="finite") as error:
        seen(isotropy.open(tmp_path / "x.npy", chunk_rows=100), engine)
    (frame,) = (entry.frame for entry in error.traceback if entry.name == "_kept")
    assert frame.f_locals["found"] == []


def test_rows_are_read_straight_into_the_memory_they_are_copied_from(source):
    rooms = []

    def room(shape, dtype):
        rooms.append(np.empty(shape, dtype))
        return rooms[-1]

    (batch,) = source.raw(source.chunks()[0], room)
    assert batch.rows is rooms[0]


def test_a_device_is_updated_with_joined_chunks(source, engine):
    class Sizes(Sample):
        def _update(self, X, w, first_row):
            sizes.append(X.nbytes)

    sizes = []
    partial = engine.reduce(source, [Sizes()], PassCheckpoint(), lambda n: None)
    assert partial.n_chunks == len(source.chunks())
    assert min(sizes[:-1]) >= torch_engine.JOINED_BYTES
    assert max(sizes) <= 2 * torch_engine.JOINED_BYTES


def test_groups_are_the_same_after_a_restart(source):
    chunks = source.chunks()
    row_bytes = torch_engine.JOINED_BYTES // 1000
    groups = in_groups(chunks, row_bytes)
    assert list(itertools.chain.from_iterable(groups)) == chunks
    assert 1 < len(groups) < len(chunks)
    for i in range(len(groups)):
        done = sum(map(len, groups[:i]))
        assert in_groups(chunks[done:], row_bytes) == groups[i:]


def test_a_resumed_pass_ends_with_the_same_state(source, engine):
    class Kept(PassCheckpoint):
        partial = None

        def load(self, run, chunks):
            return self.partial

        def save(self, run, partial, chunks):
            states = [type(state).from_state(state.state()) for state in partial.states]
            kept.append((states, partial.n_chunks))

    kept = []
    statistic = isotropy.stats.Moments(np.zeros(16))
    whole = engine.reduce(source, [statistic], Kept(), lambda n: None)
    saved = Kept()
    saved.partial = fresh([statistic])
    saved.partial.states, saved.partial.n_chunks = kept[len(kept) // 2]
    resumed = engine.reduce(source, [statistic], saved, lambda n: None)
    assert resumed.n_chunks == whole.n_chunks
    assert np.array_equal(resumed.states[0].within, whole.states[0].within)


@pytest.mark.parametrize("chunk_rows", [100, 3000])
def test_mapped_rows_are_written_as_by_the_local_engine(X, path, tmp_path, engine, chunk_rows):
    source = isotropy.open(path, chunk_rows=chunk_rows)
    found = []
    for name, each in (("mine", engine), ("local", Local())):
        sink = open_sink(tmp_path / f"{name}.npy", source.n_features, "float32")
        each.map(source, lambda rows: rows * 2, sink, lambda n: None)
        found.append(np.load(tmp_path / f"{name}.npy"))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], X * 2)


def test_joined_batches_number_their_rows():
    first = Batch(0, np.zeros((2, 3)), np.ones(2))
    second = Batch(2, np.ones((1, 3)), np.ones(1))
    gap = Batch(9, np.ones((1, 3)), np.ones(1), n_skipped=1, numbers=np.array([10]))
    both = joined([first, second])
    assert both.numbers is None
    assert len(both.rows) == len(both.weights) == 3
    three = joined([first, second, gap])
    assert three.numbers.tolist() == [0, 1, 2, 10]
    assert three.n_skipped == 1
    assert joined([first]) is first


def test_results_come_in_order_and_not_too_far_ahead():
    begun, used = [], []

    def work(i):
        begun.append(i)
        time.sleep(0.001 * (i % 3))
        return i

    with closing(ahead(work, range(40), 5)) as results:
        for i in results:
            used.append(i)
            assert len(begun) <= len(used) + 5
    assert used == list(range(40))


def test_an_error_is_raised_in_its_turn():
    def work(i):
        if i in (3, 4):
            raise ValueError(i)
        return i

    results = ahead(work, range(40), 6)
    assert list(itertools.islice(results, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(results)


def test_closing_stops_what_has_not_begun():
    begun = []
    before = threading.active_count()
    results = ahead(lambda i: begun.append(i), range(1000), 4, 2)
    next(results)
    results.close()
    assert len(begun) <= 5
    assert threading.active_count() == before


def test_a_chunk_of_no_good_rows_is_nothing_to_copy(engine):
    slot = FakeSlot(engine.copies, SLOT_BYTES)
    there, copied = slot.send(np.empty((0, 5), np.float32))
    assert there.shape == (0, 5)
    assert copied is None


def test_rows_wider_than_the_memory_go_through_it_in_parts(engine):
    slot = FakeSlot(engine.copies, SLOT_BYTES)
    wide = np.arange(3 * SLOT_BYTES, dtype=np.float64).reshape(2, -1)
    for rows in (wide, np.asfortranarray(wide), wide[:, ::2]):
        there, copied = slot.send(rows)
        copied.synchronize()
        assert np.array_equal(there.numpy(), rows)
    assert slot.room(wide.shape, wide.dtype).shape == wide.shape


def test_memory_is_not_filled_while_it_is_copied(engine):
    slot = FakeSlot(engine.copies, SLOT_BYTES)
    sent = []
    for i in range(20):
        held = slot.room((8, 16), "<f4")
        held[:] = i
        sent.append(slot.send(held))
    for i, (there, copied) in enumerate(sent):
        copied.synchronize()
        assert (there == i).all()


def test_chunks_of_other_sources_are_read_as_they_are(engine, X):
    source = isotropy.sources.ArraySource(X, chunk_rows=130)
    assert source.split(Chunk(0, 130), 10) == [Chunk(0, 130)]
    for mine, theirs in zip(seen(source, engine), seen(source, Local()), strict=True):
        assert np.array_equal(mine, theirs)
