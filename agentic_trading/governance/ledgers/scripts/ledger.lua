-- The common part of the ledger's scripts: the keys of its state, and the check of the caller's limits.
local LIMITS, COUNTERS, ENDS, LEASES, LINE, WAITERS, INDEX, ENDED, EXPIRED = unpack(KEYS, 2, 10)
local FIRST_CALL = 11 -- in KEYS

-- Whether the caller has other limits, and the answer with the current ones.
local function is_stale(revision)
  return (redis.call('HGET', LIMITS, 'revision') or '0') ~= revision
end

local function stale()
  local limits = redis.call('HMGET', LIMITS, 'revision', 'version', 'limits', 'counted')
  return answer('STALE', limits[1] or '0', limits[2] or '0', limits[3] or '', limits[4] or '')
end
