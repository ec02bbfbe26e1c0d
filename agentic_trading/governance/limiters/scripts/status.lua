-- Return the state of the deployment as JSON.

local waiting = 0
for _, place in ipairs(redis.call('HVALS', PLACES)) do
  if cjson.decode(place)['until'] > now then waiting = waiting + 1 end
end
local answered, failed = sums(deployment.ended)
write()
return cjson.encode({
  breaker = deployment.open_until == 0 and 'closed' or deployment.open_until > now and 'open' or 'half_open',
  answered = answered,
  failed = failed,
  in_flight = redis.call('ZCARD', INSIDE),
  waiting = waiting,
  requests_left = rules.requests and math.max(0, math.floor(deployment.requests / MINUTE_MS)),
  tokens_left = rules.tokens and math.max(0, math.floor(deployment.tokens / MINUTE_MS)),
  retries_left = retries_left(),
  cooldown_ms = math.max(0, deployment.paused_until - now),
})
