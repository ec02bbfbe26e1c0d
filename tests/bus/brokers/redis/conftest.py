"""What tests of a bus on Redis get: a topic of their own, with one, two or sixteen partitions."""

from collections.abc import AsyncIterator

import pytest

from tests.redis_bus import Place, place


@pytest.fixture
async def one(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url) as made:
        yield made


@pytest.fixture
async def two(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url, 2) as made:
        yield made


@pytest.fixture
async def many(redis_url: str) -> AsyncIterator[Place]:
    async with place(redis_url, 16) as made:
        yield made
