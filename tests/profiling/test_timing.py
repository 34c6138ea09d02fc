"""What is timed, how often and in which order; not how long anything takes."""

import pytest

from wholecurve.profiling.timing import COLD_FACTOR, Timing, copies_for_cold, time_on_cpu


def test_functions_take_turns_and_all_samples_are_kept():
    order = []
    functions = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = time_on_cpu(functions, touched=10, cache_bytes=100, seconds=1e-9, samples=4)
    assert [len(found[name].samples_us) for name in "ab"] == [4, 4]
    # after two warm-up calls each: a sample of a, a sample of b, and so on
    assert order == ["a", "a", "b", "b"] + ["a", "b"] * 4
    assert found["a"].calls == 1 and all(sample > 0 for sample in found["a"].samples_us)


def test_short_functions_are_called_several_times_a_sample():
    calls = []
    found = time_on_cpu({"a": lambda: calls.append(1)}, 1, 1, seconds=0.01, samples=2)
    assert found["a"].calls > 10 and len(calls) == 2 + 2 * found["a"].calls


def test_cold_means_twice_the_cache_between_reuses():
    def cache(touched):
        return time_on_cpu({"a": lambda: None}, touched, 2**20, seconds=1e-6, samples=1)["a"]

    assert cache(2 * 2**20).cold and cache(2 * 2**20).cache == "cold (2 MiB between reuses)"
    assert not cache(2 * 2**20 - 1).cold and cache(2 * 2**20 - 1).cache == "warm"


def test_copies_make_a_gpu_cache_cold_as_far_as_memory_goes():
    copies = copies_for_cold(touched=10, cache_bytes=100, memory_bytes=10_000)
    assert (copies - 1) * 10 >= COLD_FACTOR * 100 > (copies - 2) * 10
    assert copies_for_cold(10, 100, memory_bytes=35) == 3
    assert copies_for_cold(10, 100, memory_bytes=5) == 1
    assert copies_for_cold(1, 10**9, 10**12) == 64
    assert copies_for_cold(0, 100, 1000) >= 1


def test_percentiles_are_linear_between_samples():
    timing = Timing([4.0, 1.0, 3.0, 2.0, 5.0], 1, "", 0, False, [])
    assert timing.median_us == 3.0
    assert [timing.percentile_us(share) for share in (0, 0.1, 0.5, 0.9, 1)] == pytest.approx([1, 1.4, 3, 4.6, 5])
