-- Return how the lane stands, as JSON.

local waiting = 0
for _, place in ipairs(redis.call('HVALS', PLACES)) do
  if cjson.decode(place)['until'] > now then waiting = waiting + 1 end
end
local answered, failed = sums(lane.ended)
write()
return cjson.encode({
  breaker = lane.open_until == 0 and 'closed' or lane.open_until > now and 'open' or 'half_open',
  answered = answered,
  failed = failed,
  in_flight = redis.call('ZCARD', INSIDE),
  waiting = waiting,
  requests_left = rules.requests and math.max(0, math.floor(lane.requests / MINUTE_MS)),
  tokens_left = rules.tokens and math.max(0, math.floor(lane.tokens / MINUTE_MS)),
  retries_left = retries_left(),
  paused_ms = math.max(0, lane.paused_until - now),
})
