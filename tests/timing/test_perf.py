"""Timing: what samples say, in which order they are taken, who is refused, and what is written. No time is asserted."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import shutil
import statistics
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conformance.backends.connect import usable
from conformance.backends.protocol import Unsupported
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.cli import main
from conformance.commands.perf import _grounds
from conformance.errors import LibraryError, UsageError
from conformance.library.operations import cases_root, load_operation, operations
from conformance.record.log import PerfRecord, read_log
from conformance.reporting.timings import timings
from conformance.running.run import Plan, execute, outcomes
from conformance.timing import bench, contenders, perf, permitted, sampling, workloads
from conformance.timing import statistics as samples

FAKES = str(Path(__file__).parents[1] / "fakes.py")


@pytest.fixture(scope="module")
def timed(library):
    """All workloads by id."""
    return {workload.id: workload for workload in workloads.load_workloads(library.operation)}


class TestSamples:
    def test_the_interval_is_the_tightest_of_enough_confidence(self):
        # P(all of n on one side) = 2 / 2**n: 0.0156 for seven, 0.0078 for eight.
        assert samples.median_interval([*range(7)]) is None
        assert samples.median_interval([*range(8)]) == (0, 7)
        # By the tables for n = 20, the 4th smallest and 4th largest: 2 * P(X <= 3) = 0.0026, with 4 it is 0.0118.
        assert samples.median_interval([*range(20)]) == (3, 16)

    def test_the_order_of_the_samples_is_of_no_matter(self):
        values = [*range(30)]
        random.Random(1).shuffle(values)
        assert samples.median_interval(values) == samples.median_interval(sorted(values))

    def test_it_holds_the_median_as_often_as_it_says(self):
        rng = random.Random(5)
        held = 0
        for _ in range(800):
            low, high = samples.median_interval([rng.expovariate(1.0) for _ in range(15)])
            held += low <= math.log(2) <= high
        assert held / 800 > 0.98

    def test_thousands_of_samples_are_no_trouble(self):
        low, high = samples.median_interval([*range(2000)])
        assert (low, high) == (1999 - high, 1999 - low)
        assert 1000 - 60 < low < 1000 - 56  # 2.576 standard deviations of a half times 2000 coins are 57.6

    def test_quartiles(self):
        assert samples.interquartile([1, 2, 3, 4, 5]) == 2
        assert samples.interquartile([7.0]) == 0

    def test_the_fastest_tenth(self):
        assert samples.fastest([*range(100, 0, -1)]) == 5.5  # the median of 1 to 10
        assert samples.fastest([3.0, 2.0]) == 2.0

    def test_a_ratio_of_pairs_is_known_where_the_times_are_not(self):
        rng = random.Random(4)
        busy = [1 + 9 * rng.random() for _ in range(40)]  # the machine, ten times slower now and then
        found = samples.paired_ratio(busy, [2 * x * (1 + rng.gauss(0, 0.01)) for x in busy])
        assert found.low <= 2 <= found.high and found.width < 1.02
        assert found.says == "slower"

    @pytest.mark.parametrize(
        ("ratios", "says"),
        [
            ([136.0, 140.0, 150.0], "slower"),  # however few they are
            ([0.2, 0.9, 0.5], "faster"),
            ([0.5, 1.6, 1.0], "cannot tell"),
            ([0.9, 1.1, 1.0], "no clear difference"),
        ],
    )
    def test_few_pairs_are_told_by_their_range(self, ratios, says):
        found = samples.paired_ratio([1.0] * 3, ratios)
        assert (found.low, found.high) == (min(ratios), max(ratios))
        assert found.says == says

    def test_the_interval_holds_the_median_ratio_as_often_as_it_says(self):
        rng = random.Random(6)
        held = 0
        for _ in range(300):
            pairs = [math.exp(rng.gauss(math.log(1.5), 0.3)) for _ in range(25)]
            found = samples.paired_ratio([1.0] * 25, pairs, resamples=300)
            held += found.low <= 1.5 <= found.high
        assert held / 300 > 0.96

    def test_a_ratio_needs_pairs(self):
        with pytest.raises(ValueError, match="as many samples"):
            samples.paired_ratio([1.0], [1.0, 2.0])

    def test_growth_of_an_exact_power(self):
        found = samples.growth([1, 2, 4, 8], [3 * n**1.5 for n in (1, 2, 4, 8)])
        assert found == pytest.approx((1.5, 1.5, 1.5))

    def test_growth_of_points_off_the_line(self):
        # Slope 1; residuals a * (1, -1, -1, 1) are orthogonal to it: half width 9.925 * sqrt(4 a^2 / 2 / Sxx).
        sizes, a = [1, 2, 4, 8], 0.1
        times = [n * math.exp(a * sign) for n, sign in zip(sizes, (1, -1, -1, 1), strict=True)]
        found = samples.growth(sizes, times)
        half = 9.925 * math.sqrt(2 * a * a / (5 * math.log(2) ** 2))
        assert found == pytest.approx((1.0, 1.0 - half, 1.0 + half))

    def test_growth_of_too_few_points(self):
        assert samples.growth([4, 4], [1, 2]) is None
        assert samples.growth([4, 8], [1, 2]) == (pytest.approx(1.0), None, None)


class TestWorkloads:
    def test_what_is_asked_for_is_there(self, timed):
        series = [w.case.dims["L"] for w in timed.values() if w.series == "prefill"]
        assert series == [2**10, 2**12, 2**15, 2**18, 2**20]
        assert {w.case.dims["N"] for w in timed.values() if w.id.startswith("decode")} == {1, 32, 256}
        assert {w.case.attributes["key_block_size"] for w in timed.values()} == {4, 16, 64}
        assert {w.case.dims["Di"] for w in timed.values()} == {64, 128, 256}
        assert {w.case.element_type for w in timed.values()} == {"f32", "f16", "bf16"}
        assert timed["chunked-prefill"].case.streams == ((512,) * 32,)
        assert any(timed["ragged"].case.pad) and any(timed["ragged"].case.past)

    @pytest.mark.parametrize("name", operations())
    def test_a_workload_is_one_call_unless_it_is_named_a_stream(self, name):
        streams = [one.id for one in workloads.load_workloads(load_operation(name)) if one.case.streams]
        assert streams == [one for one in streams if one.startswith("chunked-")]

    def test_a_step_closes_a_block_or_does_not(self, timed, library):
        for workload in timed.values():
            if workload.id.startswith("decode"):
                symbols = library.operation.per_sequence(
                    library.operation.scalars(workload.case.attributes, workload.case.dims),
                    [past + 1 for past in workload.case.past],
                )
                assert all((row["c_after"] > row["c"]) == ("closes=1" in workload.id) for row in symbols)

    def test_bytes_of_a_prefill_by_hand(self, timed, library):
        # Keys; cos and sin of 256 first tokens; weight and length; 256 block keys. No block is open at the end.
        by_hand = 4 * (1024 * 128 + 2 * 256 * 64 + 128 + 256 * 128) + 8
        assert workloads.bytes_to_move(timed["prefill[L=1024]"].case, library.operation) == by_hand

    def test_bytes_of_a_decoding_step_by_hand(self, timed, library):
        # A sequence reads the history of 2048 keys, the new key, one that waits and its rope, and the length; it
        # writes the history, two keys that wait and the rope. The weight is read once.
        each = 4 * (2048 * 128 + 128 + 128 + 2 * 64 + 2048 * 128 + 2 * 128 + 2 * 64) + 8
        moved = workloads.bytes_to_move(timed["decode-with-history[N=256,closes=0]"].case, library.operation)
        assert moved == 256 * each + 4 * 128

    def test_bytes_of_a_stream_are_those_of_its_calls(self, timed, library):
        # Call k hands on 128 k block keys, and makes 128 of 512 tokens.
        calls = [
            4 * (2 * 128 * k * 128 + 512 * 128 + 2 * 128 * 64 + 128 + 128 * 128) + 8
            for k in range(32)
        ]  # fmt: skip
        assert workloads.bytes_to_move(timed["chunked-prefill"].case, library.operation) == sum(calls)

    def test_padding_is_not_moved(self, timed, library):
        case = timed["prefill[L=1024]"].case
        padded = msgspec.structs.replace(case, pad=(1000,))
        by_hand = 4 * (24 * 128 + 2 * 6 * 64 + 128 + 6 * 128) + 8
        assert workloads.bytes_to_move(padded, library.operation) == by_hand

    @pytest.mark.parametrize("name", ["ragged", "decode[N=32,closes=1]", "element-type[element_type=bf16]"])
    def test_inputs_have_the_shapes_of_the_ports_and_are_finite(self, timed, library, name):
        case = timed[name].case
        arrays = workloads.inputs_of(case, library.operation)
        assert arrays["raw_index_keys"].shape == tuple(case.dims[d] for d in ("N", "L", "Di"))
        assert arrays["past_block_index_keys"].shape[1] == case.dims["Bp"]
        assert all(np.isfinite(array.astype(np.float64)).all() for array in arrays.values())

    def test_an_array_is_filled_with_whole_periods(self):
        values = np.arange(7, dtype=np.float32)
        assert (workloads.repeated(values, (5, 9)).reshape(-1) == np.arange(45) % 7).all()
        assert workloads.repeated(values, (0, 9)).shape == (0, 9)
        assert (workloads.repeated(values, (3,)) == [0, 1, 2]).all()

    def test_every_operation_has_workloads_that_can_be_filled(self):
        operation = load_operation("sparse_attention_pipeline")
        decode = workloads.load_workloads(operation)[0].case
        arrays = workloads.inputs_of(decode, operation)
        assert arrays["past_incomplete_rope"].shape == (1, 128)
        assert all(np.isfinite(array).all() for array in arrays.values())
        assert workloads.bytes_to_move(decode, operation) == 0  # a selection says how much is read

    def test_patterns(self, timed):
        every = tuple(timed.values())
        assert len(workloads.choose(every, ["prefill"])) == 5
        assert [w.id for w in workloads.choose(every, ["prefill[L=1024]"])] == ["prefill[L=1024]"]
        assert len(workloads.choose(every, ["decode*"])) == 12
        assert len(workloads.choose(every, ["prefill"], quick=True)) == 3
        with pytest.raises(UsageError, match="did you mean 'ragged'"):
            workloads.choose(every, ["raged"])
        with pytest.raises(UsageError, match="quick"):
            workloads.choose(every, ["element-type"], quick=True)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{id: a, says: a, dims: {L: 1000000}}", "more than"),
            ("{id: a, says: a, size: 3}", "unknown field"),
            ("{id: a, says: a, quick: L <= M}", "unknown symbol M"),
            ("{id: a, says: a, growth: 3}", "'growth' is true, false or a symbol"),
        ],
    )
    def test_a_mistake_in_the_file_has_its_place(self, tmp_path, library, text, problem):
        folder = tmp_path / "qsa_prepare"
        folder.mkdir()
        shutil.copy(cases_root() / "qsa_prepare" / "operation.yaml", folder)
        (folder / "workloads.yaml").write_text(f"memory: 1000000\nworkloads:\n  - {text}\n")
        with pytest.raises(LibraryError, match=problem) as caught:
            workloads.load_workloads(library.operation, root=tmp_path)
        assert "workloads.yaml:3" in str(caught.value)

    def test_they_are_no_cases(self, library):
        assert (cases_root() / "qsa_prepare" / "workloads.yaml").is_file()
        assert not any(case.id.startswith("timed") for case in library.cases)


class Clock:
    """A clock that only moves when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def worker(clock, name, seconds, done):
    """A target that takes these seconds in turn, and writes its name down."""
    steps = itertools.cycle(seconds)

    def work():
        clock.now += next(steps)
        done.append(name)

    return work


