-- Stop reporting this call, because its expired lease is recorded.
redis.call('ZREM', EXPIRED, ARGV[FIRST])
return answer('DONE')
