-- Name calls whose lease has run out, or all that have one.
local most, all = ARGV[FIRST], ARGV[FIRST + 1] == '1'
return answer('DONE', redis.call('ZRANGEBYSCORE', LEASES, '-inf', all and '+inf' or now, 'LIMIT', 0, most))
