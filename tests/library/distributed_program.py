"""`test_distributed` starts this with torchrun: every process compares its layer with an undivided one.

    python -m torch.distributed.run --standalone --nproc-per-node 2 distributed_program.py FOLDER

Each check builds the same layer from a seed, once undivided and once divided by an engine of torch, and
compares outputs, weights and gradients in float64. The first process prints the name of each check that has
passed; an assertion that fails ends all processes.
"""

import copy
import datetime
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from mha_lib.cache import KeyValueCache
from mha_lib.inspection import capture_attention, gate_heads, head_importance
from mha_lib.models.parallel import shard_heads
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.rotary import RotaryPositionalEncoding
from mha_lib.scores import AdditiveScore
from mha_lib.transformer import EncoderBlock

BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, HEAD_DIM, KDIM, VDIM = 4, 12, 4, 5, 7, 6, 17, 19
EMBED_DIM = HEADS * HEAD_DIM


def make_layer(**options):
    """The same layer in each process."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, HEADS, bias=True, **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def random(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(x):
    """The whole of a tensor of which this process may hold only a part."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def compare_gradients(layer, reference):
    theirs = dict(reference.named_parameters())
    for name, parameter in layer.named_parameters():
        assert_close(whole(parameter.grad), theirs[name].grad, msg=lambda text, name=name: f"{name}: {text}")
        parameter.grad = theirs[name].grad = None


def my_heads(x, mesh):
    """This process's part of a tensor with the axes (batch, heads, ...)."""
    return x.chunk(mesh.size(), dim=1)[mesh.get_local_rank()]


def calls(mesh):
    """Arguments of the undivided layer, and those of a process that holds some of the heads."""
    lens = torch.tensor([7, 3, 0, 5])
    mask = random(BATCH, HEADS, Q_LEN, K_LEN, seed=5) > -0.5
    bias = random(1, HEADS, Q_LEN, 1, seed=6) * random(1, 1, 1, K_LEN, seed=7)
    yield {"valid_lens": lens, "is_causal": True}, {"valid_lens": lens, "is_causal": True}
    mine = {"attn_mask": my_heads(mask, mesh), "attn_bias": my_heads(bias, mesh)}
    yield {"attn_mask": mask, "attn_bias": bias}, mine


