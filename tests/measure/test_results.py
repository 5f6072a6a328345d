"""Records of benchmarks: what is not finished does not take the place of what is."""

import json

from tape_exp.measure.results import write_record


def test_a_finished_record_stays_until_the_next_one_is_finished(tmp_path):
    def write(rows, **state):
        return write_record("speed", {"machine": "a CPU", "rows": rows}, tmp_path, **state)

    first = write([1], finished=False)
    assert json.loads(first.read_text())["unfinished"] is True
    assert write([1, 2], finished=False) == first, "nothing finished is lost"
    assert write([1, 2, 3]) == first
    aside = write([4], finished=False)
    assert aside.name == f"unfinished-{first.name}"
    assert json.loads(first.read_text())["rows"] == [1, 2, 3]
    assert write([4, 5]) == first
    assert not aside.exists()
    assert json.loads(first.read_text()).keys() == {"git", "machine", "rows"}
