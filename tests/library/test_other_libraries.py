"""The library with the tools that people use around models: adapters, int8, sharding, offloading, ONNX."""

import copy

import pytest
import torch
import torch.distributed as dist
from random_tensors import random
from torch import nn

from mha_lib.models.language_models import GPT2, Bert, Llama
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.multi_head import MultiHeadAttention
from mha_lib.transformer import TransformerDecoder, TransformerEncoder

pytestmark = [pytest.mark.newer_torch, pytest.mark.no_shape_checks, pytest.mark.filterwarnings("ignore")]

SIZES = {"embed_dim": 32, "num_heads": 4, "hidden_dim": 64, "num_layers": 2}
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
X, MEMORY = (random(2, n, 32, seed=n, dtype=torch.float32) for n in (5, 7))
# A model, and a function that calls it.
MODELS = {
    "encoder": (lambda: TransformerEncoder(2, 32, 4, 64), lambda model: model(X)),
    "decoder": (lambda: TransformerDecoder(2, 32, 4, 64), lambda model: model(X, MEMORY)),
    "Llama": (lambda: Llama(19, **SIZES, max_len=64), lambda model: model(TOKENS)[1]),
    "GPT-2": (lambda: GPT2(19, **SIZES, max_len=64, tied=False), lambda model: model(TOKENS)[1]),
    "tied Llama": (lambda: Llama(19, **SIZES, max_len=64, tied=True), lambda model: model(TOKENS)[1]),
    "BERT": (lambda: Bert(19, **SIZES, max_len=64), lambda model: model(TOKENS)[1]),
    "encoder-decoder": (lambda: EncoderDecoder(19, 17, **SIZES), lambda model: model(TOKENS, TOKENS)),
}
EACH_MODEL = pytest.mark.parametrize("kind", MODELS)


def model_of(kind):
    torch.manual_seed(0)
    make, call = MODELS[kind]
    return make().eval(), call


@pytest.mark.parametrize("dora", [False, True], ids=["LoRA", "DoRA"])
@EACH_MODEL
def test_adapters_learn_everywhere_and_can_be_merged(kind, dora):
    from peft import LoraConfig, get_peft_model

    model, call = model_of(kind)
    plain = call(model)
    parts = model.named_modules()
    named = [name for name, part in parts if type(part) in (nn.Linear, nn.Embedding)]
    targets = sorted({name.rpartition(".")[2] for name in named})
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, use_dora=dora)).eval()
    torch.testing.assert_close(call(adapted), plain, rtol=1e-4, atol=1e-4)
    call(adapted).square().sum().backward()
    learned = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert [name for name, p in learned.items() if "lora_B" in name and not p.grad.any()] == []
    for seed, parameter in enumerate(learned.values()):
        parameter.data = parameter.data + 0.1 * random(*parameter.shape, seed=seed, dtype=torch.float32)
    before = call(adapted)
    assert not torch.allclose(before, plain, atol=1e-2)
    torch.testing.assert_close(call(adapted.merge_and_unload()), before, rtol=1e-3, atol=1e-3)


@EACH_MODEL
def test_weights_may_be_int8(kind):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model, call = model_of(kind)
    plain = call(model)
    quantize_(model, Int8WeightOnlyConfig())
    weights = [part.weight.data for part in model.modules() if isinstance(part, nn.Linear)]
    assert any(type(weight) is not torch.Tensor for weight in weights)
    torch.testing.assert_close(call(model), plain, rtol=0.1, atol=0.1)


@EACH_MODEL
def test_weights_may_wait_elsewhere(kind):
    from accelerate import cpu_offload

    model, call = model_of(kind)
    plain = call(model).detach()
    cpu_offload(model, torch.device("cpu"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    torch.testing.assert_close(call(model), plain)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@EACH_MODEL
def test_sharded_models_compute_in_half_precision(kind, mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, call = model_of(kind)
    plain = copy.deepcopy(model)
    plain = call(plain if kind in ("encoder", "decoder") else plain.bfloat16())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    parts = [part for part in model.modules() if type(part).__name__.endswith("Block")]
    parts += [part for part in (getattr(model, "output", None),) if part is not None]
    for part in (*parts, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    found = call(model)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain.float(), rtol=0.1, atol=0.1)
    found.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Decided(nn.Module):
    """A layer on its fused path, so that it takes only tensors."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = MultiHeadAttention(12, 3, **options).eval()

    def forward(self, x, lens, mask):
        return self.layer(x, attn_mask=mask, valid_lens=lens, need_weights=False)[0]


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"sink": True}, {"qk_norm": True}], ids=str)
def test_onnx_keeps_the_zeros_of_rows_that_see_nothing(options, tmp_path):
    import onnxruntime

    model, x, lens = Decided(**options), random(2, 5, 12, dtype=torch.float32), torch.tensor([3, 5])
    mask = random(2, 3, 5, 5, seed=1) > -0.5
    mask[0, 1, 3] = mask[1, :, 2] = False
    torch.onnx.export(model, (x, lens, mask), dynamo=True, verbose=False).save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    names = [given.name for given in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (x.numpy(), lens.numpy(), mask.numpy()), strict=True)))
    torch.testing.assert_close(torch.from_numpy(found), model(x, lens, mask))
