"""The public interface of mha_lib: names, signatures, docstrings whose examples run."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn

import attention_check
import mha_course
import mha_lib

ROOT = Path(mha_lib.__file__).parent


def modules_of(package):
    """The public modules of a package, by name."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found if "._" not in module.name]


LIBRARY = modules_of(mha_lib)
ENGINE = [f"attention_check._{name}" for name in "check command contract judging results".split()]
ENGINE += ["mha_course._exercise"]
# test_types.py covers the widgets; the pages draw the pictures and explain what they build.
OTHERS = re.compile(r"\.(widgets|exercises|questions|pictures|built|in_page)")
SUPPORT = [name for name in modules_of(mha_course) if not OTHERS.search(name)]
MODULES = (*LIBRARY, *SUPPORT)

# What other people's code relies on. Annotations are left out; `self` too.
TEXT = """\
scores.dot_product_score(query, key)
scores.scaled_dot_product_score(query, key, *, scale=None)
scores.softcap_scores(scores, cap)
scores.cosine_score(query, key)
scores.gaussian_score(query, key, bandwidth=1.0)
scores.AdditiveScore(query_dim, key_dim, hidden_dim, *, device=None, dtype=None)
scores.AdditiveScore.forward(query, key)
scores.BilinearScore(query_dim, key_dim, *, device=None, dtype=None)
scores.BilinearScore.forward(query, key)
masking.valid_lens_mask(valid_lens, k_len)
masking.causal_mask(q_len, k_len=None, *, device=None)
masking.sliding_window_mask(q_len, k_len=None, *, left, right=0, positions=None, device=None)
masking.build_mask(q_len, k_len, *, attn_mask=None, key_mask=None, valid_lens=None, is_causal=False,
    device=None)
masking.align_mask(mask, shape, *, name='mask')
masking.align_bias(bias, shape, *, name='attn_bias')
cache.KeyValueCache()
cache.KeyValueCache.append(keys, values, *, valid_lens=None)
cache.KeyValueCache.crop(length)
cache.KeyValueCache.keep_last(length)
cache.KeyValueCache.reorder(samples)
cache.KeyValueCache.to(device=None, dtype=None)
cache.KeyValueCache.check_fits(sizes, valid_lens)
attention.masked_softmax(scores, mask=None, *, valid_lens=None)
attention.attention_pooling(scores, value, mask=None, *, dropout_p=0.0)
attention.dot_product_attention(query, key, value, attn_mask=None, *, attn_bias=None, key_mask=None,
    valid_lens=None, is_causal=False, scale=None, softcap=None, dropout_p=0.0, need_weights=True)
multi_head.MultiHeadAttention(embed_dim, num_heads, *, num_kv_heads=None, head_dim=None, kdim=None, vdim=None,
    dropout=0.0, bias=False, scale=None, softcap=None, window=None, score=None, rotary=None, qk_norm=False,
    norm_eps=1e-06, sink=False, device=None, dtype=None)
multi_head.MultiHeadAttention.forward(query, key=None, value=None, attn_mask=None, *, attn_bias=None,
    key_mask=None, valid_lens=None, is_causal=False, cache=None, need_weights=True)
multi_head.MultiHeadAttention.to_torch()
conversion.mask_from_additive(mask)
cache.KeyValueCache.positions(q_len, new=None)
multi_head.MultiHeadAttention.split_heads(x)
multi_head.MultiHeadAttention.merge_heads(x)
multi_head.MultiHeadAttention.from_torch(layer)
positional.sinusoidal_encoding(num_positions, embed_dim, *, base=10000.0)
positional.SinusoidalPositionalEncoding(embed_dim, max_len=1000, *, dropout=0.0, device=None, dtype=None)
positional.SinusoidalPositionalEncoding.forward(x)
positional.LearnedPositionalEncoding(embed_dim, max_len=1000, *, dropout=0.0, device=None, dtype=None)
positional.LearnedPositionalEncoding.forward(x)
rotary.rotary_angles(num_positions, head_dim, *, base=10000.0, dtype=None)
rotary.apply_rotary(x, angles, *, interleaved=True)
rotary.RotaryPositionalEncoding(head_dim, *, base=10000.0, rotary_dim=None, interleaved=True, scaling=None)
rotary.RotaryPositionalEncoding.forward(x, positions=None)
models.rotary_scaling.RotaryScaling(kind, factor, trained_len=None, low=None, high=None,
    attention_factor=None)
relative.t5_buckets(q_len, k_len=None, *, num_buckets=32, max_distance=128, bidirectional=True,
    positions=None, device=None)
relative.T5RelativeBias(num_heads, *, num_buckets=32, max_distance=128, bidirectional=True, device=None,
    dtype=None)
relative.T5RelativeBias.forward(q_len, k_len=None, *, positions=None)
relative.ShawScore(head_dim, max_distance, *, device=None, dtype=None)
relative.ShawScore.forward(query, key, *, positions=None)
relative.alibi_slopes(num_heads, *, device=None)
relative.alibi_bias(num_heads, q_len, k_len=None, *, positions=None, device=None)
feed_forward.FeedForward(embed_dim, hidden_dim, *, dropout=0.0, activation='relu', bias=False, device=None,
    dtype=None)
transformer.EncoderBlock(embed_dim, num_heads, hidden_dim, *, dropout=0.0, norm_first=True, activation='relu',
    bias=False, norm='layer', layer_norm_eps=1e-05, attention_bias=None, window=None, rotary=None,
    num_kv_heads=None, head_dim=None, scale=None, softcap=None, qk_norm=False, sink=False, device=None,
    dtype=None, **unknown)
transformer.DecoderBlockCache(self_attention=<factory>, cross_attention=<factory>)
transformer.DecoderBlock(embed_dim, num_heads, hidden_dim, *, dropout=0.0, norm_first=True, activation='relu',
    bias=False, norm='layer', layer_norm_eps=1e-05, attention_bias=None, window=None, rotary=None,
    num_kv_heads=None, head_dim=None, scale=None, softcap=None, qk_norm=False, sink=False, device=None,
    dtype=None, **unknown)
transformer.TransformerEncoder(num_layers, embed_dim, num_heads, hidden_dim, **options)
transformer.TransformerDecoder(num_layers, embed_dim, num_heads, hidden_dim, **options)
models.seq2seq.EncoderDecoder(source_vocab, target_vocab, embed_dim, num_heads, hidden_dim, num_layers, *,
    max_len=1000, dropout=0.0, **options)
models.seq2seq.EncoderDecoder.forward(source, target, *, source_lens=None)
models.seq2seq.EncoderDecoder.encode(source, *, source_lens=None)
models.seq2seq.EncoderDecoder.decode(target, memory, *, source_lens=None, cache=None)
models.generation.greedy_decode(model, source, *, start, end, max_len, source_lens=None, use_cache=True)
models.generation.beam_decode(model, source, *, start, end, max_len, beam_size=4, source_lens=None)
models.language_models.GPT2(vocab_size, embed_dim, num_heads, hidden_dim, num_layers, *, max_len,
    activation='gelu_tanh', layer_norm_eps=1e-05, tied=True, dropout=0.0, device=None, dtype=None)
models.language_models.GPT2.forward(tokens, *, positions=None, key_mask=None, valid_lens=None, cache=None,
    logits_to_keep=None)
models.language_models.GPT2.new_cache()
models.language_models.Llama(vocab_size, embed_dim, num_heads, hidden_dim, num_layers, *, max_len,
    num_kv_heads=None, base=10000.0, layer_norm_eps=1e-06, tied=False, head_dim=None, attention_bias=False,
    mlp_bias=False, qk_norm=False, window=None, scaling=None, head=True, device=None, dtype=None)
models.language_models.Llama.forward(tokens, *, positions=None, key_mask=None, valid_lens=None, cache=None,
    logits_to_keep=None)
models.language_models.Llama.new_cache()
models.language_models.Bert(vocab_size, embed_dim, num_heads, hidden_dim, num_layers, *, max_len,
    num_segments=2, activation='gelu', layer_norm_eps=1e-12, head=True, device=None, dtype=None)
models.language_models.Bert.forward(tokens, segments=None, *, positions=None, key_mask=None, valid_lens=None)
models.checkpoints.load_checkpoint(source, *, revision=None, sha256=None)
models.checkpoints.save_checkpoint(model, folder)
feed_forward.FeedForward.forward(x)
transformer.EncoderBlock.forward(x, attn_mask=None, *, attn_bias=None, key_mask=None, valid_lens=None,
    is_causal=False, cache=None)
transformer.DecoderBlock.forward(x, memory, attn_mask=None, *, attn_bias=None, key_mask=None, valid_lens=None,
    memory_mask=None, memory_key_mask=None, memory_valid_lens=None, cache=None)
transformer.TransformerEncoder.forward(x, attn_mask=None, *, attn_bias=None, key_mask=None, valid_lens=None,
    is_causal=False, cache=None)
transformer.TransformerEncoder.new_cache()
transformer.TransformerDecoder.forward(x, memory, attn_mask=None, *, attn_bias=None, key_mask=None,
    valid_lens=None, memory_mask=None, memory_key_mask=None, memory_valid_lens=None, cache=None)
transformer.TransformerDecoder.new_cache()
feed_forward.RMSNorm(embed_dim, *, eps=1e-06, device=None, dtype=None)
feed_forward.RMSNorm.forward(x)
transformer.EncoderBlock.from_torch(module)
transformer.EncoderBlock.to_torch()
transformer.DecoderBlock.from_torch(module)
transformer.DecoderBlock.to_torch()
transformer.TransformerEncoder.from_torch(module)
transformer.TransformerEncoder.to_torch()
transformer.TransformerDecoder.from_torch(module)
transformer.TransformerDecoder.to_torch()
inspection.capture_attention(model)
inspection.gate_heads(attention, gates)
inspection.head_importance(attention, loss)
inspection.prune_heads(attention, heads)
models.parallel.shard_heads(attention, mesh)
models.generation.generate(model, tokens, *, max_new, source=None, source_lens=None, prompt_lens=None,
    key_mask=None, stop=(), temperature=0.0, top_k=None, top_p=None, beam_size=1, num_samples=1,
    generator=None, use_cache=True)
"""
OF_THE_JUDGE = """\
Finding(kind, message='', call='')
Report(findings, contract='', strict=False, pinned='', accept=())
check(attention, *, projections=None, num_heads=None, layout='auto', mask='auto',
    arrays='torch', scale=None, softcap=None, window=None, tries=None, strict=False,
    accept=())
check_rotary(rotate, *, base=10000.0, interleaved=True)
check_decoding(start, *, rotary=False, base=10000.0, interleaved=True)
vectors()
check_results(results)
main(arguments=None)
"""


