"""The commands `memc` and `memrun`, as the wheel installs them."""

import signal
import sys

from memc import _native


def _run(main, name):
    # Interrupts are the command's own business, not Python's. A signal that is ignored stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main([name, *sys.argv[1:]]))


def memc():
    """Run the compiler's command line."""
    _run(_native.memc_main, "memc")


def memrun():
    """Run the runtime's command line."""
    _run(_native.memrun_main, "memrun")
