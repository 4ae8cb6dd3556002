"""The command line: data on stdout, progress on stderr, usage errors exit with 2."""

from lapse.cli import look as look  # each module adds its commands, in the order of the help page

from lapse.cli import tables as tables  # isort: skip
from lapse.cli import explain as explain  # isort: skip
from lapse.cli import live as live  # isort: skip
from lapse.cli import export as export  # isort: skip
from lapse.cli import train as train  # isort: skip
from lapse.cli import results as results  # isort: skip
from lapse.cli.app import app as app


def main() -> None:
    app(prog_name="lapse")
