"""What Python says in a page, in another language: the strings of its code, and the texts of the exercises.

A string of Python code is a message as it stands there: {x} is the expression in an f-string. These messages
are in `verdicts.po`; those of the mistakes and cases are in `texts.po`, as `tools/texts.py` extracts them.
"""

import ast
import re
from itertools import accumulate

# Of what the page receives, the files that speak to the reader.
SPEAKING = re.compile(
    r"(attention_check/|mha_course/_(?!my_gpt)|torch/|session|training).*\.py"
)
# The label of a case that `_sizes.py` has made of another one, and its message.
RESIZED = re.compile(r"(?P<label>.+), with another size \((?P<number>\d+)\)")
RESIZED_MESSAGE = "{label}, with another size ({number})"
# A mistake with its cause, and its message.
MISTAKE = re.compile(r"\*\*(.+?)[.。]?\*\*\s*(.+)")
MISTAKE_MESSAGE = "**{name}.** {cause}"


class PythonStrings(ast.NodeVisitor):
    """Collects the strings of Python code as pairs of node and message, without docstrings."""

    def __init__(self, code):
        self.found = []
        self.visit(ast.parse(code))

    def visit_Expr(self, node):
        """Leave out a docstring."""
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Constant(self, node):
        """Collect a plain string."""
        if isinstance(node.value, str):
            self.found.append((node, node.value))

    def visit_JoinedStr(self, node):
        """Collect an f-string, and not the strings inside its expressions."""
        parts = [
            part.value.replace("{", "{{").replace("}", "}}")
            if isinstance(part, ast.Constant)
            else ast.unparse(ast.JoinedStr([part]))[2:-1]  # without f'…'
            for part in node.values
        ]
        self.found.append((node, "".join(parts)))


def with_python_strings(code, known):
    """Return Python code in which each string that is a known message is replaced.

    A plain string of one word may also be a value, so it stays.
    """
    text = code.encode()
    begins = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    places = []
    for node, message in PythonStrings(code).found:
        is_plain = isinstance(node, ast.Constant)
        if message in known and not (is_plain and " " not in message):
            start = begins[node.lineno - 1] + node.col_offset
            end = begins[node.end_lineno - 1] + node.end_col_offset
            new = repr(known[message]) if is_plain else f'f"""{known[message]}"""'
            places.append((start, end, new.encode()))
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    ast.parse(text)
    return text.decode()


def translated_sources(sources, texts, verdicts):
    """Return the Python files of the page, with what they say to the reader translated."""
    return {
        path: with_python_strings(text, verdicts)
        if SPEAKING.fullmatch(path)
        else with_named_messages(text, texts)
        if path.endswith(".md")
        else text
        for path, text in sources.items()
    }


def with_named_messages(text, known):
    """Return a list of `- name: message` with the messages translated."""
    line = re.compile(r"^(- [\w-]+: )(.*)$", re.MULTILINE)
    return line.sub(lambda found: found[1] + known.get(found[2], found[2]), text)


def translated_exercise(exercise, texts, verdicts):
    """Return a stored exercise with translated mistakes, labels of cases and what its code says."""

    def said(label):
        if found := RESIZED.fullmatch(label):
            message = verdicts.get(RESIZED_MESSAGE, RESIZED_MESSAGE)
            return message.format(label=said(found["label"]), number=found["number"])
        return texts.get(label) or verdicts.get(label, label)

    labels = {}
    for case in (*exercise["cases"], *exercise["further"]):
        # Two cases that were given the same label would become one.
        labels[case] = case if said(case) in labels.values() else said(case)

    def mistake(name, cause):
        message = texts.get(MISTAKE_MESSAGE.format(name=name, cause=cause), "")
        found = MISTAKE.fullmatch(message)
        return found.groups() if found else (name, cause)

    def by_label(outcomes):
        return {labels[case]: outcome for case, outcome in outcomes.items()}

    options = exercise["options"]
    returns = options["returns"]
    many = [returns] if isinstance(returns, str) else returns
    names = [verdicts.get(one, one) for one in many]
    return exercise | {
        "cases": by_label(exercise["cases"]),
        "further": by_label(exercise["further"]),
        "rights": [[*map(by_label, right)] for right in exercise["rights"]],
        "wrong": [
            [*mistake(name, cause), *map(by_label, outcomes)]
            for name, cause, *outcomes in exercise["wrong"]
        ],
        "left": [*map(said, exercise["left"])],
        "code": with_python_strings(exercise["code"], verdicts),
        "options": options
        | {
            "returns": names[0] if isinstance(returns, str) else type(returns)(names),
            "takes": verdicts.get(options["takes"], options["takes"]),
            "gradients": [labels[case] for case in options["gradients"]],
        },
    }
