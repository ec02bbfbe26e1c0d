-- Calls: one hash each, which expires some time after the call has ended. A hash with another mark is from before a rebuild.
-- The amounts stay text, so that they do not pass through floating-point arithmetic.
local NOTHING = {0, 0, 0}

local function find(key)
  local call = redis.call('HMGET', key, 'mark', 'state', 'nusd', 'tokens', 'calls', 'names', 'late',
    'charged_nusd', 'charged_tokens', 'charged_calls', 'carried')
  if call[1] ~= epoch_id then
    return nil
  end
  return {
    state = call[2], amount = {call[3], call[4], call[5]}, names = split(call[6]), late = call[7] or '0',
    charged = {call[8] or '0', call[9] or '0', call[10] or '0'},
    is_under_way = call[2] == 'reserved' or call[2] == 'dispatched', is_carried = call[11],
  }
end

-- End a call in flight, or correct one in doubt. Charge it, and wake the queue.
local function finish(key, id, call, state, charged, keep)
  local amount, spent, held, doubt = call.amount, NOTHING, NOTHING, NOTHING
  if call.state == 'in_doubt' then
    local before = call.charged
    spent = {charged[1] - before[1], charged[2] - before[2], charged[3] - before[3]}
    doubt = {-before[1], -before[2], -before[3]}
    call.late = '1'
  else
    held = {-amount[1], -amount[2], -amount[3]}
    spent = {tonumber(charged[1]), tonumber(charged[2]), tonumber(charged[3])}
    if state == 'in_doubt' then
      doubt = {tonumber(amount[1]), tonumber(amount[2]), tonumber(amount[3])}
    end
  end
  call.state, call.charged = state, charged
  add(call.names, spent, held, doubt)
  redis.call('HSET', key, 'state', state, 'late', call.late,
    'charged_nusd', charged[1], 'charged_tokens', charged[2], 'charged_calls', charged[3])
  redis.call('PEXPIRE', key, keep)
  redis.call('ZREM', LEASES, id)
  if state ~= 'released' then
    redis.call('ZADD', ENDED, string.format('%.0f', now_us), id)
  end
  wake(call.names)
end
