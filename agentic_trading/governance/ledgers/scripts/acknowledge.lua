-- Name this call no more: that its lease has run out is on record.
redis.call('ZREM', EXPIRED, ARGV[FIRST])
return answer('DONE')
