"""What must follow a prefix of a row of each problem, from the problem's definition; no code of the
generators is used here.
"""

import re


def after(mark, solve):
    """A solver of problems whose answer follows a mark: ``solve`` maps the prompt to the answer."""

    def following(prefix):
        if mark not in prefix:
            return None
        prompt, written = prefix[: prefix.index(mark)], prefix[prefix.index(mark) + 1 :]
        answer = solve(prompt)
        return answer[len(written)] if len(written) < len(answer) else None

    return following


def ended(answer):
    return [*answer, "<eos>"]


def index(prefix):
    """Letter, sign and digit stand behind the bar; the answer is one symbol."""
    text = "".join(prefix)
    found = re.fullmatch(r"([a-zA-Z]+)\|(.)([+-])([1-9])", text)
    if not found:
        return None
    letters, letter, sign, digit = found.groups()
    assert letters.count(letter) == 1
    place = letters.index(letter) + int(sign + digit)
    assert 0 <= place < len(letters)
    return letters[place]


def recall(prefix):
    key = prefix[-1]
    if key[0] != "k" or key not in prefix[:-1]:
        return None
    return prefix[prefix.index(key) + 1]


def induct(prefix):
    *before, last = prefix
    return prefix[before.index("#") + 1] if last == "#" and "#" in before else None


def read(prefix):
    if prefix[-1] != "r":
        return None
    kinds, bits = prefix[0::2], prefix[1::2]
    return bits[max(i for i, kind in enumerate(kinds) if kind == "w")]


def close(prefix):
    """Take away all pairs until only open brackets are left."""
    text, shorter = "".join(prefix), None
    while text != shorter:
        shorter, text = text, text.replace("()", "").replace("[]", "")
    assert not set(text) & set(")]")
    return {"(": ")", "[": "]"}[text[-1]] if text else None


def value(prompt):
    text = "".join(prompt)
    assert re.fullmatch(r"[-+*()0-4]+", text)
    return [str(eval(text) % 5)]


def manipulate(prompt):
    stack = []
    for symbol in prompt:
        if symbol != "pop":
            stack.append(symbol[-1])
        elif stack:
            stack.pop()
    return ended(reversed(stack))


def restore(prompt):
    text = "".join(prompt).removesuffix(".")
    half = len(text) // 2
    fits = [bit for bit in "01" if len({text.replace("_", bit)[i:][:half] for i in (0, half)}) == 1]
    assert len(fits) == 1
    return fits


def calculate(base, sign):
    def result(prompt):
        numbers = [int(part[::-1], base) for part in "".join(prompt).split(sign)]
        assert all(numbers)
        total = sum(numbers) if sign == "+" else numbers[0] * numbers[1]
        return ended((f"{total:b}" if base == 2 else str(total))[::-1])

    return result


def act(words):
    """The actions of a command, from its outermost word inwards."""
    text = " ".join(words)
    if " and " in text:
        return [action for part in text.split(" and ") for action in act(part.split())]
    if " after " in text:
        return [action for part in text.split(" after ")[::-1] for action in act(part.split())]
    if words[-1] in ("twice", "thrice"):
        return act(words[:-1]) * (2 if words[-1] == "twice" else 3)
    verb = [] if words[0] == "turn" else [words[0].upper()]
    if len(words) == 1:
        return verb
    turn = {"left": "LTURN", "right": "RTURN"}[words[-1]]
    if len(words) == 2:
        return [turn, *verb]
    return {"opposite": [turn, turn, *verb], "around": [turn, *verb] * 4}[words[1]]


NEXT = {
    "copy": after("|", ended),
    "reverse": after("|", lambda prompt: ended(reversed(prompt))),
    "sort": after("|", lambda prompt: ended(sorted(prompt))),
    "indirect_indexing": index,
    "mqar": recall,
    "induction": induct,
    "flip_flop": read,
    "dyck_2": close,
    "modular_arithmetic": after("=", value),
    "stack": after("|", manipulate),
    "missing_duplicate": after("=", restore),
    "binary_addition": after("=", calculate(2, "+")),
    "binary_multiplication": after("=", calculate(2, "*")),
    "multi_addition": after("=", calculate(10, "+")),
    "multiplication": after("=", calculate(10, "*")),
    "scan": after("->", lambda prompt: ended(act(prompt))),
}
"""Problem -> a function from a prefix to the symbol that must follow, or None where that is open or
the row ends."""

LENGTH = {
    "indirect_indexing": lambda row: row.index("|"),
    "mqar": lambda row: len(row) / 4,
    "induction": lambda row: len(row) - 2,
    "flip_flop": lambda row: sum(symbol in "wir" for symbol in row),
    "dyck_2": lambda row: sum(symbol in "([" for symbol in row),
    "multi_addition": lambda row: row.count("+") + 1,
    "multiplication": lambda row: max(map(len, "".join(row).split("=")[0].split("*"))),
    "scan": lambda row: sum(symbol.isupper() for symbol in row),
}
"""Problem -> the length of a row; for those that are not here, the symbols before | or =."""


def length(name, row):
    before = re.split("[|=]", "".join(symbol[-1] for symbol in row))[0]
    return LENGTH.get(name, lambda _: len(before))(row)
