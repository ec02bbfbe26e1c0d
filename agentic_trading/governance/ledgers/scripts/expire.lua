-- End those of the given calls whose lease has run out: give back what was never sent, charge the rest in full.
local keep = ARGV[FIRST]
local ended = {}
for i = FIRST_CALL, #KEYS do
  local id = ARGV[FIRST + 1 + i - FIRST_CALL]
  local lease = redis.call('ZSCORE', LEASES, id)
  if lease and tonumber(lease) <= now then
    local call = find(KEYS[i])
    local state
    if call and call.state == 'reserved' then
      state = 'released'
      finish(KEYS[i], id, call, state, {'0', '0', '0'}, keep)
    elseif call and call.state == 'dispatched' then
      state = 'in_doubt'
      finish(KEYS[i], id, call, state, call.amount, keep)
    else
      redis.call('ZREM', LEASES, id)
    end
    if state then
      step()
      local names = table.concat(call.names, '\n')
      for _, fact in ipairs({id, state, names, call.amount[1], call.amount[2], call.amount[3]}) do
        ended[#ended + 1] = fact
      end
    end
  end
end
return answer('DONE', ended)
