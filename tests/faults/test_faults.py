"""Do the tests notice? Each known fault is planted in a copy of the package, and its test must fail."""

import pytest
import runner

EACH_FAULT = pytest.mark.parametrize("fault", runner.FAULTS, ids=[fault.what for fault in runner.FAULTS])


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    return runner.Running(tmp_path_factory.mktemp("faults"), jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [type(kind).__name__.lower() for kind in runner.KINDS])
def test_without_a_fault_all_tests_pass(kind, running):
    verdict = running.of(f"{runner.SOUND} ({kind})")
    assert verdict.passed, verdict.log


@pytest.mark.slow
@EACH_FAULT
def test_fault_is_caught(fault, running):
    verdict = running.of(fault.what)
    assert verdict.caught_by, f"{fault.what}: not caught\n{verdict.log}"
