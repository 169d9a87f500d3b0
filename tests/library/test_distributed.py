"""The layer under torch's engines for many processes, which divide heads, samples or parameters."""

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import distributed_program
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from random_tensors import random

import mha_lib
from mha_lib import MultiHeadAttention
from mha_lib.models.parallel import shard_heads

pytestmark = [pytest.mark.newer_torch, pytest.mark.skipif(not dist.is_gloo_available(), reason="no gloo")]
PROGRAM = Path(distributed_program.__file__)
A_PROCESS_HANGS = 900  # seconds; the program takes about ten on an idle machine


def launch(processes, folder):
    """Run the program in so many processes on this machine, and return what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
               "--nproc-per-node", str(processes), str(PROGRAM), str(folder)]  # fmt: skip
    loopback = "lo" if sys.platform == "linux" else "lo0"
    settings = {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1", "JAXTYPING_DISABLE": "1"}
    root = str(Path(mha_lib.__file__).parents[1])  # the package under test, perhaps one with a planted fault
    with subprocess.Popen(
        command, env=os.environ | settings | {"PYTHONPATH": root}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as launcher:  # fmt: skip
        try:
            printed, _ = launcher.communicate(timeout=A_PROCESS_HANGS)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # ends the processes that it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            pytest.fail(f"{processes} processes hang; they printed\n{launcher.communicate()[0]}")
    assert launcher.returncode == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_layer_divided_over_processes_equals_the_layer_on_one(processes, tmp_path):
    printed = launch(processes, tmp_path)
    passed = [line.split()[1] for line in printed.splitlines() if line.startswith("passed: ")]
    assert passed == [check.__name__ for check in distributed_program.CHECKS]
    for name in ("heads", "parameters"):  # what they saved is read here, in a single process
        expected = distributed_program.make_layer(num_kv_heads=distributed_program.KV_HEADS)
        sizes = expected.embed_dim, expected.num_heads
        layer = MultiHeadAttention(*sizes, num_kv_heads=expected.num_kv_heads, bias=True)
        layer.double()
        state = layer.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it loads in a single process
            dcp.load(state, checkpoint_id=tmp_path / name)
        layer.load_state_dict(state)
        x = random(2, 5, expected.embed_dim)
        assert torch.equal(layer(x, x, x)[0], expected(x, x, x)[0])


@pytest.fixture
def mesh():
    """A mesh of only this process."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.no_shape_checks
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")  # F.linear returns a DTensor
def test_one_process_holds_all_heads(mesh, tmp_path):
    """The checks of the program that a single process can make."""
    for check in distributed_program.CHECKS:
        if check is not distributed_program.check_refusals:  # one divides every number of heads
            check(mesh, tmp_path)


@pytest.mark.parametrize(("scale", "got"), [
    (torch.nn.Parameter(torch.tensor(0.3)), r"shape \(\), requires_grad=True"),
    (torch.full((3, 1, 1), 0.3), r"shape \(3, 1, 1\), requires_grad=False"),
])  # fmt: skip
def test_a_scale_that_heads_would_share_is_refused(mesh, scale, got):
    rule = "be a number or a tensor with one element that needs no gradient, where heads are divided"
    with pytest.raises(ValueError, match=f"^attention.scale must {rule}, got {got}$"):
        shard_heads(MultiHeadAttention(6, 3, scale=scale), mesh)
