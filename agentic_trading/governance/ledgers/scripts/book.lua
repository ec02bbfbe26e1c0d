-- Book a past call from the log. Repeating has no effect.
local id, payload, state, keep = unpack(ARGV, FIRST, FIRST + 3)
local amount, charged = {unpack(ARGV, FIRST + 4, FIRST + 6)}, {unpack(ARGV, FIRST + 7, FIRST + 9)}
local rules = ARGV[FIRST + 10]
local key = KEYS[FIRST_CALL]

local call = find(key)
local names = call and call.names or split(ARGV[FIRST + 11]) -- a charge goes to the windows of its reservation
if call and (not call.is_carried or state == 'in_doubt' and not call.is_under_way) then
  return answer('DONE') -- booked already, or ended after the log's record
end
local asked = redis.call('HMGET', key, 'state', 'payload') -- the hash from before the rebuild, because a log may lack the request's own limits
if asked[2] and asked[1] ~= 'released' then
  payload = asked[2]
end
step()
if call then -- in flight when the ledger was fenced, and the log has its end
  local sums = call.is_under_way and call.amount or call.charged
  local back = {-sums[1], -sums[2], -sums[3]}
  if call.is_under_way then
    add(call.names, NOTHING, back, NOTHING)
  else
    add(call.names, back, NOTHING, call.state == 'in_doubt' and back or NOTHING)
  end
  redis.call('ZREM', LEASES, id)
end
for i, name in ipairs(call and {} or names) do
  local ends, keep_for = struct.unpack('<dd', rules, 40 * i - 39)
  if redis.call('HEXISTS', COUNTERS, name) == 0 then
    redis.call('HSET', COUNTERS, name, struct.pack(COUNTER, 0, 0, 0, 0, 0, 0, 0, 0, 0, ends, keep_for, 0))
    enter(name, ends)
  end
end
add(names, charged, NOTHING, state == 'in_doubt' and charged or NOTHING)
redis.call('DEL', key)
redis.call('HSET', key, 'mark', epoch_id, 'state', state, 'payload', payload,
  'nusd', amount[1], 'tokens', amount[2], 'calls', amount[3], 'names', table.concat(names, '\n'),
  'charged_nusd', charged[1], 'charged_tokens', charged[2], 'charged_calls', charged[3])
redis.call('PEXPIRE', key, keep)
return answer('DONE')
