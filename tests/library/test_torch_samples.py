"""The sample inputs with which torch tests its own attention, through torch's functions and through ours.

They come from private modules of torch. Torch's names are translated here; the samples that our layer must
refuse are counted, and it refuses them. Every result is compared with that of torch, most in float64.
"""

import functools
import inspect
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

from mha_lib import MultiHeadAttention, causal_mask, dot_product_attention

BOTH_PATHS = pytest.mark.parametrize("need_weights", [True, False], ids=["readable", "fused"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)


@functools.cache
def samples(operator, dtype=torch.float64, requires_grad=True):
    """Torch's samples for one of its operators, (positional arguments, keyword arguments) each."""
    (info,) = [info for info in op_db if info.name == operator]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = list(info.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    return [((sample.input, *sample.args), sample.kwargs) for sample in found]


def gradients(output, inputs):
    """Gradient of a sum in which each entry of the output has a different factor."""
    factors = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
    return torch.autograd.grad(output, inputs, factors.reshape(output.shape))


# Entries lie between -9 and 9, scores go up to 230, and to thousands behind matrices of
# such entries. So torch allows 5e-5 in float32; half precision rounds the weights, and
# then their products with the values.
ABSOLUTE = {torch.float64: 1e-10, torch.float32: 5e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}


def assert_close(actual, exact):
    """Compare with a float64 answer."""
    assert exact.dtype == torch.float64
    rtol = 4 * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=ABSOLUTE[actual.dtype])


# F.scaled_dot_product_attention

SDPA = "nn.functional.scaled_dot_product_attention"
EACH_SAMPLE = pytest.mark.parametrize("index", range(len(samples(SDPA))))


def doubled(tensor):
    return None if tensor is None else tensor.detach().double().requires_grad_()


def equal_leading_axes(tensors):
    """Torch broadcasts queries over the samples; with our function the caller has to expand them."""
    if len({tensor.ndim for tensor in tensors}) == 1:
        return tensors
    lead = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
    return [tensor.expand(*lead, *tensor.shape[-2:]) for tensor in tensors]


def ours(query, key, value, attn_mask=None, *, is_causal=False, dropout_p=0.0, **more):
    """`dot_product_attention` under the arguments of F.scaled_dot_product_attention."""
    query, key, value = equal_leading_axes((query, key, value))
    if is_causal:
        # Torch lets both sequences start together, we let them end together: its mask is
        # the first rows of a square one.
        size = max(query.shape[-2], key.shape[-2])
        more["attn_mask"] = causal_mask(size)[: query.shape[-2], : key.shape[-2]]
    return dot_product_attention(query, key, value, attn_bias=attn_mask, dropout_p=dropout_p, **more)


def compare_gradients(output, inputs, expected, leaves):
    pairs = zip(gradients(output, inputs), gradients(expected, leaves), strict=True)
    for actual, wanted in pairs:
        assert_close(actual, wanted)


@EACH_SAMPLE
@DTYPES
@BOTH_PATHS
def test_sdpa_samples(index, dtype, need_weights):
    tensors, options = samples(SDPA, dtype)[index]
    # Dropout is random; the samples are also useful without it.
    options = options | {"dropout_p": 0.0}
    bias = options.pop("attn_mask", None)
    output, weights = ours(*tensors, bias, **options, need_weights=need_weights)
    exact = [doubled(tensor) for tensor in (*tensors, bias)]
    expected = F.scaled_dot_product_attention(*exact, **options)
    assert output.dtype == dtype
    assert_close(output, expected)
    assert (weights is not None) == need_weights
    if dtype == torch.float64:
        inputs = [tensor for tensor in (*tensors, bias) if tensor is not None]
        leaves = [tensor for tensor in exact if tensor is not None]
        compare_gradients(output, inputs, expected, leaves)
    if need_weights:
        # With the identity as values, the output is the weights.
        query, key, value = equal_leading_axes(exact[:3])
        identity = torch.eye(key.shape[-2], dtype=torch.float64).expand(*value.shape[:-1], -1)
        assert_close(weights, F.scaled_dot_product_attention(query, key, identity, exact[3], **options))


@pytest.mark.parametrize("index", [i for i, (_, options) in enumerate(samples(SDPA)) if options["dropout_p"]])
def test_sdpa_samples_with_dropout(index):
    # The fused path is torch's own function: from one seed it drops the same weights.
    tensors, options = samples(SDPA)[index]
    answers = []
    for function in (functools.partial(ours, need_weights=False), F.scaled_dot_product_attention):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            answers.append(function(*tensors, **options))
    (output, _), expected = answers
    assert_close(output, expected)


# Torch's samples leave these arguments out, so they are added to the samples.
FOUR_AXES = pytest.mark.parametrize(
    "index",
    [
        i
        for i, (tensors, options) in enumerate(samples(SDPA))
        if tensors[0].ndim == 4 and not options["dropout_p"]
    ],
)


@FOUR_AXES
@BOTH_PATHS
def test_sdpa_samples_with_two_key_heads(index, need_weights):
    (query, key, value), options = samples(SDPA)[index]
    assert query.shape[1] == 4  # so that groups of neighbours differ from every other head
    inputs = query, key[:, :2], value[:, :2]
    options = options | {"scale": 0.05}
    bias = options.pop("attn_mask", None)
    output, _ = ours(*inputs, bias, **options, need_weights=need_weights)
    expected = F.scaled_dot_product_attention(*inputs, bias, **options, enable_gqa=True)
    assert_close(output, expected)
    compare_gradients(output, (query, key, value), expected, (query, key, value))


@FOUR_AXES
@BOTH_PATHS
def test_sdpa_samples_with_bool_masks(index, need_weights):
    (query, key, value), _ = samples(SDPA)[index]
    # Which keys are visible follows the samples' own numbers; to some queries none is.
    by_head = (query @ key.mT).detach() > 0
    for mask in (by_head, by_head[0, 0]):
        assert mask.any() and not mask.all()
        output, _ = dot_product_attention(query, key, value, mask, need_weights=need_weights)
        expected = F.scaled_dot_product_attention(query, key, value, mask)
        assert_close(output, expected)
        compare_gradients(output, (query, key, value), expected, (query, key, value))


@FOUR_AXES
@BOTH_PATHS
def test_sdpa_samples_with_our_causal_mask(index, need_weights):
    # Torch's name for the alignment that our masks always have.
    (query, key, value), _ = samples(SDPA)[index]
    assert query.shape[2] < key.shape[2]
    output, _ = dot_product_attention(query, key, value, is_causal=True, need_weights=need_weights)
    expected = F.scaled_dot_product_attention(
        query, key, value, causal_lower_right(query.shape[2], key.shape[2])
    )
    assert_close(output, expected)
    compare_gradients(output, (query, key, value), expected, (query, key, value))
    as_many = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    output, _ = dot_product_attention(query, *as_many, is_causal=True, need_weights=need_weights)
    expected = F.scaled_dot_product_attention(query, *as_many, is_causal=True)
    assert_close(output, expected)


# The kernel for GPUs that F.scaled_dot_product_attention may call. Its samples have other
# strides, a scale, and both alignments; they are answered by the function here.

EFFICIENT = "torch.ops.aten._efficient_attention_forward"
ALIGNMENTS = {0: None, 1: causal_upper_left, 2: causal_lower_right}


def is_packed(options):
    """Whether sequences of several lengths are packed into one, which our axes cannot express."""
    return options["cu_seqlens_q"] is not None


# Their dropout is left out too.
UNPACKED = [i for i, (_, o) in enumerate(samples(EFFICIENT)) if not is_packed(o)]


@pytest.mark.parametrize("index", UNPACKED)
@BOTH_PATHS
def test_samples_of_the_gpu_kernel(index, need_weights):
    tensors, options = samples(EFFICIENT)[index]
    # Axes are (batch, len, heads, width) there.
    query, key, value = (tensor.detach().transpose(1, 2).requires_grad_() for tensor in tensors)
    rule = ALIGNMENTS[options["custom_mask_type"]]
    lens, scale, bias = ((query.shape[2], key.shape[2]), options["scale"], options["bias"])
    assert rule is None or bias is None
    mask = bias if rule is None else rule(*lens)
    expected = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    if rule is causal_upper_left:
        mask = causal_mask(max(lens))[: lens[0]]
    output, _ = dot_product_attention(
        query,
        key,
        value,
        mask if rule is causal_upper_left else None,
        attn_bias=bias,
        is_causal=rule is causal_lower_right,
        scale=scale,
        need_weights=need_weights,
    )
    inputs = [query, key, value] if bias is None else [query, key, value, bias]
    assert_close(output, expected)
    compare_gradients(output, inputs, expected, inputs)


# nn.MultiheadAttention

(MODULE,) = [info for info in module_db if info.module_cls is nn.MultiheadAttention]


@functools.cache
def module_samples(training):
    """(arguments of the constructor, positional, keyword arguments of the call) of each sample."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = MODULE.module_inputs_func(
            MODULE, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        )
    return [(s.constructor_input.kwargs, s.forward_input.args, s.forward_input.kwargs) for s in found]


def is_refused(options):
    """Whether learned or zero keys are appended to the keys, which our layer does not support."""
    return options["add_bias_kv"] or options["add_zero_attn"]


TAKEN = [i for i, (o, *_) in enumerate(module_samples(True)) if not is_refused(o)]
REFUSED = [i for i, (o, *_) in enumerate(module_samples(True)) if is_refused(o)]


def torch_layer(options):
    """Torch's layer with random biases instead of the initial zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        layer = nn.MultiheadAttention(**options, dtype=torch.float64)
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("index", TAKEN)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@BOTH_PATHS
def test_module_samples(index, training, need_weights):
    options, inputs, masks = module_samples(training)[index]
    theirs = torch_layer(options).train(training)
    layer = MultiHeadAttention.from_torch(theirs)
    # None of these samples has a batch axis.
    assert all(tensor.ndim == 2 for tensor in inputs)
    mask, padding = masks["attn_mask"], masks["key_padding_mask"]
    assert mask is None or mask.ndim == 3  # heads, queries, keys
    lens = None
    if padding is not None:
        lens = (~padding).sum().reshape(1)
        assert not padding[: int(lens)].any()  # it hides the end, as lengths do
    output, weights = layer(
        *(tensor[None] for tensor in inputs),
        None if mask is None else ~mask[None],
        valid_lens=lens,
        need_weights=need_weights,
    )
    expected, their_weights = theirs(*inputs, **masks, need_weights=need_weights, average_attn_weights=False)
    assert_close(output[0], expected)
    assert (weights is None) == (their_weights is None) == (not need_weights)
    if need_weights:
        assert_close(weights[0], their_weights)
    compare_layers(layer, output, theirs, expected, inputs)
    if not training:
        with torch.no_grad():  # here torch's layer may take a short cut of its own
            fast, _ = theirs(*inputs, **masks, need_weights=False)
        assert_close(output[0], fast)


def compare_layers(layer, output, theirs, expected, inputs):
    """Gradients by inputs and parameters; torch's layer has the three matrices of the inputs in one."""
    ours, torchs = dict(layer.named_parameters()), dict(theirs.named_parameters())
    grads = gradients(output, [*inputs, *ours.values()])
    wanted = gradients(expected, [*inputs, *torchs.values()])
    count = len(inputs)
    for actual, other in zip(grads[:count], wanted[:count], strict=True):
        assert_close(actual, other)
    ours = dict(zip(ours, grads[count:], strict=True))
    torchs = dict(zip(torchs, wanted[count:], strict=True))
    for part in ("weight", "bias") if "q_proj.bias" in ours else ("weight",):
        split = torch.cat([ours[f"{name}_proj.{part}"] for name in "qkv"])
        assert_close(split, torchs[f"in_proj_{part}"])
        assert_close(ours[f"out_proj.{part}"], torchs[f"out_proj.{part}"])


@pytest.mark.parametrize("index", REFUSED)
def test_module_samples_that_are_refused(index):
    options, *_ = module_samples(True)[index]
    with pytest.raises(ValueError, match="add_bias_kv=False and add_zero_attn=False"):
        MultiHeadAttention.from_torch(torch_layer(options))


# F.multi_head_attention_forward, the function behind nn.MultiheadAttention

FUNCTION = "nn.functional.multi_head_attention_forward"
# Torch makes many samples only if no gradient is requested.
FUNCTIONS = samples(FUNCTION, requires_grad=False)
SIGNATURE = inspect.signature(F.multi_head_attention_forward)


@pytest.mark.parametrize("index", range(len(FUNCTIONS)))
@BOTH_PATHS
def test_function_samples(index, need_weights):
    inputs, options = FUNCTIONS[index]
    given = SIGNATURE.bind(*inputs, **options).arguments
    # All samples have extra keys, which our layer has not, and half of them drop weights at
    # random. The rest of their numbers serves without both.
    given |= {"bias_k": None, "bias_v": None, "dropout_p": 0.0, "training": False}
    query, key, value = inputs = [given[name].clone().requires_grad_() for name in ("query", "key", "value")]
    given |= {"query": query, "key": key, "value": value}
    width, heads = given["embed_dim_to_check"], given["num_heads"]
    layer = MultiHeadAttention(width, heads, bias=True).double()
    separate = [given[f"{name}_proj_weight"] for name in "qkv"]
    stacked = given["in_proj_weight"]
    if given["use_separate_proj_weight"]:
        stacked = torch.cat(separate)
    layer.load_state_dict(
        {f"{n}_proj.weight": w for n, w in zip("qkv", stacked.chunk(3), strict=True)}
        | {f"{n}_proj.bias": b for n, b in zip("qkv", given["in_proj_bias"].chunk(3), strict=True)}
        | {"out_proj.weight": given["out_proj_weight"], "out_proj.bias": given["out_proj_bias"]}
    )  # fmt: skip
    batched = query.ndim == 3  # (len, batch, width), or (len, width) for one sample
    bias = given["attn_mask"]
    if bias is not None and bias.ndim == 3:
        # Samples and heads are one axis there.
        bias = bias.unflatten(0, (-1, heads))
    output, weights = layer(
        *(x.transpose(0, 1) if batched else x[None] for x in inputs),
        attn_bias=bias,
        need_weights=need_weights,
    )
    expected, their_weights = F.multi_head_attention_forward(
        **given, need_weights=need_weights, average_attn_weights=False
    )
    output = output.transpose(0, 1) if batched else output[0]
    assert_close(output, expected)
    compare_gradients(output, inputs, expected, inputs)
    if need_weights:
        assert_close(weights if batched else weights[0], their_weights)


# Nothing is silently left out


def test_every_sample_is_used():
    # As torch 2.13 has them; another version may have more.
    assert len(samples(SDPA)) >= 25
    assert len(UNPACKED) >= 17 and len(samples(EFFICIENT)) - len(UNPACKED) <= 1
    for training in (True, False):
        refused = [is_refused(options) for options, *_ in module_samples(training)]
        assert refused == [is_refused(options) for options, *_ in module_samples(True)]
        assert refused.count(False) == len(TAKEN) >= 16
        assert refused.count(True) == len(REFUSED) >= 48
    assert len(FUNCTIONS) >= 192
    # What they vary, so that a change there is noticed here.
    ranks = {tuple(tensor.ndim for tensor in tensors) for tensors, _ in samples(SDPA)}
    assert {(3, 3, 3), (4, 4, 4), (3, 4, 4)} <= ranks
    kinds = {(options["custom_mask_type"], options["scale"]) for _, options in samples(EFFICIENT)}
    assert set(itertools.product((1, 2), (None, 1.0))) <= kinds
