-- Begin the next epoch, closed until the log is booked. Keep the given calls that have ended since the ledger was closed
-- or are in flight, with their counters, and drop all others. If the ledger has gone back, drop calls in flight too,
-- because they may be over. If calls have changed since the caller read the list, it has to be read again.
local KEEP_MS = 691200000 -- 8 days
local is_healthy = closed == REBUILDING
local since, given, carried, counted = redis.call('HGET', META, 'since'), {}, {}, {}

local function are_given(ids)
  for _, id in ipairs(ids) do
    if not given[id] then
      return false
    end
  end
  return true
end

for i = FIRST, #ARGV do
  given[ARGV[i]] = true
end
if not closed or not are_given(redis.call('ZRANGE', LEASES, 0, -1))
  or not are_given(redis.call('ZRANGEBYSCORE', ENDED, since, '+inf')) then
  return answer('AGAIN')
end

local function carry(key, call)
  carried[#carried + 1] = key
  for n, packed in ipairs(read(call.names)) do
    local name = call.names[n]
    if packed and not counted[name] then
      local _, _, _, nusd, tokens, calls, _, _, _, ends, keep, over = struct.unpack(COUNTER, packed)
      local held = is_healthy and {nusd, tokens, calls} or NOTHING
      counted[name] = {0, 0, 0, held[1], held[2], held[3], 0, 0, 0, ends, keep, over}
    end
    if packed and not call.is_under_way then
      for unit = 1, 3 do
        local counter, charged = counted[name], tonumber(call.charged[unit])
        counter[unit] = counter[unit] + charged
        counter[unit + 6] = counter[unit + 6] + (call.state == 'in_doubt' and charged or 0)
      end
    end
  end
end

for i = FIRST_CALL, #KEYS do
  local call, id = find(KEYS[i]), ARGV[FIRST + i - FIRST_CALL]
  local stays = call and call.is_under_way and is_healthy
  local has_ended = call and not call.is_under_way and call.state ~= 'released'
  if stays or has_ended then
    carry(KEYS[i], call)
  else
    if call and call.state == 'dispatched' then -- its charge is not booked yet
      redis.call('PEXPIRE', KEYS[i], KEEP_MS)
    else
      redis.call('DEL', KEYS[i])
    end
    redis.call('ZREM', LEASES, id)
    redis.call('ZREM', ENDED, id)
  end
end

-- Until the ledger is open, previous epochs are listed as not booked, because this rebuild may be aborted.
local unbooked = (redis.call('HGET', META, 'unbooked') or '') .. ' ' .. epoch_id
epoch = math.max(epoch, known) + 1
epoch_id, sequence, own = new_epoch_id(), 0, 0
local tickets = redis.call('HGET', META, 'tickets')
redis.call('DEL', META, COUNTERS, ENDS, INDEX)
redis.call('HSET', META, 'generation', epoch, 'mark', epoch_id, 'sequence', sequence, 'tickets', tickets or '0',
  'unbooked', unbooked)
close(REBUILDING, since)

for name, counter in pairs(counted) do
  redis.call('HSET', COUNTERS, name, struct.pack(COUNTER, unpack(counter)))
  if counter[12] > 0 then
    redis.call('ZADD', ENDS, counter[12], name)
  end
  enter(name, counter[10])
end
for _, key in ipairs(carried) do
  redis.call('HSET', key, 'mark', epoch_id, 'carried', 1)
end
return answer('DONE')
