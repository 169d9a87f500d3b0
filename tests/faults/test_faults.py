"""Do the tests notice? Each known fault is planted in a copy of the package, and its test must fail.

`make test-all` plants those of `for_each_push.txt`, which stand for their classes, and `make weekly` all.
"""

import pytest
import runner

EACH_FAULT = pytest.mark.parametrize("fault", runner.FAULTS, ids=[fault.what for fault in runner.FAULTS])


@pytest.fixture(scope="module")
def running(request, tmp_path_factory):
    """A run of the faults that were selected, and of no others."""
    planted = {
        item.callspec.params["fault"] for item in request.session.items if "test_fault_is_caught" in item.name
    }
    return runner.Running(tmp_path_factory.mktemp("faults"), 2, planted.__contains__)


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
