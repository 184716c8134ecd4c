"""`kvsched lesson`: exercises to fill in, their grading, and what the chapter gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli import play
from kvsched.cli.options import Format, print_json, split_format
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.lesson.frame import Lesson

app = typer.Typer(
    help="Learn how a KV cache is scheduled: lessons to fill in, and a run to step through.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("play")(play.command)

Number = Annotated[int, typer.Argument(help="The lesson's number: kvsched lesson list.")]
Language = Annotated[
    str | None,
    typer.Option(help="en or zh. Default: the locale's (LANG), else en.", metavar="LANGUAGE"),
]
Force = Annotated[bool, typer.Option("--force", help="Write over files that are there.")]


@app.command("list")
def list_(language: Language = None, format: Format = None) -> None:
    """List the lessons and their tasks."""
    from kvsched.lesson.frame import choose_language
    from kvsched.lesson.lessons import find, numbers

    output, _ = split_format(format)
    say = choose_language(language)
    lessons = [find(number) for number in numbers()]
    if output == "json":
        print_json(
            [
                {
                    "lesson": lesson.number,
                    "title": lesson.title.say(say),
                    "tasks": [
                        {"task": task.number, "fills": task.fills, "title": task.title.say(say)}
                        for task in lesson.tasks
                    ],
                }
                for lesson in lessons
            ]
        )
        return
    for lesson in lessons:
        typer.echo(f"{lesson.number}  {lesson.title.say(say)}")
        for task in lesson.tasks:
            typer.echo(f"    {task.number} {task.title.say(say)} ({task.fills})")


@app.command()
def start(
    number: Number,
    folder: Annotated[
        Path | None, typer.Argument(help="Where to write. Default: lesson-NUMBER.")
    ] = None,
    force: Force = False,
    language: Language = None,
) -> None:
    """Write the exercise, as a plain file and as a notebook: fill in either."""
    from kvsched.lesson.frame import Text, choose_language
    from kvsched.lesson.lessons import find

    say = choose_language(language)
    lesson = find(number)
    target = folder or Path(f"lesson-{number}")
    written = _write(lesson, target, say, solved=False, force=force)
    for path in written:
        typer.echo(path)
    then = Text("Fill in one of them, then run: ", "补全其中一个，然后运行：").say(say)
    typer.echo(f"{then}kvsched lesson check {number}" + (f" {written[0]}" if folder else ""))


def _write(
    lesson: Lesson, folder: Path, language: str, *, solved: bool, force: bool
) -> tuple[Path, Path]:
    from kvsched.foundation.files import write_whole
    from kvsched.lesson.exercise import notebook, plain_file

    name = "solution" if solved else "exercise"
    plain, book = folder / f"{name}.py", folder / f"{name}.ipynb"
    for path in (plain, book):
        if path.exists() and not force:
            raise UsageError(f"{path} is there already; --force writes over it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror})") from error
    write_whole(plain, plain_file(lesson, language, solved=solved).encode())
    write_whole(book, notebook(lesson, language, solved=solved).encode())
    return plain, book


@app.command()
def check(
    number: Number,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A file, a notebook or their folder. Default: lesson-NUMBER, of the two in it the "
            "notebook where only that has been filled in."
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a task may take.", metavar="SECONDS")
    ] = 10.0,
    language: Language = None,
    format: Format = None,
) -> None:
    """Check what you filled in. Exit code 0 when every task passes, 1 when one does not."""
    from kvsched.lesson.grading import grade
    from kvsched.lesson.lessons import find

    output, _ = split_format(format)
    path = file or Path(f"lesson-{number}")
    if path.is_dir() or file is None:
        path = _filled(find(number), path)
    report = grade(number, path, language, time_limit)
    if output == "json":
        print_json(
            {
                "lesson": number,
                "file": path.name,
                "passed": report.passed,
                "fault": report.fault or None,
                "tasks": [
                    {
                        "task": each.task,
                        "fills": each.name,
                        "status": each.status,
                        "message": each.message or None,
                    }
                    for each in report.verdicts
                ],
            }
        )
    else:
        typer.echo(str(report))
    if not report.passed:
        raise typer.Exit(1)


def _filled(lesson: Lesson, folder: Path) -> Path:
    """Return which file in ``folder`` to check."""
    from kvsched.lesson.exercise import is_as_given

    plain, book = folder / "exercise.py", folder / "exercise.ipynb"
    there = [path for path in (plain, book) if path.exists()]
    if not there:
        raise UsageError(
            f"{folder} has no exercise.py or exercise.ipynb: kvsched lesson start {lesson.number}, "
            "or name the file"
        )
    filled = [path for path in there if not is_as_given(lesson, path)]
    return (filled or there)[0]


@app.command()
def solution(
    number: Number,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Write it there, as a plain file and as a notebook, too."),
    ] = None,
    force: Force = False,
    language: Language = None,
) -> None:
    """Print the solution, with comments, or write it."""
    from kvsched.lesson.exercise import plain_file
    from kvsched.lesson.frame import choose_language
    from kvsched.lesson.lessons import find

    say = choose_language(language)
    lesson = find(number)
    if folder is None:
        typer.echo(plain_file(lesson, say, solved=True), nl=False)
        return
    for path in _write(lesson, folder, say, solved=True, force=force):
        typer.echo(path)


@app.command()
def flaws(
    number: Annotated[int | None, typer.Argument(help="Show this one alone.")] = None,
    language: Language = None,
) -> None:
    """Show what the chapter's scheduler gets wrong in real use, by examples that run."""
    import inspect
    import textwrap

    from kvsched.lesson.flaws import FLAWS, find_flaw
    from kvsched.lesson.frame import Text, choose_language

    say = choose_language(language)
    chosen = FLAWS if number is None else (find_flaw(number),)
    for flaw in chosen:
        text = flaw.text
        typer.echo(f"{flaw.number}. {text.title.say(say)}\n")
        paragraphs = [text.why.say(say)]
        if number is not None:
            typer.echo(textwrap.indent(inspect.getsource(flaw.example), "    "))
        paragraphs.append(Text("What happens: ", "发生了什么：").say(say) + flaw.shows().say(say))
        paragraphs.append(Text("Instead: ", "应当怎样：").say(say) + flaw.done_instead().say(say))
        for paragraph in paragraphs:
            wide = 96 if say == "en" else 48
            typer.echo(textwrap.fill(paragraph, wide, initial_indent="  ", subsequent_indent="  "))
        typer.echo("")
    if number is None:
        typer.echo(Text("With its code: ", "查看代码：").say(say) + "kvsched lesson flaws NUMBER")
