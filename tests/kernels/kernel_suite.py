"""What every kernel must pass, as one class: derive from it in the kernel's test file and name the kernel.

    class TestRmsNorm(KernelSuite):
        kernel = "rms_norm"
        mutants = {"no eps": ("+ eps", "")}

`conftest.py` makes one test of each method per case, dtype, form and so on.
"""

import importlib.util
import os

import pytest
import torch
from kernel_checks import case_id

from wholecurve import kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None
STATIC_TARGETS = ("sm_90", "sm_100")


class KernelSuite:
    """kernel: name of the folder. dtypes: that replace the `dtype` of each test case, or None to leave it.

    mutants: what is broken → (text in kernel.py, replacement) or several such pairs; the text occurs once.
    mutant_cases: test cases that the mutants run on, None for all of them.
    """

    kernel = None
    dtypes = ("bfloat16", "float16", "float32")
    mutants = {}
    mutant_cases = None

    @property
    def subject(self):
        return kernels.load_subject(self.kernel)

    def test_agrees_with_float64(self, case, form):
        from wholecurve.profiling.checks import check_case

        finding = check_case(self.subject, case, form)
        assert finding, finding

    def test_formula_is_count(self, count_case):
        from wholecurve.kernels.launch import run_all
        from wholecurve.profiling.counting import count

        arguments = self.subject.arguments(count_case)
        launches, _ = self.subject.launches(arguments)
        with count() as counts:
            run_all(launches, interpreted=True)
        cost = self.subject.cost(count_case)
        assert counts.load_bytes == cost.load_bytes
        assert counts.store_bytes == cost.store_bytes
        assert counts.dot_flops == cost.flops_issued
        assert counts.atomic_bytes == 0  # sums in the order of arrival differ from run to run

    def test_stays_inside_its_tensors(self, case):
        from wholecurve.profiling.sanitizer import sanitize

        launches, _ = self.subject.launches(self.subject.arguments(case))
        for launch in launches:
            with sanitize(*launch.tensors):
                launch.run(interpreted=True)

    def test_configuration_agrees(self, config):
        from wholecurve.profiling.checks import check_case

        case = max(self.subject.spec.TESTS, key=lambda case: self.subject.cost(case).bytes_min)
        finding = check_case(self.subject, case, "interpret", config=self.subject.spec.CONFIGS[config])
        assert finding, finding

    def test_calls_repeat_bit_for_bit(self, form):
        from wholecurve.profiling.guards import bits

        case = max(self.subject.spec.TESTS, key=lambda case: self.subject.cost(case).bytes_min)
        first, second = (self.subject.run(self.subject.arguments(case), form) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert torch.equal(bits(one.flatten()), bits(other.flatten()))

    def test_compiles_for_production(self, bench, target):
        """With the launch's own specialisation; offsets that may pass 2³¹ are 64 bits wide."""
        from offsets import offsets_that_may_wrap

        from wholecurve.profiling.compile import compile_launch

        launches, _ = self.subject.launches(self.subject.arguments(self.subject.spec.BENCH[bench], "meta"))
        for launch in launches:
            compiled = compile_launch(launch, target)
            assert compiled.asm["cubin"]
            assert offsets_that_may_wrap(compiled.asm["ttir"]) == []

    def test_bench_cases_have_a_bound(self):
        for name, case in self.subject.spec.BENCH.items():
            cost = self.subject.cost(case)
            assert cost.bytes_min > 0 and cost.flops >= 0 and cost.bytes_model > 0, name
            assert case not in self.subject.spec.TESTS

    def test_mutant_is_caught(self, mutant, tmp_path, record_property):
        from wholecurve.profiling.checks import check_case

        variant = self.mutated(self.mutants[mutant], tmp_path)
        for case in self.mutant_cases or self.subject.spec.TESTS:
            try:
                finding = check_case(self.subject, case, f"mutant: {mutant}", variant=within_bounds(variant))
                how = "" if finding else finding.problems[0]
            except Exception as error:
                how = f"{type(error).__name__}: {error}"
            if how:
                break
        how = how or self.wraps(variant)
        if how:
            record_property("mutant", f"{self.kernel}\t{mutant}\t{how}")
            return
        pytest.fail(f"no test case of {self.kernel} sees this mutant: {mutant}")

    def wraps(self, variant):
        """Lines of compiled code whose 32-bit offset may pass 2³¹, in one text: no small case can show that."""
        from offsets import offsets_that_may_wrap

        from wholecurve.profiling.compile import compile_launch

        case = next(iter(self.subject.spec.BENCH.values()))
        launches, _ = variant(**self.subject.arguments(case, "meta"))
        lines = [offsets_that_may_wrap(compile_launch(launch, "sm_90").asm["ttir"]) for launch in launches]
        return "; ".join(f"a 32-bit offset may wrap: {line[:60]}" for found in lines for line in found[:1])

    def mutated(self, changes, folder):
        """`launches` of a copy of kernel.py with these changes."""
        origin = importlib.util.find_spec(f"wholecurve.kernels.{self.kernel}.kernel").origin
        with open(origin, encoding="utf-8") as file:
            source = file.read()
        for old, new in [changes] if isinstance(changes[0], str) else changes:
            assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in kernel.py"
            source = source.replace(old, new)
        path = folder / f"mutant_{self.kernel}.py"
        path.write_text(source, encoding="utf-8")
        module_spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        return module.launches


def within_bounds(variant):
    """A variant that runs its launches itself and in bounds: a broken address would end the whole test process."""
    from wholecurve.profiling.sanitizer import sanitize

    def run(**arguments):
        launches, outputs = variant(**arguments)
        for launch in launches:
            with sanitize(*launch.tensors):
                launch.run(interpreted=True)
        return outputs

    return run


def parametrise(metafunc):
    """What `pytest_generate_tests` does for a class that derives from KernelSuite."""
    suite = metafunc.cls
    subject = kernels.load_subject(suite.kernel)
    cases = subject.spec.TESTS
    forms = [form for form in subject.available_forms("cpu") if form != "interpret" or HAS_TRITON]
    if metafunc.function.__name__ == "test_stays_inside_its_tensors":
        choices = {"case": (cases, case_id)}
    elif metafunc.function.__name__ == "test_agrees_with_float64":
        typed = [case if name is None else case | {"dtype": name} for name in suite.dtypes or (None,) for case in cases]
        choices = {"case": (typed, case_id), "form": (forms, str)}
    else:
        choices = {
            "count_case": (cases, case_id),
            "form": (forms, str),
            "config": (list(subject.spec.CONFIGS), str),
            "bench": (list(subject.spec.BENCH)[:1] if quick() else list(subject.spec.BENCH), str),
            "target": (STATIC_TARGETS, str),
            "mutant": (list(suite.mutants), str),
        }
    for name, (values, naming) in choices.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=naming)


def quick():
    """Every production case is compiled for the committed table; here one of each kernel unless asked for all."""
    return os.environ.get("WHOLECURVE_ALL_CASES") != "1"