class TestTurns:
    def test_targets_take_turns(self):
        clock, done = Clock(), []
        found = sampling.interleaved([worker(clock, n, [0.01], done) for n in "ABC"], 0.2, clock)
        warming = 2 * 3  # one call to warm up and one to calibrate
        assert "".join(done[warming:]) == "AABBCC" * 8  # before every sample as many calls that are not counted
        assert [len(times) for times in found] == [8, 8, 8]
        assert all(time == pytest.approx(0.01) for times in found for time in times)

    def test_short_calls_are_repeated_within_a_sample(self):
        clock, done = Clock(), []
        found = sampling.interleaved([worker(clock, "A", [1e-5], done), worker(clock, "B", [0.01], done)], 0.2, clock)
        runs = [len(list(run)) for name, run in itertools.groupby(done) if name == "A"][1:]
        assert set(runs) == {200}
        assert all(time == pytest.approx(1e-5) for time in found[0])

    def test_the_budget_is_used(self):
        clock, done = Clock(), []
        (times,) = sampling.interleaved([worker(clock, "A", [0.01], done)], 1.0, clock)
        assert len(times) == 50

    def test_slow_calls_get_few_rounds(self):
        clock, done = Clock(), []
        (times,) = sampling.interleaved([worker(clock, "A", [50.0], done)], 1.0, clock)
        assert len(times) == sampling.FEW_ROUNDS

    def test_copies_are_copies(self):
        source = np.arange(3 << 20, dtype=np.uint8).reshape(3, -1)
        copier = contenders.Copier(source, 2)
        copier()
        assert copier.bytes == 2 * source.nbytes
        assert (np.concatenate([target for target, _ in copier._parts]) == source.reshape(-1)).all()
        copier.close()

    def test_a_backend_may_bring_a_copy(self):
        class Copying(NumPyReference):
            def plain_copy(self, threads):
                return lambda to, source: asked.append((threads, to.nbytes, source.nbytes))

        asked = []
        copy = contenders.copy_of([NumPyReference(), Copying()], 3)
        contenders.Copier(np.zeros((2, 5), np.float32), 3, copy)()
        assert asked == [(3, 40, 40)]
        assert contenders.copy_of([NumPyReference()], 3) is None


