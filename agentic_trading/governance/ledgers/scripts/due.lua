-- Name calls whose lease has run out.
return answer('DONE', redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, ARGV[FIRST]))
