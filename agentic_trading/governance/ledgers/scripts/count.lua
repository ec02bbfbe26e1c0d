-- Count scopes of a kind in a window from now on, for every id.
local pair = ARGV[FIRST]
local counted = redis.call('HGET', LIMITS, 'counted') or ''
if not string.find('\n' .. counted, '\n' .. pair .. '\n', 1, true) then
  step()
  redis.call('HSET', LIMITS, 'counted', counted .. pair .. '\n')
  redis.call('HINCRBY', LIMITS, 'revision', 1)
end
return answer('DONE')
