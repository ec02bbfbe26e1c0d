-- Enter a tenant in the index, and drop the tenants that were not entered for a while.
-- A separate script, because the index has another hash slot than a tenant's keys.
-- KEYS[1]: the index · ARGV: the tenant, how long it is kept (ms)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
