"""The published sentence model in our classes, against HuggingFace's on the same files.

`make models` installs the files. These tests are for `make test-all`, which does; without them they fail.
"""

import pytest
import torch
from torch.testing import assert_close

from mha_course.data.book_text import book_text
from mha_course.data.sentences import SENTENCE_SHA256, load_sentence_model, sentence_folder
from mha_lib import capture_attention

pytestmark = pytest.mark.no_shape_checks


@pytest.fixture(scope="module")
def ours():
    return load_sentence_model()


def test_final_tokens_and_all_72_maps_are_those_of_huggingface(ours):
    import transformers

    model, tokenizer = ours
    theirs = transformers.BertModel.from_pretrained(sentence_folder(), attn_implementation="eager").eval()
    texts = [text for text in book_text("test").splitlines() if 40 < len(text) < 400][:20]
    assert len(texts) == 20
    for text in texts:
        tokens = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad(), capture_attention(model) as maps:
            final, logits = model(tokens)
            expected = theirs(tokens, output_attentions=True)
        assert logits is None
        assert_close(final, expected.last_hidden_state, atol=1e-4, rtol=0)
        assert len(maps) == 6
        for own, other in zip(maps.values(), expected.attentions, strict=True):
            assert own.shape[1] == 12
            assert_close(own, other, atol=1e-5, rtol=0)


def test_tokens_are_those_of_huggingface_uncut_and_unpadded(ours):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(sentence_folder())
    text = "Zoë's naïve sailors, 三个头, unaffable " * 30
    for given in ("", "two heads", text):
        expected = theirs(given, truncation=False, padding=False)["input_ids"]
        assert ours[1].encode(given).ids == expected
    assert len(ours[1].encode(text).ids) > 300


def test_only_three_files_are_unpacked():
    assert {path.name for path in sentence_folder().iterdir()} == {*SENTENCE_SHA256}


def test_near_sentences_have_near_vectors(ours):
    model, tokenizer = ours

    def vector(text):
        final = model(torch.tensor([tokenizer.encode(text).ids]))[0][0].mean(0)
        return final / final.norm()

    food = vector("A man is eating food.")
    assert 0.87 < food @ vector("A man eats something.") < 0.88
    for other in ("A woman is playing violin.", "The mask hides later tokens.", "Two men pushed carts."):
        assert food @ vector(other) < 0.21