@pytest.fixture
def told(library, timed):
    """The numbers of a workload for given samples: copy, first backend, others."""

    def tell(*times, copy=(1.0,) * 9, name="prefill[L=32768]", **limits):
        info = NumPyReference().describe()
        entries = [contenders.Contender(f"b{i}", f"b{i}", NumPyReference().prepare, info) for i in range(len(times))]
        one = perf.Bench(library.operation, entries, 2, 1.0, perf.Limits(**limits))
        workload = timed[name]
        results = [perf.Timed(entry, samples) for entry, samples in zip(entries, times, strict=True)]
        return one.tell(workload, results, copy, 32 << 20)

    return tell


class TestTold:
    def test_numbers_by_hand(self, told):
        (first, says), (second, _) = told([2.0] * 9, [1.0] * 9)
        assert says == ""
        moved = 25_166_344
        assert (first["fast_s"], first["median_s"]) == (2.0, 2.0)
        assert first["bytes"] == moved
        assert first["bytes_per_s"] == moved / 2
        assert first["copy_bytes_per_s"] == 32 << 20
        assert first["share"] == moved / 2 / (32 << 20)
        assert first["tokens_per_s"] == 16384
        assert (first["ratio"], second["ratio"], second["ratio_says"]) == (1.0, 0.5, "faster")
        assert (first["low_s"], first["high_s"], first["iqr_s"]) == (2.0, 2.0, 0.0)
        assert "busy" not in first
        assert (first["ratio_to"], second["ratio_to"]) == ("b0", "b0")
        assert first["timed"] == second["timed"]

    def test_a_difference_that_may_be_chance_is_none(self, told):
        rng = random.Random(2)
        a, b = ([1 + rng.random() / 10 for _ in range(12)] for _ in range(2))
        _, (second, _) = told(a, b)
        assert second["ratio_says"] == "no clear difference"
        assert second["ratio"] == statistics.median(y / x for x, y in zip(a, b, strict=True))

    def test_scattered_times_are_marked_and_ratios_stay(self, told):
        scattered = [1.0, 2.0] * 5
        (first, says), (second, _) = told(scattered, [3 * x for x in scattered])
        assert says == ""
        assert first["fast_s"] == 1.0 and "spreads over" in first["busy"]
        assert (second["ratio"], second["ratio_low"], second["ratio_high"]) == (3.0, 3.0, 3.0)
        assert second["ratio_says"] == "slower"
        assert "busy" not in told(scattered, noise=2.0)[0][0]

    def test_a_machine_that_changes_is_marked(self, told):
        copy = [1.0] * 6 + [1.5] * 3
        ((first, _),) = told([1.0] * 9, copy=copy)
        assert "copy's speed changed by 50%" in first["busy"]
        assert "busy" not in told([1.0] * 9, copy=copy, drift=0.6)[0][0]

    def test_few_samples_have_no_interval_of_their_own(self, told):
        ((first, says),) = told([1.0] * 3)
        assert (first["low_s"], says) == (None, "")

    def test_little_data_has_no_share(self, told):
        ((first, _),) = told([1.0] * 9, name="decode[N=32,closes=0]")
        assert first["share"] is None and first["tokens_per_s"] == 32


