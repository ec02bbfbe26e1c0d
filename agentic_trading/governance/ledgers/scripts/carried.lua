-- Return the calls that a rebuild keeps unless they are booked: in flight, or ended since the ledger was fenced.
local found = redis.call('ZRANGE', LEASES, 0, -1)
for _, id in ipairs(closed and redis.call('ZRANGEBYSCORE', ENDED, redis.call('HGET', META, 'since'), '+inf') or {}) do
  found[#found + 1] = id
end
return answer('DONE', found)
