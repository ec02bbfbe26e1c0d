-- Reserve an amount in all counters of a call. Otherwise return why not, and queue the request.
local CALL = KEYS[FIRST_CALL]
local id, payload, revision, priority, place = unpack(ARGV, FIRST, FIRST + 4)
local amount_text = {ARGV[FIRST + 5], ARGV[FIRST + 6], ARGV[FIRST + 7]}
-- The minute of the windows, or the time of the request (-1: none). Leases in ms, 0 if the request does not wait.
local since, till, at, lease, wait = struct.unpack('<ddddd', ARGV[FIRST + 8])
-- For each counter: its end, its retention, its ceilings. For each own limit of the request: a counter, ceilings.
local rules, own_limits = ARGV[FIRST + 9], ARGV[FIRST + 10]
local names = split(ARGV[FIRST + 11])
local is_new = place == ''
local rank = string.format('%013.0f', math.max(0, now - priority * 1000))

local function go()
  if wait > 0 and not is_new then
    wake(leave(place))
  end
end

if closed then
  return answer('BACK')
end
if zone and zone ~= ARGV[FIRST + 12] then -- otherwise each zone would have its own budget per day
  return answer('ZONE', zone)
end
local before = redis.call('HMGET', CALL, 'mark', 'state', 'payload', 'names')
if before[1] == epoch_id and before[2] ~= 'released' then
  go()
  if before[3] ~= payload then
    return answer('CONFLICT')
  end
  return answer('KNOWN', before[2], before[4])
end
if is_stale(revision) or known ~= epoch then -- a rebuild may reach the same revision with other limits
  return stale()
end
if till > 0 and (now < since or now >= till) then
  return answer('MOVED')
end
if gone and at >= 0 and at < tonumber(gone) then
  go()
  return answer('GONE', gone)
end

local amount = {tonumber(amount_text[1]), tonumber(amount_text[2]), tonumber(amount_text[3])}
local is_for_nothing = own_limits == '' and amount[1] == 0 and amount[2] == 0 and amount[3] == 0
local packed, counters = read(names), {}
local short, refused, held

-- Note the units in which the amount exceeds the ceilings of a counter. This is rare.
local function fall_short(i, counter, ceilings)
  for unit = 1, 3 do
    local most, spent, back = ceilings[unit], counter[unit], counter[unit + 3]
    if amount[unit] > most - spent - back and not is_for_nothing then -- not the sum, because it may exceed the exact numbers
      short = short or {}
      if short[#short] ~= names[i] then
        short[#short + 1] = names[i]
      end
      if amount[unit] > most - spent then
        refused = refused or {names[i], unit, math.max(0, most - spent)}
      else
        held = held or {names[i], unit, math.max(0, most - spent - back)}
      end
    end
  end
end

local function look(i, counter, nusd, tokens, calls)
  if amount[1] > nusd - counter[1] - counter[4] or amount[2] > tokens - counter[2] - counter[5]
    or amount[3] > calls - counter[3] - counter[6] then
    fall_short(i, counter, {nusd, tokens, calls})
  end
end

for i = 1, #names do
  local ends, keep, nusd, tokens, calls = struct.unpack('<ddddd', rules, 40 * i - 39)
  local counter = packed[i] and {struct.unpack(COUNTER, packed[i])} or {0, 0, 0, 0, 0, 0, 0, 0, 0, ends, keep, 0}
  if keep == 0 then -- it has a ceiling now, so that it is kept forever
    counter[11] = 0
  end
  counters[i] = counter
  look(i, counter, nusd, tokens, calls)
end
for n = 0, #own_limits / 32 - 1 do
  local i, nusd, tokens, calls = struct.unpack('<dddd', own_limits, 32 * n + 1)
  look(i, counters[i], nusd, tokens, calls)
end
if refused then
  go()
  return answer('REFUSED', unpack(refused))
end

if not held and not is_for_nothing and redis.call('HLEN', WAITERS) > 0 then
  for i = 1, #names do
    -- A request that does not wait has no place yet, so that it comes after all others of its rank.
    local ahead, first = head(names[i], is_new and rank .. '/' or place)
    if ahead then
      held, short = {first.counter, first.unit, first.left}, {names[i]}
      break
    end
  end
end
if held then
  if wait > 0 then
    if is_new then
      place = rank .. '.' .. string.format('%016.0f', redis.call('HINCRBY', META, 'tickets', 1))
    end
    local before = waiter(place)
    local left = leave(place)
    redis.call('HSET', WAITERS, place, cmsgpack.pack({
      id = id, lease = now + wait, since = before and before.since or now,
      counter = held[1], unit = held[2], left = held[3], asked = amount_text[held[2]], names = short,
      priority = priority,
    }))
    for _, name in ipairs(short) do
      redis.call('ZADD', LINE, 0, name .. '\n' .. place)
    end
    local others = {}
    for _, name in ipairs(left) do
      local stays = false
      for _, kept in ipairs(short) do
        stays = stays or kept == name
      end
      if not stays then
        others[#others + 1] = name
      end
    end
    wake(others)
  end
  return answer('HELD', held[1], held[2], held[3], place)
end

step()
if not zone then
  redis.call('HSET', META, 'zone', ARGV[FIRST + 12])
end
local fields = {}
for i, counter in ipairs(counters) do
  counter[4], counter[5], counter[6] = counter[4] + amount[1], counter[5] + amount[2], counter[6] + amount[3]
  counter[12] = forget_later(names[i], counter[10], counter[11], counter[12])
  if not packed[i] then
    enter(names[i], counter[10])
  end
  fields[2 * i - 1] = names[i]
  fields[2 * i] = struct.pack(COUNTER, unpack(counter, 1, 12))
end
if #fields > 0 then
  redis.call('HSET', COUNTERS, unpack(fields))
end
redis.call('DEL', CALL)
redis.call('HSET', CALL, 'mark', epoch_id, 'state', 'reserved', 'payload', payload, 'nusd', amount_text[1],
  'tokens', amount_text[2], 'calls', amount_text[3], 'names', ARGV[FIRST + 11])
redis.call('ZADD', LEASES, now + lease, id)
go()
return answer('RESERVED')
