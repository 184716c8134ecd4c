"""`kvsched`: how a run begins and ends."""

from __future__ import annotations

import io
import os
import signal
import sys


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"kvsched: {line}\n")
    sys.exit(code)


def _open_streams() -> None:
    """Put the null device where a standard stream is closed.

    What is opened next would else have its number: a socket that is written to as stdout, or one
    that libuv takes for a fault of its own.
    """
    while (got := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(got)
    # Python has none where it found them closed.
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def main() -> None:
    """Run the command line. Errors go to stderr in one line; KVSCHED_DEBUG=1 shows where from."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows only ASCII shows a question mark, and does not end the run.
            stream.reconfigure(errors="replace")
    # Ended from outside, a run still removes its temporary files.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(128 + signal.SIGTERM))
    from kvsched.foundation.errors import KvschedError

    try:
        # Loading the commands takes a moment, in which the user may already change their mind.
        from kvsched.cli.app import app

        app()
    except KvschedError as error:
        if os.environ.get("KVSCHED_DEBUG") == "1":
            raise
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except SystemExit as ended:
        # Typer turns an interruption into the shell's own code.
        if ended.code == 128 + signal.SIGINT:
            _fail("interrupted", 1)
        raise
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, nor anyone to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"the output cannot be written ({error.strerror})", 1)
    except MemoryError:
        _fail("not enough memory: slice the trace, or close other programs", 1)
    except Exception as error:  # the last resort before a traceback
        if os.environ.get("KVSCHED_DEBUG") == "1":
            raise
        kind = type(error).__name__
        _fail(f"internal error: {kind}: {error} (KVSCHED_DEBUG=1 shows the traceback)", 1)


if __name__ == "__main__":
    main()
