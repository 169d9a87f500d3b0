"""The published chat model: our reader against the format's own, our model against HuggingFace's.

`make models` installs the file. These tests are for `make test-all`, which does; without it they fail.
"""

import pytest
import torch
from torch.testing import assert_close

from mha_course.data.book_text import book_text
from mha_course.data.published import CHAT_SHA256, chat_file, load_chat_model, read_gguf, unpack
from mha_lib import generate

pytestmark = pytest.mark.no_shape_checks
QUESTION = """<|im_start|>user
What is the capital of France?<|im_end|>
<|im_start|>assistant
"""


@pytest.fixture(scope="module")
def file():
    return read_gguf(chat_file(), sha256=CHAT_SHA256)


@pytest.fixture(scope="module")
def ours():
    return load_chat_model(max_len=128)


@pytest.fixture(scope="module")
def theirs():
    """HuggingFace's model, which reads the same file by its own code, rows of queries and keys included."""
    import transformers

    folder, name = chat_file().parent, chat_file().name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    assert type(model).__name__ == "LlamaForCausalLM"
    return model.eval()


def test_every_matrix_is_unpacked_as_the_format_s_own_package_does(file):
    import gguf

    reader = gguf.GGUFReader(chat_file())
    assert [tensor.name for tensor in reader.tensors] == list(file.tensors)
    assert len(file.tensors) == 272
    assert {packed.kind for packed in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
    for tensor in reader.tensors:
        numbers = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert_close(unpack(file.tensors[tensor.name]), numbers, atol=0, rtol=0, msg=tensor.name)


def test_the_metadata_are_those_of_the_format_s_own_package(file):
    import gguf

    fields = gguf.GGUFReader(chat_file()).fields
    assert {name for name in fields if not name.startswith("GGUF.")} == set(file.metadata)
    for name, value in file.metadata.items():
        assert fields[name].contents() == value, name


def test_logits_and_64_greedy_tokens_are_those_of_huggingface(ours, theirs):
    model, tokenizer = ours
    tokens = torch.tensor([tokenizer.encode(QUESTION).ids])
    with torch.no_grad():
        logits = model(tokens)[1]
        assert_close(logits, theirs(tokens).logits, atol=1e-3, rtol=0)
        mine, _ = generate(model, tokens, max_new=64)
        whole = theirs.generate(tokens, max_new_tokens=64, min_new_tokens=64, do_sample=False)
    # min_new_tokens hides the end of the text until 64 tokens are written, so ours may differ after it.
    answer = mine[0, 0].tolist()
    end = answer.index(tokenizer.token_to_id("<|im_end|>"))
    assert answer[:end] == whole[0, tokens.shape[1] :].tolist()[:end]
    assert tokenizer.decode(answer[:end]) == "The capital of France is Paris."


def test_64_tokens_of_a_text_that_goes_on_are_the_same(ours, theirs):
    model, tokenizer = ours
    tokens = torch.tensor([tokenizer.encode("The old baker's sailors near the teacher").ids])
    mine, _ = generate(model, tokens, max_new=64)
    theirs.generation_config.eos_token_id = None
    whole = theirs.generate(tokens, max_new_tokens=64, do_sample=False)
    assert mine[0, 0].tolist() == whole[0, tokens.shape[1] :].tolist()


def test_tokens_are_those_of_huggingface_and_give_every_text_back(ours):
    import transformers

    _, tokenizer = ours
    folder, name = chat_file().parent, chat_file().name
    reference = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    lines = [line for line in book_text("train").splitlines() if line][:300]
    lines += [
        "你好，世界",
        "def f(x):\n    return x[-1]",
        "1234567",
        "a\tb  c ",
        "<|im_start|>user\nhi<|im_end|>",
    ]
    for line in lines:
        ids = tokenizer.encode(line).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == line
        if not any(letter.isdigit() for letter in line):
            assert ids == reference.encode(line, add_special_tokens=False), line
    assert len(tokenizer.encode("1234567").ids) == 7
    assert tokenizer.encode("<|im_start|>").ids == [1]
    assert tokenizer.encode("").ids == []
