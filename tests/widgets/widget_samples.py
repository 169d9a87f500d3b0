"""One of each widget, for the tests that concern them all."""

import torch

import mha_course.widgets
from mha_course.data import pointer_batch
from mha_course.data.dates import DATE_LETTERS, ISO_SYMBOLS
from mha_course.questions import cards
from mha_course.widgets import CourseWidget, Explorer, Progress
from mha_course.widgets.ablation_lab import AblationLab
from mha_course.widgets.chat_heads import ChatHeads, ChatMaps, TextMaps
from mha_course.widgets.head_explorer import HeadExample, HeadExplorer
from mha_course.widgets.heads_meet import HeadsMeet
from mha_course.widgets.line_order import LineOrder
from mha_course.widgets.map_prediction import MapPrediction
from mha_course.widgets.puzzles import PUZZLES
from mha_course.widgets.quiz import Question, Quiz
from mha_course.widgets.sentence_heads import SentenceHeads
from mha_course.widgets.sentence_model import MARKS
from mha_course.widgets.translator import Translator
from mha_course.widgets.typed_answer import TypedAnswer
from mha_course.widgets.writer import Writer
from mha_lib import GPT2, Bert, MultiHeadAttention
from mha_lib.models.seq2seq import EncoderDecoder
from mha_lib.positional import LearnedPositionalEncoding


def head_explorer():
    """A sentence whose layer is cut at every number of heads."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 2)
    x = 2 * torch.randn(5, 12)
    words = ["to", "be", "or", "not", "be"]
    return HeadExplorer([HeadExample("sentence", words, x, layer)])


def quiz():
    """Two questions, with the mark-up that a text may have."""
    return Quiz(
        [
            Question("Which width is under the `√`?", ["`embed_dim`", "`head_dim`"], 1),
            Question("How many *parameters*?", [64, 256], 4 * 8**2, "Four of 8 · 8."),
        ]
    )


def map_prediction():
    """Two queries and three keys."""
    return MapPrediction(
        "Which keys does each *query* see?",
        ["`q` 0", "`q` 1"],
        ["k 0", "k 1", "k 2"],
        [[True, False, False], [True, True, False]],
        computed=[[key <= query for key in range(3)] for query in range(2)],
        feedback={"`q` 1": "It sees *itself*."},
    )


def typed_answer():
    """A number with a known wrong answer and a hint."""
    return TypedAnswer(
        "How many weights has a projection of *width* 8?",
        64,
        computed=8**2,
        feedback={256: "That is all four."},
        hints=["It is square.", "`8 * 8`"],
    )


def ablation_lab():
    """Two models that have learned nothing, of two and of four heads."""
    torch.manual_seed(0)
    models = []
    for num_heads in (2, 4):
        model = torch.nn.Module()
        model.embedding = torch.nn.Embedding(8, 8)
        model.positions = LearnedPositionalEncoding(8, max_len=12)
        model.attention = MultiHeadAttention(8, num_heads)
        model.read_out = torch.nn.Linear(8, 16)
        models.append(model)
    batch = pointer_batch(30, generator=torch.Generator().manual_seed(0))
    return AblationLab(models, *batch, tasks=("previous", "mirrored"))


def heads_meet():
    """Three heads that have learned nothing, with biases and a residual; every size is another one."""
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(11, 15)
    model.positions = LearnedPositionalEncoding(15, max_len=7)
    model.attention = MultiHeadAttention(15, 3, bias=True)
    model.read_out = torch.nn.Linear(15, 2 * 11)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    words = ["", "we", "you", "like", "see", "hot", "cold", "tea", "milk", "today", "here"]
    sentences = ["we like hot tea today", "you see milk", "here you like cold milk today"]
    return HeadsMeet(model, sentences, words=words, tasks=["who", "what"], blank="today", residual=True)


def translator():
    """Two small models of two and of four heads that have learned nothing, but are not indifferent."""
    torch.manual_seed(0)
    models = []
    for num_heads in (2, 4):
        model = EncoderDecoder(1 + len(DATE_LETTERS), len(ISO_SYMBOLS), 16, num_heads, 24, 2, max_len=40)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2.0)
        models.append(model)
    return Translator(models, text="3 May 2021")


def line_order():
    """A puzzle whose answer the browser does not keep: the tests of all widgets share one storage."""
    return LineOrder(**PUZZLES["masked softmax"])


def writer():
    """Two layers of four heads that have learned nothing, but are not indifferent; nine positions."""
    torch.manual_seed(0)
    model = GPT2(12, 16, 4, 64, 2, max_len=9, activation="relu", tied=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return Writer(model, "\n abcdefghno", prompt="a bad", written=" egg")


def chat_heads():
    """Four layers of three heads that were drawn, on two texts of different lengths."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator).double()  # noqa: E731
    texts = {}
    for name, tokens in {"few": ["We", " like", " tea"], "more": ["a", "\n", "b", " ", "c"]}.items():
        scores = 3 * draw(4, 3, len(tokens), len(tokens))
        weights = torch.where(torch.ones_like(scores).tril() > 0, scores, -torch.inf).softmax(-1)
        texts[name] = TextMaps(tokens, (255 * weights).round().to(torch.uint8))
    scores, rises = draw(4, 4, 3).round(decimals=3), (draw(2, 4, 3) - 0.3).round(decimals=3)
    return ChatHeads(ChatMaps(scores, rises, texts))


def sentence_heads():
    """Three layers of three heads that have learned nothing, but are not indifferent; eleven positions."""
    torch.manual_seed(0)
    pieces = [*MARKS, *"two heads see ##s ##d the sail ##or .".split()]
    model = Bert(len(pieces), 12, 3, 24, 3, max_len=11, head=False)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.2 if "q_proj" in name or "k_proj" in name else 0.4)
    return SentenceHeads(model, pieces, text="Two sailors see heads.", query=2)


# All other widgets can be made without arguments.
SAMPLES = {
    name: cls
    for name in mha_course.widgets.__all__
    if isinstance(cls := getattr(mha_course.widgets, name), type)
    and issubclass(cls, CourseWidget)
    and cls is not Explorer
} | {
    "AblationLab": ablation_lab, "ChatHeads": chat_heads, "HeadExplorer": head_explorer,
    "HeadsMeet": heads_meet, "LineOrder": line_order, "MapPrediction": map_prediction,
    "Progress": lambda: Progress(cards()), "Quiz": quiz, "SentenceHeads": sentence_heads,
    "Translator": translator, "TypedAnswer": typed_answer, "Writer": writer,
}  # fmt: skip
