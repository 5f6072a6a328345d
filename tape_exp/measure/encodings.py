"""Every positional encoding as conf/model has it, made without Hydra, which a machine that only
measures may lack.
"""

from collections.abc import Callable
from functools import partial

from tape_exp.models.positions.abacus import Abacus
from tape_exp.models.positions.alibi import ALiBi
from tape_exp.models.positions.alibi_randpe import RandomALiBi
from tape_exp.models.positions.base import PositionEncoding
from tape_exp.models.positions.cope import CoPE
from tape_exp.models.positions.coupling import PositionCoupling
from tape_exp.models.positions.dape import DAPE
from tape_exp.models.positions.fire import FIRE
from tape_exp.models.positions.fire_randpe import RandomFIRE
from tape_exp.models.positions.fox import FoX
from tape_exp.models.positions.grape import GRAPE
from tape_exp.models.positions.grape_additive import AdditiveGRAPE
from tape_exp.models.positions.kerple import Kerple
from tape_exp.models.positions.learned import Learned
from tape_exp.models.positions.nope import NoPE
from tape_exp.models.positions.p_rope import PRoPE
from tape_exp.models.positions.path import PaTH
from tape_exp.models.positions.path_fox import PaTHFoX
from tape_exp.models.positions.pope import PoPE
from tape_exp.models.positions.randpe import RandPE
from tape_exp.models.positions.repo import RePo
from tape_exp.models.positions.rope import RoPE
from tape_exp.models.positions.selective_rope import SelectiveRoPE
from tape_exp.models.positions.sinusoidal import Sinusoidal
from tape_exp.models.positions.t5 import T5
from tape_exp.models.positions.tape import TAPE
from tape_exp.models.positions.tape_householder import HouseholderTAPE
from tape_exp.models.positions.tape_public_addition import PublicAdditionTAPE
from tape_exp.models.positions.tape_randpe import RandomTAPE
from tape_exp.models.positions.tape_tensor import TensorTAPE
from tape_exp.models.positions.wall import Wall
from tape_exp.models.positions.xpos import XPos
from tape_exp.settings.schema import Arch

DIGITS = tuple(range(10))  # ids, for encodings that must know which tokens are digits

ENCODINGS: dict[str, Callable[[Arch], PositionEncoding]] = {
    "rope": RoPE,
    "tape": TAPE,
    "nope": NoPE,
    "xpos": XPos,
    "randpe": RandPE,
    "alibi": ALiBi,
    "t5": T5,
    "fire": FIRE,
    "kerple_log": Kerple,
    "kerple_power": partial(Kerple, kernel="power"),
    "dape": DAPE,
    "cope": CoPE,
    "path": PaTH,
    "fox": FoX,
    "path_fox": PaTHFoX,
    "wall": Wall,
    "p_rope": PRoPE,
    "pope": PoPE,
    "selective_rope": SelectiveRoPE,
    "repo": RePo,
    "grape": GRAPE,
    "grape_additive": AdditiveGRAPE,
    "tape_tensor": TensorTAPE,
    "tape_householder": HouseholderTAPE,
    "tape_randpe": RandomTAPE,
    "alibi_randpe": RandomALiBi,
    "fire_randpe": RandomFIRE,
    "tape_public_addition": PublicAdditionTAPE,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "abacus": Abacus,
    "coupling": PositionCoupling,
}
