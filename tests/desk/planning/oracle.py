"""A plain account, bar by bar and stock by stock, which shares nothing with the engine that it judges."""

from dataclasses import dataclass, field

Row = list[float | None]


@dataclass
class World:
    """Prices and wanted weights, None where there is no bar."""

    opens: list[Row]
    closes: list[Row]
    weights: list[list[float]]
    rebalance: list[bool]
    stop_loss: float | None
    fee_bps: float
    slippage_bps: float
    start: int


@dataclass
class Stock:
    """What is known of one stock."""

    shares: float = 0.0
    entry: float = 0.0
    last: float = 0.0
    bars_without: int = 1_000
    wants: float = 0.0
    waits: bool = False
    leaves: bool = False
    barred: bool = False


@dataclass
class Books:
    """An account and what it did."""

    cash: float = 1.0
    equity: list[float] = field(default_factory=list)
    traded: list[float] = field(default_factory=list)
    stopped: int = 0


def after_costs(value: float, cost: float, goals: list[tuple[float, float]]) -> float:
    """Return what is left of `value` when all (weight, held) are brought to their weights of it, by halving."""
    low, high = 0.0, value
    while low < (middle := (low + high) / 2) < high:
        paid = cost * sum(abs(weight * middle - held) for weight, held in goals)
        low, high = (low, middle) if middle + paid > value else (middle, high)
    return middle


def play(world: World) -> Books:
    """Play a world to its end."""
    books = Books()
    stocks = [Stock() for _ in world.closes[0]]
    for bar, closes in enumerate(world.closes):
        books.traded.append(fill(world, books, stocks, world.opens[bar]) if bar else 0.0)
        for stock, close in zip(stocks, closes, strict=True):
            stock.bars_without = 0 if close is not None else stock.bars_without + 1
            stock.last = stock.last if close is None else close
        books.equity.append(books.cash + sum(stock.shares * stock.last for stock in stocks))
        stop(world, books, stocks, closes)
        decide(world, stocks, bar)
    return books


def fill(world: World, books: Books, stocks: list[Stock], opens: Row) -> float:
    """Trade what was decided; return its value."""
    cost = (world.fee_bps + world.slippage_bps) / 10_000
    at = [stock.last if price is None else price for stock, price in zip(stocks, opens, strict=True)]
    value = books.cash + sum(stock.shares * price for stock, price in zip(stocks, at, strict=True))
    due = [
        (stock, price, 0.0 if stock.leaves or stock.barred else stock.wants)
        for stock, price, opened in zip(stocks, at, opens, strict=True)
        if opened is not None and (stock.waits or stock.leaves)
    ]
    after = after_costs(value, cost, [(weight, stock.shares * price) for stock, price, weight in due])
    changes = [weight * after - stock.shares * price for stock, price, weight in due]
    bought, sold = sum(c for c in changes if c > 0), -sum(c for c in changes if c < 0)
    room = max(books.cash + sold * (1 - cost), 0.0)
    part = min(1.0, room / (bought * (1 + cost))) if bought else 1.0
    traded = 0.0
    for (stock, price, weight), change in zip(due, changes, strict=True):
        moved = change * part if change > 0 else change
        moved = 0.0 if 0 < moved <= 1e-12 * value else moved
        if moved > 0:
            worth = stock.shares * stock.entry + moved * (1 + world.slippage_bps / 10_000)
            stock.entry = worth / (stock.shares + moved / price)
        stock.shares = 0.0 if weight == 0 else stock.shares + moved / price
        stock.waits = stock.leaves = False
        books.cash -= moved + cost * abs(moved)
        traded += abs(moved)
    return traded


def stop(world: World, books: Books, stocks: list[Stock], closes: Row) -> None:
    """Note the positions whose close is at or below their stop."""
    if world.stop_loss is None:
        return
    for stock, close in zip(stocks, closes, strict=True):
        is_hit = close is not None and close <= stock.entry * (1 - world.stop_loss)
        if is_hit and stock.shares > 0 and not stock.leaves:
            stock.leaves = stock.barred = True
            books.stopped += 1


def decide(world: World, stocks: list[Stock], bar: int) -> None:
    """Take the row of weights of a close."""
    for place, stock in enumerate(stocks):
        is_gone = stock.bars_without > 5
        wants = 0.0 if is_gone or bar < world.start else world.weights[bar][place]
        stock.waits |= world.rebalance[bar] or wants != stock.wants
        stock.wants = wants
        stock.barred &= wants > 0