class Paced(NumPyReference):
    """Takes time by a fake clock, in proportion to the tokens; nothing is computed."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds, self.closed = clock, seconds, 0

    def prepare(self, config):
        if config.element_type != "f32":
            raise Unsupported(config.element_type, "f32 only")
        return self

    def run(self, inputs):
        self.clock.now += self.seconds * inputs["raw_index_keys"].shape[1]
        return {}

    def close(self):
        self.closed += 1


def copying(clock):
    """A copy that takes a millisecond by the clock."""
    return lambda to, source: setattr(clock, "now", clock.now + 1e-3)


class TestBench:
    def contenders(self, clock):
        made = [Paced(clock, 1e-5), Paced(clock, 2e-5)]
        return made, [contenders.Contender(f"p{i}", f"p{i}", one.prepare, one.describe()) for i, one in enumerate(made)]

    def test_the_last_of_a_series_tells_its_growth(self, library, timed):
        clock = Clock()
        made, entries = self.contenders(clock)
        chosen = [timed["prefill[L=1024]"], timed["prefill[L=4096]"], timed["prefill[L=32768]"]]
        records = list(
            perf.Bench(library.operation, entries, 1, 0.01, clock=clock, copy=copying(clock)).records(chosen)
        )
        assert [(c.name, r.workload) for c, r in records] == [(c.name, w.id) for w in chosen for c in entries]
        assert [("growth" in r.numbers) for _, r in records] == [False] * 4 + [True] * 2
        assert records[-1][1].numbers["growth"] == pytest.approx(1.0)
        assert records[-1][1].numbers["ratio"] == pytest.approx(2.0)
        assert [one.closed for one in made] == [3, 3]

    def test_parts_are_timed_on_single_calls(self, library, timed):
        clock = Clock()
        _, (first, part) = self.contenders(clock)
        part = dataclasses.replace(part, part=True, moves=False)
        one = perf.Bench(library.operation, [first, part], 1, 0.01, clock=clock, copy=copying(clock))
        stream = msgspec.structs.replace(
            timed["chunked-prefill"].case, dims={"N": 1, "L": 8, "Di": 4, "Dr": 2, "Bp": 0}
        )
        stream = dataclasses.replace(
            timed["chunked-prefill"], case=msgspec.structs.replace(stream, streams=((4, 4),), past=(0,), pad=(0,))
        )
        assert [c.name for c, _ in one.records([stream])] == ["p0"]
        single = list(one.records([timed["decode[N=1,closes=0]"]]))
        assert [c.name for c, _ in single] == ["p0", "p1"]
        # It does not move what the operation must move.
        assert "median_s" in single[1][1].numbers and "bytes_per_s" not in single[1][1].numbers

    def test_what_a_backend_cannot_do_is_said(self, library, timed):
        clock = Clock()
        _, entries = self.contenders(clock)
        chosen = [timed["element-type[element_type=bf16]"]]
        records = list(perf.Bench(library.operation, entries, 1, 0.01, clock=clock).records(chosen))
        assert all("f32 only" in r.says and "fast_s" not in r.numbers for _, r in records)

    def test_a_stream_carries_the_outputs(self, library, timed):
        workload = timed["chunked-prefill"]
        case = msgspec.structs.replace(
            workload.case, dims={**workload.case.dims, "L": 24}, streams=((10, 6, 8),), element_type="f32"
        )
        whole = workloads.inputs_of(case, library.operation)
        session = NumPyReference().prepare(contenders.config_of(case))
        stream = contenders.call_of(session, contenders.calls_of(whole, case, library.operation), library.operation)()
        single = contenders.call_of(session, [whole], library.operation)()
        assert all((stream[name] == single[name]).all() for name in ("block_index_keys",))

    def test_a_stream_that_is_not_carried_on_is_said(self, library, timed):
        class Less(Paced):
            """Returns block keys alone, as many runtimes do."""

            def prepare(self, config):
                session = super().prepare(config)
                session.run = lambda inputs: {"block_index_keys": inputs["raw_index_keys"]}
                return session

        clock = Clock()
        one = Less(clock, 1e-5)
        entry = contenders.Contender("less", "less", one.prepare, one.describe())
        bench = perf.Bench(library.operation, [entry], 1, 0.01, clock=clock, copy=copying(clock))
        ((_, record),) = bench.records([timed["chunked-prefill"]])
        assert record.says == (
            "not timed: present_incomplete_raw_keys: the stream is carried on by it, and it is not returned"
        )

    def test_a_table_for_every_workload(self):
        first = {"backend": "a", "fast_s": 0.0021, "growth": 1.01, "ratio": 1.0}
        second = {"backend": "b" * 60, "fast_s": 0.5, "busy": "yes", "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1,
                  "ratio_says": "slower", "share": 0.7512, "bytes_per_s": 2e10, "peak_bytes": 3 << 30}  # fmt: skip
        records = [
            PerfRecord("w", first),
            PerfRecord("v", {"backend": "c"}, "not timed: so it is"),
            PerfRecord("w", second),
        ]
        text = timings(records)
        assert text.splitlines()[0] == "w" and "2.1 ms" in text
        assert "~500 ms" in text and "2 slower" in text and "1.9 to 2.1" in text and "0.75" in text
        assert "to the power of 1.010" in text and "c: not timed: so it is" in text
        assert text.splitlines()[-1].startswith("~ ")
        assert max(map(len, text.splitlines())) <= 120

    def test_times_of_older_logs_are_shown(self):
        assert "2.1 ms" in timings([PerfRecord("w", {"backend": "a", "median_s": 0.0021})])


class TestConformance:
    def test_who_is_not_conformant_is_refused(self, library):
        with pytest.raises(permitted.Refused, match="is not conformant"):
            permitted.check_conformance(f"py:{FAKES}:SlightlyOff", library)

    @pytest.fixture
    def logged(self, library):
        def log(connect="numpy", complete=True, cases=library.cases[:3]):
            backend, info = usable(connect)
            plan = Plan(connect, cases, complete)
            return execute(plan, library, info, outcomes(plan, library, backend, info))

        return log

    def test_a_log_of_a_complete_run_will_do(self, library, logged):
        log = logged()
        assert permitted.check_conformance("numpy", library, [log]) is log

    def test_a_log_under_switched_readings_will_do_and_is_said(self, library, logged):
        log = logged()
        log = msgspec.structs.replace(log, header=msgspec.structs.replace(log.header, readings={"norm": "mine"}))
        assert permitted.check_conformance("numpy", library, [log]) is log
        assert _grounds([log]) == "Conformant by a complete run: numpy (under norm=mine)."

    def test_a_log_that_is_not_conformant_will_not(self, library, logged):
        off = f"py:{FAKES}:Raises"
        with pytest.raises(permitted.Refused, match="NOT CONFORMANT"):
            permitted.check_conformance(off, library, [logged(off)])

    def test_a_log_of_a_part_or_of_another_library_tells_nothing(self, library, logged):
        with pytest.raises(UsageError, match="not of a complete run"):
            permitted.check_conformance("numpy", library, [logged(complete=False)])
        other = logged()
        other = msgspec.structs.replace(other, header=msgspec.structs.replace(other.header, library="000000000000"))
        with pytest.raises(UsageError, match="another library"):
            permitted.check_conformance("numpy", library, [other])

    def test_a_log_of_another_version_tells_nothing(self, library, logged):
        log = logged()
        backend = msgspec.structs.replace(log.header.backend, version="0.0 on nothing")
        log = msgspec.structs.replace(log, header=msgspec.structs.replace(log.header, backend=backend))
        with pytest.raises(UsageError, match=r"is of version 0\.0 on nothing, and .* is here; run `qsa-conf"):
            permitted.check_conformance("numpy", library, [log])


class TestCommand:
    @pytest.fixture
    def cli(self, capsys):
        def run(*arguments):
            with pytest.raises(SystemExit) as caught:
                main(["perf", *map(str, arguments)])
            out, err = capsys.readouterr()
            assert "Traceback" not in out + err
            return caught.value.code, out, err

        return run

    def test_a_log_with_results_and_times(self, cli, tmp_path):
        few = ["--workload", "decode[N=1,closes=1]", "--seconds", "0.02", "--noise-limit", "1e9", "--threads", "1"]
        code, out, _ = cli("-b", "numpy", *few, "-o", tmp_path)
        log = read_log(tmp_path / "numpy.perf.jsonl")
        assert log.results and log.footer and not log.header.complete
        (record,) = log.perf
        assert record.workload == "decode[N=1,closes=1]"
        assert record.numbers["backend"] == "numpy" and record.numbers["bytes"] == 3592
        assert "decode[N=1,closes=1]" in out
        assert code == 0 and record.numbers["fast_s"] > 0

    def test_refused(self, cli):
        code, out, err = cli("-b", f"py:{FAKES}:Raises", "--workload", "ragged")
        assert (code, out) == (1, "")
        assert "is not timed: it is not conformant" in err

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            ([], 2, "name a backend"),
            (["-b", "numpy", "-b", "numpy"], 2, "named twice"),
            (["-b", "numpy", "--workload", "prefil"], 2, "did you mean 'prefill'"),
            (["-b", "nmpy"], 3, "did you mean 'numpy'"),
            (["-b", "numpy", "--threads", "4000"], 2, "this process may use"),
        ],
    )
    def test_wrong_usage(self, cli, arguments, code, words):
        found, out, err = cli(*arguments)
        assert (found, out) == (code, "")
        assert words in err

    def test_list(self, cli):
        code, out, _ = cli("--list", "--workload", "prefill")
        assert code == 0
        assert len(out.splitlines()) == 5 and "786,952 bytes" in out


class TestHarnessBench:
    def test_a_stopwatch_tells_parts_apart(self):
        clock = Clock()
        watch = bench.Stopwatch(clock)

        with watch.part("outer"):
            clock.now += 1.0
            for _ in range(2):
                with watch.part("inner"):
                    clock.now += 2.0
            clock.now += 0.5
        assert watch.seconds == {"outer": 1.5, "inner": 4.0}

    def test_the_parts_are_counted(self, library):
        cases = tuple(case for case in library.cases if not case.refusal and not case.audits)[:3]
        result = bench.measure("numpy", type(library)(library.operation, cases, 3))
        assert result.parts.keys() == {"backend", "reference", "data", "log", "engine"}
        assert all(seconds > 0 for seconds in result.parts.values())
        assert result.verdicts > 0 and result.cases == 3
        assert sum(result.parts.values()) == pytest.approx(result.seconds)

    def test_targets(self):
        parts = {"backend": 1.0, "engine": 1.0}
        quick = bench.Result("numpy", 4000, 10, 2.0, 1.9, parts)
        slow = bench.Result("openvino-cpu-op", 40_000, 10, 31.0, 40.0, parts)
        assert bench.tables([quick], 0.2)[1] is True
        assert bench.tables([quick], 0.4)[1] is False
        text, met = bench.tables([quick, slow], 0.2)
        assert met is False
        assert "2,000 verdicts a second" in text and "50.0%" in text


class TestPublished:
    def test_conformant_backends_are_timed_into_their_logs(self, library, tmp_path, monkeypatch, timed):
        import logs

        from conformance.commands.publish import timed_logs

        monkeypatch.setattr(workloads, "load_workloads", lambda operation: (timed["prefill[L=1024]"],))
        log = logs.passing(logs.part(library), connect="numpy")
        (path,) = timed_logs(library.operation, ["numpy"], {"numpy": log}, tmp_path)
        (record,) = read_log(path).perf
        assert record.workload == "prefill[L=1024]"
        assert read_log(path).results.keys() == log.results.keys()
        assert timed_logs(library.operation, [], {}, tmp_path) == []

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["-b", "numpy", "--perf", "torch"], "--perf torch: is not among the backends that are run"),
            (["--render", "--perf", "numpy"], "--perf goes with backends that are run"),
        ],
    )
    def test_only_what_is_run_is_timed(self, arguments, says, cli, tmp_path):
        code, _, err = cli("publish", "-o", tmp_path, *arguments)
        assert (code, err) == (2, f"error: {says}\n")