def check_divided_heads(mesh, folder):
    for options in (
        {"kdim": KDIM, "vdim": VDIM},
        {"num_kv_heads": KV_HEADS, "kdim": KDIM, "vdim": VDIM, "scale": torch.tensor(0.3)},
        {"num_kv_heads": KV_HEADS, "kdim": KDIM, "vdim": VDIM, "softcap": 9.0, "window": (3, 1),
         "rotary": RotaryPositionalEncoding(HEAD_DIM)},
    ):  # fmt: skip
        reference = make_layer(**options)
        layer = copy.deepcopy(reference)
        if mesh.get_rank() > 0:  # the first process's weights are used
            nn.init.zeros_(layer.q_proj.weight)
        assert shard_heads(layer, mesh) is layer
        assert layer.num_heads == HEADS // mesh.size()
        assert layer.q_proj.weight.to_local().shape == (EMBED_DIM // mesh.size(), EMBED_DIM)
        assert layer.v_proj.weight.to_local().shape == (reference.v_proj.out_features // mesh.size(), VDIM)
        assert layer.out_proj.weight.to_local().shape == (EMBED_DIM, EMBED_DIM // mesh.size())
        for everywhere, here in calls(mesh):
            for need_weights in (True, False):
                sizes = ((Q_LEN, EMBED_DIM), (K_LEN, KDIM), (K_LEN, VDIM))
                ours, theirs = (
                    [random(BATCH, *size, seed=n).requires_grad_() for n, size in enumerate(sizes)]
                    for _ in range(2)
                )
                expected, all_weights = reference(*theirs, need_weights=need_weights, **everywhere)
                output, weights = layer(*ours, need_weights=need_weights, **here)
                assert_close(output, expected)
                losses = (expected * random(*expected.shape)).sum(), (output * random(*output.shape)).sum()
                if need_weights:  # a loss on the weights of the heads that are here
                    assert_close(weights, my_heads(all_weights, mesh))
                    gathered = DTensor.from_local(weights, mesh, [Shard(1)]).full_tensor()
                    assert_close(gathered, all_weights)
                    losses = losses[0] + all_weights.square().sum(), losses[1] + weights.square().sum()
                for loss in losses:
                    loss.backward()
                for x, y in zip(ours, theirs, strict=True):
                    assert_close(x.grad, y.grad)
                compare_gradients(layer, reference)


def check_cache(mesh, folder):
    reference = make_layer(num_kv_heads=KV_HEADS)
    layer, x = shard_heads(copy.deepcopy(reference), mesh), random(BATCH, K_LEN, EMBED_DIM)
    with torch.no_grad():
        expected, _ = reference(x, x, x, is_causal=True)
        cache = KeyValueCache()
        parts = [layer(t, t, t, is_causal=True, cache=cache)[0] for t in x.split((3, 1, 3), dim=1)]
        assert_close(torch.cat(parts, dim=1), expected)
        assert cache.keys.shape == (BATCH, KV_HEADS // mesh.size(), K_LEN, HEAD_DIM)
        lens, ours, theirs = torch.tensor([3, 1, 0, 2]), KeyValueCache(), KeyValueCache()
        for step in x.split((3, 4), dim=1):  # samples of different lengths
            options = {"is_causal": True, "valid_lens": lens if not len(ours) else None}
            output, weights = layer(step, step, step, cache=ours, **options)
            expected, all_weights = reference(step, step, step, cache=theirs, **options)
            assert_close(output, expected)
            assert_close(weights, my_heads(all_weights, mesh))
        assert_close(layer(x[0], x[0], x[0])[0], reference(x[0], x[0], x[0])[0])  # without a batch axis


def check_inspection(mesh, folder):
    reference = make_layer(num_kv_heads=KV_HEADS)
    layer, x = shard_heads(copy.deepcopy(reference), mesh), random(BATCH, Q_LEN, EMBED_DIM)
    gates = random(1, HEADS)
    with gate_heads(reference, gates[0]), gate_heads(layer, my_heads(gates, mesh)[0]):
        assert_close(layer(x, x, x)[0], reference(x, x, x)[0])
    with capture_attention(layer) as captured:
        layer(x, x, x, need_weights=False)
    assert_close(captured[""], my_heads(reference(x, x, x)[1].detach(), mesh))
    ours, theirs = (
        head_importance(model, lambda model=model: model(x, x, x)[0].square().sum((1, 2)))
        for model in (layer, reference)
    )
    assert_close(ours, my_heads(theirs[None], mesh)[0])


def check_training_a_model(mesh, folder):
    """Two steps of Adam on a block whose attention is divided, part of which is frozen."""
    torch.manual_seed(0)
    reference = EncoderBlock(EMBED_DIM, HEADS, 13, num_kv_heads=KV_HEADS).double()
    reference.self_attention.k_proj.requires_grad_(False)
    model, x = copy.deepcopy(reference), random(BATCH, Q_LEN, EMBED_DIM)
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            shard_heads(layer, mesh)
    for trained in (model, reference):
        optimizer = torch.optim.Adam([p for p in trained.parameters() if p.requires_grad], foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            trained(x, valid_lens=torch.tensor([5, 2, 1, 4]), is_causal=True)[0].square().sum().backward()
            optimizer.step()
    parameters = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == parameters[name].requires_grad, name
        assert_close(whole(parameter), parameters[name])


def check_samples_divided(mesh, folder):
    """DDP and FSDP2: each process has some of the samples, gradients are those of the mean over all."""
    mine = slice(mesh.get_rank() * BATCH // mesh.size(), (mesh.get_rank() + 1) * BATCH // mesh.size())
    x, y = random(BATCH, Q_LEN, EMBED_DIM), random(BATCH, K_LEN, EMBED_DIM)
    lens = torch.tensor([7, 3, 1, 5])
    for engine in (DistributedDataParallel, lambda layer: fully_shard(layer, mesh=mesh)):
        for need_weights in (True, False):
            reference = make_layer(num_kv_heads=KV_HEADS)
            layer = engine(copy.deepcopy(reference))
            options = {"is_causal": True, "need_weights": need_weights}
            expected, all_weights = reference(x, y, y, valid_lens=lens, **options)
            output, weights = layer(x[mine], y[mine], y[mine], valid_lens=lens[mine], **options)
            assert_close(output, expected[mine])
            assert weights is None if not need_weights else torch.allclose(weights, all_weights[mine])
            expected.square().mean().backward()
            output.square().mean().backward()
            compare_gradients(getattr(layer, "module", layer), reference)


def check_heads_and_samples_divided(mesh, folder):
    """Four processes as two by two: the heads over one dimension, samples and parameters over the other."""
    if mesh.size() < 4:
        return
    both = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("samples", "heads"))
    reference, x = make_layer(num_kv_heads=KV_HEADS), random(BATCH, Q_LEN, EMBED_DIM)
    layer = fully_shard(shard_heads(copy.deepcopy(reference), both["heads"]), mesh=both["samples"])
    mine = x.chunk(2)[both["samples"].get_local_rank()]
    reference(x, x, x, is_causal=True)[0].square().mean().backward()
    layer(mine, mine, mine, is_causal=True)[0].square().mean().backward()
    compare_gradients(layer, reference)
    refuse(ValueError, "mesh must have one dimension", make_layer(), both)


def refuse(error, text, layer, mesh):
    before = [(name, type(p), p.requires_grad) for name, p in layer.named_parameters()]
    message = "not refused"
    try:  # by hand: importing pytest would take each process half a second
        shard_heads(layer, mesh)
    except error as refused:
        message = str(refused)
    assert text in message, message
    assert [(name, type(p), p.requires_grad) for name, p in layer.named_parameters()] == before


def check_refusals(mesh, folder):
    size = mesh.size()
    refuse(ValueError, f"num_heads=3, mesh.size()={size}", MultiHeadAttention(6, 3), mesh)
    refuse(ValueError, f"num_kv_heads=1, mesh.size()={size}", make_layer(num_kv_heads=1), mesh)
    learned, per_head = nn.Parameter(torch.tensor(0.5)), torch.ones(HEADS, 1, 1)
    refuse(ValueError, "attention.scale must be", make_layer(scale=learned), mesh)
    refuse(ValueError, "attention.scale must be", make_layer(scale=per_head), mesh)
    score = AdditiveScore(HEAD_DIM, HEAD_DIM, 3)
    refuse(ValueError, "attention.score must have no parameters", make_layer(score=score), mesh)
    for option, name in (("sink", "sink"), ("qk_norm", "q_norm")):
        text = f"attention.{name} must have no parameters"
        refuse(ValueError, text, make_layer(**{option: True}), mesh)
    refuse(TypeError, "attention.q_proj must be a plain Linear", shard_heads(make_layer(), mesh), mesh)


def check_checkpoint(mesh, folder):
    """Save what two engines divide; `test_distributed` reads it in a single process."""
    for name, divide in (
        ("heads", lambda layer: shard_heads(layer, mesh)),
        ("parameters", lambda layer: fully_shard(layer, mesh=mesh)),
    ):
        layer = divide(make_layer(num_kv_heads=KV_HEADS))
        dcp.save(layer.state_dict(), checkpoint_id=folder / name)
        again = divide(make_layer(num_kv_heads=KV_HEADS))
        for parameter in again.parameters():
            nn.init.zeros_(parameter)
        parts = again.state_dict()
        dcp.load(parts, checkpoint_id=folder / name)
        again.load_state_dict(parts)
        for key, value in make_layer(num_kv_heads=KV_HEADS).state_dict().items():
            assert_close(whole(parts[key]), value)


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for check in CHECKS:
        check(mesh, Path(sys.argv[1]))
        if dist.get_rank() == 0:
            print("passed:", check.__name__, flush=True)
    dist.destroy_process_group()
