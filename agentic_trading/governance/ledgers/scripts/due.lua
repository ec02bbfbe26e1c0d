-- Return the calls whose lease has run out, and expired ones that are due to be reported again.
local found = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, ARGV[FIRST])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', EXPIRED, '-inf', now, 'LIMIT', 0, ARGV[FIRST])) do
  found[#found + 1] = id
end
return answer('DONE', found)
