"""`agentic-trading ask`: a question about a log, which a model may split, under limits, on record in the same log."""

from decimal import Decimal
from typing import Annotated

import typer

from agentic_trading.cli import options as cli_options

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask; left out with --resume.")]
AskedProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        help="Who is asked: rules (sums, without a model), one with models (see `models list`), one of the configuration; "
        "if left out, the configuration's model for general, else rules.",
    ),
]
MaxDepth = Annotated[
    int, typer.Option("--max-depth", metavar="N", min=0, max=16, help="How deep parts are split.")
]
MaxChildren = Annotated[
    int, typer.Option("--max-children", metavar="N", min=1, help="At most N parts of each question.")
]
MaxCalls = Annotated[
    int, typer.Option("--max-calls", metavar="N", min=1, help="At most N calls in all; retries count.")
]
MaxCost = Annotated[
    Decimal | None,
    typer.Option(
        "--max-cost",
        metavar="X",
        parser=cli_options.usd_amount,
        help="What all calls may cost, in dollars; required.",
    ),
]
ResumeTrace = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="TRACE",
        help="Go on with the question of a trace: its id, or the first 8 or more characters. Its limits hold.",
    ),
]
GivenAnswer = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        metavar="FRAME=TEXT",
        help="Your answer to a frame that asks; may be repeated, with --resume.",
    ),
]


def ask_command(
    question: Question = "",
    *,
    store: cli_options.Store = None,
    config: cli_options.ConfigFile = None,
    provider: AskedProviderOption = "",
    model: cli_options.Model = "",
    base_url: cli_options.BaseUrl = None,
    price: cli_options.PriceOption = None,
    context: cli_options.ContextTokens = None,
    max_cost: MaxCost = None,
    max_depth: MaxDepth = 2,
    max_children: MaxChildren = 5,
    max_calls: MaxCalls = 20,
    resume: ResumeTrace = "",
    answer: GivenAnswer = None,
    bus: cli_options.RunBus = None,
    answers_from: cli_options.AnswersFrom = None,
    as_json: cli_options.AsJson = False,
) -> None:
    """Ask a question about a log and print the frames of the answer.

    Sums and counts are evidence that code has made. Calls, frames and answers go on record in the log. Exit 5 if it waits for
    an answer of yours, 1 if it has none.
    """
    from agentic_trading.cli.ask_answers import AskOptions, answer_question, read_answers
    from agentic_trading.operate.choices import own_model_row
    from agentic_trading.platform.errors import OptionError

    answers = read_answers(answer or ())
    if bool(question.strip()) == bool(resume):
        raise OptionError(
            "QUESTION", "empty" if not resume else "given with --resume", "a question, or --resume TRACE"
        )
    if answers and not resume:
        raise OptionError("--answer", "given without --resume", "--resume TRACE beside it")
    if answers_from and not resume:
        raise OptionError("--answers-from", "given without --resume", "--resume TRACE beside it")
    if max_cost is None and not resume:
        raise OptionError("--max-cost", "left out", "what the question may cost in all, such as 0.05")
    options = AskOptions(
        log=cli_options.log_of(store),
        config=config,
        provider=provider,
        model=model,
        base_url=base_url,
        own_model=own_model_row(model, price, context),
        max_cost_usd=max_cost,
        max_depth=max_depth,
        max_children=max_children,
        max_calls=max_calls,
        bus=bus,
        answers_from=tuple(answers_from or ()),
    )
    raise typer.Exit(answer_question(options, question, trace_id=resume, answers=answers, as_json=as_json))
