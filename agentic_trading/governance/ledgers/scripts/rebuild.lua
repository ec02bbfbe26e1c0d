-- Begin the next generation, closed until all that the log knows is booked. Forget all calls and counters but for the
-- given calls that are in flight, and what they hold; if the ledger was found to have gone back, forget them too.
local held, carried = {}, {}
if closed == REBUILDING then
  for i = FIRST_CALL, #KEYS do
    local call = find(KEYS[i])
    if call and (call.state == 'reserved' or call.state == 'dispatched') then
      carried[#carried + 1] = KEYS[i]
      for n, packed in ipairs(read(call.names)) do
        held[call.names[n]] = packed
      end
    end
  end
else
  redis.call('DEL', LEASES)
  for i = FIRST_CALL, #KEYS do
    redis.call('DEL', KEYS[i])
  end
end

generation = math.max(generation, known) + 1
mark, sequence, own, closed = new_mark(), 0, 0, REBUILDING
local tickets = redis.call('HGET', META, 'tickets') or '0'
redis.call('DEL', META, COUNTERS, ENDS, INDEX)
redis.call('HSET', META, 'generation', generation, 'mark', mark, 'sequence', sequence, 'closed', closed, 'tickets', tickets)

for name, packed in pairs(held) do
  if packed then
    local _, _, _, nusd, tokens, calls, _, _, _, ends, keep, over = struct.unpack(COUNTER, packed)
    redis.call('HSET', COUNTERS, name, struct.pack(COUNTER, 0, 0, 0, nusd, tokens, calls, 0, 0, 0, ends, keep, over))
    if over > 0 then
      redis.call('ZADD', ENDS, over, name)
    end
    enter(name, ends)
  end
end
for _, key in ipairs(carried) do
  redis.call('HSET', key, 'mark', mark)
end
return answer('DONE')
