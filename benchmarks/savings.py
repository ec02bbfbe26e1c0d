"""How many output tokens the form of an answer saves: the same questions asked in the form and as text, of the local model."""

import argparse
import asyncio
import sys
from decimal import Decimal

from agentic_trading.client import Savings, measure_savings
from agentic_trading.clock import SystemClock
from agentic_trading.llm import EnvelopeBuilder, LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.models import find_weights
from agentic_trading.llm.providers.local import MODEL, LocalProvider
from agentic_trading.platform import local_gateway
from agentic_trading.platform.settings import WEIGHTS_FOLDER

MOST_TOKENS = 300
QUESTIONS = (
    "Why may a stop order be filled below its stop price?",
    "What does a taker pay that a maker does not?",
    "When does a position have a loss although the price went up?",
    "Why is the price of the next bar used for a decision at a close?",
    "What is the difference between a limit order and a market order?",
    "Why do two orders of one size differ in cost?",
    "What can make a backtest look better than trading?",
    "How does a wider spread change the cost of an order?",
)


def builder() -> EnvelopeBuilder:
    """Return a question to the local model under the cap that both forms have."""
    made = EnvelopeBuilder().with_agent("savings-1", "savings").with_provider(LLMProvider.LOCAL, MODEL)
    made.with_budget(max_output_tokens=MOST_TOKENS).with_retry_policy(RetryPolicy(attempt_timeout_s=300.0))
    return made


async def measured(questions: tuple[str, ...]) -> Savings:
    """Ask every question both ways."""
    provider = LocalProvider(find_weights(WEIGHTS_FOLDER.expanduser(), MODEL))
    async with local_gateway(provider, budget_usd=Decimal(1)) as gateway:
        return await measure_savings(gateway, questions, builder)


def main() -> int:
    """Print what each question took and the sum, whatever its sign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two questions")
    questions = QUESTIONS[:2] if parser.parse_args().quick else QUESTIONS
    started = SystemClock().monotonic()
    savings = asyncio.run(measured(questions))
    print(f"{MODEL}, at most {MOST_TOKENS} tokens an answer")
    for one in savings.measured:
        form, text = ("answered" if ok else "no answer" for ok in (one.structured_ok, one.text_ok))
        print(
            f"  form {one.structured_tokens:>5} {form:9}  text {one.text_tokens:>5} {text:9}  {one.question}"
        )
    print(savings)
    print(f"{SystemClock().monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
