"""`agentic-trading ask`: ask a model about a log, within limits. All calls are recorded in the log."""

from decimal import Decimal
from typing import Annotated

import typer

from agentic_trading.cli import options as cli_options

QuestionText = Annotated[
    str, typer.Argument(metavar="QUESTION", help="The question. Not used with --resume.")
]
AskedProviderOption = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME",
        help="The provider to ask: rules (sums without a model), one from `models list`, or one of the configuration.  "
        "[default: the configuration's model for general, or rules]",
    ),
]
MaxDepth = Annotated[
    int,
    typer.Option(
        "--max-depth",
        metavar="N",
        min=0,
        max=16,
        help="Maximum depth of parts. 0 does not split the question.",
    ),
]
MaxChildren = Annotated[
    int, typer.Option("--max-children", metavar="N", min=1, help="Maximum number of parts of each question.")
]
MaxCalls = Annotated[
    int, typer.Option("--max-calls", metavar="N", min=1, help="Maximum number of calls, including retries.")
]
MaxCost = Annotated[
    Decimal | None,
    typer.Option(
        "--max-cost",
        metavar="X",
        parser=cli_options.usd_amount,
        help="Maximum cost of all calls in dollars.  [required for a new question]",
    ),
]
ResumeTrace = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="TRACE",
        help="Continue the question of a trace, with its original limits. TRACE is an id, or its first 8 or more characters.",
    ),
]
GivenAnswer = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        metavar="FRAME=TEXT",
        help="Your answer to a waiting frame. Requires --resume. Can be repeated.",
    ),
]


def ask_command(
    question: QuestionText = "",
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
    """Ask a question about a log, and print the frames of the answer.

    The evidence is sums and counts that code makes from the log. Calls, frames and answers are recorded in
    the log. The exit code is 5 if your answer is required, and 1 if there is no answer.
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
        raise OptionError("--answer", "given without --resume", "only with --resume TRACE")
    if answers_from and not resume:
        raise OptionError("--answers-from", "given without --resume", "only with --resume TRACE")
    if max_cost is None and not resume:
        raise OptionError("--max-cost", "missing", "the maximum cost of all calls in dollars, such as 0.05")
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
