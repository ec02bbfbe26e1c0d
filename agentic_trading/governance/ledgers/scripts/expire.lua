-- End the given calls whose lease has run out: refund calls that were never sent, charge the others in full. Return
-- them, and earlier ones that were not acknowledged and have not changed since.
local keep, again = ARGV[FIRST], now + ARGV[FIRST + 1]
local ended = {}
for i = FIRST_CALL, #KEYS do
  local id = ARGV[FIRST + 2 + i - FIRST_CALL]
  local lease, due, call = redis.call('ZSCORE', LEASES, id), redis.call('ZSCORE', EXPIRED, id), find(KEYS[i])
  local is_new, is_due = lease and tonumber(lease) <= now, due and tonumber(due) <= now
  if is_new and call and call.is_under_way then
    local is_sent = call.state == 'dispatched'
    finish(KEYS[i], id, call, is_sent and 'in_doubt' or 'released', is_sent and call.amount or {'0', '0', '0'}, keep)
    step()
  elseif is_new then
    redis.call('ZREM', LEASES, id)
    is_new = false
  end
  if (is_new or is_due) and call and (call.state == 'released' or call.state == 'in_doubt') then
    redis.call('ZADD', EXPIRED, again, id)
    local names = table.concat(call.names, '\n')
    for _, fact in ipairs({id, call.state, names, call.amount[1], call.amount[2], call.amount[3], is_new and 1 or 0}) do
      ended[#ended + 1] = fact
    end
  elseif is_due then
    redis.call('ZREM', EXPIRED, id)
  end
end
return answer('DONE', ended)
