-- Replace the limits if these are newer, and wake the queue.
local version, limits = ARGV[FIRST], ARGV[FIRST + 1]
local newer = tonumber(version) > tonumber(redis.call('HGET', LIMITS, 'version') or '0')
if newer then
  step()
  redis.call('HSET', LIMITS, 'version', version, 'limits', limits)
  redis.call('HINCRBY', LIMITS, 'revision', 1)
  wake_all()
end
return answer('DONE', newer and 1 or 0)
