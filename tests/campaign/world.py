"""A copy of the sources in which commands may break whatever they like, with runs made in it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tape_exp.settings.folders import ROOT

TINY = ["trainer=cpu", "logger=none", "trainer.progress=none", "trainer.log_every=1"]
TINY += ["trainer.checkpoint_every=2", "trainer.validate_every=2"]
ARCH = ["task.arch.layers=1", "task.arch.width=16", "task.arch.heads=2", "task.arch.ffn=16"]
TRAINED = [*TINY, *ARCH, "task.optim.batch=4", "task.optim.max_steps=3"]
ADDITION = ["task=arithmetic", *TRAINED, "task.train_digits=1", "task.test_digits=2"]
ADDITION += ["task.samples_per_cell=2", "model=rope"]


def copy_sources(folder: Path) -> Path:
    """The files that git tracks or would track, in ``folder``."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def lighten(folder: Path) -> None:
    """Few records, and an artifact whose runs take a second: commands can be given often."""
    for number, path in enumerate(sorted((folder / "results" / "records").glob("*.json"))):
        if number % 12:
            path.unlink()
    small = {"train_digits": 1, "test_digits": 2, "width": 16, "layers": 1, "ffn": 16, "heads": 2}
    small |= {"batch": 4, "max_steps": 6}
    scale = folder / "conf" / "scale" / "arithmetic" / "smoke.yaml"
    lines = []
    for line in scale.read_text().splitlines():
        key = line.strip().partition(":")[0]
        lines.append(f"{line.partition(':')[0]}: {small[key]}" if key in small else line)
    scale.write_text("\n".join(lines) + "\n")
    task = folder / "conf" / "task" / "arithmetic.yaml"
    task.write_text(task.read_text().replace("samples_per_cell: 100", "samples_per_cell: 2"))
    artifact = folder / "conf" / "paper" / "fig_addition.yaml"
    text = artifact.read_text()
    artifact.write_text(text.replace("[rope, randpe, nope, fire, tape]", "[rope, nope]"))


@contextmanager
def kept(path: Path) -> Iterator[Path]:
    """``path``, which is afterwards as it was before, whatever is done to it."""
    spare = path.with_name(f".{path.name}.kept")
    take_away(spare)
    copy(path, spare)
    try:
        yield path
    finally:
        take_away(path)
        if spare.is_symlink() or spare.exists():
            spare.rename(path)


def copy(path: Path, to: Path) -> None:
    """A file or folder, if there is one."""
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True)
    elif path.exists():
        shutil.copy2(path, to)


def take_away(path: Path) -> None:
    """Whatever is there."""
    if path.is_dir() and not path.is_symlink():
        path.chmod(0o755)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
