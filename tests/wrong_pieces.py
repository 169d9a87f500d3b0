# ruff: noqa: E501, a row is easier to read in one line
"""Wrong pieces as newcomers write them, and how a verdict begins: (the piece, its text, the verdict).

A text is either complete or a change of the solution, (old text, new text).
"""


def text_of(solution, text):
    """A complete text, made from the cell with the page's solution if `text` is a change of it."""
    if isinstance(text, str):
        return text
    assert solution.count(text[0]) == 1
    return solution[solution.index("\n", solution.index("@solution")) + 1 :].replace(*text)


HEAD = """
class MyHead(nn.Module):
    def __init__(self, embed_dim, head_dim, kdim=None, vdim=None):
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(kdim or embed_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(vdim or embed_dim, head_dim, bias=False)

    def forward(self, query, key, value, mask=None):
        return my_attention(self.q_proj(query), self.k_proj(key), self.v_proj(value), mask)
"""


def head(old, new):
    """The class MyHead with one change."""
    assert old in HEAD
    return HEAD.replace(old, new)


NO_DEFAULT = """def my_masked_softmax(scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask"""
NO_BRANCH = NO_DEFAULT.replace("mask):", "mask=None):")
INVERTED = """def my_masked_softmax(scores, mask=None):
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return torch.softmax(scores, -1)"""
SHARES = """def my_masked_softmax(scores, mask=None):
    if mask is not None:
        scores = scores * mask
    return scores / scores.sum(-1, keepdim=True)"""
ATTENTION = """def my_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = my_masked_softmax(scores, mask)
    return weights @ value, weights"""
POSITIONS = """class MyPositions(nn.Module):
    def __init__(self, embed_dim, max_len):
        super().__init__()
        self.table = nn.Parameter(encoding_by_loops(max_len, embed_dim))

    def forward(self, x):
        return x + self.table[: x.shape[1]]"""
CHANCES = """def my_probabilities(logits, temperature=1.0, top_k=None):
    chances = logits.softmax(-1) / temperature
    if top_k is not None:
        least = chances.topk(top_k).values[..., -1:]
        chances = chances.masked_fill(chances < least, 0.0)
    return chances / chances.sum(-1, keepdim=True)"""

CHANGED_CACHE = """def my_cached_attention(query, key, value, cache=None):
    if cache is None:
        cache = [key, value]
    else:
        cache[0] = torch.cat((cache[0], key), dim=-2)
        cache[1] = torch.cat((cache[1], value), dim=-2)
    mask = my_causal_mask(query.shape[-2], cache[0].shape[-2])
    return my_attention(query, *cache, mask)[0], cache"""
MADE = HEAD[HEAD.index("        self.q_proj =") : HEAD.index("\n    def forward")]
IN_A_LIST = HEAD.replace(
    MADE,
    """        widths = embed_dim, kdim or embed_dim, vdim or embed_dim
        self.all = [nn.Linear(width, head_dim, bias=False) for width in widths]

    q_proj, k_proj, v_proj = (property(lambda self, i=i: self.all[i]) for i in range(3))
""",
)
SHARED_PARTS = HEAD.replace(
    MADE,
    """        widths = embed_dim, kdim or embed_dim, vdim or embed_dim
        made = [nn.Linear(width, head_dim, bias=False) for width in widths]
        made = MyHead.made.setdefault((head_dim, *widths), made)
        self.q_proj, self.k_proj, self.v_proj = made

    made = {}
""",
)

