"""The words that make one node of another."""

from tape_exp.settings.overrides import differences


def test_differences_are_told_in_the_order_of_the_keys():
    """A sweep is named by its words, so they must not depend on how a set happens to be ordered."""
    given = {"keep": 1, **{f"old{i}": i for i in range(9)}, "inner": {"x": 1, "y": [1, 2]}}
    wanted = {"keep": 1, "inner": {"x": 2, "y": [1, 2], "z": "a b"}, "new": None}
    removed = [f"~task.old{i}" for i in range(9)]
    assert differences(given, wanted, "task") == [
        *removed,
        "task.inner.x=2",
        "+task.inner.z='a b'",
        "+task.new=null",
    ]
    assert differences(given, given, "task") == []
