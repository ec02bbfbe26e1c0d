-- Store the status of a worker, and drop the workers that have not published for a while.
-- KEYS[1]: statuses, by worker · KEYS[2]: when, by worker · ARGV: the worker, its status, for how long it is kept (ms)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[1])
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - ARGV[3]), 'LIMIT', 0, 1000)
for _, worker in ipairs(gone) do
  redis.call('HDEL', KEYS[1], worker)
  redis.call('ZREM', KEYS[2], worker)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
