"""Fall back to another model when the first one cannot answer.

python examples/06_fallback.py
"""

import asyncio
from decimal import Decimal

import agentic_trading as at

SECOND = at.Alternative(at.LLMProvider.SCRIPTED, "scripted-prompted-1")


def answer(request: at.ModelRequest) -> at.ScriptedReply:
    """Stand in for two models. The first one has no capacity."""
    if request.envelope.model == SECOND.model:
        return '{"direction": "up"}'
    return at.ProviderError(at.FailureKind.SERVER_ERROR, "no capacity", sent=False)


async def main() -> None:
    """Ask once. Each model gets a call with its own admission, charge and record."""
    async with at.local_gateway(at.ScriptedProvider(answer), budget_usd=Decimal("0.50")) as local:
        gateway = at.FallbackGateway(local, [SECOND])
        envelope = (
            at
            .EnvelopeBuilder()
            .with_instructions("Judge the trend. Answer with a direction.")
            .with_retry_policy(at.RetryPolicy(max_retries=0))
            .with_provider(at.LLMProvider.SCRIPTED, "scripted-1")
            .build()
        )
        outcome = await gateway.ask_structured(envelope)

    print(outcome.json_text)
    for attempt in outcome.attempts:
        print(f"{attempt.model}: {attempt.failure.category if attempt.failure else 'answered'}")


if __name__ == "__main__":
    asyncio.run(main())
