"""The counts of a layer: products and attention are known in closed form."""

import pytest

from tape_exp.measure import count


@pytest.fixture(scope="module")
def layers():
    return {name: count.layer(name) for name in count.COUNTED}


def test_products_are_those_of_the_matrices(layers):
    """Four of C × C and three of C × F for each token, and twice as many in the backward pass."""
    weights = 4 * count.WIDTH**2 + 3 * count.WIDTH * count.INNER
    forward = 2 * weights * count.BATCH * count.LENGTH
    for name in ("nope", "rope"):
        assert layers[name]["forward"].products.flops == forward
        assert layers[name]["backward"].products.flops == 2 * forward
    # TAPE's ψ has 4 · 12 numbers, as 64; its maps have 12 · 12 columns, as 5 · 32; P and F
    # have 12 rows and columns, as 16. Backward, the update is made again, with two gradients.
    maps, update = 64 * (count.WIDTH + 160), 2 * 16**2 * count.WIDTH // count.HEADS
    for phase, added in (("forward", maps + update), ("backward", 2 * maps + 3 * update)):
        tape, rope = layers["tape"][phase], layers["rope"][phase]
        assert tape.products.flops == rope.products.flops
        # A product of fp32 numbers beside 16-bit ones is three of bf16.
        assert tape.others.flops == 3 * 2 * added * count.BATCH * count.LENGTH


def test_attention_is_one_kernel_that_reads_and_writes_each_tensor_once(layers):
    tensor = 2 * count.BATCH * count.LENGTH * count.WIDTH  # bytes, in bf16
    sums = 4 * count.BATCH * count.LENGTH * count.HEADS  # of the softmax, fp32
    for name, forward, backward in (("rope", 4, 8), ("tape", 6, 12)):
        counts = layers[name]
        assert counts["forward"].attention == count.Kind(1, forward * tensor + sums)
        assert counts["backward"].attention.launches == 1
        assert counts["backward"].attention.bytes == backward * tensor + sums


def test_a_rotation_is_one_kernel_that_reads_and_writes_queries_and_keys_once(layers):
    tensor = 2 * count.BATCH * count.LENGTH * count.WIDTH
    state = 4 * count.LENGTH * count.WIDTH // count.HEADS  # which all rows and heads share
    for phase in count.PHASES:
        added = layers["rope"][phase].others - layers["nope"][phase].others
        assert added == count.Kind(1, 4 * tensor + state)


def test_a_layer_reads_and_writes_its_positions_once(layers):
    """Bytes a token and unit of width, as the files of the kernels of update and maps say; and the
    two gradients of what ψ reads are added up in 16 bits.
    """
    unit = count.BATCH * count.LENGTH * count.WIDTH
    for phase, moved in (("forward", 20.75 + 3), ("backward", 31.5 + 6.5 + 6)):
        added = layers["tape"][phase].others - layers["nope"][phase].others
        assert added.bytes / unit == pytest.approx(moved, rel=0.02)  # and weights' gradients


def test_positions_move_more_bytes_and_the_table_says_so(layers, monkeypatch, capsys):
    monkeypatch.setattr(count, "layer", layers.get)
    for phase in count.PHASES:
        moved = [layers[name][phase].others.bytes for name in count.COUNTED]
        assert moved == sorted(moved)
        assert len(set(moved)) == 3
    assert count.main([]) == 0
    told = capsys.readouterr().out
    assert told.count("| rope, ") == 2
    assert "bytes a logit" in told