LINEAR = "nn.Linear(embed_dim, embed_dim, bias=bias)"
NO_DEFAULT_SAID = "a call without a mask fails. Later pieces make one: write `mask=None`"
WRONG = [
    ("my_masked_softmax", NO_DEFAULT, NO_DEFAULT_SAID),
    ("my_masked_softmax", NO_BRANCH, NO_DEFAULT_SAID),
    ("my_masked_softmax", INVERTED, "the mask is inverted. `masked_fill` replaces the numbers where"),
    ("my_masked_softmax", SHARES, "the scores are divided by their sum. "),
    ("my_lens_mask", "def my_lens_mask(valid_lens, k_len):\n    return torch.arange(k_len)[:, None] < valid_lens",
     "samples and keys are exchanged. "),
    ("my_lens_mask", "def my_lens_mask(valid_lens, k_len):\n    return (torch.arange(k_len) < valid_lens)[None]",
     "the lengths lie along the axis of the keys. "),
    ("my_causal_mask", "def my_causal_mask(q_len, k_len=None):\n"
     "    return torch.triu(torch.ones(q_len, k_len or q_len)).bool()", "the upper triangle is shown. "),
    ("my_attention", ATTENTION.replace("query.shape[-1] ** 0.5", "torch.sqrt(query.shape[-1])"),
     "wrong for two samples (query (2, 3, 5), key (2, 7, 5), value (2, 7, 11)): it raises TypeError in line 2 of "
     "your `my_attention`, `scores = query @ key.transpose(-2, -1) / torch.sqrt(query.shape[-1])`: sqrt(): "
     "argument 'input' (position 1) must be Tensor, not int. `torch.sqrt` takes a tensor; of a number, take "
     "`math.sqrt(…)` or `… ** 0.5`."),
    ("my_attention", ATTENTION.replace("my_masked_softmax(scores, mask)", "scores / scores.sum(-1, keepdim=True)"),
     "the scores are divided by their sum. "),
    ("MyHead", head("self.q_proj = ", "q_proj = "), "the class is not finished: `q_proj` is only a name inside `__init__`"),
    ("MyHead", head("self.q_proj(query)", "q_proj(query)"),
     "wrong for five queries, seven keys (query (2, 5, 13), key (2, 7, 13), value (2, 7, 13)): it raises "
     "NameError in line 10 of your `MyHead`, `return my_attention(q_proj(query), self.k_proj(key), "
     "self.v_proj(value), mask)`: name 'q_proj' is not defined. Write `self.q_proj`, which belongs to the object."),
    ("MyHead", head("self.k_proj(key)", "self.k_proj(query)"), "the keys are made from the query. "),
    ("MyMultiHead", (f"out_proj = {LINEAR}", "out_proj = nn.Linear(embed_dim, embed_dim)"),
     "without `bias=True`, `out_proj` has a bias. "),
    ("MyMultiHead", (f"q_proj = {LINEAR}", f"q_proj = {LINEAR}".replace("=bias", "=False")),
     "with `bias=True`, `q_proj` has no bias. "),
    ("MyPositions", POSITIONS, "the table is a parameter. "),
    ("MyGPT", ("nn.ModuleList(MyEncoderBlock(*sizes) for _ in range(num_layers))",
               "[MyEncoderBlock(*sizes) for _ in range(num_layers)]"), "the blocks are in a plain list. "),
    ("MyGPT", ("MyEncoderBlock(*sizes) for _ in range(num_layers)", "[MyEncoderBlock(*sizes)] * num_layers"),
     "all blocks are the same one. "),
    ("MyGPT", ("embed_dim, vocab_size, bias=False", "embed_dim, vocab_size"), "`output` has a bias. "),
    ("MyGPT", ("4 * embed_dim", "5 * embed_dim"),
     "wrong for two texts, two blocks (x (2, 7)): the hidden width of the blocks is 40, not `4 * embed_dim`, here 32"),
    ("MyEncoderBlock", ("num_heads, bias=True", "num_heads"), "the attention has no biases. "),
    ("my_probabilities", CHANCES.replace("chances / chances.sum(-1, keepdim=True)", "chances"),
     "the temperature divides the probabilities"),
    ("my_pooling", ("scores.softmax(-1)", "scores.softmax(-1).detach()"),
     "the numbers are right, but not the gradients, for three queries and five keys"),
    ("MyHead", head("value, mask=None", "value, mask"),
     "right for a mask, wrong for five queries, seven keys (query (2, 5, 13), key (2, 7, 13), value (2, 7, 13)): it "
     "raises TypeError: MyHead.forward() missing 1 required positional argument: 'mask'"),
    ("MyHead", head("embed_dim", "d_model"), "the class is not finished: `__init__` takes no `embed_dim`. Later cells"),
    ("MyHead", head("self.v_proj(value)", "self.v_proj(value).detach()"), "training could not change a projection. "),
    ("MyHead", head("\n    def forward", "        self.requires_grad_(False)\n\n    def forward"),
     "training could not change a projection. "),
    ("MyHead", head("self.k_proj = nn.Linear(kdim or embed_dim, head_dim, bias=False)", "self.k_proj = self.q_proj"),
     "`q_proj` and `k_proj` are the same object. "),
    ("split_heads", "def split_heads(x, num_heads):\n"
     "    return torch.stack([head.squeeze() for head in x.chunk(num_heads, -1)], 1)",
     "`squeeze` also removes the axis of a single sample or token. "),
    ("merge_heads", "def merge_heads(x):\n    return torch.cat([head.squeeze() for head in x.split(1, dim=1)], dim=-1)",
     "`squeeze` also removes the axis of a single sample or token. "),
    ("MyMultiHead", ("value, mask=None", "value, mask"), "a call without a mask fails. "),
    ("MyPositions", ("persistent=False", "persistent=True"), "the table is saved with the weights. "),
    ("MyPositions", ("self.encoding[: x.shape[1]]", "encoding_by_loops(x.shape[1], x.shape[2])"),
     "the table does not follow the module to another device. "),
    ("MyEncoderBlock", ("mask)[0]", "mask)[0].detach()"), "training could not change the attention. "),
    ("MyEncoderBlock", ("MyFeedForward(embed_dim, hidden_dim)",
                        "nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, embed_dim))"),
     "the feed-forward layer is not `MyFeedForward`. "),
    ("MyEncoderBlock", ("return x + self.feed_forward(self.feed_forward_norm(x))",
                        "x += self.feed_forward(self.feed_forward_norm(x))\n        return x"),
     "the backward pass "),  # torch and the page go on in other words
    ("MyGPT", ("self.output(self.norm(x))", "self.output(self.norm(x)).detach()"), "training could change nothing. "),
    ("MyGPT", ("self.embedding(tokens) +", "self.embedding(tokens).detach() +"),
     "training could not change the embeddings. "),
    ("MyGPT", ("mask = my_causal_mask(len(places))",
               "self.register_buffer('mask', my_causal_mask(len(places)))\n        mask = self.mask"),
     "the mask is saved with the weights. "),
    ("MyGPT", ("in self.blocks", "in reversed(self.blocks)"), "the blocks run in reverse order. "),
    ("my_batch", ("torch.randint(len(tokens) - length, (batch_size, 1), generator=generator)",
                  "torch.randperm(len(tokens) - length, generator=generator)[:batch_size, None]"),
     "no start occurs twice. "),
    ("my_probabilities", ("topk(top_k)", "topk(top_k + 1)"), "one token too many is kept. "),
    ("my_write", ("manual_seed(seed)", "manual_seed(0)"), "the seed is not used. "),
    ("MyGroupedHeads", ("value, mask=None", "value, mask"),
     "right for a causal mask and a different base, wrong for six query heads, two key heads (query (2, 5, 24), "
     "key (2, 5, 24), value (2, 5, 24)): it raises TypeError: MyGroupedHeads.forward() missing 1 required positional argument: 'mask'"),
    # An answer that depends on what was called before, or changes what comes after.
    ("my_causal_mask", "calls = []\n\n\ndef my_causal_mask(q_len, k_len=None):\n    k_len = k_len or q_len\n"
     "    calls.append(q_len)\n    late = len(calls) % 9 == 0\n"
     "    return torch.ones(q_len, k_len).tril(k_len - q_len - late).bool()",
     "called again with the same arguments, it returns different numbers. "),
    ("my_lens_mask", "kept = {}\n\n\ndef my_lens_mask(valid_lens, k_len):\n    sizes = len(valid_lens), k_len\n"
     "    return kept.setdefault(sizes, torch.arange(k_len) < valid_lens[:, None, None])",
     "right for two samples, one sample and a sample of length 0, wrong for other lengths of two samples"),
    ("my_cached_attention", CHANGED_CACHE, "for three tokens, then one and one, it changes the cache that it is given. "),
    ("MyHead", head("self.k_proj(key)", "self.__dict__.setdefault('k', self.k_proj(key))"),
     "a second call with another text fails (RuntimeError). `forward` keeps something from an earlier call"),
    ("MyGPT", ("mask = my_causal_mask(len(places))",
               "self.mask = getattr(self, 'mask', my_causal_mask(len(places)))\n        mask = self.mask"),
     "a second call with another text fails (RuntimeError). `forward` keeps something from an earlier call"),
    ("MyGPT", ("super().__init__()", "super().__init__()\n        torch.manual_seed(1337)"),
     "it seeds torch's own generator (`torch.manual_seed`)"),
    ("my_batch", ("starts =", "generator.manual_seed(0)\n    starts ="), "it seeds the generator that it is given"),
    ("MyHead", head("super().__init__()", "super().__init__()\n        torch.manual_seed(0)"),
     "it seeds torch's own generator (`torch.manual_seed`)"),
    ("MyHead", SHARED_PARTS, "two objects of the class share `q_proj.weight`"),
    ("MyHead", IN_A_LIST, "`q_proj` is not registered, so an optimiser would not find its weights. "),
    # A dtype or a kind of result that later pieces cannot use.
    ("my_lens_mask", "def my_lens_mask(valid_lens, k_len):\n    return [[[j < n for j in range(k_len)]] for n in valid_lens]",
     "`mask` is a list, where a torch.Tensor is expected"),
    ("my_batch", ("windows[:, :-1], windows[:, 1:]", "windows[:, :-1].int(), windows[:, 1:].int()"),
     "wrong for two windows (tokens (50,)): `inputs` has dtype torch.int32, expected torch.int64"),
    ("MyEncoderBlock", ("self.feed_forward(self.feed_forward_norm(x))", "self.feed_forward(self.feed_forward_norm(x)).double()"),
     "wrong for two texts, without a mask (x (2, 5, 8)): `tokens` has dtype torch.float64, expected torch.float32"),
    # Gradients that do not reach what lies below.
    ("MyHead", head("self.q_proj(query)", "self.q_proj(query.detach())"), "no gradient passes back to the queries. "),
    ("MyEncoderBlock", ("return x + self", "return x.detach() + self"), "no gradient passes around a layer. "),
    ("MyGPT", ("nn.Embedding(vocab_size, embed_dim)", "nn.Embedding(vocab_size, embed_dim, padding_idx=0)"),
     "a token has no gradient. "),
    # Sizes and combinations that no case had.
    ("my_masked_softmax", NO_DEFAULT.replace("mask):", "mask=None):\n    if mask is None:\n        return scores.softmax(2)")
     .replace("softmax(-1)", "softmax(2)"), "the axes are counted from the front. "),
    ("my_attention", ATTENTION.replace("transpose(-2, -1)", "transpose(1, 2)"), "the axes are counted from the front. "),
    ("my_attention", ATTENTION.replace("mask)\n    return", "mask).squeeze()\n    return"), "an axis of size 1 is lost. "),
    ("my_probabilities", ("logits = logits / temperature\n    if top_k is not None:\n        least = logits.topk(top_k)"
                          ".values[..., -1:]\n        logits = logits.masked_fill(logits < least, -torch.inf)",
                          "logits = logits if temperature == 1 else logits / temperature\n    if top_k is not None:\n"
                          "        logits[logits < logits.topk(top_k).values[..., -1:]] = -torch.inf"),
     "for one row, the two largest, it changes its argument `logits` in place. "),
    ("MyMultiHead", ("bias=False):", "bias=True):"), "`bias` is True by default"),
    ("MyMultiHead", ("self.num_heads = num_heads", "self.num_heads = self.h = num_heads\n        self.scale = nn.Parameter(torch.ones(1))"),
     "`scale` is saved besides the weights of the four projections. "),
    ("MyGroupedHeads", ("self.k_proj(key)", "self.k_proj(query)"), "the keys are made from the query. "),
    # Right at the sizes and values of most cases only.
    ("my_pooling", ("key.T", "(key if len(key) == key.shape[1] else key.T)"),
     "right for three queries and five keys, one query and as many queries as keys, wrong for keys as wide as they are"),
    ("my_pooling", ("query @ key.T", "query @ key.T\n    value = value[:32]\n    scores = scores[:, :32]"),
     "right for three queries and five keys, one query and as many queries as keys, wrong for two queries and seventy"),
    ("my_masked_softmax", ("if mask is None:", "if mask is None or not mask.any():"),
     "right for no mask, a mask with one row for each sample and scores of several heads, wrong for no query sees anything"),
    ("my_masked_softmax", ("shown.softmax(-1) * mask", "shown.softmax(-1) * mask.squeeze()"),
     "the mask must have the shape of the scores. "),
    ("my_causal_mask", "kept = {}\n\n\ndef my_causal_mask(q_len, k_len=None):\n    k_len = k_len or q_len\n"
     "    return kept.setdefault(q_len, torch.ones(q_len, k_len).tril(k_len - q_len).bool())",
     "right for four queries, four keys; two queries, five keys; one query, seven keys, wrong for four queries, nine keys"),
    ("my_attention", ATTENTION.replace("    scores", "    if query.shape == key.shape and mask is None:\n"
     "        mask = my_causal_mask(query.shape[-2])\n    scores", 1), "without a mask, each query sees only its past. "),
    ("MyHead", head("vdim or", "vdim or kdim or"), "`vdim` is `kdim` by default. "),
    ("MyHead", head("kdim or", "kdim or vdim or"), "`kdim` is `vdim` by default. "),
    ("MyMultiHead", ("vdim or", "vdim or kdim or"), "with `kdim` alone, `v_proj` takes 5 numbers instead of `embed_dim`"),
    ("my_batch", ("windows[:, :-1], windows[:, 1:]", "windows[:, :-1].squeeze(), windows[:, 1:].squeeze()"),
     "an axis of size 1 is lost. "),
    ("MyGPT", ("self.output(self.norm(x))", "self.output(self.norm(x)).squeeze()"), "an axis of size 1 is lost. "),
    ("MyEncoderBlock", ("return x + self.feed_forward(self.feed_forward_norm(x))",
                        "return (x + self.feed_forward(self.feed_forward_norm(x))).squeeze(0)"), "an axis of size 1 is lost. "),
    ("my_probabilities", ("top_k is not None", "top_k is not None and top_k > 1"), "`top_k=1` has no effect. "),
    ("my_probabilities", ("return logits.softmax(-1)", "shares = logits.exp()\n    return shares / shares.sum(-1, keepdim=True)"),
     "the exponentials overflow. "),
    ("my_cached_attention", ("output, _", "key, value = key[..., -16:, :], value[..., -16:, :]\n"
     "    mask = mask[:, -16:]\n    output, _"), "right for a whole text at once; three tokens, then one and one; with"),
    # What depends on the object, on the mode, or on the first weights.
    ("MyHead", head("self.v_proj(value)", "self.v_proj(query if key is query and key.shape == value.shape else value)"),
     "it matters whether `query` and `key` are the same object or only equal. "),
    ("MyMultiHead", ("v = self.v_proj(value)", "v = k if key is value else self.v_proj(value)"),
     "it matters whether `key` and `value` are the same object or only equal. "),
    ("MyHead", head("self.k_proj(key)", "self.kept(key)").replace("    def forward", """    k = None

    def kept(self, key):
        if self.k is None or self.k.shape[:2] != key.shape[:2]:
            self.k = self.k_proj(key)
        return self.k

    def forward"""), "what it returns depends on whether the call before had inputs of the same sizes. "),
    ("MyMultiHead", ("        if mask is not None and mask.ndim == 3:",
                     "        if mask is None and getattr(self, 'mask', q).shape == (q.shape[-2], k.shape[-2]):\n"
                     "            mask = self.mask\n        self.mask = q if mask is None else mask\n"
                     "        if mask is not None and mask.ndim == 3:"),
     "what it returns depends on whether the call before had inputs of the same sizes. "),
    ("MyEncoderBlock", ("y, y, y, mask)", "y, y, y, mask if self.training else None)"),
     "in evaluation (`model.eval()`, `no_grad`) it returns different numbers than in training. "),
    ("MyGPT", ("block(x, mask)", "block(x, mask if self.training else None)"),
     "in evaluation (`model.eval()`, `no_grad`) it returns different numbers than in training. "),
    ("MyHead", head(MADE, MADE + "        for one in self.parameters():\n            nn.init.constant_(one, 0.1)\n"),
     "two objects of the class begin with the same weights, so several heads"),
    ("MyMultiHead",
     ("        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)",
      "        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)\n        draw = torch.Generator().manual_seed(0)\n"
      "        for one in self.parameters():\n            one.data.normal_(std=0.1, generator=draw)"),
     "two objects of the class begin with the same weights, so several heads"),
    ("MyHead", head("self.q_proj = nn.Linear(embed_dim, head_dim, bias=False)",
                    "self.q_proj = nn.Sequential(nn.Linear(embed_dim, head_dim, bias=False))"),
     "`q_proj` is an object of the class `Sequential`. "),
    ("MyHead", head(MADE, MADE + "        self.factor = nn.Parameter(torch.ones(1))\n").replace(
        "self.q_proj(query)", "self.factor * self.q_proj(query)"),
     "weights are saved as `factor`, besides `q_proj`, `k_proj` and `v_proj`; "),
    ("MyEncoderBlock", ("self.feed_forward = ", "self.norm1 = self.self_attention_norm\n        self.feed_forward = "),
     "weights are saved as `norm1.weight`, besides "),
    ("my_write", ("    generator = ", "    model.factor.data /= temperature\n    temperature = 1.0\n    generator = "),
     "for a low temperature, it changes the weights of the model"),
    ("MyGPT", ("nn.Embedding(max_len, embed_dim)", "nn.Embedding(max_len + 1, embed_dim)"),
     "wrong for two texts, two blocks (x (2, 7)): `count of parameters` is 2064, where 2056 is expected"),
    ("MyGPT", ("self.embedding(tokens) +", "self.embedding(tokens) * self.embedding.weight.shape[1] ** 0.5 +"),
     "the embeddings are scaled. "),
    # Parameters that other cells give by position, in another order.
    ("MyHead", head("embed_dim, head_dim, kdim", "head_dim, embed_dim, kdim"), "`head_dim` stands before `embed_dim` in the first line. "),
    ("MyMultiHead", ("kdim=None, vdim=None, bias=False", "bias=False, kdim=None, vdim=None"), "`bias` stands before `kdim` in the first line. "),
    ("my_write", ("temperature=1.0, top_k=None", "top_k=None, temperature=1.0"), "`top_k` stands before `temperature` in the first line. "),
    # What the first call returned, or gradients of the right numbers.
    ("MyHead", head("my_attention(", "self.heads(").replace("    def forward", """    def heads(self, *inputs):
        output, weights = my_attention(*inputs)
        return output, self.__dict__.setdefault("weights", weights)

    def forward"""), "another text gets numbers of the text before. "),
    ("MyPositions", ("return x +", "return x.detach() +"), "the numbers are right, but not the gradients, for a table as long as the text"),
    ("my_masked_softmax", ("scores.masked_fill(~mask, torch.finfo(scores.dtype).min)\n    return shown.softmax(-1) * mask",
                           "scores + mask.log().to(scores.dtype)\n    return shown.softmax(-1).nan_to_num(0)"),
     "the numbers are right, but not the gradients, for a query that sees nothing"),
    # Only in float32, with the first length, or where gradients are noted.
    ("my_attention", ATTENTION.replace("@ value,", "@ value.float(),"), "with numbers in float64 it fails (RuntimeError). "),
    ("split_heads", ("return x.", "return x.float()."), "float64 becomes another dtype. "),
    ("MyHead", head("self.q_proj(query)", "self.q_proj(query.float())"), "with numbers in float64 it fails (RuntimeError). "),
    ("MyHead", head("self.q_proj(query)", "self.q_proj(query[:, : self.__dict__.setdefault('n', query.shape[1])])"),
     "another text gets numbers of the text before. "),
    ("MyMultiHead", ("        output = merge", "        heads = heads if torch.is_grad_enabled() else heads / 2\n        output = merge"),
     "in evaluation (`model.eval()`, `no_grad`) it returns"),
    # What an answer does besides, at other sizes, and whether it learns.
    ("my_pooling", ("scores =", "torch.set_grad_enabled(False)\n    scores ="), "it calls `torch.set_grad_enabled`, which then holds"),
    ("my_pooling", ("scores =", "query.requires_grad_()\n    scores ="), "it changes its argument `query` in place. "),
    ("my_causal_mask", "def my_causal_mask(q_len, k_len=None):\n    k_len = k_len or q_len\n"
     "    return torch.ones(q_len, k_len).tril(abs(k_len - q_len)).bool()", "right in all cases, but wrong for "),
    ("my_attention", ATTENTION.replace("    weights", "    mask = mask if len(scores[0]) > 1 else None\n    weights", 1),
     "right in all cases, but wrong for "),
    ("MyHead", head("        return", "        query = query.squeeze(1)\n        return"), "right in all cases, but wrong for "),
    ("MyHead", head(MADE, MADE + "        nn.init.zeros_(self.q_proj.weight)\n        nn.init.zeros_(self.k_proj.weight)\n"),
     "`q_proj.weight` never learns: "),
    ("MyHead", head("        return", "        self.zero_grad()\n        return"), "a call changes the model: "),
    ("my_write", ("    generator =", "    model.requires_grad_(False)\n    generator ="), "a call changes the model: "),
    ("MyMultiHead", ("        q = split_heads(", "        if query is key and key is value:\n            q, k, v = (query @ one.weight.T for one in "
                     "(self.q_proj, self.k_proj, self.v_proj))\n        q = split_heads("), "it matters whether `query` and `key` are the same object"),
    # Parts that share weights, an object for a class, and what is right for usual sizes and signs only.
    ("MyHead", head(MADE, MADE + "        if kdim is None:\n            self.k_proj.weight = self.q_proj.weight\n"),
     "for five queries, seven keys, `q_proj` and `k_proj` share a weight, "),
    ("MyMultiHead", ("self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)", "self.out_proj = self.q_proj"),
     "`q_proj` and `out_proj` are the same object. "),
    ("MyHead", HEAD + "\n\nMyHead = MyHead(8, 2)\n", "the checker takes a class, and was given an object, `MyHead(…)`. "),
    ("MyHead", head(MADE, MADE + "        if embed_dim == head_dim:\n            self.q_proj = nn.Identity()\n"),
     "right in all cases, but wrong for a head as wide as the tokens "),
    ("MyMultiHead", ("output = merge_heads(heads)", "output = merge_heads(heads.squeeze(-1))"), "for heads of width 1, it raises "),
    ("MyMultiHead", ("        heads, weights = ", "        mask = mask if k.shape[2] > 1 else None\n        heads, weights = "),
     "right in all cases, but wrong for a hidden key that is the only one"),
    ("MyGPT", ("self.max_len = max_len", "self.max_len = 64"), "for two texts, two blocks, `max_len` is 64, and the model was given 11. "),
    ("my_probabilities", ("-torch.inf", "-100.0"), "the number that hides is not low enough. "),
    ("my_probabilities", ("return logits.softmax(-1)", "return logits.softmax(-1).clamp(min=1e-5)"),
     "right for one row"),
    ("my_dequantize", ("+ least", "- least.abs()"), "right for one block and three blocks, wrong for forty blocks, minima above zero "),
]  # fmt: skip
