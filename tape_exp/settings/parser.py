"""Parse the options of a command; a mistake in them is one sentence."""

import argparse
import re
from typing import NoReturn

from tape_exp.settings.errors import ConfigError, choose, did_you_mean


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, but for its errors."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`ConfigError` with what argparse says."""
        raise ConfigError(self.sentence(message))

    def sentence(self, message: str) -> str:
        """Write argparse's message as a sentence."""
        explained = f"`{self.prog} --help` explains"
        if match := re.match(r"unrecognized arguments: (\S+)", message):
            return unknown(match[1], self.prog, self)
        if match := re.match(r"the following arguments are required: (.*)", message):
            return f"{self.prog} needs {match[1]}; {explained} it."
        if match := re.match(
            r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message
        ):
            option, value, listed = match.groups()
            what = f"{option}={value}" if option.startswith("-") else f"{self.prog} {value}"
            return choose(what, value, re.findall(r"[\w-]+", listed))
        if match := re.match(r"argument (?:.*/)?(.*): expected one argument", message):
            return f"{match[1]} needs a value; {explained} it."
        return f"{message.removeprefix('argument ').rstrip('.')}."


def unknown(argument: str, command: str, parser: argparse.ArgumentParser) -> str:
    """Say that a command's parser does not know an option, with the nearest one."""
    option = argument.partition("=")[0]
    known = re.findall(r"--[\w-]+", parser.format_usage())
    return f"{option}{did_you_mean(option, known)} `{command} --help` explains the options."
