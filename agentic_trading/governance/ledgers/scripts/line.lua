-- The line. Who waits has a place, `<rank>.<ticket>`: the lower goes first. LINE holds `<counter>\n<place>` for each
-- counter that somebody is short of or comes behind another in; WAITERS says who has a place, until when they are
-- taken to be alive, and what they lack.
local PLACE = 27 -- its length

local function waiter(place)
  local packed = redis.call('HGET', WAITERS, place)
  return packed and cmsgpack.unpack(packed)
end

-- Take somebody out of the line; return the counters that they stood in line for.
local function leave(place)
  local gone = waiter(place)
  if not gone then
    return {}
  end
  redis.call('HDEL', WAITERS, place)
  for _, name in ipairs(gone.names) do
    redis.call('ZREM', LINE, name .. '\n' .. place)
  end
  return gone.names
end

-- Return the place of the first who is alive in the line for a counter, among those before `place`.
local function head(name, place)
  while true do
    local first = redis.call('ZRANGEBYLEX', LINE, '[' .. name .. '\n', '(' .. name .. '\n' .. place, 'LIMIT', 0, 1)[1]
    if not first then
      return nil
    end
    local at = string.sub(first, -PLACE)
    local found = waiter(at)
    if found and found.lease > now then
      return at, found
    end
    leave(at)
    redis.call('ZREM', LINE, first)
  end
end

-- Tell those who are now first in line for these counters to look again.
local function wake(names)
  if redis.call('HLEN', WAITERS) == 0 then
    return
  end
  local told, places = {}, {}
  for _, name in ipairs(names) do
    local place = head(name, '\255')
    if place and not told[place] then
      told[place] = true
      places[#places + 1] = place
    end
  end
  if #places > 0 then
    redis.call('PUBLISH', LINE, table.concat(places, '\n'))
  end
end

local function wake_all()
  redis.call('PUBLISH', LINE, '*')
end
