"""The journal of a search, Optuna's, to which all its workers write."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from tape_exp.machine.files import finish_last_line, read_jsonl
from tape_exp.settings.errors import ConfigError

optuna.logging.set_verbosity(optuna.logging.ERROR)
BUDGET = "trials"  # attribute of a study: how many trials its model shall have
STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


def open_journal(search: Path) -> JournalStorage:
    """Open the journal in the folder of a search, or begin it."""
    return JournalStorage(Journal(str(search / "journal.log")))


class Journal(JournalFileBackend):
    """Optuna's journal, which goes on after a line that a full disk or a lost machine cut short."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append to whole lines; no other worker writes one meanwhile."""
        lock = JournalFileSymlinkLock(self._file_path)
        lock.acquire()
        try:
            finish_last_line(Path(self._file_path))
        finally:
            lock.release()
        super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        """Raise :class:`ConfigError` where a line in the middle is damaged."""
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            path = Path(self._file_path)
            number = next((n for n, value in read_jsonl(path) if value is None), None)
            raise ConfigError(
                f"{path}, line {number} is damaged: remove that line and the search goes on, or "
                "remove the file and it begins anew, with the runs that are there."
            ) from error
