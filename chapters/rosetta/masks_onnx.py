"""The operator Attention of ONNX and its masks, by the reference evaluator of the onnx package."""

import masks
import numpy as np
import onnx
from masks import ADDED, HEADS, KEEP, LENGTH, LENS, NOTHING, ONE, ONE_ADDED, THREE
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

OPSET = 25
INPUTS = "Q K V attn_mask past_key past_value nonpad_kv_seqlen".split()


def attend(query, key, value, past=0, **arguments):
    """Run one node; arrays are inputs, all else is an attribute. `past` keys come from a cache."""
    given = {"Q": query, "K": key[:, :, past:], "V": value[:, :, past:]}
    if past:
        given |= {"past_key": key[:, :, :past], "past_value": value[:, :, :past]}
    given |= {n: x for n, x in arguments.items() if isinstance(x, np.ndarray)}
    attributes = {n: x for n, x in arguments.items() if n not in given}
    used = [name if name in given else "" for name in INPUTS]
    node = helper.make_node("Attention", used, ["Y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for name, x in given.items()
    ]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)
    graph = helper.make_graph([node], "attention", inputs, [output])
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset])
    onnx.checker.check_model(model)
    return ReferenceEvaluator(model).run(None, given)[0]


# The calls
KEYS = np.broadcast_to(KEEP[:, :, -1:], (len(LENS), 1, LENGTH, LENGTH))  # padding only
ASKED = {
    "the batch": {
        "`attn_mask`, bool": {"attn_mask": KEEP},
        "`attn_mask`, 0 or −∞": {"attn_mask": ADDED},
        "`attn_mask` of the padding, `is_causal=1`": {
            "attn_mask": KEYS,
            "is_causal": 1,
        },
        "`nonpad_kv_seqlen`, `is_causal=1`": {"nonpad_kv_seqlen": LENS, "is_causal": 1},
    },
    "one key": {
        "bool": {"attn_mask": ONE},
        "0 and 1, int": {"attn_mask": ONE.astype("int64")},
        "0 and 1, float": {"attn_mask": ONE.astype("float32")},
        "0 and −∞": {"attn_mask": ONE_ADDED},
    },
    "three masks": {"rank 3": {"attn_mask": THREE}},
    "two queries, five keys": {
        "`is_causal=1`, no cache": {"is_causal": 1},
        "`is_causal=1`, three keys in `past_key`": {"is_causal": 1, "past": 3},
        "`is_causal=1`, `nonpad_kv_seqlen` of 4": {
            "is_causal": 1,
            "nonpad_kv_seqlen": np.array([4]),
        },
        "`left_window_size=1`, `right_window_size=0`": {
            "left_window_size": 1,
            "right_window_size": 0,
        },
        "the same, three keys in `past_key`": {
            "left_window_size": 1,
            "right_window_size": 0,
            "past": 3,
        },
    },
    "five queries, five keys": {
        "`left_window_size=1`, `right_window_size=0`": {
            "left_window_size": 1,
            "right_window_size": 0,
        }
    },
    "nothing": {
        "`attn_mask`, bool": {"attn_mask": NOTHING},
        "`attn_mask` of −∞": {"attn_mask": np.full(ONE.shape, -np.inf, "float32")},
    },
}

if __name__ == "__main__":
    assert (
        HEADS > 1
    )  # else a mask for each sample could not be told from one for each head
    schema = onnx.defs.get_schema("Attention", OPSET)
    arguments = [*(x.name for x in schema.inputs), *schema.attributes]
    found = masks.measure(attend, ASKED)
    masks.main({"onnx": onnx.__version__}, {"Attention of ONNX": (arguments, found)})
