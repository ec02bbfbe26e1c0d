-- Count every id of a kind of scope in a window from now on.
local pair = ARGV[FIRST]
local counted = redis.call('HGET', LIMITS, 'counted') or ''
if not string.find('\n' .. counted, '\n' .. pair .. '\n', 1, true) then
  step()
  redis.call('HSET', LIMITS, 'counted', counted .. pair .. '\n')
  redis.call('HINCRBY', LIMITS, 'revision', 1)
end
return answer('DONE')
