-- Book a call of the past from the log; the second time changes nothing.
local id, payload, state, keep = unpack(ARGV, FIRST, FIRST + 3)
local amount, charged = {unpack(ARGV, FIRST + 4, FIRST + 6)}, {unpack(ARGV, FIRST + 7, FIRST + 9)}
local rules = ARGV[FIRST + 10]
local names = split(ARGV[FIRST + 11])
local key = KEYS[FIRST_CALL]

local call = find(key)
if call and call.state ~= 'reserved' and call.state ~= 'dispatched' then
  return answer('DONE')
end
step()
if call then -- in flight when the rebuild began: the log knows how it ended
  add(call.names, NOTHING, {-call.amount[1], -call.amount[2], -call.amount[3]}, NOTHING)
  redis.call('ZREM', LEASES, id)
end
for i, name in ipairs(names) do
  local ends, keep_for = struct.unpack('<dd', rules, 40 * i - 39)
  if redis.call('HEXISTS', COUNTERS, name) == 0 then
    redis.call('HSET', COUNTERS, name, struct.pack(COUNTER, 0, 0, 0, 0, 0, 0, 0, 0, 0, ends, keep_for, 0))
    enter(name, ends)
  end
end
add(names, charged, NOTHING, state == 'in_doubt' and charged or NOTHING)
redis.call('DEL', key)
redis.call('HSET', key, 'mark', mark, 'state', state, 'payload', payload,
  'nusd', amount[1], 'tokens', amount[2], 'calls', amount[3], 'names', ARGV[FIRST + 11],
  'charged_nusd', charged[1], 'charged_tokens', charged[2], 'charged_calls', charged[3])
redis.call('PEXPIRE', key, keep)
return answer('DONE')
