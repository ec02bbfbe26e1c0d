#!/bin/sh
# A tour of the records: why an order was sent, a changed byte in a log, the same run again, a truncated order.
# Usage: sh examples/tour.sh [FOLDER]. It needs `agentic-trading` on the PATH, no key and no network.
set -eu

session=${1:-runs/tour}
mkdir -p "$(dirname "$session")"

echo "== A session: the rules answer, and one answer in ten is malformed on purpose"
agentic-trading run --data btcusdt-5m --bars 600 --inject malformed=10% --seed 5 --out "$session" --json >"$session.json"
fill=$(sed -n 's/.*"first_fill_id": *"\([^"]*\)".*/\1/p' "$session.json")

echo "== 1. Why this order?"
agentic-trading trace why "$fill" --store "$session"
agentic-trading audit verify "$session"

echo "== 2. The price of this fill is changed in a copy of the log"
mkdir -p "$session-changed"
sed "/\"fill_id\":\"$fill\"/s/\"price\":\"[0-9]/\"price\":\"0/" "$session/interactions.jsonl" >"$session-changed/interactions.jsonl"
if agentic-trading audit verify "$session-changed/interactions.jsonl"; then
  echo "the change was not found" >&2
  exit 1
fi

echo "== 3. The same run again, with the network blocked"
agentic-trading replay run "$session" --workers 8

echo "== 4. An order that was truncated within its quantity, 0.15"
cat >"$session-order.json" <<'SCHEMA'
{"type": "object", "required": ["symbol", "side", "qty"], "properties": {
  "symbol": {"type": "string"}, "side": {"enum": ["BUY", "SELL"]}, "qty": {"type": "number", "exclusiveMinimum": 0}}}
SCHEMA
echo '{"symbol": "BTCUSDT", "side": "BUY", "qty": 0.15}' | agentic-trading parse --schema "$session-order.json"
if printf %s '{"symbol": "BTCUSDT", "side": "BUY", "qty": 0.1' | agentic-trading parse --schema "$session-order.json"; then
  echo "a truncated order was accepted" >&2
  exit 1
fi