def split_signatures(text):
    """Pairs of a name and its signature; a continued line is indented."""
    return [re.match(r"([^(]*)(.*)", line).groups() for line in text.replace("\n    ", " ").splitlines()]


SIGNATURES = {f"mha_lib.{path}": said for path, said in split_signatures(TEXT)}
SIGNATURES |= {f"attention_check.{path}": said for path, said in split_signatures(OF_THE_JUDGE)}


def public(module):
    """Name -> function or class that the module itself defines and does not hide."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(thing) or inspect.isclass(thing))
        and thing.__module__ == module.__name__
    }


FOUND = {module: public(importlib.import_module(module)) for module in MODULES}
PUBLIC = {f"{module}.{name}": thing for module in MODULES for name, thing in FOUND[module].items()}
# The judge has one public name for each thing; where it is defined is nobody's concern.
JUDGE = {
    f"attention_check.{name}": getattr(attention_check, name)
    for name in attention_check.__all__
    if name != "__version__"
}
PUBLIC |= JUDGE
METHODS = {
    f"{path}.{name}": getattr(thing, name)
    for path, thing in PUBLIC.items()
    if inspect.isclass(thing) and issubclass(thing, nn.Module)
    for name, member in vars(thing).items()
    if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
}


def test_the_layers_are_exported_and_nothing_else():
    layers = {
        path.rpartition(".")[2]: thing
        for path, thing in PUBLIC.items()
        if path.startswith("mha_lib.") and not path.startswith("mha_lib.models.checkpoints")
    }
    assert set(mha_lib.__all__) == {*layers, "__version__"}
    assert len(mha_lib.__all__) == len(set(mha_lib.__all__))
    assert {name for name, thing in layers.items() if getattr(mha_lib, name) is not thing} == set()


@pytest.mark.parametrize("path", SIGNATURES)
def test_names_and_signatures_stay(path):
    thing = pkgutil.resolve_name(path)
    signature = inspect.signature(thing)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    assert str(bare) == SIGNATURES[path]


def test_the_list_of_signatures_is_complete():
    of_library = {path for path in PUBLIC if path.startswith("mha_lib.")}
    assert of_library <= SIGNATURES.keys()
    assert JUDGE.keys() <= SIGNATURES.keys()


@pytest.mark.parametrize("path", PUBLIC | METHODS)
def test_everything_public_says_what_it_takes_and_raises(path):
    thing = (PUBLIC | METHODS)[path]
    text = inspect.getdoc(thing)
    assert text, "has no docstring"
    assert text[0].isupper()
    assert "." in text.splitlines()[0]
    if inspect.isclass(thing) and not issubclass(thing, nn.Module):
        return  # a container: its fields are its documentation
    if "Args:" in text:
        for name in inspect.signature(thing).parameters:
            said = name == "self" or re.search(rf"    (\w+, )?{name}(, \w+)?:", text)
            assert said, f"{name} is not documented"
    source = inspect.getsource(thing.__init__ if inspect.isclass(thing) else thing)
    if "raise " in source or "check_" in source:
        while other := re.search(r"Arguments and errors are those\s+of `([\w.]+)`", text):
            text = inspect.getdoc(attrgetter(other[1])(sys.modules[path.partition(".")[0]]))
        assert "Raises:" in text


def examples_of(module):
    """The docstrings of a module that hold examples, each once."""
    finder, module = doctest.DocTestFinder(exclude_empty=True), importlib.import_module(module)
    # Readers of an example have imported torch.
    return [test for test in finder.find(module, extraglobs={"torch": torch}) if test.examples]


EXAMPLES = {
    re.sub(r"^(attention_check)\._\w+", r"\1", test.name): test
    for module in (*LIBRARY, *ENGINE, *modules_of(mha_course))
    if not module.startswith("mha_course.pictures")
    for test in examples_of(module)
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    printed = []
    results = runner.run(EXAMPLES[name], out=printed.append, clear_globs=False)
    assert results.attempted > 0
    assert results.failed == 0, "".join(printed)


def test_everything_public_has_an_example():
    with_own = set(EXAMPLES)
    # Containers are made by the functions whose examples show them.
    containers = {
        "mha_course.data.Split", "mha_course.data.Sentences", "mha_course.data.dates.WrittenDates",
        "mha_course.training.History", "mha_course.experiments.Experiment",
        "mha_course.data.published.ModelFile", "mha_course.data.published.Packed",
    }  # fmt: skip
    assert set(PUBLIC) - containers <= with_own
    methods = ("split_heads", "merge_heads", "from_torch")
    assert {f"mha_lib.multi_head.MultiHeadAttention.{name}" for name in methods} <= with_own


def test_docstrings_state_the_corner_of_the_causal_mask_that_the_code_has():
    """Queries and keys end together; whatever hides the future says so, or names the function that does."""
    stated = (
        "The two sequences end together (bottom-right alignment): the last of `q_len` queries sees every one"
    )
    assert stated in " ".join(mha_lib.causal_mask.__doc__.split())
    assert mha_lib.causal_mask(2, 4)[-1].all() and not mha_lib.causal_mask(2, 4)[0].all()
    for path, thing in (PUBLIC | METHODS).items():
        text = " ".join((inspect.getdoc(thing) or "").split())
        assert not re.search(r"(begin|start)s? together|(top|upper)[- ]left|bottom-left", text), path
        assert "hide the future" not in text or "`causal_mask`" in text, path


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_the_library_loads_nothing_large():
    """A reader who imports the layers waits for torch and little else."""
    heavy = "matplotlib sklearn IPython anywidget ipywidgets pandas scipy tokenizers safetensors mha_course"
    seen = f"[name for name in {heavy.split()} if name in sys.modules]"
    done = run_python(f"import sys, mha_lib; print({seen})")
    assert done.stdout.strip() == "[]", done.stderr


def test_types_are_shipped_and_the_version_is_one():
    assert (ROOT / "py.typed").is_file()
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == mha_lib.__version__


def test_a_missing_module_is_reported_by_python_itself():
    assert importlib.util.find_spec("mha_lib.nope") is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mha_lib\.nope'$"):
        importlib.import_module("mha_lib.nope")
