-- Record that a reserved call is about to be sent, with its lease.
local id, lease = ARGV[FIRST], tonumber(ARGV[FIRST + 1])
if closed then
  return answer('BACK')
end
local found, state = unpack(redis.call('HMGET', KEYS[FIRST_CALL], 'mark', 'state'))
if found ~= epoch_id then
  return answer('UNKNOWN')
elseif state ~= 'reserved' then
  return answer('STATE', state)
end
step()
redis.call('HSET', KEYS[FIRST_CALL], 'state', 'dispatched')
redis.call('ZADD', LEASES, now + lease, id)
return answer('DONE')
