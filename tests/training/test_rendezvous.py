"""Processes wait only so long for one another before a run begins."""

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.rank_zero import rank_zero_only

from tape_exp.settings.compose import compose_config
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import check
from tape_exp.training.assembly import strategy
from tape_exp.training.faults import LostProcessError
from tape_exp.training.rendezvous import meet


@pytest.fixture
def environment(monkeypatch):
    """Of a process whose run has an address of its own on this machine."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_free_network_port()))
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # which a rank that is set would change for good
    return LightningEnvironment()


def test_a_single_process_meets_itself(environment):
    environment.set_world_size(1)
    assert meet(environment, 60).check(["met 0"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_nobody_joins_names_the_address_and_the_number(environment, rank):
    environment.set_world_size(3)
    environment.set_global_rank(rank)
    address = f"127.0.0.1:{environment.main_port}"
    with pytest.raises(LostProcessError, match="the 3 processes of the run have not") as error:
        meet(environment, 1)
    assert f"come to {address} within 1 seconds" in str(error.value)
    assert "trainer.rendezvous=" in str(error.value)


@pytest.mark.parametrize(("name", "devices"), [("fsdp", 2), ("ddp", 1), ("auto", 2)])
def test_the_limit_is_that_of_the_config(name, devices):
    assert strategy(name, devices, 7).seconds == 7


def test_a_limit_is_at_least_a_second():
    with pytest.raises(ConfigError, match=r"trainer\.rendezvous=0 must be at least 1"):
        check(compose_config(["trainer.rendezvous=0"]))
