"""Divide the heads of a layer over processes; DDP and `fully_shard` support the layer without this."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from mha_lib._checks import check_divisible, check_type, refusal
from mha_lib.conversion import _PROJECTIONS, _check_plain_linear
from mha_lib.multi_head import MultiHeadAttention


def shard_heads(attention: MultiHeadAttention, mesh: DeviceMesh) -> MultiHeadAttention:
    """Divide the heads of a layer over the processes of `mesh` (tensor parallelism, Shoeybi et al., 2019).

    Every process calls this function, then calls the layer with the same inputs and gets the same output.
    Process r of R has heads r * num_heads / R up to (r + 1) * num_heads / R, with the keys and values that
    they share: rows of `q_proj`, `k_proj` and `v_proj` (`ColwiseParallel`) and columns of `out_proj`
    (`RowwiseParallel`). The heads of a process need nothing from the other processes. One all-reduce in the
    forward pass adds up the contributions of all heads to the output. In the backward pass, one all-reduce
    for each of query, key and value that requires grad adds up the gradients.

    Everything with a head axis is local afterwards: `num_heads`, `num_kv_heads`, the returned weights, the
    cache, the gates of `gate_heads`, and masks and biases per head. To gather weights and cut a mask::

        weights = DTensor.from_local(weights, mesh, [Shard(1)]).full_tensor()
        mask = mask.chunk(mesh.size(), dim=1)[mesh.get_local_rank()]

    All processes get the weights of the mesh's first process. Each parameter becomes a `DTensor` under its
    old name, so `torch.distributed.checkpoint` can save and load it on any number of processes. Call this
    function for each layer of a model, before `fully_shard` and before you create the optimizer. With
    dropout, each process draws for its own heads; with the same seed, all processes draw the same numbers. A
    learned bias that is passed to the layer receives on each process only the gradient of its heads.

    Args:
        attention: the layer, which is changed in place and returned.
        mesh: processes in one dimension, such as `torch.distributed.init_device_mesh("cpu", (2,))`, or one
            dimension of a larger mesh, `mesh["heads"]`.

    Raises:
        TypeError: `attention` is not a `MultiHeadAttention`, `mesh` is not a `DeviceMesh`, or a projection is
            not a plain `nn.Linear`, because a wrapper replaced it or it is already divided.
        ValueError: `mesh` has several dimensions, its size does not divide `num_heads` and `num_kv_heads`, or
            heads share something that is learned or that differs between them (a tensor `scale`, parameters
            of `score` or `rotary`, `qk_norm`, a `sink`), of which a process would see only its heads' part.

    Example:
        Here with one process; `torchrun --nproc-per-node 2 program.py` starts two and needs no `store`.

        >>> import torch
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = dist.init_device_mesh("cpu", (1,))
        >>> attention = shard_heads(MultiHeadAttention(6, 3), mesh)
        >>> x = torch.ones(2, 5, 6)
        >>> output, weights = attention(x, x, x, is_causal=True)
        >>> output.shape, attention.q_proj.weight.placements
        (torch.Size([2, 5, 6]), (Shard(dim=0),))
        >>> dist.destroy_process_group()
    """
    check_type("attention", attention, MultiHeadAttention)
    check_type("mesh", mesh, DeviceMesh)
    if mesh.ndim != 1:
        rule = 'have one dimension, of the processes that divide the heads, such as mesh["heads"]'
        got = f"{mesh.ndim}: {mesh.mesh_dim_names or tuple(mesh.mesh.shape)}"
        raise refusal("mesh", rule, got)
    _check_plain_linear(attention)
    for name in ("num_heads", "num_kv_heads"):
        check_divisible(**{name: getattr(attention, name), "mesh.size()": mesh.size()})
    scale = attention.scale
    if isinstance(scale, Tensor) and (scale.numel() > 1 or scale.requires_grad):
        rule = "be a number or a tensor with one element that needs no gradient, where heads are divided"
        got = f"shape {tuple(scale.shape)}, requires_grad={scale.requires_grad}"
        raise refusal("attention.scale", rule, got)
    shared = ("score", "rotary", "q_norm", "k_norm", "sink")
    for name, _ in attention.named_parameters():
        part = name.partition(".")[0]
        if part in shared:
            rule = "have no parameters where heads are divided"
            raise refusal(f"attention.{part}", rule, f"the parameter {name}")

    # This import takes a second, so it runs only when the function is called.
    from torch.distributed.tensor import parallel

    trained = {name: p.requires_grad for name, p in attention.named_parameters()}
    plan: dict[str, parallel.ParallelStyle] = {"out_proj": parallel.RowwiseParallel()}
    plan |= {name: parallel.ColwiseParallel() for name in _PROJECTIONS[:3]}
    parallel.parallelize_module(attention, mesh, plan)
    attention.num_heads //= mesh.size()
    attention.num_kv_heads //= mesh.size()
    # Older versions of torch lose track of frozen parameters here.
    for name, parameter in attention.named_parameters():
        parameter.requires_grad_(trained[name])
    return attention
